"""When an environment is built anew: exactly when what would be installed changed, once, and with the reason told."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uv

from tests.support.index import Index
from tests.support.interpreter import interpreter_copy
from tests.support.processes import run
from tests.support.project import Project
from tests.support.provisioning import (
    certified,
    current,
    directories,
    marker,
    provision,
    site_packages,
    snapshot,
)
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from tests.support.project import Changes
    from tests.support.provisioning import Provision

OTHER_PYTHON = Path("/usr/bin/python3")
LOCAL_WHEEL = "wheels/demo_local-1.0-py3-none-any.whl"
REQUIREMENTS = ["demo-gamma==1.0", f"demo-local @ ./{LOCAL_WHEEL}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A project that is ready, with the index that it came from and its environment."""

    project: Project
    index: Index
    first: Provision

    @property
    def environment(self) -> Path:
        return current(self.project)

    def require(self, *requirements: str) -> None:
        self.project.manifest(environment={"requirements": [*requirements]})


Change = Callable[[Ground], object]


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Iterator[Index]:
    """Give an index that no test changes, which has demo-delta and demo-epsilon too."""
    with Index(tmp_path_factory.mktemp("steady")) as running:
        running.add(wheelhouse)
        for name, version in (("demo-delta", "1.0"), ("demo-delta", "1.1"), ("demo-epsilon", "1.0")):
            make_wheel(running.folder, name, version)
        yield running


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, steady: Index, uv_cache: Path) -> Path:
    """Give the files of a project that says what it wants in all ways: beside it, below it, as a limit, as a wheel.

    demo-gamma 1.0, demo-beta 1.0, demo-alpha 1.1, demo-delta 1.0, demo-local 1.0
    """
    folder = tmp_path_factory.mktemp("locked")
    (folder / "home").mkdir()
    made = Project.make(folder / "project", steady.url, home=folder / "home", uv_cache=uv_cache)
    make_wheel(made.folder / "wheels", "demo-local", "1.0")
    made.write("train.py", "")
    made.write("requirements/top.txt", "-r middle.txt\n")
    made.write("requirements/middle.txt", "-r deep/leaf.txt\n-c limits.txt\n")
    made.write("requirements/deep/leaf.txt", "demo-delta==1.0\n")
    made.write("requirements/limits.txt", "demo-alpha<2\n")
    made.manifest(environment={"requirements": REQUIREMENTS, "requirements-files": ["requirements/top.txt"]})
    made.aml("lock").expect()
    shutil.rmtree(made.aml_root)
    return made.folder


@pytest.fixture
def ground(tmp_path: Path, locked: Path, steady: Index, fresh_home: Path, uv_cache: Path) -> Iterator[Ground]:
    """Give a project of those files that is ready."""
    project = Project(folder=tmp_path / "project", home=fresh_home, uv_cache=uv_cache)
    shutil.copytree(locked, project.folder)
    first = provision(project)
    assert not first.lock_changed
    yield Ground(project=project, index=steady, first=first)
    project.close()


def assert_rebuilt_once(project: Project, before: Provision, reason: str, *, env: Changes | None = None) -> Provision:
    """Hold that the next provision builds one environment for this reason, and the one after it finds nothing to do."""
    known = directories(project)
    after = provision(project, env=env)
    assert after.changed
    assert after.tells(reason), f"{reason!r} is not in\n{after}"
    assert after.environment == current(project) != before.environment
    assert {*directories(project)} - {*known} == {after.environment}
    assert after.environment in certified(project)
    assert_warm(project, after, env=env)
    return after


def assert_warm(project: Project, before: Provision, *, env: Changes | None = None) -> None:
    known = directories(project)
    again = provision(project, env=env)
    assert again.warm, again.said
    assert not again.changed
    assert again.environment == current(project) == before.environment
    assert directories(project) == known


def answer(project: Project, code: str = "import demo_local; print(demo_local.VERSION)") -> str:
    """Ask the environment in use."""
    program = current(project) / "bin" / "python"
    return run([program, "-c", code], env=project.environment(), cwd=project.folder).expect().out.strip()


# --- what is to be installed changed


def new_bytes(ground: Ground) -> None:
    make_wheel(ground.project.folder / "wheels", "demo-local", "1.0", modules={"demo_local.py": "VERSION = 'new'\n"})


def new_bytes_under_the_old_time(ground: Ground) -> None:
    wheel = ground.project.folder / LOCAL_WHEEL
    before = wheel.stat()
    new_bytes(ground)
    os.utime(wheel, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "cause", "reason"),
    [
        pytest.param(
            lambda it: it.require(*REQUIREMENTS, "demo-epsilon"),
            "requirements: + demo-epsilon (aml.toml)",
            "+ demo-epsilon 1.0",
            id="added",
        ),
        pytest.param(
            lambda it: it.require(REQUIREMENTS[0]), "requirements: - demo-local", "- demo-local 1.0", id="removed"
        ),
        pytest.param(
            lambda it: it.require("demo-gamma==1.1", *REQUIREMENTS[1:]),
            "requirements: + demo-gamma==1.1 (aml.toml)",
            "demo-gamma 1.0 → 1.1",
            id="another version",
        ),
        pytest.param(
            lambda it: it.project.write("requirements/deep/leaf.txt", "demo-delta==1.1\n"),
            "requirements: + demo-delta==1.1 (requirements/deep/leaf.txt:1)",
            "demo-delta 1.0 → 1.1",
            id="file two levels down",
        ),
        pytest.param(
            lambda it: it.project.write("requirements/limits.txt", "demo-alpha<1.1\n"),
            "constraints: + demo-alpha<1.1 (requirements/limits.txt:1)",
            "demo-alpha 1.1 → 1.0",
            id="constraint",
        ),
        pytest.param(
            new_bytes, f"wheels: {LOCAL_WHEEL} has other bytes", "demo-local 1.0 has other bytes", id="local wheel"
        ),
        pytest.param(
            new_bytes_under_the_old_time,
            f"wheels: {LOCAL_WHEEL} has other bytes",
            "demo-local 1.0 has other bytes",
            id="local wheel, old time",
        ),
    ],
)
def test_each_change_of_what_is_installed_rebuilds_once(
    ground: Ground, change: Change, cause: str, reason: str
) -> None:
    change(ground)
    after = assert_rebuilt_once(ground.project, ground.first, reason)
    assert after.lock_changed
    assert after.tells(cause), after.said


def test_a_local_wheel_with_new_bytes_is_what_runs(ground: Ground) -> None:
    assert answer(ground.project) == "1.0"
    new_bytes_under_the_old_time(ground)
    provision(ground.project)
    assert answer(ground.project) == "new"


# --- the environment is no longer what was built


def hand_install(ground: Ground, argv: list[str | Path]) -> None:
    where: list[str | Path] = ["--index-url", ground.index.url, "--no-deps", "demo-epsilon"]
    run([*argv, *where], env=ground.project.environment(), cwd=ground.project.folder).expect()


def hand_install_by_pip(ground: Ground) -> None:
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", ground.environment / "bin" / "python"]
    hand_install(ground, [*pip, "install", "--quiet", "--no-cache-dir"])


def hand_install_by_uv(ground: Ground) -> None:
    hand_install(ground, [uv.find_uv_bin(), "pip", "install", "--quiet", "-p", ground.environment])


def drop(ground: Ground, *parts: str) -> None:
    shutil.rmtree(site_packages(ground.environment).joinpath(*parts))


def system_packages_let_in(ground: Ground) -> None:
    config = ground.environment / "pyvenv.cfg"
    config.write_text(config.read_text().replace("site-packages = false", "site-packages = true"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda it: marker(it.environment).unlink(), "has no marker", id="marker deleted"),
        pytest.param(lambda it: marker(it.environment).write_text("{"), "has no marker", id="marker cut off"),
        pytest.param(lambda it: shutil.rmtree(it.environment), "is gone", id="directory deleted"),
        pytest.param(lambda it: drop(it, "demo_beta"), "demo_beta/__init__.py is missing", id="package deleted"),
        pytest.param(
            lambda it: drop(it, "demo_beta-1.0.dist-info"),
            "the distribution demo-beta==1.0 is missing",
            id="dist-info deleted",
        ),
        pytest.param(
            lambda it: (it.environment / "bin" / "python").unlink(), "bin/python is missing", id="python deleted"
        ),
        pytest.param(lambda it: (it.environment / "pyvenv.cfg").write_text(""), "pyvenv.cfg", id="pyvenv.cfg emptied"),
        pytest.param(lambda it: (it.environment / "pyvenv.cfg").unlink(), "pyvenv.cfg", id="pyvenv.cfg deleted"),
        pytest.param(system_packages_let_in, "pyvenv.cfg", id="system packages let in"),
        pytest.param(hand_install_by_pip, "demo_epsilon-1.0.dist-info is not in the lock", id="pip install"),
        pytest.param(hand_install_by_uv, "demo_epsilon-1.0.dist-info is not in the lock", id="uv pip install"),
        pytest.param(
            lambda it: (site_packages(it.environment) / "stray.pth").touch(), "stray.pth in site-packages", id=".pth"
        ),
        pytest.param(
            lambda it: (site_packages(it.environment) / "sitecustomize.py").touch(),
            "sitecustomize.py in site-packages",
            id="sitecustomize",
        ),
    ],
)
def test_each_damage_to_an_environment_rebuilds_it_once(ground: Ground, change: Change, reason: str) -> None:
    lock = ground.project.folder / "pylock.toml"
    before = lock.read_bytes()
    change(ground)
    assert_rebuilt_once(ground.project, ground.first, reason)
    assert lock.read_bytes() == before
    assert len(certified(ground.project)) == 1, "the damaged one is not to be found again"


# --- the interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A ready project on a throw-away interpreter, named by python.path."""

    project: Project
    program: Path
    first: Provision

    @property
    def home(self) -> Path:
        return self.program.parents[1]


@pytest.fixture
def copied(project: Project, tmp_path: Path) -> Copied:
    program = interpreter_copy(tmp_path / "python")
    project.manifest(python={"path": str(program)})
    return Copied(project=project, program=program, first=provision(project))


def append_byte(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"\0")


def test_an_interpreter_whose_program_was_replaced_rebuilds_once(copied: Copied) -> None:
    append_byte(copied.program)
    assert_rebuilt_once(copied.project, copied.first, f"the interpreter {copied.program} was replaced")


def test_an_interpreter_whose_library_was_replaced_rebuilds_once(copied: Copied) -> None:
    libraries = [*(copied.home / "lib").glob("libpython*")]
    if not libraries:
        pytest.skip("this interpreter is one program without a shared library")
    append_byte(libraries[0])
    assert_rebuilt_once(copied.project, copied.first, f"the interpreter {copied.program} was replaced")


def test_a_deleted_interpreter_is_named_and_another_one_rebuilds_once(copied: Copied, tmp_path: Path) -> None:
    copied.home.rename(tmp_path / "gone")
    failed = copied.project.aml("provision").expect(4)
    assert f"AML_PYTHON_MISSING: python.path = {copied.program}" in failed.err
    assert certified(copied.project) == [copied.first.environment]
    other = interpreter_copy(tmp_path / "other")
    copied.project.manifest(python={"path": str(other)})
    assert_rebuilt_once(copied.project, copied.first, f"its interpreter was {copied.program}, now it is {other}")


def test_an_interpreter_that_came_back_with_the_same_bytes_rebuilds_nothing(copied: Copied) -> None:
    shutil.rmtree(copied.home)
    copied.project.aml("provision").expect(4)
    interpreter_copy(copied.home)
    after = provision(copied.project)
    assert not after.changed
    assert after.environment == copied.first.environment
    assert_warm(copied.project, after)


def test_a_path_that_leads_to_another_interpreter_rebuilds_once(copied: Copied, tmp_path: Path) -> None:
    link, other = tmp_path / "python-now", interpreter_copy(tmp_path / "other")
    link.symlink_to(copied.program)
    copied.project.manifest(python={"path": str(link)})
    same = provision(copied.project)
    assert not same.changed
    link.unlink()
    link.symlink_to(other)
    assert_rebuilt_once(copied.project, same, f"its interpreter was {copied.program}, now it is {other}")


def test_interpreters_of_the_same_version_have_an_environment_each(copied: Copied, tmp_path: Path) -> None:
    other = interpreter_copy(tmp_path / "other")
    copied.project.manifest(python={"path": str(other)})
    second = assert_rebuilt_once(copied.project, copied.first, f"now it is {other}")
    copied.project.manifest(python={"path": str(copied.program)})
    assert_warm_but_for_the_link(copied.project, copied.first)
    copied.project.manifest(python={"path": str(other)})
    assert_warm_but_for_the_link(copied.project, second)


def test_an_interpreter_that_uv_found_and_that_is_gone_is_found_anew(project: Project, tmp_path: Path) -> None:
    program = interpreter_copy(tmp_path / "python")
    path = os.pathsep.join([str(program.parent), project.environment()["PATH"]])
    first = provision(project, env={"PATH": path})
    assert Path(first.environment / "bin" / "python").resolve() == program
    shutil.rmtree(tmp_path / "python")
    reason = f"its interpreter was {program}, now it is {Path(sys.executable).resolve()}"
    known = provision(project, env={"PATH": path})
    assert known.tells(reason)
    assert f"the interpreter {program} is gone: looking for another" in known.said
    assert_warm(project, known, env={"PATH": path})


@pytest.fixture(scope="session")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Give a real interpreter of another version, and that version."""
    if not OTHER_PYTHON.exists():
        pytest.skip(f"there is no {OTHER_PYTHON}")
    argv: list[str | Path] = [OTHER_PYTHON, "-I", "-c", "import platform; print(platform.python_version())"]
    version = run(argv, env={}, cwd=tmp_path_factory.mktemp("other")).expect().out.strip()
    if version == sys.version.split()[0]:
        pytest.skip(f"{OTHER_PYTHON} is {version}, as this one is")
    return OTHER_PYTHON.resolve(), version


def test_another_version_of_python_rebuilds_once(project: Project, other_python: tuple[Path, str]) -> None:
    first = provision(project)
    program, version = other_python
    project.manifest(python={"version": version, "path": str(program)})
    after = assert_rebuilt_once(project, first, f"version: {sys.version.split()[0]} → {version}")
    assert after.report["environment"]["version"] == version


def test_an_override_of_python_is_announced_and_leaves_the_lock(
    project: Project, other_python: tuple[Path, str]
) -> None:
    first = provision(project)
    program, version = other_python
    lock = (project.folder / "pylock.toml").read_bytes()
    override = {"AML_UV_PYTHON": str(program)}
    after = provision(project, env=override)
    assert after.tells(f"version: {sys.version.split()[0]} → {version}")
    assert f"AML_UV_PYTHON={program} is used in place of python.version" in after.said
    assert (project.folder / "pylock.toml").read_bytes() == lock
    assert_warm(project, after, env=override)
    assert_warm_but_for_the_link(project, first)


# --- the project is elsewhere


def test_a_moved_project_rebuilds_once(ground: Ground, tmp_path: Path) -> None:
    moved = replace(ground.project, folder=ground.project.folder.rename(tmp_path / "moved"))
    after = assert_rebuilt_once(
        moved, ground.first, f"the project moved or was copied: it was built at {ground.first.environment}"
    )
    assert not after.lock_changed
    assert answer(moved, "import sys; print(sys.prefix)") == str(after.environment)


def test_a_copied_project_rebuilds_once_and_leaves_the_original_as_it_was(ground: Ground, tmp_path: Path) -> None:
    copy = replace(ground.project, folder=tmp_path / "copy")
    shutil.copytree(ground.project.folder, copy.folder, symlinks=True)
    before = snapshot(ground.project.folder)
    after = assert_rebuilt_once(copy, ground.first, "the project moved or was copied")
    assert after.environment.is_relative_to(copy.folder)
    assert snapshot(ground.project.folder) == before
    assert_warm(ground.project, ground.first)


# --- what belongs to the lock alone


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            lambda it: it.project.write("requirements/limits.txt", "demo-alpha<2\ndemo-beta<9\n"),
            "constraints: + demo-beta<9 (requirements/limits.txt:2)",
            id="constraint without effect",
        ),
        pytest.param(
            lambda it: it.project.manifest(index={"exclude-newer": datetime(2030, 1, 1, tzinfo=UTC)}),
            "exclude-newer: none → 2030-01-01T00:00:00Z",
            id="exclude-newer without effect",
        ),
        pytest.param(
            lambda it: it.require("demo-beta", *REQUIREMENTS),
            "requirements: + demo-beta (aml.toml)",
            id="known already",
        ),
    ],
)
def test_what_changes_no_artifact_locks_anew_and_rebuilds_nothing(ground: Ground, change: Change, reason: str) -> None:
    change(ground)
    assert_locked_anew(ground, reason)


def test_another_index_with_the_same_files_locks_anew_and_rebuilds_nothing(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    with Index(tmp_path / "mirror") as mirror:
        mirror.add(ground.index.folder)
        ground.project.manifest(index={"url": mirror.url})
        assert_locked_anew(ground, f"indexes: {ground.index.url} → {mirror.url}")


def assert_locked_anew(ground: Ground, reason: str) -> None:
    before = directories(ground.project)
    after = provision(ground.project)
    assert after.lock_changed
    assert after.tells(reason), after
    assert not after.changed
    assert after.environment == ground.first.environment
    assert directories(ground.project) == before
    assert_warm(ground.project, after)


# --- what changes nothing


def touch_everything(project: Project, when: datetime) -> None:
    """Set the times of all files and links below the project, and of no target outside of it."""
    stamp = when.timestamp()
    for path in [project.folder, *project.folder.rglob("*")]:
        os.utime(path, (stamp, stamp), follow_symlinks=False)


def rewrite(ground: Ground, name: str, old: str, new: str) -> None:
    path = ground.project.folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def another_uv(ground: Ground) -> Path:
    folder = ground.project.folder.parent / "other-uv"
    folder.mkdir()
    return Path(shutil.copy2(uv.find_uv_bin(), folder))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda it: touch_everything(it.project, datetime.now(UTC)), id="touch"),
        pytest.param(lambda it: touch_everything(it.project, datetime(2099, 1, 1, tzinfo=UTC)), id="future times"),
        pytest.param(lambda it: touch_everything(it.project, datetime(1970, 1, 1, tzinfo=UTC)), id="times of 1970"),
        pytest.param(lambda it: it.require(*reversed(REQUIREMENTS)), id="order"),
        pytest.param(lambda it: it.require("Demo_Gamma == 1.0", *REQUIREMENTS[1:]), id="spelling"),
        pytest.param(
            lambda it: rewrite(it, "requirements/limits.txt", "demo-alpha<2", "DEMO.alpha < 2"), id="in a file"
        ),
        pytest.param(lambda it: rewrite(it, "aml.toml", "[python]", "# why\n[python] # here"), id="comment"),
        pytest.param(
            lambda it: rewrite(it, "requirements/deep/leaf.txt", "1.0", "1.0  # why\n# and"), id="file comment"
        ),
        pytest.param(lambda it: rewrite(it, "pylock.toml", "[[packages]]", "# mine\n[[packages]]"), id="lock comment"),
        pytest.param(lambda it: it.project.manifest(uv={"path": str(another_uv(it))}), id="another uv"),
        pytest.param(lambda it: it.project.manifest(uv={"version": ">=0.11.32"}), id="a version for uv"),
        pytest.param(lambda it: it.project.manifest(train={"script": "train.py"}), id="training"),
        pytest.param(lambda it: it.project.manifest(timeouts={"uv": "5m"}), id="time limits"),
        pytest.param(lambda it: it.project.manifest(index={"name": "corp"}), id="name of the index"),
        pytest.param(lambda it: shutil.rmtree(it.project.aml_root / "runtime"), id="records lost"),
    ],
)
def test_what_changes_nothing_does_nothing(ground: Ground, change: Change) -> None:
    change(ground)
    lock, before = (ground.project.folder / "pylock.toml").read_bytes(), directories(ground.project)
    after = provision(ground.project)
    assert not after.changed
    assert not after.lock_changed
    assert after.report["reasons"] == []
    assert after.environment == current(ground.project) == ground.first.environment
    assert len(after.said) == 1
    assert (ground.project.folder / "pylock.toml").read_bytes() == lock
    assert directories(ground.project) == before
    assert_warm(ground.project, after)


def test_another_uv_on_path_and_another_password_are_not_even_looked_at(ground: Ground) -> None:
    path = os.pathsep.join([str(another_uv(ground).parent), ground.project.environment()["PATH"]])
    assert_warm(ground.project, ground.first, env={"PATH": path, "UV_INDEX_DEFAULT_PASSWORD": "s3cret"})


def test_bytecode_is_no_change(ground: Ground) -> None:
    new_bytes(ground)  # one module, whose bytecode lies in site-packages itself
    made = provision(ground.project)
    cached = Path(answer(ground.project, "import demo_local; print(demo_local.__cached__)"))
    assert cached.parent == site_packages(made.environment) / "__pycache__"
    assert cached.exists()
    assert_warm(ground.project, made)
    shutil.rmtree(ground.project.aml_root / "runtime" / "ready")
    after = provision(ground.project)
    assert not after.changed


# --- force, failure, branches, more than one environment


def test_force_builds_another_directory_and_the_old_one_counts_no_more(ground: Ground) -> None:
    old = ground.first.environment
    after = provision(ground.project, "--force")
    assert after.changed
    assert after.tells("--force")
    assert after.environment == current(ground.project) != old
    assert certified(ground.project) == [after.environment]
    assert (old / "bin" / "python").exists(), "a job may still run in it"
    assert_warm(ground.project, after)


def test_force_for_one_of_two_environments_of_the_same_key_serves_both(ground: Ground) -> None:
    project = ground.project
    project.manifest(environments={"same": {}})
    same = provision(project, "--env", "same")
    assert not same.changed
    assert same.environment == current(project, "same") == ground.first.environment
    forced = provision(project, "--force")
    after = provision(project, "--env", "same")
    assert not after.changed
    assert after.environment == current(project, "same") == forced.environment == current(project)
    again = provision(project, "--env", "same", "--force")
    assert again.environment == current(project, "same") != current(project)
    assert certified(project) == [again.environment]
    assert provision(project).environment == current(project) == again.environment


def test_a_failed_build_leaves_the_old_environment_in_use(ground: Ground, tmp_path: Path) -> None:
    project = ground.project
    ground.require("demo-gamma==1.1")
    project.aml("lock").expect()
    before = directories(project)
    (tmp_path / "nobody").mkdir()
    with Index(tmp_path / "nobody") as gone:
        nowhere = {"AML_INDEX_URL": gone.url, "UV_HTTP_RETRIES": "0"}
    failed = project.aml("provision", env=nowhere).expect(4)
    assert "AML_FETCH: installing failed" in failed.err
    assert nowhere["AML_INDEX_URL"] in failed.err
    assert directories(project) == before
    assert current(project) == ground.first.environment
    assert answer(project) == "1.0"
    assert_rebuilt_once(project, ground.first, "demo-gamma 1.0 → 1.1")


def test_branches_are_built_once_each_and_coming_back_is_one_line(project: Project) -> None:
    def git(*words: str) -> None:
        names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        run(["git", *words], env=project.environment(names), cwd=project.folder).expect()

    def commit() -> None:
        git("add", ".")
        git("commit", "--quiet", "--message", "x")

    git("init", "--quiet", "--initial-branch", "a")
    on_a = provision(project)
    commit()
    git("switch", "--quiet", "--create", "b")
    project.manifest(environment={"requirements": ["demo-alpha==1.1"]})
    on_b = assert_rebuilt_once(project, on_a, "demo-alpha 1.0 → 1.1")
    commit()
    assert run(["git", "status", "--porcelain"], env=project.environment(), cwd=project.folder).expect().out == ""
    for branch, known in (("a", on_a), ("b", on_b), ("a", on_a)):
        git("switch", "--quiet", branch)
        assert_warm_but_for_the_link(project, known)
        git("switch", "--quiet", branch)
    assert directories(project) == sorted([on_a.environment, on_b.environment])


def assert_warm_but_for_the_link(project: Project, known: Provision) -> None:
    assert current(project) != known.environment
    after = provision(project)
    assert after.warm
    assert after.said[0].startswith("environment default switched to ")
    assert after.report["switched"]
    assert not after.changed
    assert after.environment == current(project) == known.environment
    assert_warm(project, known)


def test_coming_back_to_a_branch_starts_no_process(project: Project) -> None:
    manifest, lock = project.folder / "aml.toml", project.folder / "pylock.toml"
    provision(project)
    on_a = {path: path.read_bytes() for path in (manifest, lock)}
    project.manifest(environment={"requirements": ["demo-alpha==1.1"]})
    provision(project)
    for path, data in on_a.items():
        path.write_bytes(data)
    assert project.execs("-m", "aml_nox", "provision") == [sys.executable]


def test_another_environment_has_a_lock_and_a_link_of_its_own(ground: Ground) -> None:
    project = ground.project
    project.manifest(environments={"gpu": {"requirements": ["demo-epsilon"]}})
    before = (project.folder / "pylock.toml").read_bytes()
    gpu = provision(project, "--env", "gpu")
    assert gpu.report["lock"] == {"path": str(project.folder / "pylock.gpu.toml"), "changed": True}
    assert gpu.environment == current(project, "gpu") != current(project) == ground.first.environment
    assert (site_packages(gpu.environment) / "demo_epsilon").exists()
    assert (site_packages(gpu.environment) / "demo_gamma").exists(), "it is laid over the default one"
    assert (project.folder / "pylock.toml").read_bytes() == before
    assert provision(project, "--env", "gpu").warm
    assert not provision(project).changed
