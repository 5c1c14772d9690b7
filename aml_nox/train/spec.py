"""spec.json: all that the worker needs to know of a job, on whatever machine it runs. No value in it is a secret.

Paths in the AML root are relative to it; `root` names its real path, and a spec is void elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aml_nox import store
from aml_nox.errors import AmlError, Code
from aml_nox.manifest import Gate
from aml_nox.train import records


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The dataset as it was when the job was made: where it lay, what it held, how its files looked, its contract."""

    path: str
    digest: str
    files: int
    size: int
    stamp: str
    contract: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A job: what runs in which environment, cut off how, for how long (seconds), and what its metrics must fulfil.

    `pass_env` are names, whose values the worker is handed past every file; `inputs` are the digests of all that the
    result depends on, and `key` is theirs.
    """

    root: str
    folder: str
    environment: Mapping[str, str]
    script: str | None
    module: str | None
    args: tuple[str, ...]
    evaluate: str | None
    dataset: Data | None
    timeout: float | None
    grace: float
    isolation: str
    pass_env: tuple[str, ...]
    env: Mapping[str, str]
    kit: str
    max_parallel: int
    gates: tuple[Gate, ...]
    register: str | None
    lock_wait: float
    inputs: Mapping[str, Any]
    key: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def aml_root(self) -> store.Root:
        return store.Root(Path(self.root), Path(self.folder))

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return Path(self.root, self.environment["python"])

    @property
    def program(self) -> str:
        """What runs, in the manifest's words."""
        return str(self.script or self.module)


def read(job: Path) -> Spec:
    """Read the spec of a job's directory.

    Raises:
        AmlError: AML_STATE where there is none, or it belongs to a root elsewhere.

    """
    values = store.read_json(job / records.SPEC)
    if values is None or Path(values["root"]) != job.parents[1].resolve():
        message = f"{job / records.SPEC} is not the specification of a job of this folder"
        raise AmlError(Code.STATE, message, "a job runs where it was made; start a new one")
    lists = {name: tuple(values[name]) for name in ("args", "pass_env")}
    data = Data(**values["dataset"]) if values["dataset"] else None
    gates = tuple(Gate(**gate) for gate in values["gates"])
    known = {name: values[name] for name in Spec.__dataclass_fields__ if name in values}
    return Spec(**(known | lists | {"dataset": data, "gates": gates}))
