"""Where uv comes from: each source alone is enough, and each that fails says so and leaves nothing behind."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import random
import shutil
import socket
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aml_nox import platforms
from tests.support.frontend import front_end
from tests.support.index import Gate, Index
from tests.support.processes import Run, Started
from tests.support.project import Project
from tests.support.provisioning import snapshot
from tests.support.uvarchive import FOREIGN, LINK, installer, pack, says, shell, tar, zip_file
from tests.support.wheels import make_wheel

HERE = platforms.name()
VERSION = importlib.metadata.version("uv")
#: Downloads end at their first failure: the tests are about the refusal, not about patience.
ONCE = {"UV_HTTP_RETRIES": "0"}


@dataclass
class Machine:
    """A machine without uv: neither on PATH nor in the front end's environment; its folders are watched."""

    project: Project
    index: Index
    path: Path
    temp: Path
    uv: Path
    wheel: Path
    releases: Mapping[str, Path]

    @property
    def tools(self) -> Path:
        return self.project.aml_root / "tools"

    @property
    def files(self) -> list[str]:
        """The files in the tools, however deep."""
        return [path.relative_to(self.tools).as_posix() for path in sorted(self.tools.rglob("*")) if path.is_file()]

    @property
    def asked(self) -> list[str]:
        """The files that were asked for."""
        files = (one.removeprefix("GET /files/") for one in self.index.requests if one.startswith("GET /files/"))
        return [one for one in files if not one.endswith(".metadata")]

    def serve(self, name: str, data: bytes | str | Path) -> str:
        """Put a file where the index serves it, and give its URL."""
        target = self.index.folder / name
        shutil.copy(data, target) if isinstance(data, Path) else target.write_bytes(_bytes(data))
        return f"{self.index.address}/files/{name}"

    def has(self, uv: Path | bytes) -> Path:
        """Put a uv on PATH."""
        return _put(self.path / "uv", uv)

    def holds(self, folder: str, uv: bytes) -> Path:
        """Put a uv into a folder of the project's tools."""
        return _put(self.tools / folder / "uv", uv)

    def use(self, **uv: object) -> None:
        """Change [uv] of the manifest."""
        self.project.manifest(uv=uv)

    def use_url(self, archive: Path, **uv: object) -> None:
        """Let uv come from an archive at a URL, which is named with its right digest."""
        url = self.serve(archive.name, archive)
        self.use(**{"source": "url", "url": url, "sha256": {HERE: digest(archive)}, **uv})

    def use_installer(self, uv: Path | bytes, **keys: object) -> None:
        """Let uv come from an installer script, which takes it from an archive."""
        archive = self.serve("uv.tar.gz", pack(self.temp.parent / "uv.tar.gz", uv))
        url = self.serve("install.sh", installer(archive))
        self.use(**{"source": "installer", "url": url, "version": VERSION, **keys})

    def run(self, *words: str, **env: str) -> Run:
        return self.project.aml(*words, env=self.environment(**env))

    def start(self, *words: str, **env: str) -> Started:
        return self.project.start_aml(*words, env=self.environment(**env))

    def environment(self, **env: str) -> dict[str, str | None]:
        return {**ONCE, "PATH": str(self.path), "TMPDIR": str(self.temp), **env}

    def bootstrap(self, *words: str, code: int = 0, **env: str) -> dict[str, Any]:
        """Run bootstrap and give its report: of uv, or of what went wrong."""
        report = self.run("bootstrap", "--json", "-", *words, **env).expect(code).json()
        found: dict[str, Any] = report["error"] if code else report["uv"]
        return found

    def lock(self) -> None:
        """Make the lock elsewhere, by a front end that has uv."""
        self.project.manifest(uv=None)
        with_uv = Project(folder=self.project.folder, home=self.project.home, uv_cache=self.project.uv_cache)
        with_uv.aml("lock").expect()
        (self.project.aml_root / "runtime" / "uv.json").unlink()

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.project.aml_root / "runtime" / "uv.json").read_text())
        return found

    @property
    def leftovers(self) -> list[Path]:
        """What a failure left: a uv, half of one, the folder for it, a temporary file, anything in the home."""
        return [found for folder in (self.tools, self.temp, self.project.home) for found in folder.rglob("*")]


def _put(path: Path, uv: Path | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(uv, Path):
        path.symlink_to(uv)
    else:
        path.write_bytes(uv)
        path.chmod(0o755)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a Python with aml-nox and no uv."""
    return front_end(tmp_path_factory.mktemp("front") / "end")


@pytest.fixture
def machine(  # noqa: PLR0917 - pytest passes them by name
    project: Project,
    index: Index,
    bare: Path,
    tmp_path: Path,
    uv_program: Path,
    uv_wheel: Path,
    releases: Mapping[str, Path],
) -> Machine:
    path, temp = tmp_path / "bin", tmp_path / "temp"
    path.mkdir()
    temp.mkdir()
    (path / "sh").symlink_to(shutil.which("sh") or "")
    project.manifest(python={"path": str(Path(sys.executable).resolve())})
    without_uv = Project(folder=project.folder, home=project.home, uv_cache=project.uv_cache, program=str(bare))
    return Machine(without_uv, index, path, temp, uv_program, uv_wheel, releases)


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory, uv_program: Path, uv_wheel: Path) -> Mapping[str, Path]:
    """Give the real uv in each kind of file, by the file's ending."""
    folder = tmp_path_factory.mktemp("releases")
    return {"whl": uv_wheel, **{ending: pack(folder / f"uv.{ending}", uv_program) for ending in ("tar.gz", "zip")}}


@pytest.fixture(scope="session")
def nowhere() -> Iterator[str]:
    """Give an address on which nobody answers: it is taken, and not listened on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


# --- each source alone


def from_index(machine: Machine) -> tuple[str, str, str]:
    machine.index.add(machine.wheel)
    machine.use(source="index")
    return "index", f"tools/uv-{VERSION}/uv", "the index"


def from_installer(machine: Machine) -> tuple[str, str, str]:
    machine.use_installer(machine.uv)
    return "installer", f"tools/uv-{VERSION}/uv", "uv's installer"


def from_path(machine: Machine) -> tuple[str, str, str]:
    machine.use(source="path", path=str(machine.uv))
    return "existing", str(machine.uv), "uv.path"


def from_system(machine: Machine) -> tuple[str, str, str]:
    machine.has(machine.uv)
    machine.use(source="system")
    return "existing", str(machine.path / "uv"), "PATH"


def from_tools(machine: Machine) -> tuple[str, str, str]:
    machine.holds("by-hand", machine.uv.read_bytes())
    return "existing", "tools/by-hand/uv", "the project's tools"


def from_tar(machine: Machine, ending: str = "tar.gz") -> tuple[str, str, str]:
    archive = machine.releases[ending]
    machine.use_url(archive)
    return "url", f"tools/uv-{digest(archive)[:12]}/uv", "uv.url"


def from_zip(machine: Machine) -> tuple[str, str, str]:
    return from_tar(machine, "zip")


def from_wheel(machine: Machine) -> tuple[str, str, str]:
    return from_tar(machine, "whl")


SOURCES = [from_index, from_installer, from_path, from_system, from_tools, from_tar, from_zip, from_wheel]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_each_source_alone_is_enough(machine: Machine, source: Callable[[Machine], tuple[str, str, str]]) -> None:
    """It is recorded, the next run asks nobody, and neither home, profile nor temporary folder knows of it."""
    (machine.project.home / ".profile").write_text("# mine\n")
    before = snapshot(machine.project.home)
    method, path, name = source(machine)
    place = str(machine.project.aml_root / path)
    assert machine.bootstrap() == {"ok": True, "path": place, "version": VERSION, "source": name}
    record = machine.record()
    assert (record.pop("installed_at") is None) is (method == "existing")
    assert record == {
        "schema": 1,
        "path": path,
        "version": VERSION,
        "source": name,
        "method": method,
        "verified": method in {"index", "url"},
        "install_dir": str(Path(path).parent),
    }
    asked = len(machine.index.requests)
    assert [machine.bootstrap(*words)["path"] for words in ((), ("--offline",))] == [place, place]
    assert len(machine.index.requests) == asked
    assert machine.record()["method"] == method
    assert snapshot(machine.project.home) == before
    assert list(machine.temp.iterdir()) == []
    assert machine.files == ([path.removeprefix("tools/")] if path.startswith("tools/") else [])


def test_one_url_serves_all_platforms(machine: Machine, tmp_path: Path) -> None:
    """{platform} and {target} are what uv.sha256 and uv itself call this machine."""
    archive = pack(tmp_path / f"{HERE}+{platforms.triple(HERE)}.zip", says("9.9"))
    machine.use_url(archive, url=f"{machine.index.address}/files/{{platform}}+{{target}}.zip")
    assert machine.bootstrap()["version"] == "9.9"
    assert machine.asked == [archive.name]


@pytest.mark.parametrize("more", ["?token=1&x=/y.whl", "#part", "?a#b"])
def test_what_follows_the_path_of_a_url_is_no_part_of_the_files_name(
    machine: Machine, tmp_path: Path, more: str
) -> None:
    archive = pack(tmp_path / "uv.zip", says("9.9"))
    machine.use_url(archive, url=machine.serve("uv.zip", archive) + more)
    assert machine.bootstrap()["version"] == "9.9"


def test_the_digest_is_held_also_where_no_network_is_needed(machine: Machine, tmp_path: Path) -> None:
    """A file URL is a URL."""
    archive = pack(tmp_path / "uv.zip", says("9.9"))
    machine.use_url(archive, url=archive.as_uri())
    assert machine.bootstrap()["version"] == "9.9"
    machine.use(sha256={HERE: "0" * 64})
    assert machine.bootstrap(code=5)["code"] == "AML_INTEGRITY"
    assert machine.index.requests == []


def test_another_digest_is_another_uv(machine: Machine, tmp_path: Path) -> None:
    """What an older manifest promised is not taken for what the new one promises."""
    for version in ("9.8", "9.9"):
        machine.use_url(pack(tmp_path / f"uv-{version}.zip", says(version)))
        assert machine.bootstrap()["version"] == version
    assert machine.asked == ["uv-9.8.zip", "uv-9.9.zip"]


def test_system_looks_at_nothing_of_the_project(machine: Machine) -> None:
    machine.holds("uv", says("9.9"))
    machine.index.add(machine.wheel)
    machine.use(source="system")
    assert machine.bootstrap(code=4)["code"] == "AML_UV_MISSING"
    assert machine.index.requests == []


@pytest.mark.parametrize("source", ["index", "installer", "url"])
def test_a_source_that_fetches_looks_at_nothing_of_the_machine(machine: Machine, nowhere: str, source: str) -> None:
    machine.has(says(VERSION))
    machine.use(source=source, url=f"{nowhere}/uv.{'sh' if source == 'installer' else 'zip'}", version=VERSION)
    machine.use(sha256={HERE: "0" * 64})
    machine.project.manifest(index={"url": nowhere})
    assert machine.bootstrap(code=4)["code"] == "AML_FETCH"


def test_without_any_source_there_is_no_uv(machine: Machine) -> None:
    machine.holds("uv", says("9.9"))
    machine.has(says("9.9"))
    machine.use(source="none")
    found = machine.bootstrap()
    assert (found["ok"], found["reason"].split(":")[0]) == (False, 'uv.source = "none" allows none')
    assert machine.index.requests == []


# --- each way to fail, of an archive


@dataclass(frozen=True, slots=True)
class Failure:
    """What a source is given, and what has to come of it."""

    code: str
    status: int
    words: str


MISSING = "AML_UV_MISSING"

CONTENTS: dict[str, tuple[dict[str, bytes], Failure]] = {
    "another-version": ({"uv": says("0.11.40")}, Failure(MISSING, 4, "is uv 0.11.40, the manifest asks for")),
    "another-platform": ({"uv": FOREIGN}, Failure(MISSING, 4, "cannot be started: Exec format error")),
    "zero-byte": ({"uv": b""}, Failure(MISSING, 4, "cannot be started: Exec format error")),
    "no-uv": ({"uv": shell("echo hello")}, Failure(MISSING, 4, "printed 'hello' where its version was expected")),
    "crashes": ({"uv": shell("kill -SEGV $$")}, Failure(MISSING, 4, "ended with -11")),
    "windows": ({"uv.exe": b"MZ"}, Failure("AML_INTEGRITY", 5, "holds no uv: it is not uv's, or for another platform")),
    "nothing": ({}, Failure("AML_INTEGRITY", 5, "holds no uv")),
    "folder": ({"uv/": b"", "uv/README": b""}, Failure("AML_INTEGRITY", 5, "holds no uv")),
}


@pytest.mark.parametrize("ending", ["tar.gz", "zip"])
@pytest.mark.parametrize("kind", CONTENTS)
def test_an_archive_with_the_wrong_thing_in_it_is_refused(
    machine: Machine, tmp_path: Path, kind: str, ending: str
) -> None:
    members, failure = CONTENTS[kind]
    archive = (zip_file if ending == "zip" else tar)(tmp_path / f"uv.{ending}", members)
    machine.use_url(archive, version=">=0.13")
    error = machine.bootstrap(code=failure.status)
    assert error["code"] == failure.code
    assert failure.words in error["message"]
    assert machine.leftovers == []


#: What may lie at a URL in the place of an archive; the last has a whole table of contents that leads nowhere.
NO_ARCHIVE: dict[str, Callable[[bytes], bytes]] = {
    "page": lambda _: b"<html>Please log in</html>",
    "empty": lambda _: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "damaged": lambda whole: whole[: len(whole) // 2] + bytes(200) + whole[len(whole) // 2 + 200 :],
}


@pytest.mark.parametrize("ending", ["tar.gz", "zip", "whl"])
@pytest.mark.parametrize("kind", NO_ARCHIVE)
def test_what_is_no_archive_is_refused_although_it_was_promised(
    machine: Machine, tmp_path: Path, kind: str, ending: str
) -> None:
    """The digest is right: whoever wrote the manifest took it of a file that was bad already."""
    archive = tmp_path / f"uv.{ending}"
    archive.write_bytes(NO_ARCHIVE[kind](compressed(tmp_path, ending)))
    machine.use_url(archive)
    error = machine.bootstrap(code=5)
    assert (error["code"], f"{archive.name} " in error["message"]) == ("AML_INTEGRITY", True)
    assert machine.leftovers == []


def compressed(folder: Path, ending: str) -> bytes:
    """Give an archive, compressed as usual, of a script that does not get much smaller."""
    script, path = folder / "script", folder / f"whole.{ending}"
    script.write_bytes(says("9.9") + random.Random(0).randbytes(20_000).hex().encode())  # noqa: S311 - any will do
    if ending == "tar.gz":
        with tarfile.open(path, "w:gz") as tarred:
            tarred.add(script, "uv")
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.write(script, "uv")
    return path.read_bytes()


@pytest.mark.parametrize("name", ["../../../uv", "/uv", "a/../../uv", "uv"])
@pytest.mark.parametrize("ending", ["tar.gz", "zip"])
def test_a_name_in_an_archive_leads_nowhere(machine: Machine, tmp_path: Path, ending: str, name: str) -> None:
    """Only the content is taken, and it goes to the one place."""
    archive = (zip_file if ending == "zip" else tar)(tmp_path / f"uv.{ending}", {name: says("9.9"), "../evil": b"evil"})
    before = {path for path in tmp_path.rglob("*") if "aml" not in path.parts}
    machine.use_url(archive)
    assert machine.bootstrap()["version"] == "9.9"
    assert machine.files == [f"uv-{digest(archive)[:12]}/uv"]
    assert {path for path in tmp_path.rglob("*") if "aml" not in path.parts} - before == set()
    assert not Path("/uv").exists()


@pytest.mark.parametrize("ending", ["tar.gz", "zip"])
def test_a_link_in_an_archive_is_not_followed(machine: Machine, tmp_path: Path, ending: str) -> None:
    """A uv of the machine does not become the uv of the project."""
    other = machine.has(says("9.9"))
    archive = (zip_file if ending == "zip" else tar)(tmp_path / f"uv.{ending}", {"uv": LINK + str(other).encode()})
    machine.use_url(archive)
    error = machine.bootstrap(code=5 if ending == "tar.gz" else 4)
    assert ("holds no uv" if ending == "tar.gz" else "Exec format error") in error["message"]
    assert machine.leftovers == []


# --- each way to fail, of a transport


@dataclass(frozen=True, slots=True)
class Fetching:
    """A source that fetches: how to use it, and the files that it asks for, the last one being uv."""

    use: Callable[[Machine], object]
    files: tuple[str, ...]


FETCHING = {
    "url": Fetching(from_zip, ("uv.zip",)),
    "installer": Fetching(lambda machine: machine.use_installer(says(VERSION)), ("install.sh",)),
    "index": Fetching(from_index, ("*.whl",)),
}


def unreachable(machine: Machine, file: str, nowhere: str) -> None:
    machine.use(url=f"{nowhere}/{file}" if file != "*.whl" else None)
    machine.project.manifest(index={"url": f"{nowhere}/simple"})


def refused(status: int) -> Callable[[Machine, str, str], None]:
    def refuse(machine: Machine, _file: str, _nowhere: str) -> None:
        machine.index.status = {"/": status}

    return refuse


def cut(machine: Machine, file: str, _nowhere: str) -> None:
    machine.index.truncate = {machine.wheel.name if file == "*.whl" else file}


def password(machine: Machine, _file: str, _nowhere: str) -> None:
    machine.index.auth = ("ada", "s3cret")


TROUBLE = {
    "no-network": (unreachable, "Connection refused"),
    "not-found": (refused(404), "answered 404"),
    "server-error": (refused(503), "answered 503"),
    "forbidden": (refused(403), "answered 403"),
    "password": (password, "answered 401"),
    "cut": (cut, "was cut off after"),
}


@pytest.mark.parametrize("source", FETCHING)
@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_fetch_that_fails_says_why_and_leaves_nothing(
    machine: Machine, nowhere: str, trouble: str, source: str
) -> None:
    fetching, (happens, words) = FETCHING[source], TROUBLE[trouble]
    fetching.use(machine)
    happens(machine, fetching.files[-1], nowhere)
    error = machine.bootstrap(code=4)
    assert error["code"] == "AML_FETCH"
    if source == "index":  # pip keeps the reason to itself
        assert "from versions: none" in error["message"] or trouble == "cut"
        assert machine.index.url in error["hint"] or trouble == "no-network"
    else:
        assert words in error["message"]
        assert error["hint"]
    assert machine.leftovers == []


# --- each way to fail, of the index


def test_a_wheel_that_is_not_what_the_index_promised_is_refused(machine: Machine, tmp_path: Path) -> None:
    from_index(machine)
    forged = pack(tmp_path / machine.wheel.name, says(VERSION))
    machine.index.replaced = {machine.wheel.name: forged.read_bytes()}
    assert machine.bootstrap(code=5)["code"] == "AML_INTEGRITY"
    assert machine.leftovers == []


WHEELS: dict[str, tuple[bytes | None, str, Failure]] = {
    "another-version": (says("0.12.0"), VERSION, Failure(MISSING, 4, f"is uv 0.12.0, not {VERSION}")),
    "another-platform": (FOREIGN, VERSION, Failure(MISSING, 4, "cannot be started: Exec format error")),
    "zero-byte": (b"", VERSION, Failure(MISSING, 4, "cannot be started: Exec format error")),
    "empty": (None, VERSION, Failure("AML_INTEGRITY", 5, "holds no uv")),
    "too-old": (says("0.9.0"), "0.9.0", Failure(MISSING, 4, "(from versions: 0.9.0)")),
}


@pytest.mark.parametrize("kind", WHEELS)
def test_a_wheel_with_the_wrong_thing_in_it_is_refused(machine: Machine, tmp_path: Path, kind: str) -> None:
    """The index is honest about it: the hash is right."""
    uv, version, failure = WHEELS[kind]
    tag = machine.wheel.stem.split("-", 2)[2]
    scripts = {} if uv is None else {"uv": uv}
    machine.index.add(make_wheel(tmp_path, "uv", version, modules={}, data_scripts=scripts, tag=tag))
    machine.use(source="index")
    error = machine.bootstrap(code=failure.status)
    assert (error["code"], failure.words in error["message"]) == (failure.code, True)
    assert machine.leftovers == []


def test_a_wheel_for_another_platform_is_not_even_fetched(machine: Machine, tmp_path: Path) -> None:
    tag = "py3-none-win_arm64"
    machine.index.add(make_wheel(tmp_path, "uv", VERSION, modules={}, data_scripts={"uv": says(VERSION)}, tag=tag))
    machine.use(source="index")
    assert machine.bootstrap(code=4)["code"] == "AML_FETCH"
    assert machine.asked == []


def test_the_wheel_of_uv_is_held_against_the_lock(machine: Machine, tmp_path: Path) -> None:
    """The index changed both the file and its hash; the lock was committed before. Nothing of it is run."""
    from_index(machine)
    machine.run("lock").expect()
    shutil.rmtree(machine.tools)
    evil = shell(f"touch {tmp_path}/ran; echo uv {VERSION}")
    machine.index.add(pack(tmp_path / machine.wheel.name, evil))
    error = machine.bootstrap(code=5)
    assert (error["code"], "the lock promises" in error["message"]) == ("AML_INTEGRITY", True)
    assert not (tmp_path / "ran").exists()
    assert machine.leftovers == []
    machine.index.add(machine.wheel)
    assert "was trusted" not in machine.run("bootstrap").expect().err


# --- each way to fail, of the installer


def test_the_installer_is_pinned_by_the_manifest_else_by_the_lock(machine: Machine) -> None:
    """{version} in the script's URL is that version; a wildcard pins nothing."""
    machine.use_installer(says(VERSION))
    scripts = f"{machine.index.address}/files/install-{{version}}.sh"
    machine.serve(f"install-{VERSION}.sh", machine.index.folder.joinpath("install.sh").read_text())
    for version in (f"=={'.'.join(VERSION.split('.')[:2])}.*", ">=0.11.32"):
        machine.use(url=scripts, version=version)
        error = machine.bootstrap(code=4)
        assert (error["code"], error["hint"]) == (MISSING, 'write uv.version = "==X.Y.Z"')
    assert machine.asked == []
    machine.lock()
    machine.use(source="installer", url=scripts, version=None)
    machine.bootstrap()
    assert machine.asked == [f"install-{VERSION}.sh", "uv.tar.gz"]
    assert machine.files == [f"uv-{VERSION}/uv"]


SCRIPTS: dict[str, tuple[str, Failure]] = {
    "fails": ("echo no space for me >&2; exit 3", Failure("AML_FETCH", 4, "(exit 3):\nno space for me")),
    "leaves-nothing": ("exit 0", Failure("AML_FETCH", 4, "ended well and left no uv")),
    "empty": ("", Failure("AML_FETCH", 4, "ended well and left no uv")),
    "another-version": (
        "printf '#!/bin/sh\necho uv 0.12.0' > $UV_INSTALL_DIR/uv",
        Failure(MISSING, 4, "is uv 0.12.0, the manifest asks for"),
    ),
    "zero-byte": (": > $UV_INSTALL_DIR/uv", Failure(MISSING, 4, "cannot be started: Exec format error")),
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_an_installer_that_does_not_do_its_work_is_told(machine: Machine, kind: str) -> None:
    text, failure = SCRIPTS[kind]
    machine.use(source="installer", url=machine.serve("install.sh", text), version=VERSION)
    error = machine.bootstrap(code=failure.status)
    assert (error["code"], failure.words in error["message"]) == (failure.code, True)
    assert machine.leftovers == []


def test_an_installer_that_gives_another_version_than_the_locks_is_refused(machine: Machine) -> None:
    """The manifest would take it; the lock is what pinned it."""
    machine.lock()
    machine.use_installer(says("9.9"), version=None)
    error = machine.bootstrap(code=4)
    assert (error["code"], f"is uv 9.9, not {VERSION}" in error["message"]) == (MISSING, True)
    assert machine.files == []


def test_a_machine_without_a_shell_is_told_so(machine: Machine) -> None:
    machine.use_installer(says(VERSION))
    (machine.path / "sh").unlink()
    error = machine.bootstrap(code=4)
    assert (error["code"], "sh cannot be started" in error["message"]) == ("AML_FETCH", True)


def test_auto_runs_the_installer_only_when_the_index_has_no_uv(machine: Machine) -> None:
    machine.use_installer(says(VERSION), source="auto")
    found = machine.bootstrap()
    assert (found["source"], machine.record()["verified"]) == ("uv's installer", False)
    assert "GET /simple/uv/" in machine.index.requests
    shutil.rmtree(machine.project.aml_root)
    machine.index.add(machine.wheel)
    assert machine.bootstrap()["source"] == "the index"
    assert machine.asked == ["install.sh", "uv.tar.gz", machine.wheel.name]


@pytest.mark.parametrize(("words", "env"), [(["--locked"], {}), ([], {"CI": "1"})], ids=["locked", "ci"])
def test_auto_runs_no_installer_where_nothing_unverified_may_run(
    machine: Machine, words: list[str], env: dict[str, str]
) -> None:
    """The lock is then installed without uv; who names the installer gets it there too."""
    machine.lock()
    machine.use_installer(says(VERSION), source="auto")
    machine.run("provision", *words, **env).expect()
    assert machine.asked == ["demo_alpha-1.0-py3-none-any.whl"]
    machine.use(source="installer")
    machine.run("bootstrap", **env).expect()
    assert machine.asked[1:] == ["install.sh", "uv.tar.gz"]


def test_every_attempt_is_in_the_error(machine: Machine) -> None:
    """What lies there and what was fetched, each with its reason, in the order in which it was tried."""
    old, new = machine.has(says("0.1.0")), machine.holds("by-hand", b"")
    machine.use_installer(says("9.9"), source="auto")
    error = machine.bootstrap(code=4)
    assert error["code"] == MISSING
    lines = [line for line in error["message"].splitlines() if line.startswith("  tried ")]
    starts = [f"{new} (the project's tools): cannot be started", f"{old} (PATH): is uv 0.1.0", "index: fetching uv"]
    starts.append("installer: what uv's installer gave is uv 9.9")
    assert [line.startswith(f"  tried {start}") for line, start in zip(lines, starts, strict=True)] == [True] * 4


@pytest.mark.parametrize("source", ["url", "index"])
def test_every_attempt_is_in_the_error_of_a_single_source(machine: Machine, source: str) -> None:
    FETCHING[source].use(machine)
    bad = machine.holds(f"uv-{digest(machine.releases['zip'])[:12]}" if source == "url" else "x", b"")
    machine.index.status = {"/files/": 404}
    message = machine.bootstrap(code=4)["message"]
    assert "404" in message.splitlines()[0] or "fetching uv failed" in message.splitlines()[0]
    assert f"\n  tried {bad} (the project's tools): cannot be started: Exec format error" in message


def test_a_platform_without_a_digest_is_told(machine: Machine, tmp_path: Path) -> None:
    other = next(one for one in ("linux-arm64", "macos-arm64") if one != HERE)
    machine.use_url(pack(tmp_path / "uv.zip", says("9.9")), sha256={other: "0" * 64})
    error = machine.bootstrap(code=4)
    assert (error["code"], error["message"]) == (MISSING, f"uv.sha256 has no entry for {HERE}")
    assert machine.asked == []


# --- a uv that is there already


def test_a_good_uv_elsewhere_serves_although_the_first_is_broken(machine: Machine) -> None:
    machine.holds("a", FOREIGN)
    machine.holds("b", says("9.9"))
    machine.has(says("9.8"))
    assert machine.bootstrap()["version"] == "9.9"
    shutil.rmtree(machine.tools / "b")
    assert machine.bootstrap()["version"] == "9.8"
    assert machine.index.requests == []


@pytest.mark.parametrize("size", [0, 100, 1_000_000])
@pytest.mark.parametrize("source", [from_index, from_zip], ids=lambda source: source.__name__)
def test_a_uv_that_was_cut_is_fetched_anew(
    machine: Machine, size: int, source: Callable[[Machine], tuple[str, str, str]]
) -> None:
    _, path, name = source(machine)
    machine.bootstrap()
    placed = machine.project.aml_root / path
    os.truncate(placed, size)
    assert machine.bootstrap("--offline", code=4)["message"].count(str(placed)) == 1
    assert machine.bootstrap()["source"] == name
    assert placed.read_bytes() == machine.uv.read_bytes()
    assert len(machine.asked) == 2


def test_the_record_tells_of_the_last_fetch(machine: Machine) -> None:
    """What was verified once and then came from the installer is verified no more."""
    from_index(machine)
    machine.bootstrap()
    assert machine.record()["verified"] is True
    os.truncate(machine.tools / f"uv-{VERSION}" / "uv", 0)
    machine.use_installer(machine.uv)
    machine.bootstrap()
    assert (machine.record()["method"], machine.record()["verified"]) == ("installer", False)


@pytest.mark.parametrize("cut_before", [False, True], ids=["fresh", "after-a-cut"])
@pytest.mark.parametrize("source", ["index", "url"])
def test_two_bootstraps_at_once_fetch_once(machine: Machine, source: str, cut_before: bool) -> None:  # noqa: FBT001
    FETCHING[source].use(machine)
    if cut_before:
        machine.bootstrap()
        for name in machine.files:
            os.truncate(machine.tools / name, 0)
        machine.index.requests.clear()
    gate = machine.index.gate = Gate()
    with machine.start("bootstrap", "--json", "-") as first:
        gate.wait_reached()
        with machine.start("bootstrap", "--json", "-") as second:
            assert second.stderr
            next(line for line in second.stderr if "waiting for the toolchain" in line)
            gate.set()
            runs = [first.finish().expect(), second.finish().expect()]
    assert [run.json()["uv"]["version"] for run in runs] == [VERSION, VERSION]
    assert len(machine.asked) == 1
