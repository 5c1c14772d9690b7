"""The kit: what a job tells is true, strict and whole, and what is measured for it is right."""

from __future__ import annotations

import ast
import json
import math
import os
import sys
from collections import Counter
from contextlib import ExitStack
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aml_nox.kit
from tests.support.processes import Run, Started, run, wait_until

KIT = Path(aml_nox.kit.__file__).parent
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aml_nox.kit import aml_eval, amlkit
else:
    sys.path.append(str(KIT))  # as a job has it by its PYTHONPATH
    import aml_eval
    import amlkit

DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "data"
LAW = settings(deadline=None)  # no example is judged by how long it takes
SPEC: dict[str, Any] = {
    "schema": 1,
    "inputs": [
        {"name": "size", "type": "number", "shape": [2]},
        {"name": "rooms", "type": "integer", "shape": []},
        {"name": "city", "type": "string", "shape": [], "description": "where it is"},
        {"name": "new", "type": "boolean", "shape": []},
    ],
    "outputs": [{"name": "price", "type": "number", "shape": []}],
    "held_out": "rest.csv",
}
HEADER = "id,price,new,size_1,size_0,rooms,city\n"
#: No file may grow beyond what argv[1] says, in bytes: to a writer the same as a full disk.
FULL = """import resource, sys, amlkit
HARD = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), HARD))
"""


class Job:
    """A job's directory, and its dataset's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.dataset = folder / "job", folder / "data"
        self.folder.mkdir()
        self.dataset.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        """What the kit looks at, and how Python finds the kit."""
        return {
            "AML_JOB_DIR": str(self.folder),
            "AML_DATASET_DIR": str(self.dataset),
            "PYTHONPATH": str(KIT),
            "PYTHONDONTWRITEBYTECODE": "1",
            **{name: value for name, value in os.environ.items() if name.startswith(("COV_", "COVERAGE_"))},
        }

    def argv(self, script: str, *args: str) -> list[str | Path]:
        (self.folder / "script.py").write_text(script, encoding="utf-8")
        return [sys.executable, self.folder / "script.py", *args]

    def run(self, script: str, *args: str, code: int = 0) -> Run:
        """Run a script as a job runs it, to its end, and hold its exit code."""
        return run(self.argv(script, *args), env=self.environment, cwd=self.folder).expect(code)

    def json(self, name: str) -> Any:  # noqa: ANN401 - JSON
        return strict((self.folder / name).read_text(encoding="utf-8"))

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """Parse every line of events.jsonl, and give those of a kind without their time."""
        lines = (self.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        found = [strict(line) for line in lines]
        for each in found:
            assert datetime.fromisoformat(each.pop("time")).utcoffset() == timedelta(0)
        return [each for each in found if each["event"].startswith(kind)]

    def describe(self, spec: Mapping[str, Any] | str, table: str | bytes = "") -> None:
        """Fill the dataset's folder."""
        text = spec if isinstance(spec, str) else json.dumps(spec)
        (self.dataset / "spec.json").write_text(text, encoding="utf-8")
        (self.dataset / "rest.csv").write_bytes(table if isinstance(table, bytes) else table.encode())


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Give a job, which this process is also in."""
    made = Job(tmp_path)
    monkeypatch.setenv("AML_JOB_DIR", str(made.folder))
    monkeypatch.setenv("AML_DATASET_DIR", str(made.dataset))
    return made


def strict(text: str) -> Any:  # noqa: ANN401 - JSON
    """Parse JSON as RFC 8259 has it."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


class Scalar:
    """One value as numpy and torch hold it."""

    def __init__(self, value: float) -> None:
        self._value = value

    def item(self) -> float:
        return self._value


class Several:
    """An array of several values, as it answers when one asks for the only one."""

    def item(self) -> float:
        raise ValueError("can only convert an array of size 1")


# --- what it needs


def test_a_job_needs_nothing_but_python_3_10(job: Job) -> None:
    """Without site-packages, the interpreter has the standard library alone; aml_nox must not be looked for."""
    for path in KIT.glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    script = f"import sys; sys.path.append({str(KIT)!r}); import amlkit, aml_eval; assert 'aml_nox' not in sys.modules"
    run([sys.executable, "-I", "-S", "-c", script], env=job.environment, cwd=job.folder).expect()


def test_no_module_of_the_kit_stands_before_another_one() -> None:
    """The folder is early on the path of every job: a common name in it would hide somebody's module."""
    assert {path.stem for path in KIT.glob("*.py")} == {"__init__", "amlkit", "aml_eval"}


@pytest.mark.parametrize(
    "function",
    [
        amlkit.job_dir,
        amlkit.model_dir,
        amlkit.dataset_dir,
        amlkit.dataset_spec,
        amlkit.parameters,
        lambda: amlkit.read_table("a.csv"),
        lambda: amlkit.progress(0.5),
        lambda: amlkit.log_metrics(1, loss=1),
        lambda: amlkit.save_metrics(loss=1),
        lambda: amlkit.save_io_spec([], []),
        aml_eval.held_out,
        lambda: aml_eval.evaluate(len),  # type: ignore[arg-type]  # it is never called
    ],
)
def test_outside_of_a_job_the_way_into_one_is_told(
    function: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(amlkit.KitError, match="is not a job: start the script by `nox -s train`"):
        function()


def test_a_job_without_a_dataset_names_the_key_for_one(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AML_DATASET_DIR")
    with pytest.raises(amlkit.KitError, match=r"train\.dataset in aml\.toml"):
        amlkit.dataset_dir()
    assert amlkit.job_dir() == job.folder


def test_the_folder_for_the_model_is_there(job: Job) -> None:
    assert amlkit.model_dir() == amlkit.model_dir() == job.folder / "model"
    assert amlkit.model_dir().is_dir()


# --- parameters


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> amlkit.Parameters:
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    return amlkit.parameters(learning_rate=0.1, epochs=10, name="run", shuffle=True)


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ("", {}),
        ("--learning-rate 0.5 --epochs 3", {"learning_rate": 0.5, "epochs": 3}),
        ("--learning-rate=1", {"learning_rate": 1.0}),
        ("--learning_rate -1e-3", {"learning_rate": -0.001}),
        ("--name=--x=y --epochs 1 --epochs 2", {"name": "--x=y", "epochs": 2}),
        ("--name=", {"name": ""}),
        ("--no-shuffle", {"shuffle": False}),
        ("--no-shuffle --shuffle", {}),
    ],
)
def test_the_command_line_is_read_with_the_types_of_the_defaults(
    job: Job, monkeypatch: pytest.MonkeyPatch, arguments: str, changed: dict[str, object]
) -> None:
    expected = {"learning_rate": 0.1, "epochs": 10, "name": "run", "shuffle": True} | changed
    found = vars(asked(monkeypatch, *arguments.split()))
    assert found == expected
    assert [type(value) for value in found.values()] == [float, int, str, bool]
    assert job.events() == [{"event": "parameters", "values": expected}]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--learning-rat 1", "no parameter --learning-rat; did you mean --learning-rate?"),
        ("--xyz 1", "no parameter --xyz; there is --learning-rate, --epochs, --name, --shuffle"),
        ("7", "no parameter 7"),
        ("-epochs 7", "no parameter -epochs; did you mean --epochs?"),
        ("--no-epochs", "no parameter --no-epochs; did you mean --epochs?"),
        ("--epochs 1.5", "--epochs: '1.5' is no whole number"),
        ("--learning-rate nan", "--learning-rate: 'nan' is no finite number"),
        ("--learning-rate x", "--learning-rate: 'x' is no finite number"),
        ("--epochs", "--epochs has no value"),
        ("--name --epochs 3", "--name has no value; one that begins with -- is given as --name=VALUE"),
        ("--shuffle=no", "--shuffle takes no value: it is --shuffle or --no-shuffle"),
    ],
)
def test_a_parameter_that_is_not_understood_ends_the_job_at_its_start(
    job: Job, monkeypatch: pytest.MonkeyPatch, arguments: str, why: str
) -> None:
    with pytest.raises(amlkit.KitError) as caught:
        asked(monkeypatch, *arguments.split())
    assert why in str(caught.value)
    assert not (job.folder / "events.jsonl").exists()


def test_parameters_stay_what_the_job_was_started_with(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(monkeypatch)
    with pytest.raises(AttributeError, match="stays"):
        found.epochs = 3
    with pytest.raises(AttributeError, match="stays"):
        del found.epochs
    with pytest.raises(AttributeError, match="did you mean epochs"):
        _ = found.epoch
    assert repr(found) == "Parameters(learning_rate=0.1, epochs=10, name='run', shuffle=True)"
    assert len(job.events()) == 1


@pytest.mark.parametrize("default", [math.nan, None, [1]])
def test_a_default_has_a_type_that_a_command_line_can_hold(default: Any) -> None:  # noqa: ANN401 - any wrong one
    with pytest.raises(ValueError, match="parameter x"):
        amlkit.parameters(x=default)


# --- events


def test_progress_is_told_ten_times_a_second_but_every_note_and_the_end() -> None:
    throttle = amlkit.Throttle(0.1)
    news = [
        (0.0, 0.1, "load", True),
        (0.0625, 0.2, "load", False),
        (0.125, 0.3, "load", True),
        (0.1875, 0.4, "load", False),  # it is counted from the last one that was told
        (0.1875, 0.4, "fit", True),
        (0.1875, 0.5, "fit", False),
        (0.1875, 1.0, "fit", True),
    ]
    assert [throttle.lets(fraction, note, now=now) for now, fraction, note, _ in news] == [told for *_, told in news]


@pytest.mark.parametrize("fraction", [-0.01, 1.01, math.nan, math.inf, "1", None])
def test_progress_is_a_number_of_0_to_1(job: Job, fraction: Any) -> None:  # noqa: ANN401 - any wrong one
    with pytest.raises(ValueError, match="0 to 1"):
        amlkit.progress(fraction)
    assert list(job.folder.iterdir()) == []


def test_progress_is_an_event(job: Job) -> None:
    job.run(
        "import amlkit; amlkit.progress(0); amlkit.progress(1, 'd\\u00f6ne\\n'); amlkit.progress(1, 'd\\u00f6ne\\n')"
    )
    done = {"event": "progress", "fraction": 1, "note": "döne\n"}
    assert job.events() == [{"event": "progress", "fraction": 0, "note": ""}, done, done]


def test_a_number_that_json_cannot_hold_does_not_end_the_training(job: Job) -> None:
    amlkit.log_metrics(7, {"loss": math.nan, "a b": 2}, best=-math.inf, rate=0.5, huge=10**400)
    values = {"loss": None, "a b": 2, "best": None, "rate": 0.5, "huge": None}
    assert job.events() == [{"event": "metrics", "step": 7, "values": values, "not_finite": ["best", "huge", "loss"]}]


def test_numbers_of_other_libraries_are_told_as_what_they_are(job: Job) -> None:
    amlkit.log_metrics(1, whole=Scalar(3), part=Scalar(0.5), exact=Fraction(1, 4), lost=Scalar(math.nan))
    values = {"whole": 3, "part": 0.5, "exact": 0.25, "lost": None}
    (event,) = job.events()
    assert event == {"event": "metrics", "step": 1, "values": values, "not_finite": ["lost"]}
    assert type(event["values"]["whole"]) is int


@pytest.mark.parametrize("value", ["0.5", True, None, [1], Scalar(True), Several()])
def test_what_is_no_number_is_no_metric_of_a_step(job: Job, value: object) -> None:
    with pytest.raises(ValueError, match=r"no number|no single value"):
        amlkit.log_metrics(1, loss=value)
    assert list(job.folder.iterdir()) == []


def test_several_processes_tell_at_once_and_no_line_is_torn(job: Job) -> None:
    """They wait for one another, and the lines are long enough to be cut by a writer that buffers."""
    script = """import os, sys, amlkit
open(f"here-{sys.argv[1]}", "w").close()
while not os.path.exists("go"):
    pass
for step in range(500):
    amlkit.log_metrics(step, {sys.argv[1] * 5000: step})
"""
    argv = job.argv(script)
    with ExitStack() as stack:
        started = [
            stack.enter_context(Started([*argv, letter], env=job.environment, cwd=job.folder)) for letter in "abcd"
        ]
        wait_until(lambda: len(list(job.folder.glob("here-*"))) == len(started), "all four are there")
        (job.folder / "go").touch()
        for each in started:
            each.finish().expect()
    told: dict[str, list[int]] = {}
    for event in job.events("metrics"):
        for name, value in event["values"].items():
            told.setdefault(name, []).append(value)
    assert told == {letter * 5000: list(range(500)) for letter in "abcd"}


@pytest.mark.skipif(sys.platform == "win32", reason="RLIMIT_FSIZE is of POSIX")
def test_a_full_disk_ends_the_telling_and_not_the_training(job: Job) -> None:
    """The limit cuts the second line; when there is room again, what is told then can be read."""
    script = f"""{FULL}
for step in range(5):
    amlkit.log_metrics(step, loss=0.5)
    amlkit.progress(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (HARD, HARD))
amlkit.log_metrics(5, loss=0.5)
print("trained")
"""
    done = job.run(script, "150")
    assert done.out == "trained\n"
    (warning,) = done.err.splitlines()
    assert warning.startswith("amlkit: events.jsonl cannot be written (")
    first, cut, *_, last = (job.folder / "events.jsonl").read_text().splitlines()
    assert strict(first)["step"] == 0
    assert not cut.endswith("}")
    assert strict(last)["step"] == 5


# --- metrics.json


def test_metrics_are_strict_json_in_order_and_calls_add_up(job: Job) -> None:
    job.run("""import amlkit
amlkit.save_metrics({"b": 1, "a b": None}, c=[1, (2.5, {"x": True})])
amlkit.save_metrics(b=2, a="text")
""")
    assert job.json("metrics.json") == {"a": "text", "a b": None, "b": 2, "c": [1, [2.5, {"x": True}]]}
    assert list(job.json("metrics.json")) == ["a", "a b", "b", "c"]
    assert {path.name for path in job.folder.iterdir()} == {"metrics.json", "script.py"}


def test_what_another_process_claimed_is_not_among_what_this_one_measured(job: Job) -> None:
    """The evaluation runs after the training, and the gates judge its metrics.json: no claim may stand in it."""
    job.run("import amlkit; amlkit.save_metrics(accuracy=1.0, claimed=1.0)")
    job.run("import amlkit; amlkit.save_metrics(accuracy=0.5)")
    assert job.json("metrics.json") == {"accuracy": 0.5}


def test_numbers_of_other_libraries_are_saved_as_what_they_are(job: Job) -> None:
    job.run("""import amlkit, enum
class Scalar:
    def __init__(self, value): self.value = value
    def item(self): return self.value
amlkit.save_metrics(a=Scalar(3), b=Scalar(0.5), c=Scalar(True), d=[Scalar(1)], e=enum.IntEnum("Few", "ONE").ONE)
""")
    assert (job.folder / "metrics.json").read_text().split() == [
        *"""{ "a": 3, "b": 0.5, "c": true, "d": [ 1 ], "e": 1 }""".split()
    ]


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (math.nan, "metric loss:"),
        (-math.inf, "metric loss:"),
        (10**400, "metric loss:"),
        (Scalar(math.nan), "metric loss:"),
        (Several(), "metric loss:"),
        (b"text", "metric loss:"),
        ({1}, "metric loss:"),
        (1j, "metric loss:"),
        ({"fold": [1, math.nan]}, "metric loss.fold[1]:"),
        ({"fold": {1: 2}}, "the name 1 of a metric"),
    ],
)
def test_a_value_that_json_cannot_hold_is_named_and_nothing_is_written(job: Job, value: object, where: str) -> None:
    with pytest.raises(ValueError, match=r"finite number|no text") as caught:
        amlkit.save_metrics(accuracy=1, loss=value)
    assert str(caught.value).startswith(where)
    assert list(job.folder.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="RLIMIT_FSIZE is of POSIX")
def test_a_full_disk_ends_a_job_that_cannot_save_and_leaves_what_was_saved(job: Job) -> None:
    done = job.run(f"{FULL}amlkit.save_metrics(a=1)\namlkit.save_metrics(b='x' * 100)", "50", code=1)
    assert "OSError: [Errno 27]" in done.err or "File too large" in done.err
    assert job.json("metrics.json") == {"a": 1}
    assert {path.name for path in job.folder.iterdir()} == {"metrics.json", "script.py"}


def test_whoever_reads_metrics_while_they_are_saved_finds_them_whole(job: Job) -> None:
    script = "import amlkit\nfor count in range(200): amlkit.save_metrics(count=count, text='x' * 100_000)"
    path, seen = job.folder / "metrics.json", 0
    with Started(job.argv(script), env=job.environment, cwd=job.folder) as writer:
        wait_until(path.exists, "the first metrics")
        while writer.poll() is None:
            seen = job.json("metrics.json")["count"]
        writer.finish().expect()
    assert 0 <= seen <= job.json("metrics.json")["count"] == 199


# --- the specs


def test_a_job_without_a_spec_tells_what_its_model_takes_and_gives(job: Job) -> None:
    image = {"name": "image", "type": "number", "shape": (None, 28), "description": "grey"}
    amlkit.save_io_spec([image], [{"name": "cat", "type": "boolean", "shape": []}])
    assert job.json("io_spec.json") == {
        "schema": 1,
        "inputs": [{"name": "image", "type": "number", "shape": [None, 28], "description": "grey"}],
        "outputs": [{"name": "cat", "type": "boolean", "shape": []}],
    }


ITEM = {"name": "x", "type": "number", "shape": []}
WRONG_ITEMS = [
    ({**ITEM, "type": "float"}, "x: the type 'float' is none of number, integer, string, boolean"),
    ({**ITEM, "shape": [0]}, r"x: the shape \[0\]"),
    ({**ITEM, "shape": [True]}, r"x: the shape \[True\]"),
    ({**ITEM, "shape": 3}, "x: the shape 3"),
    ({**ITEM, "shape": [2**31]}, r"x: the shape \[2147483648\]"),
    ({**ITEM, "name": ""}, "the name ''"),
    ({**ITEM, "name": "\a"}, "the name '.x07'"),
    ({"type": "number"}, "the name None"),
    ({**ITEM, "description": 1}, "x: the description"),
    ("x", "'x' is no object"),
]


@pytest.mark.parametrize(("item", "why"), WRONG_ITEMS)
def test_an_item_of_another_form_is_refused_where_it_is_written_and_read(job: Job, item: Any, why: str) -> None:  # noqa: ANN401 - any wrong one
    with pytest.raises(ValueError, match=why):
        amlkit.save_io_spec([item], [])
    job.describe({**SPEC, "inputs": [item]})
    with pytest.raises(amlkit.KitError, match=f"spec.json: {why}"):
        amlkit.dataset_spec()
    assert list(job.folder.iterdir()) == []


def test_an_io_spec_holds_no_name_twice_and_no_unknown_key(job: Job) -> None:
    with pytest.raises(ValueError, match="inputs: a name stands twice"):
        amlkit.save_io_spec([ITEM, ITEM], [])
    with pytest.raises(ValueError, match="there is no key unit"):
        amlkit.save_io_spec([], [{**ITEM, "unit": "m"}])
    assert list(job.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[]", "no JSON object"),
        ('{"schema": 2, "inputs": [], "outputs": []}', '"schema": 1'),
        ('{"schema": 1, "inputs": []}', "outputs: it is a list"),
    ],
)
def test_a_spec_that_cannot_be_read_is_named(job: Job, text: str, why: str) -> None:
    with pytest.raises(amlkit.KitError, match="No such file"):
        amlkit.dataset_spec()
    job.describe(text)
    with pytest.raises(amlkit.KitError, match=why) as caught:
        amlkit.dataset_spec()
    assert str(job.dataset / "spec.json") in str(caught.value)


# --- the held-out rows


def test_held_out_rows_are_typed_and_ordered_by_the_spec(job: Job) -> None:
    """Columns stand in any order, others are left out; empty lines are no rows."""
    table = HEADER + '7,1e3,true,2,1,3,"Bonn, am\nRhein"\r\n\n8,-5,0,.5,4,-1,\n\n'
    job.describe(SPEC, table)
    rows, truths = aml_eval.held_out()
    assert rows == [[1.0, 2.0, 3, "Bonn, am\nRhein", True], [4.0, 0.5, -1, "", False]]
    assert truths == [1000.0, -5.0]
    assert [type(value) for value in rows[0]] == [float, float, int, str, bool]


def test_a_byte_order_mark_is_no_part_of_a_columns_name(job: Job) -> None:
    job.describe(SPEC | {"inputs": []}, b"\xef\xbb\xbfprice\n5\n")
    assert aml_eval.held_out() == ([[]], [5.0])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("1,x,true,2,1,3,A", "price: 'x' is no finite number"),
        ("1,nan,true,2,1,3,A", "price: 'nan' is no finite number"),
        ("1,1e999,true,2,1,3,A", "price: '1e999' is no finite number"),
        ("1,,true,2,1,3,A", "price: '' is no finite number"),
        ("1,5,true,2,1,3.0,A", "rooms: '3.0' is no whole number"),
        ("1,5,yes,2,1,3,A", "new: 'yes' is no true or false"),
        ("1,5,true,2,1,3", "6 values for 7 columns"),
        ("1,5,true,2,1,3,A,B", "8 values for 7 columns"),
        ('1,5,true,2,1,3,"A"B', "expected"),
    ],
)
def test_a_row_that_does_not_fit_is_named_by_file_and_line(job: Job, row: str, why: str) -> None:
    job.describe(SPEC, f'{HEADER}1,5,true,2,1,3,"two\nlines"\n{row}\n')
    with pytest.raises(amlkit.KitError, match=why) as caught:
        aml_eval.held_out()
    assert str(caught.value).startswith(f"{job.dataset / 'rest.csv'}, line 4: ")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("", "line 1: 0 columns are called size_0"),
        (HEADER, "there is no row"),
        (HEADER.replace("size_0", "size_9"), "line 1: 0 columns are called size_0"),
        (HEADER.replace("id", "rooms"), "line 1: 2 columns are called rooms"),
        (HEADER.encode() + b"1,5,true,2,1,3,\xff\n", "codec"),
    ],
)
def test_a_file_that_is_no_such_table_is_named(job: Job, table: str | bytes, why: str) -> None:
    job.describe(SPEC, table)
    with pytest.raises(amlkit.KitError, match=why) as caught:
        aml_eval.held_out()
    assert str(caught.value).startswith(str(job.dataset / "rest.csv"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"held_out": None}, 'names no "held_out" file'),
        ({"held_out": "none.csv"}, "none.csv: .*No such file"),
        ({"outputs": []}, "exactly one output"),
        ({"outputs": [{**ITEM, "shape": [1]}]}, "exactly one output"),
        ({"inputs": [{**ITEM, "shape": [2, 2]}]}, r"x: a table holds shapes \[\] and \[n\], not \[2, 2\]"),
        ({"inputs": [{**ITEM, "shape": [None]}]}, r"not \[null\]"),
    ],
)
def test_a_spec_that_describes_no_table_is_told(job: Job, change: dict[str, object], why: str) -> None:
    job.describe(SPEC | change, HEADER)
    with pytest.raises(amlkit.KitError, match=why):
        aml_eval.held_out()


# --- measuring


def test_classification_has_the_known_values() -> None:
    """The example of scikit-learn's precision_recall_fscore_support; two of six are right."""
    found = aml_eval.classification([0, 1, 2, 0, 1, 2], [0, 2, 1, 0, 0, 1])
    assert found == pytest.approx(
        {
            "count": 6,
            "accuracy": 2 / 6,
            "macro_precision": 2 / 9,
            "macro_recall": 1 / 3,
            "macro_f1": 4 / 15,
            "recall.0": 1,
            "recall.1": 0,
            "recall.2": 0,
        }
    )


def test_regression_has_the_known_values() -> None:
    """The example of scikit-learn's mean_squared_error and r2_score."""
    found = aml_eval.regression([3, -0.5, 2, 7], [2.5, 0.0, 2, 8])
    expected = {"count": 4, "mae": 0.5, "rmse": math.sqrt(0.375), "max_error": 1, "r2": 0.9486081370449679}
    assert found == pytest.approx(expected, rel=1e-14)


CLASSES = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=40)


@LAW
@given(CLASSES)
def test_classification_is_what_its_definition_says(pairs: list[tuple[int, int]]) -> None:
    """Counted for each class by itself, in fractions: of those called so, of those that are so, and both."""
    found = aml_eval.classification(*zip(*pairs, strict=True))
    classes = {label for pair in pairs for label in pair}
    tables = []
    for label in classes:
        hits = sum(truth == guess == label for truth, guess in pairs)
        called = sum(guess == label for _, guess in pairs)
        are = sum(truth == label for truth, _ in pairs)
        precision, recall = Fraction(hits, called or 1), Fraction(hits, are or 1)
        tables.append((precision, recall, 2 * precision * recall / ((precision + recall) or 1)))
        assert (f"recall.{label}" in found) == (are > 0)
        assert not are or found[f"recall.{label}"] == pytest.approx(float(recall), rel=1e-14)
    means = [float(sum(column) / len(classes)) for column in zip(*tables, strict=True)]
    assert [found[f"macro_{name}"] for name in ("precision", "recall", "f1")] == pytest.approx(means, rel=1e-14)
    assert found["accuracy"] == pytest.approx(sum(truth == guess for truth, guess in pairs) / len(pairs), rel=1e-14)


def test_who_is_always_right_has_exactly_1() -> None:
    """Not 0.9999999999999999, with any number of classes: a gate may ask for 1."""
    for count in range(1, 300):
        found = aml_eval.classification(range(count), iter(range(count)))
        assert found.pop("count") == count
        assert set(found.values()) == {1.0}


NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 3)) | st.integers(-9, 9)


@LAW
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=30))
def test_regression_is_what_its_definition_says(pairs: list[tuple[float, float]]) -> None:
    """In fractions, which lose nothing."""
    found = aml_eval.regression(*zip(*pairs, strict=True))
    truths = [Fraction(truth) for truth, _ in pairs]
    errors = [Fraction(guess) - Fraction(truth) for truth, guess in pairs]
    mean = sum(truths) / len(truths)
    squares, spread = sum(error**2 for error in errors), sum((truth - mean) ** 2 for truth in truths)
    expected = {
        "count": len(pairs),
        "mae": float(sum(map(abs, errors)) / len(errors)),
        "rmse": math.sqrt(squares / len(errors)),
        "max_error": float(max(map(abs, errors))),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert ("r2" in found) == (spread > 0)
    assert not spread or 1 - found["r2"] == pytest.approx(float(squares / spread), rel=1e-9, abs=1e-9)


@LAW
@given(st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2), min_size=1, max_size=9))
def test_a_measure_of_any_numbers_is_finite_or_refused(pairs: list[tuple[float, float]]) -> None:
    """Squares of large numbers leave a float's range, and those of small ones vanish."""
    try:
        found = aml_eval.regression(*zip(*pairs, strict=True))
    except ValueError as error:
        assert str(error) == "the numbers are too large to be measured"  # noqa: PT017 - one of two right answers
        assert max(abs(value) for pair in pairs for value in pair) > 1e300
    else:
        assert all(math.isfinite(value) for value in found.values())
        assert found["mae"] <= found["max_error"] * (1 + 1e-12)


@pytest.mark.parametrize("measure", [aml_eval.classification, aml_eval.regression])
@pytest.mark.parametrize(
    ("truth", "predicted", "why"),
    [
        ([1, 2], [1], "1 predictions for 2 truths"),
        ([], [], "nothing to measure"),
        ([1], [math.nan], "nan is no"),
        ([1], [Scalar(math.nan)], "is no"),
        ([1], [None], "None is no"),
        ([1], ["1"], "is no|texts"),
        ([1], [[1]], "is no"),
        ([1], [Several()], "is no single value"),
    ],
)
def test_predictions_that_cannot_be_measured_are_refused(
    measure: Callable[..., object], truth: Sequence[object], predicted: Sequence[object], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        measure(truth, predicted)


def test_a_class_is_named_as_the_dataset_writes_it() -> None:
    names = [set(aml_eval.classification(labels, labels)) for labels in ([True, False], ["a b"], [Scalar(3)])]
    usual = {"count", "accuracy", "macro_precision", "macro_recall", "macro_f1"}
    assert [each - usual for each in names] == [{"recall.true", "recall.false"}, {"recall.a b"}, {"recall.3"}]


def evaluation(job: Job, predict: str, task: str = "", *, code: int = 0) -> Run:
    """Evaluate in a process of its own, over a training's claim."""
    job.run("import amlkit; amlkit.save_metrics(r2=1.0, accuracy=1.0, claimed=1)")
    rows = "1,10,1,2,1,3,A\n2,20,0,2,1,3,B\n"
    job.describe(SPEC, HEADER + rows)
    return job.run(f"import aml_eval; print(sorted(aml_eval.evaluate({predict}{task})))", code=code)


def test_an_evaluation_saves_what_it_measured_and_nothing_else(job: Job) -> None:
    """The output is a number, so that it is regression; the rows reach `predict` all at once."""
    done = evaluation(job, "lambda rows: [10.0 + 12 * (row[3] == 'B') for row in rows]")
    expected = {"count": 2, "mae": 1.0, "rmse": math.sqrt(2), "max_error": 2.0, "r2": 0.92}
    assert job.json("metrics.json") == pytest.approx(expected, rel=1e-14)
    assert done.out.strip() == str(sorted(expected))


def test_an_evaluation_is_told_its_task_where_the_type_does_not_tell(job: Job) -> None:
    evaluation(job, "lambda rows: [10.0] * len(rows)", ", task='classification'")
    assert job.json("metrics.json")["recall.10.0"] == 1.0
    done = evaluation(job, "len", ", task='ranking'", code=1)
    assert done.err.endswith("ValueError: there is no task 'ranking': it is classification or regression\n")


# --- the example


def digits(job: Job, name: str) -> tuple[list[list[float]], list[int]]:
    for path in DIGITS.iterdir():
        (job.dataset / path.name).write_bytes(path.read_bytes())
    return amlkit.read_table(name)


def test_the_digits_are_split_by_class_and_none_is_in_both_parts(job: Job) -> None:
    (images, labels), (held_images, held_labels) = digits(job, "train.csv"), digits(job, "held-out.csv")
    assert (len(labels), len(held_labels)) == (1347, 450)
    assert not {tuple(image) for image in images} & {tuple(image) for image in held_images}
    assert {pixel for image in images + held_images for pixel in image} == set(range(17))
    shares = [Counter(held_labels)[digit] / Counter(labels + held_labels)[digit] for digit in range(10)]
    assert shares == pytest.approx([0.25] * 10, abs=0.01)


def test_the_digits_can_be_told_apart_from_what_the_example_trains_on(job: Job) -> None:
    """By the nearest one that is known: the labels belong to the images, in both parts."""
    known = list(zip(*digits(job, "train.csv"), strict=True))
    rows, truths = aml_eval.held_out()
    told = [min((math.dist(image, row), label) for image, label in known)[1] for row in rows[:100]]
    assert aml_eval.classification(truths[:100], told)["accuracy"] > 0.95
