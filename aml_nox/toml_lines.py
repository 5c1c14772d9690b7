"""On which line of a TOML text a key stands. For error messages only: nothing here runs while all is well.

``tomllib`` gives no lines. The text is known to be valid TOML, so strings, comments and brackets are enough to cut it
into statements, and ``tomllib`` itself then reads the keys of each. Linear in the length of the text.
"""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aml_nox.faults import Place

# TOML 1.0: a multi-line string may end in up to two quotes of its own before the closing three.
_TOKEN = re.compile(
    r"""
      (?P<string> \"\"\"(?:[^"\\]|\\.|"(?!""))*"{3,5} | '''(?:[^']|'(?!''))*'{3,5} | "(?:[^"\\]|\\.)*" | '[^']*' )
    | (?P<comment> \#[^\n]* )
    | (?P<open> [\[{] ) | (?P<close> [\]}] ) | (?P<comma> , ) | (?P<equals> = ) | (?P<newline> \n )
    | (?P<other> [^\s\[\]{},=\#"']+ )
    """,
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str
    line: int
    start: int
    end: int


def index(text: str) -> dict[Place, int]:
    """Map each key, table and array item of a valid TOML text to its line, counted from 1.

    What stands inside an inline table has the line of that table.
    """
    text = text.replace("\r\n", "\n") + "\n"
    lines: dict[Place, int] = {}
    sizes: dict[Place, int] = {}
    table: Place = ()
    for tokens in _statements(text):
        equals = next((number for number, token in enumerate(tokens) if token.kind == "equals"), None)
        if equals is None:
            table = _enter(text, tokens, sizes)
            _note(lines, table, tokens[0].line)
        else:
            place = table + _keys(text[tokens[0].start : tokens[equals].start])
            _note(lines, place, tokens[0].line)
            lines |= {(*place, item): line for item, line in enumerate(_items(text, tokens[equals + 1 :]))}
    return lines


def find(lines: Mapping[Place, int], place: Place) -> int:
    """Return the line of a place, or else of the nearest thing around it; 1 where there is none."""
    around = (place[:length] for length in range(len(place), 0, -1))
    return next((lines[each] for each in around if each in lines), 1)


def _statements(text: str) -> Iterator[list[_Token]]:
    tokens: list[_Token] = []
    depth = 0
    for token in _tokens(text):
        depth += (token.kind == "open") - (token.kind == "close")
        if token.kind != "newline":
            tokens.append(token)
        elif depth == 0 and tokens:
            yield tokens
            tokens = []


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind != "comment":
            yield _Token(kind, line, *match.span())
        line += match[0].count("\n")


def _keys(written: str) -> Place:
    """Read a dotted key, quotes and escapes included."""
    keys: list[str] = []
    value: object = tomllib.loads(f"{written} = 0")
    while isinstance(value, dict):
        keys += value
        value = value[keys[-1]]
    return tuple(keys)


def _enter(text: str, tokens: list[_Token], sizes: dict[Place, int]) -> Place:
    """Return the place that a header opens: ``[[a.b]]`` the next item of a.b, ``[a.b.c]`` inside the last one."""
    brackets = sum(token.kind == "open" for token in tokens)
    *parents, last = _keys(text[tokens[brackets].start : tokens[-brackets].start])
    place: Place = ()
    for key in parents:
        place = (*place, key)
        place = (*place, sizes[place] - 1) if place in sizes else place
    place = (*place, last)
    if brackets == 1:
        return place
    sizes[place] = sizes.get(place, 0) + 1
    return (*place, sizes[place] - 1)


def _note(lines: dict[Place, int], place: Place, line: int) -> None:
    for length in range(1, len(place) + 1):
        lines.setdefault(place[:length], line)


def _items(text: str, value: list[_Token]) -> Iterator[int]:
    """Give the line of each item, where the value is an array."""
    if text[value[0].start] != "[":
        return
    depth = 0
    for before, token in pairwise(value):
        depth += (before.kind == "open") - (before.kind == "close")
        if depth == 1 and before.kind in ("open", "comma") and token.kind != "close":
            yield token.line
