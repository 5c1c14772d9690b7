"""Killed at any instant of bootstrap and provision together, the next run is right, and no interpreter is polluted."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomlkit

from tests.support.frontend import BareProject, front_end
from tests.support.index import Index
from tests.support.interpreter import interpreter_copy
from tests.support.oracle import Watch, flaws, imports
from tests.support.processes import Started, descendants, wait_until
from tests.support.project import NOXFILE, PYTHON
from tests.support.provisioning import certified, current, site_packages
from tests.support.standalone import VERSION, make_standalone
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.standalone import Standalone

#: How often; `nox -s soak` sets more.
COUNT = int(os.environ.get("AML_TEST_COUNT", "3"))
FILES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What every cold project starts from: no uv anywhere but in the index, and two ways to a Python."""

    index: Index
    bare: str
    base: Path
    archive: Standalone

    def cold(self, folder: Path, python: str) -> BareProject:
        """Give a project for which nothing was fetched yet, not even into a cache."""
        home = folder / "home"
        home.mkdir(parents=True)
        made = BareProject(
            folder=folder / "project", home=home, uv_cache=folder / "cache", program=self.bare, path="/usr/bin:/bin"
        )
        wanted: dict[str, Mapping[str, object]] = {
            "a base interpreter": {"version": PYTHON, "path": str(self.base)},
            "a managed Python": {"version": VERSION, "preference": "only-managed", "downloads-json": "builds.json"},
        }
        tables = {
            "uv": {"source": "index"},
            "python": wanted[python],
            "index": {"url": self.index.url},
            "environment": {"requirements": ["demo-many==1.0"]},
        }
        made.write("aml.toml", tomlkit.dumps(tables))
        made.write("noxfile.py", NOXFILE)
        made.write("builds.json", self.archive.listing(self.archive.path.as_uri()))
        return made


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, uv_wheel: Path) -> Iterator[Machine]:
    """Give the machine; its index has uv, and a package of so many files that linking them takes a while."""
    modules = {f"demo_many/part{number}.py": f"X = {number}\n" for number in range(FILES)}
    with Index(tmp_path_factory.mktemp("index")) as index:
        index.add(uv_wheel)
        make_wheel(index.folder, "demo-many", "1.0", modules={"demo_many/__init__.py": "", **modules})
        yield Machine(
            index=index,
            bare=str(front_end(tmp_path_factory.mktemp("front") / "end")),
            base=interpreter_copy(tmp_path_factory.mktemp("base") / "python"),
            archive=make_standalone(tmp_path_factory.mktemp("archive")),
        )


def start(project: BareProject) -> Started:
    return project.start_nox("-s", "bootstrap", "provision")


PYTHONS = ("a base interpreter", "a managed Python")


@pytest.fixture(scope="module")
def typical(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Give how long the whole takes here and now, to choose instants from."""
    return {python: measure(machine.cold(tmp_path_factory.mktemp("typical"), python)) for python in PYTHONS}


def measure(project: BareProject) -> float:
    begin = time.monotonic()
    start(project).finish().expect()
    return time.monotonic() - begin


def let_run(process: Started, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.001)


def kill_group(process: Started) -> None:
    """SIGKILL the command's process group; its children lead groups of their own and live on, as orphans."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


KILLS: tuple[Callable[[Started], None], ...] = (kill_group, Started.kill_tree)


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)


def assert_markers_tell_the_truth(project: BareProject) -> None:
    for environment in certified(project):
        assert flaws(environment) == []
        imports(environment, f"demo_many.part{FILES - 1}", home=project.home)


def assert_no_interpreter_is_polluted(project: BareProject, machine: Machine) -> None:
    """Hold that nothing was installed into the base, nor into an interpreter that uv placed for the project."""
    for python in (machine.base.parents[1], *project.aml_root.glob("python/cpython-*")):
        assert list(site_packages(python).iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(COUNT))
def test_killed_at_a_random_instant_the_next_run_is_right(
    machine: Machine, typical: Mapping[str, float], tmp_path: Path, seed: int
) -> None:
    """By turns: the command alone is killed or all it started, with a base interpreter or one that uv fetches."""
    python, kill = PYTHONS[seed % 2], KILLS[seed // 2 % 2]
    project = machine.cold(tmp_path, python)
    instant = random.Random(seed).uniform(0, typical[python])  # noqa: S311 - nothing secret
    with Watch(project) as watch, start(project) as process:
        let_run(process, instant)
        orphans = descendants(process.pid)
        kill(process)
    assert watch.flaws == []
    assert_markers_tell_the_truth(project)
    with Watch(project) as watch:
        project.aml("provision").expect()
    wait_until(lambda: gone(orphans), "the orphans ended")
    assert watch.flaws == []
    assert current(project) in certified(project)
    assert_markers_tell_the_truth(project)
    assert_no_interpreter_is_polluted(project, machine)
    assert len(project.aml("provision").expect().err.splitlines()) == 1
    project.aml("bootstrap", "--offline").expect()
