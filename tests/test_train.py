"""The training job: what it sees, what becomes of it, that its record is true, and what its metrics are worth."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from aml_nox.manifest import Gate
from aml_nox.train import gates
from tests.support.processes import Run, Started, wait_until
from tests.support.project import Project
from tests.support.provisioning import snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.project import Changes

pytest_plugins = ("tests.support.ready",)

#: Waits until the worker has told of the start: then it writes no record until the end, a script may do as it likes.
TOLD = "import json\nwhile 'isolation' not in json.load(open('job.json')):\n    pass\n"
#: Runs until the test makes the file `stop` in the job's directory; a script waits for no time of its own.
WAIT = "import os, time\nwhile not os.path.exists('stop'):\n    time.sleep(0.01)\n"
#: Starts a child that ignores SIGTERM, and whose command line holds the job's directory; then tells of it.
WITH_CHILD = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()", os.getcwd()])
{}
open("pid", "w")
"""
POLITE = WITH_CHILD.format("signal.signal(signal.SIGTERM, signal.SIG_DFL)") + WAIT
STUBBORN = WITH_CHILD.format("") + WAIT
TELLING = WITH_CHILD.format("signal.signal(signal.SIGTERM, lambda *_: open('told', 'w'))") + WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A training run that ended, by its JSON."""

    run: Run
    job: Mapping[str, Any]
    folder: Path

    def read(self, name: str) -> str:
        """Give a file of the job's directory."""
        return (self.folder / name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Trainer:
    """A project and its jobs."""

    project: Project

    @property
    def jobs(self) -> list[Path]:
        """The directories of all jobs, as their names sort them."""
        return sorted(self.project.aml_root.glob("jobs/*"))

    def write(self, script: str, **train: object) -> None:
        """Set the job; the keys of [train] have underscores here."""
        self.project.write("train.py", script)
        keys = {name.replace("_", "-"): value for name, value in train.items()}
        self.project.manifest(train=None)
        self.project.manifest(train={"script": "train.py", **keys})

    def train(
        self, script: str, *args: str | Path, code: int = 0, caller: Changes | None = None, **table: object
    ) -> Trained:
        """Run a script as the job to its end, and hold the exit status."""
        self.write(script, **table)
        run = self.project.aml("train", "--json", "-", *args, env=caller).expect(code)
        job = run.json()["job"]
        return Trained(run=run, job=job, folder=self.project.aml_root / "jobs" / job["id"])

    def start(self, front: str = "aml") -> tuple[Started, Path]:
        """Start the job that was written; give its process, and the directory once the script has made `pid`."""
        before = set(self.jobs)
        process = self.project.start_aml("train") if front == "aml" else self.project.start_nox("-s", "train")
        wait_until(lambda: any((job / "pid").exists() for job in self.jobs if job not in before), "the script runs")
        (folder,) = set(self.jobs) - before
        return process, folder

    def counts(self) -> Mapping[str, int]:
        """Count the jobs as `status` does."""
        counts: Mapping[str, int] = self.project.aml("status", "--json", "-").expect().json()["jobs"]
        return counts


@pytest.fixture
def trainer(ready: Project) -> Trainer:
    """Give the shared project as one that trains."""
    return Trainer(ready)


def record(job: Path) -> dict[str, Any]:
    """Read job.json by the strictest reading of JSON."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(word)

    found: dict[str, Any] = json.loads((job / "job.json").read_text(encoding="utf-8"), parse_constant=refuse)
    return found


def assert_gone(folder: Path) -> None:
    """Hold that no process names the job's directory in its command line: no worker, nothing that the script left."""

    def is_gone() -> bool:
        return not [pid for pid in Path("/proc").glob("[0-9]*") if os.fsencode(folder) in command_line(pid)]

    wait_until(is_gone, "everything of the job is gone")


def command_line(process: Path) -> bytes:
    """Read what a process was started with; one that ended has nothing."""
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_bytes()
    return b""


# --- what it sees

DUMP = "import json, os; json.dump(dict(os.environ), open('seen.json', 'w'))"
PROXIES = {name: "" for word in ("http", "https", "all") for name in (f"{word}_proxy".upper(), f"{word}_proxy")}


def test_a_job_sees_the_allow_list_and_nothing_else_of_its_caller(trainer: Trainer) -> None:
    """Secrets, loader and interpreter hooks, proxies and tool settings stay outside; each name is accounted for."""
    secrets = (
        "AWS_SECRET_ACCESS_KEY",
        "GH_TOKEN",
        "LD_PRELOAD",
        "PYTHONSTARTUP",
        "PYTHONHASHSEED",
        "UV_INDEX_X_PASSWORD",
    )
    hidden = {**dict.fromkeys((*secrets, *PROXIES, "CI", "VIRTUAL_ENV", "PIP_INDEX_URL"), "0"), "LD_PRELOAD": ""}
    caller = {**hidden, "LC_ALL": "C.UTF-8", "MINE": "mine"}
    done = trainer.train(DUMP, caller=caller, pass_env=["MINE", "ABSENT"], env={"SET": "set"})
    seen = json.loads(done.read("seen.json"))
    ours = {"AML_JOB_DIR": str(done.folder), "AML_ROOT": str(trainer.project.aml_root), "MINE": "mine", "SET": "set"}
    fixed = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1", **PROXIES}
    own = {"PATH", "HOME", "TMPDIR", "PYTHONPATH", "PYTHONPYCACHEPREFIX"}
    assert {name: value for name, value in seen.items() if name not in own} == ours | fixed
    assert own <= seen.keys()


def test_path_is_the_environment_then_the_callers(trainer: Trainer) -> None:
    done = trainer.train(DUMP)
    environment = trainer.project.aml_root / done.job["environment"]["path"]
    caller = trainer.project.environment()["PATH"]
    assert json.loads(done.read("seen.json"))["PATH"] == f"{environment / 'bin'}{os.pathsep}{caller}"


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "HOME", "PYTHONHASHSEED"])
def test_what_the_manifest_names_beats_what_is_set_for_every_job(trainer: Trainer, name: str) -> None:
    done = trainer.train(DUMP, caller={name: "7"}, pass_env=[name])
    assert json.loads(done.read("seen.json"))[name] == "7"
    done = trainer.train(DUMP, caller={name: "7"}, pass_env=[name], env={name: "8"})
    assert json.loads(done.read("seen.json"))[name] == "8"


def test_home_is_fresh_short_and_gone_afterwards(trainer: Trainer) -> None:
    """A Unix socket in it needs a path of at most 107 bytes."""
    script = "import os\nhome = os.environ['HOME']\nprint(home, os.environ['TMPDIR'], os.listdir(home))\n"
    done = trainer.train(script + "open(home + '/x', 'w')")
    home, temporary, listing = done.read("log.txt").split()
    assert home == temporary != str(trainer.project.home)
    assert (listing, len(home) < 60, Path(home).exists()) == ("[]", True, False)


def test_a_job_starts_in_its_own_directory_with_no_input(trainer: Trainer) -> None:
    done = trainer.train("import os, sys; print(os.getcwd(), os.listdir('model'), sys.stdin.read() == '')")
    assert done.read("log.txt").split() == [str(done.folder), "[]", "True"]


def test_values_that_are_passed_on_are_in_no_file_of_ours(trainer: Trainer) -> None:
    done = trainer.train("", caller={"TOKEN": "hunter2"}, pass_env=["TOKEN"])
    files = [path for path in done.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
    assert "TOKEN" in json.loads(done.read("spec.json"))["pass_env"]


# --- what is run


def test_arguments_are_those_of_the_manifest_then_those_of_the_command_line(trainer: Trainer) -> None:
    done = trainer.train("import sys; print(sys.argv[1:])", "--", "--lr", "a b", "--", args=["--epochs", "%s {0}"])
    assert done.read("log.txt") == "['--epochs', '%s {0}', '--lr', 'a b', '--']\n"


def test_a_module_is_found_in_the_project(trainer: Trainer) -> None:
    trainer.project.write("pkg/__init__.py", "")
    trainer.project.write("pkg/part.py", "import sys; print(__name__, sys.argv[1:])")
    trainer.project.manifest(train=None)
    trainer.project.manifest(train={"module": "pkg.part", "args": ["1"]})
    job = trainer.project.aml("train", "--json", "-").expect().json()["job"]
    assert (trainer.project.aml_root / "jobs" / job["id"] / "log.txt").read_text() == "__main__ ['1']\n"


@pytest.mark.parametrize("table", [None, {"script": "absent.py"}], ids=["no-train-table", "no-such-script"])
def test_nothing_to_run_is_a_fault_of_the_manifest_and_leaves_no_job(
    trainer: Trainer, table: Mapping[str, object] | None
) -> None:
    before = trainer.jobs
    trainer.project.manifest(train=None)
    trainer.project.manifest(train=table)
    run = trainer.project.aml("train").expect(2)
    assert run.err.startswith("AML_MANIFEST: ")
    assert trainer.jobs == before


def test_the_environment_stays_as_it_was_built_and_imports_are_still_compiled_once(trainer: Trainer) -> None:
    environment = trainer.project.aml_root / trainer.train("").job["environment"]["path"]
    before, sources = snapshot(environment), snapshot(trainer.project.folder / "lib")
    trainer.project.write("lib/own.py", "")
    sources = snapshot(trainer.project.folder / "lib")
    trainer.train("import sys, os\nsys.path.insert(0, os.environ['AML_ROOT'] + '/../lib')\nimport own, demo_alpha.cli")
    assert snapshot(environment) == before
    assert snapshot(trainer.project.folder / "lib") == sources
    compiled = (trainer.project.aml_root / "runtime" / "pycache").rglob("*.pyc")
    assert {path.name.partition(".")[0] for path in compiled} >= {"own", "cli"}


def test_a_switch_of_the_link_does_not_reach_into_a_running_job(trainer: Trainer) -> None:
    project = trainer.project
    trainer.write(
        f"open('pid', 'w')\n{WAIT}import sys, demo_alpha; print(demo_alpha.VERSION, sys.prefix, sys.executable)"
    )
    process, folder = trainer.start()
    project.manifest(environment={"requirements": ["demo-alpha==2.0"]})
    project.aml("provision").expect()
    (folder / "stop").touch()
    process.finish()
    version, prefix, program = (folder / "log.txt").read_text().split()
    old = project.aml_root / record(folder)["environment"]["path"]
    assert old != (project.aml_root / ".venv").resolve()
    assert (version, prefix, program) == ("1.0", str(old), str(old / "bin" / "python"))


def test_a_job_runs_in_the_environment_that_train_names(trainer: Trainer) -> None:
    trainer.project.manifest(environments={"other": {"requirements": ["demo-gamma"]}})
    trainer.train("import demo_gamma", environment="other")
    failed = trainer.train("import demo_gamma", "--env", "default", code=7, environment="other")
    assert "No module named 'demo_gamma'" in failed.read("log.txt")


# --- how it ends


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ("raise SystemExit(3)", 3, "ended with 3"),
        ("1 / 0", 1, "ended with 1"),
        ("import os; os.kill(os.getpid(), 9)", -9, "was ended by signal 9 (was there enough memory?)"),
    ],
)
def test_a_script_that_fails_is_told_and_recorded(trainer: Trainer, script: str, status: int, words: str) -> None:
    done = trainer.train(script, code=7)
    assert (done.job["state"], done.job["exit_status"]) == ("failed", status)
    message, hint = done.run.err.splitlines()[-2:]
    assert message == f"AML_JOB_FAILED: job {done.job['id']}: train.py {words}"
    assert hint == f"  hint: its output is in jobs/{done.job['id']}/log.txt"


def test_a_job_beyond_its_time_is_ended_with_its_whole_group(trainer: Trainer) -> None:
    done = trainer.train(STUBBORN, code=7, timeout=1, grace=1)
    assert (done.job["state"], done.job["exit_status"]) == ("timeout", -9)
    assert_gone(done.folder)
    assert "ran longer than 1 s" in done.run.err


ENDINGS = [
    ("aml", signal.SIGINT),
    ("aml", signal.SIGTERM),
    ("aml", signal.SIGHUP),
    ("nox", signal.SIGINT),
    ("nox", signal.SIGTERM),
]


@pytest.mark.parametrize(("front", "number"), ENDINGS)
def test_a_request_to_end_ends_the_job_and_is_recorded(trainer: Trainer, front: str, number: signal.Signals) -> None:
    trainer.write(POLITE)
    process, folder = trainer.start(front)
    process.send_signal(number)
    process.finish().expect(128 + number)
    assert record(folder)["state"] == "cancelled"
    assert_gone(folder)


def test_a_second_request_to_end_waits_for_no_grace(trainer: Trainer) -> None:
    trainer.write(TELLING, grace="1h")
    process, folder = trainer.start()
    process.send_signal(signal.SIGINT)
    wait_until((folder / "told").exists, "the script was asked to end")
    process.send_signal(signal.SIGINT)
    process.finish().expect(130)
    assert record(folder)["state"] == "cancelled"
    assert_gone(folder)


def test_a_job_whose_caller_was_killed_is_cancelled_with_its_grace(trainer: Trainer) -> None:
    trainer.write(TELLING, grace=1)
    process, folder = trainer.start()
    assert trainer.counts() == {"running": 1}
    process.kill()
    process.wait()
    assert_gone(folder)
    assert (folder / "told").exists()
    assert trainer.counts() == {"cancelled": 1}
    assert record(folder)["why"] == "the caller died"


def test_what_the_script_left_behind_in_its_group_is_ended_with_it(trainer: Trainer) -> None:
    assert_gone(trainer.train(WITH_CHILD.format("")).folder)


def test_a_daemon_that_holds_the_output_does_not_hold_us(trainer: Trainer) -> None:
    script = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {WAIT!r}], start_new_session=True)"
    done = trainer.train(script)
    (done.folder / "stop").touch()
    assert done.job["state"] == "succeeded"


def test_a_job_that_removes_its_directory_is_recorded_all_the_same(trainer: Trainer) -> None:
    done = trainer.train(f"{TOLD}import os, shutil; shutil.rmtree(os.environ['AML_JOB_DIR'])")
    assert record(done.folder)["state"] == "succeeded"


def test_a_record_tells_what_was_run_when_and_how_long(trainer: Trainer) -> None:
    done = trainer.train("", timeout="1h")
    found = record(done.folder)
    assert found == {**done.job, "schema": 1}
    assert found["duration"] >= 0
    assert found["started"] < found["ended"]
    assert found["ended"].endswith("Z")
    assert found["isolation"]["asked"] == "prefer"
    assert found["timeout"] == 3600
    assert found["environment"]["python"] == found["environment"]["path"] + "/bin/python"


def test_job_ids_are_unique_and_sort_by_the_time_of_their_start(trainer: Trainer) -> None:
    known = len(trainer.jobs)
    started = [trainer.train("").job["id"] for _ in range(3)]
    assert [job.name for job in trainer.jobs[known:]] == started


# --- what it says

ODD = {
    "not-utf-8": "b'caf\\xe9\\n'",
    "nul": "b'a\\0b'",
    "progress": "b'1%\\r2%\\r\\x1b[31m3%'",
    "half-a-line": "b'no end of line'",
    "5-mb-without-line": "b'x' * 5_000_000",
}


@pytest.mark.parametrize("front", ["aml", "nox"])
def test_output_reaches_the_log_byte_by_byte_whatever_the_terminal_can_show(trainer: Trainer, front: str) -> None:
    whole = " + ".join(ODD.values())
    trainer.write(f"import os, sys\ndata = {whole}\nsys.stdout.buffer.write(data)\nos.write(2, b'!')")
    env = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    words = ("train",) if front == "aml" else ("-s", "train")
    run = (trainer.project.aml if front == "aml" else trainer.project.nox)(*words, env=env).expect()
    expected = b"".join(eval(text) for text in ODD.values())  # noqa: S307 - the literals above
    assert (trainer.jobs[-1] / "log.txt").read_bytes() == expected + b"!"
    shown = (expected + b"!\n").decode(errors="replace").replace("\r", "\n")  # the pipe of the tests has one line end
    is_shown = shown in run.err  # in a name of its own: five megabytes are no message
    assert is_shown


def test_output_is_shown_while_it_is_made_and_never_on_stdout(trainer: Trainer) -> None:
    trainer.write(f"print('so far')\nopen('pid', 'w')\n{WAIT}")
    process, folder = trainer.start()
    assert process.stderr
    shown, stream = bytearray(), process.stderr.fileno()
    os.set_blocking(stream, False)

    def so_far() -> bool:
        with contextlib.suppress(BlockingIOError):
            shown.extend(os.read(stream, 1 << 16))
        return b"so far\n" in shown

    wait_until(so_far, "the output is shown")
    (folder / "stop").touch()
    assert process.finish().out == ""


# --- gates


def gate(**bounds: float) -> Gate:
    known = {"min": None, "max": None} | bounds
    return Gate(
        metric="m", **known, better=None, min_gain=None, min_relative_gain=None, required=True, if_no_baseline="pass"
    )


def judge(path: Path, *wanted: Gate) -> list[tuple[bool, str]]:
    return [(one.passed, one.why) for one in gates.judge(wanted, gates.read_metrics(path))]


@pytest.mark.parametrize(
    ("text", "bounds", "expected"),
    [
        ('{"m": 0.95}', {"min": 0.95}, (True, "0.95 >= 0.95")),
        ('{"m": 0.95}', {"max": 0.95}, (True, "0.95 <= 0.95")),
        ('{"m": 1}', {"min": 0.5, "max": 2.0}, (True, "1 >= 0.5 and <= 2.0")),
        ('{"m": -0.0}', {"min": 0.0}, (True, "-0.0 >= 0.0")),
        ('{"m": 0.9499999999}', {"min": 0.95}, (False, "0.9499999999 < 0.95")),
        ('{"m": 9007199254740993}', {"max": 9007199254740992.0}, (False, "9007199254740993 > 9007199254740992.0")),
        ('{"n": 1}', {"min": 0.0}, (False, "the job reported no such metric")),
        ('{"m": true}', {"min": 0.0}, (False, "True is no finite number")),
        ('{"m": "0.99"}', {"min": 0.0}, (False, "'0.99' is no finite number")),
        ('{"m": null}', {"max": 1.0}, (False, "None is no finite number")),
        ('{"m": [1]}', {"max": 1.0}, (False, "[1] is no finite number")),
        ('{"m": 1e999}', {"min": 0.0}, (False, "inf is no finite number")),
        ('{"m": -1e999}', {"max": 0.0}, (False, "-inf is no finite number")),
        (
            '{"m": 1' + "0" * 400 + "}",
            {"min": 0.0},
            (False, "100000000000000000...0000000000000000000 is no finite number"),
        ),
        ('{"m": "' + "x" * 9999 + '"}', {"min": 0.0}, (False, "'xxxxxxxxxxxx...xxxxxxxxxxxxx' is no finite number")),
    ],
)
def test_a_gate_passes_finite_numbers_within_its_bounds_alone(
    tmp_path: Path, text: str, bounds: Mapping[str, float], expected: tuple[bool, str]
) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(text)
    assert judge(path, gate(**bounds)) == [expected]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"m": NaN}', "NaN is not JSON"),
        (b'{"m": Infinity}', "Infinity is not JSON"),
        (b'{"m": 1, "m": 2}', "a name stands twice"),
        (b'{"n": {"m": 1, "m": 2}, "m": 1}', "a name stands twice"),
        (b"[1]", "metrics.json is not one JSON object"),
        (b"1", "metrics.json is not one JSON object"),
        (b"", "metrics.json cannot be read"),
        (b'{"m": 1', "metrics.json cannot be read"),
        (b'{"m": 1}{"m": 1}', "metrics.json cannot be read"),
        (b'{"m": "\xff"}', "metrics.json cannot be read"),
        (b"[" * 200_000, "metrics.json cannot be read"),
        (b'{"m": 1' + b"0" * 5000 + b"}", "metrics.json cannot be read"),
    ],
    ids=lambda value: value[:24].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_metrics_that_are_not_one_strict_json_object_pass_no_gate(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "metrics.json"
    path.write_bytes(content)
    ((passed, reason),) = judge(path, gate(min=0.0))
    assert not passed
    assert why in reason


@pytest.mark.parametrize("kind", ["absent", "symlink", "folder", "huge"])
def test_metrics_are_read_from_a_plain_file_of_sane_size_alone(tmp_path: Path, kind: str) -> None:
    """A link could lead to any file of the user's."""
    path, good = tmp_path / "metrics.json", tmp_path / "good.json"
    good.write_text('{"m": 1}')
    if kind == "symlink":
        path.symlink_to(good)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        path.write_text('{"m": 1}' + " " * (16 << 20))
    ((passed, why),) = judge(path, gate(min=0.0))
    assert not passed
    assert ("wrote no metrics.json" if kind == "absent" else "is not a file of at most 16 MiB") in why


def test_metrics_are_not_read_from_a_pipe_which_would_hold_us_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    os.mkfifo(path)
    # Whoever does read it is given what passes, and no reason to wait.
    with Started(["sh", "-c", "echo '{\"m\": 1}' > metrics.json"], env=dict(os.environ), cwd=tmp_path):
        ((passed, _),) = judge(path, gate(min=0.0))
    assert not passed


def metrics(text: str) -> str:
    return f"open('metrics.json', 'w').write({text!r})"


ACCURATE = {"metric": "accuracy", "min": 0.95}


def test_a_job_whose_metrics_pass_succeeds_and_records_them(trainer: Trainer) -> None:
    done = trainer.train(metrics('{"accuracy": 0.97}'), gates=[ACCURATE, {"metric": "accuracy", "max": 1.0}])
    assert done.job["metrics"] == {"accuracy": 0.97}
    assert [one["passed"] for one in done.run.json()["gates"]] == [True, True]
    assert "accuracy  0.97   >= 0.95   passed" in done.run.err


@pytest.mark.parametrize("text", ['{"accuracy": 0.94}', '{"accuracy": NaN}', "{}"])
def test_a_job_that_fails_a_gate_is_exit_8_although_its_script_succeeded(trainer: Trainer, text: str) -> None:
    done = trainer.train(metrics(text), code=8, gates=[{"metric": "accuracy", "max": 1.0}, ACCURATE])
    assert (done.job["state"], done.job["exit_status"], done.job["why"]) == ("failed", 0, "a gate failed")
    assert done.run.json()["gates"][1]["passed"] is False
    assert done.run.json()["error"]["code"] == "AML_GATE_FAILED"


def test_gates_are_not_asked_about_a_job_that_failed(trainer: Trainer) -> None:
    done = trainer.train(metrics('{"accuracy": 1}') + "\nraise SystemExit(1)", code=7, gates=[ACCURATE])
    assert done.run.json()["gates"] == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"m": 1, "matrix": [[1e999]], "more": {"a": 1}}', {"m": 1}),
        (
            '{"m": 1e999, "n": -1e999, "name": "\\ud800", "none": null, "yes": true}',
            {"m": None, "n": None, "name": "\ud800", "none": None, "yes": True},
        ),
        ('{"m": 1' + "0" * 4000 + "}", {"m": None}),
        ('{"m": ' + "[" * 900 + "]" * 900 + "}", {}),
    ],
    ids=["nested", "not-finite", "many-digits", "deep"],
)
def test_whatever_json_the_metrics_hold_the_record_is_strict_json(trainer: Trainer, text: str, kept: object) -> None:
    """It keeps what stands at the top; the rest stays in metrics.json."""
    done = trainer.train(metrics(text))
    assert record(done.folder)["metrics"] == kept


def test_jobs_are_counted_by_state(trainer: Trainer) -> None:
    for script, code in (("", 0), ("", 0), ("raise SystemExit(1)", 7)):
        trainer.train(script, code=code)
    assert trainer.counts() == {"failed": 1, "succeeded": 2}
    (trainer.project.aml_root / "jobs" / "a-foreign-folder").mkdir()
    trainer.project.write("aml/jobs/20260101T000000.000000Z-abcdef/job.json", "{")
    assert trainer.counts() == {"failed": 1, "succeeded": 2, "unreadable": 1}
