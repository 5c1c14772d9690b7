"""A dataset: measured and described; of a description every fault is told at once, with file and place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aml_nox import store
from aml_nox.errors import AmlError, Code
from aml_nox.train import dataset
from aml_nox.train.dataset import IoSpec, Port

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = {"name": "image", "type": "number", "shape": [28, 28, None], "description": "grey"}
DIGIT = {"name": "digit", "type": "integer", "shape": []}
SPEC: dict[str, Any] = {"schema": 1, "inputs": [IMAGE], "outputs": [DIGIT]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a dataset without a description."""
    (tmp_path / "data" / "test").mkdir(parents=True)
    for name in ("train.csv", "test/x.csv", "test/y.csv"):
        (tmp_path / "data" / name).write_text(name)
    return tmp_path / "data"


def refusal(folder: Path, text: str) -> list[str]:
    (folder / "spec.json").write_text(text)
    with pytest.raises(AmlError) as caught:
        dataset.read(folder, label="aml.toml: train.dataset")
    assert caught.value.code is Code.MANIFEST
    assert caught.value.hint
    return caught.value.message.split("\n")


def test_a_dataset_needs_no_description(folder: Path) -> None:
    found = dataset.read(folder, label="data")
    assert (found.path, found.spec, found.measured.files) == (folder, None, 3)


def test_a_description_is_read_and_counts_in_the_digest(folder: Path) -> None:
    before = dataset.read(folder, label="data").measured.digest
    (folder / "spec.json").write_text(json.dumps(SPEC | {"held_out": "test/x.csv"}))
    found = dataset.read(folder, label="data")
    image = Port(name="image", type="number", shape=(28, 28, None), description="grey")
    digit = Port(name="digit", type="integer", shape=())
    assert found.spec == IoSpec(inputs=(image,), outputs=(digit,), held_out="test/x.csv")
    assert found.measured.digest != before


@pytest.mark.parametrize(("written", "read"), [("test", "test"), ("test/", "test"), ("train.csv", "train.csv")])
def test_what_is_held_out_is_a_file_or_a_folder_of_the_dataset(folder: Path, written: str, read: str) -> None:
    (folder / "spec.json").write_text(json.dumps(SPEC | {"held_out": written}))
    spec = dataset.read(folder, label="data").spec
    assert spec is not None
    assert spec.held_out == read


@pytest.mark.parametrize(
    "path", ["", "/", ".", "..", "../data/train.csv", "./train.csv", "tes", "test//x.csv", "Test", "/etc/passwd"]
)
def test_what_is_held_out_lies_in_the_dataset(folder: Path, path: str) -> None:
    (line,) = refusal(folder, json.dumps(SPEC | {"held_out": path}))
    assert line.startswith("aml.toml: train.dataset: spec.json: held_out: the dataset has no file or folder ")


def test_all_faults_are_told_at_once_each_with_its_place(folder: Path) -> None:
    wrong = {
        "schema": 2,
        "inputs": [
            IMAGE | {"type": "nubmer", "shape": [0, 1.0, True, "x", 28]},
            IMAGE | {"unit": "m"},
            IMAGE,
            {"nam": "x", "shape": 3},
            7,
        ],
        "outputs": {"digit": DIGIT},
        "heldout": "test",
        "held_out": 1,
    }
    assert refusal(folder, json.dumps(wrong)) == [
        f"aml.toml: train.dataset: spec.json: {line}"
        for line in (
            "held_out: expected a string, found a number; correct it",
            'heldout: unknown name; did you mean "held_out"?',
            "inputs[0].shape[0]: a length is an integer, 1 or more, or null for any; correct it",
            "inputs[0].shape[1]: a length is an integer, 1 or more, or null for any; correct it",
            "inputs[0].shape[2]: a length is an integer, 1 or more, or null for any; correct it",
            "inputs[0].shape[3]: a length is an integer, 1 or more, or null for any; correct it",
            'inputs[0].type: expected one of number, integer, string, boolean, found "nubmer"; did you mean "number"?',
            'inputs[1].name: "image" is the name of another one, too; choose another',
            "inputs[1].unit: unknown name; known are description, name, shape, type",
            'inputs[2].name: "image" is the name of another one, too; choose another',
            'inputs[3].nam: unknown name; did you mean "name"?',
            "inputs[3].name: is missing; add it",
            "inputs[3].shape: expected an array, found a number; correct it",
            "inputs[3].type: is missing; add it",
            "inputs[4]: expected an object, found a number; correct it",
            "outputs: expected an array, found an object; correct it",
            "schema: this version reads 1 alone; write 1",
        )
    ]


def test_faults_are_told_in_the_order_of_the_file(folder: Path) -> None:
    ports = [IMAGE | {"name": str(number), "type": "x"} for number in range(11)]
    lines = refusal(folder, json.dumps(SPEC | {"inputs": ports}))
    assert [line.split(": ")[3] for line in lines] == [f"inputs[{number}].type" for number in range(11)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema": 1, "schema": 1, "inputs": [], "outputs": []}', 'a name stands twice: "schema"'),
        ('{"schema": 1, "inputs": [{"name": "a", "name": "b"}], "outputs": []}', 'a name stands twice: "name"'),
        ('{"schema": NaN, "inputs": [], "outputs": []}', "NaN is not JSON"),
        ('{"schema": 1, "inputs": [-Infinity], "outputs": []}', "-Infinity is not JSON"),
        ("{", "cannot be read"),
        ("", "cannot be read"),
        ("[" * 100_000, "nested too deeply"),
        ("{}" + " " * (1 << 20), "not a file of at most 1 MiB"),
        ("[]", "expected an object, found an array"),
        ("null", "expected an object, found null"),
        ('{"schema": true, "inputs": [], "outputs": []}', "schema: this version reads 1 alone"),
        ('{"schema": 1.0, "inputs": [], "outputs": []}', "schema: this version reads 1 alone"),
        (json.dumps(SPEC | {"inputs": [IMAGE | {"name": ""}]}), "inputs[0].name: a name is empty"),
        (
            json.dumps(SPEC | {"inputs": [IMAGE | {"name": "a\x1b"}]}),
            "inputs[0].name: a name is empty or holds a control",
        ),
        (json.dumps(SPEC | {"inputs": [IMAGE | {"shape": [2**31]}]}), "inputs[0].shape[0]: a length"),
        (json.dumps(SPEC | {"inputs": [IMAGE | {"shape": None}]}), "inputs[0].shape: expected an array, found null"),
        (json.dumps(SPEC | {"inputs": [IMAGE | {"description": None}]}), "inputs[0].description: expected a string"),
    ],
)
def test_what_is_not_the_format_is_refused(folder: Path, text: str, why: str) -> None:
    (line,) = refusal(folder, text)
    assert why in line
    assert line.isprintable()


def test_a_folder_in_the_descriptions_place_is_refused(folder: Path) -> None:
    (folder / "spec.json" / "x").mkdir(parents=True)
    with pytest.raises(AmlError, match=r"spec\.json: cannot be read: it is not a file"):
        dataset.read(folder, label="data")


def test_data_that_cannot_be_hashed_honestly_is_a_fault_of_the_manifest(folder: Path) -> None:
    (folder / "x").symlink_to("train.csv")
    with pytest.raises(AmlError, match=r'^aml\.toml: train\.dataset: "x" is a link') as caught:
        dataset.read(folder, label="aml.toml: train.dataset")
    assert caught.value.code is Code.MANIFEST


# --- of a job or a model


def test_a_contract_is_written_without_what_concerns_the_dataset_alone_and_read_back(folder: Path) -> None:
    (folder / "spec.json").write_text(json.dumps(SPEC | {"held_out": "test"}))
    spec = dataset.read(folder, label="data").spec
    assert spec is not None
    store.write_json(folder / "io_spec.json", spec.to_json())
    assert json.loads((folder / "io_spec.json").read_text()) == SPEC
    assert dataset.parse_io_spec(folder / "io_spec.json") == IoSpec(inputs=spec.inputs, outputs=spec.outputs)
    assert dataset.parse_io_spec(folder / "spec.json") == spec


def test_a_job_holds_nothing_out_and_its_faults_have_the_callers_code(folder: Path) -> None:
    path = folder / "io_spec.json"
    path.write_text(json.dumps(SPEC | {"held_out": "test"}))
    with pytest.raises(AmlError, match=r"^io_spec\.json: held_out: unknown name") as caught:
        dataset.parse_io_spec(path, code=Code.JOB_FAILED)
    assert caught.value.code is Code.JOB_FAILED
    path.unlink()
    with pytest.raises(AmlError, match=r"^job 1: cannot be read: No such file"):
        dataset.parse_io_spec(path, label="job 1")


def test_a_contract_is_read_from_a_plain_file_alone(folder: Path) -> None:
    """A link could lead to any file of the user's."""
    (folder / "good").write_text(json.dumps(SPEC))
    (folder / "io_spec.json").symlink_to("good")
    with pytest.raises(AmlError, match="it is not a file"):
        dataset.parse_io_spec(folder / "io_spec.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*SPEC, *IMAGE, "held_out", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def told(path: Path) -> IoSpec | list[str]:
    """Give the description, or its faults."""
    try:
        return dataset.parse_io_spec(path)
    except AmlError as error:
        return error.message.split("\n")


@given(JSON)
def test_whatever_the_json_it_is_a_description_or_a_told_fault(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "io_spec.json"
    path.write_text(json.dumps(value))
    found = told(path)
    if isinstance(found, IoSpec):
        assert found.to_json() | {"schema": 1} == value
    else:
        assert all(line.startswith("io_spec.json: ") for line in found)
