"""The nox sessions: what `aml_nox.register()` gives a noxfile, by the real nox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aml_nox.options import SESSIONS, VERBS
from tests.support.project import Project
from tests.support.provisioning import directories

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.processes import Run

pytest_plugins = ("tests.support.ready",)

DUMP = "import json, sys; json.dump(sys.argv[1:], open('argv.json', 'w'))"


def trains(project: Project, script: str = DUMP) -> Project:
    """Give the project a job."""
    project.write("train.py", script)
    project.manifest(train={"script": "train.py"})
    return project


def jobs(project: Project) -> list[Path]:
    return sorted(project.aml_root.glob("jobs/*"))


def said(run: Run) -> list[str]:
    """Give what nox said, without what it says of every session."""
    return [line for line in run.err.splitlines() if not line.startswith("nox > Running session")]


# --- what is registered


def test_nox_lists_each_session_with_what_it_does_and_runs_none_unasked(ready: Project) -> None:
    ready.write(
        "noxfile.py",
        "import nox, aml_nox\n\n@nox.session(venv_backend='none')\ndef mine(session): ...\n\naml_nox.register()\n",
    )
    lines = ready.nox("--list").expect().out.splitlines()
    for name in SESSIONS:
        assert f"- {name} [aml] -> aml-nox: {VERBS[name]}." in lines
    assert "* mine" in lines
    assert said(ready.nox().expect()) == ["nox > Session mine was successful."]


def test_a_project_is_begun_by_the_command_line_alone() -> None:
    """`init` writes the noxfile, so that no noxfile can have it."""
    assert set(VERBS) - set(SESSIONS) == {"init"}


def test_a_choice_a_prefix_and_tags_are_as_the_noxfile_says(ready: Project) -> None:
    register = "aml_nox.register(prefix='ml-', sessions=('plan', 'status'), tags=('ml', 'info'))"
    ready.write("noxfile.py", f"import aml_nox\n\n{register}\n")
    listed = [line.split(" -> ")[0] for line in ready.nox("--list").expect().out.splitlines() if " -> " in line]
    assert listed == ["- ml-plan [ml,info]", "- ml-status [ml,info]"]
    run = ready.nox("-t", "info").expect()
    assert [line for line in run.err.splitlines() if "Running" in line] == [
        "nox > Running session ml-plan",
        "nox > Running session ml-status",
    ]
    hint = said(ready.nox("-s", "ml-plan", "--", "--of").expect(1))[-1]
    assert hint == "  hint: `nox -s ml-plan -- --help` lists the options."


def test_a_choice_that_does_not_exist_stops_the_noxfile_and_names_those_that_do(ready: Project) -> None:
    ready.write("noxfile.py", "import aml_nox\n\naml_nox.register(sessions=['provison', 'lock'])\n")
    last = ready.nox("--list").expect(1).err.splitlines()[-1]
    assert last == f"ValueError: aml_nox has no session provison: it has {', '.join(SESSIONS)}"


@pytest.mark.parametrize("prefix", ["", "ml-"])
def test_a_name_that_the_noxfile_has_is_left_alone_with_one_line(ready: Project, prefix: str) -> None:
    own = f"@nox.session(name='{prefix}train', venv_backend='none')\ndef mine(session):\n    print('it is mine')\n"
    ready.write("noxfile.py", f"import nox, aml_nox\n\n{own}\naml_nox.register(prefix='{prefix}')\n")
    run = ready.nox("-s", f"{prefix}train").expect()
    assert run.out == "it is mine\n"
    assert said(run) == [
        f"aml-nox: this noxfile has its own session {prefix}train, it is left alone",
        f"nox > Session {prefix}train was successful.",
    ]


def test_two_projects_live_in_one_noxfile(ready: Project) -> None:
    lines = [f"aml_nox.register('{name}/aml.toml', prefix='{name}-')\n" for name in ("one", "two")]
    ready.write("noxfile.py", "import aml_nox\n\n" + "".join(lines))
    for name in ("one", "two"):
        (ready.folder / name).mkdir()
        (ready.folder / name / "aml.toml").write_text((ready.folder / "aml.toml").read_text())
    ready.nox("-s", "one-provision", "two-provision").expect()
    for name in ("one", "two"):
        assert (ready.folder / name / "aml" / ".venv" / "bin" / "python").exists()


def test_a_project_that_is_not_there_is_told_by_its_path(ready: Project) -> None:
    ready.write("noxfile.py", "import aml_nox\n\naml_nox.register('gone/aml.toml')\n")
    last = said(ready.nox("-s", "plan").expect(1))
    absent = ready.folder / "gone" / "aml.toml"
    assert last[0] == f"nox > Session plan aborted: AML_MANIFEST: {absent}: there is no such file"


# --- how nox is called


def test_a_noxfile_that_runs_itself_has_the_sessions_too(ready: Project) -> None:
    """`python noxfile.py` and `uv run noxfile.py` read the noxfile twice."""
    ready.write(
        "noxfile.py", "import nox, aml_nox\n\naml_nox.register()\n\nif __name__ == '__main__':\n    nox.main()\n"
    )
    run = ready.python("noxfile.py", "-s", "provision").expect()
    assert "environment default is ready" in run.err


def test_a_forced_backend_changes_nothing_of_ours(ready: Project) -> None:
    """Nox then makes a virtual environment for the session, in spite of what the session asks for."""
    run = ready.nox("-fb", "uv", "-s", "provision", "--", "--json", "-").expect()
    assert (ready.folder / ".nox" / "provision" / "bin" / "python").exists()
    assert run.json()["changed"] is False
    assert Path(run.json()["environment"]["path"]).parent == ready.aml_root / "envs"


def test_paths_of_the_user_are_relative_to_where_the_user_stands(ready: Project, tmp_path: Path) -> None:
    """The manifest of `register` is relative to the noxfile; those of `--manifest` and `--json` are the user's."""
    noxfile = ready.folder / "noxfile.py"
    (tmp_path / "aml.toml").write_text("[python]\nversion = 3.11\n")
    ready.nox("-f", noxfile, "-s", "provision", "--", "--json", "out.json", cwd=tmp_path).expect()
    lock = json.loads((tmp_path / "out.json").read_text())["lock"]["path"]
    assert lock == str(ready.folder / "pylock.toml")
    run = ready.nox("-f", noxfile, "-s", "plan", "--", "--manifest", "aml.toml", cwd=tmp_path).expect(1)
    assert "aml.toml:2: python.version:" in run.err


def test_sessions_in_parallel_share_one_build(project: Project) -> None:
    trains(project)
    project.nox("-j", "2", "-s", "provision", "train").expect()
    assert len(directories(project)) == 1
    assert len(jobs(project)) == 1


def test_install_only_makes_the_environment_and_runs_no_job(project: Project) -> None:
    """What --install-only would skip is the environment itself, were it made through `session.run`."""
    trains(project)
    run = project.nox("--install-only", "-s", "train", "--", "--json", "-").expect()
    assert "nox > nothing run: --install-only was given" in said(run)
    assert (run.json()["job"], run.json()["ok"]) == (None, True)
    assert (project.aml_root / ".venv" / "bin" / "python").exists()
    assert jobs(project) == []


# --- arguments


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        ((), []),
        (("--", "--lr", "0.1"), ["--lr", "0.1"]),
        (("--offline", "--", "--json", "-", "--force"), ["--json", "-", "--force"]),
        (("--", "a b", "%s", "{0}", "", "--", "é"), ["a b", "%s", "{0}", "", "--", "é"]),
    ],
)
def test_what_stands_behind_the_second_dashes_is_the_scripts(
    ready: Project, words: tuple[str, ...], argv: list[str]
) -> None:
    trains(ready).nox("-s", "train", "--", *words).expect()
    (job,) = jobs(ready)
    assert json.loads((job / "argv.json").read_text()) == argv


def test_env_names_the_environment(ready: Project) -> None:
    ready.manifest(environments={"x": {"requirements": ["demo-gamma"]}})
    trains(ready, "import demo_gamma").nox("-s", "provision", "train", "--", "--env", "x").expect()
    assert (ready.folder / "pylock.x.toml").exists()
    assert (ready.aml_root / ".venv-x" / "bin" / "python").exists()
    assert len(jobs(ready)) == 1


def test_help_is_printed_and_nothing_is_done(project: Project) -> None:
    run = project.nox("-s", *SESSIONS, "--", "--help", "--force", "--json", "-").expect()
    for name in SESSIONS:
        assert f"usage: nox -s {name} -- " in run.out
    assert "What stands behind -- is handed to the script." in run.out
    assert not project.aml_root.exists()


UNKNOWN = [
    ("provision", ["--forse"], "provision has no option --forse", "did you mean `nox -s provision -- --force`"),
    (
        "lock",
        ["--upgrade", "--upgrade-packag=x y"],
        "lock has no option --upgrade-packag=x y",
        "did you mean `nox -s lock -- --upgrade '--upgrade-package=x y'`",
    ),
    ("plan", ["x"], "plan has no argument x", "`nox -s plan -- --help` lists the options"),
    ("status", ["--env"], "argument --env: expected one argument", "`nox -s status -- --help` lists the options"),
    (
        "train",
        ["--lr", "0.1"],
        "train has no option --lr",
        "the script's own arguments stand behind --: `nox -s train -- -- --lr 0.1`",
    ),
    (
        "train",
        ["--env", "0.1", "--lr", "0.1", "--name", "a b"],
        "train has no option --lr",
        "the script's own arguments stand behind --: `nox -s train -- --env 0.1 -- --lr 0.1 --name 'a b'`",
    ),
]


@pytest.mark.parametrize(("session", "words", "message", "hint"), UNKNOWN)
def test_an_option_that_nobody_has_is_refused_with_the_corrected_command(
    ready: Project, session: str, words: list[str], message: str, hint: str
) -> None:
    """One line and a hint; nox puts a full stop behind whatever aborts a session."""
    run = ready.nox("-s", session, "--", *words).expect(1)
    assert said(run) == [f"nox > Session {session} aborted: AML_USAGE: {message}", f"  hint: {hint}."]


def test_options_of_other_sessions_are_passed_over_and_have_no_effect(ready: Project) -> None:
    """Nox hands the same arguments to every session."""
    trains(ready)
    run = ready.nox("-s", "provision", "train", "plan", "--", "--force", "--upgrade", "--", "--lr").expect()
    assert [line for line in said(run) if "building environment" in line] == [
        "nox > building environment default: --force"
    ]
    assert "nox > environment default: keep" in said(run)
    assert json.loads((jobs(ready)[0] / "argv.json").read_text()) == ["--lr"]


# --- faults

FAULTS: dict[str, tuple[str, Mapping[str, Mapping[str, object] | None]]] = {
    "AML_MANIFEST: aml.toml": ("plan", {"environment": {"requirements": ["demo alpha", "100%s", "{0}"]}}),
    "AML_MANIFEST: aml.toml has no [train] table": ("train", {}),
    "AML_RESOLUTION": ("lock", {"environment": {"requirements": ["demo-alpha==9"]}}),
    "AML_UV_MISSING": ("bootstrap", {"uv": {"source": "path", "path": "no %s {uv}"}}),
    "AML_JOB_FAILED": ("train", {"train": {"script": "fails.py"}}),
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_of_the_users_is_told_with_its_code_and_never_a_traceback(ready: Project, code: str) -> None:
    """Nox ends with 1 whatever the fault; the JSON alone is on stdout."""
    session, tables = FAULTS[code]
    ready.manifest(**tables)
    ready.write("fails.py", "raise SystemExit('100%s {0}')")
    run = ready.nox("-s", session, "--", "--json", "-").expect(1)
    (told,) = (line for line in run.err.splitlines() if line.startswith(f"nox > Session {session} aborted: "))
    assert told.startswith(f"nox > Session {session} aborted: {code}")
    assert "Traceback" not in run.err
    assert "Logging error" not in run.err
    report = run.json()
    assert (report["ok"], report["verb"], report["schema"]) == (False, session, 1)
    assert report["error"]["code"] == code.partition(":")[0]


def test_percent_signs_and_braces_in_paths_and_output_are_no_formats(project: Project) -> None:
    odd = project.folder.rename(project.folder.with_name("100%s {0} %(name)d é"))
    other = Project(folder=odd, home=project.home, uv_cache=project.uv_cache)
    trains(other, "print('100%s {0} %(x)d')")
    run = other.nox("-s", "provision", "train").expect()
    assert f"nox > environment default is ready: {odd}/aml/envs/" in run.err
    assert "\n100%s {0} %(x)d\n" in run.err
    assert "Logging error" not in run.err


def test_importing_the_package_imports_no_nox(ready: Project) -> None:
    """The command line works where the noxfile's nox is broken, and starts fast."""
    ready.python("-c", "import sys, aml_nox, aml_nox.__main__; assert 'nox' not in sys.modules").expect()
