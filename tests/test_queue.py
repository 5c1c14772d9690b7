"""The line of jobs: so many run at once and no more, first come, first served, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from aml_nox import process, store
from aml_nox.train import inputs, records
from aml_nox.train.launchers import local
from aml_nox.train.queue import Line
from tests.support.processes import LIMIT, descendants, wait_until
from tests.test_train import TOLD, WAIT, Trainer, assert_gone, record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.processes import Started
    from tests.support.project import Project

pytest_plugins = ("tests.support.ready",)

#: How many jobs the large race has in CI, how many of its processes are killed; `nox -s soak` sets the count.
JOBS = int(os.environ.get("AML_TEST_COUNT", "12"))
KILLS = max(4, JOBS // 4)
RUN_AT_ONCE = 3
STATES = (records.SUCCEEDED, records.FAILED, records.CANCELLED, records.LOST)

HOLD = f"open('pid', 'w')\n{WAIT}"
FORGE = "json.dump({{**json.load(open('job.json')), 'state': '{}'}}, open('job.json', 'w'))"
SPOILT = ["removed", "half", "forged"]
#: Counts who really runs: each holds the lock of a file of its own for as long as it lives, which no kill can falsify,
#: and under one lock for all writes down, as it begins, how many of these are held.
COUNTED = """
import fcntl, hashlib, os, pathlib, sys
place = pathlib.Path(sys.argv[1])
gate = open(place / "gate", "a")
fcntl.flock(gate, fcntl.LOCK_EX)
own = open(place / (os.path.basename(os.getcwd()) + ".alive"), "w")
fcntl.flock(own, fcntl.LOCK_EX)
running = 1
for path in place.glob("*.alive"):
    if path.name != os.path.basename(own.name):
        with open(path) as other:
            try:
                fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                running += 1
with open(place / "started", "a") as stream:
    stream.write(f"{os.path.basename(os.getcwd())} {running}\\n")
fcntl.flock(gate, fcntl.LOCK_UN)
for _ in range(300):
    hashlib.sha256(bytes(1 << 20)).digest()
with open(place / "ended", "a") as stream:
    stream.write(os.path.basename(os.getcwd()) + "\\n")
"""


@dataclass(frozen=True, slots=True)
class Work:
    """A job whose worker was started by the test itself, without a front end."""

    folder: Path
    worker: local.Local

    @property
    def state(self) -> str:
        return str(records.settled(self.folder)["state"])

    @property
    def pid(self) -> int:
        return self.worker.child.pid

    @property
    def supervisor(self) -> int:
        """The process below the worker; waited for."""
        wait_until(lambda: bool(descendants(self.pid)), "the worker has a supervisor")
        return descendants(self.pid)[0]

    def has_begun(self) -> bool:
        return (self.folder / "pid").exists()

    def wait_begun(self) -> None:
        wait_until(self.has_begun, "the script runs")

    def release(self) -> None:
        """Let a script that waits end."""
        (self.folder / "stop").touch()

    def finish(self) -> dict[str, Any]:
        """Wait for the end of the worker; give the record."""
        assert self.worker.has_ended(LIMIT), "the worker ends"
        return record(self.folder)

    def kill(self) -> None:
        """SIGKILL the worker, and wait for the end of its supervisor, which ends the job."""
        self.worker.child.kill()
        self.worker.child.wait()
        wait_until(lambda: not records.is_held(self.folder), "the lock is free")


@dataclass(frozen=True, slots=True)
class Shop:
    """A project whose jobs are made in the test's own process, by the functions that `train` calls."""

    trainer: Trainer
    spec: dict[str, Any]
    values: dict[str, Any]
    started: list[Work] = field(default_factory=list)

    @classmethod
    def open(cls, trainer: Trainer, script: str) -> Shop:
        """Train once, by the command line, for the words that a job is made of; the script is then changed."""
        done = trainer.train("")
        trainer.project.write("train.py", script)
        spec = json.loads(done.read("spec.json"))
        made = {"launcher", "program", "arguments", "environment", "dataset", "inputs", "key", "timeout"}
        made |= {"max_parallel", "register"}
        return cls(trainer, spec, {name: done.job[name] for name in made})

    @property
    def project(self) -> Project:
        return self.trainer.project

    @property
    def root(self) -> store.Root:
        return store.Root(self.project.aml_root, self.project.folder)

    def create(self, *args: str, **values: object) -> records.Born:
        """Make the directory of a job that runs the script as it is now, and hold its lock."""
        spec = {name: value for name, value in self.spec.items() if name not in {"id", "schema"}}
        code = inputs.code_digest(self.root, [spec["script"]], whole=False, kit=Path(spec["kit"]))
        changed = {"args": args, "inputs": {**spec["inputs"], "code": code}}
        return records.create(self.root, spec | changed, {**self.values, **values})

    def submit(self, born: records.Born) -> Work:
        """Start the worker of a job."""
        work = Work(born.folder, local.submit(born, self.project.environment(), {}))
        self.started.append(work)
        return work

    def start(self, *args: str) -> Work:
        return self.submit(self.create(*args))

    def close(self) -> None:
        """End what still runs, and wait until it has."""
        for work in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(work.pid, signal.SIGCONT)
            process.hang_up(work.worker.child)
            work.worker.child.kill()
            work.worker.child.wait()
        for work in self.started:
            wait_until(lambda folder=work.folder: not records.is_held(folder), "everything of the job is gone")  # type: ignore[misc]


@pytest.fixture
def trainer(ready: Project) -> Trainer:
    """Give the shared project as one that trains."""
    return Trainer(ready)


@pytest.fixture
def shop(trainer: Trainer) -> Iterator[Shop]:
    """Give a shop in which one job runs at once, until it is released."""
    made = Shop.open(trainer, HOLD)
    yield made
    made.close()


def drop(born: records.Born) -> None:
    """Let the lock of a job go, as the death of whoever made it does."""
    assert born.lock is not None
    os.close(born.lock)


def limited(shop: Shop, limit: int) -> Shop:
    """Let so many run at once."""
    shop.spec["max_parallel"] = limit
    return shop


def assert_runs_at_once(shop: Shop) -> None:
    """Hold that the line is not stuck: a new job has its turn, and succeeds."""
    work = shop.start()
    work.wait_begun()
    work.release()
    assert work.finish()["state"] == "succeeded"


# --- how many


@pytest.mark.parametrize("limit", [1, 2])
def test_so_many_run_at_once_as_the_manifest_says_and_the_next_waits_for_an_end(shop: Shop, limit: int) -> None:
    *first, last = [limited(shop, limit).start() for _ in range(limit + 1)]
    for work in first:
        work.wait_begun()
    assert [work.state for work in (*first, last)] == ["running"] * limit + ["queued"]
    first[-1].release()
    last.wait_begun()
    assert first[-1].finish()["ended"] <= record(last.folder)["started"]


@pytest.mark.parametrize(
    "spoil", ["os.remove('job.json')", "open('job.json', 'w').write('{')", FORGE.format("succeeded")], ids=SPOILT
)
def test_a_job_that_spoils_its_record_keeps_its_place_until_it_is_gone(shop: Shop, spoil: str) -> None:
    shop.project.write("train.py", f"{TOLD}import json, os\n{spoil}\n{HOLD}")
    work, following = shop.start(), shop.create()
    work.wait_begun()
    line = Line(shop.root, following.folder, 1)
    assert line.ahead() == (1, 0)
    assert not line.is_free()
    work.release()
    work.finish()
    assert line.ahead() == (0, 0)
    drop(following)


def test_what_waits_or_runs_at_another_launcher_takes_no_place_here(shop: Shop) -> None:
    other, own = shop.create(launcher="slurm"), shop.create()
    drop(other)
    line = Line(shop.root, own.folder, 1)
    assert line.ahead() == (0, 0)
    records.Writer(other.folder).start()
    assert Line(shop.root, own.folder, 1).ahead() == (0, 0)
    drop(own)


# --- who is next


def test_first_come_first_served_however_fast_their_workers_start(shop: Shop) -> None:
    """The order is that of their birth: those born last have their workers first here."""
    born = [shop.create() for _ in range(5)]
    works = [shop.submit(one) for one in reversed(born)]
    for work in works:
        work.release()
    for work in works:
        assert work.finish()["state"] == "succeeded"
    begun = sorted(works, key=lambda work: str(record(work.folder)["started"]))
    assert [work.folder for work in begun] == [one.folder for one in born]


def test_the_line_is_in_order_also_after_the_clock_was_set_back(shop: Shop) -> None:
    ahead = shop.create()
    future = ahead.folder.with_name("29990101T000000.000000Z-abcdef")
    records.lock_path(ahead.folder).rename(records.lock_path(future))
    ahead.folder.rename(future)
    store.write_json(future / "job.json", {**record(future), "id": future.name})
    following = shop.start()
    assert following.folder.name > future.name
    assert Line(shop.root, following.folder, 1).ahead() == (0, 1)
    drop(ahead)
    following.wait_begun()
    assert records.settled(future)["state"] == "lost"


def test_one_that_was_killed_while_it_waited_is_lost_and_leaves_the_line(shop: Shop) -> None:
    running, waiting, last = shop.start(), shop.start(), shop.start()
    running.wait_begun()
    waiting.kill()
    assert (waiting.state, record(waiting.folder)["lost_from"]) == ("lost", "queued")
    assert record(waiting.folder)["why"] == "it was killed while it waited"
    running.release()
    last.wait_begun()
    assert not waiting.has_begun()


def test_one_whose_caller_dies_while_it_waits_is_cancelled_and_leaves_the_line(shop: Shop) -> None:
    running = shop.start()
    running.wait_begun()
    front, waiting = waits(shop)
    front.kill()
    front.wait()
    wait_until(lambda: records.settled(waiting)["state"] != "queued", "the job has left the line")
    assert (record(waiting)["state"], record(waiting)["why"]) == ("cancelled", "the caller died")
    assert "started" not in record(waiting)
    assert_gone(waiting)
    assert running.state == "running"
    running.release()
    running.finish()
    assert_runs_at_once(shop)


@pytest.mark.parametrize("front", ["aml", "nox"])
def test_ctrl_c_in_the_line_cancels_that_job_alone_and_it_is_never_run(shop: Shop, front: str) -> None:
    running = shop.start()
    running.wait_begun()
    process, waiting = waits(shop, front)
    process.send_signal(signal.SIGINT)
    run = process.finish().expect(130)
    assert "Traceback" not in run.err
    assert record(waiting)["state"] == "cancelled"
    assert "started" not in record(waiting)
    assert not (waiting / "pid").exists()
    assert_gone(waiting)
    assert running.state == "running"


def waits(shop: Shop, front: str = "aml") -> tuple[Started, Path]:
    """Start a front end whose job has to wait; give it as soon as it has said so, and the directory of the job."""
    process = shop.project.start_aml("train") if front == "aml" else shop.project.start_nox("-s", "train")
    assert process.stderr
    told = next(line for line in process.stderr if "waits for its turn" in line)
    assert told.endswith("waits for its turn: train.max-parallel is 1\n")
    return process, shop.trainer.jobs[-1]


def test_a_job_that_waits_says_so_once_and_names_the_limit(shop: Shop) -> None:
    running = shop.start()
    running.wait_begun()
    process, waiting = waits(shop)
    assert record(waiting)["state"] == "queued"
    running.release()
    wait_until((waiting / "pid").exists, "the job has its turn")
    (waiting / "stop").touch()
    assert "waits for its turn" not in process.finish().expect().err


# --- a large race


@dataclass(slots=True)
class Readers:
    """Threads that read all records all the time, as strictly as can be, and settle them."""

    root: store.Root
    count: int = 0
    torn: list[str] = field(default_factory=list)
    done: Event = field(default_factory=Event)

    def read(self) -> None:
        while not self.done.is_set():
            for folder in records.folders(self.root):
                try:
                    record(folder)
                    assert records.settled(folder)["state"] != "unreadable"
                except (ValueError, OSError, AssertionError) as error:
                    self.torn.append(f"{folder.name}: {error}")
                self.count += 2


@contextlib.contextmanager
def reading(root: store.Root) -> Iterator[Readers]:
    """Read while the block runs."""
    readers = Readers(root)
    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(readers.read) for _ in range(2)]
        try:
            yield readers
        finally:
            readers.done.set()
            for task in tasks:
                task.result()


def children(pid: int) -> list[int]:
    """The processes that a process started (Linux); one that is gone has none."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    return []


class Race:
    """Many jobs at once, some of them with a front end, and who kills which of their processes when."""

    def __init__(self, shop: Shop, place: Path, seed: int) -> None:
        self.shop, self.place = limited(shop, RUN_AT_ONCE), place
        self.random = random.Random(seed)  # noqa: S311 - nothing secret
        self.killed: dict[str, int] = {}
        place.mkdir()
        shop.project.write("train.py", COUNTED)
        shop.project.manifest(train={"args": [str(place)], "max-parallel": RUN_AT_ONCE})
        fronts = max(2, JOBS // 10)
        self.works = [shop.start(str(place)) for _ in range(JOBS // 3)]
        self.fronts = [shop.project.start_aml("train") for _ in range(fronts)]
        self.works += [shop.start(str(place)) for _ in range(JOBS - JOBS // 3 - fronts)]

    def lines(self, name: str) -> list[str]:
        path = self.place / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def left(self) -> list[Path]:
        """The jobs that are still to end."""
        return [folder for folder in self.shop.trainer.jobs if records.settled(folder)["state"] in records.LIVE]

    def is_over(self) -> bool:
        return not self.left() and all(front.poll() is not None for front in self.fronts)

    def kill_one(self) -> bool:
        """SIGKILL a front end, a worker or a supervisor, whichever is drawn among those that live; whether it did."""
        fronts = {front.pid: "front end" for front in self.fronts if front.poll() is None}
        workers = {work.pid: "worker" for work in self.works if work.worker.child.poll() is None}
        supervisors = {pid: "supervisor" for worker in workers for pid in children(worker)}
        found = [kind for kind in (fronts, workers, supervisors) if kind]
        if found:
            kind = self.random.choice(found)
            pid = self.random.choice(sorted(kind))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed[kind[pid]] = self.killed.get(kind[pid], 0) + 1
                return True
        return False

    def run(self, kills: int) -> None:
        """Kill at random instants: each after so many jobs have begun, and a random number of looks more."""
        for number in range(1, kills + 1):
            enough = number * JOBS // (kills + 2)
            wait_until(lambda enough=enough: len(self.lines("started")) >= enough or self.is_over(), "jobs begin")  # type: ignore[misc]
            for _ in range(self.random.randrange(200)):
                self.lines("started")
            wait_until(lambda: self.kill_one() or self.is_over(), "there is somebody to kill")
        wait_until(self.is_over, "all jobs have ended")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_whoever_is_killed_no_more_run_than_may_no_record_is_torn_and_the_line_moves_on(
    shop: Shop, tmp_path: Path, seed: int
) -> None:
    known = set(shop.trainer.jobs)
    with reading(shop.root) as readers:
        race = Race(shop, tmp_path / "evidence", seed)
        race.run(KILLS)
    assert readers.torn == []
    assert readers.count > 100 * JOBS
    jobs = [folder for folder in shop.trainer.jobs if folder not in known]
    told = {folder.name: record(folder) for folder in jobs}
    running = [int(line.split()[1]) for line in race.lines("started")]
    assert max(running) == RUN_AT_ONCE, running
    assert_true(told, race)
    begun = sorted((one["started"], name) for name, one in told.items() if "started" in one)
    assert all(first < second for (_, first), (_, second) in pairwise(begun)), "first come, first served"
    shop.project.write("train.py", HOLD)
    assert_runs_at_once(shop)
    figures = {state: len([one for one in told.values() if one["state"] == state]) for state in STATES}
    print(f"{figures}, killed {race.killed}, {readers.count} reads")  # noqa: T201 - figures for whoever soaks, by -rP


def assert_true(told: dict[str, dict[str, Any]], race: Race) -> None:
    """Hold that a job succeeded if, and only if, its script came to its end, and that few did not but for the kills."""
    ended, begun = set(race.lines("ended")), {line.split()[0] for line in race.lines("started")}
    succeeded = {name for name, one in told.items() if one["state"] == "succeeded"}
    assert succeeded <= ended <= begun
    assert len(told) - len(succeeded) <= sum(race.killed.values())
    assert {one["state"] for one in told.values()} <= set(STATES)
    assert {one.get("why") for one in told.values() if one["state"] == "failed"} <= {"its supervisor was killed"}
