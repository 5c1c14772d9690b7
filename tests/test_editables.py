"""Projects in place: what they depend on is locked, what they are made of is watched, their code is not promised."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from tests.support.index import Index
from tests.support.processes import run
from tests.support.project import Project
from tests.support.provisioning import Provision, current, marker, provision
from tests.support.sources import write_source
from tests.support.wheels import make_wheel


def in_place(project: Project, *paths: str, requirements: tuple[str, ...] = ()) -> None:
    project.manifest(environment={"editable": [*paths], "requirements": [*requirements]})


def locked(project: Project, name: str = "pylock.toml") -> dict[str, str]:
    document = tomlkit.parse((project.folder / name).read_text()).unwrap()
    return {one["name"]: one["version"] for one in document.get("packages", [])}


def facts(project: Project, name: str = "default") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(marker(current(project, name)).read_text())
    return found


def answer(project: Project, code: str, name: str = "default") -> str:
    """Ask an environment; it writes no bytecode beside a project's code."""
    program = current(project, name) / "bin" / "python"
    return run([program, "-B", "-c", code], env=project.environment(), cwd=project.home).expect().out.strip()


@pytest.fixture
def app(project: Project) -> Project:
    """Give a project that is itself in place, and needs demo-beta."""
    write_source(project.folder, "demo-app", dependencies=["demo-beta >= 1.0"])
    in_place(project, ".")
    return project


def assert_rebuilt_once(project: Project, before: Provision, reason: str) -> Provision:
    after = provision(project)
    assert after.changed
    assert after.tells(reason), after.report["reasons"]
    assert after.environment != before.environment
    assert provision(project).warm
    return after


# --- what it depends on, and its code


@pytest.mark.parametrize("source", ["auto", "none"], ids=["uv", "pip"])
@pytest.mark.parametrize("path", [".", "lib"])
def test_what_it_depends_on_is_locked_and_its_code_is_read_where_it_lies(
    project: Project, path: str, source: str
) -> None:
    write_source(project.folder / path, "demo-app", dependencies=["Demo_Beta >= 1.0"])
    in_place(project, path)
    project.aml("lock").expect()
    assert locked(project) == {"demo-alpha": "2.0", "demo-beta": "1.0"}
    project.manifest(uv={"source": source})
    provision(project)
    place = project.folder / path / "src" / "demo_app.py"
    assert answer(project, "import demo_app, demo_beta; print(demo_app.__file__)") == str(place)
    assert facts(project)["backend"] == ("uv" if source == "auto" else "pip")


def test_uv_and_pip_give_one_key_and_one_digest(app: Project) -> None:
    by_uv = provision(app).report["environment"]
    app.manifest(uv={"source": "none"})
    by_pip = provision(app, "--force").report["environment"]
    assert facts(app)["backend"] == "pip"
    assert (by_pip["key"], by_pip["env_digest"]) == (by_uv["key"], by_uv["env_digest"])


def test_it_is_not_sealed_and_verify_says_why_and_passes(app: Project) -> None:
    first = provision(app)
    assert first.report["environment"]["sealed"] is False
    why = "demo-app is editable: its code lies in ."
    assert facts(app)["unsealed"] == [why]
    for level in ("quick", "full", "strict"):
        done = app.aml("verify", "--level", level, "--json", "-").expect()
        assert (done.json()["sealed"], done.json()["unsealed"]) == (False, [why])
        assert f"not sealed: {why}" in done.err.splitlines()


def test_an_edit_of_its_code_is_seen_and_changes_nothing(app: Project) -> None:
    first = provision(app)
    app.write("src/demo_app.py", "VERSION = 'edited'\n")
    assert answer(app, "import demo_app; print(demo_app.VERSION)") == "edited"
    again = provision(app)
    assert again.warm
    assert again.environment == first.environment
    app.aml("verify", "--level", "strict").expect()


# --- its project files


def edit(project: Project) -> None:
    path = project.folder / "pyproject.toml"
    path.write_text(path.read_text() + "\n# edited\n")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(edit, id="pyproject.toml"),
        pytest.param(lambda it: it.write("setup.py", ""), id="setup.py added"),
        pytest.param(lambda it: it.write("setup.cfg", "[metadata]\n"), id="setup.cfg added"),
    ],
)
def test_a_change_of_its_project_files_rebuilds_once_with_the_reason(
    app: Project, change: Callable[[Project], object]
) -> None:
    first = provision(app)
    change(app)
    after = assert_rebuilt_once(app, first, "the project files of . changed")
    assert after.lock_changed
    assert after.tells("editables: . has other bytes")
    assert after.report["environment"]["key"] != first.report["environment"]["key"]


@pytest.mark.parametrize("name", ["setup.py", "setup.cfg"])
def test_a_project_file_that_is_edited_or_taken_away_rebuilds_once(app: Project, name: str) -> None:
    path = app.write(name, "# one\n")
    with_it = provision(app)
    path.write_text("# two\n")
    edited = assert_rebuilt_once(app, with_it, "the project files of . changed")
    path.unlink()
    assert_rebuilt_once(app, edited, "the project files of . changed")


def test_a_new_dependency_is_locked_and_installed(app: Project) -> None:
    first = provision(app)
    write_source(app.folder, "demo-app", dependencies=["demo-beta >= 1.0", "demo-gamma == 1.1"])
    after = assert_rebuilt_once(app, first, "+ demo-gamma 1.1")
    assert after.tells("requirements: + demo-gamma==1.1 (pyproject.toml)")


def test_a_stale_lock_is_told_where_it_must_not_change(app: Project) -> None:
    provision(app)
    edit(app)
    assert app.aml("provision", "--locked", "--json", "-").expect(3).json()["error"]["code"] == "AML_LOCK_STALE"
    problems = app.aml("verify", "--json", "-").expect(5).json()["problems"]
    assert problems == ["pylock.toml does not belong to the manifest: editables: . has other bytes"]


def test_the_name_and_place_are_in_the_key_and_no_path_of_the_machine(app: Project, tmp_path: Path) -> None:
    first = provision(app)
    assert [{**one, "digest": ""} for one in facts(app)["editables"]] == [
        {"name": "demo-app", "path": ".", "digest": ""}
    ]
    moved = Project(folder=tmp_path / "moved", home=app.home, uv_cache=app.uv_cache)
    app.folder.rename(moved.folder)
    shutil.rmtree(moved.aml_root)
    again = provision(moved)
    assert not again.lock_changed
    assert again.report["environment"]["key"] == first.report["environment"]["key"]
    (moved.folder / "lib").mkdir()
    for name in ("pyproject.toml", "backend.py", "src"):
        (moved.folder / name).rename(moved.folder / "lib" / name)
    in_place(moved, "lib")
    after = assert_rebuilt_once(moved, again, "+ lib, in place")
    assert after.tells("- ., in place")
    assert after.report["environment"]["key"] != first.report["environment"]["key"]


@pytest.mark.parametrize("word", ["lib", "./lib", "lib/", "x/../lib"])
def test_one_place_has_one_key_however_it_is_written(project: Project, word: str) -> None:
    write_source(project.folder / "lib", "demo-lib")
    (project.folder / "x").mkdir()
    in_place(project, word)
    project.aml("lock").expect()
    in_place(project, "lib")
    assert not provision(project).lock_changed


# --- several


def test_projects_in_place_that_need_each_other_are_not_looked_for_at_an_index(project: Project, index: Index) -> None:
    """Anybody can take a name there."""
    make_wheel(index.folder, "demo-lib", "99.0", modules={"demo_lib.py": "VERSION = 'of a stranger'\n"})
    write_source(project.folder / "lib", "demo-lib", dependencies=["demo-alpha==1.0"])
    write_source(project.folder, "demo-app", dependencies=["demo-lib"])
    in_place(project, ".", "lib")
    provision(project)
    assert locked(project) == {"demo-alpha": "1.0"}
    assert answer(project, "import demo_app, demo_lib; print(demo_lib.VERSION)") == "1.0"
    assert not any("demo-lib" in request for request in index.requests)


@pytest.mark.parametrize("source", ["auto", "none"], ids=["uv", "pip"])
def test_a_project_in_place_stands_for_the_release_that_others_need(project: Project, source: str) -> None:
    write_source(project.folder / "lib", "demo-alpha", "1.5")
    in_place(project, "lib", requirements=("demo-beta",))
    project.aml("lock").expect()
    project.manifest(uv={"source": source})
    provision(project)
    assert answer(project, "import demo_alpha, demo_beta; print(demo_alpha.VERSION)") == "1.5"
    project.aml("verify", "--level", "strict").expect()


def test_each_environment_has_its_own_in_place(project: Project) -> None:
    for name in ("one", "two"):
        write_source(project.folder / name, f"demo-{name}")
    in_place(project, "one")
    project.manifest(environments={"gpu": {"editable": ["two"]}})
    provision(project)
    provision(project, "--env", "gpu")
    assert [one["path"] for one in facts(project)["editables"]] == ["one"]
    assert [one["path"] for one in facts(project, "gpu")["editables"]] == ["one", "two"]
    assert answer(project, "import demo_one, demo_two; print(demo_two.VERSION)", "gpu") == "1.0"
    project.aml("verify", "--env", "gpu").expect()


# --- what is not read of it


def test_uvs_own_tables_in_its_project_file_are_ignored(project: Project, tmp_path: Path) -> None:
    """They would name another source, another index and another resolution than the manifest does."""
    stranger = write_source(tmp_path / "stranger", "demo-alpha", "66.0")
    tables = {
        "tool": {
            "uv": {
                "sources": {"demo-alpha": {"path": str(stranger)}},
                "index": [{"url": "http://127.0.0.1:1/simple", "default": True}],
                "override-dependencies": ["demo-alpha==2.0"],
                "resolution": "lowest",
            }
        }
    }
    write_source(project.folder, "demo-app", dependencies=["demo-alpha<2"], tables=tables)
    in_place(project, ".")
    provision(project)
    assert locked(project) == {"demo-alpha": "1.1"}


# --- what is refused

REFUSED = {
    "no folder": (None, '"lib": its pyproject.toml cannot be read ('),
    "no TOML": ("name", '"lib": its pyproject.toml cannot be read ('),
    "no project": ("[build-system]\nrequires = []\n", "has no [project] table; add one with name and dependencies"),
    "no name": ('[project]\nversion = "1"\n', "has no project.name; add it"),
    "dynamic": (
        '[project]\nname = "a"\ndynamic = ["version", "dependencies"]\n',
        "its dependencies are dynamic; list them in project.dependencies",
    ),
    "no requirement": ('[project]\nname = "a"\ndependencies = ["!"]\n', "project.dependencies: not a PEP 508 "),
    "no list": ('[project]\nname = "a"\ndependencies = "numpy"\n', "project.dependencies is no list of strings"),
    "no strings": ('[project]\nname = "a"\ndependencies = [1]\n', "project.dependencies is no list of strings"),
    "an option": ('[project]\nname = "a"\ndependencies = ["-r x"]\n', "an option is no requirement"),
    "a line break": ('[project]\nname = "a"\ndependencies = ["b\\n--index-url=x"]\n', "a line break"),
    "a password": ('[project]\nname = "a"\ndependencies = ["b @ https://me:hunter2@c.example/b.whl"]\n', "password"),
    **{
        f"name {name!r}": (f"[project]\nname = {json.dumps(name)}\n", "is no package's name")
        for name in ("", "a b", "../a", "-e", "a\n--index-url=x", "é")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_project_is_refused_with_its_place_and_the_way_out(project: Project, case: str) -> None:
    text, words = REFUSED[case]
    if text is not None:
        project.write("lib/pyproject.toml", text)
    in_place(project, "lib")
    done = project.aml("provision", "--json", "-").expect(2)
    error = done.json()["error"]
    assert error["code"] == "AML_MANIFEST"
    assert error["message"].startswith('aml.toml: environment.editable: "lib": ')
    assert words in error["message"]
    assert "hunter2" not in done.err + done.out
    assert not (project.folder / "pylock.toml").exists()


def test_extras_of_a_project_in_place_are_refused_rather_than_left_out(project: Project) -> None:
    write_source(project.folder / "lib", "demo-lib")
    write_source(project.folder, "demo-app", dependencies=["demo-lib[more]"])
    in_place(project, ".", "lib")
    message = project.aml("plan", "--json", "-").expect(2).json()["error"]["message"]
    assert 'environment.editable: ".": demo-lib[more]: extras of a project in place are not read' in message


def test_all_faults_are_told_at_once(project: Project) -> None:
    in_place(project, "lib", "other", requirements=("demo-local @ ./demo_local-1.0-py3-none-any.whl",))
    message = project.aml("plan", "--json", "-").expect(2).json()["error"]["message"]
    assert len(message.splitlines()) == 3


def test_a_build_that_fails_leaves_no_environment_and_tells_its_own_words(app: Project) -> None:
    backend = app.folder / "backend.py"
    backend.write_text(backend.read_text().replace("def build_editable", "def build_nothing"))
    failed = app.aml("provision", "--json", "-").expect(6)
    assert failed.json()["error"]["code"] == "AML_VENV_FAILED"
    assert "build_editable" in failed.err
    assert [*(app.aml_root / "envs").iterdir()] == []
