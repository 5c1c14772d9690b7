"""uv: find one that fits the manifest, fetch it from the index when there is none, and call it.

The functions that build a command line are pure; `call` runs one and says what its failure means.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from aml_nox import process, store
from aml_nox.context import INDEX_VARIABLE, Context
from aml_nox.errors import AmlError, Code

PROBE_LIMIT = 15.0
_PROGRAM = "uv.exe" if sys.platform == "win32" else "uv"
_VERSION = re.compile(r"^uv (\S+)", re.MULTILINE)
_MEMBER = re.compile(r"uv-[^/]+\.data/scripts/uv(\.exe)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uv:
    """A uv that ran and fits the manifest; `source` says in words where it was found."""

    path: Path
    version: str
    source: str


def ensure(ctx: Context, wheels: Mapping[str, str]) -> Uv:
    """The uv of this project: found, or fetched from the index into the AML root.

    `wheels` are the sha256 of uv's wheels by file name, as the lock promises them.

    Raises:
        AmlError: AML_UV_MISSING lists every attempt; AML_FETCH, AML_INTEGRITY, AML_TIMEOUT from the fetch.

    """
    attempts: dict[Path, str] = {}
    found = _look(ctx, attempts)
    if found is None:
        wait = ctx.manifest.timeouts.lock_wait
        with store.lock(ctx.root, "toolchain", what="the toolchain", wait=wait, screen=ctx.screen):
            found = _look(ctx, attempts)
            if found is None:
                found = _fetch(ctx, wheels, [*attempts.values()])
    return found


def find(ctx: Context) -> tuple[Uv | None, list[str]]:
    """The first candidate that runs and fits, and why the earlier ones did not."""
    attempts: dict[Path, str] = {}
    return _look(ctx, attempts), [*attempts.values()]


def _look(ctx: Context, attempts: dict[Path, str]) -> Uv | None:
    """The first candidate that runs and fits; those in `attempts` are passed over, and those that fail join them."""
    for path, source in _candidates(ctx):
        if path in attempts:
            continue
        found = probe(ctx, path, source)
        if isinstance(found, Uv):
            return found
        attempts[path] = f"{path} ({source}): {found}"
    if ctx.manifest.uv.path is not None:
        raise _missing(ctx, [*attempts.values()], "uv.path is used alone: correct it, or leave it out")
    return None


def _candidates(ctx: Context) -> Iterator[tuple[Path, str]]:
    """Where a uv may be, in the order of trust."""
    chosen, source = ctx.manifest.uv.path, ctx.manifest.uv.source
    if chosen is not None:
        yield ctx.root.folder / chosen, "uv.path"
        return
    if source in {"auto", "index"}:
        for pattern in (_PROGRAM, f"*/{_PROGRAM}", f"*/*/{_PROGRAM}"):
            yield from ((path, "the project's tools") for path in sorted(ctx.root.tools.glob(pattern), reverse=True))
    if source == "auto":
        recorded = (store.read_json(_record_path(ctx)) or {}).get("path")
        if isinstance(recorded, str):
            yield ctx.root.path / recorded, "the record of the last run"
    if source in {"auto", "system"}:
        yield from _installed(ctx)


def _installed(ctx: Context) -> Iterator[tuple[Path, str]]:
    if importlib.util.find_spec("uv") is not None:
        yield Path(sysconfig.get_path("scripts"), _PROGRAM), "nox's own environment"
    for folder in ctx.environ.get("PATH", "").split(";" if sys.platform == "win32" else ":"):
        candidate = Path(folder, _PROGRAM).absolute()
        if folder and candidate.is_file():
            yield candidate, "PATH"


def probe(ctx: Context, path: Path, source: str) -> Uv | str:
    """Run a candidate: a uv that fits, or the reason why it is none."""
    try:
        env = process.hermetic(ctx.environ)
        answer = process.run([path, "--version"], env=env, cwd=ctx.root.folder, limit=PROBE_LIMIT)
    except (OSError, ValueError) as error:  # a damaged record can name what no path can be
        return f"cannot be started: {getattr(error, 'strerror', None) or error}"
    if answer.timed_out:
        return f"did not answer within {PROBE_LIMIT:g} s"
    if answer.status:
        return f"ended with {answer.status}"
    return _judge(ctx, path, source, answer.out)


def _judge(ctx: Context, path: Path, source: str, printed: str) -> Uv | str:
    match = _VERSION.search(printed)
    try:
        version = Version(match[1]) if match else None
    except InvalidVersion:
        version = None
    if version is None:
        return f"printed {printed.strip()[:60]!r} where its version was expected"
    if not ctx.manifest.uv.version.contains(version, prereleases=True):
        return f"is uv {version}, the manifest asks for {ctx.manifest.uv.version}"
    return Uv(path=path, version=str(version), source=source)


def remember(ctx: Context, uv: Uv, method: str = "existing") -> None:
    """Record the uv in use, so that the next run asks it first."""
    path, known = _record_path(ctx), store.read_json(_record_path(ctx))
    ours = ctx.root.relative(uv.path)
    if known is not None and known.get("path") == ours and known.get("version") == uv.version:
        return
    facts = {
        "path": ours,
        "version": uv.version,
        "source": uv.source,
        "method": method,
        "verified": method == "index",
        "installed_at": store.now() if method != "existing" else None,
        "install_dir": ctx.root.relative(uv.path.parent),
    }
    store.prepare(ctx.root)
    store.write_json(path, facts)


def _record_path(ctx: Context) -> Path:
    return ctx.root.runtime / "uv.json"


def _unfetched(ctx: Context, attempts: Sequence[str], error: AmlError) -> AmlError:
    """The error of a fetch, with what was tried before it; what the index does not have either is missing."""
    if error.code is Code.RESOLUTION:
        return _missing(ctx, [*attempts, f"the index: {error.message}"], error.hint)
    return AmlError(error.code, error.message + _tried(attempts), error.hint)


def _tried(attempts: Sequence[str]) -> str:
    return "".join(f"\n  tried {attempt}" for attempt in attempts)


def _missing(ctx: Context, attempts: Sequence[str], hint: str) -> AmlError:
    message = f"no uv that fits {ctx.manifest.uv.version} was found{_tried(attempts)}"
    return AmlError(Code.UV_MISSING, message, hint)


# --- fetching ---


def _fetch(ctx: Context, wheels: Mapping[str, str], attempts: Sequence[str]) -> Uv:
    if ctx.manifest.uv.source == "system":
        raise _missing(ctx, attempts, 'install uv, or set uv.source = "auto"')
    if ctx.offline:
        raise _missing(ctx, attempts, "run once without --offline, or put a uv into aml/tools")
    ctx.say("fetching uv from the index")
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = _download(ctx, Path(folder))
        except AmlError as error:
            raise _unfetched(ctx, attempts, error) from None
        version = str(parse_wheel_filename(wheel.name)[1])
        _hold(ctx, wheel, wheels)
        target = ctx.root.tools / f"uv-{version}" / _PROGRAM
        _unpack(wheel, target)
    found = probe(ctx, target, "the index")
    if isinstance(found, str):
        store.remove(target.parent)
        raise _missing(ctx, [*attempts, f"the wheel from the index: {found}"], "correct uv.version or the index")
    remember(ctx, found, "index")
    return found


def _download(ctx: Context, folder: Path) -> Path:
    """One wheel of uv for this machine, by pip, which holds it against the index's own hash."""
    argv = [sys.executable, "-I", "-m", "pip", "--isolated", "--disable-pip-version-check", "--no-input", "download"]
    argv += ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), *pip_flags(ctx)]
    limit = ctx.manifest.timeouts.uv
    env = _pip_environment(ctx, folder)
    done = process.run([*argv, f"uv{ctx.manifest.uv.version}"], env=env, cwd=folder, limit=limit)
    if done.timed_out or done.status:
        raise failure(ctx, done, step="fetching uv", limit=limit, otherwise=Code.FETCH)
    for path in folder.glob("uv-*.whl"):
        return path
    raise AmlError(Code.FETCH, "pip ended well and left no wheel of uv", "try again; if it stays so, report it")


def _pip_environment(ctx: Context, folder: Path) -> dict[str, str]:
    """For pip: no configuration, its temporary files where we remove them, its proxy not where `ps` would show it."""
    extra = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    extra["PIP_CONFIG_FILE"] = "nul" if sys.platform == "win32" else "/dev/null"
    if proxy := ctx.environ.get("PIP_PROXY"):
        extra |= dict.fromkeys(("http_proxy", "https_proxy"), proxy)
    return process.hermetic(ctx.environ, **extra)


def pip_flags(ctx: Context) -> list[str]:
    """The index of this run and the caller's certificates, for pip, which is told to ignore its environment."""
    flags: list[str] = []
    if url := ctx.index_url():
        flags += ["--index-url", url]
    for extra in ctx.manifest.index.extra:
        flags += ["--extra-index-url", extra.url]
    for name, flag in (("PIP_CERT", "--cert"), ("PIP_CLIENT_CERT", "--client-cert")):
        if value := ctx.environ.get(name):
            flags += [flag, value]
    return flags


def _hold(ctx: Context, wheel: Path, wheels: Mapping[str, str]) -> None:
    expected = wheels.get(wheel.name)
    if expected is None:
        ctx.say(f"{wheel.name}: no hash of it is in a lock yet, the index's own hash was trusted")
        return
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != expected:
        message = f"{wheel.name} has sha256 {found}, the lock promises {expected}"
        raise AmlError(Code.INTEGRITY, message, "find out who changed the index; `lock --upgrade` takes the new one")


def _unpack(wheel: Path, target: Path) -> None:
    """Take the one program out of the wheel (the wheel format names its place: PEP 427, .data/scripts)."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((name for name in archive.namelist() if _MEMBER.fullmatch(name)), None)
            if member is None:
                raise AmlError(Code.INTEGRITY, f"{wheel.name} holds no uv", "check the index")
            store.write_program(target, archive.read(member))
    except zipfile.BadZipFile as error:
        raise AmlError(Code.INTEGRITY, f"{wheel.name} is no wheel: {error}", "check the index") from None


def wheel_version(name: str) -> str | None:
    """The version that a wheel's file name tells."""
    try:
        return str(parse_wheel_filename(name)[1])
    except InvalidWheelFilename:
        return None


# --- calling ---


def index_flags(ctx: Context) -> list[str]:
    """The indexes of this run for uv. Names matter: uv finds a named index's credentials in the environment."""
    index = ctx.manifest.index
    flags: list[str] = []
    if url := ctx.index_url():
        flags += ["--default-index", f"{index.name}={url}"]
    for extra in index.extra:
        flags += ["--index", f"{extra.name}={extra.url}"]
    return [*flags, "--index-strategy", index.strategy]


def call(
    ctx: Context,
    uv: Uv,
    arguments: Sequence[str | Path],
    *,
    step: str,
    limit: float,
    otherwise: Code,
    stdin: str = "",
    quiet: bool = False,
) -> process.Finished:
    """Run uv with nothing ambient: no configuration, no variable but the kept ones, stdin closed or given.

    `step` names the work in an error; `otherwise` is the code of a failure that its words do not tell.

    Raises:
        AmlError: what the failure means.

    """
    argv = [uv.path, *arguments, "--no-config", *(["--offline"] if ctx.offline else [])]
    env = process.hermetic(ctx.environ)
    screen = None if quiet else ctx.screen
    try:
        done = process.run(argv, env=env, cwd=ctx.root.folder, limit=limit, stdin=stdin, screen=screen)
    except OSError as error:
        raise process.cannot_start(uv.path, error) from error
    if done.timed_out or done.status:
        raise failure(ctx, done, step=step, limit=limit, otherwise=otherwise)
    return done


# What a tool's words mean, the first that fits; measured on uv 0.13 and pip 26.
_FETCH_WORDS = (
    r"\b(401|403|407|429|50\d) [A-Z]|HTTP error [45]\d\d|Failed to (fetch|download)|[Rr]equest failed|"
    r"error sending request|Network connectivity is disabled|network was disabled|[Cc]onnection (refused|reset|broken)|"
    r"Max retries|NewConnectionError|Could not (connect|fetch)|IncompleteRead|peer certificate|CERTIFICATE_VERIFY"
)
_WORDS = (
    (r"[Hh]ash mismatch|DO NOT MATCH THE HASHES|[Ss]ize mismatch", Code.INTEGRITY),
    (r"No space left on device|Disk quota exceeded", Code.STATE),
    (_FETCH_WORDS, Code.FETCH),
    (r"No solution found|not found in the package registry|No matching distribution|unsatisfiable", Code.RESOLUTION),
)
_HINTS = {
    Code.INTEGRITY: "the bytes are not those that were promised: find out who changed the index, then lock again",
    Code.STATE: "free some space and run the same command again",
    Code.VENV_FAILED: "its own words say what stands in the way",
    Code.RESOLUTION: "loosen the requirement that is named, or add the index that has it",
}


def failure(ctx: Context, done: process.Finished, *, step: str, limit: float, otherwise: Code) -> AmlError:
    """The error for a tool that failed: its own last words, what kind of fault they tell, what to do."""
    if done.timed_out:
        return AmlError(Code.TIMEOUT, f"{step} took longer than {limit:g} s and was ended", "raise [timeouts]")
    if done.status < 0:
        hint = "somebody ended it, or the machine ran out of memory: run the same command again"
        return AmlError(otherwise, f"{step} was ended by signal {-done.status}", hint)
    words = done.err + done.out
    code = next((code for pattern, code in _WORDS if re.search(pattern, words)), otherwise)
    tail = done.tail or process.Redactor.of(ctx.environ)(done.out)[-400:].strip()
    hints = [_HINTS.get(code, ""), _fetch_hint(ctx) if code in {Code.FETCH, Code.RESOLUTION} else ""]
    return AmlError(code, f"{step} failed (exit {done.status}):\n{tail}", "; ".join(filter(None, hints)))


def _fetch_hint(ctx: Context) -> str:
    where = ctx.index_url()
    hint = f"the index tried is {where}" if where else "no index.url is set, so the tool's own default index was tried"
    if ctx.offline:
        hint = "--offline allows no request: run once without it"
    if dropped := process.dropped_index_variables(ctx.environ):
        hint += f"; not used: {', '.join(dropped)} (set index.url or {INDEX_VARIABLE})"
    return hint
