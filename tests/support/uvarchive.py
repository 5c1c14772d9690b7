"""uv as it is given away: archives, wheels, an installer script; of the real program, or of what a test says it is."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A program for no machine: the head of an executable whose processor number nobody has.
FOREIGN = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xff\xfe" + bytes(44)
#: A symbolic link, for `tar` and `zip_file`: its target is the text behind this.
LINK = b"link to "
_LINK_MODE, _PROGRAM_MODE = 0o120777, 0o100755

#: The script of the tests in the place of the official one: the same variables, the same manners without them.
_INSTALLER = """#!/bin/sh
set -eu
place="${{UV_INSTALL_DIR:-${{UV_UNMANAGED_INSTALL:-$HOME/.local/bin}}}}"
"{python}" -I -c '
import io, pathlib, sys, tarfile, urllib.request
place, url = pathlib.Path(sys.argv[1]), sys.argv[2]
place.mkdir(parents=True, exist_ok=True)
with urllib.request.urlopen(url) as reply, tarfile.open(fileobj=io.BytesIO(reply.read())) as archive:
    member = next(one for one in archive if one.name.endswith("/uv"))
    (place / "uv").write_bytes(archive.extractfile(member).read())
(place / "uv").chmod(0o755)
' "$place" "{url}"
if [ -z "${{UV_UNMANAGED_INSTALL:-}}" ] && [ "${{UV_NO_MODIFY_PATH:-0}}" != 1 ]; then
    echo "export PATH=$place" >> "$HOME/.profile"
fi
echo "uv is in $place" >&2
"""


def shell(text: str) -> bytes:
    """Give a program for the shell."""
    return f"#!/bin/sh\n{text}\n".encode()


def says(version: str) -> bytes:
    """Give a program that claims to be uv, of some version."""
    return shell(f"echo uv {version}")


def pack(path: Path, uv: Path | bytes) -> Path:
    """Write uv into *path* as its name asks: .tar.gz and .zip as uv's releases have it, .whl as the index has it."""
    data = uv.read_bytes() if isinstance(uv, Path) else uv
    if path.name.endswith(".tar.gz"):
        return tar(path, {"uv-some-target/uv": data, "uv-some-target/uvx": b""})
    if path.suffix == ".zip":
        return zip_file(path, {"uv": data, "uvx": b""})
    name, version, tag = path.stem.split("-", 2)
    return make_wheel(path.parent, name, version, modules={"uv/__init__.py": ""}, data_scripts={"uv": data}, tag=tag)


def tar(path: Path, members: Mapping[str, bytes]) -> Path:
    """Write a .tar.gz; a name that ends with / is a directory. Nothing is compressed: it costs seconds."""
    with tarfile.open(path, "w:gz", compresslevel=0) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name.rstrip("/"))
            member.mode, member.size = 0o755, len(data)
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
            elif data.startswith(LINK):
                member.type, member.linkname, member.size = tarfile.SYMTYPE, data.removeprefix(LINK).decode(), 0
            archive.addfile(member, io.BytesIO(data))
    return path


def zip_file(path: Path, members: Mapping[str, bytes]) -> Path:
    """Write a .zip; a name that ends with / is a directory."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            member = zipfile.ZipInfo(name)
            member.create_system = 3
            member.external_attr = (_LINK_MODE if data.startswith(LINK) else _PROGRAM_MODE) << 16
            archive.writestr(member, data.removeprefix(LINK))
    return path


def installer(url: str) -> str:
    """Give an installer script that takes uv out of the .tar.gz at *url*."""
    return _INSTALLER.format(python=sys.executable, url=url)
