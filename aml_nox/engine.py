"""Make an environment plan true: find the environment that is it, or build one and certify it.

A build happens in a fresh directory at its final path, under the key's lock; the marker is written last. A directory
counts only if its marker names the key, its own real path and the interpreter's bytes, and if everything that its
distributions claim is there. The same check decides before reuse and after an installation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aml_nox import diagnosis, envdigest, installed, platforms, store, warm
from aml_nox.backend import Backend
from aml_nox.context import Context
from aml_nox.envdigest import Content
from aml_nox.errors import AmlError, Code
from aml_nox.installed import Drift
from aml_nox.interpreter import Interpreter
from aml_nox.lockfile import Lock
from aml_nox.plan import SCHEME, EnvironmentPlan, Inputs, rebuild_reasons
from aml_nox.screen import Meter

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """An environment to have: its plan, the interpreter that it is made of, and what its marker will tell."""

    plan: EnvironmentPlan
    interpreter: Interpreter
    lock: Lock
    inputs: Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An environment that counts; `reasons` is why it had to be built, empty when it stood ready."""

    path: Path
    marker: Mapping[str, Any]
    reasons: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return python_of(self.path)


def python_of(environment: Path) -> Path:
    """The program of an environment's interpreter."""
    return platforms.environment_python(environment)


def find(ctx: Context, wish: Wish) -> Found | None:
    """The youngest environment that counts; nothing is changed and nothing is started."""
    counting: list[Found] = []
    for path in store.environments(ctx.root, wish.plan.key):
        marker = store.read_marker(path)
        if marker is not None and fault(path, marker, wish) is None:
            counting.append(Found(path=path, marker=marker))
    return max(counting, key=lambda one: str(one.marker.get("created")), default=None)


def fault(path: Path, marker: Mapping[str, Any], wish: Wish) -> str | None:
    """Why a directory does not count as the planned environment, in words; None when it does."""
    return base_fault(path, marker, wish) or _content_fault(path, marker, wish)


def base_fault(path: Path, marker: Mapping[str, Any], wish: Wish) -> str | None:
    """The same but for what is installed: whether it is this environment, in this place, of this interpreter."""
    recorded = marker.get("interpreter") or {}
    if marker.get("key") != wish.plan.key or marker.get("scheme") != SCHEME:
        return "it is another environment"
    if marker.get("path") != os.path.realpath(path):
        return f"the project moved or was copied: it was built at {marker.get('path')}"
    if recorded.get("path") != str(wish.interpreter.path):
        return f"its interpreter was {recorded.get('path')}, now it is {wish.interpreter.path}"
    if recorded != wish.interpreter.identity:
        return f"the interpreter {wish.interpreter.path} was replaced: its bytes are others"
    return venv_fault(path, wish.interpreter.path)


def venv_fault(path: Path, interpreter: Path) -> str | None:
    """Why a directory is no virtual environment of an interpreter, in words: its programs would run the base one."""
    program = python_of(path)
    if os.path.realpath(program) != str(interpreter):
        found = f"leads to {os.path.realpath(program)}" if program.exists() else "is missing"
        return f"{program.relative_to(path).as_posix()} {found}"
    homes = {Path(value) for name, value in installed.settings(path) if name == "home"}
    if homes != {interpreter.parent}:
        names = ", ".join(map(str, sorted(homes))) or "of nobody"
        return f"its pyvenv.cfg names the home {names}, not {interpreter.parent}"
    if envdigest.lets_in_system(path):
        return "its pyvenv.cfg lets in the packages of the system"
    return None


def _content_fault(path: Path, marker: Mapping[str, Any], wish: Wish) -> str | None:
    if warm.sha256(str(path / envdigest.MANIFEST)) != marker.get("env_digest"):
        return f"its {envdigest.MANIFEST} is missing or was changed"
    found = installed.drift(path, wish.plan.packages, wish.plan.in_place)
    return _shown(found) if found else None


def _shown(found: Sequence[Drift]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(map(str, found[:_SHOWN])) + more


def reasons(ctx: Context, wish: Wish) -> list[str]:
    """Why the planned environment has to be built, by what the link leads to now."""
    path = store.current(ctx.root, wish.plan.name)
    if path is None:
        return ["there is none yet"]
    marker = store.read_marker(path)
    if marker is None:
        why = "has no marker: it was deleted, or a build was cut off" if path.is_dir() else "is gone"
        return [f"{ctx.root.relative(path)} {why}"]
    if marker.get("key") == wish.plan.key:
        return [fault(path, marker, wish) or "--force"]
    return why_other(marker, wish)


def why_other(marker: Mapping[str, Any], wish: Wish) -> list[str]:
    """Why an environment with this marker is not the planned one."""
    return rebuild_reasons(marker, wish.plan) or ["its key differs"]


def ensure(ctx: Context, wish: Wish, get_backend: Callable[[], Backend], *, force: bool) -> Found:
    """The planned environment: found, or built.

    Raises:
        AmlError: AML_BUSY, AML_FETCH, AML_INTEGRITY, AML_VENV_FAILED, AML_TIMEOUT, AML_STATE.

    """
    found = None if force else find(ctx, wish)
    if found is not None:
        return found
    backend = get_backend()
    key = wish.plan.key[:12]
    wait = ctx.manifest.timeouts.lock_wait
    before = store.environments(ctx.root, wish.plan.key)
    with store.lock(ctx.root, f"env-{key}", what=f"environment {key}", wait=wait, screen=ctx.screen):
        found = find(ctx, wish)
        if found is not None and (not force or found.path not in before):
            return found
        why = ["--force"] if force else reasons(ctx, wish)
        ctx.say(f"building environment {wish.plan.name}: {'; '.join(why)}")
        return _build(ctx, wish, backend, tuple(why))


def _build(ctx: Context, wish: Wish, backend: Backend, why: tuple[str, ...]) -> Found:
    condemned = [path for path in store.environments(ctx.root, wish.plan.key) if _is_condemned(path, wish.interpreter)]
    path = store.new_environment(ctx.root, wish.plan.key)
    try:
        _fill(ctx, wish, backend, path)
        content = _checked(ctx, wish, backend, path)
        store.write_bytes(path / envdigest.MANIFEST, content.manifest)
        marker = _marker(wish, backend, path, content)
        store.write_json(store.marker_path(path), marker)
    except BaseException:
        store.remove(store.marker_path(path))  # first: what is half removed is not to be trusted either
        store.remove(path)
        raise
    store.switch(ctx.root, wish.plan.name, path)
    for old in condemned:
        store.retire(old)
    return Found(path=path, marker=marker, reasons=why)


def _fill(ctx: Context, wish: Wish, backend: Backend, path: Path) -> None:
    """Install all that is planned, past the cache where what lies there cannot even be read."""
    with store.scratch(ctx.root, wish.plan.requirements(ctx.root.folder)) as file:
        try:
            _make(ctx, wish, backend, path)
            backend.install(ctx, python_of(path), file)
        except AmlError as error:
            if not diagnosis.is_damaged(error):
                raise
            ctx.say("the cache is damaged: building again past it")
            store.empty(path)
            _make(ctx, wish, backend, path)
            backend.refetch(ctx, python_of(path), file)
    for project in wish.plan.editables:
        backend.install_editable(ctx, python_of(path), ctx.root.folder / project.path)


def _make(ctx: Context, wish: Wish, backend: Backend, path: Path) -> None:
    backend.make(ctx, wish.interpreter, path)
    _assert_venv(path, wish.interpreter)


def _is_condemned(path: Path, interpreter: Interpreter) -> bool:
    """Whether a build replaces this directory; one of another interpreter is right when that one is asked for again."""
    marker = store.read_marker(path)
    return marker is None or marker.get("interpreter") == interpreter.identity


def _checked(ctx: Context, wish: Wish, backend: Backend, path: Path) -> Content:
    """What was installed, once it is what its wheels' RECORDs say: uv's cache can be poisoned by an edit elsewhere."""
    content = read(ctx, path, wish.plan.target.identity)
    poisoned = {one.distribution for one in content.drift if one.distribution}
    lines = [one.line(ctx.root.folder) for one in wish.plan.artifacts if f"{one.name}=={one.version}" in poisoned]
    if lines:
        ctx.say(f"not as RECORD says: {_shown(content.drift)}; the cache is poisoned, fetching past it")
        with store.scratch(ctx.root, "".join(f"{line}\n" for line in lines)) as file:
            backend.refetch(ctx, python_of(path), file)
        content = read(ctx, path, wish.plan.target.identity)
    # The check before reuse too: what it would not let pass must not be certified.
    wrong = [*installed.drift(path, wish.plan.packages, wish.plan.in_place), *content.drift]
    # A wheel can bring a pyvenv.cfg of its own.
    if told := venv_fault(path, wish.interpreter.path) or (wrong and _shown(wrong)):
        message = f"what was installed is not what was promised: {told}"
        raise AmlError(Code.INTEGRITY, message, "the wheel itself is damaged, or somebody else writes into aml/envs")
    return content


def read(ctx: Context, path: Path, identity: Mapping[str, str]) -> Content:
    """The content of an environment, every byte read; progress is shown where it takes long."""
    meter = Meter(ctx.screen, "reading what is installed")
    return envdigest.compute(path, identity, progress=meter.show)


def _assert_venv(path: Path, interpreter: Interpreter) -> None:
    """Hold that it is a virtual environment: uv installs into the base interpreter where it is none."""
    if wrong := venv_fault(path, interpreter.path):
        message = f"{path} is no virtual environment of {interpreter.path}: {wrong}"
        hint = "another process changed it, or there is no space left: provision again"
        raise AmlError(Code.VENV_FAILED, message, hint)


def _marker(wish: Wish, backend: Backend, path: Path, content: Content) -> dict[str, Any]:
    """What the environment is and where it came from; it speaks for this path and these interpreter bytes alone."""
    unsealed = [*wish.plan.unsealed, *content.overlaps]
    return {
        "schema": store.SCHEMA,
        "scheme": SCHEME,
        "key": wish.plan.key,
        "env_digest": content.digest,
        "distributions_digest": content.distributions_digest,
        "sealed": not unsealed,
        "unsealed": unsealed,
        "inputs": dict(wish.inputs.values),
        "lock_sha256": wish.lock.sha256,
        "target": wish.plan.target.identity,
        "interpreter": wish.interpreter.identity,
        **backend.facts,
        "path": os.path.realpath(path),
        "created": store.now(),
        "packages": wish.plan.packages,
        "editables": [one.identity for one in wish.plan.editables],
    }
