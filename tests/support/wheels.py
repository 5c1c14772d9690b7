"""Wheels made in a blink, byte for byte the same each time.

They are real wheels (PEP 427), so pip and uv install them. Everything is
stored uncompressed: what zlib writes differs between its versions, and the tests compare digests.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.tags import parse_tag, platform_tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The oldest time that a zip can hold: any constant will do.
_TIME = (1980, 1, 1, 0, 0, 0)
_FILE, _PROGRAM = 0o100644, 0o100755


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    modules: Mapping[str, str | bytes] | None = None,
    requires: Sequence[str] = (),
    scripts: Mapping[str, str] | None = None,
    data_scripts: Mapping[str, bytes | Path] | None = None,
    tag: str = "py3-none-any",
    requires_python: str = "",
) -> Path:
    """Write a wheel into *folder* and give its path; an older file of that name is replaced, atomically.

    *modules*: path in the wheel → text (``module_files`` where absent). *scripts*: command → ``module:function``.
    *data_scripts*: programs that the installer copies beside the interpreter. *requires_python*: a version specifier.
    """
    stem = f"{import_name(name)}-{version}"
    info = f"{stem}.dist-info"
    files = {path: _bytes(data) for path, data in (module_files(name, version) if modules is None else modules).items()}
    programs = {f"{stem}.data/scripts/{script}": _bytes(data) for script, data in (data_scripts or {}).items()}
    files[f"{info}/METADATA"] = _metadata(name, version, requires, requires_python)
    files[f"{info}/WHEEL"] = _wheel(tag)
    if scripts:
        files[f"{info}/entry_points.txt"] = _lines(["[console_scripts]", *(f"{k} = {v}" for k, v in scripts.items())])
    files |= programs
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    return _write(folder / f"{stem}-{tag}.whl", files, programs)


def uv_wheel(folder: Path, version: str, binary: Path) -> Path:
    """Write a wheel of uv for this machine around a real *binary*; a wheel that is there already is taken as it is.

    The binary is not asked for its version: a wheel which claims another one is a case that tests need.
    """
    tag = f"py3-none-{_platform()}"
    done = folder / f"uv-{version}-{tag}.whl"
    if done.exists():
        return done
    return make_wheel(folder, "uv", version, modules={"uv/__init__.py": ""}, data_scripts={"uv": binary}, tag=tag)


def module_files(name: str, version: str) -> dict[str, str]:
    """Give the default content: a package of two files, so that a test can lose one of them, or the whole folder."""
    package = import_name(name)
    return {
        f"{package}/__init__.py": f'VERSION = "{version}"\n',
        f"{package}/cli.py": f"from {package} import VERSION\n\n\ndef main() -> None:\n    print(VERSION)\n",
    }


def import_name(name: str) -> str:
    """Give the spelling of a distribution's name in file names, which is also its package here."""
    return name.lower().replace("-", "_").replace(".", "_")


def _platform() -> str:
    """Give this machine's most special tag of those that an index takes; bare linux_* it takes not."""
    known = [*platform_tags()]
    return next((tag for tag in known if not tag.startswith("linux_")), known[0])


def _bytes(data: str | bytes | Path) -> bytes:
    if isinstance(data, Path):
        return data.read_bytes()
    return data.encode() if isinstance(data, str) else data


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _metadata(name: str, version: str, requires: Sequence[str], requires_python: str) -> bytes:
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    python = [f"Requires-Python: {requires_python}"] if requires_python else []
    return _lines([*head, *python, *(f"Requires-Dist: {requirement}" for requirement in requires)])


def _wheel(tag: str) -> bytes:
    pure = "true" if tag.endswith("-any") else "false"
    head = ["Wheel-Version: 1.0", "Generator: aml-nox-tests", f"Root-Is-Purelib: {pure}"]
    return _lines([*head, *(f"Tag: {one}" for one in sorted(map(str, parse_tag(tag))))])


def _record(files: Mapping[str, bytes], own_path: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for path, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow([path, f"sha256={digest}", len(data)])
    rows.writerow([own_path, "", ""])
    return text.getvalue().encode()


def _write(target: Path, files: Mapping[str, bytes], programs: Iterable[str]) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")  # no index lists this name: nobody is served half a wheel
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for path, data in sorted(files.items()):
            member = zipfile.ZipInfo(path, _TIME)
            member.create_system = 3  # Unix, on every system: the permissions below are then honoured, the bytes equal
            member.external_attr = (_PROGRAM if path in programs else _FILE) << 16
            archive.writestr(member, data)
    return part.replace(target)
