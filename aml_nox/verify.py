"""Is an environment still what it was certified to be? Three depths; each difference is told by file and distribution.

`quick` believes a file whose stat (ctime with it) is what it was; `full` reads every byte and holds lock, manifest and
interpreter against the marker too; `strict` also compiles every source again to find forged bytecode.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aml_nox import engine, envdigest, installed, process, store, warm
from aml_nox.context import Context
from aml_nox.engine import Wish
from aml_nox.envdigest import Content
from aml_nox.errors import AmlError, Code
from aml_nox.installed import Drift

LEVELS = ("quick", "full", "strict")
_PROBE = Path(__file__).with_name("bytecode_probe.py")
_LIMIT = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found: differences of files, and in words what else does not fit."""

    path: Path
    marker: Mapping[str, Any]
    drift: tuple[Drift, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.drift and not self.problems


def certified(ctx: Context, name: str) -> tuple[Path, Mapping[str, Any]]:
    """The environment that the link leads to, with its marker.

    Raises:
        AmlError: AML_INTEGRITY when there is none to verify.

    """
    path = store.current(ctx.root, name)
    marker = store.read_marker(path) if path else None
    if path is None or marker is None or not _is_whole(marker):
        fault = "a damaged marker" if marker else "no marker"
        what = f"{ctx.root.relative(path)} has {fault}" if path and path.is_dir() else "there is none"
        raise AmlError(Code.INTEGRITY, f"environment {name} cannot be verified: {what}", "provision makes one")
    return path, marker


def _is_whole(marker: Mapping[str, Any]) -> bool:
    """Whether a marker holds what an environment is held against, each of its kind."""
    match marker:
        case {
            "key": str(),
            "env_digest": str(),
            "packages": list(packages),
            "target": {**target},
            "interpreter": {"path": str(), "sha256": str()},
        }:
            texts = [*target.values(), *(one.get(word) for one in packages for word in ("name", "version"))]
            return all(isinstance(text, str) for text in texts)
    return False


def verify(ctx: Context, name: str, level: str, *, wish: Wish | None, lock_faults: Sequence[str]) -> Report:
    """Hold the current environment against its marker, and from `full` on against lock, manifest and interpreter.

    `wish` is the environment that the lock describes (None: no lock of use, or no interpreter is known),
    `lock_faults` says in words what is wrong with the lock.
    """
    path, marker = certified(ctx, name)
    drift = _quick(ctx, path, marker) if level == "quick" else None
    if drift is None:
        drift = _full(ctx, path, marker)
    problems = [] if level == "quick" else [*lock_faults, *_problems(path, marker, wish)]
    if level == "strict":
        drift += _forged(ctx, path, marker)
    return Report(path=path, marker=marker, drift=tuple(drift), problems=tuple(problems))


# --- by every byte ---


def _full(ctx: Context, path: Path, marker: Mapping[str, Any]) -> list[Drift]:
    try:
        content = engine.read(ctx, path, marker["target"])
    except FileNotFoundError:
        return [Drift("", "site-packages", "is missing")]
    drift = [*_distributions(path, marker), *_differences(path, marker, content), *content.drift]
    found = _unique(drift)
    if not found and content.digest != marker["env_digest"]:
        found = [Drift("", envdigest.MANIFEST, "is another than what is installed gives")]
    if not found:
        remember(ctx, path, content)
    return found


def _distributions(path: Path, marker: Mapping[str, Any]) -> list[Drift]:
    return installed.distribution_drift(
        installed.read_records(path), marker["packages"], [one["name"] for one in marker.get("editables", [])]
    )


def _unique(found: Sequence[Drift]) -> list[Drift]:
    """One line a file: the first that was said of it."""
    seen: dict[tuple[str, str], Drift] = {}
    for one in found:
        seen.setdefault((one.distribution, one.file), one)
    return [*seen.values()]


def _differences(path: Path, marker: Mapping[str, Any], content: Content) -> Iterator[Drift]:
    """Each file that is not as env.manifest.json has it; where that was changed itself, RECORD alone speaks."""
    certified = _manifest(path, marker)
    if certified is None:
        yield Drift("", envdigest.MANIFEST, "is missing or was changed")
        return
    found = json.loads(content.manifest)
    if certified["settings"] != found["settings"]:
        yield Drift("", "pyvenv.cfg", "has other settings than the marker certifies")
    if certified["interpreter"] != found["interpreter"]:
        yield Drift("", store.marker_path(path).name, f"names another target than {envdigest.MANIFEST}")
    before, now = _leaves(certified), _leaves(found)
    for owner, file in sorted(before.keys() | now.keys()):
        was, is_now = before.get((owner, file)), now.get((owner, file))
        if was != is_now:
            what = "is missing" if is_now is None else "was added" if was is None else "was changed"
            yield Drift(owner, content.real_path(file), what)


def _manifest(path: Path, marker: Mapping[str, Any]) -> dict[str, Any] | None:
    """What env.manifest.json says, if it is the one that the marker certifies."""
    file = path / envdigest.MANIFEST
    try:
        data = file.read_bytes() if file.is_file() else b""
    except OSError:
        return None
    if hashlib.sha256(data).hexdigest() != marker["env_digest"]:
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        value: dict[str, Any] = json.loads(data)
        _leaves(value), value["settings"], value["interpreter"]
        return value
    return None


def _leaves(manifest: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    groups = {name: one["files"] for name, one in manifest["distributions"].items()} | {"": manifest["strays"]}
    return {(owner, file): leaf for owner, files in groups.items() for file, leaf in files.items()}


# --- by stats ---


def _stats_path(ctx: Context, path: Path) -> Path:
    return ctx.root.runtime / "stats" / f"{path.name}.json"


def _observe(path: Path) -> dict[str, list[int] | None]:
    files = envdigest.files_of(path)
    return {name: warm.stat(str(path / name)) for name in files}


def remember(ctx: Context, path: Path, content: Content) -> None:
    """Keep the stats of an environment whose bytes were just read, for `quick`."""
    store.prepare(ctx.root)
    store.write_record(_stats_path(ctx, path), {"digest": content.digest, "stats": _observe(path)})


def _quick(ctx: Context, path: Path, marker: Mapping[str, Any]) -> list[Drift] | None:
    """No drift when every stat is what it was; None: somebody has to read."""
    known = store.read_json(_stats_path(ctx, path))
    if known is None or known.get("digest") != marker["env_digest"]:
        return None
    return [] if known.get("stats") == _observe(path) else None


# --- the rest ---


def _problems(path: Path, marker: Mapping[str, Any], wish: Wish | None) -> Iterator[str]:
    is_other = wish is not None and marker["key"] != wish.plan.key
    if wish is not None and is_other:
        yield f"the lock describes another environment: {'; '.join(engine.why_other(marker, wish))}"
    wrong = _own_fault(path, marker)
    if wrong is None and wish is not None and not is_other:
        wrong = engine.base_fault(path, marker, wish)
    if wrong is not None:
        yield wrong


def _own_fault(path: Path, marker: Mapping[str, Any]) -> str | None:
    """How an environment is not where, or not of the interpreter, that its own marker says; None when it is."""
    known = marker["interpreter"]
    if marker.get("path") != os.path.realpath(path):
        return f"the project moved or was copied: it was built at {marker.get('path')}"
    for file, digest in ((known["path"], known["sha256"]), (known.get("library"), known.get("library_sha256"))):
        if file and (found := warm.sha256(file)) != digest:
            return f"the interpreter {file} {'is gone' if found is None else 'was replaced: its bytes are others'}"
    return engine.venv_fault(path, Path(known["path"]))


def _forged(ctx: Context, path: Path, marker: Mapping[str, Any]) -> list[Drift]:
    """Bytecode that its source does not compile to, as the interpreter says: not by bin/python, which lies in there."""
    program = marker["interpreter"]["path"]
    argv: list[str | Path] = [program, "-I", "-S", _PROBE, path]
    try:
        done = process.run(argv, env=process.hermetic(ctx.environ), cwd=ctx.root.folder, limit=_LIMIT)
    except OSError as error:
        return [Drift("", "__pycache__", f"was not checked: {program} cannot be started: {error.strerror}")]
    try:
        return [Drift("", name, "is forged: its source compiles to something else") for name in json.loads(done.out)]
    except ValueError:
        return [Drift("", "__pycache__", f"was not checked: {program} said {done.tail or 'nothing'}")]
