"""The line of a key: exact for whatever TOML allows, and cheap for a long text."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aml_nox.toml_lines import find, index

if TYPE_CHECKING:
    from aml_nox.faults import Place

TEXT = '''\
top = 1
# [not.a.table]

[a]
b = "]" # } """
"c d" = """
[not.a.table]
x = 1""\\"""""
e.f = ["one", [
  "two", # ,
  "three"],

  "four", { x = "five", y = [1, 2] },
]
'g' . "\\u0068" = {i = 1, j = [
  2]}
k = \'\'\'
\'\'quoted\'\'\'\'\'
[[a.m]]
n = []
[[ a . m ]]
n = 1
[a.m.o]
p = 2
[[a.m.q]]
r = 3
[[a.m.q]]
r = 4
[z]'''


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("top",), 1),
        (("a",), 4),
        (("a", "b"), 5),
        (("a", "c d"), 6),
        (("a", "e"), 9),
        (("a", "e", "f"), 9),
        (("a", "e", "f", 0), 9),
        (("a", "e", "f", 1), 9),
        (("a", "e", "f", 2), 13),
        (("a", "e", "f", 3), 13),
        (("a", "g", "h"), 15),
        (("a", "k"), 17),
        (("a", "m"), 19),
        (("a", "m", 0, "n"), 20),
        (("a", "m", 1), 21),
        (("a", "m", 1, "n"), 22),
        (("a", "m", 1, "o"), 23),
        (("a", "m", 1, "o", "p"), 24),
        (("a", "m", 1, "q", 0, "r"), 26),
        (("a", "m", 1, "q", 1), 27),
        (("a", "m", 1, "q", 1, "r"), 28),
        (("z",), 29),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_place_is_found_on_its_line(place: Place, line: int, line_end: str) -> None:
    assert index(TEXT.replace("\n", line_end))[place] == line


def test_what_only_looks_like_a_key_has_no_line() -> None:
    assert not [place for place in index(TEXT) if place[0] == "not" or place[-1] == "x"]


def test_a_place_without_a_line_has_that_of_what_is_around_it() -> None:
    lines = index(TEXT)
    assert find(lines, ("a", "e", "f", 3, "y", 1)) == 13
    assert find(lines, ("a", "missing")) == 4
    assert find(lines, ("missing", "b")) == 1
    assert find({}, ()) == 1


def test_a_long_array_with_brackets_in_every_line_is_read_once() -> None:
    """20,000 lines: reading anything twice for each line would take minutes."""
    count = 20_000
    text = "a = [\n" + "".join(f'  "name[extra]{number}", # ] }}\n' for number in range(count)) + "]\nb = 1\n"
    lines = index(text)
    assert (lines["a", 0], lines["a", count - 1], lines["b",]) == (2, count + 1, count + 3)


# Generated manifests -------------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """A part of a document, and which places below it begin on which of its lines, counted from 0."""

    text: str
    places: dict[Place, int]


WORDS = st.text(st.sampled_from("ab\"'#=[]{},\\ \n.é"), max_size=5)
FILL = st.lists(st.sampled_from(["", "  ", "# a ] comment }", '# """']), max_size=2)


def one_line(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def many_lines(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"""\n{escaped}"""'


STRINGS = st.builds(lambda text, spell: str(spell(text)), WORDS, st.sampled_from([one_line, many_lines]))
SCALARS = STRINGS | st.sampled_from(
    ["1", "true", "2026-01-01 00:00:00Z", "'[#'", "'''a\n'b''c'''", "{}", "{x = [1, 2]}"]
)


@st.composite
def arrays(draw: st.DrawFn) -> Written:
    text = "["
    places: dict[Place, int] = {}
    for number, item in enumerate(draw(st.lists(SCALARS, max_size=4))):
        text += draw(st.sampled_from(["", "\n", " # ,\n", "\n\n"]))
        places[number,] = text.count("\n")
        text += item + draw(st.sampled_from([",", " ,", "\n,", ", # ]\n"]))
    return Written(text + draw(st.sampled_from(["]", "\n]"])), places)


KEYS = st.text(st.sampled_from("ab.# ='é"), min_size=1, max_size=3)
PATHS = st.lists(KEYS, min_size=1, max_size=2).map(tuple)
VALUES = arrays() | SCALARS.map(lambda text: Written(text, {}))


@st.composite
def documents(draw: st.DrawFn) -> Written:
    """Make a document of tables and arrays of tables; the keys of each begin with its number, so that all differ."""
    text = ""
    places: dict[Place, int] = {}
    for number in range(draw(st.integers(0, 4))):
        text += "".join(f"{line}\n" for line in draw(FILL))
        place: Place = (f"t{number}",)
        for item in range(draw(st.integers(0, 2))):
            places[*place, item] = text.count("\n")
            text += f"[[ {one_line(f't{number}')} ]]\n" if item % 2 else f"[[t{number}]] # [x]\n"
            text, found = draw(assignments(text))
            places |= {(*place, item, *below): line for below, line in found.items()}
    return Written(text, places)


@st.composite
def assignments(draw: st.DrawFn, text: str) -> tuple[str, dict[Place, int]]:
    places: dict[Place, int] = {}
    for number, path in enumerate(draw(st.lists(PATHS, max_size=3))):
        text += "".join(f"{line}\n" for line in draw(FILL))
        place = (f"{number}{path[0]}", *path[1:])
        value = draw(VALUES)
        places[place] = text.count("\n")
        places |= {(*place, *below): text.count("\n") + line for below, line in value.places.items()}
        text += f"{' . '.join(map(one_line, place))} = {value.text}\n"
    return text, places


@given(documents())
def test_the_line_of_every_key_of_a_generated_document_is_right(document: Written) -> None:
    lines = index(document.text)
    assert {place: lines.get(place) for place in document.places} == {
        place: line + 1 for place, line in document.places.items()
    }


def holds(document: object, place: Place) -> bool:
    for step in place:
        match document:
            case dict() if step in document:
                document = document[step]
            case list() if isinstance(step, int) and step < len(document):
                document = document[step]
            case _:
                return False
    return True


@given(documents())
def test_nothing_but_what_the_document_holds_has_a_line(document: Written) -> None:
    tables = tomllib.loads(document.text)
    assert [place for place in index(document.text) if not holds(tables, place)] == []
