"""Gates: is a metric what the manifest demands? A gate that cannot be judged has failed."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from aml_nox.manifest import Gate
from aml_nox.screen import columns
from aml_nox.train import strictjson

_LARGEST = 16 << 20
_SHOWN = 40
_HEAD = ("metric", "value", "demanded", "verdict")

_TOLD = ("metric", "passed", "value", "demand", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The registered model that a metric is compared with: the latest of its name, and what it measured."""

    name: str
    version: str
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one gate: `value` is None where there is no finite number, `why` the comparison in words."""

    metric: str
    passed: bool
    value: float | None
    demand: str
    why: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _TOLD}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Verdict:
        """Read what `to_json` wrote."""
        return cls(**{name: values[name] for name in _TOLD})

    def __str__(self) -> str:
        return f"gate {_shown(self.metric)}: {self._word} ({self.why})"

    @property
    def _word(self) -> str:
        return "passed" if self.passed else "FAILED"

    @property
    def cells(self) -> tuple[str, ...]:
        """What the table shows of it."""
        return _shown(self.metric), "-" if self.value is None else repr(self.value), self.demand, self._word


def read_metrics(path: Path) -> Mapping[str, Any] | str:
    """The metrics that a job wrote: one strict JSON object, or the reason why there is none."""
    try:
        value = strictjson.load(path, largest=_LARGEST)
    except FileNotFoundError:
        return f"the job wrote no {path.name}"
    except (ValueError, OSError) as error:
        return f"{path.name} cannot be read: {error}"
    return value if isinstance(value, dict) else f"{path.name} is not one JSON object"


def judge(
    gates: Sequence[Gate], metrics: Mapping[str, Any] | str, baseline: Baseline | None = None
) -> tuple[Verdict, ...]:
    """The verdict of every gate, in the order of the manifest.

    `metrics` may be the reason why there are none: then every gate fails, also one whose metric is not required, since
    what cannot be read may hold it. `baseline` is what `better` compares with; None where nothing is registered.
    """
    return tuple(_verdict(gate, metrics, baseline) for gate in gates)


def _verdict(gate: Gate, metrics: Mapping[str, Any] | str, baseline: Baseline | None) -> Verdict:
    demands = _demands(gate, baseline)
    value = None if isinstance(metrics, str) else number(metrics.get(gate.metric))
    passed, why = _unjudged(gate, metrics) if value is None else _compared(demands, value)
    words = " and ".join(demand.words for demand in demands)
    return Verdict(
        metric=gate.metric,
        passed=passed,
        value=value,
        demand=words if gate.required else f"{words}, if reported",
        why=why,
    )


def number(value: object) -> float | None:
    """A value as a number that can be compared, or None for anything else.

    A bool is an int in Python, no comparison with NaN is true, and an integer can be beyond every float: each of these
    would slip through a naive gate.
    """
    return value if isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value) else None


def is_finite(value: object) -> bool:
    """Whether a value is no number, or one that a float can hold."""
    try:
        return not isinstance(value, int | float) or math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _unjudged(gate: Gate, metrics: Mapping[str, Any] | str) -> tuple[bool, str]:
    """Whether a gate passes although there is no number to judge, and why."""
    if isinstance(metrics, str):
        return False, metrics
    if gate.metric in metrics:
        return False, f"{reprlib.repr(metrics[gate.metric])} is no finite number"
    return (False, "the job reported no such metric") if gate.required else (True, "not reported, and not required")


# --- what is demanded


@dataclass(frozen=True, slots=True)
class _Demand:
    """One thing that a gate demands, in words, with what is said of a value that fails or meets it.

    It is the least gain over `start` in a direction, or a `verdict` for every value.

    All comparisons are between decimals as they are written (`repr`), and exact: 0.3 is better than 0.2 by 0.1, which
    the floats nearest to these are not; no difference is rounded, and none overflows.
    """

    words: str
    fault: str
    held: str = ""
    start: float = 0.0
    gain: Fraction = Fraction(0)
    sign: int = 1
    strict: bool = False
    verdict: bool | None = None

    def holds(self, value: float) -> bool:
        if self.verdict is not None:
            return self.verdict
        gain = self.sign * (_exact(value) - _exact(self.start))
        return gain > self.gain if self.strict else gain >= self.gain


def _exact(value: float) -> Fraction:
    return Fraction(repr(value))


def _compared(demands: Sequence[_Demand], value: float) -> tuple[bool, str]:
    # In full: of a value that is rounded nobody sees why it failed.
    failed = [demand.fault for demand in demands if not demand.holds(value)]
    if failed:
        return False, f"{value!r} {failed[0]}"
    return True, f"{value!r} {' and '.join(demand.held or demand.words for demand in demands)}"


def _demands(gate: Gate, baseline: Baseline | None) -> list[_Demand]:
    found = []
    if gate.min is not None:
        found.append(_Demand(f">= {gate.min}", f"< {gate.min}", start=gate.min))
    if gate.max is not None:
        found.append(_Demand(f"<= {gate.max}", f"> {gate.max}", start=gate.max, sign=-1))
    if gate.better is not None:
        found += _gains(gate, gate.better, baseline)
    return found


def _gains(gate: Gate, better: str, baseline: Baseline | None) -> list[_Demand]:
    """What a gate demands in comparison with the registered model."""
    start = number(baseline.metrics.get(gate.metric)) if baseline else None
    if baseline is None or start is None:
        return [_without_baseline(gate, better, baseline)]
    of = f" ({baseline.name} {baseline.version}, {better} is better)"
    sign, relation = (1, ">") if better == "higher" else (-1, "<")
    if not (least := _least(gate, better, start)):
        words = f"{relation} {start!r}{of}"
        return [_Demand(words, f"is not {words}", start=start, sign=sign, strict=True)]
    bounds = [(f"{relation}= {start!r}{added}", gain) for added, gain in least]
    ends = [""] * (len(bounds) - 1) + [of]  # the model is named once
    return [
        _Demand(f"{bound}{end}", f"is not {bound}{of}", start=start, gain=gain, sign=sign)
        for (bound, gain), end in zip(bounds, ends, strict=True)
    ]


def _least(gate: Gate, better: str, start: float) -> list[tuple[str, Fraction]]:
    """The gains that must be reached, each as it is written behind the registered value."""
    found = []
    if gate.min_gain is not None:
        found.append((_signed(better, gate.min_gain), _exact(gate.min_gain)))
    if (share := gate.min_relative_gain) is not None:
        found.append((f"{_signed(better, share)} * {abs(start)!r}", _exact(share) * abs(_exact(start))))
    return found


def _signed(better: str, gain: float) -> str:
    """A gain as what is added to the registered value: ` + 0.1`."""
    added = gain if better == "higher" else -gain
    return f" {'-' if added < 0 else '+'} {abs(added)!r}"


def _without_baseline(gate: Gate, better: str, baseline: Baseline | None) -> _Demand:
    who = f"{baseline.name} {baseline.version} has none" if baseline else "there is none"
    nothing = "has no registered value to beat"
    return _Demand(
        f"{better} than the registered value ({who})",
        f"{nothing} ({who}), and if-no-baseline is fail",
        held=nothing,
        verdict=gate.if_no_baseline == "pass",
    )


# --- for the screen


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """The verdicts in columns, a line each below a head; none where there are none. Values are in full."""
    rows = [_HEAD, *(verdict.cells for verdict in verdicts)] if verdicts else []
    return columns(rows)


def _shown(name: str) -> str:
    """A metric's name, cut, and with no character that could move a terminal's cursor."""
    printable = name if name.isprintable() else json.dumps(name)[1:-1]
    return printable if len(printable) <= _SHOWN else printable[: _SHOWN - 1] + "…"
