"""plan, status, init and bootstrap: what each tells, and that it does no more than it says."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aml_nox.errors import Code
from tests.support.index import Index
from tests.support.processes import Run, run
from tests.support.project import Project
from tests.support.provisioning import current, snapshot
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

pytest_plugins = ("tests.support.ready",)

#: The interpreter below the virtual environment of the tests.
BASE = Path(sys.executable).resolve()


def write_program(path: Path, text: str) -> Path:
    """Write a program for the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# --- plan


def nothing(_: Project) -> None:
    """Leave the project as it is."""


def state_gone(project: Project) -> None:
    (project.aml_root / "runtime" / "python.json").unlink()


def lock_gone(project: Project) -> None:
    (project.folder / "pylock.toml").unlink()


def requirement_changed(project: Project) -> None:
    project.manifest(environment={"requirements": ["demo-alpha==1.1"]})


def lock_changed(project: Project) -> None:
    """Another version than any other case asks for: one that was built already would be kept."""
    project.manifest(environment={"requirements": ["demo-alpha==2.0"]})
    project.aml("lock").expect()


STALE = ["requirements: + demo-alpha==1.1 (aml.toml)", "requirements: - demo-alpha==1.0"]
PLANS: dict[str, tuple[Callable[[Project], None], tuple[str, list[str]], tuple[str, list[str]]]] = {
    "ready": (nothing, ("keep", []), ("keep", [])),
    "no-lock": (lock_gone, ("make", ["there is none"]), ("undecided", ["decided once the lock is there"])),
    "no-python-yet": (state_gone, ("keep", []), ("undecided", ["decided once Python is there"])),
    "stale": (requirement_changed, ("update", STALE), ("undecided", ["decided once the lock is there"])),
    "changed": (lock_changed, ("keep", []), ("build", ["demo-alpha 1.0 → 2.0"])),
}


def told(item: Mapping[str, Any]) -> tuple[str, list[str]]:
    return item["action"], item["reasons"]


@pytest.mark.parametrize("case", PLANS)
def test_plan_tells_what_provision_would_do_and_why_and_does_none_of_it(
    ready: Project, index: Index, wheelhouse: Path, case: str
) -> None:
    """Not a file is made or touched, and no request is made; then provision does exactly that."""
    change, lock, environment = PLANS[case]
    change(ready)
    index.add(wheelhouse)
    asks_here = {"AML_INDEX_URL": index.url}
    before = snapshot(ready.folder)
    report = ready.aml("plan", "--json", "-", env=asks_here).expect().json()
    assert snapshot(ready.folder) == before
    assert index.requests == []
    assert (told(report["lock"]), told(report["environment"])) == (lock, environment)
    done = ready.aml("provision", "--json", "-", env=asks_here).expect().json()
    assert done["lock"]["changed"] is (lock[0] != "keep")
    if environment[0] != "undecided":
        assert (done["changed"], done["reasons"]) == (environment[0] == "build", environment[1])


def test_a_plan_on_a_fresh_machine_leaves_it_fresh(project: Project, index: Index) -> None:
    before = snapshot(project.folder), snapshot(project.home)
    for verb in ("plan", "status"):
        project.aml(verb).expect()
    assert (snapshot(project.folder), snapshot(project.home)) == before
    assert index.requests == []


# --- status


def status(project: Project) -> Mapping[str, Any]:
    report: Mapping[str, Any] = project.aml("status", "--json", "-").expect().json()
    return report


def test_status_of_a_fresh_machine_has_a_reason_for_all_that_is_missing(project: Project) -> None:
    project.manifest(uv={"source": "path", "path": "nope"})
    report = status(project)
    assert {name: report[name]["ok"] for name in ("uv", "python", "environment")} == dict.fromkeys(
        ("uv", "python", "environment"), False
    )
    assert "No such file" in report["uv"]["reason"]
    assert report["python"]["reason"] == "not looked for yet, or changed; bootstrap finds one"
    assert report["environment"]["reason"] == "pylock.toml: there is none"
    assert report["jobs"] == {}
    assert report["aml_root"] == str(project.aml_root)


def test_status_of_a_ready_project_tells_what_provision_told(ready: Project) -> None:
    told = ready.aml("provision", "--json", "-").expect().json()["environment"]
    report = status(ready)
    assert report["environment"] == {"ok": True, **{name: told[name] for name in ("path", "python", "key")}}
    assert report["python"] == {"ok": True, "path": str(BASE), "version": sys.version.split()[0]}
    assert report["uv"].keys() == {"ok", "path", "version", "source"}


def test_an_environment_that_was_damaged_is_told_by_all_alike(project: Project) -> None:
    project.aml("provision").expect()
    shutil.rmtree(next(current(project).glob("lib/*/site-packages/demo_alpha")))
    (planned,) = project.aml("plan", "--json", "-").expect().json()["environment"]["reasons"]
    assert "demo_alpha/__init__.py is missing (demo-alpha==1.0)" in planned
    assert status(project)["environment"] == {"ok": False, "reason": planned}
    assert project.aml("provision", "--json", "-").expect().json()["reasons"] == [planned]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (requirement_changed, f"pylock.toml: {'; '.join(STALE)}"),
        (lock_gone, "pylock.toml: there is none"),
        (lambda project: project.write("pylock.toml", "<<<<<<< HEAD\n"), "pylock.toml cannot be read"),
        (state_gone, "decided once Python is there"),
    ],
    ids=["stale", "no-lock", "conflict", "no-python-yet"],
)
def test_status_tells_why_an_environment_is_not_ready_and_is_no_error(
    ready: Project, change: Callable[[Project], object], reason: str
) -> None:
    change(ready)
    run = ready.aml("status", "--json", "-").expect()
    assert run.json()["environment"]["ok"] is False
    assert run.json()["environment"]["reason"].startswith(reason)
    assert f"environment: not ok: {reason}" in run.err


def test_the_cache_key_follows_what_is_installed_and_nothing_else(ready: Project) -> None:
    first = status(ready)["cache"]
    assert first["paths"] == [str(ready.aml_root)]
    ready.manifest(train={"script": "train.py"})
    ready.write("aml.toml", "# a comment\n" + (ready.folder / "aml.toml").read_text())
    assert status(ready)["cache"] == first
    ready.manifest(environment={"requirements": ["demo-alpha==1.1"]})
    stale = status(ready)["cache"]
    ready.aml("lock").expect()
    assert len({first["key"], stale["key"], status(ready)["cache"]["key"]}) == 3


# --- init


def begin(project: Project, folder: Path, *words: str, code: int = 0) -> Run:
    return project.aml("init", *words, cwd=folder).expect(code)


@pytest.mark.parametrize("requirements", [None, "demo-alpha==1.0\n"], ids=["fresh", "with-requirements.txt"])
def test_what_init_writes_provisions(project: Project, index: Index, tmp_path: Path, requirements: str | None) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    if requirements:
        (folder / "requirements.txt").write_text(requirements)
    begun = begin(project, folder)
    assert begun.err == "wrote aml.toml and noxfile.py; next: nox -s provision\n"
    text = (folder / "aml.toml").read_text()
    assert len(text.splitlines()) == 12
    named = {"requirements-files": ["requirements.txt"]} if requirements else {"requirements": []}
    assert tomllib.loads(text)["environment"] == named
    report = (
        project.nox("-s", "provision", "--", "--json", "-", cwd=folder, env={"AML_INDEX_URL": index.url})
        .expect()
        .json()
    )
    installed = list(Path(report["environment"]["path"]).glob("lib/*/site-packages/demo_alpha"))
    assert bool(installed) is bool(requirements)


def test_init_leaves_what_is_there_and_says_so(ready: Project) -> None:
    before = snapshot(ready.folder)
    refused = begin(ready, ready.folder, code=2)
    assert refused.err.splitlines()[0] == "AML_USAGE: there is an aml.toml already"
    assert snapshot(ready.folder) == before
    noxfile = (ready.folder / "noxfile.py").read_text()
    forced = begin(ready, ready.folder, "--force", "--json", "-")
    assert "aml_nox.register()" in forced.err
    assert forced.json()["written"] == [str(ready.folder / "aml.toml")]
    assert (ready.folder / "noxfile.py").read_text() == noxfile


def test_init_begins_where_the_user_stands_and_takes_no_manifest(ready: Project) -> None:
    """An option that it could not honour is refused."""
    (ready.folder / "sub").mkdir()
    begin(ready, ready.folder / "sub", "--manifest", "x/aml.toml", code=2)
    begin(ready, ready.folder / "sub")
    assert {path.name for path in (ready.folder / "sub").iterdir()} == {"aml.toml", "noxfile.py"}


# --- bootstrap


class Machine:
    """A machine of which a test knows every uv: an empty PATH, and a front end that has none, or that of the tests."""

    def __init__(self, project: Project, bare: Path) -> None:
        self.project, self.bare = project, bare
        self.path: list[Path] = []
        project.manifest(python={"path": str(BASE)})

    def aml(self, *words: str, code: int = 0, front: Path | None = None) -> Run:
        env = {**self.project.environment(), "PATH": os.pathsep.join(map(str, self.path)) or "/nowhere"}
        return run([front or self.bare, "-m", "aml_nox", *words], env=env, cwd=self.project.folder).expect(code)

    def bootstrap(self, *words: str, code: int = 0, front: Path | None = None) -> Mapping[str, Any]:
        """Run bootstrap and give its report."""
        report: Mapping[str, Any] = self.aml("bootstrap", "--json", "-", *words, code=code, front=front).json()
        return report

    def on_path(self, name: str, text: str) -> Path:
        """Put a program into a folder of its own at the end of PATH, under uv's name."""
        self.path.append(self.project.folder / "bins" / name)
        return write_program(self.path[-1] / "uv", text)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the Python of a virtual environment with aml-nox and all that it needs, but no uv."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for path in next(Path(sys.prefix).glob("lib/python*/site-packages")).iterdir():
        if path.name != "uv" and not path.name.startswith("uv-"):
            (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


@pytest.fixture
def machine(project: Project, bare: Path) -> Machine:
    """Give a machine without any uv."""
    return Machine(project, bare)


PLACES = {
    "uv.path": "given/uv",
    "the project's tools": "aml/tools/uv",
    "the record of the last run": "elsewhere/uv",
    "nox's own environment": "",
    "PATH": "bins/uv",
}


def prepare(machine: Machine, uv: Path, source: str) -> Path:
    """Put the real uv in one of the places; give the path that is to be told."""
    if source == "nox's own environment":
        return Path(sys.prefix) / "bin" / "uv"
    place = machine.project.folder / PLACES[source]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(uv)
    if source == "uv.path":
        machine.project.manifest(uv={"path": PLACES[source]})
    elif source == "PATH":
        machine.path.append(place.parent)
    elif source == "the record of the last run":
        record = {"schema": 1, "path": str(place), "version": "0"}
        machine.project.write("aml/runtime/uv.json", json.dumps(record))
    return place


@pytest.mark.parametrize("first", range(len(PLACES)))
def test_uv_is_taken_from_the_first_place_that_has_one(machine: Machine, uv_program: Path, first: int) -> None:
    sources = list(PLACES)[first:]
    expected, *_ = [prepare(machine, uv_program, source) for source in sources]
    front = Path(sys.executable) if "nox's own environment" in sources else None
    found = machine.bootstrap("--offline", front=front)["uv"]
    assert (found["source"], found["path"]) == (sources[0], str(expected))


@pytest.mark.parametrize("place", ["uv", "uv-0.13/uv", "a/b/uv"])
def test_a_uv_that_was_copied_into_the_tools_by_hand_is_found(machine: Machine, uv_program: Path, place: str) -> None:
    target = machine.project.aml_root / "tools" / place
    target.parent.mkdir(parents=True)
    target.symlink_to(uv_program)
    assert machine.bootstrap("--offline")["uv"]["path"] == str(target)


def test_a_machine_with_no_uv_at_all_is_told_what_gets_one(machine: Machine) -> None:
    report = machine.aml("status", "--json", "-").json()
    assert report["uv"] == {"ok": False, "reason": "none was found; bootstrap fetches one"}


def test_a_record_that_cannot_be_read_is_ignored(machine: Machine, uv_program: Path) -> None:
    prepare(machine, uv_program, "PATH")
    machine.project.write("aml/runtime/uv.json", "{")
    assert machine.bootstrap("--offline")["uv"]["source"] == "PATH"
    assert machine.bootstrap("--offline")["uv"]["source"] == "the record of the last run"


BAD = {
    "shim": ("exit 127", "ended with 127"),
    "garbage": ("echo Python was not found", "printed 'Python was not found' where its version was expected"),
    "silent": ("", "printed '' where its version was expected"),
    "old": ("echo uv 0.1.0", "is uv 0.1.0, the manifest asks for >=0.11.32"),
    "other": ("echo uv-like 9.9.9", "printed 'uv-like 9.9.9' where its version was expected"),
    "bytes": (r"printf 'caf\351\0'", "printed 'caf\ufffd\\x00' where its version was expected"),
}


def test_each_uv_that_was_tried_and_its_reason_are_told(machine: Machine, uv_program: Path) -> None:
    """A broken one is passed over, and named where none is left."""
    tried = {machine.on_path(name, text): reason for name, (text, reason) in BAD.items()}
    tried[machine.on_path("empty", "")] = "cannot be started: Exec format error"
    (machine.path[-1] / "uv").write_bytes(b"")
    tried[machine.on_path("cut", "")] = "cannot be started: Exec format error"
    (machine.path[-1] / "uv").write_bytes(uv_program.read_bytes()[:100])
    tried[machine.on_path("not-executable", "")] = "cannot be started: Permission denied"
    (machine.path[-1] / "uv").chmod(0o644)
    error = machine.bootstrap("--offline", code=4)["error"]
    assert error["code"] == "AML_UV_MISSING"
    assert error["message"].splitlines()[1:] == [f"  tried {path} (PATH): {reason}" for path, reason in tried.items()]
    machine.path.append(uv_program.parent)
    assert machine.bootstrap("--offline")["uv"]["path"] == str(uv_program)


@pytest.mark.slow
def test_a_uv_that_hangs_costs_its_limit_alone(machine: Machine) -> None:
    """It is asked once, although everything is looked at again once the lock is held."""
    bad = machine.on_path("hangs", "echo >> $0.asked; exec /bin/sleep 1000")
    assert "did not answer within 15 s" in machine.bootstrap("--offline", code=4)["error"]["message"]
    assert bad.with_name("uv.asked").read_text() == "\n"


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("uv 0.13.9", "0.13.9"),
        ("uv 0.13.9 (abc 2026-01-01)", "0.13.9"),
        ("uv 1.0.0-rc.1 (abc 2026-01-01 x86_64-unknown-linux-gnu)", "1.0.0rc1"),
    ],
)
def test_a_version_is_read_in_all_its_forms(machine: Machine, printed: str, version: str) -> None:
    machine.on_path("some", f"echo warning: a word on stderr >&2; echo '{printed}'")
    assert machine.bootstrap("--offline")["uv"]["version"] == version


def test_a_uv_that_was_named_is_used_alone(machine: Machine, uv_program: Path) -> None:
    prepare(machine, uv_program, "PATH")
    machine.project.manifest(uv={"path": "nope"})
    error = machine.bootstrap(code=4)["error"]
    assert error["code"] == "AML_UV_MISSING"
    assert error["message"].count("tried") == 1
    assert error["hint"] == "uv.path is used alone: correct it, or leave it out"


def test_an_old_uv_is_passed_over_where_the_manifest_asks_for_a_newer(machine: Machine, uv_program: Path) -> None:
    prepare(machine, uv_program, "PATH")
    machine.project.manifest(uv={"version": ">=99"})
    message = machine.bootstrap("--offline", code=4)["error"]["message"]
    assert message.startswith("no uv that fits >=")
    assert ", the manifest asks for " in message


def test_uv_comes_from_the_index_when_nobody_has_one(machine: Machine, uv_wheel: Path, index: Index) -> None:
    """Into the project alone: HOME stays empty, and the next run asks nobody."""
    index.add(uv_wheel)
    version = uv_wheel.name.split("-")[1]
    first = machine.aml("bootstrap", "--json", "-")
    found = machine.project.aml_root / "tools" / f"uv-{version}" / "uv"
    assert first.json()["uv"] == {"ok": True, "path": str(found), "version": version, "source": "the index"}
    assert "the index's own hash was trusted" in first.err
    record = json.loads((machine.project.aml_root / "runtime" / "uv.json").read_text())
    assert record.pop("installed_at").endswith("Z")
    assert record == {
        "schema": 1,
        "path": f"tools/uv-{version}/uv",
        "version": version,
        "source": "the index",
        "method": "index",
        "verified": True,
        "install_dir": f"tools/uv-{version}",
    }
    asked = len(index.requests)
    assert machine.bootstrap()["uv"]["source"] == "the project's tools"
    assert len(index.requests) == asked
    assert list(machine.project.home.iterdir()) == []


def test_a_uv_that_is_not_the_one_in_the_lock_is_not_run(
    machine: Machine, uv_wheel: Path, index: Index, tmp_path: Path
) -> None:
    """The index changed both file and hash; the lock was committed before."""
    index.add(uv_wheel)
    machine.aml("lock", front=Path(sys.executable))
    evil = write_program(tmp_path / "evil", f"touch {tmp_path}/ran; echo uv 99")
    name, version, *tag = uv_wheel.stem.split("-")
    index.add(make_wheel(tmp_path, name, version, modules={}, data_scripts={"uv": evil}, tag="-".join(tag)))
    (machine.project.aml_root / "runtime" / "uv.json").unlink()
    error = machine.bootstrap(code=5)["error"]
    assert (error["code"], "the lock promises" in error["message"]) == ("AML_INTEGRITY", True)
    assert not (tmp_path / "ran").exists()
    assert not (machine.project.aml_root / "tools").exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [(Code.UV_MISSING, "No matching distribution found for uv"), (Code.INTEGRITY, "Expected sha256")],
    ids=["not-there", "forged"],
)
def test_a_fetch_that_fails_tells_what_was_tried_before_it(
    machine: Machine, index: Index, code: Code, words: str
) -> None:
    bad = machine.on_path("shim", "exit 127")
    if code is Code.INTEGRITY:
        wheel = make_wheel(index.folder, "uv", "99.0", modules={})
        index.replaced = {wheel.name: b"other bytes under its hash"}
    error = machine.bootstrap(code=code.status)["error"]
    assert error["code"] == str(code)
    assert words in error["message"]
    assert f"  tried {bad} (PATH): ended with 127" in error["message"].splitlines()
