"""What the result of a job depends on, as digests; jobs with equal keys would do the same again.

The program is told by its own file and all modules that it can import from beside it and from the kit: the tree of the
script's folder, or for a module the project's. That errs on one side alone: too much makes a job run again, too little
would spare one that has to.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aml_nox import warm
from aml_nox.manifest import Train
from aml_nox.store import Root

SCHEME = 1
_NEVER = {"__pycache__", "node_modules"}
_MODULES = (".py", ".pyc", ".pyd", ".so")


def code_digest(root: Root, scripts: Iterable[Path | str | None], *, whole: bool, kit: Path) -> str:
    """The digest of a program's own code: sha256 over canonical JSON of each file's path and sha256.

    `scripts` are those that there are of the training and the evaluation; `whole` takes all of the project.
    """
    named = [root.folder / path for path in scripts if path]
    folders = {path.parent for path in named} | ({root.folder} if whole else set())
    files = {*named, *(file for folder in folders for file in _modules(folder, root.path))}
    return _digest({"files": _told(files, root.folder), "kit": _told(_modules(kit, root.path), kit)})


def evaluation_digest(root: Root, script: Path | str | None, *, kit: Path) -> str | None:
    """The digest of what judges, the script itself and the kit, whatever lies beside them; None where nothing does."""
    if script is None:
        return None
    files = {str(script): warm.sha256(str(root.folder / script))}
    return _digest({"files": files, "kit": _told(_modules(kit, root.path), kit)})


def _told(files: Iterable[Path], start: Path) -> dict[str, str | None]:
    return {os.path.relpath(path, start): warm.sha256(str(path)) for path in files if path.is_file()}


def _modules(folder: Path, aml_root: Path) -> Iterator[Path]:
    """All modules below a folder, also behind links, as Python finds them; each folder once."""
    known = {os.path.realpath(aml_root)}
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in known or "pyvenv.cfg" in files:  # an environment is told by its own digest
            folders.clear()
            continue
        known.add(real)
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in _NEVER)
        yield from (Path(place, name) for name in files if name.endswith(_MODULES))


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
