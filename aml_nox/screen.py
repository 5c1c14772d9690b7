"""Where people read. That nobody reads is no fault of the work: what cannot be shown is not shown."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported on the warm path
    from typing import TextIO


@dataclass(frozen=True, slots=True)
class Screen:
    """One calm line a call; `live` when stderr is a terminal that can show a tool's progress."""

    say: Callable[[str], None]
    live: bool = False


class Meter:
    """Progress in per cent on a terminal, once something takes longer than a second."""

    def __init__(self, screen: Screen, what: str) -> None:
        self._live, self._what = screen.live, what
        self._began = time.monotonic()

    def show(self, done: int, total: int) -> None:
        """Show how much is done of all; the line is cleared at its end."""
        if self._live and time.monotonic() - self._began > 1:
            end = "\r\x1b[K" if done >= total else ""
            put(sys.stderr, f"\r{self._what}: {100 * done // max(1, total)} %{end}")


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose cells stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def ensure_streams() -> None:
    """Give standard streams that the caller closed a bottom, before a file of ours is opened under their number."""
    for name, flags in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, flags))  # noqa: PTH123, SIM115 - it stays open to the end


def put(stream: TextIO, data: str | bytes) -> OSError | None:
    """Write to a standard stream, now; one that cannot be written is silenced for good, and the reason returned."""
    try:
        if isinstance(data, bytes):
            stream.buffer.write(data)
        else:
            stream.write(data)
        stream.flush()
    except OSError as error:
        # What is buffered would be tried again when Python ends, with a message and a status of its own.
        bottom = os.open(os.devnull, os.O_WRONLY)
        os.dup2(bottom, stream.fileno())
        os.close(bottom)
        return error
    return None
