"""A request to end (Ctrl-C, SIGTERM, SIGHUP) is honoured where we wait or repeat, and nowhere else.

An exception out of a signal handler strikes between any two steps: between a directory that was made and the block that
would remove it, between a lock of `subprocess` that was taken and its release, which then hangs for ever. So the
handler takes a note, and whoever waits asks for it. Only a second request is honoured at once: nothing may hold its
user up.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

STEP = 0.2  # seconds that a wait may last without asking


@dataclass(slots=True)
class _Notes:
    """What was asked and is not yet honoured, and how often anything was."""

    pending: int = 0
    count: int = 0
    ask: Callable[[], None] | None = None


_notes = _Notes()


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Take notes while the block runs; what was asked after its last wait is honoured at its end.

    SIGTERM and SIGHUP leave by SystemExit with the status 128 + number, SIGINT by KeyboardInterrupt.
    """
    if not _is_main():
        yield
        return
    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # What is ignored stays ignored: that is how nohup lets a training run outlive its terminal.
    numbers = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    _notes.pending = _notes.count = 0
    before = {number: signal.signal(number, _note) for number in numbers}
    try:
        yield
        honour()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def asking(ask: Callable[[], None]) -> Iterator[None]:
    """Let `honour` ask somebody else too while the block runs, who raises what is to be raised."""
    _notes.ask = ask
    try:
        yield
    finally:
        _notes.ask = None


def honour() -> None:
    """Raise what was asked, if anything was: for whoever waits, or is at a step that can be left."""
    if _notes.ask is not None and _is_main():
        _notes.ask()
    if _notes.pending and _is_main():
        number, _notes.pending = _notes.pending, 0
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _note(number: int, _frame: FrameType | None) -> None:
    _notes.pending = number
    _notes.count += 1
    if _notes.count > 1:
        honour()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
