"""uv: find one that fits the manifest, and call it. `uvfetch` gets one where there is none."""

from __future__ import annotations

import importlib.util
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from aml_nox import diagnosis, platforms, process, store
from aml_nox.context import Context
from aml_nox.errors import AmlError, Code
from aml_nox.manifest import is_file

PROBE_LIMIT = 15.0
_VERSION = re.compile(r"^uv (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uv:
    """A uv that ran and fits the manifest; `source` says in words where it was found."""

    path: Path
    version: str
    source: str


def find(ctx: Context) -> tuple[Uv | None, list[str]]:
    """The first candidate that runs and fits, and why the earlier ones did not."""
    attempts: dict[Path, str] = {}
    return look(ctx, attempts), [*attempts.values()]


def look(ctx: Context, attempts: dict[Path, str]) -> Uv | None:
    """The first candidate that runs and fits; those in `attempts` are passed over, and those that fail join them."""
    for path, source in _candidates(ctx):
        if path in attempts:
            continue
        found = probe(ctx, path, source)
        if isinstance(found, Uv):
            return found
        attempts[path] = f"{path} ({source}): {found}"
    if ctx.manifest.uv.path is not None:
        raise missing(ctx, [*attempts.values()], "uv.path is used alone: correct it, or leave it out")
    return None


def _candidates(ctx: Context) -> Iterator[tuple[Path, str]]:
    """Where a uv may be, in the order of trust."""
    chosen, source = ctx.manifest.uv.path, ctx.manifest.uv.source
    if chosen is not None:
        yield ctx.root.folder / chosen, "uv.path"
        return
    program = platforms.program("uv")
    if source == "url":
        yield from ((place, "the project's tools") for place in [url_place(ctx)] if place and place.is_file())
    if source in {"auto", "index", "installer"}:
        for pattern in (program, f"*/{program}", f"*/*/{program}"):
            yield from ((path, "the project's tools") for path in sorted(ctx.root.tools.glob(pattern), reverse=True))
    if source == "auto":
        recorded = (store.read_json(_record_path(ctx)) or {}).get("path")
        if isinstance(recorded, str):
            yield ctx.root.path / recorded, "the record of the last run"
    if source in {"auto", "system"}:
        yield from _installed(ctx)


def url_place(ctx: Context) -> Path | None:
    """Where the uv of uv.url lies: by the digest that the manifest promises, so that another URL is another uv."""
    expected = dict(ctx.manifest.uv.sha256).get(platforms.name())
    return ctx.root.tools / f"uv-{expected[:12]}" / platforms.program("uv") if expected else None


def _installed(ctx: Context) -> Iterator[tuple[Path, str]]:
    if importlib.util.find_spec("uv") is not None:
        yield Path(sysconfig.get_path("scripts"), platforms.program("uv")), "nox's own environment"
    for folder in ctx.environ.get("PATH", "").split(platforms.path_separator()):
        candidate = Path(folder, platforms.program("uv")).absolute()
        if folder and is_file(candidate):
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
    same = known is not None and (known.get("path"), known.get("version")) == (ours, uv.version)
    if same and method == "existing":
        return
    facts = {
        "path": ours,
        "version": uv.version,
        "source": uv.source,
        "method": method,
        "verified": method in {"index", "url"},
        "installed_at": store.now() if method != "existing" else None,
        "install_dir": ctx.root.relative(uv.path.parent),
    }
    store.prepare(ctx.root)
    store.write_json(path, facts)


def _record_path(ctx: Context) -> Path:
    return ctx.root.runtime / "uv.json"


def missing(ctx: Context, attempts: Sequence[str], hint: str) -> AmlError:
    """The error for a uv that is not to be had, with every attempt."""
    message = f"no uv that fits {ctx.manifest.uv.version} was found{tried(attempts)}"
    return AmlError(Code.UV_MISSING, message, hint)


def tried(attempts: Sequence[str]) -> str:
    """The attempts as lines of an error."""
    return "".join(f"\n  tried {attempt}" for attempt in attempts)


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
        raise diagnosis.failure(ctx, done, step=step, limit=limit, otherwise=otherwise)
    return done
