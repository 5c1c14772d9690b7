"""The only file that writes state: where things lie in the AML root, locks, atomic writes, markers.

Whatever is read later is written by a temporary file, fsync and rename, so that a kill leaves the old or the new.
An environment counts only by its marker, which is written last and names its own real path.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import secrets
import shlex
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from aml_nox import interrupts, warm
from aml_nox.errors import AmlError, Code
from aml_nox.screen import Screen

SCHEMA = warm.SCHEMA
_READY_KEPT = 32
_LARGEST = 1 << 30  # bytes of a record; the largest is the list of an environment's files
_SHORT = 12
_OPEN = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
_FULL = {errno.ENOSPC, errno.EDQUOT}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_NOT_IN_PATHS = ((os.pathsep, "separates the entries of PATH"), ("\n", "ends the first line of a script"))
_MARKER = {"key": str, "path": str, "created": str, "target": dict, "interpreter": dict, "packages": list}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True)
class Root:
    """The AML root of a project: what lies where in it."""

    path: Path
    folder: Path

    @property
    def envs(self) -> Path:
        return self.path / "envs"

    @property
    def tools(self) -> Path:
        return self.path / "tools"

    @property
    def runtime(self) -> Path:
        return self.path / "runtime"

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def pythons(self) -> Path:
        return self.path / "python"

    def link(self, environment: str) -> Path:
        """The link that people and editors follow to the current environment."""
        return self.path / warm.link_name(environment)

    def relative(self, path: Path) -> str:
        """The path as records hold it: relative inside the root, as it is elsewhere."""
        return path.relative_to(self.path).as_posix() if path.is_relative_to(self.path) else str(path)


def locate(folder: Path, environ: Mapping[str, str]) -> Root:
    """The root of a project folder.

    Raises:
        AmlError: AML_STATE for a root that would be a disaster, or that no PATH can hold.

    """
    root = Root(Path(warm.root_path(str(folder), dict(environ))), folder.resolve())
    home = Path(environ["HOME"]).resolve() if environ.get("HOME") else None
    if any(path.is_relative_to(root.path.resolve()) for path in (root.folder, home) if path):
        message = f"AML_ROOT must not be {root.path}: the project or the home directory lies in it"
        raise AmlError(Code.STATE, message, "name a folder of its own, which can be deleted whole")
    for path, (character, role) in itertools.product((root.path, root.folder), _NOT_IN_PATHS):
        if character in str(path):
            message = f"the path {str(path)!r} holds {character!r}, which {role}"
            raise AmlError(Code.STATE, message, "move the project to a folder without it")
    return root


def prepare(root: Root) -> None:
    """Make the root; its .gitignore keeps all of it out of version control."""
    for folder in (root.envs, root.runtime / "locks", root.runtime / "ready"):
        folder.mkdir(parents=True, exist_ok=True)
    ignore = root.path / ".gitignore"
    if not ignore.exists():
        write_bytes(ignore, b"*\n")


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file whole or not at all; `mode` is narrowed by the umask."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is None:  # of a write: the system does not say where
            error.filename = str(path)
        raise


@contextlib.contextmanager
def scratch(root: Root, text: str) -> Iterator[Path]:
    """A file that a tool reads while the block runs."""
    path = root.runtime / f"scratch-{secrets.token_hex(4)}.txt"
    prepare(root)
    write_bytes(path, text.encode())
    try:
        yield path
    finally:
        remove(path)


def write_program(path: Path, data: bytes) -> None:
    """Place a program: whole, and only then executable under its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data, mode=0o755)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a record."""
    write_bytes(path, (warm.to_json(value) + "\n").encode())


def open_plain(path: Path) -> io.FileIO:
    """A plain file for reading. A link is not followed, a pipe not waited for.

    Raises:
        OSError: it cannot be opened, or is none.

    """
    stream = io.FileIO(os.open(path, _OPEN))
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise FileNotFoundError(errno.ENOENT, "it is no plain file", str(path))
    return stream


def read_json(path: Path, *, largest: int = _LARGEST) -> dict[str, Any] | None:
    """A record, or None where there is none that this version can read: a damaged record is as good as none.

    What stands in its place is not waited for, followed, or read without end: a job can put a pipe there, a link, or a
    file of any size (`largest` is in bytes).
    """
    try:
        with open_plain(path) as stream:
            if os.fstat(stream.fileno()).st_size > largest:
                return None
            value = json.loads(stream.read())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("schema") == SCHEMA else None


def now() -> str:
    """The time in UTC, as records hold it (RFC 3339)."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@contextlib.contextmanager
def lock(root: Root, name: str, *, what: str, wait: float, screen: Screen) -> Iterator[None]:
    """Hold a lock of the root; the operating system frees it with its holder, whatever the files say.

    `wait` is in seconds. Look again at what was to be done after getting it.

    Raises:
        AmlError: AML_BUSY names the holder after `wait`; AML_STATE where the file system has no locks.

    """
    prepare(root)
    path = root.runtime / "locks" / f"{name}.lock"
    held = FileLock(path, fallback_to_soft=False)
    _acquire(held, path, what=what, wait=wait, screen=screen)
    holder = path.with_suffix(".json")
    try:
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        write_json(holder, {"pid": os.getpid(), "host": socket.gethostname(), "since": now(), "command": command})
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        held.release()


@contextlib.contextmanager
def try_lock(root: Root, name: str) -> Iterator[bool]:
    """Hold a lock of the root if nobody else does; whether it is held."""
    held = FileLock(root.runtime / "locks" / f"{name}.lock", fallback_to_soft=False)
    try:
        held.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        held.release()


def resolved(link: Path) -> Path | None:
    """What a link leads to; None for one that leads nowhere."""
    try:
        return link.resolve(strict=True)
    except OSError:
        return None


def count_environments(root: Root) -> int:
    """How many environments are kept that a marker certifies."""
    return sum(1 for _ in root.envs.glob("*/.aml-ok-*"))


def _acquire(held: FileLock, path: Path, *, what: str, wait: float, screen: Screen) -> None:
    try:
        with contextlib.suppress(Timeout):
            held.acquire(blocking=False)
            return
        screen.say(f"waiting for {what}, {_holder(path)}")
        _wait(held, wait)
    except Timeout:
        message = f"waited {wait:g} s for {what}, {_holder(path)}"
        raise AmlError(Code.BUSY, message, "end that process, or raise timeouts.lock-wait") from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        message = f"the file system of {path.parent} has no file locks: {error}"
        raise AmlError(Code.STATE, message, "set AML_ROOT to a folder on a local disk") from error


def _wait(held: FileLock, wait: float) -> None:
    """Wait for a lock, in steps between which a request to end is honoured."""
    end = time.monotonic() + wait
    while True:
        interrupts.honour()
        left = end - time.monotonic()
        try:
            held.acquire(timeout=max(0.0, min(left, interrupts.STEP)))
        except Timeout:
            if left <= interrupts.STEP:
                raise
        else:
            return


def _holder(path: Path) -> str:
    found = read_json(path.with_suffix(".json"))
    if found is None:
        return "held by another process"
    pid, host, since, command = (found.get(name, "?") for name in ("pid", "host", "since", "command"))
    return f"held by pid {pid} on {host} since {since}: {command}"


def new_environment(root: Root, key: str) -> Path:
    """A fresh directory for a build, at its final path."""
    while True:
        path = root.envs / f"{key[:_SHORT]}-{secrets.token_hex(2)}"
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path


def empty(environment: Path) -> None:
    """Start a build over in its directory."""
    remove(environment)
    environment.mkdir()


def marker_path(environment: Path) -> Path:
    """Where the marker of an environment lies: the directory's own name tells the key."""
    return environment / f".aml-ok-{environment.name.rpartition('-')[0]}"


def read_marker(environment: Path) -> dict[str, Any] | None:
    """The marker of an environment; None where there is none, or none of the form that we write."""
    marker = read_json(marker_path(environment))
    if marker is None or not all(isinstance(marker.get(name), kind) for name, kind in _MARKER.items()):
        return None
    return marker if all(map(_is_package, marker["packages"])) else None


def _is_package(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("name", "version", "sha256"))


def retire(environment: Path) -> None:
    """Take the marker from a directory that another has replaced; a job that runs in it keeps its files."""
    marker_path(environment).unlink(missing_ok=True)


def environments(root: Root, key: str) -> list[Path]:
    """The directories that may hold an environment of this key."""
    return sorted(root.envs.glob(f"{key[:_SHORT]}-????"))


def current(root: Root, environment: str) -> Path | None:
    """The directory that the environment's link leads to, were it there or not."""
    with contextlib.suppress(OSError):
        return root.path / root.link(environment).readlink()
    return None


def switch(root: Root, environment: str, target: Path) -> bool:
    """Point the link to a built environment; whether that changed it.

    Raises:
        AmlError: AML_STATE when something of the user's stands there.

    """
    link = root.link(environment)
    try:
        return warm.switch(str(link), root.relative(target))
    except FileExistsError:
        message = f"{link} is a real file or folder, and the link to the environment belongs there"
        raise AmlError(Code.STATE, message, "move it away; aml-nox never deletes what it did not make") from None


def write_record(path: Path, value: Mapping[str, Any]) -> None:
    """Write a record that spares work: a tree that cannot be written, or is full, is as right without."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, value)
    except OSError as error:
        if error.errno not in {*_READ_ONLY, *_FULL}:
            raise


def write_ready(path: Path, record: Mapping[str, Any]) -> None:
    """Keep an observation for the next run, and the youngest of the others."""
    write_record(path, record)
    by_age = sorted(path.parent.glob("*.json"), key=_written, reverse=True)
    for old in by_age[_READY_KEPT:]:
        remove(old)


def _written(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:  # another run has just removed it
        return 0


def remove(path: Path) -> None:
    """Remove a file or directory that we made and nobody uses; what cannot be removed is left for `clean`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def state_error(error: OSError) -> AmlError | None:
    """What an operating system error means to a user; None when it is no fault of theirs."""
    name = error.filename2 or error.filename  # of two the second is the one that was to be made
    where = os.fsdecode(name) if isinstance(name, str | bytes) else "a file"
    if error.errno in _FULL:
        return AmlError(Code.STATE, f"no space left for {where}", "free some space and run the same command again")
    if error.errno == errno.EROFS:
        return AmlError(
            Code.STATE, f"{where} cannot be written: {error.strerror}", "set AML_ROOT to a folder elsewhere"
        )
    if error.errno in {errno.EACCES, errno.EPERM}:
        return AmlError(Code.STATE, f"{where} cannot be written or read: {error.strerror}", _owner_hint(where))
    if error.errno in {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP}:
        return AmlError(Code.STATE, f"{where}: {error.strerror}", "something stands where a file of aml-nox belongs")
    return None


def _owner_hint(where: str) -> str:
    if sys.platform == "win32":
        return "check the permissions of this folder"
    path = Path(where).absolute()
    while not os.path.lexists(path) and path != path.parent:  # what lies in a closed folder is not seen either
        path = path.parent
    owner, ours = path.lstat().st_uid, os.geteuid()
    if owner != ours:
        return f"{path} belongs to {_user(owner)}, this is {_user(ours)}: change its owner, or set AML_ROOT elsewhere"
    return f"{path} belongs to {_user(owner)}, as this process does: change its permissions, or set AML_ROOT elsewhere"


def _user(uid: int) -> str:
    import pwd  # noqa: PLC0415 - POSIX only

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
