"""A real interpreter in an archive that uv installs, and the list of builds that names it (Linux)."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.interpreter import interpreter_copy
from tests.support.processes import run

if TYPE_CHECKING:
    from collections.abc import Mapping

_TAG = "20260101"
_ARCH = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine(), platform.machine())
_LIBC = "gnu" if platform.libc_ver()[0] == "glibc" else "musl"
VERSION = ".".join(map(str, sys.version_info[:3]))


def key(version: str = VERSION) -> str:
    """Give uv's name of a build for this machine, which is also the name of the folder it is installed into."""
    return f"cpython-{version}-linux-{_ARCH}-{_LIBC}"


@dataclass(frozen=True, slots=True)
class Standalone:
    """An archive of the tests' own interpreter, as uv installs it. It links to this system's libraries: no product."""

    path: Path

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def listing(self, url: str, version: str = VERSION, **changes: object) -> str:
        """Give a list of builds with the one entry, as JSON."""
        return json.dumps({key(version): self.entry(url, version, **changes)})

    def entry(self, url: str, version: str = VERSION, **changes: object) -> Mapping[str, object]:
        """Give an entry: the archive at *url* is said to be *version*; what is changed to None is left out."""
        major, minor, patch = map(int, version.split("."))
        what = {"name": "cpython", "os": "linux", "libc": _LIBC, "arch": {"family": _ARCH, "variant": None}}
        release = {"major": major, "minor": minor, "patch": patch, "prerelease": "", "build": _TAG}
        entry = {**what, **release, "url": url, "sha256": self.sha256, **changes}
        return {name: value for name, value in entry.items() if value is not None}


def make_standalone(folder: Path) -> Standalone:
    """Write the archive into *folder*; seconds are spent, so make one for many tests."""
    copy = folder / "copy"
    interpreter_copy(copy)
    if strip := shutil.which("strip"):  # a third is left; a machine without it waits longer
        libraries = [path for path in copy.rglob("*.so*") if path.is_file() and not path.is_symlink()]
        run([strip, "--strip-debug", *libraries], env={}, cwd=folder).expect()
    target = folder / f"cpython-{VERSION}+{_TAG}-{_ARCH}-unknown-linux-{_LIBC}-install_only.tar.gz"
    with gzip.open(target, "wb", compresslevel=1) as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        archive.add(copy, "python", filter=_plain)
    return Standalone(target)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.name.endswith((".pyc", "__pycache__")):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
