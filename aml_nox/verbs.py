"""The verbs: what each does with a project, says to people, and reports as values. Both front ends call `run`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import InvalidName, canonicalize_name

from aml_nox import (
    clean,
    engine,
    init,
    interpreter,
    lockfile,
    plan,
    reproduce,
    store,
    uv,
    verify,
    warm,
)
from aml_nox.calls import Call, Outcome
from aml_nox.engine import Wish
from aml_nox.errors import AmlError, Code
from aml_nox.faults import suggest
from aml_nox.locking import Upgrade
from aml_nox.options import Options
from aml_nox.plan import Policy
from aml_nox.project import Project, View, lock_report, look, open_project, provisioned, settle, wish_for
from aml_nox.train import history, job, records, registry

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
        project.ctx.say(f"{count} environments are kept in {project.ctx.root.envs}: `clean` removes what nobody uses")
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
        "jobs": records.states(ctx.root),
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


# --- trust ---


def verify_environment(project: Project, call: Call) -> Outcome:
    """Hold the current environment against its marker; build it anew where that is asked for."""
    level = project.options.level
    if level not in verify.LEVELS:
        raise AmlError(Code.USAGE, f"--level {level}: it is one of {', '.join(verify.LEVELS)}", "leave it out for full")
    report = _verified(project, level)
    ctx = project.ctx
    for problem in (*report.problems, *report.drift):
        ctx.say(str(problem))
    for reason in report.marker.get("unsealed", []):
        ctx.say(f"not sealed: {reason}")
    values = _verify_values(report, level)
    if report.ok:
        ctx.say(f"environment {project.environment.name} is as certified ({level}): {report.marker['env_digest']}")
        return Outcome(values)
    if project.options.repair:
        return _repaired(project, call, report, values)
    count = len(report.drift) + len(report.problems)
    message = f"environment {project.environment.name} is not as certified: {count} difference{'s' * (count != 1)}"
    return Outcome(values, AmlError(Code.INTEGRITY, message, "`--repair` builds it anew"))


def _verified(project: Project, level: str) -> verify.Report:
    wish, lock_faults = (None, []) if level == "quick" else _described(project)
    return verify.verify(project.ctx, project.environment.name, level, wish=wish, lock_faults=lock_faults)


def _described(project: Project) -> tuple[Wish | None, list[str]]:
    """The environment that the lock describes, or what is wrong with the lock: it is told beside what else is wrong."""
    try:
        found = lockfile.read(project.lock_path)
        if found is None:
            return None, [f"there is no {project.lock_path.name}"]
        if stale := lockfile.stale(found, project.inputs, project.declared):
            return None, [f"{found.path.name} does not belong to the manifest: {'; '.join(stale)}"]
        known = interpreter.recorded(project.ctx)
        return (wish_for(project, found, known) if known else None), []
    except AmlError as error:
        return None, [error.message]


def _verify_values(report: verify.Report, level: str) -> dict[str, Any]:
    drift = [{"distribution": one.distribution, "file": one.file, "what": one.what} for one in report.drift]
    return {
        "level": level,
        "environment": {"path": str(report.path), "env_digest": report.marker["env_digest"]},
        "drift": drift,
        "problems": list(report.problems),
        "sealed": report.marker.get("sealed"),
        "unsealed": list(report.marker.get("unsealed", [])),
        "repaired": False,
    }


def _repaired(project: Project, call: Call, report: verify.Report, values: Mapping[str, Any]) -> Outcome:
    """Build anew: the condemned directory loses its marker first, so that it can never be taken for ready again.

    One whose files are right is not condemned: what else was wrong is mended without it.
    """
    if report.drift:
        store.retire(report.path)
    done = provision(project, call)
    return Outcome({**done.values, **values, "environment": done.values["environment"], "repaired": True})


def reproduce_environment(project: Project, _call: Call) -> Outcome:
    """Build the environment a second time and compare every file."""
    ctx = project.ctx
    done = provisioned(project)
    ctx.say(f"building environment {project.environment.name} a second time, elsewhere and from nothing")
    result = reproduce.reproduce(ctx, done.wish, done.found, lambda: project.backend)
    for difference in result.differences:
        ctx.say(str(difference))
    values = {
        "first": result.first,
        "second": result.second,
        "differences": [
            {"distribution": one.distribution, "file": one.file, "what": one.what, "why": one.why}
            for one in result.differences
        ],
    }
    if not result.differences and result.first == result.second:
        ctx.say(f"the same bytes twice: {result.first}")
        return Outcome(values)
    names = sorted({one.distribution or "no distribution" for one in result.differences})
    count = len(result.differences)
    message = f"the second build differs in {count} file{'s' * (count != 1)} of {', '.join(names) or 'its settings'}"
    return Outcome(values, AmlError(Code.INTEGRITY, message, "what is built from source seldom gives the same bytes"))


def clean_root(project: Project, _call: Call) -> Outcome:
    """Tell what nobody uses, with sizes, and remove it."""
    ctx, options = project.ctx, project.options
    live = records.environments_in_use(ctx.root)
    halves = history.halves(ctx.root)
    items = [*clean.survey(ctx, everything=options.all, live=live), *map(clean.rubbish, halves)]
    gone: list[clean.Item] = []
    for item in items:
        ctx.say(
            f"{_megabytes(item.size)} {ctx.root.relative(item.path)}" + (f" stays: {item.kept}" if item.kept else "")
        )
        if item.kept or options.dry_run:
            continue
        if item.path in halves:
            is_gone = history.discard(ctx.root, item.path)
        else:
            is_gone = clean.remove(ctx, item, everything=options.all, live=live)
        gone += [item] * is_gone
    word = "would free" if options.dry_run else "freed"
    freed = [item for item in items if not item.kept] if options.dry_run else gone
    ctx.say(f"{word} {_megabytes(sum(item.size for item in freed))}")
    shown = [{"path": ctx.root.relative(item.path), "size": item.size, "kept": item.kept} for item in items]
    return Outcome({"items": shown, "removed": [ctx.root.relative(item.path) for item in gone]})


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


# --- training ---


def train(project: Project, call: Call) -> Outcome:
    """Run the job in its environment, then judge its metrics."""
    wanted = project.ctx.manifest.train
    if wanted is None:
        raise AmlError(Code.MANIFEST, "aml.toml has no [train] table", 'add [train] with script = "train.py"')
    done = provisioned(project)
    if not call.may_run():
        project.ctx.say("nothing run: --install-only was given")
        return Outcome({"job": None, "gates": [], "skipped": True})
    options = project.options
    finished = job.run(
        project.ctx,
        wanted,
        done.found,
        options.arguments,
        manifest_digest=project.inputs.digest,
        if_changed=options.if_changed,
    )
    values = {"job": finished.record, "gates": finished.record.get("gates", []), "skipped": finished.skipped}
    return Outcome(values, finished.error)


def jobs(project: Project, _call: Call) -> Outcome:
    """List the jobs; tell of one, follow it, or end it."""
    options, ctx = project.options, project.ctx
    if options.cancel is not None:
        return Outcome({"job": history.cancel(ctx, history.find(ctx, options.cancel))})
    if options.follow is not None:
        finished = history.follow(ctx, history.find(ctx, options.follow))
        return Outcome({"job": finished.record}, finished.error)
    if options.job is not None:
        folder = history.find(ctx, options.job)
        record = records.settled(folder)
        for line in history.details(folder, record):
            ctx.say(line)
        return Outcome({"job": record})
    found = [records.settled(folder) for folder in records.folders(ctx.root)]
    for line in history.listing(found):
        ctx.say(line)
    return Outcome({"jobs": found})


def models(project: Project, _call: Call) -> Outcome:
    """List the registered models."""
    ctx, name = project.ctx, project.options.model
    found = registry.versions(ctx.root, name)
    if name and not found:
        known = sorted({one.name for one in registry.versions(ctx.root)})
        hint = suggest(name, known) if known else "none is registered yet"
        raise AmlError(Code.USAGE, f"there is no model {name}", hint)
    for line in history.models(found):
        ctx.say(line)
    return Outcome({"models": [history.model_values(ctx, one) for one in found]})


_VERBS: Mapping[str, Callable[[Project, Call], Outcome]] = {
    "bootstrap": bootstrap,
    "lock": lock,
    "provision": provision,
    "plan": tell_plan,
    "status": status,
    "verify": verify_environment,
    "reproduce": reproduce_environment,
    "clean": clean_root,
    "train": train,
    "jobs": jobs,
    "models": models,
}
