"""Gates: is a metric what the manifest demands? A gate that cannot be judged has failed."""

from __future__ import annotations

import json
import math
import reprlib
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from aml_nox.manifest import Gate

_LARGEST = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one gate; `why` is the comparison in words."""

    metric: str
    passed: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        return {"metric": self.metric, "passed": self.passed, "why": self.why}

    def __str__(self) -> str:
        return f"gate {self.metric}: {'passed' if self.passed else 'FAILED'} ({self.why})"


def read_metrics(path: Path) -> Mapping[str, Any] | str:
    """The metrics that a job wrote: one JSON object (RFC 8259: no NaN), or the reason why there is none."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return f"{path.name} is not a file of at most {_LARGEST >> 20} MiB"
        value = json.loads(path.read_bytes(), parse_constant=_refuse, object_pairs_hook=_unique)
    except FileNotFoundError:
        return f"the job wrote no {path.name}"
    except (ValueError, OSError, RecursionError) as error:
        return f"{path.name} cannot be read: {error}"
    return value if isinstance(value, dict) else f"{path.name} is not one JSON object"


def _refuse(word: str) -> NoReturn:
    message = f"{word} is not JSON"
    raise ValueError(message)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        message = "a name stands twice"
        raise ValueError(message)
    return found


def judge(gates: Sequence[Gate], metrics: Mapping[str, Any] | str) -> tuple[Verdict, ...]:
    """The verdict of every gate, in the order of the manifest."""
    return tuple(
        Verdict(metric=gate.metric, passed=not why[1], why=why[0]) for gate in gates for why in [_why(gate, metrics)]
    )


def _why(gate: Gate, metrics: Mapping[str, Any] | str) -> tuple[str, bool]:
    """The comparison in words, and whether it failed."""
    if isinstance(metrics, str):
        return metrics, True
    value = metrics.get(gate.metric)
    if gate.metric not in metrics:
        return "the job reported no such metric", True
    # A bool is an int in Python, and no comparison with NaN is true: both would slip through a naive gate.
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite(value):
        return f"{reprlib.repr(value)} is no finite number", True
    # In full: of a value that is rounded nobody sees why it failed.
    if gate.min is not None and value < gate.min:
        return f"{value} < {gate.min}", True
    if gate.max is not None and value > gate.max:
        return f"{value} > {gate.max}", True
    bounds = [f">= {gate.min}" if gate.min is not None else "", f"<= {gate.max}" if gate.max is not None else ""]
    return f"{value} {' and '.join(filter(None, bounds))}", False


def is_finite(value: object) -> bool:
    """Whether a value is no number, or one that a float can hold."""
    try:
        return not isinstance(value, int | float) or math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False
