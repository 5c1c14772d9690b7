"""The only file that turns values into TOML text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit


def document(value: Mapping[str, Any]) -> str:
    """A TOML document of plain values."""
    return tomlkit.dumps(value)


def string_list(values: Sequence[str]) -> str:
    """A TOML array of strings, one a line when there are several."""
    array = tomlkit.array()
    array.extend(values)
    return array.multiline(len(values) > 1).as_string()
