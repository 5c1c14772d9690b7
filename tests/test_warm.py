"""A warm provision: one line, no process, nothing parsed; and never warm where something could be untrue."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.index import Gate, Index
from tests.support.interpreter import interpreter_copy
from tests.support.project import Project
from tests.support.provisioning import (
    Provision,
    current,
    directories,
    edit_json,
    marker,
    provision,
    read,
    ready_records,
    snapshot,
)
from tests.support.readonly import in_read_only_tree
from tests.support.wheels import make_wheel

HEAVY = {"nox", "tomlkit", "filelock", "packaging", "pathlib", "tomllib", "subprocess"}
#: What coverage puts into every process would be counted as ours.
BARE = {"COVERAGE_PROCESS_START": None, "COVERAGE_PROCESS_CONFIG": None}
PROVISION = ("-X", "importtime", "-m", "aml_nox", "provision", "--json", "-")


@pytest.fixture(scope="module")
def steady(wheelhouse: Path) -> Iterator[Index]:
    """Give an index that no test changes."""
    with Index(wheelhouse) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, steady: Index, uv_cache: Path) -> Project:
    """Give a project for tests after which a provision makes good what they did."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "home").mkdir()
    return Project.make(folder / "project", steady.url, home=folder / "home", uv_cache=uv_cache)


@pytest.fixture
def first(shared: Project) -> Provision:
    """Give the provision after which the shared project is ready."""
    return provision(shared)


def ready(project: Project) -> Path:
    """Give the one record that the warm run looks at."""
    (found,) = ready_records(project)
    return found


# --- what it costs


def test_a_warm_session_says_one_line_between_those_of_nox(shared: Project, first: Provision) -> None:
    said = shared.nox("-s", "provision").expect()
    assert said.out == ""
    assert said.err.splitlines() == [
        "nox > Running session provision",
        f"nox > environment default is ready: {first.environment / 'bin' / 'python'}",
        "nox > Session provision was successful.",
    ]


@pytest.mark.usefixtures("first")
def test_a_warm_provision_starts_no_process(shared: Project) -> None:
    assert shared.execs("-m", "aml_nox", "provision") == [sys.executable]


@pytest.mark.usefixtures("first")
def test_a_warm_session_starts_no_process_that_an_empty_one_does_not(shared: Project) -> None:
    shared.write("empty.py", "import nox\n\n@nox.session(venv_backend='none')\ndef empty(session):\n    pass\n")
    ours = shared.execs("-m", "nox", "-s", "provision")
    assert ours == shared.execs("-m", "nox", "-f", "empty.py", "-s", "empty")


@pytest.mark.usefixtures("first")
def test_a_warm_provision_imports_nothing_that_costs(shared: Project) -> None:
    warm = provision(shared, env=BARE)
    assert warm.warm
    assert {name.partition(".")[0] for name in warm.imported} & HEAVY == set()


def test_a_warm_provision_changes_nothing_on_disk(shared: Project, first: Provision) -> None:
    before = snapshot(shared.folder)
    assert provision(shared).warm
    assert snapshot(shared.folder) == before
    assert current(shared) == first.environment


@pytest.mark.parametrize("gone", ["aml/runtime/uv.json", "aml/runtime/python.json", "aml/runtime/locks"])
def test_a_warm_provision_needs_no_other_record(shared: Project, gone: str) -> None:
    provision(shared)
    path = shared.folder / gone
    path.rename(path.with_name("away"))
    assert provision(shared).warm
    path.with_name("away").rename(path)


def test_a_warm_provision_needs_no_index(shared: Project, steady: Index, first: Provision) -> None:
    asked = len(steady.requests)
    assert provision(shared).environment == first.environment
    assert len(steady.requests) == asked > 0


# --- a tree that cannot be written


def test_a_warm_provision_works_on_a_read_only_tree(shared: Project, first: Provision) -> None:
    warm = read(in_read_only_tree(shared, *PROVISION).expect())
    assert warm.warm
    assert warm.environment == first.environment


def test_a_ready_environment_is_found_on_a_read_only_tree_without_its_record(shared: Project, first: Provision) -> None:
    ready(shared).unlink()
    found = read(in_read_only_tree(shared, *PROVISION).expect())
    assert not found.warm
    assert not found.changed
    assert found.environment == first.environment


def test_a_read_only_tree_that_needs_work_is_an_error_of_one_line_with_a_hint(project: Project) -> None:
    failed = in_read_only_tree(project, "-m", "aml_nox", "provision").expect(6)
    *_, last, hint = failed.err.splitlines()
    assert last.startswith("AML_STATE: ")
    assert "Read-only file system" in last
    assert hint.startswith("  hint: ")


# --- only the link differs


@pytest.mark.parametrize("target", [None, "envs/nowhere"], ids=["no link", "another target"])
def test_a_link_that_differs_is_switched_with_one_line(shared: Project, first: Provision, target: str | None) -> None:
    link = shared.aml_root / ".venv"
    link.unlink()
    if target:
        link.symlink_to(target)
    switched = provision(shared)
    assert switched.warm
    assert switched.said == (f"environment default switched to {first.environment / 'bin' / 'python'}",)
    assert switched.report["switched"]
    assert current(shared) == first.environment
    again = provision(shared)
    assert again.warm
    assert not again.report["switched"]


@pytest.mark.usefixtures("first")
def test_a_folder_of_the_user_where_the_link_belongs_is_left_alone(shared: Project) -> None:
    link = shared.aml_root / ".venv"
    link.unlink()
    shared.write("aml/.venv/mine.txt", "precious")
    failed = shared.aml("provision").expect(6)
    assert "AML_STATE: " in failed.err
    assert "  hint: move it away" in failed.err
    assert (link / "mine.txt").read_text() == "precious"
    shutil.rmtree(link)


# --- the record is a hint, never a proof


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"\x00\xff garbage"), id="garbage"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-20]), id="cut off"),
        pytest.param(lambda path: path.write_bytes(b"[" * 100_000), id="deep"),
        pytest.param(lambda path: path.write_text("null"), id="null"),
        pytest.param(lambda path: path.write_text("[]"), id="an array"),
        pytest.param(lambda path: path.write_text('{"schema": 1}'), id="no content"),
        pytest.param(lambda path: edit_json(path, schema=2), id="another schema"),
        pytest.param(lambda path: edit_json(path, root="/elsewhere"), id="another root"),
        pytest.param(lambda path: edit_json(path, observed={}), id="nothing observed"),
        pytest.param(lambda path: edit_json(path, watched=[1]), id="wrong types"),
        pytest.param(lambda path: edit_json(path, environment="x"), id="wrong environment"),
        pytest.param(lambda path: edit_json(path, environment={"path": "envs/x"}), id="half an environment"),
    ],
)
def test_a_record_that_is_not_right_is_ignored_and_replaced(shared: Project, damage: Callable[[Path], object]) -> None:
    first = provision(shared)
    damage(ready(shared))
    closer = provision(shared)
    assert not closer.warm, "the record was trusted"
    assert not closer.changed
    assert closer.environment == current(shared) == first.environment
    assert provision(shared).warm


@pytest.mark.usefixtures("first")
def test_the_record_of_a_copied_project_is_not_the_copys(shared: Project, tmp_path: Path) -> None:
    shutil.copytree(shared.folder, tmp_path / "copy", symlinks=True)
    copy = Project(folder=tmp_path / "copy", home=shared.home, uv_cache=shared.uv_cache)
    assert not provision(copy).warm
    assert len(ready_records(copy)) == 1, "the old one was of the same content, and is replaced"


def test_at_most_32_records_are_kept_the_youngest_ones(project: Project) -> None:
    folder = project.aml_root / "runtime" / "ready"
    folder.mkdir(parents=True)
    for number in range(40):
        path = folder / f"{number:064x}.json"
        path.write_text("{}")
        os.utime(path, (number, number))
    provision(project)
    kept = [path.name for path in ready_records(project)]
    assert len(kept) == 32
    assert [name for name in kept if name.startswith("0" * 60)] == [f"{number:064x}.json" for number in range(9, 40)]
    assert provision(project).warm


# --- where the state lies


@pytest.mark.parametrize("root", ["../state", "{}/state", "state/of/mine"])
def test_aml_root_moves_all_state_and_is_as_warm(project: Project, root: str) -> None:
    env = {"AML_ROOT": root.format(project.folder.parent)}
    made = provision(project, env=env)
    where = Path(os.path.normpath(project.folder / env["AML_ROOT"]))
    assert made.environment.parent == where / "envs"
    assert (where / ".venv").resolve() == made.environment
    assert not project.aml_root.exists()
    warm = provision(project, env=env)
    assert warm.warm
    assert warm.environment == made.environment


@pytest.mark.parametrize("place", ["aml", "project"])
def test_a_state_folder_or_project_behind_a_symbolic_link_is_as_warm(project: Project, place: str) -> None:
    behind = project.folder.parent / "behind"
    if place == "aml":
        behind.mkdir()
        project.aml_root.symlink_to(behind)
    else:
        project.folder.rename(behind)
        project.folder.symlink_to(behind)
    made = provision(project)
    warm = provision(project)
    assert warm.warm, warm.said
    assert warm.environment == made.environment


# --- edited while it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A project whose provision stands in the middle of a download."""

    project: Project
    interpreter: Path


def local_wheel(project: Project, text: str) -> str:
    modules = {"demo_local.py": text}
    return make_wheel(project.folder / "wheels", "demo-local", "1.0", modules=modules).name


@pytest.fixture
def held(project: Project, tmp_path: Path) -> Held:
    interpreter = interpreter_copy(tmp_path / "python")
    wheel = local_wheel(project, "OLD = 1\n")
    requirements = ["demo-alpha==1.0", f"demo-local @ ./wheels/{wheel}"]
    project.manifest(
        python={"path": str(interpreter)}, environment={"requirements": requirements, "requirements-files": ["r.txt"]}
    )
    project.write("r.txt", "")
    return Held(project=project, interpreter=interpreter)


def grow(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"\0")


def edit_manifest(it: Held) -> None:
    path = it.project.folder / "aml.toml"
    path.write_text(path.read_text().replace("demo-alpha==1.0", "demo-alpha==1.1"))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        pytest.param(edit_manifest, "demo-alpha 1.0 → 1.1", id="manifest"),
        pytest.param(lambda it: it.project.write("r.txt", "demo-beta==1.0\n"), "+ demo-beta 1.0", id="file"),
        pytest.param(lambda it: local_wheel(it.project, "NEW = 1\n"), "demo-local 1.0 has other bytes", id="wheel"),
        pytest.param(lambda it: grow(it.interpreter), "was replaced", id="interpreter"),
    ],
)
def test_what_is_edited_while_a_provision_runs_is_seen_by_the_next(
    held: Held, index: Index, edit: Callable[[Held], object], reason: str
) -> None:
    index.gate = Gate()
    with held.project.start_aml("provision", "--json", "-") as running:
        index.gate.wait_reached()
        edit(held)
        index.gate.set()
        old = running.finish()
    after = provision(held.project)
    assert after.changed
    assert after.tells(reason), (after, old)
    assert provision(held.project).warm


def test_the_lock_of_another_branch_that_appears_while_a_provision_runs_is_seen_by_the_next(
    project: Project, index: Index
) -> None:
    manifest, lock = project.folder / "aml.toml", project.folder / "pylock.toml"
    project.aml("lock").expect()
    branch = {path: path.read_bytes() for path in (manifest, lock)}
    project.manifest(environment={"requirements": ["demo-alpha==1.1"]})
    index.gate = Gate()
    with project.start_aml("provision") as running:
        index.gate.wait_reached()
        for path, data in branch.items():
            path.write_bytes(data)
        index.gate.set()
        running.finish().expect()
    after = provision(project)
    assert after.changed
    assert after.tells("demo-alpha 1.1 → 1.0")


def test_what_a_record_watches_makes_it_void_when_it_changes(shared: Project, first: Provision) -> None:
    """A guard of the tests above: the record is not ignored for everything."""
    record = json.loads(ready(shared).read_text())
    assert record["root"] == str(shared.aml_root)
    assert record["environment"]["path"] == first.environment.relative_to(shared.aml_root).as_posix()
    os.utime(marker(first.environment))
    assert not provision(shared).warm
    assert directories(shared) == [first.environment]
