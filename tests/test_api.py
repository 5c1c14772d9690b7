"""`aml_nox.provision()`: an environment for a program of one's own, without nox."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.provisioning import directories

if TYPE_CHECKING:
    from tests.support.project import Project

pytest_plugins = ("tests.support.ready",)

ASK = "import aml_nox, json; print(json.dumps(aml_nox.provision({})))"
REFUSED = """
import aml_nox
try:
    aml_nox.provision("absent")
except aml_nox.AmlError as error:
    print(error.code, error.status, error.message)
"""


def test_it_makes_the_environment_and_gives_what_the_command_line_reports(project: Project) -> None:
    run = project.python("-c", ASK.format("")).expect()
    (environment,) = directories(project)
    found = json.loads(run.out)
    assert found["environment"]["python"] == str(environment / "bin" / "python")
    assert found["changed"] is True
    told = project.aml("provision", "--json", "-").expect().json()
    assert json.loads(project.python("-c", ASK.format("")).expect().out).items() <= told.items()


def test_it_takes_the_name_of_an_environment_and_a_manifest_relative_to_the_current_folder(ready: Project) -> None:
    ready.manifest(environments={"other": {"requirements": ["demo-gamma"]}})
    (ready.folder / "sub").mkdir()
    (ready.folder / "aml.toml").rename(ready.folder / "sub" / "own.toml")
    found = json.loads(ready.python("-c", ASK.format('"other", manifest="sub/own.toml"')).expect().out)
    assert found["environment"]["link"] == str(ready.folder / "sub" / "aml" / ".venv-other")


def test_a_fault_is_an_error_with_its_code_and_status(ready: Project) -> None:
    run = ready.python("-c", REFUSED).expect()
    assert run.out == 'AML_USAGE 2 no environment "absent" in aml.toml\n'
