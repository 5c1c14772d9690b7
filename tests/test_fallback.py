"""Where no uv is to be had, a lock that is there is installed by venv and pip: the same environment, said so."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomlkit

from tests.support.frontend import BareProject, front_end
from tests.support.index import Index
from tests.support.oracle import flaws, imports, key, leftovers
from tests.support.processes import run
from tests.support.project import NOXFILE, PYTHON
from tests.support.provisioning import current, directories, marker, provision, ready_records, site_packages
from tests.support.sameness import installed
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.processes import Run
    from tests.support.project import Changes

pytest_plugins = ("tests.support.base",)
pytestmark = pytest.mark.usefixtures("untouched_base")

ANNOUNCED = "building with venv and pip, since there is no uv"
#: A package with all that a wheel can hold.
FULL: dict[str, str | bytes] = {
    "demo_full/__init__.py": "def main() -> None:\n    print('full')\n",
    "demo_full/empty.txt": "",
    "demo_full/deep/er/é ü, (1).txt": "text\r\n",
    "demo_full/run.sh": "#!/bin/sh\n",
    "demo_full-1.0.data/data/share/demo/x.txt": "data",
    "demo_full-1.0.data/headers/demo.h": "int x;",
    "demo_full-1.0.data/purelib/demo_pure.py": "",
    "demo_full-1.0.data/platlib/demo_plat/__init__.py": "",
    "demo_full-1.0.data/scripts/demo-py": "#!python\nprint('py')\n",
    "demo_full-1.0.data/scripts/demo-sh": "#!/bin/sh\necho sh\n",
    "demo_full-1.0.data/scripts/demo-binary": b"\x7fELF\0",
    "demo_full-1.0.dist-info/entry_points.txt": (
        "[console_scripts]\ndemo-full = demo_full:main\n[gui_scripts]\ndemo-gui = demo_full:main\n"
    ),
}
#: Of scripts too: uv makes every one executable, pip those that are so in the wheel.
EXECUTABLE = ("demo_full/run.sh", *(name for name in FULL if ".data/scripts/" in name))
LOCAL = "demo-local @ ./wheels/demo_local-1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the program of a front end without uv."""
    return str(front_end(tmp_path_factory.mktemp("front") / "end"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A project with a lock, made once; each test works on a copy of its folder and with its index."""

    project: BareProject
    index: Index

    def copy(self, folder: Path, home: Path) -> BareProject:
        shutil.copytree(self.project.folder, folder)
        return dataclasses.replace(self.project, folder=folder, home=home, started=[])


@pytest.fixture(scope="module")
def prepared(
    tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path, base: Path, bare: str, uv_cache: Path
) -> Iterator[Prepared]:
    """Give a project that needs demo-alpha 1.0 of the index and demo-local, which lies beside its manifest."""
    folder, home = tmp_path_factory.mktemp("prepared") / "project", tmp_path_factory.mktemp("home")
    made = BareProject(folder=folder, home=home, uv_cache=uv_cache, program=bare, path=str(base.parent))
    make_wheel(folder / "wheels", "demo-local", "1.0")
    with Index(tmp_path_factory.mktemp("index")) as index:
        index.add(wheelhouse)
        tables = {
            "python": {"version": PYTHON},
            "index": {"url": index.url},
            "environment": {"requirements": ["demo-alpha==1.0", LOCAL]},
        }
        made.write("aml.toml", tomlkit.dumps(tables))
        made.write("noxfile.py", NOXFILE)
        lock(made)
        yield Prepared(project=made, index=index)


@pytest.fixture
def index(prepared: Prepared, wheelhouse: Path) -> Iterator[Index]:
    """Give the index of the prepared project; each test finds it as the first did."""
    index = prepared.index
    yield index
    index.status, index.auth, index.truncate, index.replaced = {}, None, set(), {}
    for file in index.folder.iterdir():
        file.unlink()
    index.add(wheelhouse)


@pytest.fixture
def project(tmp_path: Path, prepared: Prepared, index: Index, fresh_home: Path) -> BareProject:
    """Give a project with a lock, on a machine without uv."""
    index.requests.clear()
    return prepared.copy(tmp_path / "project", fresh_home)


def lock(project: BareProject, env: Changes | None = None) -> None:
    """Make the lock, as somebody with uv; nothing else is left of that machine."""
    project.manifest(uv=None)
    project.with_uv().aml("lock", env=env).expect()
    project.manifest(uv={"source": "none"})
    shutil.rmtree(project.aml_root)


def error(run: Run) -> dict[str, str]:
    found: dict[str, str] = run.json()["error"]
    return found


def failure(project: BareProject, code: int, *words: str, env: Changes | None = None) -> dict[str, str]:
    """Run a provision that has to fail, and that leaves nothing of what it began."""
    failed = error(project.aml("provision", "--json", "-", *words, env=env).expect(code))
    left = [one for one in leftovers(project) if not one.startswith("wheels")]
    assert left == []
    return failed


# --- the environment


@pytest.mark.parametrize(
    ("source", "env"),
    [("none", {}), ("auto", {}), ("auto", {"CI": "true"})],
    ids=["none", "auto", "auto in CI"],
)
def test_without_uv_a_lock_is_installed_by_venv_and_pip_and_that_is_told(
    project: BareProject, source: str, env: dict[str, str]
) -> None:
    """With `auto` the index has no uv and the installer is out of reach, or, in CI, not to be used."""
    project.manifest(uv={"source": source})
    done = provision(project, env=env)
    assert any(line.startswith(ANNOUNCED) for line in done.said)
    facts = json.loads(marker(done.environment).read_text(encoding="utf-8"))
    assert (facts["backend"], facts["uv"]) == ("pip", None)
    assert flaws(done.environment) == []
    for module in ("demo_alpha", "demo_local"):
        imports(done.environment, module, home=project.home)
    assert not provision(project, env=env).changed


def test_the_environment_holds_neither_pip_nor_bytecode(project: BareProject) -> None:
    environment = provision(project).environment
    names = {path.name for path in environment.rglob("*")}
    assert {name for name in names if name.startswith(("pip", "setuptools", "ensurepip"))} == set()
    assert "__pycache__" not in names


def test_the_next_run_is_warm(project: BareProject) -> None:
    assert provision(project).changed
    assert provision(project).warm


def test_its_programs_run(project: BareProject) -> None:
    environment = provision(project).environment
    done = run([environment / "bin" / "demo-alpha"], env=project.environment({"PATH": None}), cwd=project.home)
    assert done.expect().out == "1.0\n"


def test_nox_without_uv_beside_it_does_the_same(project: BareProject) -> None:
    assert ANNOUNCED in project.nox("-s", "provision").expect().err
    assert json.loads(marker(current(project)).read_text(encoding="utf-8"))["backend"] == "pip"


def executable(wheel: Path, *names: str) -> None:
    """Make files of a wheel executable, as far as a zip can say so; RECORD knows nothing of it."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(member, archive.read(member)) for member in archive.infolist()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, data in members:
            if member.filename in names:
                member.external_attr = 0o100755 << 16
            archive.writestr(member, data)


def test_uv_and_pip_give_the_same_key_and_the_same_content(project: BareProject, index: Index) -> None:
    """But for launchers, which name their environment, and for who says that it was there."""
    executable(make_wheel(index.folder, "demo-full", "1.0", modules=FULL), *EXECUTABLE)
    project.manifest(environment={"requirements": ["demo-full", "demo-beta", LOCAL]})
    lock(project)
    by_pip = provision(project).environment
    key_of_pip = key(by_pip)
    project.manifest(uv=None)
    by_uv = provision(project.with_uv(), "--force").environment
    assert by_pip != by_uv
    assert key_of_pip == key(by_uv)
    assert installed(by_pip) == installed(by_uv)
    for name, said in {"demo-full": "full", "demo-gui": "full", "demo-py": "py", "demo-sh": "sh"}.items():
        assert run([by_pip / "bin" / name], env=project.environment(), cwd=project.home).expect().out == f"{said}\n"


def test_uv_that_comes_later_rebuilds_nothing_and_neither_does_its_loss(project: BareProject) -> None:
    built = provision(project).environment
    project.manifest(uv=None)
    assert not (back := provision(project.with_uv())).changed
    assert back.environment == built
    project.manifest(uv={"source": "none"})
    assert not (again := provision(project)).changed
    assert again.environment == built


# --- what it does not do


@pytest.mark.parametrize("source", ["none", "auto"])
@pytest.mark.parametrize("verb", ["provision", "lock"])
def test_a_stale_lock_needs_uv(project: BareProject, source: str, verb: str) -> None:
    project.manifest(uv={"source": source}, environment={"requirements": ["demo-alpha>=1.0"]})
    failed = project.aml(verb).expect(4)
    assert "AML_UV_MISSING" in failed.err
    assert "pylock.toml" in failed.err
    assert leftovers(project) == ["wheels"]


@pytest.mark.parametrize("source", ["none", "auto"])
@pytest.mark.parametrize("verb", ["provision", "lock"])
def test_no_lock_at_all_needs_uv_and_the_lock_is_named(project: BareProject, source: str, verb: str) -> None:
    project.manifest(uv={"source": source})
    (project.folder / "pylock.toml").unlink()
    failed = project.aml(verb).expect(4)
    assert "AML_UV_MISSING" in failed.err
    assert "pylock.toml" in failed.err
    assert not (project.folder / "pylock.toml").exists()


@pytest.mark.parametrize(
    "table", [{"source": "system"}, {"source": "index"}, {"source": "auto", "path": "tools/uv"}], ids=str
)
def test_who_insists_on_a_uv_gets_no_other_tool(project: BareProject, table: dict[str, str]) -> None:
    project.manifest(uv=table)
    failed = failure(project, 4)
    assert failed["code"] in {"AML_UV_MISSING", "AML_FETCH"}
    assert directories_of(project) == []


def test_a_uv_that_somebody_changed_is_no_reason_to_take_pip(
    project: BareProject, index: Index, uv_wheel: Path
) -> None:
    index.add(uv_wheel)
    index.replaced = {uv_wheel.name: make_wheel(project.home, "uv", "1.0").read_bytes()}
    project.manifest(uv={"source": "auto"})
    assert failure(project, 5)["code"] == "AML_INTEGRITY"
    assert directories_of(project) == []


def directories_of(project: BareProject) -> list[Path]:
    return directories(project) if (project.aml_root / "envs").is_dir() else []


# --- what goes wrong


def test_bytes_that_are_not_those_of_the_lock_are_refused(project: BareProject, index: Index) -> None:
    forged = make_wheel(project.home, "demo-alpha", "1.0", modules={"demo_alpha/__init__.py": "evil"})
    index.replaced = {forged.name: forged.read_bytes()}
    assert failure(project, 5)["code"] == "AML_INTEGRITY"


def refuse(status: int) -> Callable[[Index], None]:
    def change(index: Index) -> None:
        index.status = {"/simple/": status}

    return change


def refuse_files(index: Index) -> None:
    index.status = {"/files/": 404}


def ask_for_a_password(index: Index) -> None:
    index.auth = ("user", "password")


def cut(index: Index) -> None:
    index.truncate = {"demo_alpha-1.0-py3-none-any.whl"}


def lose(index: Index) -> None:
    (index.folder / "demo_alpha-1.0-py3-none-any.whl").unlink()


@pytest.mark.parametrize("change", [refuse(403), refuse(404), refuse(500), refuse_files, ask_for_a_password, cut, lose])
def test_an_index_that_does_not_serve_the_lock_is_a_failed_fetch_and_is_named(
    project: BareProject, index: Index, change: Callable[[Index], None]
) -> None:
    change(index)
    failed = failure(project, 4)
    assert failed["code"] == "AML_FETCH"
    assert index.url in failed["hint"]


def test_an_index_that_is_not_there_is_a_failed_fetch(project: BareProject) -> None:
    failed = failure(project, 4, env={"AML_INDEX_URL": "http://127.0.0.1:9/simple"})
    assert failed["code"] == "AML_FETCH"


def test_offline_nothing_is_asked_for_and_the_way_out_is_told(project: BareProject, index: Index) -> None:
    failed = failure(project, 4, "--offline")
    assert failed["code"] == "AML_FETCH"
    assert "run once without it" in failed["hint"]
    assert index.requests == []


def test_offline_local_wheels_alone_are_installed(project: BareProject, index: Index) -> None:
    project.manifest(environment={"requirements": [LOCAL]})
    lock(project)
    index.requests.clear()
    assert provision(project, "--offline").changed
    assert index.requests == []


# --- the index


@pytest.fixture
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """Give another index, with demo-alpha of the same version and other content, and with demo-delta."""
    with Index(tmp_path_factory.mktemp("second")) as running:
        make_wheel(running.folder, "demo-alpha", "1.0", modules={"demo_alpha/__init__.py": "OTHER = True\n"})
        make_wheel(running.folder, "demo-delta", "1.0")
        yield running


def test_a_mirror_in_aml_index_url_serves_pip_and_the_index_of_the_manifest_is_not_asked(
    project: BareProject, index: Index, second: Index, wheelhouse: Path
) -> None:
    second.add(wheelhouse)
    assert provision(project, env={"AML_INDEX_URL": second.url}).changed
    assert index.requests == []
    second.wait_for("GET /files/demo_alpha-1.0")


@pytest.mark.parametrize("first", [True, False], ids=["main first", "extra first"])
def test_pip_asks_the_extra_indexes_too_and_takes_from_each_what_the_lock_says(
    project: BareProject,
    index: Index,
    second: Index,
    first: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    """Two indexes have the same version with other bytes: which one the lock took is what is installed."""
    main, extra = (index, second) if first else (second, index)
    # For uv an extra index goes before the main one; pip knows no order.
    project.manifest(index={"url": extra.url, "extra": [{"name": "other", "url": main.url}]})
    make_wheel(index.folder, "demo-epsilon", "1.0")
    project.manifest(environment={"requirements": ["demo-alpha==1.0", "demo-delta", "demo-epsilon"]})
    lock(project)
    environment = provision(project).environment
    text = (site_packages(environment) / "demo_alpha" / "__init__.py").read_text()
    assert ("OTHER" in text) is (not first)


# --- Python


NAMES = (f"python{PYTHON}", "python3", "python")


def stub(folder: Path, text: str, names: Sequence[str] = NAMES) -> str:
    """Put a program under names of Python into a folder, and give that."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


STUBS = {
    "fails": "echo 'Python was not found; run without arguments to install it'; exit 9",
    "talks": "echo hello",
    "claims": 'echo \'{"executable": "/bin/true"}\'',
    "is killed": "kill -9 $$",
    "hangs": "sleep 1000",
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind == "hangs" else ()) for kind in STUBS]
)
def test_a_python_on_path_that_is_none_is_passed_over(project: BareProject, tmp_path: Path, kind: str) -> None:
    names = NAMES[:1] if kind == "hangs" else NAMES  # each costs the limit of its probe
    path = os.pathsep.join([stub(tmp_path / "stubs", STUBS[kind], names), project.path, "/usr/bin", "/bin"])
    environment = provision(dataclasses.replace(project, path=path)).environment
    assert (environment / "bin" / "python").resolve().is_relative_to(Path(project.path).parent)


def test_when_none_fits_each_candidate_is_told(project: BareProject, tmp_path: Path) -> None:
    path = stub(tmp_path / "stubs", STUBS["fails"])
    failed = failure(dataclasses.replace(project, path=f"{path}{os.pathsep}/usr/bin/nothing"), 4)
    assert failed["code"] == "AML_PYTHON_MISSING"
    assert f"{path}/python{PYTHON} ended with 9" in failed["message"]
    assert f"{path}/python3 ended with 9" in failed["message"]


def test_another_version_on_path_does_not_stand_in_for_the_one_that_aml_uv_python_names(project: BareProject) -> None:
    failed = failure(project, 4, env={"AML_UV_PYTHON": "3.99"})
    assert failed["code"] == "AML_PYTHON_MISSING"
    assert f"{project.path}/python3 is Python {PYTHON}." in failed["message"]


@pytest.mark.parametrize("words", ["pypy3.11", "3", "cpython-3.11-linux-x86_64-gnu"])
def test_words_for_a_python_that_only_uv_knows_are_refused_without_it(project: BareProject, words: str) -> None:
    failed = failure(project, 4, env={"AML_UV_PYTHON": words})
    assert failed["code"] == "AML_PYTHON_MISSING"
    assert f"{words}: only uv knows" in failed["message"]


def test_aml_uv_python_is_announced_without_uv_too(project: BareProject) -> None:
    done = provision(project, env={"AML_UV_PYTHON": PYTHON})
    assert any(line.startswith(f"AML_UV_PYTHON={PYTHON} is used") for line in done.said)


def test_python_path_is_taken_without_a_search(project: BareProject, base: Path, tmp_path: Path) -> None:
    project.manifest(python={"path": str(base)})
    environment = provision(dataclasses.replace(project, path=str(tmp_path))).environment
    assert (environment / "bin" / "python").resolve() == base.resolve()


# --- the other verbs


def test_where_the_manifest_wants_no_uv_bootstrap_finds_python_alone_and_that_is_told(project: BareProject) -> None:
    for told in (project.aml("bootstrap", "--json", "-"), project.aml("status", "--json", "-")):
        facts = told.expect().json()
        assert 'uv.source = "none"' in facts["uv"]["reason"]
        assert facts["python"]["ok"]


def test_where_the_manifest_wants_a_uv_bootstrap_without_one_is_a_failure(project: BareProject) -> None:
    project.manifest(uv={"source": "auto"})
    failed = error(project.aml("bootstrap", "--json", "-").expect(4))
    assert failed["code"] == "AML_UV_MISSING"
    assert "tried index" in failed["message"]
    assert "tried installer" in failed["message"]


def test_an_environment_that_lost_a_file_is_built_anew(project: BareProject) -> None:
    first = provision(project).environment
    (site_packages(first) / "demo_alpha" / "cli.py").unlink()
    for record in ready_records(project):
        record.unlink()
    second = provision(project)
    assert second.changed
    assert flaws(second.environment) == []


@pytest.mark.parametrize("change", [None, cut], ids=["success", "failure"])
def test_no_temporary_file_is_left(
    project: BareProject, index: Index, tmp_path: Path, change: Callable[[Index], None] | None
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    if change:
        change(index)
    project.aml("provision", env={"TMPDIR": str(temporary)}).expect(4 if change else 0)
    assert list(temporary.iterdir()) == []
