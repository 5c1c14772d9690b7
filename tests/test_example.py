"""The embedded example fits together: the manifest, its files, the data and what is written of it.

That it trains is for `.ci/run`, which has scikit-learn from an index; tests reach none.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from aml_nox import manifest
from aml_nox.errors import Code
from aml_nox.manifest import Train
from aml_nox.train import dataset, dirhash
from tests.test_training import by_hand

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "digits"
DATA = EXAMPLE / "data"


@pytest.fixture(scope="module")
def train() -> Train:
    """Give [train] of this repository."""
    found = manifest.load(ROOT / "aml.toml").train
    assert found is not None
    return found


def rows(name: str) -> list[list[int]]:
    """Read the rows of a table of the data, all of them whole numbers."""
    head, *lines = (DATA / name).read_text(encoding="ascii").splitlines()
    assert head.split(",") == [*(f"pixels_{number}" for number in range(64)), "digit"]
    return [[int(value) for value in line.split(",")] for line in lines]


def test_the_manifest_names_files_that_are_there(train: Train) -> None:
    assert train.script is not None
    assert train.evaluate is not None
    assert train.dataset is not None
    assert ROOT / train.script == EXAMPLE / "train.py"
    assert ROOT / train.evaluate == EXAMPLE / "evaluate.py"
    assert ROOT / train.dataset == DATA
    assert all((EXAMPLE / name).is_file() for name in ("train.py", "evaluate.py", "make_data.py"))


def test_the_example_shows_evaluation_gates_and_the_registry(train: Train) -> None:
    assert [gate.metric for gate in train.gates] == ["accuracy"]
    assert train.register is not None
    assert train.register.name == "digits"


def test_the_data_says_of_itself_what_its_tables_hold() -> None:
    found = dataset.read(DATA, label="data")
    assert found.spec is not None
    (pixels,), (digit,) = found.spec.inputs, found.spec.outputs
    assert (pixels.name, pixels.type, pixels.shape) == ("pixels", "number", (64,))
    assert (digit.name, digit.type, digit.shape) == ("digit", "integer", ())
    assert found.spec.held_out == "held-out.csv"
    assert [name for name, _ in found.measured.names] == ["held-out.csv", "spec.json", "train.csv"]


@pytest.mark.parametrize(("name", "count"), [("train.csv", 1347), ("held-out.csv", 450)])
def test_a_table_has_the_rows_and_values_that_are_written_of_it(name: str, count: int) -> None:
    found = rows(name)
    assert len(found) == count
    assert {len(row) for row in found} == {65}
    assert {value for *pixels, _ in found for value in pixels} == set(range(17))
    assert {row[-1] for row in found} == set(range(10))


def test_no_digit_is_trained_on_and_held_out() -> None:
    assert not {tuple(row[:64]) for row in rows("train.csv")} & {tuple(row[:64]) for row in rows("held-out.csv")}


def test_every_class_has_its_share_in_what_is_held_out() -> None:
    kept, held = ([row[-1] for row in rows(name)] for name in ("train.csv", "held-out.csv"))
    shares = {digit: held.count(digit) / (held.count(digit) + kept.count(digit)) for digit in range(10)}
    assert shares == pytest.approx(dict.fromkeys(range(10), 450 / 1797), abs=0.01)


def test_the_digest_of_the_data_is_what_the_shell_says() -> None:
    assert dirhash.measure(DATA, what="data", code=Code.MANIFEST).digest == by_hand(DATA)


def test_no_line_end_of_the_data_is_changed_by_a_checkout() -> None:
    """Its digest is of the bytes: git is told to leave them alone, and there is no carriage return to begin with."""
    assert not any(b"\r" in path.read_bytes() for path in DATA.iterdir())
    assert "data/* -text" in (EXAMPLE / ".gitattributes").read_text(encoding="utf-8").splitlines()


def test_what_is_written_of_the_split_is_true() -> None:
    kept, held = (len(rows(name)) for name in ("train.csv", "held-out.csv"))
    for name in ("README.md", "make_data.py"):
        text = (EXAMPLE / name).read_text(encoding="utf-8")
        assert f"{kept:,}" in text, name
        assert str(held) in text, name
    assert f"{kept + held:,} digits" in (EXAMPLE / "README.md").read_text(encoding="utf-8")


def test_what_makes_the_data_describes_it_as_it_is() -> None:
    tree = ast.parse((EXAMPLE / "make_data.py").read_text(encoding="utf-8"))
    (spec,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "SPEC"
    )
    assert ast.literal_eval(spec) == json.loads((DATA / "spec.json").read_text(encoding="ascii"))


def test_the_scripts_need_the_kit_and_what_the_environment_has_and_nothing_else() -> None:
    allowed = {"__future__", "pickle", "amlkit", "aml_eval", "sklearn"}
    for name in ("train.py", "evaluate.py"):
        text = (EXAMPLE / name).read_text(encoding="utf-8")
        assert set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)) <= allowed
