"""The record of a job: born whole, true whatever was killed, and read by many at once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from aml_nox import liveness, store
from aml_nox.train import history, records
from tests.support.processes import Started, wait_until
from tests.support.readonly import in_read_only_tree
from tests.test_queue import FORGE, HOLD, Shop, drop
from tests.test_train import TOLD, Trainer, assert_gone, record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.project import Project

pytest_plugins = ("tests.support.ready",)

#: How often the random ones run; `nox -s soak` sets more.
COUNT = int(os.environ.get("AML_TEST_COUNT", "6"))
FUTURE = "29990101T000000.000000Z-abcdef"
VALUES = {"launcher": "local", "program": "train.py", "max_parallel": 1}
#: Makes jobs without end, as fast as it can.
MAKE = """
import pathlib, sys
from aml_nox import store
from aml_nox.train import records
folder = pathlib.Path(sys.argv[1])
while True:
    records.create(store.Root(folder / "aml", folder), {"root": ""}, {"launcher": "local"})
"""
#: Holds the lock of a job, writes down that it runs, then its end, and is gone.
END = """
import pathlib, sys
from aml_nox import liveness
from aml_nox.train import records
for job in map(pathlib.Path, sys.argv[1:]):
    lock = liveness.hold(job / records.LOCK)
    writer = records.Writer(job)
    writer.start()
    print(job, flush=True)
    sys.stdin.readline()
    writer.end("succeeded")
    import os
    os.close(lock)
"""


@pytest.fixture
def root(tmp_path: Path) -> store.Root:
    """Give a root without jobs."""
    return store.Root(tmp_path / "aml", tmp_path)


@pytest.fixture
def shop(ready: Project) -> Iterator[Shop]:
    """Give a shop in which one job runs at once, until it is released."""
    made = Shop.open(Trainer(ready), HOLD)
    yield made
    made.close()


def dead(root: store.Root, state: str = "running") -> Path:
    """Make a job that says to be in this state, of which nothing lives."""
    born = records.create(root, {}, VALUES)
    records.Writer(born.folder).change(state=state)
    drop(born)
    return born.folder


# --- birth


def test_ids_are_in_the_order_of_birth_also_where_the_clock_was_set_back(root: store.Root) -> None:
    names = [dead(root).name]
    (root.jobs / FUTURE).mkdir()
    names += [FUTURE, *(dead(root).name for _ in range(3))]
    assert names == sorted(names)
    assert [folder.name for folder in records.folders(root)] == names


def test_ids_are_in_the_order_of_birth_whoever_makes_jobs_at_once(root: store.Root) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [folder.name for folder in pool.map(lambda _: dead(root), range(32))]
    assert len(set(made)) == len(made)
    told = [record(folder)["created"] for folder in records.folders(root)]
    assert told == sorted(told)


def test_a_new_job_waits_and_is_held_by_whoever_made_it(root: store.Root) -> None:
    born = records.create(root, {"args": ["--lr"]}, VALUES)
    found = record(born.folder)
    assert found == {"schema": 1, "id": born.folder.name, "state": "queued", "created": found["created"], **VALUES}
    assert json.loads((born.folder / "spec.json").read_text())["args"] == ["--lr"]
    assert records.settled(born.folder) == found
    drop(born)
    assert records.settled(born.folder)["state"] == "lost"


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_job_is_born_whole_or_not_at_all(root: store.Root, seed: int) -> None:
    """Its maker is stopped at a random instant: what it has not finished is nobody's to remove until it is killed."""
    with Started([sys.executable, "-c", MAKE, root.folder], env=dict(os.environ), cwd=root.folder) as maker:
        wait_until(lambda: len(records.folders(root)) > 1, "jobs are made")
        let_run(random.Random(seed).uniform(0, 0.03))  # noqa: S311 - nothing secret
        os.kill(maker.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(maker.pid), "the maker stands still")
        halves = sorted(root.jobs.glob(".new-*"))
        assert not any(history.discard(root, half) for half in halves), "its maker lives"
        assert all(half.exists() for half in halves)
    for folder in records.folders(root):
        assert record(folder)["id"] == json.loads((folder / "spec.json").read_text())["id"] == folder.name
        assert {path.name for path in folder.iterdir()} == {"alive.lock", "job.json", "model", "spec.json"}
        assert records.settled(folder)["state"] == "lost"
    names = {path.name for path in root.jobs.iterdir()}
    assert names == {folder.name for folder in records.folders(root)} | {half.name for half in halves}
    found = records.leftovers(root)
    assert found[: len(halves)] == halves
    assert {path.suffix for path in found[len(halves) :]} <= {".lock"}, "of those whose directory never came"
    assert all(history.discard(root, half) for half in found)
    assert records.leftovers(root) == []
    assert records.settled(dead(root))["state"] == "lost"


def let_run(seconds: float) -> None:
    """Let others go on for so long; nothing depends on how far they come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


# --- what is lost


def test_a_job_is_lost_once_its_worker_and_its_supervisor_are_gone_and_not_before(shop: Shop) -> None:
    work = shop.start()
    work.wait_begun()
    supervisor = work.supervisor
    os.kill(supervisor, signal.SIGSTOP)  # it cannot see that its worker dies
    try:
        work.worker.child.kill()
        work.worker.child.wait()
        for _ in range(20):
            assert work.state == "running"
        assert record(work.folder)["state"] == "running"
    finally:
        os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: work.state == "lost", "nobody holds the lock")
    found = record(work.folder)
    assert (found["state"], found["lost_from"], found["why"]) == (
        "lost",
        "running",
        "its worker was gone before it told of the end",
    )
    assert found["started"] < found["ended"]
    assert_gone(work.folder)


def test_a_job_whose_supervisor_was_killed_has_failed_and_its_worker_says_so(shop: Shop) -> None:
    work = shop.start()
    work.wait_begun()
    os.kill(work.supervisor, signal.SIGKILL)
    found = work.finish()
    assert (found["state"], found["why"]) == ("failed", "its supervisor was killed")
    assert_gone(work.folder)


@pytest.mark.parametrize("state", ["succeeded", "failed", "timeout", "cancelled", "lost"])
def test_what_has_ended_stays_as_it_ended(root: store.Root, state: str) -> None:
    folder = dead(root, state)
    before = record(folder)
    assert records.settled(folder) == before == record(folder)


def test_a_job_that_waits_at_another_launcher_is_not_lost_though_nobody_holds_its_lock(root: store.Root) -> None:
    folder = dead(root, "queued")
    records.Writer(folder).change(launcher="slurm")
    assert records.settled(folder)["state"] == "queued"
    records.Writer(folder).change(state="running")
    assert records.settled(folder)["state"] == "lost"


# --- many readers


def test_who_reads_is_never_taken_for_the_holder_by_who_reads_besides(root: store.Root) -> None:
    """While one looks, and while it corrects the record, another sees the same truth."""
    folder = dead(root)
    with liveness.asked(folder / "alive.lock"):
        assert records.settled(folder)["state"] == "lost"
    barrier = Barrier(4)

    def look(_: int) -> str:
        barrier.wait()
        return str(records.settled(folder)["state"])

    with ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            records.Writer(folder).change(state="running")
            assert list(pool.map(look, range(4))) == ["lost"] * 4


def test_no_reader_ever_writes_over_the_end_that_a_worker_recorded(root: store.Root) -> None:
    """A reader that saw `running` just before the end, and the lock free just after it, looks again."""
    folders = [dead(root, "queued") for _ in range(60)]
    for folder in folders:
        records.Writer(folder).change(launcher="slurm")  # so that it waits for its worker
    argv = [sys.executable, "-c", END, *map(str, folders)]
    worker = Started.__mro__[1](argv, cwd=root.folder, stdin=-1, stdout=-1, text=True)
    with worker, ThreadPoolExecutor(3) as pool:
        for folder in folders:
            assert worker.stdout.readline().strip() == str(folder)
            looks = [pool.submit(look_until_ended, folder) for _ in range(3)]
            worker.stdin.write("\n")
            worker.stdin.flush()
            assert [look.result() for look in looks] == ["succeeded"] * 3
        worker.stdin.close()
    assert {record(folder)["state"] for folder in folders} == {"succeeded"}


def look_until_ended(folder: Path) -> str:
    while (state := str(records.settled(folder)["state"])) == "running":
        pass
    return state


def test_in_a_tree_that_nobody_can_write_a_lost_job_is_told_of_as_truly(ready: Project) -> None:
    folder = dead(store.Root(ready.aml_root, ready.folder))
    run = in_read_only_tree(ready, "-m", "aml_nox", "jobs", "--json", "-").expect()
    (job,) = run.json()["jobs"]
    assert (job["id"], job["state"], job["lost_from"]) == (folder.name, "lost", "running")
    assert record(folder)["state"] == "running"


# --- what a job does to it

KNOWN = ("id", "created", "program", "environment", "inputs", "key", "max_parallel", "launcher", "isolation")
SPOILS = {
    "record removed": "os.remove('job.json')",
    "record half": "open('job.json', 'w').write('{')",
    "record forged": FORGE.format("succeeded"),
    "record a folder": "os.remove('job.json'); os.makedirs('job.json/x')",
    "record a link": "os.remove('job.json'); os.symlink('nowhere', 'job.json')",
    "record a pipe": "os.remove('job.json'); os.mkfifo('job.json')",
    "lock removed": "os.remove('alive.lock')",
    "lock replaced": "os.remove('alive.lock'); open('alive.lock', 'w')",
    "spec removed": "os.remove('spec.json')",
    "spec forged": "open('spec.json', 'w').write('{}')",
    "all removed": "[os.remove(name) for name in os.listdir() if os.path.isfile(name)]",
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=[name.replace(" ", "-") for name in SPOILS])
def test_whatever_a_job_does_to_its_files_its_record_is_true_in_the_end(shop: Shop, spoil: str) -> None:
    """Also where others read, and correct, what they find. It waits until its worker has told of the start."""
    shop.project.write("train.py", f"import json, os\n{TOLD}{spoil}\n{HOLD}")
    work = shop.start()
    work.wait_begun()
    records.settled(work.folder)
    shop.project.aml("jobs").expect()
    work.release()
    found = work.finish()
    assert (found["state"], found["exit_status"]) == ("succeeded", 0)
    assert {name: found[name] for name in KNOWN if name in work_values(shop)} == work_values(shop)
    assert found["started"] < found["ended"]
    assert records.settled(work.folder) == found


def work_values(shop: Shop) -> dict[str, Any]:
    return {name: shop.values[name] for name in KNOWN if name in shop.values}


def test_a_job_that_puts_a_file_in_the_place_of_its_directory_has_a_record(shop: Shop) -> None:
    shop.project.write("train.py", f"{TOLD}import os, shutil\njob = os.getcwd()\nshutil.rmtree(job)\nopen(job, 'w')")
    assert shop.start().finish()["state"] == "succeeded"


FORGED = [
    '{"schema": 1, "state": "running"}',
    '{"schema": 1, "state": "succeeded", "id": "../../x"}',
    '{"schema": 1, "state": "dancing", "id": "ID"}',
    '{"schema": 1, "state": "failed", "id": "ID", "isolation": "none", "gates": [1], "metrics": 7}',
    '{"schema": 1, "state": "failed", "id": "ID", "isolation": {}, "environment": {}, "duration": "long"}',
    '{"schema": 1, "state": "succeeded", "id": "ID", "key": {}, "outputs": [], "registered": 1, "inputs": []}',
    '{"schema": 1, "state": "queued", "id": "ID", "launcher": [], "created": 1}',
    '{"schema": 1, "state": ["running"], "id": "ID"}',
    "[" * 100_000,
    "7",
]


@pytest.mark.parametrize("text", FORGED, ids=range(len(FORGED)))
def test_no_record_that_a_job_forged_disturbs_those_who_read_it(ready: Project, text: str) -> None:
    folder = dead(store.Root(ready.aml_root, ready.folder))
    (folder / "job.json").write_text(text.replace("ID", folder.name))
    (job,) = ready.aml("jobs", "--json", "-").expect().json()["jobs"]
    assert (job["id"], job["state"]) == (folder.name, "unreadable")
    assert "unreadable" in ready.aml("jobs", folder.name).expect().err
    ready.aml("jobs", "--follow", folder.name).expect(7)
    assert ready.aml("status", "--json", "-").expect().json()["jobs"] == {"unreadable": 1}
    ready.aml("clean", "--dry-run").expect()
    shutil.rmtree(folder)
