"""The interpreter: find one that fits the manifest, run it, and prove what it is."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from aml_nox import platforms, process, pythons, store, uv, warm
from aml_nox.context import Context
from aml_nox.errors import AmlError, Code
from aml_nox.faults import FaultError
from aml_nox.manifest import is_file
from aml_nox.plan import Target
from aml_nox.versions import PythonRequest, parse_python

PROBE_LIMIT = 10.0
FIND_LIMIT = 30.0
OVERRIDE = "AML_UV_PYTHON"
_PROBE = Path(__file__).with_name("target_probe.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter that ran: the files that it is, their digests, and what it says it is."""

    path: Path
    sha256: str
    library: Path | None
    library_sha256: str | None
    target: Target

    @property
    def identity(self) -> dict[str, str | None]:
        """What a marker keeps of it; equal exactly when the program and its library hold the same bytes."""
        library = str(self.library) if self.library else None
        return {
            "path": str(self.path),
            "sha256": self.sha256,
            "library": library,
            "library_sha256": self.library_sha256,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to look for: an explicit path, or a version in uv's words; `request` is what the result is held against."""

    path: Path | None
    words: str
    request: PythonRequest | None
    named_by: str
    preference: str

    @property
    def key(self) -> str:
        """The name of this request in the record."""
        return json.dumps([str(self.path) if self.path else None, self.words, self.preference])


def wanted(ctx: Context) -> Wanted:
    """The manifest's wish, or AML_UV_PYTHON's in its place."""
    python = ctx.manifest.python
    override = ctx.environ.get(OVERRIDE, "")
    if override:
        path = Path(override) if Path(override).is_absolute() else None
        return Wanted(path=path, words=override, request=None, named_by=OVERRIDE, preference=python.preference)
    path = ctx.root.folder / python.path if python.path else None
    words = python.version.text
    named_by = "python.path" if path else "python.version"
    return Wanted(path=path, words=words, request=python.version, named_by=named_by, preference=python.preference)


def ensure(ctx: Context, get_uv: Callable[[], uv.Uv], *, fresh: bool = False) -> Interpreter:
    """The interpreter of this project: the recorded choice while it is right, else found anew and recorded.

    Raises:
        AmlError: AML_PYTHON_MISSING tells what was tried.

    """
    return _ensure(ctx, lambda wish: _find(ctx, wish, get_uv()), fresh=fresh)


def ensure_without_uv(ctx: Context, *, fresh: bool = False) -> Interpreter:
    """The interpreter where there is no uv: the recorded choice, the explicit path, or the first on PATH that fits.

    Raises:
        AmlError: AML_PYTHON_MISSING tells what was tried.

    """
    attempts: list[str] = []
    return _ensure(ctx, lambda wish: _on_path(ctx, wish, attempts) or _refuse(wish, attempts), fresh=fresh)


def _ensure(ctx: Context, find: Callable[[Wanted], Interpreter], *, fresh: bool) -> Interpreter:
    wish = wanted(ctx)
    if wish.named_by == OVERRIDE:
        ctx.say(f"{OVERRIDE}={wish.words} is used in place of python.version")
    if not fresh and (known := recorded(ctx)):
        return known
    _announce_lost(ctx, wish)
    found = _explicit(ctx, wish) if wish.path else find(wish)
    _remember(ctx, wish, found)
    return found


def recorded(ctx: Context) -> Interpreter | None:
    """The choice of an earlier run, if its files are by their stats what they were: no process is started."""
    entry = _entries(ctx).get(wanted(ctx).key)
    if entry is None or entry["stats"] != {path: _stat(ctx, path) for path in entry["stats"]}:
        return None
    return _from_json(ctx, entry["interpreter"])


def _stat(ctx: Context, recorded_path: str) -> list[int] | None:
    return warm.stat(str(ctx.root.path / recorded_path))


def _announce_lost(ctx: Context, wish: Wanted) -> None:
    entry = _entries(ctx).get(wish.key)
    for path in (entry or {}).get("stats", {}):
        if _stat(ctx, path) is None:
            ctx.say(f"the interpreter {path} is gone: looking for another")


def _explicit(ctx: Context, wish: Wanted) -> Interpreter:
    found = probe(ctx, wish.path or Path())
    if isinstance(found, str):
        raise AmlError(Code.PYTHON_MISSING, f"{wish.named_by} = {wish.path}: {found}", f"correct {wish.named_by}")
    return _held(wish, found)


def _find(ctx: Context, wish: Wanted, tool: uv.Uv) -> Interpreter:
    """An installed interpreter that fits, else one that uv installs into the AML root."""
    attempts: list[str] = []
    found = _by_uv(ctx, wish, tool, attempts)
    if found is None and wish.preference != "only-system":
        found = _installed(ctx, wish, tool, attempts)
    return found or _refuse(wish, attempts)


def _installed(ctx: Context, wish: Wanted, tool: uv.Uv, attempts: list[str]) -> Interpreter | None:
    """One that uv installs; by its exact path, since uv's link for the minor version moves."""
    managed = replace(wish, preference="only-managed")
    with pythons.held(ctx):
        # Another run may have installed it meanwhile.
        if found := _by_uv(ctx, managed, tool, []):
            return found
        pythons.install(ctx, tool, wish.words, wish.request)
        return _by_uv(ctx, managed, tool, attempts)


def _by_uv(ctx: Context, wish: Wanted, tool: uv.Uv, attempts: list[str]) -> Interpreter | None:
    """Ask uv, which knows where interpreters hide; --system, or it takes the .venv of any parent folder."""
    argv: list[str | Path] = [tool.path, "python", "find", "--system", "--resolve-links", "--no-python-downloads"]
    argv += ["--no-project", "--no-config", "--python-preference", wish.preference, wish.words]
    env = process.hermetic(ctx.environ, UV_PYTHON_INSTALL_DIR=str(ctx.root.pythons))
    done = process.run(argv, env=env, cwd=ctx.root.folder, limit=FIND_LIMIT)
    if done.timed_out:
        # uv has no limit of its own for a candidate that hangs: those on PATH are then asked one by one.
        attempts.append(f"uv's search took longer than {FIND_LIMIT:g} s: an interpreter on PATH hangs")
        return None if wish.preference == "only-managed" else _on_path(ctx, wish, attempts)
    if done.status:
        attempts.append(f"uv (python.preference = {wish.preference}): {done.tail or f'ended with {done.status}'}")
        return None
    return _fitting(ctx, wish, Path(done.out.strip()), attempts)


def _on_path(ctx: Context, wish: Wanted, attempts: list[str]) -> Interpreter | None:
    """The first on PATH that fits, each asked by itself and for its own limit."""
    try:
        request = wish.request or parse_python(wish.words)
    except FaultError:
        attempts.append(f"{wish.words}: only uv knows what it means")
        return None
    wish = replace(wish, request=request)
    names = dict.fromkeys(name for minor in request.minors for name in platforms.search_names(minor))
    folders = [folder for folder in ctx.environ.get("PATH", "").split(platforms.path_separator()) if folder]
    for candidate in (Path(folder, name) for folder in folders for name in names):
        if is_file(candidate) and (found := _fitting(ctx, wish, candidate, attempts)):
            return found
    return None


def _fitting(ctx: Context, wish: Wanted, path: Path, attempts: list[str]) -> Interpreter | None:
    found = probe(ctx, path)
    if isinstance(found, str):
        attempts.append(f"{path} {found}")
    elif wish.request is not None and not wish.request.accepts(found.target.version):
        attempts.append(f"{path} is Python {found.target.version}")
    else:
        return found
    return None


def _refuse(wish: Wanted, attempts: Sequence[str]) -> NoReturn:
    tried = "".join(f"\n  tried {attempt}" for attempt in attempts)
    message = f"no Python {wish.words} was found{tried}"
    raise AmlError(Code.PYTHON_MISSING, message, "install one, or name one by python.path")


def _held(wish: Wanted, found: Interpreter) -> Interpreter:
    version = found.target.version
    if wish.request is not None and not wish.request.accepts(version):
        message = f"{found.path} is Python {version}, the manifest asks for {wish.request.text}"
        raise AmlError(Code.PYTHON_MISSING, message, f"correct {wish.named_by} or python.version")
    return found


def probe(ctx: Context, path: Path) -> Interpreter | str:
    """Run a candidate: what it is, or the reason why it is none."""
    packaging = importlib.util.find_spec("packaging")
    folder = str(Path(packaging.origin).parents[1]) if packaging and packaging.origin else ""
    argv: list[str | Path] = [path, "-I", "-S", _PROBE, folder]
    try:
        env = process.hermetic(ctx.environ)
        answer = process.run(argv, env=env, cwd=ctx.root.folder, limit=PROBE_LIMIT)
    except OSError as error:
        return f"cannot be started: {error.strerror or error}"
    if answer.timed_out:
        return f"did not answer within {PROBE_LIMIT:g} s"
    if answer.status:
        return f"ended with {answer.status}: {answer.tail.splitlines()[-1] if answer.tail else 'without a word'}"
    try:
        return _identify(json.loads(answer.out))
    except (ValueError, KeyError, TypeError):
        return f"printed {answer.out.strip()[:60]!r} where its description was expected"


def _identify(answer: Mapping[str, Any]) -> Interpreter:
    path = Path(answer["executable"])
    library = Path(answer["library"]) if answer["library"] else None
    return Interpreter(
        path=path,
        sha256=warm.sha256(str(path)) or "",
        library=library,
        library_sha256=warm.sha256(str(library)) if library else None,
        target=Target.from_json(answer),
    )


# --- the record ---


def _record_path(ctx: Context) -> Path:
    return ctx.root.runtime / "python.json"


def _entries(ctx: Context) -> dict[str, Any]:
    entries = (store.read_json(_record_path(ctx)) or {}).get("requests")
    if not isinstance(entries, dict):
        return {}
    return {key: entry for key, entry in entries.items() if isinstance(entry, dict) and _is_whole(entry)}


def _is_whole(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is as it was written: one that was damaged, or edited by hand, is none."""
    try:
        return bool(entry.get("digest") == _digest(entry))
    except (ValueError, RecursionError):
        return False


def _digest(entry: Mapping[str, Any]) -> str:
    told = {name: entry.get(name) for name in ("stats", "interpreter")}
    return hashlib.sha256(warm.to_json(told).encode()).hexdigest()


def _remember(ctx: Context, wish: Wanted, found: Interpreter) -> None:
    # The path that was asked for too: a link can be led to another interpreter.
    paths = [ctx.root.relative(path) for path in (found.path, found.library, wish.path) if path]
    stats = {path: _stat(ctx, path) for path in paths}
    entry: dict[str, Any] = {"stats": stats, "interpreter": _to_json(ctx, found)}
    store.prepare(ctx.root)
    entry["digest"] = _digest(entry)
    store.write_json(_record_path(ctx), {"requests": {**_entries(ctx), wish.key: entry}})


def _to_json(ctx: Context, found: Interpreter) -> dict[str, Any]:
    paths = {name: ctx.root.relative(path) if path else None for name, path in _paths(found)}
    return {**found.identity, **paths, "target": found.target.to_json()}


def _paths(found: Interpreter) -> tuple[tuple[str, Path | None], ...]:
    return ("path", found.path), ("library", found.library)


def _from_json(ctx: Context, entry: Mapping[str, Any]) -> Interpreter:
    return Interpreter(
        path=ctx.root.path / entry["path"],
        sha256=entry["sha256"],
        library=ctx.root.path / entry["library"] if entry["library"] else None,
        library_sha256=entry["library_sha256"],
        target=Target.from_json(entry["target"]),
    )
