"""What a worker waits for, in one queue: its caller's wishes, signals, a cancel file, and its supervisor's events."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from aml_nox import store
from aml_nox.train import records, supervisor

_STEP = 0.2
_WISHES = {b"T": "the caller asked for it", b"K": "the caller asked for it twice", b"": "the caller died"}


@dataclass(frozen=True, slots=True)
class Wish:
    """Somebody wants the job to end: why, and whether at once."""

    why: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """What the supervisor told; None: it will tell nothing any more."""

    values: dict[str, Any] | None


@dataclass(slots=True)
class Inbox:
    """The queue; `hello` is what the caller handed over past the files: an open lock, values that stand nowhere."""

    job: Path
    hello: dict[str, Any] = field(default_factory=dict)
    _queue: queue.SimpleQueue[Wish | Event] = field(default_factory=queue.SimpleQueue)
    why: str = ""
    _signals: int = 0
    _cancels: int = 0

    def listen(self) -> None:
        """Hear the caller, if there is one at the other end of standard input, and signals."""
        if first := supervisor.first_line():
            self.hello = json.loads(first)
            threading.Thread(target=self._hear_caller, daemon=True).start()
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._note)

    def _note(self, number: int, _frame: object) -> None:
        self._signals += 1
        self._queue.put(Wish(f"its worker got {signal.Signals(number).name}", at_once=self._signals > 1))

    def _hear_caller(self) -> None:
        byte = b"?"
        while byte:
            byte = os.read(0, 1)
            self._queue.put(Wish(_WISHES.get(byte, "the caller asked for it"), at_once=byte == b"K"))

    def attend(self, stream: IO[bytes]) -> None:
        """Hear a supervisor until its end."""
        threading.Thread(target=self._hear, args=(stream,), daemon=True).start()

    def _hear(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                # Nobody but a supervisor should write there; a job that can has its words passed over.
                with contextlib.suppress(ValueError, TypeError, RecursionError):
                    self._queue.put(Event(dict(json.loads(line))))
        self._queue.put(Event(None))

    def next(self, timeout: float) -> Wish | Event | None:
        """What came, or None after `timeout` seconds, at most a moment in which a cancel file is not looked for."""
        try:
            return self._queue.get(timeout=max(0.0, min(timeout, _STEP)))
        except queue.Empty:
            return self._asked_by_file()

    def _asked_by_file(self) -> Wish | None:
        if not os.path.lexists(self.job / records.CANCEL):
            return None
        self._cancels += 1
        store.remove(self.job / records.CANCEL)
        return Wish("it was cancelled", at_once=self._cancels > 1)

    def wish(self, timeout: float) -> Wish | None:
        """Wait so long for somebody who wants the end of the job."""
        found = self.next(timeout)
        return found if isinstance(found, Wish) else None

    def honour(self) -> None:
        """Leave what takes long, by KeyboardInterrupt, when somebody wants the end of the job; `why` tells who."""
        wish = self._asked_by_file() or self.wish(0.0)
        if wish is not None:
            self.why = wish.why
            raise KeyboardInterrupt
