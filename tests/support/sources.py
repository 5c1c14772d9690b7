"""Projects that are built: with a build backend of their own in the tree, so that no build asks an index for one."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import tomlkit

from tests.support.wheels import import_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: PEP 517 and 660 in a few lines of the standard library. What `extra.py` gives is made while the build runs.
BACKEND = """\
import base64, hashlib, pathlib, sys, tomllib, zipfile


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    files = {path.name: path.read_bytes() for path in pathlib.Path("src").iterdir() if path.is_file()}
    if pathlib.Path("extra.py").exists():
        sys.path.insert(0, "")
        import extra

        files |= {name: text.encode() for name, text in extra.files().items()}
    return _wheel(wheel_directory, files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]["name"]
    place = str(pathlib.Path("src").absolute())
    return _wheel(wheel_directory, {f"__editable__.{name}.pth": f"{place}\\n".encode()})


def _wheel(folder, files):
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{stem}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Dist: {one}" for one in project.get("dependencies", [])]
    files[f"{info}/METADATA"] = "".join(f"{line}\\n" for line in lines).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\\nGenerator: own\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    rows = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\\n")
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\\n"]).encode()
    wheel = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, wheel), "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel
"""
_BUILD = {"requires": [], "build-backend": "backend", "backend-path": ["."]}


def write_source(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    dependencies: Sequence[str] = (),
    extra: str = "",
    tables: Mapping[str, object] | None = None,
) -> Path:
    """Write a project of one module into *folder*; *extra*: the body of ``extra.py``, *tables*: more of pyproject.toml.

    A function ``files()`` there gives files, path to text, that only a build makes.
    """
    project = {"name": name, "version": version, "dependencies": [*dependencies]}
    files = {
        "pyproject.toml": tomlkit.dumps({"build-system": _BUILD, "project": project, **(tables or {})}),
        "backend.py": BACKEND,
        f"src/{import_name(name)}.py": f'VERSION = "{version}"\n',
        **({"extra.py": extra} if extra else {}),
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def make_sdist(index: Path, source: Path, name: str, version: str = "1.0") -> Path:
    """Pack a project as an sdist into *index*, byte for byte the same each time."""
    stem = f"{import_name(name)}-{version}"
    target = index / f"{stem}.tar.gz"
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    files["PKG-INFO"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    with tarfile.open(target, "w:gz") as archive:
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{stem}/{path}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return target
