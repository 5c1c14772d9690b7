"""The verbs: what each does with a project, says to people, and reports as values. Both front ends call `run`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import InvalidName, canonicalize_name

from aml_nox import engine, init, interpreter, lockfile, plan, store, uv, warm
from aml_nox.calls import Call, Outcome
from aml_nox.errors import AmlError, Code
from aml_nox.locking import Upgrade
from aml_nox.options import Options
from aml_nox.plan import Policy
from aml_nox.project import Project, View, lock_report, look, open_project, provisioned, settle
from aml_nox.train import job

_CROWDED = 3


def run(call: Call, options: Options) -> Outcome:
    """Run a verb. Faults of the operating system that a user can mend are named as such."""
    try:
        if call.verb == "init":
            return Outcome(init.write(Path(call.cwd), call.screen, force=options.force))
        return _VERBS[call.verb](open_project(call, options), call)
    except OSError as error:
        known = store.state_error(error)
        if known is None:
            raise
        raise known from error


def lock(project: Project, _call: Call) -> Outcome:
    """Make, update or check the lock."""
    options = project.options
    if options.check:
        return _check(project)
    upgrade = Upgrade(everything=options.upgrade, packages=_names(options.upgrade_package), anew=options.force)
    if upgrade.wanted and options.offline:
        raise AmlError(Code.USAGE, "--offline never changes a lock", "run it once without --offline")
    settled = settle(project, upgrade=upgrade)
    for name in set(upgrade.packages) - {package["name"] for package in settled.lock.packages}:
        project.ctx.say(f"{project.lock_path.name} has no package {name}")
    if not settled.changed:
        project.ctx.say(f"{project.lock_path.name} belongs to the manifest: nothing to do")
    return Outcome({"lock": lock_report(project, settled), "reasons": list(settled.reasons)})


def _names(words: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted({canonicalize_name(word, validate=True) for word in words}))
    except InvalidName as error:
        hint = "give the name alone; a version belongs into aml.toml"
        raise AmlError(Code.USAGE, f"--upgrade-package: {error}", hint) from None


def _check(project: Project) -> Outcome:
    plan.decide_lock(project.lock_path.name, look_lock(project), Policy(check=True))
    project.ctx.say(f"{project.lock_path.name} belongs to the manifest")
    return Outcome({"lock": {"path": str(project.lock_path), "changed": False}, "reasons": []})


def look_lock(project: Project) -> list[str] | None:
    """Why the lock is stale; empty: it is not, None: there is none."""
    return lockfile.stale(lockfile.read(project.lock_path), project.inputs, project.declared)


def provision(project: Project, _call: Call) -> Outcome:
    """Make the environment that the lock describes."""
    done = provisioned(project)
    environment = done.report["environment"]
    project.ctx.say(f"environment {environment['name']} is ready: {environment['python']}")
    if (count := store.count_environments(project.ctx.root)) > _CROWDED:
        project.ctx.say(f"{count} environments are kept in {project.ctx.root.envs}")
    return Outcome(done.report)


_NO_UV: dict[str, Any] = {
    "ok": False,
    "reason": 'uv.source = "none" allows none: a lock that is there is installed by pip',
}


def bootstrap(project: Project, _call: Call) -> Outcome:
    """Have uv, unless the manifest wants none, and the interpreter."""
    told = _NO_UV
    if project.ctx.manifest.uv.source != "none":
        tool = project.uv
        told = _uv_report(tool)
        project.ctx.say(f"uv {tool.version} ({tool.source}): {tool.path}")
    python = project.interpreter
    project.ctx.say(f"python {python.target.version}: {python.path}")
    return Outcome({"uv": told, "python": _python_report(python)})


def _uv_report(tool: uv.Uv) -> dict[str, Any]:
    return {"ok": True, "path": str(tool.path), "version": tool.version, "source": tool.source}


def _python_report(python: interpreter.Interpreter) -> dict[str, Any]:
    return {"ok": True, "path": str(python.path), "version": python.target.version}


# --- telling ---


def tell_plan(project: Project, _call: Call) -> Outcome:
    """What provision would do, and why; nothing is changed, no request is made."""
    view = look(project)
    decision = plan.decide_lock(project.lock_path.name, view.stale, project.policy)
    action, reasons = _environment_plan(project, view)
    _say_step(project, f"lock {project.lock_path.name}", decision.action, decision.reasons)
    _say_step(project, f"environment {project.environment.name}", action, reasons)
    lock_values = {"path": str(project.lock_path), "action": decision.action, "reasons": list(decision.reasons)}
    environment = {"name": project.environment.name, "action": action, "reasons": list(reasons)}
    return Outcome({"lock": lock_values, "environment": environment})


def _environment_plan(project: Project, view: View) -> tuple[str, Sequence[str]]:
    if view.found is not None:
        return "keep", ()
    if view.wish is not None:
        return "build", engine.reasons(project.ctx, view.wish)
    if view.lock is None or view.stale:
        return "undecided", ("decided once the lock is there",)
    return "undecided", ("decided once Python is there",)


def _say_step(project: Project, what: str, action: str, reasons: Sequence[str]) -> None:
    project.ctx.say(f"{what}: {action}" + (f" ({'; '.join(reasons)})" if reasons else ""))


def status(project: Project, _call: Call) -> Outcome:
    """What is ready, and the reason for each that is not."""
    ctx = project.ctx
    values: dict[str, Any] = {
        "uv": _uv_status(project),
        "python": _python_status(project),
        "environment": _environment_status(project),
        "jobs": job.states(ctx.root),
        "aml_root": str(ctx.root.path),
    }
    for name in ("uv", "python", "environment"):
        one = values[name]
        told = f"{one.get('version', '')} {one.get('path', '')}".strip() if one["ok"] else f"not ok: {one['reason']}"
        ctx.say(f"{name}: {told}")
    ctx.say(f"jobs: {', '.join(f'{count} {state}' for state, count in values['jobs'].items()) or 'none'}")
    return Outcome({**values, "cache": _cache(project)})


def _uv_status(project: Project) -> dict[str, Any]:
    if project.ctx.manifest.uv.source == "none":
        return _NO_UV
    try:
        found, attempts = uv.find(project.ctx)
    except AmlError as error:
        return {"ok": False, "reason": error.message}
    if found is None:
        return {"ok": False, "reason": "; ".join(attempts) or "none was found; bootstrap fetches one"}
    return _uv_report(found)


def _python_status(project: Project) -> dict[str, Any]:
    known = interpreter.recorded(project.ctx)
    return (
        _python_report(known)
        if known
        else {"ok": False, "reason": "not looked for yet, or changed; bootstrap finds one"}
    )


def _environment_status(project: Project) -> dict[str, Any]:
    try:
        view = look(project)
    except AmlError as error:
        return {"ok": False, "reason": error.message}
    if view.found is not None:
        paths = {"path": str(view.found.path), "python": str(view.found.python)}
        return {"ok": True, **paths, "key": view.found.marker["key"]}
    if view.stale is None or view.stale:
        return {"ok": False, "reason": f"{project.lock_path.name}: {'; '.join(view.stale or ['there is none'])}"}
    return {"ok": False, "reason": "; ".join(_environment_plan(project, view)[1])}


def _cache(project: Project) -> dict[str, Any]:
    """What a CI service may keep between runs, and under which key."""
    parts = [project.inputs.digest, warm.sha256(str(project.lock_path)), str(project.ctx.root.path)]
    key = hashlib.sha256(warm.to_json({"parts": parts}).encode()).hexdigest()
    return {"key": f"aml-{key[:16]}", "paths": [str(project.ctx.root.path)]}


# --- training ---


def train(project: Project, call: Call) -> Outcome:
    """Run the job in its environment, then judge its metrics."""
    wanted = project.ctx.manifest.train
    if wanted is None:
        raise AmlError(Code.MANIFEST, "aml.toml has no [train] table", 'add [train] with script = "train.py"')
    done = provisioned(project)
    if not call.may_run():
        project.ctx.say("nothing run: --install-only was given")
        return Outcome({"job": None, "gates": []})
    finished = job.run(project.ctx, wanted, done.found, project.options.arguments)
    return Outcome({"job": finished.record, "gates": finished.verdicts}, finished.error)


_VERBS: Mapping[str, Callable[[Project, Call], Outcome]] = {
    "bootstrap": bootstrap,
    "lock": lock,
    "provision": provision,
    "plan": tell_plan,
    "status": status,
    "train": train,
}
