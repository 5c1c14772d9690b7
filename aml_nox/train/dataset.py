"""A dataset: a folder with its digest, and what it says of its inputs and outputs in `spec.json`.

The same description lies beside a registered model as `io_spec.json`. Its format is ours, and JSON:
`{"schema": 1, "inputs": [PORT…], "outputs": [PORT…], "held_out": "path in the dataset"}`, a PORT
`{"name": …, "type": "number", "shape": [28, 28, null], "description": …}`. `held_out`, `description` may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aml_nox.errors import AmlError, Code
from aml_nox.faults import Fault, FaultError, Gather, fault, key_path, quote, suggest
from aml_nox.train import dirhash, strictjson
from aml_nox.train.dirhash import Measured

SPEC = "spec.json"
_SCHEMA = 1
_LARGEST = 1 << 20
_LONGEST = 2**31
_TYPES = ("number", "integer", "string", "boolean")
_JSON_TYPES = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
_EXAMPLE = (
    """for example {"schema": 1, "inputs": [{"name": "x", "type": "number", "shape": [28, null]}], "outputs": []}"""
)
_Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or output: `shape` has a length for each axis, None where it may be any."""

    name: str
    type: str
    shape: tuple[int | None, ...]
    description: str | None = None

    def to_json(self) -> dict[str, Any]:
        about = {} if self.description is None else {"description": self.description}
        return {"name": self.name, "type": self.type, "shape": list(self.shape), **about}


@dataclass(frozen=True, slots=True, kw_only=True)
class IoSpec:
    """What goes in and what comes out; `held_out` is where in the dataset lies what training must not see."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    held_out: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The contract of a model: of the dataset's own layout it says nothing."""
        return {name: [port.to_json() for port in getattr(self, name)] for name in ("inputs", "outputs")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A folder that was read: its real path, its content, and its description, if it has one."""

    path: Path
    measured: Measured
    spec: IoSpec | None


def read(folder: Path, *, label: str) -> Dataset:
    """Measure a folder and read its description; `label` names it in a fault.

    Raises:
        AmlError: AML_MANIFEST for what cannot be hashed honestly, and for all faults of its description.

    """
    measured = dirhash.measure(folder, what=label, code=Code.MANIFEST)
    path = folder.resolve()
    if not (path / SPEC).exists():
        return Dataset(path=path, measured=measured, spec=None)
    names = [name for name, _ in measured.names]
    spec = _parse(path / SPEC, f"{label}: {SPEC}", Code.MANIFEST, {**_KEYS, "held_out": _held_out(names)})
    return Dataset(path=path, measured=measured, spec=spec)


def parse_io_spec(path: Path, *, label: str = "", code: Code = Code.MANIFEST) -> IoSpec:
    """Read the description of a job's or a model's inputs and outputs; `label` names it, or else its own name.

    That of a dataset, called spec.json, is read likewise; of its `held_out` nothing more is asked than that it is text.

    Raises:
        AmlError: `code`, with all its faults, a line each.

    """
    keys = {**_KEYS, "held_out": _text} if path.name == SPEC else _KEYS
    return _parse(path, label or path.name, code, keys)


def _parse(path: Path, label: str, code: Code, keys: Mapping[str, _Read]) -> IoSpec:
    try:
        value = _object(strictjson.load(path, largest=_LARGEST), keys, optional={"held_out"})
    except FaultError as error:
        lines = [f"{label}: {_where(each)}{each.text}" for each in sorted(error.faults, key=_order)]
        raise AmlError(code, "\n".join(lines), _EXAMPLE) from None
    except (OSError, ValueError) as error:
        message = f"{label}: cannot be read: {_reason(error)}"
        raise AmlError(code, message, "write it as one JSON object (RFC 8259)") from None
    return IoSpec(inputs=value["inputs"], outputs=value["outputs"], held_out=value.get("held_out"))


def _order(each: Fault) -> tuple[tuple[int, int | str], ...]:
    return tuple((0, step) if isinstance(step, int) else (1, step) for step in each.place)


def _where(each: Fault) -> str:
    return f"{key_path(each.place)}: " if each.place else ""


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


# --- the parts: each reads a JSON value, or raises FaultError with places inside of it


def _object(raw: object, keys: Mapping[str, _Read], *, optional: Collection[str]) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise _unfit(raw, "an object")
    gather = Gather()
    found: dict[str, Any] = {}
    for name in raw.keys() - keys.keys():
        gather.faults.append(Fault((name,), f"unknown name; {suggest(name, keys)}"))
    for name, parse in keys.items():
        with gather.under(name):
            if name in raw:
                found[name] = parse(raw[name])
            elif name not in optional:
                raise fault("is missing; add it")
    gather.close()
    return found


def _schema(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw != _SCHEMA:
        raise fault(f"this version reads {_SCHEMA} alone; write {_SCHEMA}")
    return raw


def _ports(raw: object) -> tuple[Port, ...]:
    gather = Gather()
    ports: list[Port] = []
    names: list[str] = []
    for number, each in enumerate(_array(raw)):
        with gather.under(number):
            ports.append(Port(**_object(each, _PORT, optional={"description"})))
        name = each.get("name") if isinstance(each, dict) else None
        if isinstance(name, str):
            if name in names:
                text = f"{quote(name)} is the name of another one, too; choose another"
                gather.faults.append(Fault((number, "name"), text))
            names.append(name)
    gather.close()
    return tuple(ports)


def _name(raw: object) -> str:
    name = _text(raw)
    if not name or not name.isprintable():
        raise fault("a name is empty or holds a control character; give it one that people can read")
    return name


def _type(raw: object) -> str:
    if (name := _text(raw)) not in _TYPES:
        raise fault(f"expected one of {', '.join(_TYPES)}, found {quote(name)}; {suggest(name, _TYPES)}")
    return name


def _shape(raw: object) -> tuple[int | None, ...]:
    gather = Gather()
    for number, each in enumerate(_array(raw)):
        with gather.under(number):
            is_count = isinstance(each, int) and not isinstance(each, bool) and 0 < each < _LONGEST
            if each is not None and not is_count:
                raise fault("a length is an integer, 1 or more, or null for any; correct it")
    gather.close()
    return tuple(_array(raw))


def _held_out(names: Collection[str]) -> _Read:
    """A file of the dataset, or a folder in it."""

    def parse(raw: object) -> str:
        path = _text(raw).removesuffix("/")
        if not any(name == path or name.startswith(f"{path}/") for name in names):
            raise fault(f"the dataset has no file or folder {quote(path)}; write its path from the dataset's folder")
        return path

    return parse


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise _unfit(raw, "a string")
    return raw


def _array(raw: object) -> list[Any]:
    if not isinstance(raw, list):
        raise _unfit(raw, "an array")
    return raw


def _unfit(raw: object, wanted: str) -> FaultError:
    found = next((words for kind, words in _JSON_TYPES.items() if isinstance(raw, kind)), "a number")
    return fault(f"expected {wanted}, found {found}; correct it")


_PORT: dict[str, _Read] = {"name": _name, "type": _type, "shape": _shape, "description": _text}
_KEYS: dict[str, _Read] = {"schema": _schema, "inputs": _ports, "outputs": _ports}
