"""Gates: what a metric must fulfil, also against the registered model, and that nothing slips through one."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aml_nox.manifest import Gate
from aml_nox.train import gates
from aml_nox.train.gates import Baseline, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

HUGE = 10**400
NO_NUMBERS = [math.nan, math.inf, -math.inf, True, False, "0.99", None, [1], {"a": 1}, HUGE, -HUGE]


def gate(metric: str = "m", /, **wanted: object) -> Gate:
    none = dict.fromkeys(("min", "max", "better", "min_gain", "min_relative_gain"))
    return Gate(**{"metric": metric, "required": True, "if_no_baseline": "pass", **none, **wanted})  # type: ignore[arg-type]


def registered(value: object, metric: str = "m") -> Baseline:
    return Baseline(name="digits", version="v1", metrics={metric: value})


def verdict(wanted: Gate, metrics: Mapping[str, object] | str, baseline: Baseline | None = None) -> Verdict:
    (found,) = gates.judge([wanted], metrics, baseline)
    json.dumps(found.to_json(), allow_nan=False)
    return found


# --- better than the registered model


@pytest.mark.parametrize(
    ("better", "wanted", "before", "now", "passed"),
    [
        ("higher", {}, 0.91, 0.92, True),
        ("higher", {}, 0.91, 0.91, False),
        ("higher", {}, 0.91, math.nextafter(0.91, 1), True),
        ("higher", {}, 0.0, -0.0, False),
        ("lower", {}, 0.3, 0.2, True),
        ("lower", {}, 0.3, 0.3, False),
        ("lower", {}, 0.3, 0.4, False),
        ("higher", {"min_gain": 0.1}, 0.2, 0.3, True),
        ("higher", {"min_gain": 0.1}, 0.2, 0.29999999999999993, False),
        ("lower", {"min_gain": 0.1}, 0.3, 0.2, True),
        ("lower", {"min_gain": 0.1}, 0.3, 0.20000000000000004, False),
        ("higher", {"min_gain": -0.01}, 0.91, 0.9, True),
        ("higher", {"min_gain": -0.01}, 0.91, 0.8999, False),
        ("lower", {"min_gain": -0.01}, 0.3, 0.31, True),
        ("higher", {"min_gain": 0.0}, 0.91, 0.91, True),
        ("higher", {"min_relative_gain": 0.1}, 0.7, 0.77, True),
        ("higher", {"min_relative_gain": 0.1}, 0.7, 0.7699999999999999, False),
        ("higher", {"min_relative_gain": 0.1}, -0.7, -0.63, True),
        ("higher", {"min_relative_gain": 0.1}, -0.7, -0.77, False),
        ("lower", {"min_relative_gain": 0.1}, 0.7, 0.63, True),
        ("lower", {"min_relative_gain": 0.1}, -0.7, -0.77, True),
        ("lower", {"min_relative_gain": -0.1}, 0.7, 0.77, True),
        ("higher", {"min_relative_gain": 0.5}, 0, 0, True),
        ("higher", {"min_relative_gain": 0.5}, 0, -1, False),
        ("higher", {"min_gain": 0.1, "min_relative_gain": 0.1}, 0.5, 0.6, True),
        ("higher", {"min_gain": 0.1, "min_relative_gain": 0.5}, 0.5, 0.6, False),
        ("higher", {"min_gain": 0.1, "min_relative_gain": 0.1}, 2, 2.1, False),
        ("higher", {"min": 0.5}, 0.3, 0.4, False),
        ("higher", {"max": 0.9}, 0.3, 0.95, False),
        ("lower", {"max": 0.9}, 0.3, 0.2, True),
        ("higher", {"min_gain": 1e308}, -1.7e308, 1.7e308, True),
        ("lower", {"min_gain": 1e308}, -1.7e308, 1.7e308, False),
        ("higher", {"min_relative_gain": 1e308}, 1e308, 1.7e308, False),
        ("higher", {}, 2**53, 2**53 + 1, True),
        ("higher", {"min_gain": 5e-324}, 0, 5e-324, True),
    ],
)
def test_a_gain_is_held_against_the_registered_model_exactly_as_it_is_written(
    *, better: str, wanted: Mapping[str, float], before: float, now: float, passed: bool
) -> None:
    found = verdict(gate(better=better, **wanted), {"m": now}, registered(before))
    assert found.passed is passed, found.why
    assert found.value == now


@pytest.mark.parametrize(
    ("wanted", "before", "now", "demand", "why"),
    [
        ({"min": 0.95}, None, 0.94, ">= 0.95", "0.94 < 0.95"),
        ({"min": 0.5, "max": 1.0}, None, 1, ">= 0.5 and <= 1.0", "1 >= 0.5 and <= 1.0"),
        ({"better": "higher"}, 0.91, 0.91, "> 0.91 OF", "0.91 is not > 0.91 OF"),
        ({"better": "higher", "min_gain": 0.1}, 0.2, 0.3, ">= 0.2 + 0.1 OF", "0.3 >= 0.2 + 0.1 OF"),
        ({"better": "higher", "min_gain": -0.1}, 0.2, 0, ">= 0.2 - 0.1 OF", "0 is not >= 0.2 - 0.1 OF"),
        (
            {"better": "higher", "min_gain": 0.0, "min_relative_gain": 0.5, "min": 0.0},
            -2.0,
            1.5,
            ">= 0.0 and >= -2.0 + 0.0 and >= -2.0 + 0.5 * 2.0 OF",
            "1.5 >= 0.0 and >= -2.0 + 0.0 and >= -2.0 + 0.5 * 2.0 OF",
        ),
    ],
)
def test_the_demand_and_the_reason_are_told_in_words_and_in_full(
    wanted: Mapping[str, object], before: float | None, now: float, demand: str, why: str
) -> None:
    found = verdict(gate(**wanted), {"m": now}, registered(before))
    of = "(digits v1, higher is better)"
    assert (found.demand, found.why) == (demand.replace("OF", of), why.replace("OF", of))


def test_of_lower_is_better_the_words_say_which_way() -> None:
    found = verdict(gate(better="lower", min_gain=0.1), {"m": 0.3}, registered(0.3))
    assert found.why == "0.3 is not <= 0.3 - 0.1 (digits v1, lower is better)"


@pytest.mark.parametrize("baseline", [None, registered(1, "other"), *map(registered, NO_NUMBERS)])
@pytest.mark.parametrize("gains", [{}, {"min_gain": 0.1}, {"min_relative_gain": 0.1, "min_gain": 1}])
def test_without_a_registered_number_the_gate_passes_or_fails_as_it_says(
    baseline: Baseline | None, gains: Mapping[str, float]
) -> None:
    passed, failed = (
        verdict(gate(better="higher", if_no_baseline=word, **gains), {"m": 1}, baseline) for word in ("pass", "fail")
    )
    assert (passed.passed, failed.passed) == (True, False)
    assert "has no registered value to beat" in passed.why
    assert "if-no-baseline is fail" in failed.why
    assert passed.demand.startswith("higher than the registered value")


def test_without_a_registered_number_the_other_bounds_still_hold() -> None:
    assert not verdict(gate(better="higher", min=2), {"m": 1}).passed


# --- nothing slips through

STRICT = [
    gate(min=-1e308),
    gate(max=1e308),
    gate(better="higher"),
    gate(better="lower", min_gain=-1e308),
    gate(better="higher", min_relative_gain=-1e308, required=False),
    gate(min=0.0, required=False),
]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: repr(value)[:9])
@pytest.mark.parametrize("wanted", STRICT)
@pytest.mark.parametrize("baseline", [None, registered(0)])
def test_what_is_no_finite_number_passes_no_gate(wanted: Gate, value: object, baseline: Baseline | None) -> None:
    found = verdict(wanted, {"m": value}, baseline)
    assert (found.passed, found.value) == (False, None)
    assert found.why.endswith("is no finite number")


def test_an_absent_metric_fails_unless_it_is_not_required() -> None:
    assert not verdict(gate(min=0.0), {}).passed
    found = verdict(gate(min=0.0, required=False), {})
    assert (found.passed, found.value, found.why) == (True, None, "not reported, and not required")
    assert found.demand == ">= 0.0, if reported"
    assert not verdict(gate(min=0.0, required=False), {"m": -1}).passed


def test_metrics_that_cannot_be_read_pass_no_gate_not_even_one_that_is_not_required() -> None:
    found = verdict(gate(min=0.0, required=False), "metrics.json cannot be read: why")
    assert (found.passed, found.why) == (False, "metrics.json cannot be read: why")


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
BOUNDS = st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBERS, NUMBERS, BOUNDS, st.sampled_from(["higher", "lower"]))
def test_whatever_the_numbers_a_verdict_is_what_exact_arithmetic_says(
    now: float, before: float, gain: float, better: str
) -> None:
    left, right = (now, before) if better == "higher" else (before, now)
    plain = verdict(gate(better=better), {"m": now}, registered(before))
    assert plain.passed == (left > right)
    zero = verdict(gate(better=better, min_gain=0.0), {"m": now}, registered(before))
    assert zero.passed == (left >= right)
    assert (
        verdict(gate(better=better, min_gain=gain), {"m": now}, registered(before)).passed or gain > 0 or left < right
    )


@given(NUMBERS, BOUNDS)
def test_bounds_compare_as_numbers_do(now: float, bound: float) -> None:
    assert verdict(gate(min=bound), {"m": now}).passed == (now >= bound)
    assert verdict(gate(max=bound), {"m": now}).passed == (now <= bound)


# --- for the screen


def test_the_table_stands_in_columns_and_shows_values_in_full() -> None:
    wanted = [gate("loss", max=0.1), gate("accuracy", min=0.5, better="higher"), gate("f1", min=0.5)]
    found = gates.judge(wanted, {"loss": 0.1 + 0.2, "accuracy": 0.96}, registered(0.91, "accuracy"))
    assert gates.table(found) == [
        "metric    value                demanded                                         verdict",
        "loss      0.30000000000000004  <= 0.1                                           FAILED",
        "accuracy  0.96                 >= 0.5 and > 0.91 (digits v1, higher is better)  passed",
        "f1        -                    >= 0.5                                           FAILED",
    ]


def test_without_gates_there_is_no_table() -> None:
    assert gates.table(gates.judge([], {})) == []


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "a\rb", "\u202eabc", "\x07", "\ud800", "\x9b1m"])
def test_no_name_of_a_metric_moves_the_cursor(name: str) -> None:
    (found,) = gates.judge([gate(name, min=0)], {name: "\x1b[2J"})
    for line in [*gates.table([found]), str(found)]:
        assert line.isprintable()
    assert found.metric == name


def test_a_long_name_is_cut_and_its_end_marked() -> None:
    (found,) = gates.judge([gate("x" * 41, min=0)], {})
    _, line = gates.table([found])
    assert line.split()[0] == "x" * 39 + "…"
    (found,) = gates.judge([gate("x" * 40, min=0)], {})
    assert re.match(r"x{40}  -", gates.table([found])[1])


def test_a_verdict_is_recorded_whole_and_read_back() -> None:
    found = verdict(gate(min=0.5), {"m": 1})
    assert found.to_json() == {"metric": "m", "passed": True, "value": 1, "demand": ">= 0.5", "why": "1 >= 0.5"}
    assert Verdict(**found.to_json()) == found
