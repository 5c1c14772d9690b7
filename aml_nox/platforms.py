"""What differs between operating systems and processors, by their names: so Windows and macOS can be tested here."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

_SYSTEMS = {"Linux": "linux", "Darwin": "macos", "Windows": "windows"}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "arm64": "arm64", "aarch64": "arm64"}
_TRIPLES = {
    "linux-x86_64": "x86_64-unknown-linux-gnu",
    "linux-arm64": "aarch64-unknown-linux-gnu",
    "macos-x86_64": "x86_64-apple-darwin",
    "macos-arm64": "aarch64-apple-darwin",
    "windows-x86_64": "x86_64-pc-windows-msvc",
    "windows-arm64": "aarch64-pc-windows-msvc",
}


def name(system: str | None = None, machine: str | None = None) -> str:
    """The platform as a manifest names it: ``linux-x86_64``; others are named alike and have no entry."""
    system, machine = system or platform.system(), (machine or platform.machine()).lower()
    return f"{_SYSTEMS.get(system, system.lower())}-{_MACHINES.get(machine, machine)}"


def triple(platform_name: str) -> str | None:
    """The target triple in the names of uv's own archives, None where uv has none for this platform."""
    return _TRIPLES.get(platform_name)


def program(stem: str, *, windows: bool = sys.platform == "win32") -> str:
    """The file name of a program."""
    return f"{stem}.exe" if windows else stem


def environment_python(environment: Path, *, windows: bool = sys.platform == "win32") -> Path:
    """The interpreter's program in a virtual environment."""
    return environment / ("Scripts" if windows else "bin") / program("python", windows=windows)


def search_names(minor: str, *, windows: bool = sys.platform == "win32") -> tuple[str, ...]:
    """The names under which an interpreter of a version X.Y may lie on PATH, the most exact first."""
    stems = ("python",) if windows else (f"python{minor}", "python3", "python")
    return tuple(program(stem, windows=windows) for stem in stems)


def null_file(*, windows: bool = sys.platform == "win32") -> str:
    """A file that holds nothing: the word by which pip is told to read no configuration."""
    return "nul" if windows else "/dev/null"


def path_separator(*, windows: bool = sys.platform == "win32") -> str:
    """What separates the entries of PATH."""
    return ";" if windows else ":"
