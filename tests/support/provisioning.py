"""What a provision did, read from what it says and from what lies on the disk afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.processes import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.project import Changes, Project

#: Imported by every run that is not warm, and by none that is.
_COLD = "aml_nox.verbs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """A provision that ended well: its report, what it told people, the modules that it imported."""

    report: Mapping[str, Any]
    said: tuple[str, ...]
    imported: frozenset[str]

    @property
    def changed(self) -> bool:
        """Whether an environment was built."""
        return bool(self.report["changed"])

    @property
    def lock_changed(self) -> bool:
        return bool(self.report["lock"]["changed"])

    @property
    def environment(self) -> Path:
        return Path(self.report["environment"]["path"])

    @property
    def warm(self) -> bool:
        """Whether the first look was enough: one line, and nothing imported that could do more."""
        return _COLD not in self.imported and len(self.said) == 1

    def tells(self, reason: str) -> bool:
        """Say whether people and programs alike are told this."""
        return any(reason in line for line in self.said) and any(reason in line for line in self.report["reasons"])


def provision(project: Project, *args: str | Path, env: Changes | None = None, cwd: Path | None = None) -> Provision:
    """Run ``aml-nox provision`` to its success."""
    words = ("-X", "importtime", "-m", "aml_nox", "provision", "--json", "-", *args)
    return read(project.python(*words, env=env, cwd=cwd).expect())


def read(run: Run) -> Provision:
    """Read a run under ``-X importtime`` with ``--json -``."""
    lines = run.err.splitlines()
    imports = [line for line in lines if line.startswith("import time:")]
    said = tuple(line for line in lines if not line.startswith("import time:"))
    return Provision(
        report=run.json(), said=said, imported=frozenset(line.rpartition("|")[2].strip() for line in imports)
    )


def current(project: Project, name: str = "default") -> Path:
    """Give the directory that the link of an environment leads to."""
    return (project.aml_root / (".venv" if name == "default" else f".venv-{name}")).resolve(strict=True)


def directories(project: Project) -> list[Path]:
    """Give the directories of all environments, whatever became of them."""
    return sorted((project.aml_root / "envs").iterdir())


def certified(project: Project) -> list[Path]:
    """Give the directories that hold a marker."""
    return sorted({marker.parent for marker in (project.aml_root / "envs").glob("*/.aml-ok-*")})


def site_packages(environment: Path) -> Path:
    """Give the folder that modules are imported from."""
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def marker(environment: Path) -> Path:
    """Give the marker of a directory that has one."""
    (found,) = environment.glob(".aml-ok-*")
    return found


def ready_records(project: Project) -> list[Path]:
    """Give what warm runs look at."""
    return sorted((project.aml_root / "runtime" / "ready").glob("*.json"))


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Give every path below *folder* with content, mode, size, times and identity.

    A file that shares its inode with uv's cache is left without its change time: another installation moves that.
    """
    return {path.relative_to(folder).as_posix(): _state(path) for path in sorted(folder.rglob("*"))}


def _state(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    shared = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
    changed = None if shared else found.st_ctime_ns
    return (found.st_mode, found.st_size, found.st_mtime_ns, changed, found.st_ino, _content(path, found.st_mode))


def _content(path: Path, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return os.readlink(path)  # noqa: PTH115 - exactly as it was written
    return hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else ""


def edit_json(path: Path, **values: object) -> None:
    """Change members of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
