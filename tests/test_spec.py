"""spec.json: what a worker reads is what was written, and it holds where it was made alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aml_nox import store
from aml_nox.errors import AmlError, Code
from aml_nox.manifest import Gate
from aml_nox.train import spec
from aml_nox.train.spec import Data, Spec

GATE = Gate(
    metric="m",
    min=0.5,
    max=None,
    better="higher",
    min_gain=None,
    min_relative_gain=0.1,
    required=False,
    if_no_baseline="fail",
)
DATA = Data(path="/data", digest="00", files=1, size=2, stamp="11", contract={"inputs": [], "outputs": []})


def made(root: Path) -> Spec:
    return Spec(
        root=str(root),
        folder=str(root.parent),
        environment={"path": "envs/x", "python": "envs/x/bin/python", "key": "22", "env_digest": "33"},
        script="train.py",
        module=None,
        args=("--lr", "a b"),
        evaluate="evaluate.py",
        dataset=DATA,
        timeout=1.5,
        grace=10.0,
        isolation="prefer",
        pass_env=("TOKEN",),
        env={"SET": "set"},
        kit="/kit",
        max_parallel=2,
        gates=(GATE,),
        register="digits",
        lock_wait=60.0,
        inputs={"code": "44", "dataset": "00"},
        key="55",
    )


def written(one: Spec) -> Path:
    """Write a spec as the directory of a job holds it."""
    job = Path(one.root) / "jobs" / "20260101T000000.000000Z-abcdef"
    job.mkdir(parents=True)
    store.write_json(job / "spec.json", {"id": job.name, **one.to_json()})
    return job


@pytest.mark.parametrize("changes", [{}, {"dataset": None, "evaluate": None, "timeout": None, "gates": ()}])
def test_what_is_read_is_what_was_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    one = replace(made(tmp_path / "aml"), **changes)
    assert spec.read(written(one)) == one


def test_paths_in_the_root_are_relative_and_what_runs_has_the_manifests_name(tmp_path: Path) -> None:
    one = made(tmp_path / "aml")
    assert one.python == tmp_path / "aml" / "envs" / "x" / "bin" / "python"
    assert one.program == "train.py"
    assert replace(one, script=None, module="pkg.train").program == "pkg.train"


def assert_refused(job: Path) -> None:
    with pytest.raises(AmlError) as caught:
        spec.read(job)
    assert caught.value.code is Code.STATE
    assert caught.value.message == f"{job / 'spec.json'} is not the specification of a job of this folder"
    assert caught.value.hint == "a job runs where it was made; start a new one"


def test_a_spec_that_was_copied_elsewhere_is_void(tmp_path: Path) -> None:
    job = written(made(tmp_path / "aml"))
    shutil.copytree(tmp_path / "aml", tmp_path / "copy")
    assert_refused(tmp_path / "copy" / "jobs" / job.name)


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"schema": 99})])
def test_what_is_no_spec_is_void(tmp_path: Path, text: str) -> None:
    job = written(made(tmp_path / "aml"))
    (job / "spec.json").write_text(text)
    assert_refused(job)


def test_a_folder_without_a_spec_is_no_job(tmp_path: Path) -> None:
    job = written(made(tmp_path / "aml"))
    (job / "spec.json").unlink()
    assert_refused(job)
