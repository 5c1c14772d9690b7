"""Killed at any instant, the next run repairs; a marker never certifies an incomplete environment."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomlkit

from tests.support.index import Gate, Index
from tests.support.oracle import Watch, flaws, imports, leftovers
from tests.support.processes import Started, descendants, wait_until
from tests.support.project import PYTHON, Project
from tests.support.provisioning import certified, current, directories, marker, site_packages
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

pytest_plugins = ("tests.support.base",)
pytestmark = pytest.mark.usefixtures("untouched_base")

#: How often the random ones run; `nox -s soak` sets more.
COUNT = int(os.environ.get("AML_TEST_COUNT", "3"))
FILES = 300
ENDS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
#: Where a run is stopped, by a download that stands still in the middle of a file.
STAGES = ("fetching uv", "compiling the lock", "installing")


def many_files(folder: Path) -> None:
    """Make a wheel of so many files that linking them takes a while; its metadata are not in its first half."""
    large = {"demo_first.py": "#" * 200_000}
    modules = large | {f"demo_many/part{number}.py": f"X = {number}\n" for number in range(FILES)}
    make_wheel(folder, "demo-many", "1.0", modules={"demo_many/__init__.py": "", **modules})


def cold(folder: Path, index: Index, base: Path, cache: Path) -> Project:
    """Give a project that needs the package of many files, with a base interpreter of our own."""
    tables = {
        "python": {"version": PYTHON, "path": str(base)},
        "index": {"url": index.url},
        "environment": {"requirements": ["demo-many==1.0"]},
    }
    home = folder / "home"
    home.mkdir(parents=True)
    return Project.make(folder / "project", index.url, home=home, uv_cache=cache, manifest=tomlkit.dumps(tables))


@pytest.fixture
def project(tmp_path: Path, index: Index, base: Path, uv_cache: Path) -> Iterator[Project]:
    """Give a project for which nothing was downloaded yet."""
    many_files(index.folder)
    made = cold(tmp_path, index, base, uv_cache)
    yield made
    made.close()


def assert_markers_tell_the_truth(project: Project) -> None:
    for environment in certified(project):
        assert flaws(environment) == []
        imports(environment, f"demo_many.part{FILES - 1}", home=project.home)


def assert_next_run_repairs(project: Project) -> None:
    """Hold that the next run succeeds, that its environment is certified and whole, and that all is quiet then."""
    with Watch(project) as watch:
        project.aml("provision").expect()
    assert watch.flaws == []
    assert current(project) in certified(project)
    assert_markers_tell_the_truth(project)
    assert len(project.aml("provision").expect().err.splitlines()) == 1


def kill_group(process: Started) -> None:
    """SIGKILL the command's process group; its children lead groups of their own and live on, as orphans."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def gone(pids: Iterable[int]) -> bool:
    return not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)


KILLS = pytest.mark.parametrize("kill", [kill_group, Started.kill_tree], ids=["group", "tree"])


# --- at a random instant


@pytest.fixture(scope="module")
def typical(tmp_path_factory: pytest.TempPathFactory, base: Path, uv_cache: Path) -> float:
    """Give how long a provision takes here and now, to choose instants from."""
    with Index(tmp_path_factory.mktemp("index")) as index:
        many_files(index.folder)
        project = cold(tmp_path_factory.mktemp("typical"), index, base, uv_cache)
        project.aml("bootstrap").expect()  # from here on uv knows the interpreter
        start = time.monotonic()
        project.aml("provision").expect()
        return time.monotonic() - start


def let_run(process: Started, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.001)


def instant_of(seed: int, typical: float) -> float:
    return random.Random(seed).uniform(0, typical)  # noqa: S311 - nothing secret


@pytest.mark.slow
@KILLS
@pytest.mark.parametrize("seed", range(COUNT))
def test_killed_at_a_random_instant_no_marker_ever_lies_and_the_next_run_repairs(
    project: Project, typical: float, kill: Callable[[Started], None], seed: int
) -> None:
    with Watch(project) as watch, project.start_aml("provision") as process:
        let_run(process, instant_of(seed, typical))
        kill(process)
    assert watch.flaws == []
    assert_markers_tell_the_truth(project)
    assert_next_run_repairs(project)


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
@pytest.mark.parametrize("seed", range(COUNT))
def test_asked_to_end_at_a_random_instant_it_leaves_nothing(
    project: Project, typical: float, number: signal.Signals, seed: int
) -> None:
    with Watch(project) as watch, project.start_aml("provision") as process:
        let_run(process, instant_of(seed, typical))
        below = descendants(process.pid)
        process.send_signal(number)
        process.finish()  # with which code is held below: here Python itself may not have started yet
    assert watch.flaws == []
    assert leftovers(project) == []
    assert gone(below)
    assert_next_run_repairs(project)


# --- at a known instant


def stopped_while(stage: str, project: Project, index: Index, uv_wheel: Path) -> tuple[Started, Gate]:
    """Start a provision that stands still with half a file, in the middle of a stage."""
    if stage == "fetching uv":
        index.add(uv_wheel)
        project.manifest(uv={"source": "index"})
    if stage == "compiling the lock":
        index.core_metadata = False  # the metadata is then read from the wheel itself
    index.gate = Gate()
    process = project.start_aml("provision", env={"TMPDIR": str(temporary(project))})
    index.gate.wait_reached()
    return process, index.gate


def temporary(project: Project) -> Path:
    folder = project.home / "tmp"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize(
    ("stage", "kill"), [*((stage, kill_group) for stage in STAGES), (STAGES[-1], Started.kill_tree)]
)
def test_killed_with_half_a_file_the_next_run_repairs(
    project: Project, index: Index, uv_wheel: Path, stage: str, kill: Callable[[Started], None]
) -> None:
    """What the orphans of the killed run write beside the next run counts for nothing."""
    process, gate = stopped_while(stage, project, index, uv_wheel)
    orphans = descendants(process.pid)
    kill(process)
    assert certified(project) == []
    index.gate = None
    with Watch(project) as watch:
        following = project.start_aml("provision")
        gate.set()
        following.finish().expect()
    wait_until(lambda: gone(orphans), "the orphans ended")
    assert watch.flaws == []
    assert len(certified(project)) == 1
    assert_next_run_repairs(project)


@pytest.mark.parametrize(("stage", "number"), [*zip(STAGES, ENDS, strict=True)])
def test_asked_to_end_with_half_a_file_it_ends_its_children_and_leaves_nothing(
    project: Project, index: Index, uv_wheel: Path, stage: str, number: signal.Signals
) -> None:
    process, _ = stopped_while(stage, project, index, uv_wheel)
    below = descendants(process.pid)
    assert below
    process.send_signal(number)
    run = process.finish().expect(ENDS[number])
    assert "Traceback" not in run.err
    assert gone(below)
    assert leftovers(project) == []
    assert list(temporary(project).iterdir()) == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_tool_that_is_killed_under_us_is_told_and_leaves_nothing(
    project: Project, index: Index, uv_wheel: Path, stage: str
) -> None:
    process, _ = stopped_while(stage, project, index, uv_wheel)
    (tool,) = descendants(process.pid)
    os.kill(tool, signal.SIGKILL)
    run = process.finish()
    assert run.code in {3, 4}
    assert "was ended by signal 9" in run.err
    assert leftovers(project) == []
    assert list(temporary(project).iterdir()) == []


# --- what a kill leaves


def test_what_killed_runs_left_confuses_nobody(project: Project) -> None:
    """Half environments, scratch files, copies of the lock, holders, halves of records, a half made link."""
    project.aml("provision").expect()
    whole = current(project)
    name, _, _ = whole.name.rpartition("-")
    marker(whole).unlink()
    site_packages(whole).joinpath("demo_many", "part7.py").unlink()
    half = project.aml_root / "envs" / f"{name}-0000"
    half.mkdir()
    (half / f"..aml-ok-{name}.12345678").write_text("{")
    (project.aml_root / ".venv").unlink()
    (project.aml_root / ".venv.4242").symlink_to("envs/nothing")
    runtime = project.aml_root / "runtime"
    (runtime / "scratch-00000000.txt").write_text("demo-many==0\n")
    (runtime / f"locks/env-{name}.json").write_text("{")
    for record in ("python.json", "uv.json"):
        (runtime / f".{record}.12345678").write_text("{")
        (runtime / record).write_text("")
    project.write("pylock.aml0000.toml", "half a lo")
    project.manifest(environment={"requirements": ["demo-many"]})  # a new lock has to be made beside the leftovers
    assert_next_run_repairs(project)
    assert len(certified(project)) == 1
    assert not (project.folder / "pylock.aml0000.toml").exists()


def test_a_build_that_failed_leaves_no_directory_and_the_old_environment_in_use(project: Project, index: Index) -> None:
    project.aml("provision").expect()
    before = current(project)
    make_wheel(index.folder, "demo-other", "1.0")
    project.manifest(environment={"requirements": ["demo-many", "demo-other"]})
    project.aml("lock").expect()
    index.status = {"/files/demo_other": 404}
    project.aml("provision").expect(4)
    assert directories(project) == [before]
    assert current(project) == before
    assert leftovers(project) == []
