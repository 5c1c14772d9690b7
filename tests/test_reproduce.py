"""reproduce: the same lock gives the same bytes a second time, elsewhere and from nothing; or the file is named."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.index import Gate, Index
from tests.support.project import Project
from tests.support.provisioning import current, provision, snapshot
from tests.support.sources import make_sdist, write_source

if TYPE_CHECKING:
    from tests.support.project import Changes

WRITES_TIME = "import time\n\n\ndef files():\n    return {'stamp.txt': f'built at {time.time_ns()}'}\n"
WRITES_PLACE = "import os\n\n\ndef files():\n    return {'place.txt': f'built in {os.getcwd()} for you'}\n"
WRITES_HOME = "import os\n\n\ndef files():\n    return {os.environ['HOME'].replace('/', '-') + '.txt': ''}\n"
WRITES_NOISE = "import os\n\n\ndef files():\n    return {'noise.txt': os.urandom(8).hex() + 'x'}\n"
NEEDS_HOME = """
import os

def files():
    assert "reproduce" not in os.environ["HOME"], "no home of mine"
    return {}
"""
WRITES_UMASK = "import os\n\n\ndef files():\n    os.umask(was := os.umask(0))\n    return {'u.txt': f'{was:o}x'}\n"
WRITES_ZONE = (
    "import time\n\n\ndef files():\n    return {'zone.txt': str(time.localtime(0).tm_gmtoff) + time.tzname[0]}\n"
)
WRITES_LANGUAGE = "import os\n\n\ndef files():\n    return {'language.txt': os.environ['LANG']}\n"


@pytest.fixture
def temp(tmp_path: Path) -> Path:
    """Give the folder for temporary files of the programs of a test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def reproduce(project: Project, temp: Path, *, code: int = 0, env: Changes | None = None) -> dict[str, Any]:
    done = project.aml("reproduce", "--json", "-", env={"TMPDIR": str(temp), **(env or {})}).expect(code)
    report = done.json()
    assert report["ok"] is (code == 0)
    assert "\nTraceback" not in done.err
    assert [*temp.iterdir()] == [], "it leaves nothing behind"
    for one in report.get("differences", []):
        reason = f": {one['why']}" if one["why"] else ""
        assert f"{one['file']} {one['what']}{reason}" in done.err.splitlines()
    return report


def need_source(project: Project, index: Index, name: str, extra: str) -> None:
    """Let the project need a package that is built, with what its build adds."""
    make_sdist(index.folder, write_source(project.folder.parent / name, name, extra=extra), name)
    project.manifest(environment={"requirements": [name], "allow-build": [name]})


@pytest.mark.parametrize("source", ["auto", "none"], ids=["uv", "pip"])
def test_wheels_give_the_same_bytes_twice(project: Project, temp: Path, source: str) -> None:
    project.manifest(environment={"requirements": ["demo-gamma==1.0"]})
    project.aml("lock").expect()
    project.manifest(uv={"source": source})
    report = reproduce(project, temp)
    digest = provision(project).report["environment"]["env_digest"]
    assert (report["first"], report["second"], report["differences"]) == (digest, digest, [])


def test_it_builds_the_first_one_where_there_is_none_and_says_the_digest(project: Project, temp: Path) -> None:
    said = project.aml("reproduce", env={"TMPDIR": str(temp)}).expect().err.splitlines()
    digest = provision(project).report["environment"]["env_digest"]
    assert said[-1] == f"the same bytes twice: {digest}"
    assert "building environment default a second time, elsewhere and from nothing" in said


def test_the_second_build_touches_nothing_of_the_first(project: Project, temp: Path) -> None:
    """Not the environment, not the root, not uv's cache, not the home directory."""
    project.manifest(environment={"link-mode": "copy"})
    provision(project)
    places = [project.aml_root / "envs", project.home, project.uv_cache]
    before = [snapshot(place) for place in places]
    reproduce(project, temp)
    assert [snapshot(place) for place in places] == before


def test_the_second_build_takes_nothing_from_a_cache(project: Project, index: Index, temp: Path) -> None:
    provision(project)
    seen = len(index.requests)
    reproduce(project, temp, env={"XDG_CACHE_HOME": str(temp.parent / "xdg")})
    assert "GET /files/demo_alpha-1.0-py3-none-any.whl" in index.requests[seen:]
    assert not (temp.parent / "xdg").exists()


@pytest.mark.parametrize(
    ("extra", "file", "why"),
    [
        pytest.param(WRITES_TIME, "stamp.txt", "only numbers differ, as a time of building would", id="time"),
        pytest.param(WRITES_PLACE, "place.txt", "only paths differ, as the place of building would", id="path"),
        pytest.param(WRITES_NOISE, "noise.txt", "", id="noise"),
        pytest.param(WRITES_UMASK, "u.txt", "only numbers differ, as a time of building would", id="umask"),
        pytest.param(WRITES_ZONE, "zone.txt", "", id="time zone"),
        pytest.param(WRITES_LANGUAGE, "language.txt", "", id="language"),
    ],
)
def test_a_build_that_is_not_the_same_twice_is_named_with_the_reason(  # noqa: PLR0917
    project: Project, index: Index, temp: Path, extra: str, file: str, why: str
) -> None:
    need_source(project, index, "demo-built", extra)
    report = reproduce(project, temp, code=5)
    reason = "it is built here, from source" + (f"; {why}" if why else "")
    (one,) = report["differences"]
    assert one == {"distribution": "demo-built==1.0", "file": one["file"], "what": "differs", "why": reason}
    assert (current(project) / one["file"]).name == file
    assert report["first"] != report["second"]
    assert report["error"]["code"] == "AML_INTEGRITY"
    assert "1 file of demo-built==1.0" in report["error"]["message"]


def test_a_file_that_is_in_one_of_the_builds_alone_is_named(project: Project, index: Index, temp: Path) -> None:
    need_source(project, index, "demo-built", WRITES_HOME)
    found = {one["what"]: one["file"] for one in reproduce(project, temp, code=5)["differences"]}
    assert found.keys() == {"is missing in the second", "is only in the second"}
    assert str(project.home).replace("/", "-") in found["is missing in the second"]
    assert "aml-reproduce-" in found["is only in the second"]


def test_a_build_that_is_the_same_twice_passes(project: Project, index: Index, temp: Path) -> None:
    need_source(project, index, "demo-built", "")
    assert reproduce(project, temp)["differences"] == []


def test_the_digest_of_the_first_is_of_what_is_there_now(project: Project, temp: Path) -> None:
    """An edit that the stats of a provision do not show."""
    project.manifest(environment={"link-mode": "copy"})
    provision(project)
    module = next(current(project).glob("lib/*/site-packages/demo_alpha/cli.py"))
    module.write_bytes(module.read_bytes().replace(b"print", b"pront"))
    (one,) = reproduce(project, temp, code=5)["differences"]
    assert (one["distribution"], one["why"]) == ("demo-alpha==1.0", "")


# --- when the second build does not come to its end


def test_a_failure_of_the_second_build_is_told_as_such(project: Project, index: Index, temp: Path) -> None:
    need_source(project, index, "demo-built", NEEDS_HOME)
    provision(project)
    error = reproduce(project, temp, code=6)["error"]
    assert error["code"] == "AML_VENV_FAILED"
    assert error["message"].startswith("the second build failed: installing failed")
    assert "no home of mine" in error["message"]


def test_an_index_that_is_gone_by_then_is_told_as_such(project: Project, index: Index, temp: Path) -> None:
    provision(project)
    index.status["/"] = 503
    error = reproduce(project, temp, code=4, env={"UV_HTTP_RETRIES": "0"})["error"]
    assert error["code"] == "AML_FETCH"
    assert error["message"].startswith("the second build failed: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"])
def test_an_interrupted_one_leaves_nothing(
    project: Project, index: Index, temp: Path, number: signal.Signals, code: int
) -> None:
    provision(project)
    before = snapshot(project.aml_root / "envs")
    index.gate = Gate()
    with project.start_aml("reproduce", env={"TMPDIR": str(temp)}) as running:
        index.gate.wait_reached()
        assert [path.name.startswith("aml-reproduce-") for path in temp.iterdir()] == [True]
        running.send_signal(number)
        running.finish().expect(code)
    assert [*temp.iterdir()] == []
    assert snapshot(project.aml_root / "envs") == before


# --- credentials

USER, PASSWORD = "ada", "s3cret"


def by_variables(project: Project) -> dict[str, str]:
    assert project.home.is_dir()
    return {"UV_INDEX_DEFAULT_USERNAME": USER, "UV_INDEX_DEFAULT_PASSWORD": PASSWORD}


def by_netrc(project: Project) -> dict[str, str]:
    (project.home / ".netrc").write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
    (project.home / ".netrc").chmod(0o600)
    return {}


def by_named_netrc(project: Project) -> dict[str, str]:
    by_netrc(project)
    return {"NETRC": str((project.home / ".netrc").rename(project.home / "elsewhere"))}


@pytest.mark.parametrize("give", [by_variables, by_netrc, by_named_netrc])
def test_the_second_build_has_the_credentials_of_the_first(
    project: Project, index: Index, temp: Path, give: Callable[[Project], dict[str, str]]
) -> None:
    index.auth = (USER, PASSWORD)
    env = give(project)
    assert reproduce(project, temp, env=env)["differences"] == []
