"""The record of a job: job.json in its directory, always whole, and true whatever was killed.

A job is queued → running → succeeded | failed | timeout | cancelled | lost. Its process holds a lock from the
directory's birth on, and its supervisor after it: one that is queued or running while that is free is lost, and nothing
of it runs any more. The lock lies apart, so that a job which clears its directory keeps it; `alive.lock` there is the
same file. Ids are in the order of their birth, also where the clock was set back.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aml_nox import liveness, store
from aml_nox.screen import Screen

QUEUED, RUNNING = "queued", "running"
SUCCEEDED, FAILED, TIMEOUT, CANCELLED, LOST = "succeeded", "failed", "timeout", "cancelled", "lost"
LIVE = (QUEUED, RUNNING)
LOCAL = "local"

LOCK, RECORD, SPEC, LOG, EVENTS, METRICS = (
    "alive.lock",
    "job.json",
    "spec.json",
    "log.txt",
    "events.jsonl",
    "metrics.json",
)
CANCEL = "cancel"
"""A file in the directory by which anybody, on any machine, asks for the end of the job."""

_STATES = (*LIVE, SUCCEEDED, FAILED, TIMEOUT, CANCELLED, LOST)
_TEXT = str | None
_SHAPE = {
    **dict.fromkeys(("created", "launcher", "program", "key", "why", "register", "registered"), _TEXT),
    "state": str,
    "max_parallel": int | None,
    "timeout": float | int | None,
    "duration": float | int | None,
    **dict.fromkeys(("environment", "inputs", "isolation", "metrics", "outputs", "error"), dict | None),
    "gates": list | None,
}
"""What every reader may rely on, beside the id; a name that is not there is None."""
_WITHIN = {
    "environment": {"path": str, "key": str},
    "isolation": {"asked": str, "mechanism": _TEXT, "in_force": bool, "refused": [{"mechanism": str, "error": str}]},
    "error": {"code": str, "message": str, "hint": _TEXT},
    "gates": [{"metric": str, "passed": bool, "value": float | int | None, "demand": str, "why": str}],
}
"""And in these, where they are."""

ID = re.compile(r"(\d{8}T\d{6}\.\d{6})Z-[0-9a-f]{6}", re.ASCII)
"""How a job is called; what it registers, too."""

_STAMP = "%Y%m%dT%H%M%S.%f"
_NEW = ".new-"
_TRIES = 10
_LARGEST = 64 << 20  # bytes of a record: a job can put anything in its place
_LOCK_WAIT = 60.0
_STARTING = 60.0  # seconds in which a worker takes its lock, where it cannot be handed one
_SILENT = Screen(lambda _: None)


@dataclass(frozen=True, slots=True)
class Born:
    """A new job: its directory, and the descriptor that holds its lock, to be handed on to its process and closed.

    There is none where it cannot be handed on: then the job's process takes the lock when it starts.
    """

    folder: Path
    lock: int | None


def create(root: store.Root, spec: Mapping[str, Any], values: Mapping[str, Any]) -> Born:
    """Make the directory of a job, queued and held; nobody ever sees half of it."""
    root.jobs.mkdir(parents=True, exist_ok=True)
    new = root.jobs / f"{_NEW}{secrets.token_hex(4)}"
    with queue_lock(root):  # whoever removes leftovers holds it too
        folder = root.jobs / _next_id(root)
        lock = liveness.hold(lock_path(folder)) if liveness.CAN_BE_HANDED_ON else None
        try:
            _fill(new, folder, spec, values)
            new.rename(folder)
        except BaseException:
            store.remove(new)
            if lock is not None:
                os.close(lock)
            raise
    return Born(folder, lock)


def _fill(new: Path, folder: Path, spec: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    (new / "model").mkdir(parents=True)
    with contextlib.suppress(OSError):  # a file system without hard links
        os.link(lock_path(folder), new / LOCK)
    store.write_json(new / SPEC, {"id": folder.name, **as_utf8(spec)})
    born = {"id": folder.name, "state": QUEUED, "created": store.now()}
    store.write_json(new / RECORD, born | as_utf8(values))


def lock_path(folder: Path) -> Path:
    """The lock that says that a job lives, beside the root's others."""
    return folder.parent.parent / "runtime" / "locks" / f"job-{folder.name}.lock"


def as_utf8(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    """A value whose texts are what they are in UTF-8: the worker reads paths so, whatever our own locale knows."""
    match value:
        case str():
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
        case Mapping():
            return {name: as_utf8(one) for name, one in value.items()}
        case list() | tuple():
            return [as_utf8(one) for one in value]
    return value


@contextlib.contextmanager
def queue_lock(root: store.Root) -> Iterator[None]:
    """Hold what orders the jobs of a root; for moments only, so that nobody is told of the wait."""
    with store.lock(root, "queue", what="the queue of jobs", wait=_LOCK_WAIT, screen=_SILENT):
        yield


def _next_id(root: store.Root) -> str:
    """An id that sorts behind all others; its time is UTC to the microsecond."""
    born = [moment for path in folders(root) if (moment := _birth(path.name))]
    moment = max([datetime.now(UTC), *(one + timedelta(microseconds=1) for one in born)])
    return f"{moment.strftime(_STAMP)}Z-{secrets.token_hex(3)}"


def _birth(name: str) -> datetime | None:
    """When a job was born, by its id; None for a folder that only looks like one, and one of the last year there is."""
    match = ID.fullmatch(name)
    try:
        moment = datetime.strptime(match[1], _STAMP).replace(tzinfo=UTC) if match else None
    except ValueError:
        return None
    return moment if moment and moment.year < MAXYEAR else None


def folders(root: store.Root) -> list[Path]:
    """The directories of all jobs, oldest first."""
    if not root.jobs.is_dir():
        return []
    return sorted(path for path in root.jobs.iterdir() if ID.fullmatch(path.name))


def leftovers(root: store.Root) -> list[Path]:
    """Directories of jobs that were never born, and locks of jobs that are gone.

    One that is being made at this moment is among them: whoever removes it holds the queue's lock, and asks again.
    """
    locks = [path for path in _locks_alone(root) if not liveness.is_held(path)]
    return [*sorted(root.jobs.glob(f"{_NEW}*")), *locks]


def _locks_alone(root: store.Root) -> list[Path]:
    locks = sorted((root.runtime / "locks").glob("job-*.lock"))
    return [path for path in locks if not (root.jobs / path.stem.removeprefix("job-")).exists()]


def read(folder: Path) -> dict[str, Any]:
    """The record, or one of the state `unreadable`: a job may put anything in its place."""
    record = store.read_json(folder / RECORD, largest=_LARGEST)
    return record if record and _is_sound(record, folder.name) else {"id": folder.name, "state": "unreadable"}


def _is_sound(record: Mapping[str, Any], name: str) -> bool:
    within = {name: shape for name, shape in _WITHIN.items() if record.get(name) is not None}
    return record.get("id") == name and _fits(record, _SHAPE | within) and record["state"] in _STATES


def _fits(value: Any, shape: Any) -> bool:  # noqa: ANN401 - JSON values
    """Whether a JSON value has a shape: a type, a list of one shape, or an object with these names at least."""
    match shape:
        case dict():
            return isinstance(value, dict) and all(_fits(value.get(name), one) for name, one in shape.items())
        case [one]:
            return isinstance(value, list) and all(_fits(part, one) for part in value)
    return isinstance(value, shape)


def settled(folder: Path) -> dict[str, Any]:
    """The record as it is true now: one that says queued or running of a job whose processes are gone is corrected."""
    record = read(folder)
    if record["state"] not in LIVE or _is_awaited(record):
        return record
    with liveness.asked(lock_path(folder)) as free:
        return _written_off(folder) if free else record


def _is_awaited(record: Mapping[str, Any]) -> bool:
    """Whether a job waits for the process that will hold its lock: a launcher knows it, or it is just starting."""
    if record["state"] != QUEUED:
        return False
    return record.get("launcher", LOCAL) != LOCAL or not (liveness.CAN_BE_HANDED_ON or _is_old(record))


def _is_old(record: Mapping[str, Any]) -> bool:
    born = datetime.fromisoformat(str(record["created"]))
    return datetime.now(UTC) - born > timedelta(seconds=_STARTING)


def _written_off(folder: Path) -> dict[str, Any]:
    # Read again: its end may have been written between the look at the record and the look at the lock.
    record = read(folder)
    if record["state"] in LIVE:
        why = (
            "its worker was gone before it told of the end"
            if record["state"] == RUNNING
            else "it was killed while it waited"
        )
        record |= {"state": LOST, "lost_from": record["state"], "why": why, "ended": store.now()}
        store.write_record(folder / RECORD, record)  # a tree that cannot be written is told of as truly
    return record


def is_held(folder: Path, patience: float = 0.0) -> bool:
    """Whether processes of a job live; asked again once after `patience` seconds."""
    if liveness.is_held(lock_path(folder)):
        time.sleep(patience)
        return liveness.is_held(lock_path(folder))
    return False


def is_live(folder: Path, patience: float = 0.0) -> bool:
    """Whether a job is still to end, whatever it made of its record; asked again once after `patience` seconds."""
    if not _lives(folder):
        return False
    time.sleep(patience)
    return _lives(folder)


def _lives(folder: Path) -> bool:
    return settled(folder)["state"] in LIVE or is_held(folder)


def environments_in_use(root: store.Root) -> list[Path]:
    """The environments that jobs run in, or wait for, at this moment."""
    records = [record for folder in folders(root) if (record := settled(folder))["state"] in LIVE]
    return [root.path / str(record["environment"]["path"]) for record in records if record.get("environment")]


def states(root: store.Root) -> dict[str, int]:
    """How many jobs there are in each state."""
    counts: dict[str, int] = {}
    for folder in folders(root):
        state = str(settled(folder)["state"])
        counts[state] = counts.get(state, 0) + 1
    return counts


class Writer:
    """Who runs a job writes its record: from memory, so that nothing the job does to the file survives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began = time.monotonic()
        self.values = read(folder)

    def start(self, **more: Any) -> None:  # noqa: ANN401 - JSON values
        """The job's turn has come."""
        self._began = time.monotonic()
        self.change(state=RUNNING, started=store.now(), **more)

    def end(self, state: str, **more: Any) -> None:  # noqa: ANN401 - JSON values
        """Record the end; `duration` is in seconds, by a clock that nobody sets."""
        self.change(state=state, ended=store.now(), duration=round(time.monotonic() - self._began, 3), **more)

    def change(self, **changes: Any) -> None:  # noqa: ANN401 - JSON values
        """Write the record anew with these values."""
        self.values |= changes
        for _ in range(_TRIES):  # the job may be at it at this very moment
            with contextlib.suppress(FileExistsError, FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._write()
                return
        self._write()

    def _write(self) -> None:
        """Write it where it belongs: the job may have removed its directory, or put something else in either place."""
        if self._folder.is_symlink() or not self._folder.is_dir():
            store.remove(self._folder)
            self._folder.mkdir(parents=True)
        if (self._folder / RECORD).is_dir():
            store.remove(self._folder / RECORD)
        store.write_json(self._folder / RECORD, self.values)
