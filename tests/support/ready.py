"""A project that is provisioned once and lent to many tests; each finds it as the first did."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.index import Index
from tests.support.project import Project
from tests.support.provisioning import directories

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KEPT = ("aml.toml", "noxfile.py", "pylock.toml")


@pytest.fixture(scope="session")
def _provisioned(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path, uv_cache: Path) -> Iterator[Project]:
    with Index(tmp_path_factory.mktemp("index")) as index:
        index.add(wheelhouse)
        home = tmp_path_factory.mktemp("home")
        project = Project.make(tmp_path_factory.mktemp("ready") / "project", index.url, home=home, uv_cache=uv_cache)
        project.aml("provision").expect()
        yield project


@pytest.fixture
def ready(_provisioned: Project) -> Iterator[Project]:
    """Give a project with demo-alpha 1.0 that needs no provision; what a test changes is set right after it."""
    project, link = _provisioned, _provisioned.aml_root / ".venv"
    names = (*_KEPT, "aml/runtime/python.json")
    texts = {name: (project.folder / name).read_text(encoding="utf-8") for name in names}
    target, known = link.readlink(), set(directories(project))
    yield project
    project.close()
    for path in project.folder.iterdir():
        if path.name not in {*_KEPT, "aml"}:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(project.aml_root / "jobs", ignore_errors=True)
    for name, text in texts.items():
        project.write(name, text)
    if any((link.parent / target).glob(".aml-ok-*")):  # after --force it does not count any more
        link.unlink()
        link.symlink_to(target)
    for path in {*directories(project)} - known - {link.resolve()}:
        shutil.rmtree(path)
    for other in project.aml_root.glob(".venv-*"):
        other.unlink()
