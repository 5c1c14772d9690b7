"""uv links files from its cache: an edit in one environment is in the next one's, whatever the lock says of hashes."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path

import pytest

from tests.support.index import Index
from tests.support.oracle import flaws
from tests.support.processes import Run
from tests.support.project import Project
from tests.support.provisioning import certified, current, directories, provision, site_packages
from tests.support.wheels import make_wheel

MODULE = "demo_alpha/cli.py"
EVIL = b"print('evil')\n"
LOCAL = "wheels/demo_alpha-1.0-py3-none-any.whl"
ONCE = {"UV_HTTP_RETRIES": "0"}


@pytest.fixture
def other(project: Project, tmp_path: Path) -> Project:
    """Give a second project with the same lock and the same cache, which has no environment yet."""
    return dataclasses.replace(project, folder=tmp_path / "other")


def clone(project: Project, other: Project) -> None:
    """Lay the files of *project* that are committed into *other*."""
    for name in ("aml.toml", "noxfile.py", "pylock.toml", LOCAL):
        if (project.folder / name).exists():
            (other.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (other.folder / name).write_bytes((project.folder / name).read_bytes())


def poison(project: Project, name: str = MODULE) -> Path:
    """Edit a file of an environment in its place, as an editor that keeps the inode does."""
    path = site_packages(current(project)) / name
    assert path.stat().st_nlink > 1, "it is not linked to the cache: nothing would be poisoned"
    with path.open("ab") as stream:
        stream.write(EVIL)
    return path


def assert_clean(project: Project, digest: str) -> None:
    environment = current(project)
    assert flaws(environment) == []
    assert EVIL not in (site_packages(environment) / MODULE).read_bytes()
    report = project.aml("verify", "--level", "strict", "--json", "-").expect().json()
    assert report["environment"]["env_digest"] == digest


def assert_caught(run: Run, file: str = MODULE) -> None:
    """Hold that one line names the file, its package and what is done about it."""
    (line,) = (line for line in run.expect().err.splitlines() if line.startswith("not as RECORD says: "))
    assert f"{file} differs from its hash in RECORD (demo-alpha==1.0)" in line
    assert line.endswith("the cache is poisoned, fetching past it")


def downloads(index: Index) -> int:
    return sum(request.startswith("GET /files/") and not request.endswith(".metadata") for request in index.requests)


def test_what_was_edited_in_one_environment_is_fetched_anew_for_the_next(
    project: Project, other: Project, index: Index
) -> None:
    digest = provision(project).report["environment"]["env_digest"]
    poison(project)
    clone(project, other)
    before = downloads(index)
    assert_caught(other.aml("provision"))
    assert downloads(index) == before + 1
    assert_clean(other, digest)
    assert project.aml("verify").code == 5, "the edited environment itself is left as it is"


def test_only_the_package_that_is_poisoned_is_fetched(project: Project, other: Project, index: Index) -> None:
    project.manifest(environment={"requirements": ["demo-gamma==1.0", "demo-alpha==1.0"]})
    digest = provision(project).report["environment"]["env_digest"]
    poison(project)
    clone(project, other)
    seen = len(index.requests)
    assert_caught(other.aml("provision"))
    fetched = {request for request in index.requests[seen:] if request.startswith("GET /files/")}
    assert {request for request in fetched if not request.endswith(".metadata")} == {
        "GET /files/demo_alpha-1.0-py3-none-any.whl"
    }
    assert_clean(other, digest)


def test_each_later_build_is_clean_too(project: Project, other: Project) -> None:
    """The cache itself is not mended: each build looks for itself."""
    digest = provision(project).report["environment"]["env_digest"]
    poison(project)
    clone(project, other)
    for _ in range(2):
        assert_caught(other.aml("provision", "--force"))
        assert_clean(other, digest)


def test_what_is_no_code_is_held_as_well(project: Project, other: Project) -> None:
    digest = provision(project).report["environment"]["env_digest"]
    poison(project, "demo_alpha-1.0.dist-info/METADATA")
    clone(project, other)
    assert_caught(other.aml("provision"), "demo_alpha-1.0.dist-info/METADATA")
    assert_clean(other, digest)


@pytest.mark.parametrize("file", ["entry_points.txt", "WHEEL"])
def test_a_cache_that_uv_itself_cannot_read_is_passed_by(project: Project, other: Project, file: str) -> None:
    digest = provision(project).report["environment"]["env_digest"]
    poison(project, f"demo_alpha-1.0.dist-info/{file}")
    with (site_packages(current(project)) / f"demo_alpha-1.0.dist-info/{file}").open("r+b") as stream:
        stream.truncate(9)
    clone(project, other)
    assert "the cache is damaged: building again past it" in other.aml("provision").expect().err.splitlines()
    assert_clean(other, digest)
    assert directories(other) == certified(other)


def test_a_local_wheel_is_unpacked_anew(project: Project, index: Index) -> None:
    make_wheel(project.folder / "wheels", "demo-alpha", "1.0")
    project.manifest(environment={"requirements": [f"demo-alpha @ ./{LOCAL}"]})
    digest = provision(project).report["environment"]["env_digest"]
    # Another environment of the same file: uv knows a local wheel by its path.
    poison(project)
    assert_caught(project.aml("verify", "--repair"))
    assert_clean(project, digest)
    assert downloads(index) == 0


@pytest.mark.parametrize(("words", "code"), [((), "AML_FETCH"), (("--offline",), "AML_FETCH")])
def test_without_the_index_nothing_is_certified_and_it_says_what_is_wrong(
    project: Project, other: Project, index: Index, words: tuple[str, ...], code: str
) -> None:
    provision(project)
    poison(project)
    clone(project, other)
    index.status["/files/"] = 503
    failed = other.aml("provision", *words, "--json", "-", env=ONCE).expect(4)
    assert failed.json()["error"]["code"] == code
    assert "fetching past the cache failed" in failed.json()["error"]["message"]
    assert f"{MODULE} differs from its hash in RECORD" in failed.err
    assert directories(other) == []
    assert not (other.aml_root / ".venv").is_symlink()
    index.status.clear()
    assert_caught(other.aml("provision"))


def test_an_index_that_gives_other_bytes_now_is_an_integrity_fault(
    project: Project, other: Project, index: Index, tmp_path: Path
) -> None:
    provision(project)
    poison(project)
    clone(project, other)
    forged = make_wheel(tmp_path / "forged", "demo-alpha", "1.0", modules={"demo_alpha/cli.py": "forged = 1\n"})
    index.replaced[forged.name] = forged.read_bytes()
    failed = other.aml("provision", "--json", "-").expect(5)
    assert failed.json()["error"]["code"] == "AML_INTEGRITY"
    assert directories(other) == []


@pytest.mark.parametrize("mode", ["copy", "hardlink"])
def test_files_that_are_copied_poison_nothing(project: Project, other: Project, mode: str) -> None:
    project.manifest(environment={"link-mode": mode})
    digest = provision(project).report["environment"]["env_digest"]
    path = site_packages(current(project)) / MODULE
    assert (path.stat().st_nlink == 1) is (mode == "copy")
    with path.open("ab") as stream:
        stream.write(EVIL)
    clone(project, other)
    done = other.aml("provision").expect()
    assert ("the cache is poisoned" in done.err) is (mode == "hardlink")
    assert_clean(other, digest)


def test_link_mode_is_in_no_key_and_rebuilds_nothing(project: Project) -> None:
    first = provision(project)
    project.manifest(environment={"link-mode": "copy"})
    after = provision(project)
    assert not after.changed
    assert not after.lock_changed
    assert after.environment == first.environment


# --- a wheel that is wrong itself


def with_wrong_record(wheel: Path) -> Path:
    """Let the RECORD of a wheel give another hash than its file has; size and zip are right."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            text = data.replace(b"demo_alpha/cli.py,sha256=", b"demo_alpha/cli.py,sha256=AAAA")
            lines = [
                line[:29] + line[33:] if line.startswith(b"demo_alpha/cli.py") else line for line in text.split(b"\n")
            ]
            archive.writestr(name, b"\n".join(lines) if name.endswith("RECORD") else data)
    return wheel


@pytest.mark.parametrize("source", ["auto", "none"], ids=["uv", "pip"])
def test_a_wheel_whose_own_record_is_wrong_is_refused_after_one_more_fetch(
    project: Project, index: Index, source: str
) -> None:
    with_wrong_record(index.folder / "demo_alpha-1.0-py3-none-any.whl")
    project.aml("lock").expect()
    project.manifest(uv={"source": source})
    before = downloads(index)
    failed = project.aml("provision", "--json", "-").expect(5)
    error = failed.json()["error"]
    assert error["code"] == "AML_INTEGRITY"
    assert f"{MODULE} differs from its hash in RECORD (demo-alpha==1.0)" in error["message"]
    assert "the wheel itself is damaged" in error["hint"]
    assert downloads(index) <= before + 2
    assert certified(project) == []
    assert directories(project) == []


def test_the_fallback_takes_nothing_from_a_poisoned_cache(project: Project, other: Project) -> None:
    digest = provision(project).report["environment"]["env_digest"]
    poison(project)
    clone(project, other)
    other.manifest(uv={"source": "none"})
    done = other.aml("provision").expect()
    assert "the cache is poisoned" not in done.err
    assert_clean(other, digest)
    marker = json.loads(next(current(other).glob(".aml-ok-*")).read_text())
    assert marker["backend"] == "pip"
