"""`aml_nox.in_env()`: a session of the user's own whose programs run in a provisioned environment, by the real nox."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.provisioning import directories

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.project import Project

pytest_plugins = ("tests.support.ready",)

TELL = (
    "import json, os, sys, demo_alpha; path = os.environ['PATH'].split(os.pathsep); "
    "found = [sys.prefix, os.environ['VIRTUAL_ENV'], path[0], demo_alpha.VERSION]; "
    "json.dump(found, open('seen.json', 'w'))"
)
NOXFILE = """
import nox, aml_nox

@nox.session(venv_backend="none")
@aml_nox.in_env({arguments})
def mine(session):
    "What it is for."
    session.run("python", "-c", {tell!r}{options})
"""
AFTER = """
@nox.session(venv_backend="none")
def after(session):
    import os
    print(os.environ["PATH"], os.environ.get("VIRTUAL_ENV"))
"""


def write(project: Project, arguments: str = "", options: str = "", tell: str = TELL) -> None:
    project.write("noxfile.py", NOXFILE.format(arguments=arguments, options=options, tell=tell))


def seen(project: Project) -> list[str]:
    found: list[str] = json.loads((project.folder / "seen.json").read_text(encoding="utf-8"))
    return found


def linked(project: Project, name: str = ".venv") -> Path:
    return (project.aml_root / name).resolve()


@pytest.mark.parametrize("options", ["", ", include_outer_env=False"], ids=["outer-env", "no-outer-env"])
def test_programs_are_those_of_the_environment(ready: Project, options: str) -> None:
    """By its resolved directory, so that a switch of the link does not reach into a running session."""
    write(ready, options=options)
    ready.nox("-s", "mine", env={"VIRTUAL_ENV": "/nowhere"}).expect()
    environment = linked(ready)
    assert seen(ready) == [str(environment), str(environment), str(environment / "bin"), "1.0"]


def test_a_program_that_the_environment_has_comes_before_all_others(ready: Project) -> None:
    """Nox looks a program up in the PATH of its own process: a console script proves that it is the right one."""
    write(ready, tell="import shutil; print(shutil.which('demo-alpha'))")
    assert str(linked(ready) / "bin" / "demo-alpha") in ready.nox("-s", "mine").expect().out


def test_the_environment_is_made_ready_first(project: Project) -> None:
    write(project)
    project.nox("-s", "mine").expect()
    (environment,) = directories(project)
    assert seen(project)[0] == str(environment)


def test_it_takes_the_name_of_an_environment_and_another_manifest(ready: Project) -> None:
    ready.manifest(environments={"other": {"requirements": ["demo-gamma"]}})
    (ready.folder / "aml.toml").rename(ready.folder / "own.toml")
    write(ready, arguments='"other", manifest="own.toml"')
    ready.nox("-s", "mine").expect()
    assert seen(ready)[0] == str(linked(ready, ".venv-other"))


def test_what_nox_knows_of_the_session_stays_the_users(ready: Project) -> None:
    """Its name, its description, its parameters and its own arguments, which are not taken for ours."""
    text = NOXFILE.format(arguments="", options="", tell=TELL)
    text = text.replace("def mine(session)", '@nox.parametrize("size", [1, 2])\ndef mine(session, size)')
    ready.write("noxfile.py", text + "    print('size', size, session.posargs)\n")
    listed = ready.nox("--list").expect().out
    assert "* mine(size=1) -> What it is for." in listed
    out = ready.nox("-s", "mine", "--", "--check").expect().out
    assert [line for line in out.splitlines() if line.startswith("size")] == [
        "size 1 ['--check']",
        "size 2 ['--check']",
    ]


def test_the_next_session_finds_what_it_would_have_found_without(ready: Project) -> None:
    write(ready)
    text = (ready.folder / "noxfile.py").read_text(encoding="utf-8")
    ready.write("noxfile.py", text + AFTER)
    assert f"{ready.environment()['PATH']} None" in ready.nox("-s", "mine", "after").expect().out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('"absent"', 'AML_USAGE: no environment "absent" in aml.toml'),
        ('manifest="gone.toml"', "gone.toml: there is no such file"),
    ],
)
def test_a_fault_is_told_with_its_code_and_the_session_does_not_run(
    ready: Project, arguments: str, message: str
) -> None:
    write(ready, arguments=arguments)
    run = ready.nox("-s", "mine").expect(1)
    assert message in run.err
    assert "Traceback" not in run.err
    assert not (ready.folder / "seen.json").exists()


@pytest.mark.parametrize("words", [("-s", "mine"), ("-fb", "venv", "-s", "mine")], ids=["of-its-own", "forced"])
def test_a_session_with_an_environment_of_noxs_own_is_refused(ready: Project, words: tuple[str, ...]) -> None:
    """Nox would find programs there first: the session would seem to run in ours, and would not."""
    write(ready)
    if words[0] == "-s":
        text = (ready.folder / "noxfile.py").read_text(encoding="utf-8")
        ready.write("noxfile.py", text.replace('venv_backend="none"', 'venv_backend="venv"'))
    run = ready.nox(*words).expect(1)
    assert 'aml_nox.in_env: mine needs @nox.session(venv_backend="none")' in run.err
    assert not (ready.folder / "seen.json").exists()
