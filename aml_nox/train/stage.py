"""Run one program of a job under a supervisor, and say truthfully what became of it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from aml_nox import liveness, process
from aml_nox.train import isolation, records, supervisor
from aml_nox.train.inbox import Event, Inbox, Wish

_MARGIN = 10.0  # seconds beyond the grace after which a supervisor that does not answer is killed
_FOREVER = 3600.0
_KILLED = "its supervisor was killed"
_MODULE = "supervisor_windows" if sys.platform == "win32" else "supervisor"
_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    f"from aml_nox.train import {_MODULE} as supervisor; sys.exit(supervisor.main())"
)
PACKAGES = str(Path(__file__).parents[2])
"""Where this package lies: a process of ours imports the very same one, however the caller found it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A program to run: `lock` is held by the supervisor too, `home` removed by it when nobody else is left."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    home: Path
    grace: float
    lock: int
    mechanisms: Sequence[str]
    deadline: float | None  # by time.monotonic


@dataclass(slots=True, kw_only=True)
class Course:
    """How it goes: what was in force, what was refused before, what ended it and why."""

    mechanism: str | None = None
    refused: list[dict[str, str]] = field(default_factory=list)
    proc: str = ""
    state: str = ""
    status: int | None = None
    why: str = ""
    left: int = 0

    def isolation(self, asked: str) -> dict[str, Any]:
        """What the record holds of the isolation."""
        in_force = self.mechanism not in {None, isolation.NONE}
        found = {"asked": asked, "mechanism": self.mechanism, "in_force": in_force, "refused": self.refused}
        return found | ({"proc": self.proc} if self.proc else {})


def run(order: Order, inbox: Inbox, log: IO[bytes], started: Callable[[Course], None]) -> Course:
    """Run the program by the first mechanism that is to be had; nothing of it is left when this returns.

    `started` is called as soon as the program runs.
    """
    course = Course()
    for mechanism in order.mechanisms:
        _Supervised(order, course, mechanism, _supervise(order, mechanism, log)).follow(inbox, started)
        if course.mechanism or course.state:
            break
    if not course.state:
        _conclude(course)
    return course


def _supervise(order: Order, mechanism: str, log: IO[bytes]) -> process.Child:
    argv = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT, PACKAGES]
    pipe, kept = process.PIPE, [order.lock] if liveness.CAN_BE_HANDED_ON else []
    child = process.start(argv, env={}, cwd=Path("/"), stdin=pipe, stdout=pipe, stderr=log, kept=kept)
    program = {"mechanism": mechanism, "argv": [*order.argv], "env": dict(order.env), "cwd": str(order.cwd)}
    values = program | {"home": str(order.home), "grace": order.grace, "kept": kept}
    process.tell(child, (json.dumps(values) + "\n").encode())
    return child


@dataclass(slots=True)
class _Supervised:
    """One try: a supervisor, heard to its end, and told of whoever wants the end of the job."""

    order: Order
    course: Course
    mechanism: str
    child: process.Child
    killing: float | None = None  # by time.monotonic: when a supervisor that does not answer is killed

    def follow(self, inbox: Inbox, started: Callable[[Course], None]) -> None:
        try:
            if self.child.stdout is not None:
                inbox.attend(self.child.stdout)
            while True:
                heard = inbox.next(self._left())
                if isinstance(heard, Wish):
                    self._stop(records.CANCELLED, heard)
                elif isinstance(heard, Event):
                    if heard.values is None:
                        return self._close()
                    self._learn(heard.values, started)
                self._mind_the_time()
        finally:
            self._end()

    def _left(self) -> float:
        deadline = None if self.course.state else self.order.deadline
        ends = [end for end in (deadline, self.killing) if end is not None]
        return min(ends) - time.monotonic() if ends else _FOREVER

    def _mind_the_time(self) -> None:
        now = time.monotonic()
        if self.order.deadline is not None and now >= self.order.deadline:
            self._stop(records.TIMEOUT, Wish("its time was up"))
        if self.killing is not None and now >= self.killing:
            self.child.kill()

    def _stop(self, state: str, wish: Wish) -> None:
        """Ask for the end once, and for the end at once when that is wished."""
        if self.course.status is not None:  # it ended by itself; the supervisor only clears away
            return
        if not self.course.state:
            self.course.state, self.course.why = state, wish.why
            self.killing = time.monotonic() + self.order.grace + _MARGIN
            process.tell(self.child, b"T")
        if wish.at_once:
            self.killing = time.monotonic() + _MARGIN
            process.tell(self.child, b"K")

    def _learn(self, event: Mapping[str, Any], started: Callable[[Course], None]) -> None:
        course = self.course
        match event:
            case {"event": "refused", "error": str(error)}:
                course.refused.append({"mechanism": self.mechanism, "error": error})
            case {"event": "unstartable", "error": str(error)}:
                course.state, course.why, course.status = records.FAILED, f"it cannot be started: {error}", 127
            case {"event": "started", "proc": str(proc)}:
                course.mechanism, course.proc = self.mechanism, proc
                started(course)
            case {"event": "exit", "status": int(status)}:
                course.status = status
            case {"event": "gone", "left": int(left)}:
                course.left = left

    def _close(self) -> None:
        """A supervisor that said nothing refused nothing: no weaker mechanism takes its place."""
        refused = {one["mechanism"] for one in self.course.refused}
        if not self.course.state and self.course.mechanism is None and self.mechanism not in refused:
            self.course.state, self.course.why = records.FAILED, _KILLED

    def _end(self) -> None:
        """Leave nothing: the end of its input ends the supervisor, and what a killed one left has come to us."""
        process.hang_up(self.child)
        if not process.has_ended(self.child, _MARGIN):
            self.child.kill()
            self.child.wait()
        if sys.platform == "linux":
            supervisor.kill_below(os.getpid(), time.monotonic() + _MARGIN)


def _conclude(course: Course) -> None:
    if course.mechanism is None:
        course.state, course.why = records.FAILED, "it was not run: no isolation is to be had here"
    elif course.status is None:
        course.state, course.why = records.FAILED, _KILLED
    else:
        course.state = records.FAILED if course.status else records.SUCCEEDED
