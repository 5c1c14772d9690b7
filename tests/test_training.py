"""Training from its data to a registered model: what is measured, judged, kept and told, is true."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import Run, run, wait_until
from tests.test_train import WAIT, Trained, Trainer, assert_gone, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.project import Project

pytest_plugins = ("tests.support.ready",)

#: How docs/digests.md lets anybody compute a dirHash by hand.
SHELL_LINE = (
    "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sed 's,  \\./,  ,' | sha256sum | cut -c1-64"
)
SPEC = {
    "schema": 1,
    "inputs": [{"name": "x", "type": "number", "shape": []}],
    "outputs": [{"name": "y", "type": "number", "shape": []}],
    "held_out": "held-out.csv",
}
#: A model that doubles, as a file that needs no library to be read.
MODEL = (
    "import json, amlkit\n(amlkit.model_dir() / 'weights.json').write_text(json.dumps({'factor': 2, 'offset': 0}))\n"
)
CONTRACT = "amlkit.save_io_spec([{'name': 'x', 'type': 'number', 'shape': []}], [])\n"
ACCURATE = {"metric": "accuracy", "min": 0.95}
NAME = {"name": "doubler"}


def metrics(**values: object) -> str:
    """Give a script that saves metrics by the kit."""
    return f"import amlkit\namlkit.save_metrics({values!r})\n"


@pytest.fixture
def trainer(ready: Project) -> Iterator[Trainer]:
    """Give the shared project as one that trains, with no model in its registry."""
    yield Trainer(ready)
    ready.close()
    shutil.rmtree(ready.aml_root / "models", ignore_errors=True)


@pytest.fixture
def data(trainer: Trainer) -> Path:
    """Give a dataset of three rows and two held out, whose second column is twice the first."""
    write = trainer.project.write
    write("data/train.csv", "x,y\n1,2\n2,4\n3,6\n")
    write("data/held-out.csv", "x,y\n5,10\n6,12\n")
    return write("data/spec.json", json.dumps(SPEC)).parent


def fault(ended: Run, lines: int = 1) -> tuple[str, str, str]:
    """Give a fault's code, message and hint, which a person and a program are told alike, in so many lines and one."""
    error = ended.json()["error"]
    code, message, hint = error["code"], error["message"], error["hint"]
    assert ended.err.endswith(f"{code}: {message}\n  hint: {hint}\n")
    assert (len(message.splitlines()), len(hint.splitlines())) == (lines, 1)
    assert ended.json()["ok"] is False
    return code, message, hint


def refused(trainer: Trainer, code: int, *args: str, **caller: str | None) -> tuple[str, str, str]:
    """Give the fault of a training that is refused before there is a job."""
    before = trainer.jobs
    ended = trainer.project.aml("train", "--json", "-", *args, env=caller).expect(code)
    assert "job" not in ended.json()
    assert trainer.jobs == before
    return fault(ended)


def versions(trainer: Trainer, name: str = "doubler") -> list[str]:
    """Give the versions of a model that its folder holds, oldest first, but for the link."""
    folder = trainer.project.aml_root / "models" / name
    return sorted(path.name for path in folder.iterdir() if path.name != "latest") if folder.exists() else []


# --- what is measured


def evaluated(trainer: Trainer, script: str, evaluation: str, *, code: int = 0, **table: Any) -> Trained:  # noqa: ANN401 - TOML
    """Run a training and its evaluation to their end."""
    trainer.project.write("evaluate.py", evaluation)
    return trainer.train(script, code=code, evaluate="evaluate.py", **table)


@pytest.mark.parametrize(("claimed", "measured", "code"), [(1.0, 0.5, 8), (0.5, 1.0, 0)])
def test_gates_judge_what_the_evaluation_measured_and_not_what_the_training_claims(
    trainer: Trainer, claimed: float, measured: float, code: int
) -> None:
    done = evaluated(
        trainer, metrics(accuracy=claimed, mine=1), metrics(accuracy=measured), code=code, gates=[ACCURATE]
    )
    assert done.job["metrics"] == json.loads(done.read("metrics.json")) == {"accuracy": measured}
    assert json.loads(done.read("reported.json")) == {"accuracy": claimed, "mine": 1}


def test_of_an_evaluation_that_measures_nothing_no_claim_takes_the_place(trainer: Trainer) -> None:
    done = evaluated(trainer, metrics(accuracy=1.0), "", code=8, gates=[ACCURATE])
    assert done.job["metrics"] is None
    assert fault(done.run) == (
        "AML_GATE_FAILED",
        f"job {done.job['id']}: gate accuracy: FAILED (the job wrote no metrics.json)",
        "the model is not accepted; its job directory keeps everything",
    )


def test_what_stands_where_the_claim_is_kept_gives_way(trainer: Trainer) -> None:
    script = metrics(accuracy=0.1) + "import os\nos.makedirs('reported.json/x')\n"
    done = evaluated(trainer, script, metrics(accuracy=1.0), gates=[ACCURATE])
    assert json.loads(done.read("reported.json")) == {"accuracy": 0.1}
    assert done.job["metrics"] == {"accuracy": 1.0}


def test_an_evaluation_measures_also_where_the_training_claims_nothing(trainer: Trainer) -> None:
    done = evaluated(trainer, "", metrics(accuracy=1.0), gates=[ACCURATE])
    assert done.job["metrics"] == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("evaluation", "status", "words"),
    [
        ("raise SystemExit(3)", 3, "ended with 3"),
        ("import os; os.kill(os.getpid(), 9)", -9, "was ended by signal 9 (was there enough memory?)"),
    ],
)
def test_an_evaluation_that_fails_fails_the_job_and_is_named(
    trainer: Trainer, evaluation: str, status: int, words: str
) -> None:
    script = metrics(accuracy=1.0) + MODEL + CONTRACT
    done = evaluated(trainer, script, evaluation, code=7, gates=[ACCURATE], register=NAME)
    assert (done.job["state"], done.job["exit_status"]) == ("failed", status)
    code, message, hint = fault(done.run)
    assert (code, message) == ("AML_JOB_FAILED", f"job {done.job['id']}: train.py: evaluate.py {words}")
    assert hint == f"its output is in jobs/{done.job['id']}/log.txt"
    assert (done.run.json()["gates"], versions(trainer)) == ([], [])


def test_an_evaluation_is_not_run_for_a_training_that_failed(trainer: Trainer) -> None:
    done = evaluated(trainer, "raise SystemExit(3)", "open('evaluated', 'w')", code=7)
    assert not (done.folder / "evaluated").exists()


def test_the_time_of_a_job_is_that_of_its_evaluation_too(trainer: Trainer) -> None:
    done = evaluated(trainer, metrics(accuracy=1.0), WAIT, code=7, timeout=1, grace=1, gates=[ACCURATE])
    assert (done.job["state"], done.job.get("metrics")) == ("timeout", None)
    code, message, hint = fault(done.run)
    assert (code, message) == ("AML_JOB_FAILED", f"job {done.job['id']}: train.py ran longer than 1 s and was ended")
    assert hint == f"raise train.timeout; its output is in jobs/{done.job['id']}/log.txt"
    assert_gone(done.folder)


def test_a_job_that_is_cancelled_while_it_is_evaluated_is_cancelled(trainer: Trainer) -> None:
    trainer.project.write("evaluate.py", f"open('pid', 'w')\n{WAIT}")
    trainer.write(metrics(accuracy=1.0), evaluate="evaluate.py", gates=[ACCURATE])
    process, folder = trainer.start()
    process.send_signal(signal.SIGINT)
    process.finish().expect(130)
    assert record(folder)["state"] == "cancelled"
    assert (folder / "reported.json").exists()
    assert_gone(folder)


@contextlib.contextmanager
def listener() -> Iterator[int]:
    """Listen on the machine's own loopback, and give the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_an_evaluation_is_cut_off_as_its_training_is(trainer: Trainer) -> None:
    """With isolation off both reach whoever listens on the machine; with it on the loopback is their own."""
    if trainer.train("").job["isolation"]["mechanism"] != "namespace":
        pytest.skip("this machine has no namespaces")
    with listener() as port:
        script = f"import socket\nprint(socket.socket().connect_ex(('127.0.0.1', {port})))\n"
        open_, cut = (evaluated(trainer, script, script, isolation=asked) for asked in ("off", "prefer"))
    assert open_.read("log.txt").split() == ["0", "0"]
    assert cut.read("log.txt").split() == [str(errno.ECONNREFUSED)] * 2
    assert cut.job["isolation"]["in_force"] is True


@pytest.mark.usefixtures("data")
def test_an_evaluation_sees_what_its_training_sees_but_for_the_arguments(trainer: Trainer) -> None:
    script = (
        "import json, os, sys\n"
        "print(json.dumps([sys.argv[1:], sys.prefix, os.getcwd(), {**os.environ, '_': ''}], sort_keys=True))\n"
    )
    done = evaluated(trainer, script, script, args=["--lr", "1"], dataset="data", env={"SET": "set"})
    trained, measured = map(json.loads, done.read("log.txt").splitlines())
    assert trained[0] == ["--lr", "1"]
    assert measured == [[], *trained[1:]]


@pytest.mark.usefixtures("data")
def test_the_kit_measures_the_model_on_what_the_dataset_holds_out(trainer: Trainer) -> None:
    evaluation = (
        "import json, aml_eval, amlkit\n"
        "model = json.loads((amlkit.model_dir() / 'weights.json').read_text())\n"
        "aml_eval.evaluate(lambda rows: [model['factor'] * x + model['offset'] for (x,) in rows])\n"
    )
    gates = [{"metric": "mae", "max": 0.0}, {"metric": "count", "min": 2, "max": 2}]
    done = evaluated(trainer, MODEL, evaluation, dataset="data", gates=gates)
    assert done.job["metrics"] == {"count": 2, "mae": 0.0, "rmse": 0.0, "max_error": 0.0, "r2": 1.0}


# --- the dataset


def by_hand(folder: Path) -> str:
    """Give the dirHash of a folder as the shell computes it."""
    return run(["sh", "-c", SHELL_LINE], env=dict(os.environ), cwd=folder).expect().out.strip()


def test_a_job_is_told_where_its_data_lies_and_the_record_says_what_it_was(trainer: Trainer, data: Path) -> None:
    done = trainer.train("import os; print(os.environ['AML_DATASET_DIR'])", dataset="data")
    sizes = [path.stat().st_size for path in data.iterdir()]
    assert done.read("log.txt") == f"{data}\n"
    assert done.job["dataset"] == {"path": str(data), "dir_hash": by_hand(data), "files": 3, "size": sum(sizes)}
    assert done.job["inputs"]["dataset"] == by_hand(data)


@pytest.mark.parametrize(
    ("break_", "message", "hint"),
    [
        (shutil.rmtree, 'train.dataset: there is no folder "{}"', "make it, or correct the path"),
        (
            lambda data: data.rename(data.with_name("elsewhere")) and data.write_text("1"),
            'train.dataset: "{}" is not a folder',
            "name the folder that holds the files",
        ),
        (
            lambda data: (data / "link").symlink_to("train.csv"),
            'train.dataset: "link" is a link',
            "put the file itself there: a digest of a link says nothing of it",
        ),
        (
            lambda data: (data / "spec.json").write_text("{"),
            (
                "train.dataset: spec.json: cannot be read: Expecting property name enclosed in double quotes: "
                "line 1 column 2 (char 1)"
            ),
            "write it as one JSON object (RFC 8259)",
        ),
    ],
    ids=["missing", "file", "link", "spec"],
)
def test_data_that_cannot_be_told_truly_is_a_fault_of_the_manifest_and_leaves_no_job(
    trainer: Trainer, data: Path, break_: Callable[[Path], object], message: str, hint: str
) -> None:
    break_(data)
    trainer.write("", dataset="data")
    assert refused(trainer, 2) == ("AML_MANIFEST", message.format(data), hint)


#: Each does something to a file of the data, whose path is `path`.
CHANGES = {
    "another-byte": "open(path, 'r+').write('2')",
    "with-its-old-time": """
at = os.stat(path)
open(path, 'r+').write('2')
os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
""",
    "one-more-file": "open(path + '.more', 'w')",
    "removed": "os.remove(path)",
}
TOUCH = "os.utime(path)"
AGAIN = "train again, on data that nobody writes to meanwhile"


def changing(data: Path, change: str) -> str:
    """Give a script that does something to the data."""
    return f"import os\npath = {str(data / 'train.csv')!r}\n{change}\n"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_job_that_writes_to_its_own_data_has_failed(trainer: Trainer, data: Path, change: str) -> None:
    """Nothing is measured or registered of it: what it has learnt from is not what the record names."""
    trainer.project.write("evaluate.py", "open('evaluated', 'w')")
    script = changing(data, change) + MODEL
    done = trainer.train(script, code=7, dataset="data", evaluate="evaluate.py", register=NAME)
    message = f"job {done.job['id']}: the dataset {data} changed while it was trained on"
    assert fault(done.run) == ("AML_JOB_FAILED", message, AGAIN)
    assert done.job["state"] == "failed"
    assert not (done.folder / "evaluated").exists()
    assert versions(trainer) == []


@pytest.mark.parametrize(("change", "code"), [(CHANGES["with-its-old-time"], 7), (TOUCH, 0)], ids=["byte", "touch"])
def test_data_that_another_changes_while_it_is_trained_on_fails_the_job_and_a_touch_does_not(
    trainer: Trainer, data: Path, change: str, code: int
) -> None:
    trainer.write(f"open('pid', 'w')\n{WAIT}", dataset="data")
    process, folder = trainer.start()
    trainer.project.python("-c", changing(data, change)).expect()
    (folder / "stop").touch()
    process.finish().expect(code)
    assert record(folder)["state"] == ("failed" if code else "succeeded")


@pytest.mark.parametrize(("change", "code"), [(CHANGES["with-its-old-time"], 7), (TOUCH, 0)], ids=["byte", "touch"])
def test_data_that_changes_while_the_job_waits_for_its_turn_fails_it_before_it_runs(
    trainer: Trainer, data: Path, change: str, code: int
) -> None:
    trainer.write(f"open('pid', 'w')\n{WAIT}")
    first, ahead = trainer.start()
    trainer.write("open('ran', 'w')", dataset="data")
    second = trainer.project.start_aml("train", "--json", "-")
    wait_until(lambda: trainer.counts() == {"queued": 1, "running": 1}, "the second job waits")
    trainer.project.python("-c", changing(data, change)).expect()
    (ahead / "stop").touch()
    first.finish().expect()
    ended = second.finish().expect(code)
    assert (trainer.jobs[1] / "ran").exists() is (code == 0)
    if code:
        message = f"job {trainer.jobs[1].name}: the dataset {data} changed while the job waited"
        assert fault(ended) == ("AML_JOB_FAILED", message, AGAIN)


@pytest.mark.parametrize(("change", "code"), [(CHANGES["with-its-old-time"], 7), (TOUCH, 0)], ids=["byte", "touch"])
def test_data_that_changes_while_the_model_is_measured_on_it_fails_the_job(
    trainer: Trainer, data: Path, change: str, code: int
) -> None:
    done = evaluated(trainer, MODEL + CONTRACT, changing(data, change), code=code, dataset="data", register=NAME)
    assert len(versions(trainer)) == (code == 0)
    if code:
        message = f"job {done.job['id']}: the dataset {data} changed while the model was measured on it"
        assert fault(done.run) == ("AML_JOB_FAILED", message, AGAIN)


@pytest.mark.parametrize(("name", "code"), [("helper.py", 7), ("notes.txt", 0)])
def test_code_that_changes_while_the_job_waits_for_its_turn_fails_it_before_it_runs(
    trainer: Trainer, name: str, code: int
) -> None:
    """What would run is not what its record and its key name."""
    trainer.project.write("helper.py", "")
    trainer.write(f"open('pid', 'w')\n{WAIT}")
    first, ahead = trainer.start()
    trainer.write("open('ran', 'w')")
    second = trainer.project.start_aml("train", "--json", "-")
    wait_until(lambda: trainer.counts() == {"queued": 1, "running": 1}, "the second job waits")
    trainer.project.write(name, "1")
    (ahead / "stop").touch()
    first.finish().expect()
    ended = second.finish().expect(code)
    assert (trainer.jobs[1] / "ran").exists() is (code == 0)
    if code:
        message = f"job {trainer.jobs[1].name}: the code of train.py changed while the job waited"
        assert fault(ended) == ("AML_JOB_FAILED", message, "train again")


# --- gates that compare with the registered model


def model(trainer: Trainer, value: float, *, code: int = 0, **gate: Any) -> Trained:  # noqa: ANN401 - TOML
    """Train a model that measures `value`, and register it if the gate lets it."""
    gates = [{"metric": "accuracy", **gate}]
    return trainer.train(MODEL + CONTRACT + metrics(accuracy=value), code=code, gates=gates, register=NAME)


HIGHER, LOWER = {"better": "higher"}, {"better": "lower"}


@pytest.mark.parametrize(
    ("first", "gate", "fails", "passes"),
    [
        (0.5, HIGHER, 0.5, 0.51),
        (0.5, LOWER, 0.5, 0.49),
        (0.5, {**HIGHER, "min-gain": 0.1}, 0.59, 0.6),
        (0.5, {**LOWER, "min-relative-gain": 0.5}, 0.26, 0.25),
        (0.5, {**HIGHER, "min-gain": 0.1, "min-relative-gain": 0.5}, 0.7, 0.75),
    ],
)
def test_a_model_must_beat_the_one_that_is_registered_by_what_the_gate_says(
    trainer: Trainer, first: float, gate: Mapping[str, Any], fails: float, passes: float
) -> None:
    known = model(trainer, first, **gate)
    assert known.job["gates"][0]["why"] == f"{first} has no registered value to beat"
    worse = model(trainer, fails, code=8, **gate)
    assert (worse.job["state"], worse.job["registered"]) == ("failed", None)
    assert f"(doubler {known.job['id']}, {gate['better']} is better)" in worse.job["gates"][0]["why"]
    better = model(trainer, passes, **gate)
    assert versions(trainer) == [known.job["id"], better.job["id"]]


def test_a_model_is_compared_with_the_last_that_passed_and_not_with_one_that_failed(trainer: Trainer) -> None:
    for value, code in ((0.5, 0), (0.6, 0), (0.55, 8), (0.56, 8), (0.61, 0)):
        model(trainer, value, code=code, **HIGHER)


def test_where_a_model_to_beat_is_demanded_the_first_one_fails(trainer: Trainer) -> None:
    done = model(trainer, 0.5, code=8, **HIGHER, **{"if-no-baseline": "fail"})
    told = "0.5 has no registered value to beat (there is none), and if-no-baseline is fail"
    assert fault(done.run)[:2] == ("AML_GATE_FAILED", f"job {done.job['id']}: gate accuracy: FAILED ({told})")
    assert versions(trainer) == []


def test_of_two_jobs_at_once_the_second_is_judged_by_what_the_first_registered(trainer: Trainer) -> None:
    """Both measure the same: who comes second is no better, however close they were."""
    gates = [{"metric": "accuracy", "better": "higher"}]
    script = MODEL + CONTRACT + metrics(accuracy=0.5) + "open('pid', 'w')\n" + WAIT
    trainer.write(script, gates=gates, register=NAME, **{"max-parallel": 2})
    started = [trainer.start(), trainer.start()]
    for _, folder in started:
        (folder / "stop").touch()
    assert sorted(process.finish().code for process, _ in started) == [0, 8]
    (winner,) = versions(trainer)
    (loser,) = (folder for _, folder in started if folder.name != winner)
    assert winner in record(loser)["gates"][0]["why"]


@pytest.mark.parametrize(("script", "code"), [(metrics(loss=1), 0), (metrics(accuracy=0.5), 8)])
def test_a_metric_that_is_not_required_may_be_absent_but_not_bad(trainer: Trainer, script: str, code: int) -> None:
    trainer.train(script, code=code, gates=[{**ACCURATE, "required": False}])


# --- the registry


def registering(trainer: Trainer, script: str, code: int = 0, **table: Any) -> Trained:  # noqa: ANN401 - TOML
    """Run a job that is to be registered as doubler."""
    return trainer.train(script, code=code, register=NAME, **table)


@pytest.mark.usefixtures("data")
def test_a_registered_model_tells_where_it_comes_from(trainer: Trainer) -> None:
    done = registering(trainer, MODEL + metrics(accuracy=0.97), dataset="data", gates=[ACCURATE], args=["--lr", "1"])
    folder = trainer.project.aml_root / "models" / "doubler" / done.job["id"]
    assert sorted(path.name for path in folder.iterdir()) == ["REGISTERED", "io_spec.json", "model", "receipt.json"]
    assert json.loads((folder / "io_spec.json").read_text()) == {k: v for k, v in SPEC.items() if k != "held_out"}
    receipt = json.loads((folder / "receipt.json").read_text())
    assert receipt["job"] == done.job["id"] == done.job["registered"]
    assert receipt["inputs"] == done.job["inputs"]
    assert receipt["inputs"].keys() >= {"manifest", "environment", "dataset", "code"}
    assert receipt["environment"]["env_digest"] == receipt["inputs"]["environment"]
    assert (receipt["metrics"], receipt["arguments"]) == ({"accuracy": 0.97}, ["--lr", "1"])
    assert f"registered doubler {folder.name}: {folder}\n" in done.run.err


@pytest.mark.parametrize(
    ("end", "code"), [("raise SystemExit(1)", 7), ("", 8)], ids=["the-script-fails", "a-gate-fails"]
)
def test_nothing_is_registered_unless_all_went_well(trainer: Trainer, end: str, code: int) -> None:
    script = MODEL + CONTRACT + metrics(accuracy=0.97, loss=1) + end
    gates = [ACCURATE, *([{"metric": "loss", "max": 0.5}] if code == 8 else [])]
    done = registering(trainer, script, code, gates=gates)
    assert (done.job["state"], done.job.get("registered"), versions(trainer)) == ("failed", None, [])


@pytest.mark.parametrize(
    ("script", "message", "hint"),
    [
        (
            f"import amlkit\n{CONTRACT}",
            "the model doubler is empty: the job put no file into model/ of its directory",
            "write the model's files to amlkit.model_dir()",
        ),
        (
            f"{MODEL}{CONTRACT}import os\nos.symlink('/etc/hostname', 'model/link')",
            ': "link" is a link',
            "put the file itself there: a digest of a link says nothing of it",
        ),
        (
            MODEL,
            "the model doubler has no contract: nobody says what goes in and what comes out",
            "put a spec.json into the dataset, or call amlkit.save_io_spec",
        ),
        (
            f"{MODEL}import os\nos.symlink('absent', 'io_spec.json')",
            "io_spec.json: cannot be read: it is not a file of at most 1 MiB",
            "write it as one JSON object (RFC 8259)",
        ),
    ],
    ids=["empty", "link-out-of-it", "no-contract", "contract-elsewhere"],
)
def test_a_model_that_could_not_serve_by_itself_fails_the_job(
    trainer: Trainer, script: str, message: str, hint: str
) -> None:
    done = registering(trainer, script, code=7)
    code, told, advice = fault(done.run)
    assert (code, advice) == ("AML_JOB_FAILED", hint)
    assert told.startswith(f"job {done.job['id']}: ")
    assert told.endswith(message)
    assert (done.job["state"], done.job.get("registered"), versions(trainer)) == ("failed", None, [])


def test_what_the_job_says_of_its_model_goes_before_what_the_data_says(trainer: Trainer, data: Path) -> None:
    done = registering(trainer, MODEL + CONTRACT, dataset=data.name)
    contract = trainer.project.aml_root / "models/doubler" / done.job["id"] / "io_spec.json"
    assert json.loads(contract.read_text())["outputs"] == []


def test_what_is_done_to_the_jobs_directory_later_does_not_reach_the_model(trainer: Trainer) -> None:
    done = registering(trainer, MODEL + CONTRACT)
    (done.folder / "model" / "weights.json").write_text("changed")
    kept = trainer.project.aml_root / "models/doubler/latest/model/weights.json"
    assert json.loads(kept.read_text()) == {"factor": 2, "offset": 0}
    assert (kept.stat().st_nlink, kept.parents[1].resolve().name) == (1, done.job["id"])


def test_models_are_listed_with_the_latest_marked(trainer: Trainer) -> None:
    assert trainer.project.aml("models").expect().err.endswith("no models yet\n")
    ids = [registering(trainer, MODEL + CONTRACT + metrics(accuracy=value)).job["id"] for value in (0.5, 0.25)]
    trainer.train(MODEL + CONTRACT, register={"name": "other"})
    told = trainer.project.aml("models", "doubler", "--json", "-").expect()
    assert [(one["name"], one["version"], one["metrics"]) for one in told.json()["models"]] == [
        ("doubler", ids[0], {"accuracy": 0.5}),
        ("doubler", ids[1], {"accuracy": 0.25}),
    ]
    assert [one["path"] for one in told.json()["models"]] == [f"models/doubler/{one}" for one in ids]
    assert ["latest" in line for line in told.err.splitlines() if "doubler" in line] == [False, True]
    everything = trainer.project.aml("models", "--json", "-").expect().json()["models"]
    assert [one["name"] for one in everything] == ["doubler", "doubler", "other"]


def test_a_model_that_is_not_there_is_told_with_the_name_that_was_meant(trainer: Trainer) -> None:
    registering(trainer, MODEL + CONTRACT)
    code, message, hint = fault(trainer.project.aml("models", "--json", "-", "dubler").expect(2))
    assert (code, message) == ("AML_USAGE", "there is no model dubler")
    assert hint == 'did you mean "doubler"?'


#: Serves a prediction from a registered model's folder alone: it knows neither aml-nox nor the project.
CONSUMER = """
import json, pathlib, sys
latest = pathlib.Path(sys.argv[1], "models", "doubler", "latest")
(port,) = json.loads((latest / "io_spec.json").read_text())["inputs"]
model = json.loads((latest / "model" / "weights.json").read_text())
row = {"x": 21}
print(model["factor"] * row[port["name"]] + model["offset"])
"""


def test_a_copied_root_still_serves_a_prediction_without_the_original(project: Project, tmp_path: Path) -> None:
    Trainer(project).train(MODEL + CONTRACT, register=NAME)
    there = tmp_path / "elsewhere" / "models-of-the-team"
    there.parent.mkdir()
    run(["cp", "-r", project.aml_root, there], env=dict(os.environ), cwd=tmp_path).expect()
    shutil.rmtree(project.folder)
    consumer: list[str | Path] = [sys.executable, "-I", "-S", "-c", CONSUMER, there]
    assert run(consumer, env={}, cwd=there).expect().out == "42\n"


# --- the kit in a real job

TELLING = """
import amlkit
values = amlkit.parameters(lr=0.5, epochs=2)
for step in range(values.epochs):
    amlkit.log_metrics(step, loss=values.lr)
    amlkit.progress((step + 1) / values.epochs, f"epoch {step}")
amlkit.save_metrics(loss=values.lr)
"""


def events(folder: Path) -> list[dict[str, Any]]:
    """Read what a job told of itself, without the times."""
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "time"} for line in lines]


@pytest.mark.parametrize("front", ["aml", "nox"])
def test_parameters_come_from_the_command_line_and_metrics_go_to_the_gates(trainer: Trainer, front: str) -> None:
    trainer.write(TELLING, gates=[{"metric": "loss", "max": 0.1}])
    words = ("train",) if front == "aml" else ("-s", "train", "--")
    ended = (trainer.project.aml if front == "aml" else trainer.project.nox)(*words, "--", "--lr", "0.1").expect()
    (job,) = trainer.jobs
    assert events(job) == [
        {"event": "parameters", "values": {"lr": 0.1, "epochs": 2}},
        {"event": "metrics", "step": 0, "values": {"loss": 0.1}},
        {"event": "progress", "fraction": 0.5, "note": "epoch 0"},
        {"event": "metrics", "step": 1, "values": {"loss": 0.1}},
        {"event": "progress", "fraction": 1.0, "note": "epoch 1"},
    ]
    assert record(job)["metrics"] == {"loss": 0.1}
    assert "loss    0.1    <= 0.1    passed" in ended.err


def test_a_module_has_the_kit_too_and_the_project_besides(trainer: Trainer) -> None:
    trainer.project.write("helper.py", "RATE = 0.25")
    trainer.project.write("part.py", "import amlkit, helper; amlkit.save_metrics(rate=helper.RATE)")
    trainer.project.manifest(train=None)
    trainer.project.manifest(train={"module": "part"})
    assert trainer.project.aml("train", "--json", "-").expect().json()["job"]["metrics"] == {"rate": 0.25}


@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_kit_of_the_users_own_takes_the_place_of_ours(trainer: Trainer, kind: str) -> None:
    trainer.project.write("own/amlkit.py", "print('an own kit')")
    trainer.project.write("part.py", "import amlkit")
    trainer.project.manifest(train=None)
    trainer.project.manifest(train={"script": "part.py"} if kind == "script" else {"module": "part"})
    trainer.project.aml("train", env={"AML_PYHOME": "own"}).expect()
    assert (trainer.jobs[-1] / "log.txt").read_text() == "an own kit\n"


@pytest.mark.parametrize("named", ["absent", "empty"])
def test_a_kit_that_is_none_is_told_before_there_is_a_job(trainer: Trainer, named: str) -> None:
    (trainer.project.folder / "empty").mkdir()
    trainer.write("import amlkit")
    assert refused(trainer, 2, AML_PYHOME=named) == (
        "AML_USAGE",
        f"AML_PYHOME is {named}: there is no amlkit.py in it",
        "name the folder that holds amlkit.py, or unset it for the kit of aml-nox",
    )


# --- what else [train] says


def test_what_cuts_a_job_off_is_recorded_and_told(trainer: Trainer) -> None:
    off = trainer.train("", isolation="off")
    found = off.job["isolation"]
    assert (found["asked"], found["mechanism"], found["in_force"]) == ("off", "none", False)
    assert f"job {off.job['id']}: train.py (not isolated: isolation is off)" in off.run.err
    prefer = trainer.train("", isolation="prefer")
    found = prefer.job["isolation"]
    assert found["asked"] == "prefer"
    words = f"isolation: {found['mechanism']}" if found["in_force"] else "NOT ISOLATED: "
    assert f"job {prefer.job['id']}: train.py ({words}" in prefer.run.err


def test_a_job_that_demands_isolation_has_it_or_does_not_run(trainer: Trainer) -> None:
    trainer.write("open('ran', 'w')", isolation="require")
    ended = trainer.project.aml("train", "--json", "-")
    job = ended.json()["job"]
    assert job["isolation"]["asked"] == "require"
    assert (ended.code == 0, (trainer.jobs[-1] / "ran").exists()) == (job["isolation"]["in_force"],) * 2
    if not ended.code:
        assert f"train.py (isolation: {job['isolation']['mechanism']}" in ended.err


@pytest.mark.parametrize("key", ["script", "evaluate"])
def test_a_script_that_is_not_there_is_a_fault_of_the_manifest(trainer: Trainer, key: str) -> None:
    trainer.write("")
    trainer.project.manifest(train={key: "absent.py"})
    message = f"aml.toml: train.{key}: there is no file absent.py"
    assert refused(trainer, 2) == ("AML_MANIFEST", message, f"correct train.{key}; it is relative to aml.toml")


def test_nox_that_only_installs_runs_no_job(trainer: Trainer) -> None:
    trainer.write("open('ran', 'w')")
    ended = trainer.project.nox("-s", "train", "--install-only").expect()
    assert "nothing run: --install-only was given" in ended.err
    assert trainer.jobs == []
