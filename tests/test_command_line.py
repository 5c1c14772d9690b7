"""The command line: an exit status for each kind of fault, JSON for programs, and manners towards shell and system."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pytest
from filelock import FileLock

from aml_nox.errors import Code
from aml_nox.options import VERBS
from tests.support.index import Gate, Index
from tests.support.processes import Run, Started, descendants, run
from tests.support.project import Project
from tests.support.provisioning import certified

if TYPE_CHECKING:
    from collections.abc import Mapping

pytest_plugins = ("tests.support.ready",)

#: A port of this machine where nothing listens.
NOWHERE = "http://127.0.0.1:1/simple"
ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


def strict(text: str) -> dict[str, Any]:
    """Read JSON as strictly as it can be: one object, no NaN, no name twice."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(word)

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    found: dict[str, Any] = json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    return found


def told(run: Run) -> tuple[str, str]:
    """Give the code and the message of the one fault that a run told people."""
    (line,) = (line for line in run.err.splitlines() if line.startswith("AML_"))
    code, _, message = line.partition(": ")
    return code, message


# --- the exit status of each kind of fault


class Fault(NamedTuple):
    """A way to cause a fault in a provisioned project, and the exit status that DESIGN gives its code."""

    status: int
    words: str
    tables: Mapping[str, Mapping[str, object] | None] = {}
    files: Mapping[str, str | None] = {}
    env: Mapping[str, str] = {}


NEW = {"environment": {"requirements": ["demo-alpha==1.1"]}}
METRIC = "open('metrics.json', 'w').write('{\"m\": 1}')"
GATED = {"script": "train.py", "gates": [{"metric": "m", "min": 2}]}
FAULTS = {
    "USAGE verb": Fault(2, "provison"),
    "USAGE option": Fault(2, "provision --bogus"),
    "USAGE environment": Fault(2, "provision --env nope"),
    "USAGE variable": Fault(2, "lock --upgrade", env={"AML_INDEX_URL": "index.example"}),
    "MANIFEST": Fault(2, "plan", files={"aml.toml": "[python\n"}),
    "MANIFEST absent": Fault(2, "plan --manifest nope.toml"),
    "LOCK_MISSING": Fault(3, "provision --locked", files={"pylock.toml": None}),
    "LOCK_MISSING offline": Fault(3, "plan --offline", files={"pylock.toml": None}),
    "LOCK_STALE": Fault(3, "provision --locked", NEW),
    "LOCK_STALE CI": Fault(3, "provision", NEW, env={"CI": "true"}),
    "LOCK_INVALID": Fault(3, "provision", files={"pylock.toml": "<<<<<<< HEAD\n"}),
    "RESOLUTION": Fault(3, "provision", {"environment": {"requirements": ["demo-alpha==9"]}}),
    "FETCH": Fault(4, "lock --upgrade", env={"AML_INDEX_URL": NOWHERE, "UV_HTTP_RETRIES": "0"}),
    "UV_MISSING": Fault(4, "bootstrap", {"uv": {"source": "path", "path": "nope"}}),
    "PYTHON_MISSING": Fault(4, "bootstrap", {"python": {"path": "nope"}}),
    "PYTHON_MISSING version": Fault(4, "bootstrap", {"python": {"version": "3.11.99", "preference": "only-system"}}),
    "UV_PYTHON_FAILED": Fault(4, "bootstrap", {"python": {"version": "3.11.99"}}),
    "INTEGRITY": Fault(
        5,
        "provision",
        {"environment": {"requirements": [], "requirements-files": ["r.txt"]}},
        {"r.txt": f"demo-alpha==1.0 --hash=sha256:{'0' * 64}\n"},
    ),
    "STATE root": Fault(6, "provision", env={"AML_ROOT": "/"}),
    "STATE home": Fault(6, "provision", env={"AML_ROOT": "home", "HOME": "home"}),
    "STATE above home": Fault(6, "provision", env={"AML_ROOT": "home", "HOME": "home/ada"}),
    "STATE project": Fault(6, "provision", env={"AML_ROOT": "."}),
    "STATE above project": Fault(6, "provision", env={"AML_ROOT": ".."}),
    "STATE separator": Fault(6, "provision", env={"AML_ROOT": "a:b"}),
    "STATE file": Fault(6, "provision", env={"AML_ROOT": "noxfile.py"}),
    "JOB_FAILED": Fault(7, "train", {"train": {"script": "train.py"}}, {"train.py": "raise SystemExit(3)"}),
    "GATE_FAILED": Fault(8, "train", {"train": GATED}, {"train.py": METRIC}),
}
#: Those that need more than a file and a variable; each has its own test below.
ELSEWHERE = {"VENV_FAILED", "TIMEOUT", "BUSY"}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_exit_status_for_shells_and_its_code_for_programs(ready: Project, name: str) -> None:
    """The JSON alone is on stdout, complete and strict; people read the same, and never a traceback."""
    fault = FAULTS[name]
    ready.manifest(**fault.tables)
    for file, text in fault.files.items():
        (ready.folder / file).unlink(missing_ok=True)
        if text is not None:
            ready.write(file, text)
    verb, *words = fault.words.split()
    env = {**fault.env, "HOME": str(ready.folder / fault.env.get("HOME", "home"))}
    done = ready.aml(verb, *words, "--json", "-", env=env).expect(fault.status)
    report = strict(done.out)
    assert {name: report[name] for name in ("schema", "verb", "ok")} == {"schema": 1, "verb": verb, "ok": False}
    assert report["error"].keys() == {"code", "message", "hint"}
    assert report["error"]["code"] == f"AML_{name.partition(' ')[0]}"
    assert told(done)[0] == report["error"]["code"]
    assert report["error"]["message"] in done.err
    assert not report["error"]["hint"] or f"\n  hint: {report['error']['hint']}\n" in done.err
    assert "Traceback" not in done.err


def test_the_table_has_every_code() -> None:
    """A new code needs a fault that ends with it."""
    assert {name.partition(" ")[0] for name in FAULTS} | ELSEWHERE == {code.name for code in Code}


def test_a_path_that_uv_refuses_is_exit_6_in_uvs_words(project: Project) -> None:
    """A folder whose name is no UTF-8; nothing else breaks on it before."""
    odd = project.folder.rename(os.fsdecode(bytes(project.folder) + b"\xff"))
    other = Project(folder=odd, home=project.home, uv_cache=project.uv_cache)
    done = other.aml("provision", "--json", "-").expect(6)
    assert told(done)[0] == strict(done.out)["error"]["code"] == "AML_VENV_FAILED"
    assert "not valid UTF-8" in done.err
    assert other.aml("status", "--json", "-").expect().json()["aml_root"] == str(odd / "aml")


def test_a_step_beyond_its_limit_is_exit_6_and_the_next_run_succeeds(project: Project, index: Index) -> None:
    index.gate = Gate()
    project.manifest(timeouts={"install": 1})
    code, message = told(project.aml("provision").expect(6))
    assert (code, message) == ("AML_TIMEOUT", "installing took longer than 1 s and was ended")
    index.gate.set()
    project.aml("provision").expect()


def test_a_wait_beyond_its_limit_is_exit_9_and_names_the_holder(project: Project, index: Index) -> None:
    index.gate = Gate()
    project.manifest(timeouts={"lock-wait": 1})
    with project.start_aml("provision") as holder:
        index.gate.wait_reached()
        done = project.aml("provision", "--json", "-").expect(9)
    code, message = told(done)
    assert code == "AML_BUSY"
    assert f"held by pid {holder.pid} on " in message
    assert message.endswith("__main__.py provision")
    assert done.err.splitlines()[0].startswith("waiting for environment ")


@pytest.mark.parametrize("name", [".venv", "envs", "runtime"])
def test_what_stands_where_state_belongs_is_exit_6_and_left_alone(project: Project, name: str) -> None:
    """A real folder for the link, files for the folders."""
    path = project.write(f"aml/{name}/mine" if name == ".venv" else f"aml/{name}", "mine")
    code, message = told(project.aml("provision").expect(6))
    assert code == "AML_STATE"
    assert name in message
    assert path.read_text() == "mine"


def test_a_project_path_with_the_separator_of_path_is_refused(project: Project) -> None:
    other = Project(folder=project.folder.rename(f"{project.folder}:2"), home=project.home, uv_cache=project.uv_cache)
    code, message = told(other.aml("provision").expect(6))
    assert code == "AML_STATE"
    assert "holds ':'" in message


def test_a_current_folder_that_is_gone_is_a_fault_of_the_users(ready: Project) -> None:
    (ready.folder / "gone").mkdir()
    argv = ["sh", "-c", 'cd gone && rmdir ../gone && exec "$0" -m aml_nox status', sys.executable]
    done = run(argv, env=ready.environment(), cwd=ready.folder).expect(6)
    assert told(done) == ("AML_STATE", "the current folder is gone")


# --- JSON

REPORTS = {
    "bootstrap": {"uv", "python"},
    "lock": {"lock", "reasons"},
    "provision": {"environment", "changed", "switched", "reasons", "lock"},
    "plan": {"lock", "environment"},
    "status": {"uv", "python", "environment", "jobs", "aml_root", "cache"},
    "verify": {"level", "environment", "drift", "problems", "sealed", "unsealed", "repaired"},
    "reproduce": {"first", "second", "differences"},
    "clean": {"items", "removed"},
    "train": {"job", "gates", "skipped"},
    "jobs": {"jobs"},
    "models": {"models"},
    "init": {"written"},
}


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_reports_its_success_alone_on_stdout(ready: Project, verb: str) -> None:
    ready.write("train.py", "print('to people')")
    ready.manifest(train={"script": "train.py"})
    done = ready.aml(verb, "--json", "-", *(["--force"] if verb == "init" else [])).expect()
    report = strict(done.out)
    assert report.keys() == {"schema", "verb", "ok", "error"} | REPORTS[verb]
    assert (report["schema"], report["verb"], report["ok"], report["error"]) == (1, verb, True, None)
    assert done.err


@pytest.mark.parametrize(("words", "status"), [((), 0), (("--bogus",), 2)])
def test_json_goes_to_a_file_relative_to_where_the_user_stands(
    ready: Project, words: tuple[str, ...], status: int
) -> None:
    (ready.folder / "sub").mkdir()
    done = ready.aml("plan", *words, "--json=out.json", cwd=ready.folder / "sub").expect(status)
    assert done.out == ""
    assert strict((ready.folder / "sub" / "out.json").read_text())["ok"] is (status == 0)


def test_a_report_that_cannot_be_written_is_a_fault_but_does_not_hide_another(ready: Project) -> None:
    done = ready.aml("plan", "--json", "no/such/folder").expect(2)
    assert told(done) == ("AML_USAGE", "--json no/such/folder: No such file or directory")
    ready.manifest(train=GATED)
    ready.write("train.py", METRIC)
    ready.aml("train", "--json", "no/such/folder").expect(8)


def test_json_of_the_script_is_not_ours(ready: Project) -> None:
    ready.write("train.py", "")
    ready.manifest(train={"script": "train.py"})
    assert ready.aml("train", "--", "--json", "-").expect().out == ""


# --- asking


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_without_a_verb_the_verbs_are_told(ready: Project, words: list[str]) -> None:
    done = ready.aml(*words).expect()
    assert done.out.startswith("usage: aml-nox VERB [options]\n")
    assert all(f"  {verb:<10} {text}\n" in done.out for verb, text in VERBS.items())


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help_and_does_nothing_then(tmp_path: Path, ready: Project, verb: str) -> None:
    done = ready.aml(verb, "--help", "--json", "-", cwd=tmp_path).expect()
    assert done.out.startswith(f"usage: aml-nox {verb} ")
    assert VERBS[verb] in done.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["provison"], "did you mean `aml-nox provision`"),
        (["x"], "`aml-nox --help` lists the verbs"),
        (["plan", "--lockd"], "did you mean `aml-nox plan --locked`"),
        (["plan", "--", "x"], "`aml-nox plan --help` lists the options"),
        (["plan", "--force"], "`aml-nox plan --help` lists the options"),
        (["train", "--lr", "a b"], "the script's own arguments stand behind --: `aml-nox train -- --lr 'a b'`"),
    ],
)
def test_a_wrong_command_line_is_answered_with_the_right_one(ready: Project, words: list[str], hint: str) -> None:
    """An option of another verb is refused too: here nobody hands the same arguments to several."""
    assert ready.aml(*words).expect(2).err.splitlines()[1:] == [f"  hint: {hint}"]


def test_the_manifest_is_the_nearest_upward_and_the_state_lies_beside_it(ready: Project) -> None:
    (ready.folder / "a" / "b").mkdir(parents=True)
    root = ready.aml("status", "--json", "-", cwd=ready.folder / "a" / "b").expect().json()["aml_root"]
    assert root == str(ready.aml_root)
    ready.write("a/aml.toml", '[python]\nversion = "3.11"\n')
    root = ready.aml("status", "--json", "-", cwd=ready.folder / "a" / "b").expect().json()["aml_root"]
    assert root == str(ready.folder / "a" / "aml")


def test_no_manifest_anywhere_is_told_with_the_way_to_one(tmp_path: Path, ready: Project) -> None:
    done = ready.aml("status", cwd=tmp_path).expect(2)
    assert told(done) == ("AML_MANIFEST", f"there is no aml.toml in {tmp_path} or above")
    assert "`aml-nox init` makes one" in done.err


# --- signals

ENDINGS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ENDINGS)
def test_a_signal_ends_a_provision_without_a_trace(project: Project, index: Index, number: signal.Signals) -> None:
    """No child is left, no lock held, no environment certified; the status tells the signal; the next run succeeds."""
    index.gate = Gate()
    process = project.start_aml("provision")
    index.gate.wait_reached()
    below = descendants(process.pid)
    process.send_signal(number)
    process.finish().expect(128 + number)
    assert below
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert certified(project) == []
    for path in (project.aml_root / "runtime" / "locks").glob("*.lock"):
        with FileLock(path, blocking=False):
            pass
    index.gate.set()
    project.aml("provision").expect()


def test_a_hangup_that_is_ignored_stays_ignored(project: Project, index: Index) -> None:
    """`nohup aml-nox train &` outlives its terminal."""
    index.gate = Gate()
    nohup = shutil.which("nohup")
    assert nohup
    argv = [nohup, sys.executable, "-m", "aml_nox", "provision"]
    with Started(argv, env=project.environment(), cwd=project.folder) as process:
        index.gate.wait_reached()
        process.send_signal(signal.SIGHUP)
        index.gate.set()
        process.finish().expect()


# --- streams


def redirected(project: Project, redirection: str, *words: str) -> int:
    """Run a verb behind a shell's redirection; give its exit status."""
    argv = ["sh", "-c", f'exec "$0" -m aml_nox "$@" {redirection}', sys.executable, *words]
    return run(argv, env=project.environment(), cwd=project.folder).code


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_outcome(ready: Project, redirection: str) -> None:
    """No file of ours, and no child's, comes to stand where a stream was: the log holds the job's words alone."""
    ready.write("train.py", "print('the words')")
    ready.manifest(train={"script": "train.py"})
    assert redirected(ready, redirection, "train", "--json", "-") == 0
    (log,) = ready.aml_root.glob("jobs/*/log.txt")
    assert log.read_text() == "the words\n"
    assert redirected(ready, redirection, "provision", "--force") == 0
    assert redirected(ready, redirection, "--help") == 0
    assert redirected(ready, redirection, "nonsense") == 2


def unread(project: Project, stream: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb whose stdout or stderr nobody reads any more: each write fails with EPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    out, err = (writer, subprocess.PIPE) if stream == "stdout" else (subprocess.PIPE, writer)
    argv = [sys.executable, "-m", "aml_nox", *words]
    env = project.environment()
    try:
        return subprocess.run(argv, env=env, cwd=project.folder, stdout=out, stderr=err, check=False, text=True)
    finally:
        os.close(writer)


def test_a_reader_that_went_away_is_told_without_noise(ready: Project) -> None:
    assert (unread(ready, "stdout", "--help").returncode, unread(ready, "stdout", "--help").stderr) == (0, "")
    done = unread(ready, "stdout", "plan", "--json", "-")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2].startswith("AML_USAGE: --json -: ")
    assert "BrokenPipeError" not in done.stderr


def test_work_goes_on_when_nobody_reads_what_is_said(ready: Project) -> None:
    """`aml-nox train 2>&1 | head -1` must not leave a job that succeeded without its record."""
    ready.write("train.py", "print('x' * 100_000)")
    ready.manifest(train={"script": "train.py"})
    assert unread(ready, "stderr", "train").returncode == 0
    (job,) = ready.aml_root.glob("jobs/*/job.json")
    assert strict(job.read_text())["state"] == "succeeded"
    assert unread(ready, "stderr", "provision", "--force").returncode == 0
    assert unread(ready, "stderr", "nonsense").returncode == 2


def test_a_terminal_that_knows_ascii_alone_stops_nothing(project: Project) -> None:
    """Paths and messages hold more: é in a folder, → in a reason. What cannot be shown is escaped."""
    odd = project.folder.rename(project.folder.with_name("é → x"))
    other = Project(folder=odd, home=project.home, uv_cache=project.uv_cache)
    other.write("train.py", "print('é')")
    other.manifest(train={"script": "train.py"})
    for words in (["provision"], ["train", "--json", "-"], ["status", "--json", "-"]):
        done = other.aml(*words, env=ASCII).expect()
        assert "Traceback" not in done.err
        assert done.out == "" or os.fsencode(strict(done.out).get("aml_root", "")) in {b"", os.fsencode(odd / "aml")}
    other.manifest(python={"version": ">=3.11,<3.15"})
    assert r"\u2192" in other.aml("plan", env=ASCII).expect().err
