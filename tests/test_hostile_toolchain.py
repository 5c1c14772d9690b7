"""Nothing that lies around decides what is installed: no variable, no file of settings, no module beside the manifest.

Each chain of tools runs once on a machine that is nobody's, and once where everything calls for something else.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomlkit

from tests.support.frontend import BareProject, front_end
from tests.support.index import Index
from tests.support.oracle import content, key, leftovers
from tests.support.processes import run
from tests.support.project import NOXFILE, PYTHON
from tests.support.provisioning import current, snapshot
from tests.support.sameness import Entry, installed
from tests.support.standalone import VERSION, make_standalone
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytest_plugins = ("tests.support.base",)
pytestmark = pytest.mark.usefixtures("untouched_base")

REQUIREMENTS = ["demo-alpha>=1.0,<2", "demo-beta"]
#: Modules that `import` would find before the right ones, and that break whoever imports them.
SHADOWS = ("venv", "pip", "packaging", "tomllib", "sitecustomize", "usercustomize", "uv", "nox", "ensurepip", "ssl")

VARIABLES = """
UV_INDEX={url} UV_DEFAULT_INDEX={url} UV_INDEX_URL={url} UV_EXTRA_INDEX_URL={url} UV_INDEX_STRATEGY=x UV_NO_INDEX=1
UV_FIND_LINKS={wheels} UV_OFFLINE=1 UV_INSECURE_HOST=127.0.0.1 UV_CONSTRAINT={trap}/constraint.txt
UV_OVERRIDE={trap}/override.txt UV_BUILD_CONSTRAINT=/nothing UV_EXCLUDE=/nothing UV_EXCLUDE_NEWER=1999-01-01T00:00:00Z
UV_RESOLUTION=lowest UV_PRERELEASE=allow UV_FORK_STRATEGY=x UV_REQUIRE_HASHES=1 UV_CONFIG_FILE={trap}/uv.toml
UV_ENV_FILE={trap}/variables.env UV_NO_CONFIG=0 UV_PYTHON=3.99 UV_SYSTEM_PYTHON=1 UV_PYTHON_PREFERENCE=only-system
UV_PYTHON_DOWNLOADS=never UV_MANAGED_PYTHON=1 UV_NO_MANAGED_PYTHON=1 UV_BREAK_SYSTEM_PACKAGES=1
UV_PYTHON_INSTALL_DIR={victims}/pythons UV_PYTHON_BIN_DIR={victims}/bin UV_PYTHON_INSTALL_MIRROR={url}
UV_PYTHON_DOWNLOADS_JSON_URL=/nothing UV_PYTHON_INSTALL_BIN=1 UV_PYTHON_CPYTHON_BUILD=1 UV_VENV_CLEAR=1 UV_VENV_SEED=1
UV_VENV_RELOCATABLE=1 UV_PROJECT_ENVIRONMENT={victims}/venv UV_PROJECT={victims}/project
UV_WORKING_DIR={victims}/project UV_LINK_MODE=symlink UV_COMPILE_BYTECODE=1 UV_NO_BINARY=1 UV_NO_BUILD=1 UV_NO_CACHE=1
UV_INSTALL_DIR={victims}/bin UV_UNMANAGED_INSTALL={victims}/bin UV_TORCH_BACKEND=x UV_TOOL_DIR={victims}/bin
UV_TOOL_BIN_DIR={victims}/bin UV=/nothing

PIP_INDEX_URL={url} PIP_EXTRA_INDEX_URL={url} PIP_FIND_LINKS={wheels} PIP_NO_INDEX=1 PIP_TARGET={victims}/target
PIP_PREFIX={victims}/target PIP_ROOT={victims}/target PIP_NO_DEPS=1 PIP_USER=1 PIP_DRY_RUN=1 PIP_PRE=1 PIP_COMPILE=1
PIP_IGNORE_INSTALLED=1 PIP_CONSTRAINT={trap}/constraint.txt PIP_REQUIREMENT=/nothing PIP_REQUIRE_VIRTUALENV=1
PIP_NO_BINARY=:all: PIP_ONLY_BINARY=:none: PIP_PYTHON={python} PIP_REQUIRE_HASHES=1 PIP_LOG={victims}/log
PIP_REPORT={victims}/report PIP_CACHE_DIR={victims}/cache PIP_CONFIG_FILE={trap}/pip.conf PIP_TRUSTED_HOST=127.0.0.1
PIP_PLATFORM=win32 PIP_VERBOSE=3

PYTHONPATH={trap}/path PYTHONHOME=/nothing PYTHONUSERBASE={victims}/userbase PYTHONSTARTUP={trap}/path/pip.py
PYTHONPYCACHEPREFIX={victims}/cache PYTHONOPTIMIZE=2 PYTHONWARNINGS=error PYTHONSAFEPATH= PYTHONNOUSERSITE=
PYTHONINSPECT=1 PYTHONVERBOSE=1 PYTHONIOENCODING=latin-1

VIRTUAL_ENV={victims}/venv CONDA_PREFIX={victims}/conda CONDA_DEFAULT_ENV=x
"""


# --- the trap


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """All that must not have an effect, and what would show that it had one."""

    folder: Path
    index: Index

    @property
    def victims(self) -> Path:
        """Where nothing may be written: targets, prefixes, environments of others."""
        return self.folder / "victims"

    def set(self) -> None:
        """Lay it out."""
        for name in ("target", "bin", "pythons", "cache", "project", "userbase", "conda/bin"):
            (self.victims / name).mkdir(parents=True)
        venv.create(self.victims / "venv", symlinks=True)
        (self.victims / "conda" / "bin" / "python").symlink_to(sys.executable)
        self._modules(self.folder / "path")
        for version in ("1.0", "1.1", "9.9"):
            make_wheel(self.index.folder, "demo-alpha", version, modules={"demo_alpha/__init__.py": "EVIL = True\n"})
        make_wheel(self.index.folder, "uv", "99.0")
        self._write("constraint.txt", "demo-alpha==1.0\n")
        self._write("override.txt", "demo-beta; python_version < '3'\n")
        self._write("uv.toml", self._uv_settings)
        self._write("pip.conf", self._pip_settings)
        self._write("variables.env", f"UV_DEFAULT_INDEX={self.index.url}\n")

    def surround(self, project: BareProject) -> None:
        """Put files of settings and modules of the wrong kind around a project, and into its home."""
        tables = f"[project]\nname = 'x'\nversion = '1'\nrequires-python = '>=3.99'\n[tool.uv]\n{self._uv_settings}"
        for folder in (project.folder, project.folder.parent):
            (folder / "uv.toml").write_text(self._uv_settings)
            (folder / "pyproject.toml").write_text(tables)
            (folder / ".python-version").write_text("3.99\n")
            (folder / "setup.cfg").write_text(f"[install]\nprefix = {self.victims / 'target'}\n")
            venv.create(folder / ".venv", symlinks=True)
        self._modules(project.folder, distributions=False)
        for name in ("uv/uv.toml", "pip/pip.conf"):
            path = project.home / ".config" / name
            path.parent.mkdir(parents=True)
            path.write_text(self._uv_settings if "uv" in name else self._pip_settings)
        (project.home / ".pip").mkdir()
        (project.home / ".pip" / "pip.conf").write_text(self._pip_settings)
        (project.home / ".pydistutils.cfg").write_text(f"[install]\nprefix = {self.victims / 'target'}\n")
        self._modules(project.home / ".local" / "lib" / f"python{PYTHON}" / "site-packages")

    def environment(self) -> dict[str, str]:
        """Give the variables."""
        places = {"url": self.index.url, "wheels": self.index.folder, "python": sys.executable}
        text = VARIABLES.format(trap=self.folder, victims=self.victims, **places)
        return dict(word.split("=", 1) for word in text.split())

    @property
    def _uv_settings(self) -> str:
        index = f"[[index]]\nurl = '{self.index.url}'\ndefault = true\n"
        return f"required-version = '>=99'\nno-index = true\npython-preference = 'only-system'\n{index}"

    @property
    def _pip_settings(self) -> str:
        everywhere = f"[global]\nindex-url = {self.index.url}\nno-index = true\ntarget = {self.victims / 'target'}\n"
        return f"{everywhere}user = true\nconstraint = {self.folder / 'constraint.txt'}\n[install]\nno-deps = true\n"

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    @staticmethod
    def _modules(folder: Path, *, distributions: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in SHADOWS:
            (folder / f"{name}.py").write_text(f"raise SystemExit('{name} is another one')\n")
        if distributions:
            info = folder / "demo_alpha-9.9.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-alpha\nVersion: 9.9\n")


# --- the machine


@pytest.fixture
def project(tmp_path: Path, index: Index, wheelhouse: Path, base: Path, uv_cache: Path) -> Iterator[BareProject]:
    """Give a project whose front end has no uv beside it."""
    index.add(wheelhouse)
    program = str(front_end(tmp_path / "front"))
    folder, home = tmp_path / "place" / "project", tmp_path / "home"
    home.mkdir()
    made = BareProject(folder=folder, home=home, uv_cache=uv_cache, program=program, path=str(base.parent))
    tables = {
        "python": {"version": PYTHON},
        "index": {"url": index.url},
        "environment": {"requirements": REQUIREMENTS},
    }
    made.write("aml.toml", tomlkit.dumps(tables))
    made.write("noxfile.py", NOXFILE)
    yield made
    made.close()


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    """Give a trap that is laid out; the index of it was asked for nothing, and nothing was written, at the end."""
    (tmp_path / "evil" / "index").mkdir(parents=True)
    with Index(tmp_path / "evil" / "index") as index:
        made = Trap(folder=tmp_path / "evil", index=index)
        made.set()
        before = snapshot(made.victims)
        yield made
        assert index.requests == []
        assert snapshot(made.victims) == before


@dataclass(frozen=True, slots=True)
class Result:
    """What a chain of tools made."""

    lock: str
    key: str
    files: Mapping[str, Entry]


def result(project: BareProject) -> Result:
    environment = current(project)
    return Result(
        (project.folder / "pylock.toml").read_text(encoding="utf-8"), key(environment), installed(environment)
    )


def start_again(project: BareProject) -> None:
    shutil.rmtree(project.aml_root)
    (project.folder / "pylock.toml").unlink()


def provisioned(project: BareProject, *verbs: str, env: Mapping[str, str] | None = None) -> Result:
    """Run verbs by a Python that reads no variable itself, so that the tools it starts are what is held."""
    for verb in verbs:
        project.python("-I", "-m", "aml_nox", verb, env=env).expect()
    return result(project)


def beside(project: BareProject) -> dict[str, str]:
    """Give what lies in the project, around it and in the home, but the product's own, nox's bytecode and caches."""
    own = ("aml/", "aml", "pylock.toml", "__pycache__")
    inside = {name: text for name, text in content(project.folder).items() if not name.startswith(own)}
    around = dict.fromkeys((path.name for path in project.folder.parent.iterdir()), "around")
    home = {f"home/{name}": text for name, text in content(project.home).items() if not name.startswith(".cache")}
    return {**inside, **around, **home}


# --- the rule


def test_uv_from_the_index_and_a_managed_python_are_the_same_in_a_hostile_place(
    project: BareProject, trap: Trap, index: Index, uv_wheel: Path, tmp_path: Path
) -> None:
    """Bootstrap, lock and provision; pip fetches uv, uv installs Python, resolves and installs."""
    index.add(uv_wheel)
    archive = make_standalone(tmp_path / "evil")
    listing = project.write("downloads.json", archive.listing(archive.path.as_uri()))
    python = {"version": VERSION, "preference": "only-managed", "downloads-json": str(listing)}
    project.manifest(uv={"source": "index"}, python=python)
    chain = ("bootstrap", "lock", "provision")
    clean = provisioned(project, *chain)
    start_again(project)
    trap.surround(project)
    before = beside(project)
    assert provisioned(project, *chain, env=trap.environment()) == clean
    assert beside(project) == before
    program = (current(project) / "bin" / "python").resolve()
    assert program.is_relative_to(project.aml_root / "python")


def test_uv_of_nox_is_the_same_in_a_hostile_place(project: BareProject, trap: Trap) -> None:
    chain = ("bootstrap", "lock", "provision")
    clean = provisioned(project.with_uv(), *chain)
    start_again(project)
    trap.surround(project)
    before = beside(project)
    assert provisioned(project.with_uv(), *chain, env=trap.environment()) == clean
    assert beside(project) == before
    assert "__pycache__" not in {path.name for path in current(project).rglob("*")}


@pytest.fixture
def locked(project: BareProject) -> BareProject:
    """Give the project with a lock, for the fallback."""
    project.with_uv().aml("lock").expect()
    project.manifest(uv={"source": "none"})
    shutil.rmtree(project.aml_root)
    return project


def backend(project: BareProject) -> str:
    (marker,) = current(project).glob(".aml-ok-*")
    return str(json.loads(marker.read_text(encoding="utf-8"))["backend"])


@pytest.mark.parametrize("front", ["aml_nox", "nox -s"])
def test_venv_and_pip_are_the_same_in_a_hostile_place(locked: BareProject, trap: Trap, front: str) -> None:
    clean = provisioned(locked, "bootstrap", "provision")
    shutil.rmtree(locked.aml_root)
    trap.surround(locked)
    before = beside(locked)
    for verb in ("bootstrap", "provision"):
        locked.python("-I", "-m", *front.split(), verb, env=trap.environment()).expect()
    assert result(locked) == clean
    assert backend(locked) == "pip"
    assert beside(locked) == before
    names = {path.name for path in current(locked).rglob("*")}
    assert {"__pycache__", "pip"} & names == set()
    assert [name for name in leftovers(locked) if name.startswith("aml/")] == []


def test_the_trap_closes_on_who_does_not_look(locked: BareProject, trap: Trap) -> None:
    """The same pip, started as anybody would, does not install demo-alpha where it was told to."""
    environment = locked.folder.parent / "naive"
    venv.create(environment, symlinks=True)
    ours = trap.environment()
    kept = {name: ours[name] for name in ("PIP_TARGET", "PIP_NO_DEPS", "PYTHONPATH")}
    command: list[str | Path] = [
        locked.program,
        "-m",
        "pip",
        "--python",
        environment,
        "install",
        "demo-alpha",
        "--dry-run",
    ]
    assert run(command, env=locked.environment(kept), cwd=locked.home).code != 0


def test_an_empty_entry_of_path_does_not_mean_the_current_folder(locked: BareProject) -> None:
    """It does to a shell, and there lies a program called Python."""
    for name in ("uv", "python", "python3", f"python{PYTHON}"):
        locked.write(name, f"#!/bin/sh\n: > '{locked.home}/ran'; exit 1\n").chmod(0o755)
    path = os.pathsep.join(["", locked.path, ""])
    there = dataclasses.replace(locked, path=path)
    provisioned(there, "bootstrap", "provision")
    there.manifest(uv={"source": "system"})
    there.aml("bootstrap").expect(4)
    assert not (locked.home / "ran").exists()
