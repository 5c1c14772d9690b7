"""Where people read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Screen:
    """One calm line a call; `live` when stderr is a terminal that can show a tool's progress."""

    say: Callable[[str], None]
    live: bool = False
