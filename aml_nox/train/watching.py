"""Show a job while it runs, from its files alone: what became of it, its output, its progress."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aml_nox import interrupts, store
from aml_nox.screen import Screen, put
from aml_nox.train import records

_STEP = 0.1
_PATIENCE = 10  # looks before a job that waits is told of
_PIECE = 1 << 16
_AT_ONCE = 64  # pieces between two looks at everything else: a job may write faster than a terminal shows
_LONGEST_EVENT = 1 << 20
_BAR = 20
_USUAL_WIDTH = 80


@dataclass(slots=True)
class Watch:
    """One reader of a job's directory; what was shown is not shown again."""

    folder: Path
    screen: Screen
    _queued: int = 0
    _isolation_told: bool = False
    _log: io.FileIO | None = None
    _events: io.FileIO | None = None
    _open_line: bool = False
    _status: bool = False
    _rest: bytes = field(default=b"")

    def until(self, ended: Callable[[float], bool]) -> None:
        """Show the job until `ended` (asked with a time to wait in seconds) says so."""
        try:
            while not ended(_STEP):
                self.look()
                interrupts.honour()
        except BaseException:
            self._end_line()
            raise
        self.look(last=True)

    def look(self, *, last: bool = False) -> None:
        """Show what is new."""
        record = records.read(self.folder)
        self._tell_state(record)
        if self._isolation_told or last:  # the output comes after the line that says how it is cut off
            while self._show_log() and last:
                interrupts.honour()
            self._show_progress()
        if last:
            self._end_line()

    def _tell_state(self, record: Mapping[str, Any]) -> None:
        self._queued += record["state"] == records.QUEUED
        if self._queued == _PATIENCE:
            self._queued += 1
            self.screen.say(f"job {record['id']} waits for its turn: train.max-parallel is {record['max_parallel']}")
        isolation = record.get("isolation")
        if not self._isolation_told and isolation and isolation["mechanism"]:  # none: it was not run
            self._isolation_told = True
            self.screen.say(f"job {record['id']}: {record['program']} ({isolation_words(isolation)})")

    def _show_log(self) -> bool:
        """Show some of the output; whether there may be more."""
        self._log = self._log or _open(self.folder / records.LOG)
        for data in _pieces(self._log):
            self._clear_status()
            show(data)
            self._open_line = not data.endswith(b"\n")
        return bool(self._log and self._log.tell() < os.fstat(self._log.fileno()).st_size)

    def _show_progress(self) -> None:
        if not self.screen.live:
            return
        self._events = self._events or _open(self.folder / records.EVENTS)
        for data in _pieces(self._events):
            *lines, rest = (self._rest + data).split(b"\n")
            self._rest = rest if len(rest) < _LONGEST_EVENT else b""
            for text in filter(None, map(progress_words, lines[-50:])):
                self._end_line()
                self._status = True
                put(sys.stderr, f"\r\x1b[K{text[: _width() - 1]}")

    def _clear_status(self) -> None:
        if self._status:
            put(sys.stderr, "\r\x1b[K")
            self._status = False

    def _end_line(self) -> None:
        self._clear_status()
        if self._open_line:
            put(sys.stderr, "\n")
            self._open_line = False


def _open(path: Path) -> io.FileIO | None:
    """A file that the job may have replaced by anything: only a real one is read."""
    with contextlib.suppress(OSError):
        return store.open_plain(path)
    return None


def _pieces(stream: io.FileIO | None) -> Iterator[bytes]:
    """What is new in a file, of much the beginning."""
    if stream is not None:
        yield from itertools.islice(iter(lambda: stream.read(_PIECE), b""), _AT_ONCE)


def _width() -> int:
    """The columns of the terminal that shows progress: of a line that wraps only the end would be cleared."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or _USUAL_WIDTH
    return _USUAL_WIDTH


def show(data: bytes) -> None:
    """Show output as it is."""
    put(sys.stderr, data if hasattr(sys.stderr, "buffer") else data.decode("utf-8", "replace"))


def isolation_words(found: Mapping[str, Any]) -> str:
    """What cut the job off, for the screen, and what was refused before."""
    refused = "; ".join(f"{one['mechanism']}: {one['error']}" for one in found["refused"])
    if found["in_force"]:
        return f"isolation: {found['mechanism']}" + (f", since {refused}" if refused else "")
    if found["asked"] == "off":
        return "not isolated: isolation is off"
    return f"NOT ISOLATED: {refused or 'there is no way on this system'}"


def progress_words(line: bytes) -> str:
    """An event of the kit as a line of progress; "" for another, or for what is none."""
    try:
        event = json.loads(line)
        if event["event"] != "progress":
            return ""
        fraction = min(1.0, max(0.0, float(event["fraction"])))
        note = "".join(filter(str.isprintable, str(event.get("note", ""))))[: _BAR * 3]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return ""
    done = round(fraction * _BAR)
    return f"[{'#' * done}{'.' * (_BAR - done)}] {100 * fraction:3.0f} % {note}".rstrip()
