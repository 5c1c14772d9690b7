"""The kinds of value that a manifest's keys take: each parses a TOML value and describes itself for the JSON schema."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import InvalidName, canonicalize_name

from aml_nox import pep508, urls, versions
from aml_nox.faults import FaultError, Gather, fault, quote, suggest, type_of

if TYPE_CHECKING:
    from collections.abc import Callable

Schema = dict[str, object]

_MAX_SECONDS = 366 * 24 * 3600
_UNITS = {"s": 1, "m": 60, "h": 3600}
_YEARS = range(1970, 9999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of value: in words, an example as TOML, a parser that raises ``FaultError``, and a draft-07 schema."""

    words: str
    example: str
    parse: Callable[[object], object]
    schema: Callable[[], Schema]


def _unfit(value: object, words: str, example: str) -> FaultError:
    found = quote(value) if isinstance(value, str) else type_of(value)
    return fault(f"expected {words}, found {found}; write for example {example}")


def read(words: str, example: str, pattern: str, convert: Callable[[str], object]) -> Kind:
    """A string that ``convert`` reads and refuses; the pattern is for the schema alone, and may be wider."""

    def parse(value: object) -> object:
        if not isinstance(value, str):
            raise _unfit(value, words, example)
        return convert(value)

    return Kind(
        words=words, example=example, parse=parse, schema=lambda: {"type": "string", "pattern": f"^(?:{pattern})$"}
    )


def text(words: str, example: str, pattern: str) -> Kind:
    """A string that fits a regular expression, one that Python and ECMA 262 read alike."""

    def fit(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise _unfit(value, words, example)
        return value

    return read(words, example, pattern, fit)


def choice(*values: str) -> Kind:
    """One of some strings."""
    words, example = f"one of {', '.join(values)}", f'"{values[0]}"'

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise _unfit(value, words, example)
        if value not in values:
            raise fault(f"expected {words}, found {quote(value)}; {suggest(value, values)}")
        return value

    return Kind(words=words, example=example, parse=parse, schema=lambda: {"enum": list(values)})


def list_of(item: Kind, words: str) -> Kind:
    """An array; the faults of all its items are found."""
    example = f"[{item.example}]"

    def parse(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise _unfit(value, words, example)
        gather = Gather()
        parsed: list[object] = []
        for number, each in enumerate(value):
            with gather.under(number):
                parsed.append(item.parse(each))
        gather.close()
        return tuple(parsed)

    return Kind(words=words, example=example, parse=parse, schema=lambda: {"type": "array", "items": item.schema()})


def map_of(name: Kind, value: Kind, words: str, example: str) -> Kind:
    """A table whose keys are free, but of a kind; parsed to pairs in the order of the file."""

    def parse(table: object) -> tuple[tuple[object, object], ...]:
        if not isinstance(table, dict):
            raise _unfit(table, words, example)
        gather = Gather()
        pairs: list[tuple[object, object]] = []
        for key, each in table.items():
            with gather.under(key):
                pairs.append((name.parse(key), value.parse(each)))
        gather.close()
        return tuple(pairs)

    def schema() -> Schema:
        return {"type": "object", "propertyNames": name.schema(), "additionalProperties": value.schema()}

    return Kind(words=words, example=example, parse=parse, schema=schema)


def at_least(minimum: int) -> Kind:
    """An integer with a lower bound."""
    words, example = f"an integer, {minimum} or more", str(minimum + 1)

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _unfit(value, words, example)
        if value < minimum:
            raise fault(f"expected {words}, found a smaller one; raise it to {minimum}")
        return value

    return Kind(words=words, example=example, parse=parse, schema=lambda: {"type": "integer", "minimum": minimum})


def _path(value: str) -> Path:
    if not value or not value.isprintable():
        raise fault("a path is empty or holds a control character; write it relative to aml.toml's folder")
    if value.startswith("~") or "${" in value:
        raise fault("~ and variables are not expanded in a path; write it relative to aml.toml's folder, or absolute")
    return Path(value)


def _place(value: str) -> str:
    return urls.check_link(value) if "://" in value else str(_path(value))


def _archive(value: str) -> str:
    url = urls.check_link(value)
    if not url.split("#")[0].split("?")[0].endswith((".tar.gz", ".zip", ".whl", ".sh", ".ps1")):
        raise fault("the URL does not name a .tar.gz, .zip or .whl file, nor a script: .sh or .ps1; give one of these")
    return url


def _package(value: str) -> str:
    try:
        return canonicalize_name(value, validate=True)
    except InvalidName:
        raise fault(f"{quote(value)} is not a package's name; write the name alone, as the index has it") from None


def _seconds(value: object) -> float:
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smh])", value) if isinstance(value, str) else None
    if match:
        seconds = int(match[1]) * _UNITS[match[2]]
    elif isinstance(value, int) and not isinstance(value, bool):
        seconds = value
    else:
        raise _unfit(value, DURATION.words, DURATION.example)
    if not 0 < seconds <= _MAX_SECONDS:
        raise fault("a time limit is more than zero and at most 366 days; leave the key out for the default")
    return float(seconds)


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _unfit(value, NUMBER.words, NUMBER.example)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf  # an integer of more digits than a float can hold
    if not math.isfinite(number):
        raise fault("expected a finite number, found nan or infinity; no metric can be held against it")
    return number


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise _unfit(value, BOOL.words, BOOL.example)
    return value


def _scalar(value: object) -> str | int:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise _unfit(value, SCALAR.words, SCALAR.example)
    return value


def _value(value: str) -> str:
    if "\0" in value:  # the value is not shown: it can be a secret in the wrong place
        raise fault("no variable of an environment can hold a NUL character; take it out")
    return value


def _offset_time(value: object) -> datetime:
    example = OFFSET_TIME.example
    if not isinstance(value, datetime):
        quoted = "; take the quotes away" if isinstance(value, str) else ""
        raise fault(f"expected a date-time with an offset, found {type_of(value)}{quoted}; write for example {example}")
    if value.tzinfo is None:
        raise fault(f"the date-time has no offset, and would mean another moment on each machine; write {example}")
    if value.year not in _YEARS:
        raise fault(f"the year is out of range; write for example {example}")
    return value.astimezone(UTC)


TEXT = text("a string", '"text"', r"[^\u0000]+")
ARGUMENT = text("a string", '"--fast"', r"[^\u0000]*")
VALUE = read("a string", '"1"', r"[^\u0000]*", _value)
PATH = read("a path", '"folder/file"', r"[^\u0000~][^\u0000]*", _path)
URL = read("an http, https or file URL", '"https://index.example.com/simple"', r"[A-Za-z]+://[^\s$@]+", urls.check_url)
PLACE = read("a path or a URL", '"downloads.json"', r"[^\u0000$]+", _place)
ARCHIVE = read(
    "the URL of a .tar.gz, .zip, .whl or script", '"https://files.example.com/uv.zip"', r"[A-Za-z]+://[^\s$]+", _archive
)
REQUIREMENT = read("a PEP 508 requirement", '"numpy>=2"', r"\s*[A-Za-z0-9].*", pep508.parse)
PACKAGE = read("a package's name", '"numpy"', r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", _package)
SHA256 = text("64 hexadecimal digits in lower case", '"' + "0123456789abcdef" * 4 + '"', r"[0-9a-f]{64}")
VARIABLE = text("the name of an environment variable", '"CUDA_VISIBLE_DEVICES"', r"[A-Za-z_][A-Za-z0-9_]*")
JOB_VARIABLE = text(
    "the name of an environment variable, and none of ours (AML_…)",
    '"CUDA_VISIBLE_DEVICES"',
    r"(?!AML_)[A-Za-z_][A-Za-z0-9_]*",
)
MODULE = text("a module's dotted name", '"package.train"', r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
NAME = text("a name of a-z, 0-9 and -", '"corp"', r"[a-z0-9][a-z0-9-]*")
# A folder of this name can be made everywhere: not too long, no device of Windows; and it is not our link's.
FOLDER = text(
    "a name of a-z, 0-9 and -, at most 64 of them, that is not reserved",
    '"digits"',
    r"(?!(?:latest|con|prn|aux|nul|com[0-9]|lpt[0-9])$)[a-z0-9][a-z0-9-]{0,63}",
)
BACKEND = text("a torch backend as uv names it", '"cpu"', r"[a-z][a-z0-9.]*")
MEMORY = text("a size in K, M, G or T", '"4G"', r"[1-9][0-9]{0,8}[KMGT]")
PYTHON = Kind(
    words='"X.Y", "X.Y.Z" or ">=X.Y,<X.Y"',
    example='"3.11"',
    parse=versions.parse_python,
    schema=lambda: {"type": "string", "pattern": f"^(?:{versions.PYTHON_PATTERN})$"},
)
UV = Kind(
    words="a PEP 440 specifier, or a version",
    example='"==0.13.9"',
    parse=versions.parse_uv,
    schema=lambda: {"type": "string", "pattern": r"[0-9]"},
)
DURATION = Kind(
    words='seconds, or a string like "90s", "10m", "2h"',
    example='"10m"',
    parse=_seconds,
    schema=lambda: {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": _MAX_SECONDS},
            {"type": "string", "pattern": "^[1-9][0-9]{0,8}[smh]$"},
        ]
    },
)
NUMBER = Kind(words="a number", example="0.95", parse=_number, schema=lambda: {"type": "number"})
BOOL = Kind(words="true or false", example="true", parse=_bool, schema=lambda: {"type": "boolean"})
SCALAR = Kind(
    words="a string or an integer", example='"gpu"', parse=_scalar, schema=lambda: {"type": ["string", "integer"]}
)
OFFSET_TIME = Kind(
    words="a date-time with an offset",
    example="2026-11-01T00:00:00Z",
    parse=_offset_time,
    # TOML date-times reach a schema as strings.
    schema=lambda: {"type": "string", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]+(?:[Zz]|[+-][0-9:]{5})$"},
)
