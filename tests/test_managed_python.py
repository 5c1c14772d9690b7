"""Interpreters that uv installs: from where they are told to come, into the project alone, whole again when broken."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aml_nox import platforms
from tests.support.index import Gate, Index
from tests.support.processes import Run, run
from tests.support.project import PYTHON, Project
from tests.support.provisioning import Provision, current, provision
from tests.support.standalone import VERSION, Standalone, key, make_standalone
from tests.support.uvarchive import shell

LIST = "downloads.json"
#: A version that nobody has; a later minor, so that no release of this one is meant.
FUTURE = "3.98"
#: The prefix that `--mirror` replaces, as uv documents it: no request goes there.
UPSTREAM = "https://github.com/astral-sh/python-build-standalone/releases/download"
#: A release that there will not be.
NEWER = f"{PYTHON}.99"
ONCE = {"UV_HTTP_RETRIES": "0"}


@dataclass
class Site:
    """A project, and a place on loopback that has an interpreter for it."""

    project: Project
    index: Index
    archive: Standalone

    @property
    def list_url(self) -> str:
        return f"{self.index.address}/files/{LIST}"

    @property
    def archive_url(self) -> str:
        return f"{self.index.address}/files/{self.archive.path.name.replace('+', '%2B')}"

    @property
    def asked(self) -> list[str]:
        """What was asked for of the list and the archive."""
        names = {f"GET /files/{LIST}": LIST, f"GET {self.archive_url.removeprefix(self.index.address)}": "archive"}
        return [names[one] for one in self.index.requests if one in names]

    @property
    def pythons(self) -> Path:
        return self.project.aml_root / "python"

    @property
    def installed(self) -> list[str]:
        """The folders that uv takes for interpreters."""
        return sorted(path.name for path in self.pythons.glob("cpython-*") if not path.is_symlink())

    @property
    def folder(self) -> Path:
        """Where the interpreter belongs."""
        return self.pythons / key()

    @property
    def program(self) -> Path:
        return self.folder / "bin" / f"python{PYTHON}"

    def use(self, **python: object) -> None:
        self.project.manifest(python=python)

    def write_list(self, text: str) -> None:
        (self.index.folder / LIST).write_text(text)

    def run(self, *words: str, **env: str) -> Run:
        return self.project.aml(*words, env={**ONCE, **env})

    def bootstrap(self, *words: str, code: int = 0, **env: str) -> dict[str, Any]:
        """Run bootstrap and give its report: of the interpreter, or of what went wrong."""
        report = self.run("bootstrap", "--json", "-", *words, **env).expect(code).json()
        found: dict[str, Any] = report["error"] if code else report["python"]
        return found

    def provision(self) -> Provision:
        return provision(self.project, env=ONCE)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Standalone:
    """Give the interpreter's archive, one for each worker."""
    return make_standalone(tmp_path_factory.mktemp("standalone"))


def make_site(project: Project, index: Index, archive: Standalone) -> Site:
    """Make a project that wants a managed interpreter alone, from a list on the index."""
    made = Site(project, index, archive)
    (index.folder / archive.path.name).hardlink_to(archive.path)
    made.write_list(archive.listing(made.archive_url))
    made.use(preference="only-managed", **{"downloads-json": made.list_url})
    return made


@pytest.fixture
def site(project: Project, index: Index, archive: Standalone) -> Site:
    """Give a project on which nothing was done yet."""
    return make_site(project, index, archive)


@pytest.fixture(scope="module")
def _provisioned(
    tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path, uv_cache: Path, archive: Standalone
) -> Iterator[Site]:
    with Index(tmp_path_factory.mktemp("index")) as index:
        index.add(wheelhouse)
        home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("ready") / "project"
        site = make_site(Project.make(folder, index.url, home=home, uv_cache=uv_cache), index, archive)
        site.provision()
        yield site


@pytest.fixture
def ready(_provisioned: Site) -> Iterator[Site]:
    """Give a project that is provisioned, lent to many tests: what one breaks or moves is put right after it."""
    site = _provisioned
    site.index.requests.clear()
    yield site
    site.write_list(site.archive.listing(site.archive_url))
    shutil.rmtree(site.pythons / key(NEWER), ignore_errors=True)
    minor_link(site).unlink(missing_ok=True)
    minor_link(site).symlink_to(site.folder)
    site.project.manifest(environment={"requirements": ["demo-alpha==1.0"]})
    site.provision()


def base_of(environment: Path, home: Path) -> str:
    """Ask an environment's interpreter where it lives."""
    tell = "import sys; print(sys.base_prefix)"
    return (
        run([environment / "bin" / "python", "-I", "-c", tell], env={"HOME": str(home)}, cwd=home).expect().out.strip()
    )


# --- from where, and into what


def by_http(site: Site) -> None:
    """As it is."""


def by_path(site: Site) -> None:
    site.project.write("lists/builds.json", site.archive.listing(site.archive_url))
    site.use(**{"downloads-json": "lists/builds.json"})


def by_file_url(site: Site) -> None:
    path = site.project.write("a list.json", site.archive.listing(site.archive.path.as_uri()))
    site.use(**{"downloads-json": path.as_uri()})


def by_mirror(site: Site) -> None:
    """The archive's name is kept, the tag is a folder."""
    (site.index.folder / "1").mkdir()
    shutil.copy(site.archive.path, site.index.folder / "1")
    name = site.archive.path.name.replace("+", "%2B")
    site.write_list(site.archive.listing(f"{UPSTREAM}/1/{name}"))
    site.use(mirror=f"{site.index.address}/files")


@pytest.mark.parametrize("place", [by_http, by_path, by_file_url, by_mirror], ids=lambda place: place.__name__)
def test_an_interpreter_is_installed_into_the_project_alone(site: Site, place: Callable[[Site], None]) -> None:
    """The environment is made of its exact path: the link for the minor version moves."""
    place(site)
    done = site.provision()
    assert done.changed
    assert site.installed == [key()]
    assert base_of(done.environment, site.project.home) == str(site.folder)
    home = (done.environment / "pyvenv.cfg").read_text().splitlines()[0]
    assert home == f"home = {site.program.parent}"
    assert not (site.project.home / ".local" / "bin").exists()
    assert not (site.project.home / ".local" / "share" / "uv" / "python").exists()
    assert site.provision().warm


@pytest.mark.parametrize("version", [PYTHON, VERSION, f">={PYTHON},<{FUTURE}", f">={VERSION},<{FUTURE}"])
def test_a_request_in_each_form_is_met(site: Site, version: str) -> None:
    site.use(version=version)
    assert site.bootstrap() == {"ok": True, "path": str(site.program), "version": VERSION}
    assert site.bootstrap("--offline", "--force")["path"] == str(site.program)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("3.13t", "asks for a free-threaded build, which is not supported"),
        ("pypy3.10", "asks for another implementation than CPython"),
        ("cpython-3.11", "names more than the version"),
    ],
)
def test_another_kind_of_python_is_refused_in_words(site: Site, version: str, words: str) -> None:
    site.use(version=version)
    error = site.bootstrap(code=2)
    assert (error["code"], words in error["message"]) == ("AML_MANIFEST", True)
    assert site.index.requests == []


def test_a_job_runs_in_it(site: Site) -> None:
    site.project.write("train.py", "import sys, demo_alpha\nprint('base', sys.base_prefix)\n")
    site.project.manifest(train={"script": "train.py"})
    site.run("train").expect()
    (log,) = site.project.aml_root.glob("jobs/*/log.txt")
    assert f"base {site.folder}\n" in log.read_text()


def test_two_at_once_install_it_once(site: Site) -> None:
    gate = site.index.gate = Gate()
    first = site.project.start_aml("bootstrap", env=ONCE)
    site.index.wait_for(f"GET /files/{LIST}")
    second = site.project.start_aml("bootstrap", env=ONCE)
    assert second.stderr
    next(line for line in second.stderr if "waiting for the interpreters" in line)
    gate.set()
    for process in (first, second):
        process.finish().expect()
    assert site.asked.count("archive") == 1


# --- what moves, and what does not


def newer_beside(site: Site) -> None:
    """What uv does when it installs a later patch release: a folder more, and the minor version's link leads there."""
    other = site.pythons / key(NEWER)
    shutil.copytree(site.folder, other, symlinks=True)
    link = minor_link(site)
    link.unlink()
    link.symlink_to(other)


def link_gone(site: Site) -> None:
    minor_link(site).unlink()


def link_to_nowhere(site: Site) -> None:
    link_gone(site)
    minor_link(site).symlink_to(site.pythons / "gone")


def list_gone(site: Site) -> None:
    (site.index.folder / LIST).unlink()


def minor_link(site: Site) -> Path:
    return site.pythons / key(VERSION).replace(VERSION, PYTHON)


@pytest.mark.parametrize("change", [newer_beside, link_gone, link_to_nowhere, list_gone], ids=lambda one: one.__name__)
def test_what_moves_beside_an_interpreter_changes_nothing(ready: Site, change: Callable[[Site], None]) -> None:
    environment = current(ready.project)
    assert minor_link(ready).is_symlink()
    change(ready)
    again = ready.provision()
    assert (again.warm, again.environment) == (True, environment)
    assert base_of(environment, ready.project.home) == str(ready.folder)
    ready.project.manifest(environment={"requirements": ["demo-alpha==1.1"]})
    changed = ready.provision()
    assert base_of(changed.environment, ready.project.home) == str(ready.folder)
    assert ready.asked == []


# --- broken, and repaired


def program_gone(site: Site) -> None:
    site.program.unlink()


def program_cut(site: Site) -> None:
    os.truncate(site.program, site.program.stat().st_size // 2)


def program_empty(site: Site) -> None:
    os.truncate(site.program, 0)


def program_closed(site: Site) -> None:
    site.program.chmod(0o644)


def folder_empty(site: Site) -> None:
    shutil.rmtree(site.folder)
    site.folder.mkdir()


def folder_gone(site: Site) -> None:
    shutil.rmtree(site.folder)


def library_gone(site: Site) -> None:
    """Without its shared library, or where it has none without its own modules, it does not start."""
    for path in site.folder.glob("lib/libpython*.so*"):
        path.unlink()
    shutil.rmtree(site.folder / "lib" / f"python{PYTHON}" / "encodings")
    site.program.touch()


BREAKS = [program_gone, program_cut, program_empty, program_closed, folder_empty, folder_gone, library_gone]


@pytest.mark.parametrize("damage", BREAKS, ids=lambda damage: damage.__name__)
def test_a_broken_interpreter_is_repaired_and_that_is_said(ready: Site, damage: Callable[[Site], None]) -> None:
    """What was built of it is right again with it."""
    environment = current(ready.project)
    damage(ready)
    again = ready.provision()
    announced = "is gone: looking for another" if not damage.__name__.startswith("program_c") else "holds a broken one"
    announced = "holds a broken one" if damage is program_empty else announced
    assert any(announced in line for line in again.said), again.said
    assert ready.asked == [LIST, "archive"]
    assert base_of(again.environment, ready.project.home) == str(ready.folder)
    assert (current(ready.project), again.environment) == (environment, environment)


# --- each way to fail


@dataclass(frozen=True, slots=True)
class Failure:
    """How the place is spoilt, and what has to come of it; `asked` is what may have been asked for."""

    spoil: Callable[[Site], object]
    code: str
    status: int
    words: str
    asked: tuple[str, ...] = (LIST, "archive")


def entry(**changes: object) -> Callable[[Site], None]:
    return lambda site: site.write_list(site.archive.listing(site.archive_url, VERSION, **changes))


def text(content: str) -> Callable[[Site], None]:
    return lambda site: site.write_list(content)


def no_url(site: Site) -> None:
    site.write_list(json.dumps({key(): {"sha256": "0" * 64}}))


def two_entries(site: Site) -> None:
    """The one that is wanted is right; uv would take the other as it is, should it ever be asked for."""
    good = json.loads(site.archive.listing(site.archive_url))
    other = json.loads(site.archive.listing(site.archive_url, NEWER, sha256=None))
    site.write_list(json.dumps(good | other))


def status(prefix: str, number: int) -> Callable[[Site], None]:
    def spoil(site: Site) -> None:
        site.index.status = {prefix: number}

    return spoil


def cut(site: Site) -> None:
    site.index.truncate = {site.archive.path.name}


def other_bytes(site: Site) -> None:
    site.index.replaced = {site.archive.path.name: shell("echo no interpreter")}


def nobody_listens(site: Site) -> None:
    site.write_list(site.archive.listing("http://127.0.0.1:1/x.tar.gz"))


LIST_ALONE = (LIST,)
FAILED, FETCH, INTEGRITY, MANIFEST = "AML_UV_PYTHON_FAILED", "AML_FETCH", "AML_INTEGRITY", "AML_MANIFEST"
FAILURES = {
    "no-digest": Failure(entry(sha256=None), INTEGRITY, 5, f"has no sha256 for {key()}", LIST_ALONE),
    "empty-digest": Failure(entry(sha256=""), INTEGRITY, 5, f"has no sha256 for {key()}", LIST_ALONE),
    "short-digest": Failure(entry(sha256="abc"), INTEGRITY, 5, f"has no sha256 for {key()}", LIST_ALONE),
    "anothers-digest": Failure(two_entries, INTEGRITY, 5, f"has no sha256 for {key(NEWER)}", LIST_ALONE),
    "wrong-digest": Failure(entry(sha256="0" * 64), INTEGRITY, 5, "Hash mismatch"),
    "other-bytes": Failure(other_bytes, FAILED, 4, "Failed to extract archive"),
    "cut": Failure(cut, FETCH, 4, "installing Python"),
    "archive-404": Failure(status("/files/cpython", 404), FETCH, 4, "404 Not Found"),
    "archive-503": Failure(status("/files/cpython", 503), FETCH, 4, "503 Service Unavailable"),
    "archive-401": Failure(status("/files/cpython", 401), FETCH, 4, "401 Unauthorized"),
    "nobody-listens": Failure(nobody_listens, FETCH, 4, "onnection refused", LIST_ALONE),
    "list-404": Failure(status(f"/files/{LIST}", 404), FETCH, 4, "answered 404", LIST_ALONE),
    "no-json": Failure(text("{"), MANIFEST, 2, "is not a list of builds as uv reads it", LIST_ALONE),
    "no-object": Failure(text("[]"), MANIFEST, 2, "is not a list of builds as uv reads it", LIST_ALONE),
    "no-entries": Failure(text('{"a": 1}'), MANIFEST, 2, "is not a list of builds as uv reads it", LIST_ALONE),
    "no-build": Failure(text("{}"), FAILED, 4, "No download found for request", LIST_ALONE),
    "no-url": Failure(no_url, FAILED, 4, "missing field", LIST_ALONE),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_an_interpreter_that_cannot_be_had_says_why(site: Site, kind: str) -> None:
    """Nothing is left that the next run takes for one: with the fault mended, it gets its own."""
    failure = FAILURES[kind]
    failure.spoil(site)
    error = site.bootstrap(code=failure.status)
    assert (error["code"], failure.words in error["message"]) == (failure.code, True), error
    assert tuple(site.asked) == failure.asked
    assert site.installed == []
    if failure.asked != LIST_ALONE:
        site.index.status, site.index.truncate, site.index.replaced = {}, set(), {}
        site.write_list(site.archive.listing(site.archive_url))
        assert site.bootstrap()["path"] == str(site.program)


def test_a_list_that_is_not_there_is_a_fault_of_the_manifest(site: Site) -> None:
    site.use(**{"downloads-json": "gone.json"})
    error = site.bootstrap(code=2)
    assert (error["code"], "gone.json cannot be read: No such file" in error["message"]) == ("AML_MANIFEST", True)


def test_an_archive_that_is_not_what_its_list_says_is_not_taken(site: Site) -> None:
    """The folder's name is all that uv goes by, and it gave that itself; the interpreter is asked."""
    site.write_list(site.archive.listing(site.archive_url, NEWER))
    site.use(version=NEWER)
    error = site.bootstrap(code=4)
    assert error["code"] == "AML_PYTHON_MISSING"
    assert f"no Python {NEWER} was found" in error["message"]


# --- what must not install, or ask


def test_only_system_never_installs(site: Site) -> None:
    site.use(preference="only-system", version=FUTURE)
    error = site.bootstrap(code=4)
    assert error["code"] == "AML_PYTHON_MISSING"
    assert "only-system" in error["message"]
    assert site.index.requests == []
    assert not site.pythons.exists()


def test_only_system_takes_no_interpreter_of_the_project(site: Site) -> None:
    assert site.bootstrap()["path"] == str(site.program)
    site.use(preference="only-system")
    assert site.bootstrap()["path"] != str(site.program)


@pytest.mark.parametrize("preference", ["managed", "system"])
def test_an_installed_one_is_enough_where_it_may_be_the_systems(site: Site, preference: str) -> None:
    site.use(preference=preference)
    assert site.bootstrap()["path"] == str(Path(sys.executable).resolve())
    assert site.index.requests == []


def test_offline_asks_nobody(site: Site) -> None:
    error = site.bootstrap("--offline", code=4)
    assert (error["code"], "--offline" in error["message"] + error["hint"]) == ("AML_FETCH", True)
    by_path(site)
    error = site.bootstrap("--offline", code=4)
    assert (error["code"], "--offline" in error["message"] + error["hint"]) == ("AML_FETCH", True)
    assert site.index.requests == []
    by_file_url(site)
    assert site.bootstrap("--offline")["path"] == str(site.program)
    assert site.index.requests == []


# --- another one, on the command line


def test_a_version_in_the_environment_takes_the_place_of_the_manifests(site: Site) -> None:
    site.use(version=FUTURE)
    found = site.run("bootstrap", "--json", "-", AML_UV_PYTHON=PYTHON).expect()
    assert found.json()["python"]["path"] == str(site.program)
    assert f"AML_UV_PYTHON={PYTHON} is used in place of python.version" in found.err
    assert site.bootstrap(code=4)["code"] == "AML_UV_PYTHON_FAILED"


def test_a_path_in_the_environment_takes_the_place_of_the_manifests(site: Site) -> None:
    path = str(Path(sys.executable).resolve())
    found = site.run("bootstrap", "--json", "-", AML_UV_PYTHON=path).expect()
    assert found.json()["python"]["path"] == path
    assert f"AML_UV_PYTHON={path} is used in place of python.version" in found.err
    assert site.index.requests == []
    error = site.bootstrap(code=4, AML_UV_PYTHON="/nowhere/python")
    assert (error["code"], error["hint"]) == ("AML_PYTHON_MISSING", "correct AML_UV_PYTHON")


# --- limits


def hanging(project: Project, name: str, when: str = "*") -> Path:
    """Write a program that never ends where its first word is *when*; else it is the real uv."""
    path = project.folder / "hangs" / name
    path.parent.mkdir(exist_ok=True)
    uv = Path(sys.prefix, "bin", "uv")
    path.write_bytes(shell(f'case "$1" in {when}) sleep 1000 & wait;; *) exec {uv} "$@";; esac'))
    path.chmod(0o755)
    return path


@pytest.mark.slow
def test_an_interpreter_that_hangs_on_path_costs_its_limit_alone(site: Site) -> None:
    """Asked first by uv, it lets uv wait for ever; the right one behind it is found all the same."""
    path = hanging(site.project, f"python{PYTHON}").parent
    site.use(preference="only-system")
    env = site.project.environment()
    found = site.bootstrap(PATH=os.pathsep.join([str(path), env["PATH"]]))
    assert found["path"] == str(Path(sys.executable).resolve())
    assert alive(site.project) == []


def alive(project: Project) -> list[str]:
    """Give the processes that live with the home of a project in their environment."""
    mark, found = f"HOME={project.home}\0".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


def uv_from_index(site: Site, uv_wheel: Path) -> str:
    site.index.add(uv_wheel)
    site.project.manifest(uv={"source": "index"})
    return "bootstrap"


def uv_from_url(site: Site, uv_wheel: Path) -> str:
    site.index.add(uv_wheel)
    digests = {platforms.name(): site.index.sha256(uv_wheel.name)}
    url = f"{site.index.address}/files/{uv_wheel.name}"
    site.project.manifest(uv={"source": "url", "url": url, "sha256": digests})
    return "bootstrap"


def uv_from_installer(site: Site, _uv_wheel: Path) -> str:
    script = hanging(site.project, "install.sh")
    site.project.manifest(uv={"source": "installer", "url": script.as_uri(), "version": "0.13.9"})
    return "bootstrap"


def python_list(_site: Site, _uv_wheel: Path) -> str:
    return "bootstrap"


def python_archive(site: Site, _uv_wheel: Path) -> str:
    by_path(site)
    return "bootstrap"


def environment(site: Site, _uv_wheel: Path) -> str:
    site.project.manifest(uv={"path": str(hanging(site.project, "uv", "venv"))})
    site.use(preference="system")
    return "provision"


def lock(site: Site, _uv_wheel: Path) -> str:
    site.project.manifest(uv={"path": str(hanging(site.project, "uv", "pip"))})
    site.use(preference="system")
    return "lock"


def packages(site: Site, _uv_wheel: Path) -> str:
    site.use(preference="system")
    site.run("lock").expect()
    return "provision"


LIMITS: Mapping[str, list[Callable[[Site, Path], str]]] = {
    "uv": [uv_from_index, uv_from_url, uv_from_installer],
    "python": [python_list, python_archive],
    "venv": [environment],
    "install": [lock, packages],
}
STEPS = [pytest.param(limit, step, id=f"{limit}-{step.__name__}") for limit, steps in LIMITS.items() for step in steps]


@pytest.mark.parametrize(("limit", "step"), STEPS)
def test_each_step_ends_at_its_limit_and_leaves_no_process(
    site: Site, uv_wheel: Path, tmp_path: Path, limit: str, step: Callable[[Site, Path], str]
) -> None:
    verb = step(site, uv_wheel)
    site.index.gate = Gate()
    site.project.manifest(timeouts={limit: 1})
    (tmp_path / "temp").mkdir()
    failed = site.run(verb, "--json", "-", TMPDIR=str(tmp_path / "temp")).expect(6)
    error = failed.json()["error"]
    assert (error["code"], error["hint"]) == ("AML_TIMEOUT", "raise [timeouts]"), error
    assert alive(site.project) == []
    assert [*(tmp_path / "temp").iterdir()] == []
    assert site.installed == []
