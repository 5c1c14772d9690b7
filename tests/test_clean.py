"""clean: what nobody uses goes, told with its size; what anybody uses, or what is not ours, stays."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from aml_nox import clean, store
from aml_nox.context import Context
from aml_nox.manifest import load
from aml_nox.screen import Screen
from aml_nox.store import Root
from tests.support.oracle import flaws
from tests.support.processes import Started, run, wait_until
from tests.support.project import Project
from tests.support.provisioning import certified, current, directories, marker, provision, site_packages, snapshot

OLD = time.time() - 8 * 24 * 3600
YOUNG = time.time() - 6 * 24 * 3600
KEY, ORPHAN = "ab" * 32, "ab" * 6 + "-0123"
WAIT = "import os, time\nwhile not os.path.exists('stop'):\n    time.sleep(0.01)\n"


def age(path: Path, when: float = OLD) -> Path:
    os.utime(path, (when, when))
    return path


def orphan(project: Project, name: str = ORPHAN, *, when: float = OLD) -> Path:
    """Leave a directory as a killed build does: no marker, a file in it."""
    folder = project.aml_root / "envs" / name
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "file").write_bytes(b"x" * 1000)
    return age(folder, when)


def cleaned(project: Project, *words: str) -> dict[str, Any]:
    """Run clean and give its report; what it says of each thing is what it tells programs."""
    done = project.aml("clean", "--json", "-", *words).expect()
    report = done.json()
    lines = done.err.splitlines()
    for one, line in zip(report["items"], lines, strict=False):
        kept = f" stays: {one['kept']}" if one["kept"] else ""
        assert line == f"{one['size'] / 1e6:.1f} MB {one['path']}{kept}"
    word = "would free " if "--dry-run" in words else "freed "
    assert lines[len(report["items"]) :][0].startswith(word)
    return report


def kept(report: dict[str, Any]) -> dict[str, str]:
    return {one["path"]: one["kept"] for one in report["items"]}


@pytest.fixture
def built(project: Project) -> Project:
    provision(project)
    return project


@pytest.fixture
def replaced(built: Project) -> tuple[Project, Path]:
    """Give a project and the environment that it had before the one that it has; it is certified and a week old."""
    old = current(built)
    built.manifest(environment={"requirements": ["demo-alpha==1.1"]})
    provision(built)
    return built, age(old)


# --- what goes


def test_an_environment_that_was_replaced_a_week_ago_goes_and_the_one_in_use_stays(
    replaced: tuple[Project, Path],
) -> None:
    project, old = replaced
    report = cleaned(project)
    assert report["removed"] == [f"envs/{old.name}"]
    assert kept(report)[f"envs/{current(project).name}"] == "a link points to it"
    assert directories(project) == [current(project)] == certified(project)
    assert provision(project).warm


@pytest.mark.parametrize("words", [(), ("--all",)])
def test_a_directory_that_a_killed_build_left_goes(built: Project, words: tuple[str, ...]) -> None:
    path = orphan(built)
    assert cleaned(built, *words)["removed"] == [f"envs/{path.name}"]
    assert not path.exists()


def test_what_force_and_repair_retired_goes(built: Project) -> None:
    first = current(built)
    provision(built, "--force")
    second = current(built)
    marker(second).write_text("{")
    provision(built)
    for path in (first, second):
        age(path)
    assert {*cleaned(built)["removed"]} == {f"envs/{first.name}", f"envs/{second.name}"}


def test_what_was_kept_for_an_environment_goes_with_it(replaced: tuple[Project, Path]) -> None:
    """Its stats and its bytecode; those of one that stays are left."""
    project, old = replaced
    runtime = project.aml_root / "runtime"
    keys = {path: json.loads(marker(path).read_text())["key"] for path in (old, current(project))}
    for path, key in keys.items():
        (runtime / "pycache" / key / "deep").mkdir(parents=True)
        (runtime / "stats").mkdir(exist_ok=True)
        (runtime / "stats" / f"{path.name}.json").write_text("{}")
    (runtime / "pycache" / KEY).mkdir()
    removed = cleaned(project)["removed"]
    assert {*removed} == {
        f"envs/{old.name}",
        f"runtime/pycache/{keys[old]}",
        f"runtime/pycache/{KEY}",
        f"runtime/stats/{old.name}.json",
    }
    assert [path.name for path in (runtime / "pycache").iterdir()] == [keys[current(project)]]
    assert [path.stem for path in (runtime / "stats").iterdir()] == [current(project).name]


def test_bytecode_of_a_retired_environment_that_stays_is_left(built: Project) -> None:
    """A job may still run in it, and the key of another directory is the same."""
    key = json.loads(marker(current(built)).read_text())["key"]
    (built.aml_root / "runtime" / "pycache" / key).mkdir(parents=True)
    marker(current(built)).unlink()
    assert cleaned(built, "--all")["removed"] == []


@pytest.mark.parametrize("words", [(), ("--all",)])
def test_a_scratch_file_goes_once_no_run_can_need_it(built: Project, words: tuple[str, ...]) -> None:
    runtime = built.aml_root / "runtime"
    old, young = (runtime / f"scratch-0123456{digit}.txt" for digit in "78")
    for path in (old, young):
        path.touch()
    age(old)
    report = cleaned(built, *words)
    assert report["removed"] == [f"runtime/{old.name}"]
    assert kept(report)[f"runtime/{young.name}"] == "younger than 7 days"


def test_a_second_clean_has_nothing_to_do(replaced: tuple[Project, Path]) -> None:
    project, _ = replaced
    project.aml("verify").expect()
    orphan(project)
    assert len(cleaned(project, "--all")["removed"]) == 2
    before = snapshot(project.aml_root / "envs")
    again = cleaned(project, "--all")
    assert (again["removed"], [*kept(again).values()]) == ([], ["a link points to it"])
    assert snapshot(project.aml_root / "envs") == before


@pytest.mark.parametrize("root", ["aml", "elsewhere"])
def test_where_there_is_nothing_it_says_so(project: Project, root: str) -> None:
    report = project.aml("clean", "--json", "-", env={"AML_ROOT": root}).expect().json()
    assert (report["items"], report["removed"]) == ([], [])


# --- sizes, and telling alone


def test_sizes_are_told_before_anything_goes_and_are_what_is_freed(built: Project) -> None:
    """A file that uv's cache holds too frees nothing."""
    path = orphan(built)
    os.link(path / "bin" / "file", built.folder / "cached")
    (path / "own").write_bytes(b"y" * 2_500_000)
    age(path)
    done = built.aml("clean", "--json", "-").expect()
    sizes = {one["path"]: one["size"] for one in done.json()["items"]}
    assert sizes[f"envs/{path.name}"] == 2_500_000
    assert done.err.splitlines()[-1] == "freed 2.5 MB"


def test_a_dry_run_tells_the_same_and_removes_nothing(replaced: tuple[Project, Path]) -> None:
    project, old = replaced
    before = snapshot(project.folder)
    dry = cleaned(project, "--dry-run")
    assert dry["removed"] == []
    assert kept(dry)[f"envs/{old.name}"] == ""
    after = snapshot(project.folder)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} <= {
        "aml/runtime/locks"
    }
    assert cleaned(project)["items"] == dry["items"]


# --- what stays


@pytest.mark.parametrize(
    ("when", "words", "goes"),
    [(OLD, (), True), (YOUNG, (), False), (YOUNG, ("--all",), True)],
    ids=["old", "young", "young, all"],
)
def test_what_is_younger_than_a_week_stays_unless_all_is_asked_for(
    built: Project, when: float, words: tuple[str, ...], *, goes: bool
) -> None:
    path = orphan(built, when=when)
    report = cleaned(built, *words)
    assert kept(report)[f"envs/{path.name}"] == ("" if goes else "younger than 7 days")
    assert path.exists() is not goes


@pytest.mark.parametrize("name", [".venv-gpu", ".venv-mine", ".venv.old"])
def test_what_any_link_of_that_name_leads_to_stays(built: Project, name: str) -> None:
    path = orphan(built)
    (built.aml_root / name).symlink_to(f"envs/{path.name}")
    report = cleaned(built, "--all")
    assert kept(report)[f"envs/{path.name}"] == "a link points to it"
    assert path.exists()


@pytest.mark.parametrize(
    "name", ["mine", "0123456789ab", "0123456789ab-012", "0123456789AB-0123", "0123456789ab-01234"]
)
def test_what_is_not_named_as_ours_is_not_even_looked_at(built: Project, name: str) -> None:
    path = orphan(built, name)
    for place in ("pycache", "stats", "."):
        (built.aml_root / "runtime" / place / name).mkdir(parents=True)
        age(built.aml_root / "runtime" / place / name)
    report = cleaned(built, "--all")
    assert report["removed"] == []
    assert not any(name == Path(one["path"]).name for one in report["items"])
    assert path.exists()


@pytest.mark.parametrize("place", ["envs", "runtime/pycache", "runtime/stats"])
def test_nothing_goes_through_a_link(built: Project, tmp_path: Path, place: str) -> None:
    name = {"envs": ORPHAN, "runtime/pycache": KEY, "runtime/stats": f"{ORPHAN}.json"}[place]
    outside = tmp_path / "outside"
    (outside / name).mkdir(parents=True)
    (outside / name / "precious").write_text("mine")
    for path in (outside / name, outside):
        age(path)
    folder = built.aml_root / place
    folder.mkdir(exist_ok=True)
    (folder / name).symlink_to(outside / name)
    assert cleaned(built, "--all")["removed"] == []
    shutil.move(folder, f"{folder}.away")
    folder.symlink_to(outside)
    assert cleaned(built, "--all")["removed"] == []
    assert (outside / name / "precious").read_text() == "mine"


def test_a_link_inside_of_what_goes_is_taken_and_not_followed(built: Project, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("mine")
    path = orphan(built)
    (path / "link").symlink_to(tmp_path / "outside")
    age(path)
    cleaned(built)
    assert not path.exists()
    assert (tmp_path / "outside" / "precious").read_text() == "mine"


@contextlib.contextmanager
def training(project: Project) -> Iterator[Started]:
    """Hold a job that runs until it is told to stop."""
    project.write("train.py", WAIT)
    project.manifest(train={"script": "train.py"})
    with project.start_aml("train") as job:
        wait_until(lambda: any(project.aml_root.glob("jobs/*/job.json")), "the job has its record")
        yield job
        (folder,) = project.aml_root.glob("jobs/*")
        (folder / "stop").touch()
        job.finish().expect()


def test_what_a_job_runs_in_stays_and_goes_once_it_ended(built: Project) -> None:
    inside = current(built)
    with training(built):
        built.manifest(environment={"requirements": ["demo-alpha==1.1"]})
        provision(built)
        assert kept(cleaned(built, "--all"))[f"envs/{inside.name}"] == "a job runs in it"
        assert flaws(inside) == []
    assert {path.rpartition("/")[0] for path in cleaned(built, "--all")["removed"]} == {"envs", "runtime/pycache"}
    assert directories(built) == [current(built)]


def test_what_a_killed_job_ran_in_does_not_stay_for_it(built: Project) -> None:
    inside = current(built)
    with contextlib.suppress(AssertionError), training(built) as job:
        job.kill_tree()
    built.manifest(environment={"requirements": ["demo-alpha==1.1"]})
    provision(built)
    assert f"envs/{inside.name}" in cleaned(built, "--all")["removed"]


def test_what_somebody_builds_or_looks_for_stays(built: Project) -> None:
    path = orphan(built)
    with FileLock(built.aml_root / "runtime" / "locks" / f"env-{path.name[:12]}.lock"):
        assert cleaned(built, "--all")["removed"] == []
        assert path.exists()
    assert cleaned(built, "--all")["removed"] == [f"envs/{path.name}"]


# --- between two runs


def context(project: Project) -> Context:
    root = Root(project.aml_root, project.folder)
    manifest = load(project.folder / "aml.toml")
    return Context(manifest=manifest, root=root, environ=project.environment(), screen=Screen(lambda _: None))


def linked(project: Project, path: Path) -> None:
    store.switch(Root(project.aml_root, project.folder), "gpu", path)


def younger(_: Project, path: Path) -> None:
    os.utime(path)


@pytest.mark.parametrize("change", [linked, younger])
def test_what_came_into_use_after_the_look_stays_as_it_was(
    replaced: tuple[Project, Path], change: Callable[[Project, Path], None]
) -> None:
    project, old = replaced
    ctx = context(project)
    (item,) = (one for one in clean.survey(ctx, everything=False, live=()) if not one.kept)
    assert item.path == old
    change(project, old)
    assert not clean.remove(ctx, item, everything=False, live=())
    assert old in certified(project)
    assert flaws(old) == []


class Arriving(list[Path]):
    """What jobs run in, of which one comes while somebody asks a second time."""

    def __contains__(self, path: object) -> bool:
        """Say no once, then what is true."""
        asked, self.asked = getattr(self, "asked", False), True
        return asked and super().__contains__(path)


def test_what_came_into_use_when_the_marker_was_gone_already_gets_it_back(replaced: tuple[Project, Path]) -> None:
    """A provision found it a moment before; either it sees that the marker is gone, or we see that it came."""
    project, old = replaced
    before = marker(old).read_text()
    (item,) = (one for one in clean.survey(context(project), everything=False, live=()) if not one.kept)
    assert not clean.remove(context(project), item, everything=False, live=Arriving([old]))
    assert marker(old).read_text() == before
    assert flaws(old) == []


def test_the_marker_goes_before_anything_else(replaced: tuple[Project, Path]) -> None:
    """Whatever the instant at which it is killed, a half of an environment never counts."""
    project, old = replaced
    strace, log = shutil.which("strace"), project.folder.parent / "log"
    if strace is None:
        pytest.skip("strace is not installed")
    argv: list[str | Path] = [strace, "-f", "-qq", "-e", "trace=unlink,unlinkat,rmdir", "-o", log]
    command = [sys.executable, "-m", "aml_nox", "clean"]
    run([*argv, "--", *command], env=project.environment(), cwd=project.folder).expect()
    removed = re.findall(r'(?:unlink|unlinkat|rmdir)\((?:\w+, )?"([^"]+)"', log.read_text())
    assert not old.exists()
    assert "pyvenv.cfg" in removed
    assert removed[0].endswith(f"{old.name}/.aml-ok-{old.name[:12]}")


def test_one_that_is_killed_leaves_nothing_that_counts(replaced: tuple[Project, Path]) -> None:
    """The marker goes first; a clean that comes later takes the rest."""
    project, old = replaced
    for number in range(2000):
        (old / f"file{number}").touch()
    age(old)
    with project.start_aml("clean") as cleaning:
        wait_until(lambda: not any(old.glob(".aml-ok-*")), "the marker is gone")
        cleaning.send_signal(signal.SIGKILL)
        cleaning.wait()
    assert certified(project) == [current(project)]
    if old.exists():
        age(old)
        assert f"envs/{old.name}" in cleaned(project)["removed"]
    assert not old.exists()


def test_a_provision_beside_a_clean_ends_with_an_environment_that_is_whole(built: Project) -> None:
    """Two branches, each provisioned in turn while everything that no link leads to is removed."""
    for number in range(4):
        with built.start_aml("clean", "--all") as cleaning:
            built.manifest(environment={"requirements": [f"demo-alpha==1.{number % 2}"]})
            made = provision(built)
            assert (site_packages(made.environment) / "demo_alpha" / "cli.py").exists()
            assert flaws(made.environment) == []
            assert made.environment in certified(built)
            cleaning.finish().expect()
        assert flaws(current(built)) == []
        assert current(built) in certified(built)
