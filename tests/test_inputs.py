"""`--if-changed`: a job is spared only where the same one succeeded and all it made is there still."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aml_nox.manifest import Train
from aml_nox.store import Root
from aml_nox.train import inputs
from tests.support.processes import Started
from tests.test_train import WAIT, Trainer, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.project import Project

pytest_plugins = ("tests.support.ready",)

SCRIPT = """
import amlkit, helper, package.part
(amlkit.model_dir() / "weights").write_text("12345")
amlkit.save_metrics(accuracy=0.5)
amlkit.save_io_spec([], [])
"""
TABLE: dict[str, Any] = {
    "script": "train.py",
    "dataset": "data",
    "args": ["--lr", "1"],
    "env": {"SET": "set"},
    "gates": [{"metric": "accuracy", "min": 0.25}],
    "register": {"name": "spared"},
}


@pytest.fixture
def trainer(ready: Project) -> Iterator[Trainer]:
    """Give a project whose job needs modules, data and parameters, and registers its model."""
    for name, text in {
        "train.py": SCRIPT,
        "evaluate.py": SCRIPT,
        "helper.py": "",
        "package/__init__.py": "",
        "package/part.py": "",
        "data/train.csv": "1\n",
    }.items():
        ready.write(name, text)
    ready.manifest(train=None)
    ready.manifest(train=TABLE)
    yield Trainer(ready)
    shutil.rmtree(ready.aml_root / "models", ignore_errors=True)


def skipped(trainer: Trainer, *args: str, code: int = 0, **caller: str) -> bool:
    """Ask for the job where something has changed; say whether it was spared, for which no job may have been made."""
    before = trainer.jobs
    ended = trainer.project.aml("train", "--json", "-", "--if-changed", *args, env=caller).expect(code)
    spared = ended.json()["skipped"]
    assert isinstance(spared, bool)
    assert len(trainer.jobs) == len(before) + (not spared)
    return spared


def only_job(trainer: Trainer) -> Path:
    (job,) = trainer.jobs
    return job


def test_a_second_run_of_the_same_runs_nothing_and_tells_of_the_first(trainer: Trainer) -> None:
    assert not skipped(trainer)
    first = record(only_job(trainer))
    ended = trainer.project.aml("train", "--json", "-", "--if-changed").expect()
    assert ended.json()["job"] == first
    assert (ended.json()["ok"], ended.json()["gates"]) == (True, first["gates"])
    told = f"job {first['id']} did the same already, and all it made is there: nothing run\n"
    assert ended.err.endswith(told)


def test_without_the_option_it_runs_again(trainer: Trainer) -> None:
    for _ in range(2):
        assert trainer.project.aml("train", "--json", "-").expect().json()["skipped"] is False
    assert len(trainer.jobs) == 2


def appended(name: str, text: str = "# more\n") -> Callable[[Project], object]:
    return lambda project: project.write(name, (project.folder / name).read_text() + text)


def manifest(**train: object) -> Callable[[Project], object]:
    return lambda project: project.manifest(train=train)


CHANGES: dict[str, Callable[[Project], object]] = {
    "script": appended("train.py"),
    "module-beside-it": appended("helper.py"),
    "module-of-a-package": appended("package/part.py"),
    "new-module": lambda project: project.write("package/other.py", ""),
    "byte-of-the-data": lambda project: project.write("data/train.csv", "2\n"),
    "new-data": lambda project: project.write("data/more.csv", ""),
    "arguments": manifest(args=["--lr", "2"]),
    "order-of-arguments": manifest(args=["1", "--lr"]),
    "variable": manifest(env={"SET": "other"}),
    "gate": manifest(gates=[{"metric": "accuracy", "min": 0.375}]),
    "no-gate": manifest(gates=None),
    "name-of-the-model": manifest(register={"name": "other"}),
    "evaluation": manifest(evaluate="evaluate.py"),
    "passed-names": manifest(**{"pass-env": ["MORE"]}),
    "module-in-place-of-script": manifest(script=None, module="train"),
    "requirement": lambda project: project.manifest(environment={"requirements": ["demo-alpha==1.1"]}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_the_result_depends_on_makes_it_run_again_and_then_it_is_spared(
    trainer: Trainer, change: Callable[[Project], object]
) -> None:
    assert not skipped(trainer)
    change(trainer.project)
    assert not skipped(trainer)
    assert skipped(trainer)


def test_arguments_of_the_command_line_count_as_those_of_the_manifest(trainer: Trainer) -> None:
    assert not skipped(trainer)
    assert not skipped(trainer, "--", "--more")
    trainer.project.manifest(train={"args": [*TABLE["args"], "--more"]})
    assert skipped(trainer)
    trainer.project.manifest(train=TABLE)
    assert skipped(trainer)


def test_other_packages_for_the_same_manifest_make_it_run_again(trainer: Trainer) -> None:
    """A lock keeps what it has until it is asked for newer ones; the manifest stays as it was."""
    trainer.project.manifest(environment={"requirements": ["demo-alpha>=1.0"]})
    assert [skipped(trainer), skipped(trainer)] == [False, True]
    trainer.project.aml("lock", "--upgrade").expect()
    assert not skipped(trainer)
    before, after = (record(job)["inputs"] for job in trainer.jobs)
    assert (before["manifest"], before["code"]) == (after["manifest"], after["code"])
    assert before["environment"] != after["environment"]


def test_another_kit_makes_it_run_again(trainer: Trainer) -> None:
    kit = Path(inputs.__file__).parents[1] / "kit"
    own = trainer.project.folder / "data" / ".." / ".kit"
    shutil.copytree(kit, own)
    assert not skipped(trainer)
    assert skipped(trainer, AML_PYHOME=str(own))
    with (own / "aml_eval.py").open("a") as stream:
        stream.write("# another\n")
    assert not skipped(trainer, AML_PYHOME=str(own))


def touch_everything(project: Project) -> None:
    """Give all files of the project, but for those of the AML root, another time."""
    for path in project.folder.rglob("*.*"):
        if not path.is_relative_to(project.aml_root):
            path.touch()


SAME: dict[str, Callable[[Project], object]] = {
    "touched": touch_everything,
    "bytecode": lambda project: project.write("package/__pycache__/part.cpython-311.pyc", "x"),
    "limits": manifest(timeout="1h", grace=1, **{"max-parallel": 2}),
    "text-beside-it": lambda project: project.write("README.md", "x"),
    "another-environment-of-the-users": lambda project: [
        project.write(f"other/{name}", "") for name in ("pyvenv.cfg", "lib/x.py")
    ],
    "another-table": lambda project: project.manifest(timeouts={"install": "1h"}),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_the_result_does_not_depend_on_makes_nothing_run(
    trainer: Trainer, change: Callable[[Project], object]
) -> None:
    assert not skipped(trainer)
    change(trainer.project)
    assert skipped(trainer)


LOSSES: dict[str, Callable[[Path, Path], object]] = {
    "model-removed": lambda job, _: (job / "model" / "weights").unlink(),
    "model-of-another-size": lambda job, _: (job / "model" / "weights").write_text("123456"),
    "model-folder-removed": lambda job, _: shutil.rmtree(job / "model"),
    "metrics-removed": lambda job, _: (job / "metrics.json").unlink(),
    "job-removed": lambda job, _: shutil.rmtree(job),
    "record-torn": lambda job, _: (job / "job.json").write_text("{"),
    "version-removed": lambda _, version: shutil.rmtree(version),
    "version-incomplete": lambda _, version: (version / "REGISTERED").unlink(),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_where_something_that_it_made_is_gone_it_runs_again(
    trainer: Trainer, lose: Callable[[Path, Path], object]
) -> None:
    assert not skipped(trainer)
    job = only_job(trainer)
    lose(job, trainer.project.aml_root / "models" / "spared" / job.name)
    ended = trainer.project.aml("train", "--json", "-", "--if-changed").expect()
    assert ended.json()["skipped"] is False
    assert ended.json()["job"]["id"] != job.name


def test_a_link_among_what_it_made_is_there_as_it_was(trainer: Trainer) -> None:
    trainer.write("import os; open('model/a', 'w').write('weights'); os.symlink('a', 'model/latest')")
    assert [skipped(trainer), skipped(trainer)] == [False, True]


@pytest.mark.parametrize(
    ("script", "code"), [("raise SystemExit(1)", 7), ("import amlkit; amlkit.save_metrics(accuracy=0.1)", 8)]
)
def test_a_job_that_failed_spares_no_other(trainer: Trainer, script: str, code: int) -> None:
    trainer.project.write("train.py", script)
    assert [skipped(trainer, code=code) for _ in range(2)] == [False, False]


def test_a_job_that_was_cancelled_spares_no_other(trainer: Trainer) -> None:
    script = f"{SCRIPT}import os\nif not os.path.exists(os.environ['AML_ROOT'] + '/../again'):\n    open('pid', 'w')\n"
    trainer.project.write("train.py", script + "".join(f"    {line}\n" for line in WAIT.splitlines()))
    process, folder = trainer.start()
    process.send_signal(signal.SIGINT)
    process.finish().expect(130)
    assert record(folder)["state"] == "cancelled"
    trainer.project.write("again", "")
    assert [skipped(trainer), skipped(trainer)] == [False, True]


def test_the_youngest_that_did_the_same_is_told(trainer: Trainer) -> None:
    for _ in range(2):
        trainer.project.aml("train").expect()
    ended = trainer.project.aml("train", "--json", "-", "--if-changed").expect()
    assert ended.json()["job"]["id"] == trainer.jobs[-1].name


def test_under_nox_it_is_spared_likewise(trainer: Trainer) -> None:
    for _ in range(2):
        ended = trainer.project.nox("-s", "train", "--", "--if-changed").expect()
    assert f"job {only_job(trainer).name} did the same already" in ended.err


# --- the digest of the code


@pytest.fixture
def code(tmp_path: Path) -> Code:
    """Give a project's folder with a script and a kit."""
    for name in ("src/train.py", "kit/amlkit.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    return Code(tmp_path)


class Code:
    """A folder with code, and the digest of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.train = train(script=Path("src/train.py"))

    def write(self, name: str, text: str = "") -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def digest(self) -> str:
        root, scripts = Root(self.folder / "aml", self.folder), [self.train.script, self.train.evaluate]
        return inputs.code_digest(root, scripts, whole=self.train.module is not None, kit=self.folder / "kit")


def train(**keys: Any) -> Train:  # noqa: ANN401 - any of its values
    """Give a [train] of which nothing but the given keys has a value."""
    return Train(**{**dict.fromkeys(Train.__dataclass_fields__), **keys})


@pytest.mark.parametrize("name", ["x.py", "deep/er/x.py", "x.so", "x.pyc", "x.cpython-311-x86_64-linux-gnu.so"])
def test_every_kind_of_module_in_the_folder_of_the_script_counts(code: Code, name: str) -> None:
    before = code.digest()
    code.write(f"src/{name}", "1")
    one = code.digest()
    code.write(f"src/{name}", "2")
    assert len({before, one, code.digest()}) == 3


@pytest.mark.parametrize("name", ["x.py", "src/x.txt", "src/.hidden/x.py", "src/__pycache__/x.pyc", "aml/x.py"])
def test_what_the_script_cannot_import_from_beside_it_does_not_count(code: Code, name: str) -> None:
    before = code.digest()
    code.write(name)
    assert code.digest() == before


def test_of_a_module_the_whole_project_counts_but_for_the_aml_root(code: Code) -> None:
    code.train = replace(code.train, script=None, module="src.train")
    before = code.digest()
    code.write("aml/x.py")
    assert code.digest() == before
    code.write("other/x.py")
    assert code.digest() != before


def test_a_package_behind_a_link_counts(code: Code) -> None:
    code.write("shared/package/part.py", "1")
    (code.folder / "src" / "package").symlink_to("../shared/package")
    before = code.digest()
    code.write("shared/package/part.py", "2")
    assert code.digest() != before


def test_links_in_a_circle_and_links_to_nothing_hold_nobody_up(code: Code) -> None:
    before = code.digest()
    (code.folder / "src" / "circle").symlink_to(".")
    (code.folder / "src" / "nothing.py").symlink_to("absent.py")
    assert code.digest() == before


def test_a_pipe_is_no_module_and_is_not_waited_for(code: Code) -> None:
    before = code.digest()
    os.mkfifo(code.folder / "src" / "pipe.py")
    # Whoever does read it is given something, and no reason to wait.
    with Started(["sh", "-c", "echo 1 > pipe.py"], env=dict(os.environ), cwd=code.folder / "src"):
        assert code.digest() == before


def test_the_digest_is_the_same_wherever_the_project_lies(code: Code, tmp_path: Path) -> None:
    code.write("src/deep/x.py", "1")
    there = tmp_path / "there"
    shutil.copytree(code.folder, there, ignore=lambda *_: {"there"})
    assert Code(there).digest() == code.digest()
