"""One digest for what is installed: the same on every machine, path, user and day (specified in docs/digests.md).

Counted are the bytes of all files, per distribution, and what no distribution owns; an installer's scripts count by
their meaning. Left out is what an installer or a first import writes for itself: the list stands here and in the
specification, each with its reason. RECORD is checked in the same pass, so every byte is read once.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from aml_nox import installed, interrupts, launchers
from aml_nox.installed import Claim, Drift

SCHEME = 1
MANIFEST = "env.manifest.json"

# What an installer notes for itself in a dist-info folder: paths, times and hashes of this one installation.
_NOTES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})
# What makes the directory a virtual environment of this place: paths of it, and what every builder writes otherwise. It
# is a plain file that no distribution claims. pyvenv.cfg counts by its one setting that changes what is imported.
_SCAFFOLD = re.compile(
    r"pyvenv\.cfg|\.gitignore|\.lock|CACHEDIR\.TAG|\.aml-ok-[0-9a-f]{12}|env\.manifest\.json"
    r"|(bin|Scripts)/(activate(\.(bat|csh|fish|nu|ps1|xsh)|_this\.py)?|Activate\.ps1|deactivate\.bat|pydoc\.bat)"
    r"|Scripts/pythonw?\.exe"
)
# Links that lead to the interpreter, which is counted by what it is.
_PROGRAM = re.compile(r"bin/(python|pypy|\N{MATHEMATICAL ITALIC SMALL PI}thon)[0-9.]*t?")
_SHEBANG = b"#!"
_WHOLE = 1 << 20
_BATCH = 64


@dataclass(frozen=True, slots=True)
class Content:
    """What is installed: the leaf of each file by distribution, what belongs to none, and what differed from RECORD."""

    manifest: bytes
    files: Mapping[str, Mapping[str, str]]
    distributions_digest: str
    drift: tuple[Drift, ...]
    overlaps: tuple[str, ...]
    site: str

    def real_path(self, path: str) -> str:
        """Where a file of the canonical tree lies in this environment."""
        folder, _, rest = path.partition("/")
        return {"site": f"{self.site}/", "bin": f"{_scripts(self.site)}/"}.get(folder, "") + rest

    @property
    def digest(self) -> str:
        """The environment digest: the sha256 of env.manifest.json's bytes."""
        return hashlib.sha256(self.manifest).hexdigest()


@dataclass(frozen=True, slots=True)
class _File:
    """A file to read: its path in the environment, its stat, whom it belongs to ("": nobody), who claims it."""

    path: str
    found: os.stat_result
    owner: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    file: _File
    text: str
    drift: Drift | None


Progress = Callable[[int, int], None]


def compute(environment: Path, identity: Mapping[str, str], *, progress: Progress | None = None) -> Content:
    """Read an environment. `identity` is what its interpreter says of itself; `progress` gets bytes done and in all.

    Raises:
        FileNotFoundError: it has no site-packages.

    """
    environment = environment.resolve()
    records = installed.read_records(environment)
    files = list(_files(environment, records))
    leaves = list(_read(environment, files, records, progress))
    grouped: dict[str, dict[str, str]] = {name: {} for name in ("", *records.distributions)}
    for leaf in leaves:
        grouped[leaf.file.owner][_canonical(leaf.file.path, records.site)] = leaf.text
    strays = grouped.pop("")
    manifest = _manifest(grouped, strays, identity, system=lets_in_system(environment))
    drift = [*records.faults, *(leaf.drift for leaf in leaves if leaf.drift), *_missing(environment, files, records)]
    return Content(
        manifest=manifest,
        files={**grouped, "": strays},
        distributions_digest=_digests(grouped)[1],
        drift=tuple(drift),
        overlaps=tuple(_overlaps(records)),
        site=records.site,
    )


def files_of(environment: Path) -> list[str]:
    """The paths of all files and links but for bytecode."""
    return [path for path, _ in _walk(str(environment.resolve()))]


def _manifest(
    grouped: Mapping[str, Mapping[str, str]], strays: Mapping[str, str], identity: Mapping[str, str], *, system: bool
) -> bytes:
    digests, all_of_them = _digests(grouped)
    value = {
        "scheme": SCHEME,
        "interpreter": dict(identity),
        "settings": {"system_site": system},
        "distributions": {name: {"digest": digests[name], "files": dict(grouped[name])} for name in grouped},
        "distributions_digest": all_of_them,
        "strays": dict(strays),
    }
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True) + "\n").encode()


def _digests(grouped: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, str], str]:
    """The digest of each distribution, and of all."""
    digests = {name: _lines_digest((leaf, path) for path, leaf in files.items()) for name, files in grouped.items()}
    return digests, _lines_digest((digest, name) for name, digest in digests.items())


def _lines_digest(pairs: Iterable[tuple[str, str]]) -> str:
    """Of lines as sha256sum prints them, sorted by their bytes."""
    return hashlib.sha256(b"".join(sorted(_line(value, name) for value, name in pairs))).hexdigest()


def _line(value: str, name: str) -> bytes:
    """A line of sha256sum (coreutils 9): a name with a line end or a backslash is escaped, and the line marked."""
    escaped = name.replace("\\", r"\\").replace("\n", r"\n").replace("\r", r"\r")
    return f"{'' if escaped == name else chr(92)}{value}  {escaped}\n".encode("utf-8", "surrogateescape")


def _canonical(path: str, site: str) -> str:
    """A path that is the same on every system: what is imported below site, programs below bin, the rest below data."""
    for folder, name in ((site, "site"), (_scripts(site), "bin")):
        if path.startswith(f"{folder}/"):
            return name + path.removeprefix(folder)
    return f"data/{path}"


def _scripts(site: str) -> str:
    return "Scripts" if site.startswith("Lib/") else "bin"


def lets_in_system(environment: Path) -> bool:
    """Whether the base interpreter's packages are imported too: Python's own default, and the last word counts."""
    words = [value for key, value in installed.settings(environment) if key == "include-system-site-packages"]
    return not words or words[-1].lower() == "true"


# --- which files ---


def _files(environment: Path, records: installed.Records) -> Iterator[_File]:
    for path, found in _walk(str(environment)):
        owner = _info_owner(path, records)
        if owner and path.rpartition("/")[2] in _NOTES and path.count("/") == records.site.count("/") + 2:
            continue
        claims = records.claims.get(path, ())
        if not claims and _is_scaffold(environment, path, found):
            continue
        yield _File(path, found, owner or (claims[0].distribution if claims else ""), claims)


def _info_owner(path: str, records: installed.Records) -> str:
    """The distribution in whose dist-info folder a file lies: it need not be claimed to belong there."""
    head, found, _ = path.removeprefix(f"{records.site}/").partition(".dist-info/")
    return records.infos.get(f"{head}.dist-info", "") if found and "/" not in head else ""


def _is_scaffold(environment: Path, path: str, found: os.stat_result) -> bool:
    if not stat.S_ISLNK(found.st_mode):
        return stat.S_ISREG(found.st_mode) and _SCAFFOLD.fullmatch(path) is not None
    link = environment / path
    if path == "lib64":
        return os.readlink(link) == "lib"  # noqa: PTH115 - as it is written
    return _PROGRAM.fullmatch(path) is not None and link.resolve() == (environment / "bin" / "python").resolve()


def _walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    pending = [""]
    while pending:
        interrupts.honour()
        folder = pending.pop()
        with os.scandir(os.path.join(root, folder)) as entries:  # noqa: PTH118 - as fast as a plain loop over the files
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        pending.append(path)
                else:
                    yield path, entry.stat(follow_symlinks=False)


# --- reading ---


def _read(
    environment: Path, files: Sequence[_File], records: installed.Records, progress: Progress | None
) -> Iterator[_Leaf]:
    """Leaves of all files: large ones by threads, as hashing leaves Python's lock alone; small ones would wait."""
    large = sorted((one for one in files if one.found.st_size > _WHOLE), key=lambda one: -one.found.st_size)
    total, done = sum(one.found.st_size for one in files), 0
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        pending = [pool.submit(_leaf, environment, one, records) for one in large]
        try:
            here = (_leaf(environment, one, records) for one in files if one.found.st_size <= _WHOLE)
            for number, leaf in enumerate(chain(here, (one.result() for one in pending))):
                interrupts.honour()
                yield leaf
                done += leaf.file.found.st_size
                if progress is not None and (number % _BATCH == 0 or done == total):
                    progress(done, total)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _leaf(environment: Path, file: _File, records: installed.Records) -> _Leaf:
    full = f"{environment}/{file.path}"
    if stat.S_ISLNK(file.found.st_mode):
        target = quote(os.fsencode(os.readlink(full)))  # noqa: PTH115 - as it is written
        return _Leaf(file, f"link:{target}", _link_drift(file))
    if not stat.S_ISREG(file.found.st_mode):
        return _Leaf(file, "special", Drift(file.owner, file.path, "is neither a file nor a link"))
    try:
        return _file_leaf(environment, full, file, records)
    except OSError as error:
        return _Leaf(file, "unreadable", Drift(file.owner, file.path, f"cannot be read: {error.strerror}"))


def _file_leaf(environment: Path, full: str, file: _File, records: installed.Records) -> _Leaf:
    is_script = file.path.startswith(f"{_scripts(records.site)}/")
    with io.FileIO(full) as stream:  # as fast as a plain loop over the files
        if file.found.st_size <= _WHOLE or (is_script and _is_text(stream)):
            data = stream.read(file.found.st_size + 1)
            data += stream.readall() if len(data) != file.found.st_size else b""  # few file systems give a part
            digest = hashlib.sha256(data)
        else:
            data, digest = b"", hashlib.file_digest(stream, "sha256")
    drift = _record_drift(full, file, digest.digest())
    means = launchers.meaning(data, environment, records.entry_points(file.owner)) if is_script else None
    return _Leaf(file, means or digest.hexdigest(), drift)


def _is_text(stream: io.FileIO) -> bool:
    """Whether a long program can hold the path of its interpreter; a binary is not read into memory."""
    found = stream.read(len(_SHEBANG)) == _SHEBANG
    stream.seek(0)
    return found


def _record_drift(full: str, file: _File, digest: bytes) -> Drift | None:
    """How a file differs from RECORD. Of several claims with different content one fits: the last installer's."""
    if not file.claims:
        return _unclaimed(file)
    sha256 = "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    if any(claim.fits(sha256, file.found.st_size, full) for claim in file.claims):
        return None
    return Drift(file.owner, file.path, "differs from its hash in RECORD")


def _unclaimed(file: _File) -> Drift:
    what = "is not in RECORD" if file.owner else "belongs to no distribution"
    return Drift(file.owner, file.path, what)


def _link_drift(file: _File) -> Drift:
    return Drift(file.owner, file.path, "is a link, which no wheel can hold")


def _missing(environment: Path, files: Sequence[_File], records: installed.Records) -> Iterator[Drift]:
    there = {file.path for file in files}
    for path, claims in records.claims.items():
        if path in there or "__pycache__" in path.split("/"):
            continue
        if installed.is_outside(path):
            yield Drift(claims[0].distribution, path, "is outside of the environment, and RECORD claims it")
        elif not os.path.lexists(environment / path):
            yield Drift(claims[0].distribution, path, "is missing")


def _overlaps(records: installed.Records) -> Iterator[str]:
    """Files that several distributions claim with different content: uv and pip do not order them."""
    for path, claims in sorted(records.claims.items()):
        if len({claim.hash for claim in claims}) > 1:
            yield f"{path} is claimed by {' and '.join(sorted({claim.distribution for claim in claims}))}"
