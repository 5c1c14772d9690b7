"""Judges of what a provision left behind, which know nothing of the product's own judgement."""

from __future__ import annotations

import csv
import json
import os
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.processes import run
from tests.support.project import hermetic
from tests.support.provisioning import certified, site_packages

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from tests.support.project import Project

RECORD = "RECORD"
#: What a finished project holds; anything else beside or in the root is a leftover.
_BESIDE = {"aml", "aml.toml", "noxfile.py", "pylock.toml"}
_INSIDE = {".gitignore", ".venv", "envs", "jobs", "runtime", "tools"}
_RECORDS = {"uv.json", "python.json", "locks", "ready"}


def flaws(environment: Path) -> list[str]:
    """Give every file that a RECORD of an environment promises and that is missing or of another size."""
    site = site_packages(environment) if (environment / "lib").is_dir() else environment
    records = sorted(site.glob("*.dist-info/RECORD"))
    return [flaw for record in records for flaw in _flaws(site, record)] or ([] if records else ["no RECORD at all"])


def _flaws(site: Path, record: Path) -> list[str]:
    found = []
    with record.open(newline="", encoding="utf-8") as stream:
        for name, _, size in csv.reader(stream):
            path = site / name
            if not path.is_file():
                found.append(f"{name} is missing")
            elif size and path.stat().st_size != int(size):
                found.append(f"{name} is not whole")
    return found


def imports(environment: Path, module: str, *, home: Path) -> None:
    """Fail unless the environment's own interpreter imports a module from the environment."""
    tell = f"import {module}; print({module}.__file__)"
    where = run([environment / "bin" / "python", "-I", "-c", tell], env=hermetic(home, home), cwd=home).expect().out
    assert where.startswith(f"{environment}{os.sep}"), where


def leftovers(project: Project) -> list[str]:
    """Give all that a killed run may leave and no other: directories without marker, scratch files, holders, halves."""
    root = project.aml_root
    found = [path for path in project.folder.iterdir() if path.name not in _BESIDE]
    found += [path for path in _children(root) if path.name not in _INSIDE]
    found += [path for path in _children(root / "runtime") if path.name not in _RECORDS]
    found += [path for path in _children(root / "runtime" / "locks") if path.suffix != ".lock"]
    found += [path for path in _children(root / "runtime" / "ready") if path.name.startswith(".")]
    found += [path for path in _children(root / "tools") if not (path / "uv").is_file()]
    found += [path for path in _children(root / "envs") if path not in certified(project)]
    return [path.relative_to(project.folder).as_posix() for path in found]


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


@dataclass
class Watch:
    """Looks for markers, again and again, and keeps every flaw of an environment that had one at that moment."""

    project: Project
    seen: set[Path] = field(default_factory=set)
    flaws: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._stopped.wait(0.001):
            self._look()

    def _look(self) -> None:
        for environment in set(certified(self.project)) - self.seen:
            self.seen.add(environment)
            self.flaws += flaws(environment)


def rewrite_record(site: Path, change: Callable[[list[list[str]]], list[list[str]]]) -> None:
    """Change the rows of the one RECORD in a folder: path, hash, size."""
    (record,) = site.glob(f"*.dist-info/{RECORD}")
    with record.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    with record.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(change(rows))


def content(folder: Path) -> dict[str, str]:
    """Give what lies below a folder by name and content, links by their target; times and owners do not count."""
    return {path.relative_to(folder).as_posix(): _content(path) for path in sorted(folder.rglob("*"))}


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    return path.read_bytes().hex() if path.is_file() else "folder"


def key(environment: Path) -> str:
    """Give the key that the marker of an environment names."""
    (marker,) = environment.glob(".aml-ok-*")
    return str(json.loads(marker.read_text(encoding="utf-8"))["key"])


def needs(program: str) -> str:
    """Give the path of a system's tool, or skip the test that needs it."""
    import pytest  # noqa: PLC0415 - nothing else here knows of it

    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found
