"""verify: three depths, every difference told at once, and a repair that trusts nothing that was condemned."""

from __future__ import annotations

import json
import marshal
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.index import Gate, Index
from tests.support.interpreter import interpreter_copy
from tests.support.oracle import flaws
from tests.support.processes import run
from tests.support.project import Project
from tests.support.provisioning import (
    certified,
    current,
    directories,
    edit_json,
    marker,
    provision,
    site_packages,
    snapshot,
)
from tests.support.readonly import in_read_only_tree
from tests.support.wheels import make_wheel

pytest_plugins = ("tests.support.ready",)

LEVELS = ("quick", "full", "strict")
MODULE = "demo_alpha/cli.py"
#: What an installer writes for itself; it is nobody's content.
NOTES = {"INSTALLER", "REQUESTED", "direct_url.json", "__pycache__"}


def verify(project: Project, *words: str, code: int = 0) -> dict[str, Any]:
    """Run verify and give its report; people and programs are told the same fault."""
    done = project.aml("verify", "--json", "-", *words).expect(code)
    report = done.json()
    assert report["ok"] is (code == 0)
    assert "Traceback" not in done.err
    for one in report.get("drift", []):
        assert f"{one['file']} {one['what']}" in done.err
    for problem in report.get("problems", []):
        assert problem in done.err.splitlines()
    return report


def drifted(report: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["file"].rpartition("site-packages/")[2], one["what"]) for one in report["drift"]}


def module(project: Project, name: str = MODULE) -> Path:
    return site_packages(current(project)) / name


def rewrite(path: Path) -> None:
    """Change a byte of a file in its place, and put size and times back."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    with path.open("r+b") as stream:
        stream.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


@pytest.fixture
def built(project: Project) -> Project:
    """Give a project of its own that is provisioned: its environment may be damaged."""
    provision(project)
    return project


@pytest.fixture(scope="module")
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed")
    return found


def files_read(strace: str, project: Project, *words: str) -> set[str]:
    """Give the files of the environment that a verify opens, but for the marker, relative to it."""
    log, environment = project.folder.parent / "log", current(project)
    argv: list[str | Path] = [
        strace,
        "-f",
        "-qq",
        "-e",
        "trace=open,openat,openat2",
        "-e",
        "status=successful",
        "-o",
        log,
    ]
    command = [sys.executable, "-m", "aml_nox", "verify", *words]
    run([*argv, "--", *command], env=project.environment(), cwd=project.folder).expect()
    opened = re.findall(r'open\w*\([^"]*"([^"]+)", (?!.*O_DIRECTORY)', log.read_text())
    inside = {Path(one) for one in opened if one.startswith(f"{environment}/")}
    return {path.relative_to(environment).as_posix() for path in inside if not path.name.startswith(".aml-ok-")}


# --- depth


@pytest.mark.parametrize("level", LEVELS)
def test_a_file_whose_size_and_times_were_put_back_is_found_at_every_depth(built: Project, level: str) -> None:
    """No tool sets ctime back."""
    verify(built)
    rewrite(module(built))
    assert drifted(verify(built, "--level", level, code=5)) == {(MODULE, "was changed")}


def test_quick_reads_nothing_of_an_untouched_environment_and_full_reads_all_of_it(ready: Project, strace: str) -> None:
    verify(ready)
    assert files_read(strace, ready, "--level", "quick") == set()
    environment = current(ready)
    files = site_packages(environment).glob("demo_alpha*/*")
    content = {path.relative_to(environment).as_posix() for path in files if path.name not in NOTES}
    assert content <= files_read(strace, ready, "--level", "full") >= {"bin/demo-alpha"}


def test_quick_is_right_after_a_link_elsewhere_moved_the_change_times(built: Project, strace: str) -> None:
    """Another environment that takes the same file from uv's cache does that: it costs one reading, no false alarm."""
    verify(built)
    before = module(built).stat().st_ctime_ns
    os.link(module(built), built.folder / "elsewhere")
    assert module(built).stat().st_ctime_ns != before
    assert f"{site_packages(current(built)).relative_to(current(built))}/{MODULE}" in files_read(
        strace, built, "--level", "quick"
    )
    assert files_read(strace, built, "--level", "quick") == set()


def test_quick_without_a_reading_before_it_reads(built: Project) -> None:
    rewrite(module(built))
    assert drifted(verify(built, "--level", "quick", code=5)) == {(MODULE, "was changed")}


@pytest.mark.parametrize("record", ["{", "[]", "null", '{"schema": 1}', '{"schema": 1, "digest": 1, "stats": []}'])
def test_a_damaged_record_of_stats_is_as_good_as_none(built: Project, record: str) -> None:
    verify(built)
    (stats,) = (built.aml_root / "runtime" / "stats").iterdir()
    stats.write_text(record)
    rewrite(module(built))
    verify(built, "--level", "quick", code=5)


@pytest.mark.parametrize("level", LEVELS)
def test_an_environment_as_certified_is_said_to_be_with_its_level_and_digest(ready: Project, level: str) -> None:
    report = verify(ready, "--level", level)
    digest = json.loads(marker(current(ready)).read_text())["env_digest"]
    assert report == {
        "schema": 1,
        "verb": "verify",
        "ok": True,
        "error": None,
        "level": level,
        "environment": {"path": str(current(ready)), "env_digest": digest},
        "drift": [],
        "problems": [],
        "sealed": True,
        "unsealed": [],
        "repaired": False,
    }
    said = ready.aml("verify", "--level", level).expect().err
    assert said == f"environment default is as certified ({level}): {digest}\n"


def test_full_is_the_level_where_none_is_given(ready: Project) -> None:
    assert verify(ready)["level"] == "full"


@pytest.mark.parametrize("word", ["", "Full", "fast", "0"])
def test_a_level_that_does_not_exist_is_a_usage_error_that_lists_those_that_do(ready: Project, word: str) -> None:
    report = verify(ready, f"--level={word}", code=2)
    assert report["error"]["code"] == "AML_USAGE"
    assert all(level in report["error"]["message"] for level in LEVELS)


# --- nothing to verify


def marker_cut(project: Project) -> None:
    marker(current(project)).write_text('{"schema": 1}')


def marker_of_nothing(project: Project) -> None:
    edit_json(marker(current(project)), interpreter={})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda it: shutil.rmtree(it.aml_root), "there is none", id="no root"),
        pytest.param(lambda it: (it.aml_root / ".venv").unlink(), "there is none", id="no link"),
        pytest.param(lambda it: shutil.rmtree(current(it)), "there is none", id="no directory"),
        pytest.param(lambda it: marker(current(it)).unlink(), "has no marker", id="no marker"),
        pytest.param(marker_cut, "has no marker", id="cut marker"),
        pytest.param(marker_of_nothing, "has a damaged marker", id="damaged marker"),
    ],
)
def test_where_there_is_nothing_to_verify_it_is_exit_5(
    built: Project, change: Callable[[Project], object], words: str
) -> None:
    change(built)
    verify(built, "--level", "quick", code=5)
    error = verify(built, code=5)["error"]
    assert error["code"] == "AML_INTEGRITY"
    assert words in error["message"]
    assert error["hint"] == "provision makes one"


# --- lock, manifest, interpreter and files in one answer


def require(project: Project, *requirements: str) -> None:
    project.manifest(environment={"requirements": [*requirements]})


def lock_of_another(project: Project) -> None:
    require(project, "demo-alpha==1.1")
    project.aml("lock").expect()


def forged_lock(project: Project) -> None:
    lock = project.folder / "pylock.toml"
    lock.write_text(re.sub('sha256 = "[0-9a-f]{4}', 'sha256 = "0000', lock.read_text(), count=1))


PROBLEMS: dict[str, tuple[Callable[[Project], object], str]] = {
    "stale": (
        lambda it: require(it, "demo-alpha==1.1"),
        "pylock.toml does not belong to the manifest: requirements: + demo-alpha==1.1 (aml.toml)",
    ),
    "no lock": (lambda it: (it.folder / "pylock.toml").unlink(), "there is no pylock.toml"),
    "unreadable": (lambda it: it.write("pylock.toml", "<<<<<<< HEAD\n"), "pylock.toml cannot be read: "),
    "edited": (forged_lock, "pylock.toml does not belong to the manifest: its packages were edited or merged by hand"),
    "another": (lock_of_another, "the lock describes another environment: demo-alpha 1.0 → 1.1"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_what_is_wrong_with_the_lock_is_told_beside_what_is_wrong_with_the_files(built: Project, case: str) -> None:
    change, words = PROBLEMS[case]
    change(built)
    rewrite(module(built))
    report = verify(built, code=5)
    (problem,) = report["problems"]
    assert problem.startswith(words)
    assert drifted(report) == {(MODULE, "was changed")}
    assert report["error"]["code"] == "AML_INTEGRITY"
    assert "2 differences" in report["error"]["message"]


@pytest.mark.parametrize("case", ["stale", "unreadable"])
def test_a_problem_of_the_lock_alone_is_exit_5_but_no_matter_of_quick(ready: Project, case: str) -> None:
    change, words = PROBLEMS[case]
    change(ready)
    verify(ready, "--level", "quick")
    (problem,) = verify(ready, code=5)["problems"]
    assert problem.startswith(words)


def replaced(program: Path) -> None:
    with program.open("ab") as stream:
        stream.write(b"\0")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(replaced, "was replaced: its bytes are others", id="replaced"),
        pytest.param(Path.unlink, "is gone", id="gone"),
    ],
)
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "record lost"])
def test_an_interpreter_that_is_not_what_it_was_is_told_with_the_files(
    project: Project, tmp_path: Path, change: Callable[[Path], object], words: str, *, recorded: bool
) -> None:
    program = interpreter_copy(tmp_path / "python")
    project.manifest(python={"path": str(program)})
    provision(project)
    if not recorded:
        (project.aml_root / "runtime" / "python.json").unlink()
        verify(project)
    change(program)
    rewrite(module(project))
    report = verify(project, code=5)
    assert report["problems"] == [f"the interpreter {program} {words}"]
    assert drifted(report) == {(MODULE, "was changed")}
    assert verify(project, "--level", "strict", code=5)["problems"] == report["problems"]


def test_an_environment_that_leads_to_another_interpreter_is_told(built: Project) -> None:
    program = current(built) / "bin" / "python"
    program.unlink()
    program.symlink_to("/bin/true")
    report = verify(built, code=5)
    assert report["problems"] == [f"bin/python leads to {Path('/bin/true').resolve()}"]


def test_a_copied_project_is_told_where_its_environment_was_built(ready: Project, tmp_path: Path) -> None:
    copy = replace(ready, folder=tmp_path / "copy")
    shutil.copytree(ready.folder, copy.folder, symlinks=True)
    before = snapshot(ready.folder)
    report = verify(copy, code=5)
    assert report["problems"] == [f"the project moved or was copied: it was built at {current(ready)}"]
    assert snapshot(ready.folder) == before


def test_each_environment_is_verified_by_its_own_name(built: Project) -> None:
    built.manifest(environments={"gpu": {"requirements": ["demo-beta"]}})
    provision(built, "--env", "gpu")
    rewrite(site_packages(current(built, "gpu")) / "demo_beta" / "cli.py")
    verify(built)
    report = verify(built, "--env", "gpu", code=5)
    assert report["environment"]["path"] == str(current(built, "gpu"))
    assert report["drift"] == [
        {
            "distribution": "demo-beta==1.0",
            "file": f"{site_packages(current(built)).relative_to(current(built))}/demo_beta/cli.py",
            "what": "was changed",
        }
    ]
    assert "environment gpu is not as certified: 1 difference" in report["error"]["message"]


# --- it changes nothing


@pytest.mark.parametrize("level", LEVELS)
def test_a_verify_makes_no_request_and_leaves_nothing_but_its_record(
    project: Project, index: Index, level: str
) -> None:
    provision(project)
    asked, before, home = len(index.requests), snapshot(project.folder), snapshot(project.home)
    verify(project, "--level", level)
    after = snapshot(project.folder)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    record = f"aml/runtime/stats/{current(project).name}.json"
    assert changed <= {"aml/runtime", "aml/runtime/stats", record}
    assert record in changed
    assert (len(index.requests), snapshot(project.home)) == (asked, home)


@pytest.mark.parametrize("level", LEVELS)
def test_a_read_only_tree_is_verified_as_well(ready: Project, level: str) -> None:
    shutil.rmtree(ready.aml_root / "runtime" / "stats", ignore_errors=True)
    done = in_read_only_tree(ready, "-m", "aml_nox", "verify", "--level", level, "--json", "-")
    assert done.expect().json()["ok"]
    assert not (ready.aml_root / "runtime" / "stats").exists()


def test_what_is_not_as_certified_is_not_remembered(built: Project) -> None:
    rewrite(module(built))
    before = snapshot(built.folder)
    verify(built, code=5)
    assert snapshot(built.folder) == before


# --- repair


def test_a_repair_builds_anew_and_the_condemned_directory_never_counts_again(built: Project) -> None:
    old, digest = current(built), verify(built)["environment"]["env_digest"]
    rewrite(module(built))
    report = verify(built, "--repair")
    assert report["repaired"]
    assert drifted(report) == {(MODULE, "was changed")}, "what was wrong is told all the same"
    assert report["environment"]["env_digest"] == digest
    assert report["environment"]["path"] == str(current(built)) != str(old)
    assert certified(built) == [current(built)]
    assert flaws(current(built)) == []
    verify(built, "--level", "strict")
    assert provision(built).warm


@pytest.mark.parametrize("level", LEVELS)
def test_a_repair_of_what_is_right_does_nothing(ready: Project, level: str) -> None:
    before = directories(ready), current(ready)
    report = verify(ready, "--repair", "--level", level)
    assert not report["repaired"]
    assert (directories(ready), current(ready)) == before


@pytest.mark.parametrize(
    ("change", "rebuilt"),
    [
        pytest.param(lambda it: require(it, "demo-alpha==1.0", "demo-alpha<2"), False, id="the same packages"),
        pytest.param(lambda it: (it.folder / "pylock.toml").unlink(), False, id="no lock"),
        pytest.param(lambda it: require(it, "demo-alpha==1.1"), True, id="another version"),
        pytest.param(lambda it: (it.aml_root / "runtime" / "python.json").unlink(), False, id="record lost"),
    ],
)
def test_a_repair_condemns_no_files_that_are_right(
    built: Project, change: Callable[[Project], object], *, rebuilt: bool
) -> None:
    old = current(built)
    change(built)
    built.aml("verify", "--repair").expect()
    assert old in certified(built)
    assert (current(built) != old) is rebuilt
    verify(built)


def test_a_repair_that_cannot_lock_says_so_and_condemns_nothing_it_did_not_have_to(built: Project) -> None:
    require(built, "demo-alpha==9")
    assert verify(built, "--repair", code=3)["error"]["code"] == "AML_RESOLUTION"
    assert certified(built) == [current(built)]


def test_a_repair_that_is_killed_leaves_nothing_that_counts(built: Project, index: Index) -> None:
    """The cache is poisoned by the edit, so that the repair stands before a download."""
    rewrite(module(built))
    index.gate = Gate()
    with built.start_aml("verify", "--repair") as repairing:
        index.gate.wait_reached()
        repairing.kill_tree()
    assert certified(built) == []
    assert verify(built, code=5)["error"]["message"].endswith("has no marker")
    index.gate.set()
    index.gate = None
    assert provision(built).changed
    verify(built, "--level", "strict")


# --- bytecode


def compile_all(environment: Path) -> list[Path]:
    """Let the environment's interpreter compile its packages at all three optimisations."""
    words = ["-m", "compileall", "-q", "-o", "0", "-o", "1", "-o", "2", str(site_packages(environment))]
    run([environment / "bin" / "python", *words], env={}, cwd=environment).expect()
    found = sorted(site_packages(environment).glob("demo_alpha/__pycache__/cli.*.pyc"))
    assert len(found) == 3
    return found


def forge(pyc: Path) -> None:
    """Put other code under the head that says for which source it stands (PEP 552)."""
    head = pyc.read_bytes()[:16]
    pyc.write_bytes(head + marshal.dumps(compile("print('forged')", "cli.py", "exec")))


def test_genuine_bytecode_is_no_drift_at_any_depth(project: Project, index: Index) -> None:
    """Each optimisation leaves something else out: assertions, docstrings."""
    code = '"""Words."""\n\n\ndef main() -> None:\n    """More."""\n    assert main\n'
    make_wheel(index.folder, "demo-alpha", "1.0", modules={"demo_alpha/__init__.py": "", "demo_alpha/cli.py": code})
    provision(project)
    assert len({path.read_bytes()[16:] for path in compile_all(current(project))}) == 3
    for level in LEVELS:
        verify(project, "--level", level)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["plain", "opt-1", "opt-2"])
def test_forged_bytecode_is_named_by_strict_alone(built: Project, which: int) -> None:
    pyc = compile_all(current(built))[which]
    forge(pyc)
    verify(built)
    report = verify(built, "--level", "strict", code=5)
    name = pyc.relative_to(current(built)).as_posix()
    assert [(one["file"], one["what"]) for one in report["drift"]] == [
        (name, "is forged: its source compiles to something else")
    ]
    verify(built, "--level", "strict", "--repair")
    verify(built, "--level", "strict")


def cut(pyc: Path) -> None:
    pyc.write_bytes(pyc.read_bytes()[:20])


def leave_alone(pyc: Path) -> None:
    """Give bytecode whose source is another file's: there is none of its own."""
    pyc.rename(pyc.with_name(pyc.name.replace("cli.", "gone.")))


@pytest.mark.parametrize("change", [cut, leave_alone, lambda pyc: pyc.write_bytes(b"")], ids=["cut", "sourceless", "0"])
def test_bytecode_that_nobody_can_judge_is_forged(built: Project, change: Callable[[Path], object]) -> None:
    change(compile_all(current(built))[0])
    assert len(verify(built, "--level", "strict", code=5)["drift"]) == 1


def test_no_bytecode_is_run_by_looking_at_it(built: Project, tmp_path: Path) -> None:
    pyc = compile_all(current(built))[0]
    code = compile(f"open({str(tmp_path / 'ran')!r}, 'w')", "cli.py", "exec")
    pyc.write_bytes(pyc.read_bytes()[:16] + marshal.dumps(code))
    verify(built, "--level", "strict", code=5)
    assert not (tmp_path / "ran").exists()


# --- sealed


@pytest.fixture
def overlapping(project: Project, index: Index) -> Project:
    """Give a project of two wheels that claim one file, each with its own content."""
    for name in ("demo-left", "demo-right"):
        make_wheel(index.folder, name, "1.0", modules={"shared/data.txt": f"of {name}\n"})
    require(project, "demo-left", "demo-right")
    provision(project)
    return project


def test_files_that_two_distributions_claim_are_no_drift_but_unseal(overlapping: Project) -> None:
    report = verify(overlapping)
    assert report["sealed"] is False
    (reason,) = report["unsealed"]
    assert reason.endswith("shared/data.txt is claimed by demo-left==1.0 and demo-right==1.0")
    assert f"not sealed: {reason}" in overlapping.aml("verify").expect().err.splitlines()


@pytest.mark.parametrize("content", ["of demo-left\n", "of demo-right\n", "of nobody\n"])
def test_a_file_that_two_claim_is_held_against_what_was_certified(overlapping: Project, content: str) -> None:
    shared = module(overlapping, "shared/data.txt")
    certified_content = shared.read_text()
    shared.unlink()  # not in its place: the cache holds the same file
    shared.write_text(content)
    words: Sequence[str] = [] if content == certified_content else ["shared/data.txt"]
    report = verify(overlapping, code=5 if words else 0)
    assert [file for file, _ in drifted(report)] == words
