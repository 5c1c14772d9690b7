"""One lock gives one digest: whoever builds, wherever, as whatever user, from whatever cache."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aml_nox
from tests.support.index import Index
from tests.support.interpreter import interpreter_copy
from tests.support.oracle import needs
from tests.support.processes import run
from tests.support.project import Project, hermetic
from tests.support.provisioning import current, marker, provision
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from tests.support.project import Changes

NOBODY = 65534
LARGE = 1_200_000  # bytes, more than are read at once
ENTRY_POINTS = """\
[console_scripts]
rich-main = demo_rich.cli:main
rich-method = demo_rich.cli:Program.run
rich-extra = demo_rich.cli:main [color]

[gui_scripts]
rich-window = demo_rich.cli:main

[demo.plugins]
one = demo_rich.cli
"""
RICH: dict[str, str | bytes] = {
    "demo_rich/__init__.py": "",
    "demo_rich/cli.py": "def main():\n    print('rich')\n\n\nclass Program:\n    run = main\n",
    "demo_rich/deep/er/est/__init__.py": "",
    "demo_rich/großer Name, 'π'.py": "PI = 3\n",
    "demo_rich/data.bin": bytes(range(256)),
    "demo_rich/large.bin": b"x" * LARGE,
    "demo_rich/run.sh": "#!/bin/sh\n",
    "demo_rich/native.cpython-311-x86_64-linux-gnu.so": b"\x7fELF\0",
    "demo_rich.pth": "# a path file that a wheel brings\n",
    "single_rich.py": "ONE = 1\n",
    "demo_rich-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
    "demo_rich-1.0.dist-info/licenses/LICENSE": "free\n",
    "demo_rich-1.0.data/purelib/pure_rich.py": "",
    "demo_rich-1.0.data/platlib/plat_rich.py": "",
    "demo_rich-1.0.data/headers/sub/rich.h": "#define RICH\n",
    "demo_rich-1.0.data/data/share/rich/ü ü.txt": "data\n",
    "demo_rich-1.0.data/data/etc/rich.toml": "",
    "demo_rich-1.0.data/data/site/demo_rich/__init__.py": "not what is imported\n",
}
SCRIPTS: dict[str, bytes | Path] = {
    "rich-python": b"#!python\nprint('script')\n",
    "rich-arguments": b"#!python -u\nprint('script')\n",
    "rich-window-script": b"#!pythonw\nprint('script')\n",
    "rich-shell": b"#!/bin/sh\necho script\n",
    "rich-env": b"#!/usr/bin/env python3\nprint('script')\n",
    "rich-returns": b"#!python\r\nprint('script')\r\n",
    "rich-binary": b"\x7fELF\0\0",
    "rich-long": b"#!python\n" + b"# a line\n" * (LARGE // 9),
    "rich-large": b"\x7fELF" + b"\0" * LARGE,
}


def make_rich(folder: Path) -> None:
    """Write a wheel with everything that installers treat in their own ways."""
    path = make_wheel(folder, "demo-rich", "1.0", modules=RICH, data_scripts=SCRIPTS)
    with zipfile.ZipFile(path) as old:
        members = [(one, old.read(one)) for one in old.infolist()]
    with zipfile.ZipFile(path, "w") as new:
        for member, data in members:
            if member.filename.endswith((".sh", ".so")):
                member.external_attr = 0o100755 << 16
            new.writestr(member, data)


@dataclass(frozen=True, slots=True)
class Ground:
    """Where builds happen: the folder is everybody's to read, `locked` holds aml.toml and its lock."""

    folder: Path
    locked: Path
    digest: str
    uv_cache: Path

    def project(self, place: str | Path) -> Project:
        """Give a project of that lock in a place that is not there yet, with a home of its own."""
        home = Path(tempfile.mkdtemp(dir=self.folder, prefix="home-"))
        made = Project(folder=self.folder / place, home=home, uv_cache=self.uv_cache)
        shutil.copytree(self.locked, made.folder)
        return made


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Iterator[Index]:
    with Index(tmp_path_factory.mktemp("index")) as running:
        running.add(wheelhouse)
        make_rich(running.folder)
        for name in ("demo-one", "demo-two"):
            files = {"shared/__init__.py": "", "shared/who.py": f"NAME = '{name}'\n", "shared/same.py": ""}
            make_wheel(running.folder, name, "1.0", modules=files)
        yield running


@pytest.fixture(scope="module")
def ground(index: Index, uv_cache: Path) -> Iterator[Ground]:
    """Lock and build once, in a short path, with uv and an empty cache: what all others are held against."""
    with tempfile.TemporaryDirectory(prefix="aml-") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        (folder / "home").mkdir()
        cache = folder / "cache"
        project = Project.make(
            folder / "p", index.url, home=folder / "home", uv_cache=cache, requirements=["demo-rich", "demo-beta"]
        )
        first = provision(project)
        assert first.report["environment"]["sealed"]
        (folder / "locked").mkdir()
        for file in ("aml.toml", "noxfile.py", "pylock.toml"):
            shutil.copy(project.folder / file, folder / "locked")
        yield Ground(folder, folder / "locked", str(first.report["environment"]["env_digest"]), uv_cache)


def digest(project: Project, *args: str, env: Changes | None = None) -> str:
    """Build, and give the digest of what was built."""
    built = provision(project, "--locked", *args, env=env)
    assert built.changed
    assert built.report["environment"]["sealed"]
    return str(built.report["environment"]["env_digest"])


def backend_of(project: Project) -> str:
    return str(json.loads(marker(current(project)).read_bytes())["backend"])


LONG = "long/" + "/".join(["x" * 48] * 3)
PLACES = {
    "a short path": "short",
    "spaces": "with two spaces",
    "150 characters": LONG,
    "quotes and dollars": 'it\'s $HOME "here"',
    "not ASCII": "größe-π",
}
BUILDERS = {"uv": {"source": "auto"}, "pip": {"source": "none"}}


@pytest.mark.parametrize(("backend", "source"), BUILDERS.items(), ids=BUILDERS)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_builder_and_place_do_not_change_the_digest(
    ground: Ground, place: str, backend: str, source: dict[str, str]
) -> None:
    project = ground.project(f"{backend}/{place}")
    if place == LONG:
        assert len(str(project.aml_root)) >= 150
    project.manifest(uv=source)
    assert digest(project) == ground.digest
    assert backend_of(project) == backend
    project.aml("verify", "--level", "strict").expect()


def test_a_path_through_a_link_does_not_change_the_digest(ground: Ground) -> None:
    real = ground.project("real")
    (ground.folder / "linked").symlink_to(real.folder)
    assert digest(replace(real, folder=ground.folder / "linked")) == ground.digest


def test_the_cache_does_not_change_the_digest(ground: Ground) -> None:
    """Cold, warm, and cold with another way to leave it."""
    found = []
    for number, mode in enumerate(("hardlink", "hardlink", "copy")):
        project = ground.project(f"cache-{number}")
        project.manifest(environment={"link-mode": mode})
        cache = ground.folder / f"cache-{mode}"
        found.append(digest(project, env={"UV_CACHE_DIR": str(cache)}))
    assert found == [ground.digest] * 3


def test_what_the_caller_sets_does_not_change_the_digest(ground: Ground) -> None:
    ambient = {
        "UV_COMPILE_BYTECODE": "1",
        "UV_LINK_MODE": "symlink",
        "UV_SYSTEM_PYTHON": "1",
        "PIP_COMPILE": "1",
        "PIP_TARGET": str(ground.folder / "target"),
        "PYTHONPYCACHEPREFIX": str(ground.folder / "bytecode"),
        "SOURCE_DATE_EPOCH": "0",
        "TZ": "Asia/Kathmandu",
        "LANG": "C",
        "LC_ALL": "C",
    }
    for name, source in BUILDERS.items():
        project = ground.project(f"ambient-{name}")
        project.manifest(uv=source)
        assert digest(project, env=ambient) == ground.digest


def test_bytecode_does_not_change_the_digest(ground: Ground) -> None:
    project = ground.project("with bytecode")
    built = provision(project)
    verb = ("verify", "--json", "-")
    before = project.aml(*verb).expect().json()["environment"]["env_digest"]
    run([built.environment / "bin" / "rich-main"], env=project.environment(), cwd=project.folder).expect()
    assert list(built.environment.rglob("*.pyc"))
    assert project.aml(*verb).expect().json()["environment"]["env_digest"] == before == ground.digest


def test_a_project_that_moved_is_built_anew_with_the_same_digest(ground: Ground) -> None:
    project = ground.project("before")
    assert digest(project) == ground.digest
    moved = replace(project, folder=ground.folder / "after the move")
    project.folder.rename(moved.folder)
    assert digest(moved) == ground.digest


def test_what_an_older_uv_puts_into_each_environment_is_taken_out(ground: Ground, uv_program: Path) -> None:
    """The `venv` of uv 0.11.32, our floor, patches distutils by two files; here today's uv is wrapped to do so."""
    wrapper = ground.folder / "old uv"
    wrapper.write_text(f"""\
#!/bin/sh
'{uv_program}' "$@" || exit
while [ $# -gt 1 ]; do
  if [ "$1" = venv ]; then
    for site in "$2"/lib/python*/site-packages; do
      echo 'import _virtualenv' >"$site/_virtualenv.pth"
      echo 'PATCHED = True' >"$site/_virtualenv.py"
    done
  fi
  shift
done
""")
    wrapper.chmod(0o755)
    project = ground.project("older uv")
    project.manifest(uv={"source": "path", "path": str(wrapper)})
    assert digest(project) == ground.digest
    assert not list(current(project).rglob("_virtualenv*"))


# --- interpreters and users


@pytest.fixture(scope="module")
def copies(ground: Ground) -> tuple[Path, Path]:
    """Give the programs of two installs of one interpreter, for everybody; both can run the product."""
    first = interpreter_copy(ground.folder / "python one")
    packages = [Path(aml_nox.__file__).parents[1], Path(str(distribution("nox").locate_file("")))]
    (site,) = first.parents[1].glob("lib/python*/site-packages")
    (site / "product.pth").write_text("".join(f"{path}\n" for path in packages))
    second = ground.folder / "python-two"
    shutil.copytree(ground.folder / "python one", second, symlinks=True)
    return first, second / "bin" / first.name


@pytest.mark.parametrize("number", [0, 1])
def test_two_installs_of_one_interpreter_give_one_digest(
    ground: Ground, copies: tuple[Path, Path], number: int
) -> None:
    project = ground.project(f"copy-{number}")
    project.manifest(python={"path": str(copies[number])})
    assert digest(project) == ground.digest


@pytest.mark.parametrize("backend", BUILDERS)
def test_another_user_gets_the_same_digest(
    ground: Ground, copies: tuple[Path, Path], uv_program: Path, backend: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    project = ground.project(f"nobody-{backend}")
    source = "system" if backend == "uv" else "none"
    project.manifest(uv={"source": source}, python={"path": str(copies[0])})
    for folder in (project.folder, project.home):
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    assert as_nobody(project, copies[1], uv_program)["env_digest"] == ground.digest
    assert backend_of(project) == backend


def as_nobody(project: Project, python: Path, uv_program: Path) -> dict[str, Any]:
    """Provision as a user who owns the project and its home alone, with an umask of their own.

    The PATH begins with a folder that they cannot read: nothing to stumble over.
    """
    closed = project.folder.parent / "closed"
    closed.mkdir(mode=0o700, exist_ok=True)
    env = {**hermetic(project.home, project.home / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    env["PATH"] = os.pathsep.join([str(closed), env["PATH"], str(uv_program.parent)])
    who = [needs("setpriv"), "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    start: list[str | Path] = [*who, "sh", "-c", 'umask 077; exec "$@"', "sh", python]
    if run([*start, "-c", "import aml_nox, nox, pip"], env=env, cwd=project.folder).code:
        pytest.skip("another user cannot read the product")
    done = run([*start, "-m", "aml_nox", "provision", "--locked", "--json", "-"], env=env, cwd=project.folder).expect()
    found: dict[str, Any] = done.json()["environment"]
    assert Path(found["path"]).stat().st_uid == NOBODY
    return found


# --- outside of the promise


@pytest.mark.parametrize("source", BUILDERS.values(), ids=BUILDERS)
def test_overlapping_distributions_are_reported_in_every_build_and_never_sealed(
    tmp_path: Path, index: Index, fresh_home: Path, uv_cache: Path, source: dict[str, str]
) -> None:
    """Which of the two wins is left open by uv and pip. Equal files of both are no overlap."""
    wanted = ["demo-one", "demo-two"]
    project = Project.make(tmp_path / "p", index.url, home=fresh_home, uv_cache=uv_cache, requirements=wanted)
    project.aml("lock").expect()
    project.manifest(uv=source)
    for force in ((), ("--force",)):
        built = provision(project, *force)
        assert built.changed
        assert not built.report["environment"]["sealed"]
        (reason,) = json.loads(marker(built.environment).read_bytes())["unsealed"]
        assert "shared/who.py" in reason
        assert "demo-one==1.0 and demo-two==1.0" in reason
    assert project.aml("verify", "--json", "-").expect().json()["unsealed"] == [reason]


def test_the_digest_tells_interpreters_apart_and_the_distributions_digest_does_not(ground: Ground) -> None:
    other = Path("/usr/bin/python3")
    tell = "import platform, sys; print(platform.python_version())"
    if not other.exists() or other.resolve() == Path(sys.executable).resolve():
        pytest.skip("there is no other interpreter")
    told = run([other, "-c", tell], env=hermetic(ground.folder, ground.folder), cwd=ground.folder).expect().out.strip()
    project = ground.project("other interpreter")
    project.manifest(python={"path": str(other), "version": told.rpartition(".")[0]})
    built = provision(project)
    here = json.loads((built.environment / "env.manifest.json").read_bytes())
    (first,) = (ground.folder / "p" / "aml" / "envs").iterdir()
    there = json.loads((first / "env.manifest.json").read_bytes())
    assert (here["interpreter"] == there["interpreter"]) == (built.report["environment"]["env_digest"] == ground.digest)
    same_minor = here["interpreter"]["version"].rpartition(".")[0] == there["interpreter"]["version"].rpartition(".")[0]
    assert (here["distributions_digest"] == there["distributions_digest"]) == same_minor
