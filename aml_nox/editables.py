"""Projects that are installed in place: what their files say of them, and what of that an environment depends on.

Only the `[project]` table of pyproject.toml is read (the pyproject.toml specification). Their code is not in an
environment, so no digest covers it: an environment with one is not sealed.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import InvalidName, canonicalize_name

from aml_nox import pep508
from aml_nox.faults import FaultError, fault, quote
from aml_nox.pep508 import Dependency

PROJECT_FILES = ("pyproject.toml", "setup.cfg", "setup.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Editable:
    """A project in place: its path from aml.toml's folder, its project files with their sha256 (None: not there)."""

    name: str
    path: str
    files: tuple[tuple[str, str | None], ...]
    dependencies: tuple[Dependency, ...]

    @property
    def digest(self) -> str:
        """Of the project files: what may change how it is built."""
        text = json.dumps(self.files, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def identity(self) -> dict[str, str]:
        return {"name": self.name, "path": self.path, "digest": self.digest}


def read(folder: Path, path: str) -> Editable:
    """Read the project at `folder / path`.

    Raises:
        FaultError: it is no project, or its dependencies cannot be known without building it.

    """
    table = _project_table(folder / path, path)
    name = _name(table, path)
    if "dependencies" in _texts(table, "dynamic", path):
        raise fault(f"{quote(path)}: its dependencies are dynamic; list them in project.dependencies")
    files = tuple((_join(path, one), _sha256(folder / path / one)) for one in PROJECT_FILES)
    dependencies = tuple(_dependency(path, text) for text in _texts(table, "dependencies", path))
    return Editable(name=name, path=path, files=files, dependencies=dependencies)


def _project_table(project: Path, path: str) -> Mapping[str, Any]:
    try:
        document = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise fault(
            f"{quote(path)}: its pyproject.toml cannot be read ({error}); name the folder that holds it"
        ) from None
    table = document.get("project")
    if not isinstance(table, dict):
        raise fault(f"{quote(path)}: its pyproject.toml has no [project] table; add one with name and dependencies")
    return table


def _name(table: Mapping[str, Any], path: str) -> str:
    name = table.get("name")
    if not isinstance(name, str):
        raise fault(f"{quote(path)}: its pyproject.toml has no project.name; add it")
    try:
        return canonicalize_name(name, validate=True)
    except InvalidName:
        raise fault(
            f"{quote(path)}: project.name {quote(name)} is no package's name; use letters, digits and single hyphens"
        ) from None


def _texts(table: Mapping[str, Any], key: str, path: str) -> list[str]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise fault(f"{quote(path)}: project.{key} is no list of strings; write one")
    return found


def _dependency(path: str, text: str) -> Dependency:
    try:
        return pep508.parse(text)
    except FaultError as error:
        raise fault(f"{quote(path)}: project.dependencies: {error}") from None


def _join(path: str, name: str) -> str:
    return name if path == "." else f"{path}/{name}"


def _sha256(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
