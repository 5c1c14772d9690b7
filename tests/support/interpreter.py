"""A throw-away copy of the interpreter: one that a test may delete, replace, damage or let be polluted (Linux)."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

#: Third-party code, and what is large and needed neither for a virtual environment nor to run programs in it.
_LEFT_OUT = (
    *("site-packages", "dist-packages", "sitecustomize.py", "EXTERNALLY-MANAGED", "config-*", "*.opt-?.pyc", "*.a"),
    *("test", "tests", "idlelib", "idle_test", "tkinter", "_tkinter*", "turtledemo", "lib2to3", "ensurepip"),
    *("pydoc_data", "distutils", "_test*", "_ctypes_test*", "_xx*", "xxlimited*"),
)


def interpreter_copy(folder: Path) -> Path:
    """Copy the base interpreter into *folder* and give its program, ``bin/pythonX.Y``; its site-packages is empty.

    The copy stands alone: own libpython, own prefix, own site-packages; it does not run the original's files.
    """
    if sys.platform != "linux":
        pytest.skip("the copy's library path is written into an ELF file")
    base, xy = Path(sys.base_prefix), f"{sys.version_info.major}.{sys.version_info.minor}"
    library = folder / "lib" / f"python{xy}"
    shutil.copytree(_stdlib(), library, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    (library / "site-packages").mkdir()
    for data in library.glob("_sysconfigdata*.py"):
        data.write_text(data.read_text().replace(str(base), str(folder)))
    _copy_libpython(folder / "lib")
    return _copy_program(base / "bin" / f"python{xy}", folder / "bin")


def _stdlib() -> Path:
    """Give the base interpreter's own library, not a virtual environment's."""
    return Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))


def _copy_libpython(target: Path) -> None:
    name, folder = sysconfig.get_config_var("INSTSONAME"), sysconfig.get_config_var("LIBDIR")
    source = Path(folder, name)
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and source.is_file():
        shutil.copy2(source, target / name)


def _copy_program(source: Path, target: Path) -> Path:
    target.mkdir()
    program = target / source.name
    program.write_bytes(_with_own_library(source.read_bytes(), sysconfig.get_config_var("LIBDIR")))
    program.chmod(0o755)
    for name in ("python3", "python"):
        (target / name).symlink_to(program.name)
    return program


def _with_own_library(program: bytes, library: str) -> bytes:
    """Point an ELF program's RUNPATH from the absolute *library* to the folder beside the program.

    The string is replaced where it lies, so it must not grow. A program that names no such folder (static, or built to
    be moved) stays as it is.
    """
    old, new = library.encode() + b"\0", b"$ORIGIN/../lib\0"
    if old not in program:
        return program
    assert len(old) >= len(new), f"no room to rewrite the library path {library}"
    return program.replace(old, new.ljust(len(old), b"\0"))
