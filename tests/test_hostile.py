"""Whatever the machine, the caller and the files around look like: the same environment, or one clear refusal."""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import stat
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import pytest
import tomlkit

from aml_nox import front
from aml_nox.calls import Call
from aml_nox.errors import AmlError
from aml_nox.screen import Screen
from tests.support.index import Index
from tests.support.interpreter import interpreter_copy
from tests.support.oracle import content, flaws, imports, key, leftovers, needs, rewrite_record
from tests.support.processes import Run, run
from tests.support.project import Project
from tests.support.provisioning import certified, current, directories, marker, site_packages
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NOBODY = 65534

pytest_plugins = ("tests.support.ready",)


class Maker(Protocol):
    """Makes a project in a folder; its cache is the common one where none is named."""

    def __call__(
        self, folder: Path, *, cache: Path | None = None, requirements: Sequence[str] = ("demo-alpha==1.0",)
    ) -> Project: ...


@pytest.fixture
def make(index: Index, wheelhouse: Path, fresh_home: Path, uv_cache: Path) -> Maker:
    """Give a maker of projects whose index holds the wheelhouse."""
    index.add(wheelhouse)

    def one(folder: Path, *, cache: Path | None = None, requirements: Sequence[str] = ("demo-alpha==1.0",)) -> Project:
        return Project.make(folder, index.url, home=fresh_home, uv_cache=cache or uv_cache, requirements=requirements)

    return one


def installed_files(project: Project) -> dict[str, str]:
    """Give what was installed; RECORD holds the hashes of scripts, which name the folder that they are in."""
    files = content(site_packages(current(project)))
    return {name: data for name, data in files.items() if not name.endswith("/RECORD")}


# --- what is set around


@pytest.fixture
def victims(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Give folders that hostile settings name; whatever happens, nothing in them changes."""
    folders = {name: tmp_path / "victims" / name for name in ("venv", "conda", "target", "prefix", "project", "path")}
    for name, folder in folders.items():
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
        (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
        (folder / "victim").write_text(name)
    info = folders["path"] / "demo_alpha-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-alpha\nVersion: 9.9\n")
    (info / "RECORD").write_text("")
    before = content(tmp_path / "victims")
    yield folders
    assert content(tmp_path / "victims") == before


def hostile_environment(victims: dict[str, Path], folder: Path) -> dict[str, str]:
    """Give every variable that would change an installation, were it passed on."""
    (folder / "limits.txt").write_text("demo-alpha==0.1\n")
    (folder / "uv.toml").write_text('no-index = true\nlink-mode = "banana"\n')
    (folder / "pip.conf").write_text("[global]\nno-index = true\nindex-url = http://127.0.0.1:9/\ntarget = /nowhere\n")
    nowhere = "http://127.0.0.1:9/simple"
    return {
        **dict.fromkeys(
            ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "PIP_INDEX_URL"), nowhere
        ),
        **dict.fromkeys(("UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "PIP_CONSTRAINT"), str(folder / "limits.txt")),
        **dict.fromkeys(("UV_NO_INDEX", "UV_OFFLINE", "UV_SYSTEM_PYTHON", "UV_VENV_CLEAR", "UV_VENV_SEED"), "1"),
        **dict.fromkeys(("PIP_NO_DEPS", "PIP_USER", "PIP_NO_INDEX", "PIP_DRY_RUN", "PIP_REQUIRE_HASHES"), "1"),
        **dict.fromkeys(("FORCE_COLOR", "UV_NO_BINARY", "UV_NO_CACHE", "PIP_NO_BINARY"), "1"),
        "UV_RESOLUTION": "lowest",
        "UV_CONFIG_FILE": str(folder / "uv.toml"),
        "PIP_CONFIG_FILE": str(folder / "pip.conf"),
        "UV_PYTHON": "2.7",
        "UV_PYTHON_PREFERENCE": "only-managed",
        "UV_EXCLUDE_NEWER": "2001-01-01",
        "UV_LINK_MODE": "banana",
        "UV_PROJECT_ENVIRONMENT": str(victims["project"]),
        "UV_WORKING_DIR": str(victims["project"]),
        "PIP_TARGET": str(victims["target"]),
        "PIP_PREFIX": str(victims["prefix"]),
        "PYTHONPATH": str(victims["path"]),
        "PYTHONSTARTUP": str(folder / "limits.txt"),
        "PYTHONHOME": "/nowhere",
        "VIRTUAL_ENV": str(victims["venv"]),
        "CONDA_PREFIX": str(victims["conda"]),
        "RUST_LOG": "trace",
    }


def hostile_files(project: Project) -> None:
    """Write every file that a tool would take for its configuration, or Python for a module, were it looked for."""
    pyproject = {
        "project": {"name": "x", "version": "1", "requires-python": "<3"},
        "tool": {"uv": {"required-version": ">=99", "no-index": True, "constraint-dependencies": ["demo-alpha<1"]}},
    }
    project.write("pyproject.toml", tomlkit.dumps(pyproject))
    project.write("uv.toml", "no-index = true\n")
    project.write(".python-version", "2.7\n")
    project.write("pip.conf", "[global]\nno-index = true\n")
    project.write("setup.cfg", "[install]\nprefix = /nowhere\n")
    for name in ("venv", "pip", "packaging", "json", "sitecustomize", "filelock", "uv"):
        project.write(f"{name}.py", "raise SystemExit('a module of the project was taken for a library')\n")
    home = project.home / ".config"
    for name in ("uv/uv.toml", "pip/pip.conf"):
        (home / name).parent.mkdir(parents=True)
        shutil.copy(project.folder / Path(name).name, home / name)
    (project.home / ".pydistutils.cfg").write_text("[install]\nprefix = /nowhere\n")
    other, parent = interpreter_copy(project.folder.parent / "other"), project.folder.parent / ".venv"
    (parent / "bin").mkdir(parents=True)
    (parent / "bin" / "python").symlink_to(other)
    (parent / "pyvenv.cfg").write_text(f"home = {other.parent}\n")


@pytest.mark.parametrize("source", ["auto", "index"])
def test_hostile_variables_and_files_change_neither_the_lock_nor_the_environment(
    tmp_path: Path, index: Index, make: Maker, request: pytest.FixtureRequest, source: str
) -> None:
    """From an empty cache, so that each file is asked for; with a uv that is found, and one that pip fetches."""
    victims: dict[str, Path] = request.getfixturevalue("victims")
    index.add(request.getfixturevalue("uv_wheel"))
    calm, beset = (make(tmp_path / name / "p", cache=tmp_path / name / "cache") for name in ("calm", "beset"))
    for project in (calm, beset):
        project.manifest(uv={"source": source}, environment={"requirements": ["demo-beta==1.0"]})
    calm.aml("provision").expect()
    hostile_files(beset)
    around = content(beset.folder.parent / ".venv"), content(beset.home)
    # -P: with -m alone, Python itself looks for its modules in the current folder first. -E: it obeys PYTHONHOME.
    command = ("-E", "-P", "-m", "aml_nox", "provision")
    seen = beset.python(*command, env=hostile_environment(victims, tmp_path)).expect()
    assert "9.9" not in seen.err
    assert (beset.folder / "pylock.toml").read_bytes() == (calm.folder / "pylock.toml").read_bytes()
    assert key(current(beset)) == key(current(calm))
    assert installed_files(beset) == installed_files(calm)
    assert current(beset).joinpath("bin/python").resolve() == current(calm).joinpath("bin/python").resolve()
    assert (content(beset.folder.parent / ".venv"), content(beset.home)) == around


@pytest.mark.parametrize("home", [None, "", "nowhere/at/all"], ids=["unset", "empty", "missing"])
def test_without_a_home_directory_nothing_is_left_where_the_user_stands(
    project: Project, tmp_path: Path, home: str | None
) -> None:
    where = str(tmp_path / home) if home else home
    data = str(tmp_path / "data")  # uv keeps a lock of its credentials there
    for _ in range(2):
        project.aml("provision", env={"HOME": where, "XDG_DATA_HOME": data}).expect()
    assert leftovers(project) == []
    assert not (tmp_path / "nowhere").exists()


# --- where the project lies


PLACES = {
    "odd": "a b é#1 %20 %zz ?x=1 $HOME ${X} & 'q' \"d\" ;! [b]* {0} \\ ~ @ -- -r",
    "long": f"{'x' * 100}/{'y' * 100}/-r",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_project_may_lie_anywhere(tmp_path: Path, make: Maker, place: str) -> None:
    """Also its local wheels, its console scripts, and its second run."""
    folder = tmp_path / place
    wheel = make_wheel(folder / "w %20?$;é", "demo-local", "1.0").relative_to(folder)
    project = make(folder, requirements=["demo-alpha==1.0", f"demo-local @ ./{wheel}"])
    project.aml("provision").expect()
    assert str(tmp_path) not in (folder / "pylock.toml").read_text()
    script = project.aml_root / ".venv" / "bin" / "demo-alpha"
    assert run([script], env=project.environment(), cwd=tmp_path).expect().out == "1.0\n"
    imports(current(project), "demo_local", home=project.home)
    assert len(project.aml("provision").expect().err.splitlines()) == 1


# --- who may write


@pytest.mark.parametrize("mask", ["000", "077"])
def test_nothing_of_ours_is_writable_for_others_whatever_the_umask(tmp_path: Path, make: Maker, mask: str) -> None:
    """Files that uv links from its cache have the modes of the cache: it is made here too."""
    project = make(tmp_path / "p", cache=tmp_path / "cache")
    shell = ["/bin/sh", "-c", f'umask {mask}; exec "$@"', "sh"]
    run([*shell, sys.executable, "-m", "aml_nox", "provision"], env=project.environment(), cwd=project.folder).expect()
    made = [project.folder / "pylock.toml", project.aml_root, *project.aml_root.rglob("*")]
    made.remove(current(project) / ".lock")  # uv opens it to all on purpose: it is locked, and never read
    modes = {path: path.lstat().st_mode for path in made if not path.is_symlink()}
    assert [str(path) for path, mode in modes.items() if mode & stat.S_IWOTH] == []
    if mask == "077":
        records = [path for path in modes if path.suffix == ".json" or path.name.startswith(".aml-ok")]
        assert {stat.S_IMODE(modes[path]) for path in records} == {0o600}


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """Give a base interpreter into which nothing may be installed."""
    program = interpreter_copy(tmp_path / "base")
    yield program
    assert list(site_packages(tmp_path / "base").iterdir()) == []


#: Run as root in a mount namespace of its own: a project on a disk that is nearly full, again and again.
DISK = """
import json, os, pathlib, shutil, subprocess, sys
cache, template, disk, *command = sys.argv[1:]
disk = os.path.abspath(disk)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], check=True)
shutil.copytree(template, f"{disk}/project")
project, ballast = pathlib.Path(f"{disk}/project"), pathlib.Path(f"{disk}/ballast")
def provision():
    env = {**os.environ, **({"UV_CACHE_DIR": f"{disk}/cache"} if cache == "beside" else {})}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
    markers, environments = ([str(one) for one in project.glob(f"aml/envs/{what}")] for what in ("*/.aml-ok-*", "*"))
    left = [one.name for one in project.iterdir()]
    return {"code": done.returncode, "err": done.stderr, "markers": markers, "half": environments, "left": left}
runs = []
for free in [0, 8, 48, 64, 128, 192, 512, 2048]:
    room = shutil.disk_usage(disk).free - free * 1024
    with ballast.open("wb") as file:
        file.write(bytes(max(room, 0)))
    runs.append({"free": free, **provision()})
    ballast.unlink()
    if not runs[-1]["code"]:
        break
runs.append({"free": "all", **provision()})
print(json.dumps(runs))
"""


@pytest.mark.parametrize("cache", ["beside", "elsewhere"])
def test_on_a_full_disk_nothing_is_certified_and_when_there_is_space_it_goes_on(
    tmp_path: Path, index: Index, make: Maker, base: Path, cache: str
) -> None:
    """With uv's cache on the same disk, and on another one, from which files are copied."""
    unshare = needs("unshare")
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    modules = {f"demo_big/part{number}.py": "#" * 15_000 for number in range(20)}
    make_wheel(index.folder, "demo-big", "1.0", modules={"demo_big/__init__.py": "", **modules})
    project = make(tmp_path / "template", requirements=["demo-big"])
    project.manifest(python={"path": str(base)})
    (tmp_path / "disk").mkdir()
    (tmp_path / "full.py").write_text(DISK)
    command = [sys.executable, "-m", "aml_nox", "provision"]
    inner = [sys.executable, "full.py", cache, "template", "disk", *command]
    runs = run([unshare, "-m", *inner], env=project.environment(), cwd=tmp_path).expect()
    *failed, last = json.loads(runs.out)
    assert sum(one["code"] != 0 for one in failed) > 3, failed
    for one in failed:
        assert "Traceback" not in one["err"], one
        if one["code"]:
            assert one["code"] == 6, one
            assert "o space left" in one["err"], one
            assert one["markers"] == one["half"] == [], one
            assert set(one["left"]) <= {"aml", "aml.toml", "noxfile.py", "pylock.toml"}, one
    assert (last["code"], len(last["markers"])) == (0, 1), last


def as_nobody(project: Project, *args: str) -> Run:
    """Run the command as a user to whom nothing belongs; who may read everything, for this Python may lie in a home."""
    if os.geteuid() != 0:
        pytest.skip("to become another user needs root")
    capability = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    user = [needs("setpriv"), "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", *capability]
    env = project.environment({"HOME": "/nonexistent", "UV_CACHE_DIR": str(project.folder / "cache")})
    return run([*user, sys.executable, "-m", "aml_nox", *args], env=env, cwd=project.folder)


@pytest.mark.parametrize("roots", ["", "aml", "aml/envs", "aml/runtime", "aml/runtime/locks"])
def test_what_belongs_to_another_user_is_named_with_its_owner(project: Project, roots: str) -> None:
    """One run as root is enough for a folder that the next user cannot write in."""
    project.aml("provision").expect()
    before, folder = current(project), project.folder / roots
    project.manifest(environment={"requirements": ["demo-alpha==1.1"]})
    (project.folder / "cache").mkdir()
    for path in (project.folder, *project.folder.rglob("*")):
        if path != folder:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    failed = as_nobody(project, "provision").expect(6)
    assert "AML_STATE" in failed.err
    assert f"{folder} belongs to root, this is nobody" in failed.err
    assert "Traceback" not in failed.err
    assert flaws(before) == []
    assert before in certified(project)
    assert current(project) == before


# --- whose environment it is


def test_a_copy_of_an_environment_is_not_the_environment(project: Project) -> None:
    """Its scripts start what it was copied from; its marker names that place."""
    project.aml("provision").expect()
    built = current(project)
    copy = built.with_name(f"{built.name[:-4]}0000")
    shutil.copytree(built, copy, symlinks=True)
    shutil.rmtree(built)
    run = project.aml("provision").expect()
    assert "building environment default" in run.err
    assert current(project) not in {built, copy}
    script = run_script(project, "demo-alpha")
    assert script == "1.0\n"


def run_script(project: Project, name: str) -> str:
    program = current(project) / "bin" / name
    return run([program], env=project.environment(), cwd=project.folder).expect().out


# --- what a wheel may do


def evil_wheel(folder: Path, name: str, members: dict[str, str]) -> Path:
    """Make a wheel with members that its RECORD lists like all others."""
    package = name.replace("-", "_")
    modules = {f"{package}/__init__.py": "", f"{package}/cli.py": "X = 1\n", **members}
    return make_wheel(folder, name, "1.0", modules=modules)


def spoil_record(wheel: Path, change: Callable[[list[list[str]]], list[list[str]]]) -> None:
    """Change the RECORD of a wheel, and nothing else."""
    folder = wheel.parent / f"{wheel.stem}.unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    rewrite_record(folder, change)
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    shutil.rmtree(folder)


RECORDS: dict[str, Callable[[list[list[str]]], list[list[str]]]] = {
    "claims what is outside": lambda rows: [*rows, ["../../../../../../../../../../etc/passwd", "", ""]],
    "claims an absolute path": lambda rows: [*rows, ["/etc/passwd", "", ""]],
    "claims what is not there": lambda rows: [*rows, ["demo_evil/ghost.py", "", ""]],
    "misses a file": lambda rows: [row for row in rows if "cli" not in row[0]],
    "has a wrong hash": lambda rows: [[row[0], "sha256=AAAA" if "cli" in row[0] else row[1], row[2]] for row in rows],
    "is empty": lambda rows: rows[:0],
    "has rows of any length": lambda rows: [["a", "b", "c", "d"], ["x"], *rows],
}
REFUSED = {"has a wrong hash", "is empty", "has rows of any length"}


@pytest.mark.parametrize("how", RECORDS)
def test_a_wheel_whose_record_lies_is_refused_or_installed_with_a_true_one(
    project: Project, index: Index, how: str
) -> None:
    """The RECORD is written anew by uv from what was unpacked; what it takes over is held against the files."""
    spoil_record(evil_wheel(index.folder, "demo-evil", {}), RECORDS[how])
    project.manifest(environment={"requirements": ["demo-evil"]})
    done = project.aml("provision")
    assert "Traceback" not in done.err
    assert (done.code != 0) == (how in REFUSED), done
    if done.code:
        assert directories(project) == []
        return
    (record,) = site_packages(current(project)).glob("*.dist-info/RECORD")
    claimed = {line.split(",")[0] for line in record.read_text().splitlines()}
    assert {"demo_evil/__init__.py", "demo_evil/cli.py"} <= claimed
    assert not any("passwd" in name or "ghost" in name for name in claimed)
    assert flaws(current(project)) == []


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ("../../../../evil.py", 0),  # uv passes over it
        ("demo_evil-1.0.data/data/../../evil.py", 0),  # uv keeps it inside
        ("demo_evil-1.0.data/data/pyvenv.cfg", 5),
        ("demo_evil-1.0.data/scripts/python", 4),  # uv refuses it
    ],
)
def test_a_wheel_that_breaks_out_or_breaks_the_environment_is_never_certified(
    project: Project, index: Index, member: str, code: int
) -> None:
    evil_wheel(index.folder, "demo-evil", {member: "home = /nowhere\ninclude-system-site-packages = true\n"})
    project.manifest(environment={"requirements": ["demo-evil"]})
    done = project.aml("provision").expect(code)
    assert "Traceback" not in done.err
    assert leftovers(project) == []
    outside = {path for path in tmp_files(project) if path.name == "evil.py"}
    assert not outside
    if code:
        assert directories(project) == []


def tmp_files(project: Project) -> Iterator[Path]:
    """Give all files of a test that lie in no environment."""
    envs = project.aml_root / "envs"
    return (path for path in project.folder.parent.rglob("*") if not path.is_relative_to(envs))


# --- what aml.toml may ask for


REQUIREMENTS = [
    "demo-alpha --index-url http://127.0.0.1:9/simple",
    "demo-alpha\n--index-url http://127.0.0.1:9/simple",
    "demo-alpha\r\ndemo-beta",
    "demo-alpha\u2028demo-beta",
    "demo-alpha # comment",
    "demo-alpha==1.0 \\\n --hash=sha256:00",
    "--index-url=http://127.0.0.1:9/simple",
    "-r other.txt",
    "-e .",
    "./demo",
    "-demo",
    "${HOME}",
    "demo-alpha @ file:///etc/passwd",
    "demo-alpha @ git+https://127.0.0.1:9/x",
    "demo-alpha==1.0\0",
]


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_a_requirement_that_is_more_than_one_is_refused_before_anything_is_asked(
    project: Project, index: Index, requirement: str
) -> None:
    project.manifest(environment={"requirements": [requirement]})
    failed = project.aml("provision").expect(2)
    assert failed.err.startswith("AML_MANIFEST: aml.toml:")
    assert "Traceback" not in failed.err
    assert index.requests == []
    assert not project.aml_root.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"environments": {"../x": {"requirements": []}}},
        {"environments": {"-x": {"requirements": []}}},
        {"environments": {"a/b": {"requirements": []}}},
        {"environments": {"x\ny": {"requirements": []}}},
        {"index": {"name": "-x"}},
        {"index": {"name": "a=b"}},
        {"index": {"url": "--offline"}},
        {"index": {"url": "http://127.0.0.1:9/simple --extra-index-url=http://x"}},
        {"index": {"url": "http://127.0.0.1:9/$HOME"}},
        {"python": {"version": "--help"}},
        {"python": {"version": "../../bin/python"}},
        {"uv": {"version": "==1 --index-url=x"}},
        {"environment": {"requirements-files": ["/dev/stdin\n"]}},
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_value_that_would_be_an_option_or_a_path_is_refused(project: Project, change: dict[str, Any]) -> None:
    project.manifest(**change)
    failed = project.aml("provision").expect(2)
    assert failed.err.startswith("AML_MANIFEST: aml.toml:")
    assert not project.aml_root.exists()


@pytest.mark.parametrize("name", ["../x", "-x", "/etc", "a/../../b", "", ".", "x\ny", "default/.."])
def test_an_environment_that_is_asked_for_by_a_path_is_refused(project: Project, name: str) -> None:
    failed = project.aml("provision", f"--env={name}").expect(2)
    assert failed.err.startswith("AML_")
    assert not project.aml_root.exists()


# --- records of any shape


def refusal(project: Project, verb: str) -> AmlError | None:
    """Run a verb in this process: a fault is returned, a bug is raised."""
    call = Call(
        verb=verb,
        argv=[],
        command=verb,
        manifest=str(project.folder / "aml.toml"),
        cwd=str(project.folder),
        environ=project.environment(),
        screen=Screen(lambda _: None),
    )
    return front.execute(call)


WRONG: list[Any] = [None, 10**400, "", "\0", "\udcff", [], [{"a": 1}], {"a": []}, math.nan]


def mutations(value: Any) -> Iterator[Any]:  # noqa: ANN401 - JSON
    """Give a JSON value with one thing in it replaced by one that has no business there, in every way."""
    yield from WRONG
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {other: one for other, one in value.items() if other != name}
            for changed in mutations(inner):
                yield {**value, name: changed}
    if isinstance(value, list) and value:
        yield value[1:]
        for changed in mutations(value[0]):
            yield [changed, *value[1:]]


@pytest.mark.parametrize("record", ["uv.json", "python.json", "ready", "marker"])
def test_a_record_with_any_wrong_thing_in_it_is_never_a_crash(ready: Project, record: str) -> None:
    """What reads records and starts nothing is asked after each change: what is wrong counts as not there."""
    runtime = ready.aml_root / "runtime"
    places = {"ready": next((runtime / "ready").iterdir()), "marker": marker(current(ready))}
    path = places.get(record, runtime / record)
    whole = path.read_text()
    verb = {"ready": "provision", "uv.json": "status"}.get(record, "plan")
    try:
        for changed in mutations(json.loads(whole)):
            path.write_text(json.dumps(changed))
            assert refusal(ready, verb) is None, changed
    finally:
        path.write_text(whole)


# --- secrets


USER, PASSWORD = "ada", "p@ss/w%rd #1?"
FORMS = (
    PASSWORD,
    quote(PASSWORD, safe=""),
    quote(PASSWORD),
    base64.b64encode(PASSWORD.encode()).decode(),
    base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
)


def argv_of_all(project: Project, env: dict[str, str], *args: str) -> tuple[Run, str]:
    """Run the command, and give all words of all programs that were started."""
    log = project.home / "execs"
    strace: list[str | Path] = [
        needs("strace"),
        "-f",
        "-qq",
        "-s",
        "100000",
        "-e",
        "trace=execve,execveat",
        "-o",
        log,
        "--",
    ]
    done = run([*strace, sys.executable, "-m", "aml_nox", *args], env=project.environment(env), cwd=project.folder)
    return done, log.read_text(errors="replace")


def assert_no_secret(*texts: str) -> None:
    for form in FORMS:
        assert not any(form in text for text in texts), form


@pytest.fixture
def guarded(tmp_path: Path, index: Index, wheelhouse: Path, uv_wheel: Path) -> Project:
    """Give a project with a cache of its own, whose index asks for a password."""
    index.add(wheelhouse, uv_wheel)
    index.auth = (USER, PASSWORD)
    (tmp_path / "home").mkdir()
    project = Project.make(tmp_path / "project", index.url, home=tmp_path / "home", uv_cache=tmp_path / "cache")
    project.manifest(index={"name": "corp"})
    return project


@pytest.mark.parametrize("known", [PASSWORD, "another"], ids=["right", "wrong"])
def test_a_password_is_in_no_output_no_file_and_no_argument_of_a_program(
    guarded: Project, index: Index, known: str
) -> None:
    """Neither raw nor percent-encoded nor as a header; one that is refused is as secret."""
    index.auth = (USER, known)
    env = {"UV_INDEX_CORP_USERNAME": USER, "UV_INDEX_CORP_PASSWORD": PASSWORD}
    done, words = argv_of_all(guarded, env, "provision", "--json", "-")
    done.expect(0 if known == PASSWORD else 4)
    assert "demo-alpha" in done.err
    assert "pip" in words
    assert_no_secret(done.out, done.err, words)
    for folder in (guarded.folder, guarded.uv_cache):
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert_no_secret(path.name, path.read_text(encoding="utf-8", errors="replace"))


@pytest.mark.parametrize(
    ("source", "variable"),
    [
        ("auto", "HTTP_PROXY"),
        ("auto", "http_proxy"),
        ("auto", "ALL_PROXY"),
        ("index", "http_proxy"),
        ("index", "PIP_PROXY"),
    ],
)
def test_the_password_of_a_proxy_reaches_it_and_is_in_no_output_and_no_argument(
    guarded: Project, index: Index, source: str, variable: str
) -> None:
    """Asked by uv, and by pip where uv itself is fetched; the proxy refuses, so that there is something to tell."""
    index.auth, index.status = None, {"http:": 407}
    guarded.manifest(uv={"source": source})
    proxy = index.address.replace("//", f"//{USER}:{quote(PASSWORD, safe='')}@")
    done, words = argv_of_all(guarded, {variable: proxy}, "lock", "--json", "-")
    assert done.code in {3, 4}, done  # pip does not say that it was refused
    assert f"Basic {FORMS[-1]}" in {headers.get("proxy-authorization") for headers in index.headers}
    assert_no_secret(done.out, done.err, words)


@pytest.mark.parametrize("where", ["index.url", "AML_INDEX_URL"])
def test_a_password_in_a_url_is_refused_and_not_repeated(guarded: Project, where: str) -> None:
    url = f"http://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:9/simple"
    env = {}
    if where == "index.url":
        guarded.manifest(index={"url": url})
    else:
        env = {"AML_INDEX_URL": url}
    failed = guarded.aml("provision", "--json", "-", env=env).expect(2)
    assert "UV_INDEX_" in failed.err
    assert_no_secret(failed.out, failed.err)
