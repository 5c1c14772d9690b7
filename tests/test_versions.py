"""Which versions of Python and of uv can be asked for, and what each request accepts."""

from __future__ import annotations

import re
from datetime import date

import pytest

from aml_nox.faults import FaultError
from aml_nox.toml_text import Written
from aml_nox.versions import UV_FLOOR, parse_python, parse_uv


@pytest.mark.parametrize(
    ("written", "text", "lowest", "accepted", "refused"),
    [
        ("3.11", "3.11", "3.11", ["3.11", "3.11.0", "3.11.19"], ["3.10.9", "3.12.0", "3.1"]),
        ("3.10", "3.10", "3.10", ["3.10.0"], []),
        ("3.11.7", "3.11.7", "3.11.7", ["3.11.7"], ["3.11.6", "3.11.8", "3.11"]),
        (">=3.10,<3.12", ">=3.10,<3.12", "3.10", ["3.10.0", "3.11.19"], ["3.9.20", "3.12.0"]),
        (" >= 3.10.2 , < 3.12 ", ">=3.10.2,<3.12", "3.10.2", ["3.10.2"], ["3.10.1"]),
        ("3.14", "3.14", "3.14", ["3.14.0"], ["3.14.0rc1", "3.15.0a1", "not a version"]),
    ],
)
def test_a_python_request_accepts_its_range_and_no_pre_release(
    written: str, text: str, lowest: str, accepted: list[str], refused: list[str]
) -> None:
    request = parse_python(written)
    assert (request.text, request.lowest) == (text, lowest)
    assert [version for version in (*accepted, *refused) if request.accepts(version)] == accepted


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("3.13t", "free-threaded"),
        ("pypy3.10", "another implementation"),
        ("cpython3.11", "names more than the version"),
        ("py312", "names more than the version"),
        ("3", "leaves the minor version open"),
        ("3.x", "wildcard"),
        ("3.11.*", "wildcard"),
        ("latest", "is a name"),
        ("312", "has no dot"),
        (">=3.9", "a range without"),
        ("==3.11", "a range without"),
        ("", "is empty"),
        ("3.14.0rc1", "pre-release"),
        ("3.011", "not a Python version"),
        ("٣.11", "not a Python version"),
        ("3.9", "older than 3.10"),
        (">=2.7,<3.12", "older than 3.10"),
        (3, "found an integer"),
        (True, "found a boolean"),
        (date(2026, 1, 1), "found a date"),
        (Written("1e3"), "found a float"),
        ([Written("3.10")], "found an array"),
    ],
)
def test_what_is_no_python_version_is_refused_in_words_with_the_accepted_forms(written: object, reason: str) -> None:
    with pytest.raises(FaultError, match=reason) as caught:
        parse_python(written)
    assert '"X.Y", "X.Y.Z" or ">=X.Y,<X.Y"' in str(caught.value)


@pytest.mark.parametrize("text", ["3.10", "3.11", "3.20", "3.100"])
def test_an_unquoted_python_version_is_shown_as_it_was_written(text: str) -> None:
    with pytest.raises(FaultError, match=f'^{text} is a number to TOML.*quote it: version = "{text}"$'):
        parse_python(Written(text))


def test_an_empty_python_range_is_refused() -> None:
    with pytest.raises(FaultError, match="accepts no version"):
        parse_python(">=3.12,<3.12")


@pytest.mark.parametrize(
    ("written", "admitted", "excluded"),
    [
        ("0.13.9", "0.13.9", "0.13.10"),
        ("==0.13.9", "0.13.9", "0.13.8"),
        ("==0.12.*", "0.12.5", "0.13.0"),
        (">=0.10", UV_FLOOR, "0.11.31"),
        ("<0.13", "0.12.0", "0.13.0"),
        ("!=0.11.32", "0.11.33", "0.11.32"),
        (">0.13.9", "0.13.10", "0.13.9"),
        (">=0.12,<0.14", "0.13.0", "0.11.40"),
    ],
)
def test_a_uv_version_is_a_specifier_or_bare_and_has_a_floor(written: str, admitted: str, excluded: str) -> None:
    wanted = parse_uv(written)
    assert (wanted.contains(admitted), wanted.contains(excluded)) == (True, False)


@pytest.mark.parametrize(
    "written", ["0.9.0", "==0.9.0", "<0.11", "~=0.10.0", "===0.9", "===newest", "newest", 1, True, ["0.13.9"]]
)
def test_a_uv_version_below_the_floor_or_without_sense_is_refused(written: object) -> None:
    with pytest.raises(FaultError, match=re.escape(UV_FLOOR) + "|PEP 440|expected a string"):
        parse_uv(written)
