"""First come, first served: at most so many jobs of a root run at once, over all processes, whoever is killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aml_nox import store
from aml_nox.train import records

_STEP = 0.2  # seconds between two looks of the next in line; who stands far behind looks less often
_LONGEST = 2.0


@dataclass(slots=True)
class Line:
    """The line of jobs as one of them sees it. What ended, or runs elsewhere, is read once."""

    root: store.Root
    own: Path
    limit: int
    _ended: set[str] = field(default_factory=set)

    def ahead(self) -> tuple[int, int]:
        """How many jobs run, and how many that wait came before this one."""
        running = waiting = 0
        for folder in records.folders(self.root):
            if folder.name not in self._ended and folder != self.own:
                state = _state(folder)
                running += state == records.RUNNING
                waiting += state == records.QUEUED and folder.name < self.own.name
                if state not in records.LIVE:
                    self._ended.add(folder.name)
        return running, waiting

    def is_free(self) -> bool:
        """Whether it is this job's turn."""
        return self.leaves_room(*self.ahead())

    def leaves_room(self, running: int, waiting: int) -> bool:
        """Whether one more may run beside these, and none came before it."""
        return running < self.limit and not waiting

    def patience(self, ahead: int) -> float:
        """How long to wait before the next look, in seconds, with so many jobs ahead."""
        return min(_LONGEST, _STEP * max(1.0, ahead / self.limit))


def _state(folder: Path) -> str:
    """How a job stands in the line, "" if it does not. One that lives counts as running, whatever its record became."""
    record = records.settled(folder)
    if record.get("launcher", records.LOCAL) != records.LOCAL:
        return ""
    state = str(record["state"])
    return state if state in records.LIVE or not records.is_held(folder) else records.RUNNING


def wait_turn(line: Line, start: Callable[[], None], wait: Callable[[float], bool]) -> bool:
    """Wait for the turn of a job and start it; False when `wait` says that it is cancelled.

    `start` records that it runs, under the lock under which everybody decides.
    """
    while True:
        running, waiting = line.ahead()
        if line.leaves_room(running, waiting):  # seen without the lock, which is for those alone who may get it
            with records.queue_lock(line.root):
                if line.is_free():
                    start()
                    return True
        if wait(line.patience(running + waiting)):
            return False
