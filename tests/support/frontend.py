"""A machine without uv: aml-nox in a virtual environment that has what it requires, and not one thing more."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
import venv
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import aml_nox
from tests.support.project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.project import Changes

#: aml-nox and its dependencies, by name where it is not installed itself; coverage, where it is, measures the children.
_ROOTS = ("aml-nox", "filelock", "nox", "packaging", "pip", "tomlkit", "coverage")
#: Nobody listens: what would leave this machine (uv's installer) fails at once, and here.
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}


def front_end(folder: Path) -> Path:
    """Make a virtual environment for aml-nox in *folder*, without uv and without a download, and give its program.

    What is installed here is linked, not copied.
    """
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in _closure():
        for path in _tops(distribution):
            with suppress(FileExistsError):
                (site / path.name).symlink_to(path)
    (site / "source.pth").write_text(f"{Path(aml_nox.__file__).parents[1]}\n")  # where it is not installed
    return folder / "bin" / Path(sys.executable).name


def _closure() -> Iterator[importlib.metadata.Distribution]:
    """Give the distributions that aml-nox needs and that are installed, each once."""
    names = [*_ROOTS]
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            found = importlib.metadata.distribution(name)
            yield found
            wanted = {canonicalize_name(one.name) for one in _requirements(found.requires or ())}
            names += sorted(wanted - {*names})


def _requirements(texts: Sequence[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, texts):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def _tops(distribution: importlib.metadata.Distribution) -> set[Path]:
    """Give what a distribution has directly in site-packages; its programs have another interpreter in them."""
    site = Path(str(distribution.locate_file("")))
    names = {file.parts[0] for file in distribution.files or ()}
    return {site / name for name in names - {"..", "__pycache__"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class BareProject(Project):
    """A project on a machine where nothing lies on PATH but an interpreter; `program` decides whether there is uv."""

    path: str

    def environment(self, changes: Changes | None = None) -> dict[str, str]:
        """Give the hermetic environment with this PATH and *changes*."""
        return Project.environment(self, {"PATH": self.path, **NOWHERE, **(changes or {})})

    def with_uv(self) -> BareProject:
        """Give the same project as somebody sees it who has uv beside nox."""
        return dataclasses.replace(self, program=sys.executable)
