"""Which versions of Python and of uv a manifest asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from aml_nox.faults import FaultError, fault, quote, type_of
from aml_nox.toml_text import Written

UV_FLOOR = "0.11.32"
PYTHON_FLOOR = (3, 10)  # the oldest that today's packaging, which every target computes its tags with, runs on

_NUMBER = r"(?:0|[1-9][0-9]{0,2})"
_RELEASE = rf"{_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?"
PYTHON_PATTERN = rf" *(?:{_RELEASE}|>= *{_RELEASE} *, *< *{_NUMBER}\.{_NUMBER}) *"
_PYTHON = re.compile(rf"(?P<exact>{_RELEASE})|>=(?P<lower>{_RELEASE}),<(?P<upper>{_NUMBER}\.{_NUMBER})")
_FORMS = 'write "X.Y", "X.Y.Z" or ">=X.Y,<X.Y", for example "3.11", "3.11.7" or ">=3.11,<3.13"'

Release = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRequest:
    """The Python versions that a manifest accepts: from ``lower`` up to, but without, ``upper``."""

    text: str
    lower: Release
    upper: Release

    @property
    def lowest(self) -> str:
        """The lowest version that is accepted, as declared: ``X.Y`` or ``X.Y.Z``."""
        return ".".join(map(str, self.lower))

    @property
    def minors(self) -> list[str]:
        """The versions X.Y of which some release may be accepted, the lowest first."""
        after = self.upper[1] + (len(self.upper) > len(PYTHON_FLOOR))
        return [f"{self.lower[0]}.{minor}" for minor in range(self.lower[1], after)]

    def accepts(self, version: str) -> bool:
        """Say whether an interpreter of this version is one of those; a pre-release never is."""
        try:
            parsed = Version(version)
        except InvalidVersion:
            return False
        return not parsed.is_prerelease and self.lower <= parsed.release < self.upper


def parse_python(value: object) -> PythonRequest:
    """Read ``python.version``; raises ``FaultError``."""
    if not isinstance(value, str):
        raise _not_text(value)
    text = value.replace(" ", "")
    match = _PYTHON.fullmatch(text)
    if match is None:
        raise fault(f"{quote(value)} {_why_not(text)}; {_FORMS}")
    request = _request(text, match["exact"], match["lower"], match["upper"])
    _check_range(request)
    return request


def _not_text(value: object) -> FaultError:
    written = value.text if isinstance(value, Written) else ""
    if _PYTHON.fullmatch(written):
        return fault(f'{written} is a number to TOML, which drops the end of 3.10; quote it: version = "{written}"')
    return fault(f"expected a string, found {type_of(value)}; {_FORMS}")


def _request(text: str, exact: str | None, lower: str | None, upper: str | None) -> PythonRequest:
    low = _release(exact or lower or "")
    high = _release(upper) if upper else (*low[:-1], low[-1] + 1)
    return PythonRequest(text=text, lower=low, upper=high)


def _release(text: str) -> Release:
    return tuple(map(int, text.split(".")))


def _check_range(request: PythonRequest) -> None:
    if request.lower < PYTHON_FLOOR:
        raise fault(f"Python {request.lowest} is older than 3.10, the oldest that is supported; {_FORMS}")
    if request.lower >= request.upper:
        raise fault(f"{quote(request.text)} accepts no version at all; raise the upper bound")


def _why_not(text: str) -> str:
    """Say in words why a text is no Python version."""
    reasons = (
        (r"", "is empty"),
        (r".*[0-9]t", "asks for a free-threaded build, which is not supported"),
        (r"(?:pypy|graalpy).*", "asks for another implementation than CPython"),
        (r"(?:cpython|python|py|v).*", "names more than the version"),
        (r"[0-9]{2,}", "has no dot"),
        (r"[0-9]", "leaves the minor version open"),
        (r".*[xX*].*", "has a wildcard"),
        (r"[^0-9.]*", "is a name, and means another version each year"),
        (r"[<>=!~].*", "is a range without a lower or an upper bound, or with other operators"),
        (r"[0-9.]+(?:a|b|rc).*", "is a pre-release"),
    )
    return next((words for regex, words in reasons if re.fullmatch(regex, text)), "is not a Python version")


def parse_uv(value: object) -> SpecifierSet:
    """Read ``uv.version``, a PEP 440 specifier or a bare version, and add the floor; raises ``FaultError``."""
    if not isinstance(value, str):
        raise fault(f'expected a string, found {type_of(value)}; write for example "==0.13.9"')
    try:
        asked = SpecifierSet(_with_operator(value))
    except InvalidSpecifier:
        raise fault(f'{quote(value)} is not a PEP 440 specifier; write for example "==0.13.9" or ">=0.12"') from None
    wanted = asked & SpecifierSet(f">={UV_FLOOR}")
    if not any(wanted.contains(version, prereleases=True) for version in _candidates(wanted)):
        raise fault(f"{quote(value)} admits no uv from {UV_FLOOR} on, the oldest that is supported; raise it")
    return wanted


def _with_operator(text: str) -> str:
    try:
        return f"=={Version(text)}"
    except InvalidVersion:
        return text


def _candidates(wanted: SpecifierSet) -> list[Version]:
    """Give a version for each region that the bounds of a specifier cut: the bounds themselves, and the next ones."""
    bounds = [_bound(each) for each in wanted]
    following = [Version(".".join(map(str, (*each.release[:-1], each.release[-1] + 1)))) for each in bounds]
    return [*bounds, *following]


def _bound(specifier: Specifier) -> Version:
    try:
        return Version(specifier.version.removesuffix(".*"))
    except InvalidVersion:  # "===" compares texts
        return Version(UV_FLOOR)
