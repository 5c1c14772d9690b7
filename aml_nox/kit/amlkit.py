"""For a training script: where things are, what it was asked for, how far it is, what it measured.

Run by the environment's interpreter, CPython 3.10 or later: the standard library only, and nothing of aml_nox. Outside
of a job every function raises KitError. The formats of events.jsonl, metrics.json, spec.json and io_spec.json are in
docs/kit.md.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
import operator
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

TYPE_CHECKING = False  # as the type checkers know it, without the price of importing typing
if TYPE_CHECKING:
    from typing import Any, NoReturn

SCHEMA = 1
TYPES = ("number", "integer", "string", "boolean")
_TEXTS = {"true": True, "false": False, "1": True, "0": False}


class KitError(RuntimeError):
    """The script is not in a job, or its dataset or its command line is not what the kit can work with."""


# --- where things are


def job_dir() -> Path:
    """The job's own directory, which is also the current one when the script starts."""
    return Path(_given("AML_JOB_DIR"))


def model_dir() -> Path:
    """The folder for the model, in the job's directory; it is made where it is missing."""
    folder = job_dir() / "model"
    folder.mkdir(exist_ok=True)
    return folder


def dataset_dir() -> Path:
    """The folder of the dataset that the manifest names; it is for reading.

    Raises:
        KitError: the manifest names none.

    """
    if "AML_JOB_DIR" in os.environ and not os.environ.get("AML_DATASET_DIR"):
        raise KitError("this job has no dataset: name one as train.dataset in aml.toml, then run `nox -s train`")
    return Path(_given("AML_DATASET_DIR"))


def _given(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise KitError(f"{name} is not set, so this is not a job: start the script by `nox -s train`")
    return value


# --- the dataset


def dataset_spec() -> dict[str, Any]:
    """What spec.json in the dataset's folder says of its inputs and outputs.

    Raises:
        KitError: there is none, or it is not of this format.

    """
    path = dataset_dir() / "spec.json"
    try:
        return _spec(json.loads(path.read_bytes()))
    except (OSError, RecursionError, ValueError) as error:
        raise KitError(f"{path}: {error}") from error


def _spec(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise ValueError(f'it is no JSON object with "schema": {SCHEMA}')
    return {**value, **{side: _items(side, value.get(side)) for side in ("inputs", "outputs")}}


def read_table(name: str) -> tuple[list[list[Any]], list[Any]]:
    """The rows and the truths of a CSV file of the dataset, typed by spec.json.

    The first line names the columns, in any order; those that spec.json does not name are left out. An input `x` of
    shape [] is the column `x`, one of shape [3] is `x_0` to `x_2`; a row holds the inputs in the order of spec.json.
    The truth is the one output, of shape [].

    Raises:
        KitError: spec.json describes no such table, or a line does not fit: file, line and column are named.

    """
    spec, path = dataset_spec(), dataset_dir() / name
    inputs = [column for item in spec["inputs"] for column in _columns(item)]
    if len(spec["outputs"]) != 1 or spec["outputs"][0]["shape"] != []:
        raise KitError("spec.json: a table has exactly one output, of shape []")
    wanted = [*inputs, *_columns(spec["outputs"][0])]
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(_rows(path, csv.reader(stream, strict=True), wanted))
    except (OSError, UnicodeDecodeError) as error:
        raise KitError(f"{path}: {error}") from error
    if not rows:
        raise KitError(f"{path}: there is no row in it")
    return [row[:-1] for row in rows], [row[-1] for row in rows]


def _columns(item: Mapping[str, Any]) -> list[tuple[str, Callable[[str], Any]]]:
    """The columns of an input or output, each with what reads its text."""
    name, shape, read = item["name"], item["shape"], _READERS[item["type"]]
    if shape == []:
        return [(name, read)]
    if len(shape) != 1 or shape[0] is None:
        raise KitError(f"spec.json: {name}: a table holds shapes [] and [n], not {json.dumps(shape)}")
    return [(f"{name}_{index}", read) for index in range(shape[0])]


def _rows(path: Path, reader: Any, wanted: Sequence[tuple[str, Callable[[str], Any]]]) -> Iterator[list[Any]]:  # noqa: ANN401 - the csv module names no type for its reader
    try:
        header: list[str] = next(reader, [])
        places = [(_place(path, header, name), name, read) for name, read in wanted]
        for fields in reader:
            if fields:  # an empty line is no row
                yield _row(f"{path}, line {reader.line_num}", fields, len(header), places)
    except csv.Error as error:
        raise KitError(f"{path}, line {reader.line_num}: {error}") from error


def _place(path: Path, header: Sequence[str], name: str) -> int:
    if header.count(name) != 1:
        raise KitError(f"{path}, line 1: {header.count(name)} columns are called {name}, and it takes one")
    return header.index(name)


def _row(
    where: str, fields: Sequence[str], width: int, places: Sequence[tuple[int, str, Callable[[str], Any]]]
) -> list[Any]:
    if len(fields) != width:
        raise KitError(f"{where}: {len(fields)} values for {width} columns")
    row = []
    for place, name, read in places:
        try:
            row.append(read(fields[place]))
        except ValueError as error:
            raise KitError(f"{where}: {name}: {error}") from error
    return row


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    return value if math.isfinite(value) else _refuse(text, "finite number")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        _refuse(text, "whole number")


def _boolean(text: str) -> bool:
    value = _TEXTS.get(text.lower())
    return _refuse(text, "true or false") if value is None else value


def _refuse(text: str, wanted: str) -> NoReturn:
    raise ValueError(f"{text!r} is no {wanted}")


_READERS: dict[str, Callable[[str], Any]] = {"number": _number, "integer": _integer, "string": str, "boolean": _boolean}


# --- what the script was asked for


class Parameters:
    """The values of the parameters, as attributes that nobody changes; `vars()` gives them as a dict."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the script's own types; only asked for what is missing
        raise AttributeError(f"there is no parameter {name}{_meant(name, list(self.__dict__))}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"parameter {name} is what the job was started with, and stays")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"parameter {name} is what the job was started with, and stays")

    def __repr__(self) -> str:
        return f"Parameters({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def parameters(**defaults: float | str) -> Parameters:
    """The parameters of the script: the command line's values, else these defaults, whose types are binding.

    `learning_rate=0.1` takes `--learning-rate 0.2` or `--learning-rate=0.2`; of `shuffle=True` come `--shuffle` and
    `--no-shuffle`. The last word counts. An event tells all values.

    Raises:
        KitError: an unknown name, or a value of another type.
        ValueError: a default that is no text, bool, int or finite float.

    """
    for name, default in defaults.items():
        if type(default) not in _FROM_TEXT or not _is_finite(default):
            raise ValueError(f"parameter {name}: {default!r} is no text, bool, int or finite float")
    found = Parameters({**defaults, **dict(_spoken(sys.argv[1:], defaults))})
    _events.tell("parameters", values=dict(vars(found)))
    return found


def _spoken(arguments: Sequence[str], defaults: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The names and values of a command line."""
    rest = iter(arguments)
    for argument in rest:
        option, equals, text = argument.partition("=")
        name, value = _named(option, defaults)
        if value is None:
            text = text if equals else next(rest, "--")
            if text.startswith("--") and not equals:
                raise KitError(f"{option} has no value; one that begins with -- is given as {option}=VALUE")
            value = _valued(option, text, _FROM_TEXT[type(defaults[name])])
        elif equals:
            raise KitError(f"{option} takes no value: it is --{_dashed(name)} or --no-{_dashed(name)}")
        yield name, value


def _named(option: str, defaults: Mapping[str, Any]) -> tuple[str, bool | None]:
    """The parameter that an option speaks of, and what it says of a bool: another type needs a value (None)."""
    name = option.removeprefix("--").replace("-", "_")
    positive = name.removeprefix("no_")
    if option.startswith("--"):
        if name in defaults:
            return name, True if isinstance(defaults[name], bool) else None
        if isinstance(defaults.get(positive), bool):
            return positive, False
    known = [f"--{_dashed(each)}" for each in defaults]
    hint = _meant(option, known) or "; there is " + (", ".join(known) or "none")
    raise KitError(f"there is no parameter {option}{hint}")


def _valued(option: str, text: str, read: Callable[[str], Any]) -> Any:  # noqa: ANN401 - of the default's type
    try:
        return read(text)
    except ValueError as error:
        raise KitError(f"{option}: {error}") from error


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _meant(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else ""


_FROM_TEXT: dict[type, Callable[[str], Any]] = {bool: _boolean, int: _integer, float: _number, str: str}


# --- how far it is


class Throttle:
    """Which news of progress are told: not more than one in `interval` seconds, but every new note, and the end."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last = -math.inf
        self._note = ""

    def lets(self, fraction: float, note: str, *, now: float) -> bool:
        """Whether this one is told; `now` is in seconds, of any clock that only goes forward."""
        told = fraction == 1 or note != self._note or now - self._last >= self._interval
        if told:
            self._last, self._note = now, note
        return told


class _Events:
    """events.jsonl in the job's directory: a line of strict JSON for each event, in one write to its end.

    So several processes of a job may tell at once (on Windows, where a write to the end is two steps, not tried).
    Telling is a help and not the work: a full disk is warned of, once, and the training goes on.
    """

    def __init__(self) -> None:
        self._torn = False
        self._warned = False

    def tell(self, event: str, **fields: object) -> None:
        moment = datetime.now(timezone.utc)  # noqa: UP017 - datetime.UTC came with Python 3.11
        stamp = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
        line = json.dumps({"time": stamp, "event": event, **fields}, allow_nan=False) + "\n"
        path = job_dir() / "events.jsonl"
        try:
            self._append(path, line.encode())
        except OSError as error:
            self._warn(path, error)

    def _append(self, path: Path, line: bytes) -> None:
        line = b"\n" + line if self._torn else line  # what was cut off must not spoil the next one
        # In bytes also on Windows.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags, 0o666)
        try:
            written = os.write(descriptor, line)
        finally:
            os.close(descriptor)
        self._torn = written < len(line)
        if self._torn:
            raise OSError("only a part of the line could be written")

    def _warn(self, path: Path, error: OSError) -> None:
        if not self._warned and sys.stderr is not None:
            self._warned = True
            with suppress(OSError):  # stderr is a file of the same disk
                sys.stderr.write(f"amlkit: {path.name} cannot be written ({error}); the job goes on without\n")
                sys.stderr.flush()


_events = _Events()
_progress = Throttle(0.1)


def progress(fraction: float, note: str = "") -> None:
    """Tell how much of the work is done: 0 to 1, with a few words of what is going on.

    It may be called as often as one likes: an event younger than 0.1 s stands for the next, unless that has another
    note or is the end.

    Raises:
        ValueError: the fraction is no number of 0 to 1.

    """
    value = plain(fraction)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"progress is a number of 0 to 1, not {fraction!r}")
    job_dir()
    if _progress.lets(value, note, now=time.monotonic()):
        _events.tell("progress", fraction=value, note=note)


def log_metrics(step: int, mapping: Mapping[str, Any] | None = None, /, **values: Any) -> None:  # noqa: ANN401 - numbers of any library
    """Tell what was measured at a step of the training, as an event: numbers, also of numpy and the like.

    NaN and infinity do not end a training of hours: they are told as null, their names as `not_finite`.

    Raises:
        ValueError: a value is no number, a name no text.

    """
    told = {name: _measured(name, value) for name, value in _merged(mapping, values).items()}
    lost = sorted(name for name, value in told.items() if not _is_finite(value))
    shown = {name: None if name in lost else value for name, value in told.items()}
    _events.tell("metrics", step=operator.index(step), values=shown, **({"not_finite": lost} if lost else {}))


def _measured(name: str, value: object) -> float:
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"metric {name}: {value!r} is no number")  # noqa: TRY004 - one kind of error for what is given
    return number


# --- what it gives


_saved: dict[str, Any] = {}


def save_metrics(mapping: Mapping[str, Any] | None = None, /, **values: Any) -> None:  # noqa: ANN401 - values of any library
    """Write metrics.json in the job's directory, whole or not at all: what the job is judged by.

    A value is a finite number (also of numpy and the like), a text, a bool, None, or a list or dict of those. A second
    call adds to the first one's values, and replaces those of the same name. Another process knows nothing of them: its
    metrics.json takes the place of this one's.

    Raises:
        ValueError: a value is none of these; its name is told, and nothing is written.
        OSError: the disk is full, or the directory gone.

    """
    _saved.update({name: _strict(name, value) for name, value in _merged(mapping, values).items()})
    _write_json("metrics.json", _saved)


def save_io_spec(inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]) -> None:
    """Write io_spec.json in the job's directory: what the model takes and gives, where no dataset's spec.json tells.

    Each item is `{"name": "pixels", "type": "number", "shape": [64]}`, with a `description` if you like: a type of
    number, integer, string, boolean; in the shape, None stands for any length.

    Raises:
        ValueError: an item is not of this form.
        OSError: the disk is full, or the directory gone.

    """
    sides = {"inputs": _items("inputs", inputs), "outputs": _items("outputs", outputs)}
    for side, items in sides.items():
        extra = {key for each in items for key in each} - {"name", "type", "shape", "description"}
        if extra:
            raise ValueError(f"{side}: there is no key {min(extra)}: it is name, type, shape, description")
    _write_json("io_spec.json", {"schema": SCHEMA, **sides})


def _items(side: str, given: object) -> list[dict[str, Any]]:
    """The inputs or outputs as JSON holds them."""
    if not isinstance(given, list | tuple):
        raise ValueError(f"{side}: it is a list")  # noqa: TRY004 - one kind of error for what is given
    items = [_item(each) for each in given]
    if len({each["name"] for each in items}) < len(items):
        raise ValueError(f"{side}: a name stands twice")
    return items


def _item(given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{given!r} is no object with name, type and shape")  # noqa: TRY004 - as above
    name, shape = given.get("name"), given.get("shape")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError(f"the name {name!r} is no text that people can read")
    if given.get("type") not in TYPES:
        raise ValueError(f"{name}: the type {given.get('type')!r} is none of {', '.join(TYPES)}")
    if not isinstance(shape, list | tuple) or not all(size is None or _is_size(size) for size in shape):
        raise ValueError(f"{name}: the shape {shape!r} is no list of lengths from 1, or null for any")
    if not isinstance(given.get("description", ""), str):
        raise ValueError(f"{name}: the description is no text")  # noqa: TRY004 - as above
    return {**given, "shape": list(shape)}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


def _merged(mapping: Mapping[str, Any] | None, values: Mapping[str, Any]) -> dict[str, Any]:
    found = {**(mapping or {}), **values}
    for name in found:
        if not isinstance(name, str):
            raise ValueError(f"the name {name!r} of a metric is no text")  # noqa: TRY004 - as above
    return found


def _strict(where: str, value: object) -> Any:  # noqa: ANN401 - a JSON value
    """A value as strict JSON can hold it; `where` is its name in the error."""
    if isinstance(value, Mapping):
        return {name: _strict(f"{where}.{name}", each) for name, each in _merged(value, {}).items()}
    if isinstance(value, list | tuple):
        return [_strict(f"{where}[{index}]", each) for index, each in enumerate(value)]
    try:
        found = plain(value)
    except ValueError:
        found = value
    if not (found is None or isinstance(found, str | bool | int | float)) or not _is_finite(found):
        raise ValueError(
            f"metric {where}: {value!r} is no finite number, text, bool, None, nor a list or dict of those"
        )
    return found


def plain(value: Any) -> Any:  # noqa: ANN401 - that is what it is for
    """A scalar of numpy, torch or the like as Python's own bool, int or float; anything else as it is.

    Raises:
        ValueError: it holds more than one value.

    """
    if value is None or isinstance(value, str | bool):
        return value
    try:
        if not isinstance(value, int | float) and callable(getattr(value, "item", None)):
            value = value.item()  # how numpy, torch and jax give a scalar, also one of another device
        return _number_of(value)
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{value!r} is no single value") from error


def _number_of(value: Any) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, str | bool):
        return value
    with suppress(TypeError):  # whole numbers stay whole
        return operator.index(value)
    return float(value) if hasattr(value, "__float__") else value


def _is_finite(value: object) -> bool:
    """Whether a value is no number, or one that a float can hold."""
    try:
        return not isinstance(value, int | float) or math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _write_json(name: str, value: Mapping[str, Any]) -> None:
    """Write a file of the job's directory: whole, or as it was before."""
    text = json.dumps(value, sort_keys=True, allow_nan=False, indent=1) + "\n"
    path = job_dir() / name
    part = path.with_name(f".{name}-{os.urandom(4).hex()}")
    try:
        with part.open("x", encoding="ascii", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
