"""What a finished job is worth: its metrics before the gates, and its model in the registry."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aml_nox import store
from aml_nox.errors import AmlError, Code
from aml_nox.screen import Screen
from aml_nox.train import dataset, gates, records, registry
from aml_nox.train.dataset import IoSpec, Port
from aml_nox.train.gates import Baseline, Verdict
from aml_nox.train.spec import Spec

_LONGEST = 1000  # characters of a text among the metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdicts, and the version under which the model was registered, if it was."""

    metrics: Mapping[str, Any] | None
    verdicts: Sequence[Verdict]
    registered: str | None
    outputs: Mapping[str, int]
    error: AmlError | None

    @property
    def accepted(self) -> bool:
        return self.error is None

    def to_json(self) -> dict[str, Any]:
        error = {}
        if self.error is not None:
            why = "a gate failed" if self.error.code is Code.GATE_FAILED else self.error.message
            error = {"error": described(self.error), "why": why}
        verdicts = [verdict.to_json() for verdict in self.verdicts]
        values = {"metrics": self.metrics, "gates": verdicts, "registered": self.registered, "outputs": self.outputs}
        return values | error


def judge(spec: Spec, job: Path, record: Mapping[str, Any]) -> Judged:
    """Hold the metrics against the gates, and register the model where all pass."""
    metrics = gates.read_metrics(job / records.METRICS)
    with _registry(spec) as baseline:
        verdicts = gates.judge(spec.gates, metrics, baseline)
        known = None if isinstance(metrics, str) else plain(metrics)
        registered, error = None, _refused(verdicts)
        if spec.register and error is None:
            try:
                registered = _register(spec, job, record, known)
            except AmlError as one:
                error = one
    return Judged(metrics=known, verdicts=verdicts, registered=registered, outputs=_outputs(job), error=error)


def _refused(verdicts: Sequence[Verdict]) -> AmlError | None:
    failed = "; ".join(str(one) for one in verdicts if not one.passed)
    hint = "the model is not accepted; its job directory keeps everything"
    return AmlError(Code.GATE_FAILED, failed, hint) if failed else None


def described(error: AmlError) -> dict[str, str]:
    """An error as records hold it."""
    return {"code": error.code.name, "message": error.message, "hint": error.hint}


@contextlib.contextmanager
def _registry(spec: Spec) -> Iterator[Baseline | None]:
    """The model to be better than, held until ours is registered: of two jobs at once one is judged by the other."""
    if spec.register is None:
        yield None
        return
    root, silent = spec.aml_root, Screen(lambda _: None)
    what = f"the registry of {spec.register}"
    with store.lock(root, f"model-{spec.register}", what=what, wait=spec.lock_wait, screen=silent):
        latest = registry.latest(root, spec.register)
        yield Baseline(name=latest.name, version=latest.version, metrics=latest.metrics) if latest else None


def _register(spec: Spec, job: Path, record: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> str:
    receipt = {
        "job": job.name,
        "metrics": metrics,
        "inputs": dict(spec.inputs),
        "key": spec.key,
        "environment": dict(spec.environment),
        "isolation": record["isolation"],
        "program": spec.program,
        "arguments": list(spec.args),
    }
    version = registry.register(
        spec.aml_root,
        name=str(spec.register),
        version=job.name,
        model=_model(spec, job),
        io_spec=_io_spec(spec, job),
        receipt=receipt,
    )
    return version.version


def _model(spec: Spec, job: Path) -> Path:
    """Where the model's files are; that there are none at all is told in the job's words."""
    folder = job / "model"
    if not any(folder.glob("*")):
        message = f"the model {spec.register} is empty: the job put no file into model/ of its directory"
        raise AmlError(Code.JOB_FAILED, message, "write the model's files to amlkit.model_dir()")
    return folder


def _io_spec(spec: Spec, job: Path) -> IoSpec:
    """What goes into the model and comes out: as the job says, else as its dataset does."""
    own = job / "io_spec.json"
    if os.path.lexists(own):  # a link that leads nowhere is refused, not passed over
        return dataset.parse_io_spec(own, label=own.name, code=Code.JOB_FAILED)
    if spec.dataset is not None and spec.dataset.contract is not None:
        sides = spec.dataset.contract
        return IoSpec(inputs=tuple(map(_port, sides["inputs"])), outputs=tuple(map(_port, sides["outputs"])))
    message = f"the model {spec.register} has no contract: nobody says what goes in and what comes out"
    raise AmlError(Code.JOB_FAILED, message, "put a spec.json into the dataset, or call amlkit.save_io_spec")


def _port(values: Mapping[str, Any]) -> Port:
    return Port(**{**values, "shape": tuple(values["shape"])})


def plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics for a record: no tables and lists, no numbers that JSON cannot hold, no texts without end."""
    simple = {name: value for name, value in metrics.items() if value is None or isinstance(value, str | int | float)}
    short = {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in simple.items()}
    return {name: value if gates.is_finite(value) else None for name, value in short.items()}


def _outputs(job: Path) -> dict[str, int]:
    """What the job leaves, with sizes in bytes: what has to be there still when it need not run again."""
    model = job / "model"
    walked = [] if model.is_symlink() else os.walk(model)
    made = [job / records.METRICS, *(Path(place, name) for place, _, names in walked for name in names)]
    return {path.relative_to(job).as_posix(): path.lstat().st_size for path in sorted(made) if _is_plain(path)}


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def ending(why: str, status: int | None) -> str:
    """How a program ended, in words."""
    if why:
        return why
    if status is not None and status < 0:
        memory = " (was there enough memory?)" if -status == signal.SIGKILL else ""
        return f"was ended by signal {-status}{memory}"
    return f"ended with {status}"
