"""[train] of aml.toml: the values of its tables, and the rules between its keys.

The keys themselves are rows of ``KEYS`` in ``manifest.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aml_nox import secretshape
from aml_nox.faults import Fault, FaultError, fault, quote


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a metric must fulfil for a model to be accepted."""

    metric: str
    min: float | None
    max: float | None
    better: str | None
    min_gain: float | None
    min_relative_gain: float | None
    required: bool
    if_no_baseline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Under which name an accepted model is registered."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a job asks a launcher for."""

    cpus: int | None
    memory: str | None
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """The training job: either ``script`` or ``module``. Times are in seconds."""

    script: Path | None
    module: str | None
    args: tuple[str, ...]
    environment: str
    evaluate: Path | None
    dataset: Path | None
    timeout: float | None
    grace: float
    isolation: str
    pass_env: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    max_parallel: int
    launcher: str
    gates: tuple[Gate, ...]
    register: Register | None
    resources: Resources | None
    slurm: tuple[tuple[str, str | int], ...] | None
    ray: tuple[tuple[str, str | int], ...] | None


def one_program(script: Path | None, module: str | None) -> None:
    """Hold that there is one thing to run; raises ``FaultError``, as all rules here do."""
    if script is not None and module is not None:
        raise fault("script and module exclude each other; take one of them out", "module")
    if script is None and module is None:
        raise fault('nothing to run; add script = "train.py", or module = "package.train"')


def no_secret_is_written(env: Sequence[tuple[str, str]]) -> None:
    """Hold that no variable is a secret: aml.toml is committed. The value is in no message."""
    faults = [Fault(("env", name), _secret_text(name, what)) for name, value in env if (what := _secret(name, value))]
    if faults:
        raise FaultError(*faults)


def _secret(name: str, value: str) -> str:
    return secretshape.found_in(value) or ("a secret, by its name" if secretshape.names_one(name) else "")


def _secret_text(name: str, what: str) -> str:
    return (
        f"the value looks like {what}, and aml.toml is for everybody; take it out, write pass-env = [{quote(name)}], "
        "and set it in the environment of whoever runs the job"
    )


def better_has_a_registry(gates: Sequence[Gate], register: Register | None) -> None:
    """Hold that there is a model to be better than."""
    if register is None:
        asking = [number for number, gate in enumerate(gates) if gate.better is not None]
        text = "better than which model? Nothing is registered; add [train.register] with a name"
        if asking:
            raise FaultError(*(Fault(("gates", number, "better"), text) for number in asking))


def bounds_in_order(low: float | None, high: float | None) -> None:
    """Hold that some value passes."""
    if low is not None and high is not None and low > high:
        raise fault("min is above max, so that no value passes; exchange them", "min")


def gate_can_fail(low: float | None, high: float | None, better: str | None) -> None:
    """Hold that the gate demands something."""
    if low is None and high is None and better is None:
        raise fault('the gate demands nothing; add min = …, max = … or better = "higher"')


def gain_has_a_direction(
    better: str | None, gain: float | None, relative_gain: float | None, if_no_baseline: str
) -> None:
    """Hold that whoever speaks of a gain, or of a model to compare with, says which way is better."""
    given = {
        "min-gain": gain is not None,
        "min-relative-gain": relative_gain is not None,
        "if-no-baseline": if_no_baseline == "fail",
    }
    if better is None and any(given.values()):
        text = 'means something beside better alone; add better = "higher" or "lower", or take it out'
        raise FaultError(*(Fault((name,), text) for name, is_given in given.items() if is_given))
