"""How a fault speaks: short, harmless to a terminal, and with the name that was meant."""

from __future__ import annotations

import pytest

from aml_nox.faults import FaultError, Gather, fault, key_path, quote, suggest, type_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('a"b', '"a\\"b"'),
        ("é", '"é"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        ("\u202e", '"\\u202e"'),
        ("x" * 60, f'"{"x" * 60}"'),
        ("x" * 61, f'"{"x" * 60}…"'),
    ],
)
def test_a_quoted_text_is_cut_and_cannot_move_the_cursor(text: str, shown: str) -> None:
    assert quote(text) == shown


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("GPU", 'did you mean "gpu"? Upper and lower case differ here'),
        ("gpuu", 'did you mean "gpu"?'),
        ("zzz", "known are default, gpu"),
        ("gpu" + "x" * 10_000, "known are default, gpu"),
    ],
)
def test_the_likely_name_is_suggested_or_else_each_known_one_once(name: str, advice: str) -> None:
    assert suggest(name, ["gpu", "default", "default"]) == advice


def test_a_place_is_written_as_toml_people_do() -> None:
    assert key_path(("a-b", "c d", 0, "é", 1, 2)) == 'a-b."c d"[0]."é"[1][2]'


def test_a_type_that_toml_does_not_have_is_nothing() -> None:
    assert (type_of(True), type_of(1), type_of(None)) == ("a boolean", "an integer", "nothing")


def test_faults_are_gathered_with_the_place_of_each() -> None:
    gather = Gather()
    for number in range(2):
        with gather.under("list", number):
            raise fault("wrong", "key")
    with pytest.raises(FaultError, match=r"^wrong; wrong$") as caught:
        gather.close()
    assert [key_path(each.place) for each in caught.value.faults] == ["list[0].key", "list[1].key"]
