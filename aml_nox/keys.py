"""A file format as a table of keys: what reads a document by it, and what describes it as JSON schema and as a page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aml_nox.faults import Fault, FaultError, Gather, fault, quote, suggest, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aml_nox.kinds import Kind, Schema

REQUIRED = object()
"""As ``Key.default``: the key has none, and must be given."""
ANY_USE = "any use"
"""As ``Key.planned``: the key is typed and checked, but not supported yet, whatever its value."""
OTHERS = "any value but the default"
"""As ``Key.planned``: only the default is supported yet."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its table ("" is the document), what it holds, and its default as TOML gives it (None: nothing).

    ``planned`` says what of it is not supported yet: ``ANY_USE``, ``OTHERS``, or some of its values, comma-separated.
    To support more, take the word away.
    """

    table: str
    name: str
    kind: Kind
    default: object
    doc: str
    planned: str = ""

    @property
    def field(self) -> str:
        """The name of the dataclass field that holds the value."""
        return self.name.replace("-", "_")

    def read(self, table: Mapping[str, object]) -> object:
        """Parse this key's value out of its table; raises ``FaultError``."""
        if self.name not in table:
            return self._absent()
        value = self.kind.parse(table[self.name])
        if self.planned == ANY_USE:
            raise fault("not supported yet in this version; take it out")
        if self.planned == OTHERS and value != self._absent():
            raise fault(f"only {literal(self.default)} is supported yet in this version; write that or take it out")
        if isinstance(value, str) and value in self.planned.split(", "):
            raise fault(f"{quote(str(value))} is not supported yet in this version; take it out for the default")
        return value

    def _absent(self) -> object:
        if self.default is REQUIRED:
            raise fault(f"is missing; add {self.name} = {self.kind.example}")
        return None if self.default is None else self.kind.parse(self.default)

    def described(self) -> str:
        """Say what the key means, and what of it is not supported yet."""
        if not self.planned:
            return self.doc
        return f"{self.doc} Not supported yet{'' if self.planned == ANY_USE else f': {self.planned}'}."

    def is_required(self) -> bool:
        """Say whether a document without the key is refused: also where a table's own keys are required."""
        try:
            self._absent()
        except FaultError:
            return True
        return False


@dataclass(frozen=True, slots=True)
class Rule:
    """What several keys of a table must fulfil together; asked only where each of these is right by itself."""

    fields: tuple[str, ...]
    check: Callable[..., None]


@dataclass(frozen=True, slots=True)
class Table:
    """A table: what it is for, what is made of its fields, and the rules between them."""

    name: str
    doc: str
    build: Callable[..., object]
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """The keys and the tables of a kind of document."""

    keys: tuple[Key, ...]
    tables: tuple[Table, ...]

    def of(self, table: str) -> tuple[Key, ...]:
        """Return the keys of a table."""
        return tuple(key for key in self.keys if key.table == table)

    def read(self, name: str, raw: object) -> object:
        """Parse a table and build its value; raises ``FaultError`` with all faults found in it."""
        if not isinstance(raw, dict):
            raise fault(f"expected a table, found {type_of(raw)}; write its keys below a header in brackets")
        table = next(each for each in self.tables if each.name == name)
        gather = Gather()
        with gather.under():
            self._check_names(name, raw)
        values: dict[str, object] = {}
        for key in self.of(name):
            with gather.under(key.name):
                values[key.field] = key.read(raw)
        for rule in table.rules:
            if values.keys() >= set(rule.fields):
                with gather.under():
                    rule.check(*(values[each] for each in rule.fields))
        gather.close()
        return table.build(**values)

    def _check_names(self, table: str, raw: Mapping[str, object]) -> None:
        known = [key.name for key in self.of(table)]
        unknown = [Fault((name,), f"unknown key; {self._advice(name, known)}") for name in raw if name not in known]
        if unknown:
            raise FaultError(*unknown)

    def _advice(self, name: str, known: list[str]) -> str:
        elsewhere = [key.table for key in self.keys if key.name == name and key.table]
        return f"it belongs in [{elsewhere[0]}]" if len(elsewhere) == 1 else suggest(name, known)

    def schema(self, table: str) -> Schema:
        """Describe a table as JSON schema, draft-07."""
        keys = self.of(table)
        required = [key.name for key in keys if key.is_required()]
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {key.name: {"description": key.described(), **key.kind.schema()} for key in keys},
            **({"required": required} if required else {}),
        }

    def page(self) -> Iterator[str]:
        """Describe all tables in Markdown, line by line."""
        for table in self.tables:
            if table.name:
                yield from ("", f"## [{table.name}]", "", table.doc, "")
                yield from ("| key | value | default | meaning |", "|---|---|---|---|")
                for key in self.of(table.name):
                    yield f"| `{key.name}` | {key.kind.words} | {_default(key)} | {key.described()} |"


def _default(key: Key) -> str:
    if key.default is REQUIRED:
        return "required"
    return "" if key.default is None else f"`{literal(key.default)}`"


def literal(value: object) -> str:
    """Write a string, number, boolean or empty array or table as TOML does."""
    return json.dumps(value)
