"""A training job from its caller's side: made, started, watched, and told of. What runs it is the worker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aml_nox import store
from aml_nox.context import Context
from aml_nox.engine import Found
from aml_nox.errors import AmlError, Code
from aml_nox.manifest import Train
from aml_nox.train import dataset, gates, inputs, judging, records, registry
from aml_nox.train.launchers import local
from aml_nox.train.records import Born
from aml_nox.train.spec import Data, Spec
from aml_nox.train.watching import Watch

KIT = Path(__file__).parents[1] / "kit"
_KIT_VARIABLE = "AML_PYHOME"
_KIT_FILE = "amlkit.py"
_LAST_RESORT = 15.0  # seconds that a supervisor may take to end a job whose worker was killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job that ended: its record as job.json holds it, the error if it is one; `skipped`: it need not run again."""

    record: Mapping[str, Any]
    error: AmlError | None
    skipped: bool = False


def run(
    ctx: Context, train: Train, environment: Found, arguments: Sequence[str], *, manifest_digest: str, if_changed: bool
) -> Finished:
    """Run the job to its end; its directory keeps the record, the log and what it wrote.

    A request to end (Ctrl-C, SIGTERM, SIGHUP) ends the whole job first, with its grace; a second one at once.

    Raises:
        AmlError: AML_MANIFEST for a script or a dataset that is not there, AML_USAGE for a kit that is none.

    """
    spec = _spec(ctx, train, environment, arguments, manifest_digest)
    if if_changed and (known := same(ctx.root, spec.key)) is not None:
        ctx.say(f"job {known['id']} did the same already, and all it made is there: nothing run")
        return Finished(record=known, error=None, skipped=True)
    born = records.create(ctx.root, spec.to_json(), _facts(spec, train))
    passed = {name: ctx.environ[name] for name in train.pass_env if name in ctx.environ}
    record = _watched(ctx, born, local.submit(born, ctx.environ, passed))
    return told(ctx, born.folder, record)


def _watched(ctx: Context, born: Born, worker: local.Local) -> dict[str, Any]:
    watch = Watch(born.folder, ctx.screen)
    try:
        watch.until(worker.has_ended)
    except BaseException:
        _stopped(ctx, watch, worker)
        raise
    # Of a worker that was killed its supervisor is still ending the job.
    end = time.monotonic() + _LAST_RESORT
    watch.until(lambda step: not records.is_held(born.folder, step) or time.monotonic() > end)
    return records.settled(born.folder)


def _stopped(ctx: Context, watch: Watch, worker: local.Local) -> None:
    """End a job whose caller has to leave; who asks again does not wait for its grace."""
    worker.cancel()
    try:
        watch.until(worker.has_ended)
    except BaseException:
        worker.kill()
        while not worker.has_ended(1.0):
            pass
        raise
    finally:
        record = records.settled(watch.folder)
        ctx.say(f"job {record['id']} is {record['state']}: {watch.folder}")


# --- what is to run


def _spec(ctx: Context, train: Train, environment: Found, arguments: Sequence[str], manifest_digest: str) -> Spec:
    for key, path in (("script", train.script), ("evaluate", train.evaluate)):
        if path is not None and not (ctx.root.folder / path).is_file():
            message = f"{ctx.manifest.path.name}: train.{key}: there is no file {path}"
            raise AmlError(Code.MANIFEST, message, f"correct train.{key}; it is relative to aml.toml")
    data, kit = _data(ctx, train), _kit(ctx)
    digests = {
        "manifest": manifest_digest,
        "environment": environment.marker["env_digest"],
        "dataset": data.digest if data else None,
        "code": inputs.code_digest(ctx.root, [train.script, train.evaluate], whole=train.module is not None, kit=kit),
    }
    if train.evaluate:
        digests["evaluation"] = inputs.evaluation_digest(ctx.root, train.evaluate, kit=kit)
    args = (*train.args, *arguments)
    marker = environment.marker
    return Spec(
        root=str(ctx.root.path.resolve()),
        folder=str(ctx.root.folder),
        environment={
            "path": ctx.root.relative(environment.path),
            "python": ctx.root.relative(environment.python),
            "key": marker["key"],
            "env_digest": marker["env_digest"],
        },
        script=str(train.script) if train.script else None,
        module=train.module,
        args=args,
        evaluate=str(train.evaluate) if train.evaluate else None,
        dataset=data,
        timeout=train.timeout,
        grace=train.grace,
        isolation=train.isolation,
        pass_env=train.pass_env,
        env=dict(train.env),
        kit=str(kit),
        max_parallel=train.max_parallel,
        gates=train.gates,
        register=train.register.name if train.register else None,
        lock_wait=ctx.manifest.timeouts.lock_wait,
        inputs=digests,
        key=inputs.key(train, digests, args),
    )


def _data(ctx: Context, train: Train) -> Data | None:
    if train.dataset is None:
        return None
    if ctx.root.path.resolve().is_relative_to((ctx.root.folder / train.dataset).resolve()):
        where = f"{ctx.manifest.path.name}: train.dataset"
        message = f"{where}: {train.dataset} holds {ctx.root.path}, which every job changes"
        raise AmlError(Code.MANIFEST, message, "name a folder that holds the data alone")
    found = dataset.read(ctx.root.folder / train.dataset, label="train.dataset")
    one = found.measured
    contract = found.spec.to_json() if found.spec else None
    return Data(
        path=str(found.path), digest=one.digest, files=one.files, size=one.size, stamp=one.stamp, contract=contract
    )


def _kit(ctx: Context) -> Path:
    named = ctx.environ.get(_KIT_VARIABLE)
    if not named:
        return KIT
    kit = (ctx.root.folder / named).absolute()
    if not (kit / _KIT_FILE).is_file():
        hint = f"name the folder that holds {_KIT_FILE}, or unset it for the kit of aml-nox"
        raise AmlError(Code.USAGE, f"{_KIT_VARIABLE} is {named}: there is no {_KIT_FILE} in it", hint)
    return kit


def _facts(spec: Spec, train: Train) -> dict[str, Any]:
    """What the record says from its birth on."""
    data = spec.dataset
    return {
        "launcher": train.launcher,
        "program": spec.program,
        "arguments": list(spec.args),
        "environment": dict(spec.environment),
        "dataset": {"path": data.path, "dir_hash": data.digest, "files": data.files, "size": data.size}
        if data
        else None,
        "inputs": dict(spec.inputs),
        "key": spec.key,
        "timeout": spec.timeout,
        "max_parallel": spec.max_parallel,
        "register": spec.register,
    }


def same(root: store.Root, key: str) -> dict[str, Any] | None:
    """The youngest job that succeeded with this key, and whose outputs are there: files by size, a registered model."""
    for folder in reversed(records.folders(root)):
        record = records.read(folder)
        if record["state"] == records.SUCCEEDED and record.get("key") == key and _is_whole(root, folder, record):
            return record
    return None


def _is_whole(root: store.Root, folder: Path, record: Mapping[str, Any]) -> bool:
    made = record.get("outputs") or {}
    kept = all((folder / name).is_file() and (folder / name).lstat().st_size == size for name, size in made.items())
    version = record.get("registered")
    return kept and (version is None or any(one.version == version for one in registry.versions(root)))


# --- what became of it


def told(ctx: Context, folder: Path, record: Mapping[str, Any]) -> Finished:
    """Tell how a job ended, and make the error of one that did not succeed."""
    verdicts = [gates.Verdict.from_json(verdict) for verdict in record.get("gates") or []]
    for line in gates.table(verdicts) if verdicts else []:
        ctx.say(line)
    error = _error(ctx, folder, record)
    if error is None:
        if version := record.get("registered"):
            name = str(record.get("register"))
            ctx.say(f"registered {name} {version}: {ctx.root.models / name / version}")
        ctx.say(f"job {record['id']} succeeded: {folder}")
    return Finished(record=record, error=error)


def _error(ctx: Context, folder: Path, record: Mapping[str, Any]) -> AmlError | None:
    state, name = record["state"], record["id"]
    if state == records.SUCCEEDED:
        return None
    if known := record.get("error"):
        code = Code.__members__.get(known["code"], Code.JOB_FAILED)
        return AmlError(code, f"job {name}: {known['message']}", known["hint"])
    what = f"job {name}: {record.get('program', 'the program')}"
    where = f"its output is in {ctx.root.relative(folder / records.LOG)}"
    why = record.get("why", "")
    if state == records.TIMEOUT:
        hint = f"raise train.timeout; {where}"
        return AmlError(Code.JOB_FAILED, f"{what} ran longer than {record.get('timeout') or 0:g} s and was ended", hint)
    if state == records.FAILED:
        isolated = record.get("isolation", {})
        if isolated.get("mechanism") is None and isolated.get("refused"):
            return _not_isolated(name, isolated["refused"])
        ended = f": {why}" if why else f" {judging.ending(why, record.get('exit_status'))}"
        return AmlError(Code.JOB_FAILED, f"{what}{ended}", where)
    return AmlError(Code.JOB_FAILED, f"{what} is {state}: {why}", where)


def _not_isolated(name: str, refused: Sequence[Mapping[str, str]]) -> AmlError:
    told = "; ".join(f"{one['mechanism']}: {one['error']}" for one in refused)
    hint = (
        "allow unprivileged user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a container "
        'with them), or write train.isolation = "prefer"'
    )
    return AmlError(Code.JOB_FAILED, f"job {name} was not run: train.isolation demands isolation, and {told}", hint)
