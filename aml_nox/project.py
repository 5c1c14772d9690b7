"""A project on its way from the manifest to a ready environment: each step hands a value to the next."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aml_nox import engine, installed, interpreter, lockfile, manifest, plan, requirements, store, uv, uvfetch, warm
from aml_nox.backend import Backend, PipBackend, UvBackend
from aml_nox.calls import Call
from aml_nox.context import Context
from aml_nox.engine import Found, Wish
from aml_nox.errors import AmlError, Code
from aml_nox.lockfile import Lock
from aml_nox.locking import Tools, Upgrade, compile_lock
from aml_nox.manifest import Environment
from aml_nox.options import Options
from aml_nox.plan import EnvironmentPlan, Inputs, LockDecision, Policy
from aml_nox.requirements import Declared

# What may mean that somebody changed a file, or that the disk is full, is not mended by another tool.
_NEVER_BY_PIP = {Code.INTEGRITY, Code.STATE, Code.USAGE, Code.BUSY}


@dataclass(frozen=True)
class Project:
    """One environment of one manifest, read once: what a verb works on."""

    verb: str
    ctx: Context
    options: Options
    environment: Environment
    declared: Declared
    inputs: Inputs

    @property
    def lock_path(self) -> Path:
        return self.ctx.root.folder / self.environment.lock_name

    @property
    def policy(self) -> Policy:
        # Who asks for a lock gets one, in CI too.
        ci = self.verb != "lock" and self.ctx.environ.get("CI", "").lower() not in {"", "0", "false"}
        return Policy(locked=self.options.locked, ci=ci, offline=self.options.offline)

    @cached_property
    def _uv_or_error(self) -> uv.Uv | AmlError:
        if self.ctx.manifest.uv.source == "none":
            return AmlError(Code.UV_MISSING, 'uv.source = "none" allows no uv', "a lock is made by uv: allow one")
        try:
            found = uvfetch.ensure(self.ctx, self._promise(), locked=self.policy.strict)
        except AmlError as error:
            return error
        uv.remember(self.ctx, found)
        return found

    def _promise(self) -> plan.Promise:
        try:
            lock = lockfile.read(self.lock_path)
        except AmlError:  # told by whoever needs the lock
            lock = None
        return lockfile.promise(lock)

    @property
    def uv(self) -> uv.Uv:
        """The uv of this run: looked for when something needs it, and once."""
        if isinstance(self._uv_or_error, AmlError):
            raise self._uv_or_error
        return self._uv_or_error

    @cached_property
    def backend(self) -> Backend:
        """Who builds: uv, or pip where there is no uv to be had and the manifest does not insist on one."""
        if isinstance(self._uv_or_error, uv.Uv):
            return UvBackend(self._uv_or_error, self.environment)
        error, table = self._uv_or_error, self.ctx.manifest.uv
        if table.source not in {"auto", "none"} or table.path is not None or error.code in _NEVER_BY_PIP:
            raise error
        self.ctx.say(f"building with venv and pip, since there is no uv: {error.message}")
        return PipBackend(self.environment)

    @cached_property
    def interpreter(self) -> interpreter.Interpreter:
        """The interpreter of this run; --force chooses anew."""
        fresh = self.options.force
        if not fresh and interpreter.recorded(self.ctx) is not None:
            return interpreter.ensure(self.ctx, lambda: self.uv)
        if isinstance(self.backend, PipBackend):
            return interpreter.ensure_without_uv(self.ctx, fresh=fresh)
        return interpreter.ensure(self.ctx, lambda: self.uv, fresh=fresh)


def open_project(call: Call, options: Options) -> Project:
    """Read the manifest and all that it names.

    Raises:
        AmlError: AML_MANIFEST tells every fault of every file; AML_USAGE an environment that does not exist.

    """
    named = call.manifest_path(options)
    if named is None:
        hint = "`aml-nox init` makes one, --manifest names one elsewhere"
        raise AmlError(Code.MANIFEST, f"there is no {warm.MANIFEST} in {call.cwd} or above", hint)
    path = Path(named).absolute()
    read = manifest.load(path)
    root = store.locate(path.parent, call.environ)
    ctx = Context(manifest=read, root=root, environ=call.environ, screen=call.screen, offline=options.offline)
    own = read.train.environment if call.verb == "train" and read.train else warm.DEFAULT
    name = own if options.env is None else options.env
    environment = read.environment(name)
    declared = requirements.declare(read, name)
    return Project(call.verb, ctx, options, environment, declared, plan.inputs(read, environment, declared))


# --- looking: nothing is changed and nothing is started ----


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How a project stands: its lock, and, once an interpreter is known, the environment to have and the one it has."""

    lock: Lock | None
    stale: Sequence[str] | None
    wish: Wish | None
    found: Found | None


def look(project: Project) -> View:
    """How the project stands now; status, plan, provision and train all ask this."""
    lock = lockfile.read(project.lock_path)
    stale = lockfile.stale(lock, project.inputs, project.declared)
    known = None if project.options.force else interpreter.recorded(project.ctx)
    if lock is None or stale or known is None:
        return View(lock=lock, stale=stale, wish=None, found=None)
    wish = wish_for(project, lock, known)
    return View(lock=lock, stale=stale, wish=wish, found=engine.find(project.ctx, wish))


def wish_for(project: Project, lock: Lock, python: interpreter.Interpreter) -> Wish:
    """The environment that a lock describes for an interpreter."""
    environment, declared = project.environment, project.declared
    selected = lockfile.select(lock, python.target, declared, environment.allow_build)
    in_place = {one.name for one in declared.editables}  # each stands for a release of its own that others ask for
    planned = EnvironmentPlan(
        name=environment.name,
        artifacts=tuple(one for one in selected if one.name not in in_place),
        target=python.target,
        editables=declared.editables,
    )
    return Wish(plan=planned, interpreter=python, lock=lock, inputs=project.inputs)


# --- the lock ---


@dataclass(frozen=True, slots=True)
class Settled:
    """A lock that belongs to the manifest, whether this run wrote it, and why."""

    lock: Lock
    changed: bool
    reasons: tuple[str, ...] = ()


def settle(project: Project, *, upgrade: Upgrade | None = None) -> Settled:
    """The lock of the environment: kept, made or updated as the policy allows."""
    upgrade = upgrade or Upgrade()
    lock, decision = _decide(project, upgrade)
    if lock is not None and decision.action == "keep" and not upgrade.wanted:
        return Settled(lock, changed=False)
    _announce(project, decision)
    tools = Tools(uv=project.uv, interpreter=project.interpreter)
    with _project_lock(project):
        lock, decision = _decide(project, upgrade)
        if lock is not None and decision.action == "keep" and not upgrade.wanted:
            return Settled(lock, changed=False)
        made = compile_lock(
            project.ctx,
            tools,
            project.lock_path,
            environment=project.environment,
            declared=project.declared,
            inputs=project.inputs,
            upgrade=upgrade,
        )
    _tell_lock(project, lock, made, decision)
    return Settled(made, changed=lock is None or made.sha256 != lock.sha256, reasons=decision.reasons)


def _decide(project: Project, upgrade: Upgrade) -> tuple[Lock | None, LockDecision]:
    try:
        lock = lockfile.read(project.lock_path)
    except AmlError:
        if not upgrade.anew:
            raise
        return None, LockDecision("make", ("--force",))
    stale = lockfile.stale(lock, project.inputs, project.declared)
    return lock, plan.decide_lock(project.lock_path.name, stale, project.policy)


@contextmanager
def _project_lock(project: Project) -> Iterator[None]:
    ctx, what = project.ctx, project.lock_path.name
    name = f"lock-{project.environment.name}"
    with store.lock(ctx.root, name, what=what, wait=ctx.manifest.timeouts.lock_wait, screen=ctx.screen):
        yield


def _announce(project: Project, decision: LockDecision) -> None:
    name = project.lock_path.name
    if decision.action == "make":
        project.ctx.say(f"making {name}: {'; '.join(decision.reasons)}")
        if project.policy.ci:
            project.ctx.say(f"warning: CI is set and {name} is missing: what is installed is not what was committed")
    elif decision.action == "update":
        project.ctx.say(f"updating {name}: {'; '.join(decision.reasons)}")


def _tell_lock(project: Project, old: Lock | None, made: Lock, decision: LockDecision) -> None:
    changes = plan.package_changes(old.packages if old else [], made.packages)
    if decision.action == "make":
        count = len(made.packages)
        project.ctx.say(f"{made.path.name} has {count} package{'s' * (count != 1)}: commit it beside aml.toml")
    else:
        project.ctx.say(f"{made.path.name}: {', '.join(changes) or 'the same packages'}")


# --- the environment ---


@dataclass(frozen=True, slots=True)
class Provisioned:
    """An environment that is ready, and what was done for it."""

    found: Found
    wish: Wish
    report: Mapping[str, Any]


def provisioned(project: Project) -> Provisioned:
    """Make the environment true: lock, build, link, observation."""
    done = _provisioned(project)
    # No link led to an environment of an earlier day: `clean` may have taken it while we found it. Now one does.
    return done if store.read_marker(done.found.path) is not None else _provisioned(project)


def _provisioned(project: Project) -> Provisioned:
    view = look(project)
    if view.found is not None and view.wish is not None and view.lock is not None:
        return _finish(project, view.wish, view.found, Settled(view.lock, changed=False))
    settled = settle(project)
    wish = wish_for(project, settled.lock, project.interpreter)
    found = engine.ensure(project.ctx, wish, lambda: project.backend, force=project.options.force)
    return _finish(project, wish, found, settled)


def _finish(project: Project, wish: Wish, found: Found, settled: Settled) -> Provisioned:
    ctx = project.ctx
    name = project.environment.name
    facts = {
        "path": ctx.root.relative(found.path),
        "python": ctx.root.relative(found.python),
        "key": wish.plan.key,
        "env_digest": found.marker["env_digest"],
        "sealed": found.marker["sealed"],
        "version": wish.plan.target.version,
    }
    switched = _switch(project, found)
    _observe(project, wish, found, facts, settled.lock)
    report = warm.report(str(ctx.root.path), str(ctx.root.folder), name, facts, switched=switched)
    changed = bool(found.reasons)
    reasons = [*settled.reasons, *found.reasons]
    report = {**report, "changed": changed, "reasons": reasons, "lock": lock_report(project, settled)}
    return Provisioned(found, wish, report)


def _switch(project: Project, found: Found) -> bool:
    """Point the link; a tree that cannot be written is used as it is when its link is right."""
    return store.switch(project.ctx.root, project.environment.name, found.path)


def _observe(project: Project, wish: Wish, found: Found, facts: Mapping[str, Any], lock: Lock) -> None:
    """Leave what the next run needs to see that nothing changed: of what was read here, not of what lies there now."""
    ctx, declared = project.ctx, project.declared
    root, folder = str(ctx.root.path), str(ctx.root.folder)
    elsewhere = [str(path) for path in (wish.interpreter.library, interpreter.wanted(ctx).path) if path]
    files = {one.path: one.sha256 for one in declared.files} | {
        path: sha256 for one in declared.editables for path, sha256 in one.files
    }
    watched = {
        "files": list(files),
        "wheels": [one.path for one in declared.wheels],
        "stats": [*_vital(ctx, found), *elsewhere],
        "site": ctx.root.relative(installed.site_packages(found.path)),
    }
    observed = warm.observe(root, folder, watched)
    observed["files"] = files
    wheels_changed = any(warm.sha256(str(ctx.root.folder / one.path)) != one.sha256 for one in declared.wheels)
    if wheels_changed or interpreter.recorded(ctx) != wish.interpreter:
        return
    name = warm.ready_name(project.ctx.manifest.sha256, lock.sha256, project.environment.name, ctx.environ)
    record = {"root": os.path.realpath(root), "environment": facts, "watched": watched, "observed": observed}
    store.write_ready(ctx.root.runtime / "ready" / name, record)


def _vital(ctx: Context, found: Found) -> list[str]:
    return [
        ctx.root.relative(path) for path in (store.marker_path(found.path), found.path / "pyvenv.cfg", found.python)
    ]


def lock_report(project: Project, settled: Settled) -> dict[str, Any]:
    """What is told of a lock."""
    return {"path": str(project.lock_path), "changed": settled.changed}
