"""Faults of a file that people write: each with its place, gathered, and raised together.

A parser raises ``FaultError``; the places in it are relative to the value that was parsed, and whoever holds that value
puts its own step before them. So a fault's full key path exists without anybody handing paths down.
"""

from __future__ import annotations

import difflib
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Place = tuple[str | int, ...]
"""Where in a document: a string steps into a table, an integer into an array."""

_SHOWN = 60
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")
_TYPES: tuple[tuple[type, str], ...] = (
    # bool before int and datetime before date: each is a subclass of the other.
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a float"),
    (str, "a string"),
    (datetime, "a date-time"),
    (date, "a date"),
    (time, "a time"),
    (list, "an array"),
    (dict, "a table"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: where, and in one line what is wrong and what to do about it."""

    place: Place
    text: str


class FaultError(ValueError):
    """A value that is refused, with every fault found in it."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(fault.text for fault in faults))
        self.faults = faults


def fault(text: str, *place: str | int) -> FaultError:
    """Make the error of a single fault, for ``raise``."""
    return FaultError(Fault(place, text))


@dataclass(slots=True)
class Gather:
    """Collects the faults of many parsers, so that a reader meets them all at once."""

    faults: list[Fault] = field(default_factory=list)

    @contextmanager
    def under(self, *place: str | int) -> Iterator[None]:
        """Catch the faults of the block, and put ``place`` before theirs."""
        try:
            yield
        except FaultError as error:
            self.faults += [Fault((*place, *each.place), each.text) for each in error.faults]

    def close(self) -> None:
        """Raise ``FaultError`` if anything was caught."""
        if self.faults:
            raise FaultError(*self.faults)


def key_path(place: Place) -> str:
    """Write a place as TOML people do: ``environments.gpu.requirements[0]``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{_key(step)}" for step in place)
    return "".join(steps).removeprefix(".")


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else quote(name)


def quote(text: str) -> str:
    """Quote a text of the user's for a message: cut, and with no character that could move a terminal's cursor."""
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return json.dumps(shown, ensure_ascii=not shown.isprintable())


def type_of(value: object) -> str:
    """Name the TOML type of a value: ``an integer``."""
    return next((words for kind, words in _TYPES if isinstance(value, kind)), "nothing")


def suggest(name: str, known: Iterable[str]) -> str:
    """Say which of the known names was probably meant, or else list them."""
    names = sorted(set(known))
    for each in names:
        if each == name.lower():
            return f"did you mean {quote(each)}? Upper and lower case differ here"
    close = difflib.get_close_matches(name[:_SHOWN], names, n=1)
    return f"did you mean {quote(close[0])}?" if close else f"known are {', '.join(names)}"
