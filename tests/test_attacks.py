"""Faults that an outsider found in training, each held by the least that shows it, with real jobs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aml_nox import process, store
from aml_nox.screen import Screen
from aml_nox.train import isolation, job, records, stage
from aml_nox.train.launchers import local
from aml_nox.train.queue import Line
from tests.support.oracle import needs
from tests.support.processes import LIMIT, run, wait_until
from tests.test_queue import HOLD, Shop, Work, drop
from tests.test_train import TELLING, TOLD, Trainer, assert_gone, record
from tests.test_training import ACCURATE, CONTRACT, MODEL, NAME, evaluated, metrics, refused, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.processes import Started
    from tests.support.project import Project

pytest_plugins = ("tests.support.ready",)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc, namespaces and locks that are handed on")

SPARSE = 1 << 40
#: What a script needs to find its project from its own directory.
HERE = "import json, os, pathlib, shutil, sys\nproject = pathlib.Path(os.environ['AML_ROOT']).parent\n"


@pytest.fixture
def trainer(ready: Project) -> Iterator[Trainer]:
    """Give the shared project as one that trains, with no model in its registry."""
    yield Trainer(ready)
    ready.close()
    shutil.rmtree(ready.aml_root / "models", ignore_errors=True)


@pytest.fixture
def shop(trainer: Trainer) -> Iterator[Shop]:
    """Give a shop in which one job runs at once, until it is released."""
    made = Shop.open(trainer, HOLD)
    yield made
    made.close()


@pytest.fixture
def elsewhere(trainer: Trainer) -> Path:
    """Give a folder of the user's with a file in it, beside what is aml-nox's."""
    return trainer.project.write("elsewhere/theirs.txt", "theirs").parent


def needs_namespaces(found: Any) -> None:  # noqa: ANN401 - a record's part
    """Skip a test of what only namespaces do, where they are refused."""
    if found["mechanism"] != isolation.NAMESPACE:
        pytest.skip(f"no namespaces here: {found['refused']}")


def tell_all(trainer: Trainer, *states: str) -> None:
    """Hold that everything which looks at all jobs does, and that the list says these states, oldest first."""
    listed = trainer.project.aml("jobs", "--json", "-").expect().json()["jobs"]
    assert [one["state"] for one in listed] == list(states)
    assert trainer.counts() == {state: states.count(state) for state in states}
    trainer.project.aml("clean").expect()


# --- requests that come early, twice, or late


@contextlib.contextmanager
def said(data: bytes) -> Iterator[int]:
    """Give the reading end of a pipe in which this lies already, and that nobody closes."""
    read, write = os.pipe()
    try:
        os.write(write, data)
        yield read
    finally:
        os.close(write)
        os.close(read)


def test_a_worker_is_cancelled_by_a_request_that_lay_there_before_it_started(shop: Shop) -> None:
    born = shop.create()
    hello = json.dumps({"lock": born.lock, "pass": {}}).encode()
    assert born.lock is not None
    with said(hello + b"\nT") as stdin:
        argv = [sys.executable, "-P", "-m", "aml_nox.train.worker", str(born.folder)]
        child = process.start(argv, env=shop.project.environment(), cwd=born.folder, stdin=stdin, kept=[born.lock])
        drop(born)
        shop.started.append(work := Work(born.folder, local.Local(child)))
        found = work.finish()
    assert (found["state"], found["why"]) == ("cancelled", "the caller asked for it")


@pytest.mark.parametrize("mechanism", [isolation.NAMESPACE, isolation.NONE])
def test_a_supervisor_asks_a_job_to_end_that_it_had_not_started_when_it_was_told(
    tmp_path: Path, mechanism: str
) -> None:
    """The job has an hour to end by itself, and is asked so that it does at once."""
    argv = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    order = {"mechanism": mechanism, "argv": argv, "env": {}, "cwd": str(tmp_path), "grace": 3600.0, "kept": []}
    words = [sys.executable, "-I", "-S", "-X", "utf8", "-c", stage._BOOT, stage.PACKAGES]  # noqa: SLF001 - as it is started
    with said(json.dumps(order | {"home": str(tmp_path / "home")}).encode() + b"\nT") as stdin:
        child = subprocess.Popen(
            words, env={}, cwd="/", stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            out, err = child.communicate(timeout=LIMIT)
        finally:
            child.kill()
    events = [json.loads(line) for line in out.splitlines() if line]
    if events and events[0]["event"] == "refused":
        pytest.skip(f"no namespaces here: {events[0]['error']}")
    assert {"event": "exit", "status": -signal.SIGTERM} in events, (events, err)


def test_who_asks_twice_for_the_end_of_a_job_does_not_wait_for_its_grace(trainer: Trainer) -> None:
    """And no request stays for whoever looks into the directory later."""
    trainer.write(TELLING, grace="1h")
    front, folder = trainer.start()
    first = trainer.project.start_aml("jobs", "--cancel", folder.name)
    wait_until((folder / "told").exists, "the script was asked to end")
    trainer.project.aml("jobs", "--cancel", folder.name).expect()
    first.finish().expect()
    front.finish().expect(7)
    assert (record(folder)["state"], record(folder)["why"]) == ("cancelled", "it was cancelled")
    assert not (folder / "cancel").exists()
    assert_gone(folder)


def test_after_ctrl_c_one_line_says_which_job_is_cancelled_and_where_it_lies(trainer: Trainer) -> None:
    trainer.write(HOLD)
    front, folder = trainer.start()
    front.send_signal(signal.SIGINT)
    lines = front.finish().expect(130).err.splitlines()
    assert [line for line in lines if "cancelled" in line] == [f"job {folder.name} is cancelled: {folder}"]


def by_ctrl_c(_trainer: Trainer, front: Started, _folder: Path) -> None:
    front.send_signal(signal.SIGINT)


def by_verb(trainer: Trainer, _front: Started, folder: Path) -> None:
    trainer.project.aml("jobs", "--cancel", folder.name).expect()


@pytest.mark.parametrize(("ask", "code"), [(by_ctrl_c, 130), (by_verb, 7)], ids=["ctrl-c", "jobs --cancel"])
def test_a_job_that_waits_to_register_its_model_can_be_cancelled(
    trainer: Trainer, ask: Callable[[Trainer, Started, Path], None], code: int
) -> None:
    trainer.write(f"{MODEL}{CONTRACT}open('pid', 'w')\n", register=NAME)
    root = store.Root(trainer.project.aml_root, trainer.project.folder)
    with store.lock(root, "model-doubler", what="the model", wait=LIMIT, screen=Screen(lambda _: None)):
        front, folder = trainer.start()
        wait_until(lambda: record(folder).get("exit_status") == 0, "the script has ended")
        ask(trainer, front, folder)
        front.finish().expect(code)
    assert record(folder)["state"] == "cancelled"
    assert versions(trainer) == []


# --- what a job does to what says that it lives

SPOILT = {
    "no lock": "os.unlink('alive.lock')\n",
    "a pipe": "os.unlink('alive.lock')\nos.mkfifo('alive.lock')\n",
    "a folder": "os.unlink('alive.lock')\nos.mkdir('alive.lock')\n",
}


def assert_keeps_its_place(shop: Shop, work: Work, state: str) -> None:
    """Hold that a job is told of in this state, that the next waits for its end, and that its record is then true."""
    following = shop.create()
    listed = shop.project.aml("jobs", "--json", "-").expect().json()["jobs"]
    assert [one["state"] for one in listed if one["id"] == work.folder.name] == [state]
    line = Line(shop.root, following.folder, 1)
    assert (line.ahead(), line.is_free()) == ((1, 0), False)
    second = shop.submit(following)
    work.release()
    found = work.finish()
    assert (found["state"], found["exit_status"], found["id"]) == ("succeeded", 0, work.folder.name)
    second.wait_begun()
    assert record(second.folder)["started"] >= found["ended"]
    second.release()
    assert second.finish()["state"] == "succeeded"


@pytest.mark.parametrize("kind", SPOILT)
def test_a_job_that_takes_its_lock_away_runs_all_the_same_and_keeps_its_place(shop: Shop, kind: str) -> None:
    shop.project.write("train.py", f"import os\n{SPOILT[kind]}{HOLD}")
    work = shop.start()
    work.wait_begun()
    shop.project.write("train.py", HOLD)
    assert_keeps_its_place(shop, work, "running")


def test_a_job_that_empties_its_directory_keeps_its_place(shop: Shop) -> None:
    """Of its record nothing is left, and what it was is not known any more until it ends."""
    again = "here = os.getcwd()\nshutil.rmtree(here)\nos.mkdir(here)\nos.chdir(here)\n"
    shop.project.write("train.py", f"import os, shutil\n{TOLD}{again}{HOLD}")
    work = shop.start()
    work.wait_begun()
    shop.project.write("train.py", HOLD)
    assert_keeps_its_place(shop, work, "unreadable")


def test_a_job_whose_directory_is_a_link_to_elsewhere_writes_nothing_there(trainer: Trainer, elsewhere: Path) -> None:
    moves = (
        "here = os.environ['AML_JOB_DIR']\nos.rename(here, project / 'moved')\nos.symlink(project / 'elsewhere', here)"
    )
    done = trainer.train(TOLD + HERE + moves)
    assert [path.name for path in elsewhere.iterdir()] == ["theirs.txt"]
    assert not done.folder.is_symlink()
    assert record(done.folder)["state"] == "succeeded"


@pytest.mark.parametrize(
    "name",
    [
        "99999999T999999.999999Z-000000",
        "99991231T235959.999999Z-000000",
        "20260101T000000.000000Z-000000".translate({ord("0"): "\u0660", ord("2"): "\u0662"}),
        "\uff19\uff19\uff19\uff19\uff11\uff12\uff13\uff11T235959.999999Z-000000",
    ],
    ids=["no-date", "last-moment", "arabic-digits", "wide-digits"],
)
def test_a_folder_that_looks_like_a_job_disturbs_no_job(trainer: Trainer, name: str) -> None:
    foreign = trainer.project.aml_root / "jobs" / name
    foreign.mkdir(parents=True)
    done = [trainer.train("").job["id"] for _ in range(3)]
    assert sorted(done) == done
    assert all(one.startswith("2") for one in done)
    tell_all(trainer, *["succeeded"] * 3, *["unreadable"] * name.isascii())
    assert foreign.exists()


def grow(path: Path) -> None:
    """Make a file that is larger than any memory, and takes no room; skip where the file system has none."""
    try:
        os.truncate(path, SPARSE)
    except OSError as error:
        pytest.skip(f"no such file here: {error}")


def test_a_record_of_any_size_disturbs_nobody(trainer: Trainer) -> None:
    """Neither another's, nor the own one, which is written anew when the job ends."""
    done = trainer.train("")
    grow(done.folder / "job.json")
    tell_all(trainer, "unreadable")
    again = trainer.train(f"import os\nos.truncate('job.json', {SPARSE})")
    assert record(again.folder)["state"] == "succeeded"
    tell_all(trainer, "unreadable", "succeeded")


def test_a_job_whose_record_has_any_size_while_it_runs_keeps_its_place(shop: Shop) -> None:
    shop.project.write("train.py", f"{TOLD}import os\nos.truncate('job.json', {SPARSE})\n{HOLD}")
    work = shop.start()
    work.wait_begun()
    shop.project.write("train.py", HOLD)
    assert_keeps_its_place(shop, work, "unreadable")


# --- what a job does to those who watch it

RUBBISH = {
    "no JSON": b"nonsense\n",
    "not UTF-8": b"\xff\xfe\n",
    "an array": b"[1]\n",
    "a number": b"1\n",
    "null": b"null\n",
    "a text": b'"x"\n',
    "pairs": b'[["event", 1]]\n',
    "deep": b"[" * 100_000 + b"\n",
    "half a line": b'{"event"',
}


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("kind", RUBBISH)
def test_what_a_job_writes_between_its_supervisors_events_changes_nothing(
    trainer: Trainer, kind: str, status: int
) -> None:
    """Only where nothing holds it apart from its supervisor it can."""
    script = f"import os\nwith open(f'/proc/{{os.getppid()}}/fd/1', 'wb') as pipe:\n    pipe.write({RUBBISH[kind]!r})\n"
    done = trainer.train(f"{script}raise SystemExit({status})", code=7 if status else 0, isolation="off")
    assert (done.job["state"], done.job["exit_status"]) == ("failed" if status else "succeeded", status)


REACHES = """
import ctypes, errno, json, os, signal
found = {}
for path, mode in (("/proc/1/mem", os.O_RDWR), ("/proc/1/fd/1", os.O_WRONLY),
                   ("/proc/sys/kernel/core_pattern", os.O_WRONLY)):
    try:
        os.close(os.open(path, mode))
        found[path] = "opened"
    except OSError as error:
        found[path] = errno.errorcode[error.errno]
libc = ctypes.CDLL(None)
child = os.fork()
if child == 0:
    traced = libc.ptrace(0, 0, 0, 0) == 0  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGSTOP) if traced else os._exit(1)
    os._exit(0)
status = os.waitpid(child, 0)[1]  # that a child is stopped is told, without being asked for, of a traced one alone
found["traced"] = os.WIFSTOPPED(status)
if found["traced"]:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
json.dump(found, open("found.json", "w"))
"""


def test_in_namespaces_root_does_not_get_at_the_first_process_or_the_machine_and_can_still_debug(
    trainer: Trainer,
) -> None:
    if os.geteuid():
        pytest.skip("these doors are open for root alone")
    done = trainer.train(REACHES)
    needs_namespaces(done.job["isolation"])
    if done.job["isolation"].get("proc"):
        pytest.skip("there is no /proc of its own here")
    found = json.loads(done.read("found.json"))
    assert found.pop("traced") is True
    denied = {errno.errorcode[number] for number in (errno.EACCES, errno.EPERM, errno.EROFS)}
    assert {path: answer for path, answer in found.items() if answer not in denied} == {}


# --- what judges a model, and what is told of it


def kit_of_its_own(trainer: Trainer) -> None:
    """Give the project a kit of its own, a copy of ours."""
    shutil.copytree(job.KIT, trainer.project.folder / "own", dirs_exist_ok=True)


@pytest.mark.parametrize("name", ["evaluate.py", "own/amlkit.py", "own/another.py"])
@pytest.mark.parametrize("kind", ["written", "touched"])
def test_a_model_is_judged_by_nothing_that_changed_while_it_was_trained(trainer: Trainer, name: str, kind: str) -> None:
    """A touched file has not changed."""
    kit_of_its_own(trainer)
    trainer.project.write("own/another.py", "")
    change = "open(path, 'a').write('# better\\n')" if kind == "written" else "os.utime(path, (1, 1))"
    script = f"{MODEL}{CONTRACT}{HERE}path = project / {name!r}\n{change}\n"
    code, caller = 7 if kind == "written" else 0, {"AML_PYHOME": "own"}
    done = evaluated(trainer, script, metrics(accuracy=1.0), code=code, caller=caller, gates=[ACCURATE], register=NAME)
    assert versions(trainer) == ([] if code else [done.job["id"]])
    if code:
        assert done.run.json()["error"]["code"] == "AML_JOB_FAILED"
        assert done.job["why"] == "evaluate.py, or the kit, changed while the training ran"


def test_an_evaluation_is_in_no_network_of_the_callers_as_its_training_is(trainer: Trainer) -> None:
    script = "import os\nprint(os.readlink('/proc/self/ns/net'))\n"
    needs_namespaces(trainer.train("").job["isolation"])
    done = evaluated(trainer, script, script)
    here = os.readlink("/proc/self/ns/net")  # noqa: PTH115 - a name, not a path
    seen = done.read("log.txt").split()
    assert (len(seen), here in seen) == (2, False)


def test_of_a_model_that_is_empty_the_gates_are_told_all_the_same(trainer: Trainer) -> None:
    done = trainer.train(metrics(accuracy=1.0) + CONTRACT, code=7, gates=[ACCURATE], register=NAME)
    assert (done.job["exit_status"], done.job["metrics"]) == (0, {"accuracy": 1.0})
    assert [one["passed"] for one in done.job["gates"]] == [True]
    assert done.job["error"]["code"] == "JOB_FAILED"
    assert "accuracy  1.0    >= 0.95   passed" in done.run.err
    assert versions(trainer) == []


@pytest.mark.usefixtures("elsewhere")
def test_what_a_link_in_the_place_of_the_model_leads_to_is_no_output(trainer: Trainer) -> None:
    done = trainer.train(
        f"{HERE}os.rmdir('model')\nos.symlink(project / 'elsewhere', 'model')\nopen('metrics.json', 'w').write('{{}}')"
    )
    assert done.job["outputs"] == {"metrics.json": 2}


# --- calls and records that make no sense


@pytest.mark.parametrize("words", [("",), ("--follow", ""), ("--cancel", "")], ids=["told", "followed", "cancelled"])
def test_an_empty_name_is_no_name_of_a_job(trainer: Trainer, words: tuple[str, ...]) -> None:
    trainer.train("")
    ended = trainer.project.aml("jobs", *words).expect(2)
    assert ended.err.startswith("AML_USAGE: the id of a job is empty\n")


GATE = {"metric": "m", "passed": True, "value": 1, "demand": ">= 0", "why": "1 >= 0"}
FORGED: dict[str, tuple[dict[str, Any], int]] = {
    "unknown error": ({"state": "failed", "error": {"code": "__doc__", "message": "m", "hint": None}}, 7),
    "timeout without number": ({"state": "timeout", "timeout": None}, 7),
    "registered without name": ({"registered": "1", "register": None}, 0),
    "gate with another name": ({"gates": [{**GATE, "more": 1}]}, 0),
    "gates that are none": ({"gates": None}, 0),
}


@pytest.mark.parametrize("kind", FORGED)
def test_an_ended_record_that_a_job_forged_is_told_as_far_as_it_makes_sense(trainer: Trainer, kind: str) -> None:
    changes, code = FORGED[kind]
    done = trainer.train("")
    store.write_json(done.folder / "job.json", {**done.job, **changes})
    told = trainer.project.aml("jobs", done.job["id"]).expect()
    followed = trainer.project.aml("jobs", "--follow", done.job["id"]).expect(code)
    assert "Traceback" not in told.err + followed.err


# --- what the manifest and the caller say


def test_a_path_of_the_users_own_comes_after_the_kit(trainer: Trainer) -> None:
    trainer.project.write("lib/amlkit.py", "raise SystemExit('the wrong one')")
    trainer.project.write("lib/helper.py", "RATE = 0.25")
    path = str(trainer.project.folder / "lib")
    done = trainer.train("import amlkit, helper; amlkit.save_metrics(rate=helper.RATE)", env={"PYTHONPATH": path})
    assert done.job["metrics"] == {"rate": 0.25}


def test_a_path_that_is_empty_does_not_let_a_job_start_programs_from_where_it_is(trainer: Trainer) -> None:
    """An empty entry of PATH is the current folder."""
    done = trainer.train("import os; print(os.environ['PATH'])", caller={"PATH": ""})
    assert "" not in done.read("log.txt").rstrip("\n").split(os.pathsep)


@pytest.mark.parametrize("folder", [".", "aml", "around"])
def test_data_that_every_job_would_change_is_a_fault_of_the_manifest(trainer: Trainer, folder: str) -> None:
    if folder == "around":  # by a link, and from above
        (trainer.project.folder / folder).symlink_to(trainer.project.folder.parent)
    trainer.write("", dataset=folder)
    code, message, _ = refused(trainer, 2)
    assert code == "AML_MANIFEST"
    assert message == f"aml.toml: train.dataset: {folder} holds {trainer.project.aml_root}, which every job changes"


# --- folders that are elsewhere, and full


def test_the_folder_of_all_jobs_may_be_a_link(trainer: Trainer, tmp_path: Path) -> None:
    jobs = trainer.project.aml_root / "jobs"
    shutil.rmtree(jobs, ignore_errors=True)
    jobs.symlink_to(tmp_path)
    try:
        done = trainer.train("import os; print(os.getcwd())")
        assert done.job["state"] == "succeeded"
        assert (tmp_path / done.job["id"] / "log.txt").read_text() == f"{tmp_path / done.job['id']}\n"
        tell_all(trainer, "succeeded")
    finally:
        jobs.unlink()


#: Run as root in a mount namespace of its own: the folder of all jobs becomes a disk with no room left.
FULL = """
import json, pathlib, shutil, subprocess, sys
jobs, template, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", jobs], check=True)
name = pathlib.Path(template).name
shutil.copytree(template, f"{jobs}/{name}")
pathlib.Path(f"{jobs}/.new-0").mkdir()
try:
    with open(f"{jobs}/ballast", "wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
except OSError:
    pass
runs = []
for verb in ("jobs", "status", "clean"):
    done = subprocess.run([*command, verb, "--json", "-"], capture_output=True, text=True)
    runs.append([done.returncode, done.stdout, done.stderr])
print(json.dumps([runs, pathlib.Path(f"{jobs}/.new-0").exists()]))
"""


def test_on_a_full_disk_jobs_are_told_truly_and_what_is_left_is_removed(trainer: Trainer, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("mounting a small disk needs root")
    done = trainer.train("")
    template = shutil.copytree(done.folder, tmp_path / done.folder.name)
    store.write_json(template / "job.json", {**done.job, "state": records.RUNNING})
    command = [sys.executable, "-m", "aml_nox"]
    inner = [sys.executable, "-c", FULL, str(done.folder.parent), str(template), *command]
    ended = run([needs("unshare"), "-m", *inner], env=trainer.project.environment(), cwd=trainer.project.folder)
    runs, is_left = json.loads(ended.expect().out)
    assert [code for code, _, _ in runs] == [0, 0, 0], runs
    assert [one["state"] for one in json.loads(runs[0][1])["jobs"]] == ["lost"]
    assert json.loads(runs[1][1])["jobs"] == {"lost": 1}
    assert not is_left
