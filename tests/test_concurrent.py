"""Several at once: one builds, the others wait and say for whom; nobody is blocked by the dead, or disturbed."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.index import Gate, Index
from tests.support.oracle import Watch, flaws, imports
from tests.support.processes import Started, wait_until
from tests.support.project import Project
from tests.support.provisioning import certified, current, directories
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.processes import Run

BUILDING = "building environment"
ALPHA = "demo_alpha-1.0-py3-none-any.whl"


def at_once(starts: Sequence[Started]) -> list[Run]:
    return [process.finish().expect() for process in starts]


def environment_of(run: Run) -> Path:
    return Path(run.json()["environment"]["path"])


def holder(project: Project) -> Path:
    """Give the note of who holds the lock of the environment that is being built."""
    locks = project.aml_root / "runtime" / "locks"
    wait_until(lambda: any(locks.glob("env-*.json")), "somebody holds the lock of an environment")
    (found,) = locks.glob("env-*.json")
    return found


def builder(project: Project, index: Index, *args: str) -> tuple[Started, Gate]:
    """Start a provision that stands still in the middle of its installation."""
    gate = index.gate = Gate()
    process = project.start_aml("provision", *args)
    gate.wait_reached()
    index.gate = None
    return process, gate


class Lines:
    """What a running process has said so far."""

    def __init__(self, process: Started) -> None:
        self.process, self.said = process, ""

    def wait_for(self, text: str) -> str:
        """Give the line that holds a text, as soon as it was said."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.said += line
            if text in line:
                return line
        pytest.fail(f"never said: {text}\n{self.said}")


# --- four at once


def test_of_four_on_a_clean_project_one_builds_and_all_get_the_same(project: Project) -> None:
    with Watch(project) as watch:
        runs = at_once([project.start_aml("provision", "--json", "-") for _ in range(4)])
    assert watch.flaws == []
    assert sum(run.err.count(BUILDING) for run in runs) == 1
    assert sum(run.err.count("making pylock.toml") for run in runs) >= 1
    assert [run.json()["changed"] for run in runs].count(True) == 1
    assert {environment_of(run) for run in runs} == {current(project)}
    assert directories(project) == [current(project)]


def test_four_that_are_forced_all_succeed_and_what_each_got_is_whole(project: Project) -> None:
    project.aml("provision").expect()
    with Watch(project) as watch:
        runs = at_once([project.start_aml("provision", "--force", "--json", "-") for _ in range(4)])
    assert watch.flaws == []
    assert any(run.json()["changed"] for run in runs)
    for environment in {environment_of(run) for run in runs}:
        assert flaws(environment) == []
        imports(environment, "demo_alpha", home=project.home)
    assert certified(project) == [current(project)]
    project.aml("provision").expect()


def test_two_projects_share_a_cache_and_each_gets_its_own(
    tmp_path: Path, project: Project, index: Index, fresh_home: Path, uv_cache: Path
) -> None:
    other = Project.make(
        tmp_path / "other", index.url, home=fresh_home, uv_cache=uv_cache, requirements=["demo-alpha==1.1"]
    )
    runs = at_once([one.start_aml("provision", "--force", "--json", "-") for one in (project, other) for _ in range(2)])
    other.close()
    for run, version in zip(runs, ("1.0", "1.0", "1.1", "1.1"), strict=True):
        (init,) = environment_of(run).glob("lib/python*/site-packages/demo_alpha/__init__.py")
        assert init.read_text() == f'VERSION = "{version}"\n'


def test_environments_of_one_project_are_built_side_by_side(project: Project, index: Index) -> None:
    """A build holds the lock of its own key alone: who wants another environment does not wait for it."""
    make_wheel(index.folder, "demo-other", "1.0")
    environments = {"one": {"requirements": ["demo-alpha"]}, "other": {"requirements": ["demo-other"]}}
    project.manifest(environment=None, environments=environments)
    process, gate = builder(project, index, "--env", "one")
    project.aml("provision", "--env", "other").expect()
    gate.set()
    process.finish().expect()
    assert len(certified(project)) == 2


# --- waiting


def test_who_waits_says_for_what_and_for_whom_and_goes_on_when_the_holder_is_done(
    project: Project, index: Index
) -> None:
    process, gate = builder(project, index)
    waiting = project.start_aml("provision")
    line = Lines(waiting).wait_for("waiting for")
    note = json.loads(holder(project).read_text())
    assert note["pid"] == process.pid
    command = "__main__.py provision"
    assert line.startswith("waiting for environment ")
    assert f"held by pid {process.pid} on {socket.gethostname()} since {note['since']}: {command}" in line
    gate.set()
    process.finish().expect()
    run = waiting.finish().expect()
    assert BUILDING not in run.err
    assert "is ready" in run.err


def test_the_wait_for_a_lock_ends_at_its_limit_and_names_the_holder(project: Project, index: Index) -> None:
    project.manifest(timeouts={"lock-wait": 1})
    process, _ = builder(project, index)
    error = project.aml("provision", "--json", "-").expect(9).json()["error"]
    assert error["code"] == "AML_BUSY"
    assert f"pid {process.pid} on {socket.gethostname()}" in error["message"]
    assert "lock-wait" in error["hint"]


def test_a_holder_that_is_killed_frees_its_lock_for_who_waits(project: Project, index: Index) -> None:
    process, gate = builder(project, index)
    waiting = project.start_aml("provision", "--json", "-")
    Lines(waiting).wait_for("waiting for")
    os.kill(process.pid, signal.SIGKILL)  # its uv lives on, and holds nothing of ours
    gate.set()
    run = waiting.finish().expect()
    assert certified(project) == [environment_of(run)]
    imports(environment_of(run), "demo_alpha", home=project.home)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_who_waits_for_a_lock_can_be_asked_to_end(project: Project, index: Index, number: signal.Signals) -> None:
    process, gate = builder(project, index)
    waiting = project.start_aml("provision")
    Lines(waiting).wait_for("waiting for")
    waiting.send_signal(number)
    waiting.finish().expect(128 + number)
    gate.set()
    process.finish().expect()


@pytest.mark.parametrize("host", ["this host", "another host"])
def test_a_note_of_a_holder_that_is_gone_blocks_nobody(project: Project, host: str) -> None:
    """The operating system's lock decides, not a file that names a process which lives and is none of ours."""
    project.aml("provision").expect()
    locks = project.aml_root / "runtime" / "locks"
    names = [path.stem for path in locks.glob("*.lock")]
    assert len(names) == 2
    note = {"schema": 1, "pid": os.getpid(), "host": host, "since": "1970-01-01T00:00:00Z", "command": "x"}
    for name in names:
        (locks / f"{name}.json").write_text(json.dumps(note))
    run = project.aml("provision", "--force").expect()
    assert "waiting" not in run.err
    assert not any(locks.glob("env-*.json"))


# --- who works in an environment


PROGRAM = """
import demo_alpha
open("started", "w").close()
open("go").read()
import demo_alpha.cli
print(demo_alpha.cli.__file__, demo_alpha.VERSION)
"""


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_program_that_runs_in_an_environment_survives_its_replacement(project: Project, version: str) -> None:
    """What it imports late is what it began with: a switch moves a link, and takes nothing away."""
    project.aml("provision").expect()
    before = current(project)
    os.mkfifo(project.folder / "go")
    argv: list[str | Path] = [before / "bin" / "python", "-c", PROGRAM]
    with Started(argv, env=project.environment(), cwd=project.folder) as program:
        wait_until((project.folder / "started").exists, "the program has begun")
        project.manifest(environment={"requirements": [f"demo-alpha=={version}"]})
        project.aml("provision", "--force").expect()
        assert current(project) != before
        (project.folder / "go").write_text("")
        file, known = program.finish().expect().out.split()
    assert Path(file).is_relative_to(before)
    assert known == "1.0"
