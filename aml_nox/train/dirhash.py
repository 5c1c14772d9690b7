"""The digest of a folder of data: `dirHash` of in-toto's DigestSet (spec/v1/digest_set.md).

It is Hash1 of golang.org/x/mod/sumdb/dirhash with an empty prefix, in lower-case hex: the sha256 of the lines that
sha256sum prints for all files, sorted by name (docs/digests.md). What would make it say less than it seems to is
refused: a name that no line or no other system can hold, a link, a pipe, an empty folder, a file that is written to.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from aml_nox import interrupts, store
from aml_nox.errors import AmlError, Code

_THREADS = 2  # more are slower where they share two cores, and hashing is rarely what a disk waits for
_CHUNK = 1 << 20
_IN_NO_LINE = frozenset("\\\n\r")  # sha256sum escapes these and marks the line; Go refuses the line feed
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}  # or a link, or a pipe, by now
_AGAIN = "let nothing write into it meanwhile, and run the same command again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A folder's content: the digest, how many files, bytes in all, each file's name and size, by name.

    `stamp` is a digest of what the file system says of the files: as long as it is the same, nothing was written.
    """

    digest: str
    files: int
    size: int
    stamp: str
    names: tuple[tuple[str, int], ...]


class _Refusal:
    """How a fault is told: of what, with which code."""

    __slots__ = ("_code", "_what")

    def __init__(self, what: str, code: Code) -> None:
        self._what = what
        self._code = code

    def __call__(self, text: str, hint: str) -> AmlError:
        return AmlError(self._code, f"{self._what}: {text}", hint)

    def of(self, error: OSError, name: str) -> AmlError:
        """What the operating system says of a file or folder that was there a moment ago."""
        if error.errno in _GONE:
            return self.changed(name)
        return self(f"{_shown(name)} cannot be read: {error.strerror}", "make it readable, or take it out")

    def changed(self, name: str) -> AmlError:
        return self(f"{_shown(name)} changed while it was read", _AGAIN)


def measure(folder: Path, *, what: str, code: Code) -> Measured:
    """The content of a folder, which may be given by a link; `what` begins the message of a fault.

    Raises:
        AmlError: `code`, for what cannot be hashed honestly, or not be read.

    """
    refuse = _Refusal(what, code)
    root = _root(folder, refuse)
    listing = _listing(root, refuse)
    if not listing:
        raise refuse("there is no file in it", "name the folder that holds the files")
    total = hashlib.sha256()
    for name, digest in zip(listing, _digests(root, listing, refuse), strict=True):
        total.update(f"{digest}  {name}\n".encode())
    _same(listing, _listing(root, refuse), refuse)
    return Measured(
        digest=total.hexdigest(),
        files=len(listing),
        size=sum(found.st_size for found in listing.values()),
        stamp=_stamp(listing),
        names=tuple((name, found.st_size) for name, found in listing.items()),
    )


def unchanged(folder: Path, measured: Measured) -> bool:
    """Whether a folder holds what was measured. Its files are read only where the file system's stamps differ.

    A touched file is unchanged; one with another byte is not, whatever its times say (ctime cannot be set back). What
    cannot be measured any more has changed.
    """
    refuse = _Refusal(str(folder), Code.STATE)
    try:
        if _stamp(_listing(_root(folder, refuse), refuse)) == measured.stamp:
            return True
        return measure(folder, what=str(folder), code=Code.STATE).digest == measured.digest
    except AmlError:
        return False


def _shown(name: str) -> str:
    """A name or path in full, in quotes, with no character that could move a terminal's cursor."""
    return json.dumps(name, ensure_ascii=not name.isprintable())


# --- which files


def _root(folder: Path, refuse: _Refusal) -> str:
    shown = _shown(str(folder))
    try:
        root = folder.resolve(strict=True)
        is_folder = root.is_dir()
    except (FileNotFoundError, NotADirectoryError):
        raise refuse(f"there is no folder {shown}", "make it, or correct the path") from None
    except OSError as error:
        raise refuse(f"{shown} cannot be read: {error.strerror}", "make it readable, or correct the path") from None
    except RuntimeError:  # before Python 3.13
        raise refuse(f"{shown} is a link in a circle", "correct the link") from None
    if not is_folder:
        raise refuse(f"{shown} is not a folder", "name the folder that holds the files")
    return str(root)


def _listing(root: str, refuse: _Refusal) -> Mapping[str, os.stat_result]:
    """All files below a folder by their names with slashes, in order."""
    found = dict(_walk(root, "", refuse))
    return dict(sorted(found.items()))  # by code points, which is by the bytes of UTF-8


def _walk(root: str, folder: str, refuse: _Refusal) -> Iterator[tuple[str, os.stat_result]]:
    pending = [folder]
    while pending:
        interrupts.honour()
        folder = pending.pop()
        for entry in _entries(root, folder, refuse):
            name = folder + entry.name
            found = _stat(entry.path, name, refuse)
            if stat.S_ISDIR(found.st_mode):
                pending.append(f"{name}/")
            else:
                yield name, found


def _entries(root: str, folder: str, refuse: _Refusal) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(f"{root}/{folder}") as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise refuse.of(error, folder or ".") from None
    known: dict[str, str] = {}
    for entry in found:
        _check_name(folder, entry.name, refuse)
        other = known.setdefault(_folded(entry.name), entry.name)
        if other != entry.name:
            both = f"{_shown(folder + other)} and {_shown(folder + entry.name)}"
            raise refuse(f"{both} are one name on other systems", "rename one of them")
    return found


def _check_name(folder: str, name: str, refuse: _Refusal) -> None:
    try:
        os.fsencode(name).decode()
    except UnicodeDecodeError:
        shown = ascii(os.fsencode(folder + name))
        raise refuse(f"the name {shown} is not UTF-8", "rename the file") from None
    if not _IN_NO_LINE.isdisjoint(name):
        problem = "has a backslash or a line end in its name"
        raise refuse(f"{_shown(folder + name)} {problem}, which no line of sha256sum holds as it is", "rename the file")


def _folded(name: str) -> str:
    """What a file system that ignores case and composition (macOS, Windows) takes a name for."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _stat(path: str, name: str, refuse: _Refusal) -> os.stat_result:
    try:
        found = os.lstat(path)
    except OSError as error:
        raise refuse.of(error, name) from None
    if stat.S_ISLNK(found.st_mode):
        raise refuse(f"{_shown(name)} is a link", "put the file itself there: a digest of a link says nothing of it")
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise refuse(f"{_shown(name)} is neither a file nor a folder", "take it out")
    return found


def _facts(found: os.stat_result) -> tuple[int, ...]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _stamp(listing: Mapping[str, os.stat_result]) -> str:
    lines = "".join(f"{' '.join(map(str, _facts(found)))} {name}\n" for name, found in listing.items())
    return hashlib.sha256(lines.encode()).hexdigest()


def _same(before: Mapping[str, os.stat_result], after: Mapping[str, os.stat_result], refuse: _Refusal) -> None:
    """Hold that nothing was written, added or taken away since the first look."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or _facts(before[name]) != _facts(after[name]):
            raise refuse.changed(name)


# --- reading


def _digests(root: str, listing: Mapping[str, os.stat_result], refuse: _Refusal) -> Iterator[str]:
    """The digests of all files, in their order; a request to end is honoured within a chunk."""
    ended = threading.Event()
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            pending = [pool.submit(_digest, f"{root}/{name}", found, ended) for name, found in listing.items()]
            for name, future in zip(listing, pending, strict=True):
                yield _result(future, name, refuse)
        finally:
            ended.set()
            pool.shutdown(cancel_futures=True)


def _result(future: Future[str | None], name: str, refuse: _Refusal) -> str:
    while not future.done():
        interrupts.honour()
        wait([future], timeout=interrupts.STEP)
    try:
        digest = future.result()
    except OSError as error:
        raise refuse.of(error, name) from None
    if digest is None:
        raise refuse.changed(name)
    return digest


def _digest(path: str, found: os.stat_result, ended: threading.Event) -> str | None:
    """The sha256 of a file; None for another one than was found, or one that is written to."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(max(1, min(_CHUNK, found.st_size + 1))))
    with store.open_plain(Path(path)) as stream:
        if _facts(os.fstat(stream.fileno())) != _facts(found):
            return None
        left = found.st_size
        while left >= 0 and not ended.is_set() and (count := stream.readinto(buffer)):
            digest.update(buffer[:count])
            left -= count
        is_same = left == 0 and _facts(os.fstat(stream.fileno())) == _facts(found)
    return digest.hexdigest() if is_same else None
