"""What the result of a job depends on, as digests; jobs with equal keys would do the same again.

The program is told by its own file and all Python files that it can import from beside it: the tree of the script's
folder, or for a module the project's. That errs on one side alone: too much makes a job run again, too little would
spare one that has to.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aml_nox import warm
from aml_nox.manifest import Train
from aml_nox.store import Root

SCHEME = 1
_NEVER = {"__pycache__", "node_modules"}


def code_digest(root: Root, train: Train) -> str:
    """The digest of the program's own code: sha256 over canonical JSON of each file's path and sha256."""
    named = [root.folder / path for path in (train.script, train.evaluate) if path]
    folders = {path.parent for path in named} | ({root.folder} if train.module else set())
    files = {*named, *(file for folder in folders for file in _python_files(folder, root.path))}
    told = {os.path.relpath(path, root.folder): warm.sha256(str(path)) for path in files}
    return _digest({"files": told})


def _python_files(folder: Path, aml_root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        if "pyvenv.cfg" in files:  # an environment is told by its own digest
            folders.clear()
            continue
        folders[:] = [
            name for name in folders if name[0] != "." and name not in _NEVER and Path(place, name) != aml_root
        ]
        yield from (Path(place, name) for name in files if name.endswith(".py"))


def key(train: Train, inputs: Mapping[str, Any], arguments: Sequence[str]) -> str:
    """The key of a job: its inputs, its arguments, and what of [train] bears on its result or on its acceptance."""
    table = {
        "script": str(train.script),
        "module": train.module,
        "evaluate": str(train.evaluate),
        "env": dict(train.env),
        "pass_env": list(train.pass_env),
        "gates": [asdict(gate) for gate in train.gates],
        "register": train.register.name if train.register else None,
    }
    return _digest({"scheme": SCHEME, "inputs": dict(inputs), "arguments": list(arguments), "train": table})


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(warm.to_json(value).encode()).hexdigest()
