"""JSON that a job or a user wrote, read strictly (RFC 8259): no NaN, no name twice, from a plain file of sane size."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, NoReturn

from aml_nox import store
from aml_nox.faults import quote


def load(path: Path, *, largest: int) -> Any:  # noqa: ANN401 - JSON values
    """The value in a file of at most `largest` bytes.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it is no plain file (a link could lead anywhere, a pipe would hold us), or no strict JSON.

    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > largest:
        message = f"it is not a file of at most {largest >> 20} MiB"
        raise ValueError(message)
    with store.open_plain(path) as stream:  # whatever stands there by now
        data = stream.read(largest)
    try:
        return json.loads(data, parse_constant=_refuse, object_pairs_hook=_unique)
    except RecursionError:
        message = "it is nested too deeply"
        raise ValueError(message) from None


def _refuse(word: str) -> NoReturn:
    message = f"{word} is not JSON"
    raise ValueError(message)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        message = f"a name stands twice: {quote(twice)}"
        raise ValueError(message)
    return found
