"""What distributions left in an environment, for comparing two of them whoever built them and wherever they lie."""

from __future__ import annotations

import csv
import io
import re
from configparser import ConfigParser
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

#: What belongs to the builder, not to a distribution: how the environment is entered, who made it, and where it lies.
_BOOKKEEPING = (
    *("pyvenv.cfg", ".gitignore", ".lock", "CACHEDIR.TAG", ".aml-ok-*", "env.manifest.json"),
    *("bin/activate*", "bin/Activate.ps1", "bin/deactivate*", "bin/pydoc.bat"),
    *("*.dist-info/INSTALLER", "*.dist-info/direct_url.json", "*.dist-info/uv_cache.json"),
)


class Entry(NamedTuple):
    """A file: its permissions, and its content in words."""

    mode: str
    content: str


def installed(environment: Path) -> dict[str, Entry]:
    """Give every file and link of an environment but bookkeeping: equal for equal locks.

    Of a launcher and of a script with the interpreter's path in its first line that line is left out; the rest of a
    launcher is its installer's own. RECORD is without the lines of these and of bookkeeping.
    """
    launchers = _launchers(environment)
    return {
        name: _entry(environment, name, launchers)
        for path in sorted(environment.rglob("*"))
        if (path.is_symlink() or path.is_file())
        and not _is_bookkeeping(name := path.relative_to(environment).as_posix())
    }


def _launchers(environment: Path) -> set[str]:
    found = set()
    for file in environment.rglob("*.dist-info/entry_points.txt"):
        parser = ConfigParser()
        parser.read(file)
        sections = (section for section in ("console_scripts", "gui_scripts") if parser.has_section(section))
        found |= {f"bin/{name}" for section in sections for name in parser.options(section)}
    return found


def _is_bookkeeping(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _BOOKKEEPING)


def _entry(environment: Path, name: str, launchers: set[str]) -> Entry:
    path = environment / name
    if path.is_symlink():
        return Entry("link", "" if path.resolve().is_relative_to(environment) else f"-> {path.resolve()}")
    mode = f"{path.stat().st_mode & 0o777:o}"
    if name in launchers:
        return Entry(mode, "launcher")
    data = path.read_bytes()
    if name.endswith(".dist-info/RECORD"):
        return Entry(mode, _record(environment, path, launchers, data.decode()))
    return Entry(mode, _without_path(environment, data).hex())


def _without_path(environment: Path, data: bytes) -> bytes:
    return re.sub(rb"\A#!.*\n", b"#!\n", data) if data.startswith(b"#!" + bytes(environment)) else data


def _record(environment: Path, record: Path, launchers: set[str], text: str) -> str:
    rows = []
    for name, *facts in csv.reader(io.StringIO(text)):
        path = (record.parents[1] / name).resolve()
        inside = path.relative_to(environment.resolve()).as_posix()
        own = inside in launchers or path.read_bytes().startswith(b"#!" + bytes(environment))
        if not _is_bookkeeping(inside):
            rows.append([name, *("" if own else fact for fact in facts)])
    return "\n".join(",".join(row) for row in sorted(rows))
