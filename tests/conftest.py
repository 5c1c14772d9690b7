"""What every test is given: an index, wheels, a project, and a machine that looks like nobody's."""

from __future__ import annotations

import importlib.metadata
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uv

from tests.support.index import Index
from tests.support.project import Project, hermetic
from tests.support.wheels import make_wheel
from tests.support.wheels import uv_wheel as make_uv_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Set by the test runner for itself and for what it starts.
_RUNNERS = ("PYTEST_", "COVERAGE_", "COV_", "HYPOTHESIS_")


def pytest_configure() -> None:
    """Let programs be ended by signals, also where the runner ignores them (under nohup, in the background)."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow kinds last: what fails fast is told first."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(scope="session", autouse=True)
def _real_home_untouched() -> Iterator[None]:
    """Hold that no test leaves, or takes away, anything in the developer's home directory."""
    home = Path.home()
    before = _names(home)
    yield
    assert _names(home) == before, "the tests touched the real home directory"


@pytest.fixture(autouse=True)
def _nobodys_machine(fresh_home: Path, uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let in-process code see the same environment as the programs that a Project runs."""
    wanted = hermetic(fresh_home, uv_cache)
    for name in os.environ.keys() - wanted.keys():
        if not name.startswith(_RUNNERS):
            monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def fresh_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an empty home directory; it is also HOME in this process."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give uv's cache: one for the whole session, so that an interpreter is queried once; one per xdist worker."""
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture(scope="session")
def uv_program() -> Path:
    """Give the real uv of the tests' own environment."""
    return Path(uv.find_uv_bin())


@pytest.fixture(scope="session")
def uv_wheel(tmp_path_factory: pytest.TempPathFactory, uv_program: Path) -> Path:
    """Give a wheel of that uv, for indexes from which the product fetches it."""
    return make_uv_wheel(tmp_path_factory.mktemp("uv-wheel"), importlib.metadata.version("uv"), uv_program)


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder of tiny wheels, not to be changed: ``index.add(wheelhouse)`` copies them.

    demo-alpha 1.0, 1.1, 2.0 (command demo-alpha) ← demo-beta 1.0 ← demo-gamma 1.0, 1.1
    """
    folder = tmp_path_factory.mktemp("wheelhouse")
    for version in ("1.0", "1.1", "2.0"):
        make_wheel(folder, "demo-alpha", version, scripts={"demo-alpha": "demo_alpha.cli:main"})
    make_wheel(folder, "demo-beta", "1.0", requires=["demo-alpha"])
    for version in ("1.0", "1.1"):
        make_wheel(folder, "demo-gamma", version, requires=["demo-beta>=1.0"])
    return folder


@pytest.fixture
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """Give a running index without a single file."""
    with Index(tmp_path_factory.mktemp("index")) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path, index: Index, wheelhouse: Path, fresh_home: Path, uv_cache: Path) -> Iterator[Project]:
    """Give a project that requires demo-alpha 1.0 of ``index``, which then holds the wheelhouse."""
    index.add(wheelhouse)
    made = Project.make(tmp_path / "project", index.url, home=fresh_home, uv_cache=uv_cache)
    yield made
    made.close()


def _names(home: Path) -> set[str]:
    """List where tools that misbehave leave things: the top, the user's programs, the user's settings."""
    folders = [home, home / ".local" / "bin", home / ".config"]
    return {str(path) for folder in folders if folder.is_dir() for path in folder.iterdir()}
