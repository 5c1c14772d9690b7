"""Windows and macOS by their names: what would be looked for there is held here, where neither is at hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aml_nox import platforms
from tests.support.processes import run

NAMES = {
    ("Linux", "x86_64"): ("linux-x86_64", "x86_64-unknown-linux-gnu"),
    ("Linux", "aarch64"): ("linux-arm64", "aarch64-unknown-linux-gnu"),
    ("Linux", "arm64"): ("linux-arm64", "aarch64-unknown-linux-gnu"),
    ("Darwin", "x86_64"): ("macos-x86_64", "x86_64-apple-darwin"),
    ("Darwin", "arm64"): ("macos-arm64", "aarch64-apple-darwin"),
    ("Windows", "AMD64"): ("windows-x86_64", "x86_64-pc-windows-msvc"),
    ("Windows", "ARM64"): ("windows-arm64", "aarch64-pc-windows-msvc"),
    ("Linux", "riscv64"): ("linux-riscv64", None),
    ("FreeBSD", "amd64"): ("freebsd-x86_64", None),
    ("Windows", "x86"): ("windows-x86", None),
}


@pytest.mark.parametrize("machine", NAMES, ids="-".join)
def test_a_machine_has_the_manifests_name_and_uvs_own(machine: tuple[str, str]) -> None:
    """One without an archive of uv has a name all the same, for the message that it has none."""
    name, triple = NAMES[machine]
    assert platforms.name(*machine) == name
    assert platforms.triple(name) == triple


def test_this_machine_has_the_triple_that_its_uv_tells(uv_program: Path, fresh_home: Path) -> None:
    told = run(
        [uv_program, "self", "version", "--output-format", "json"], env={"HOME": str(fresh_home)}, cwd=fresh_home
    )
    assert platforms.triple(platforms.name()) == told.expect().json()["target_triple"]


@pytest.mark.parametrize(("windows", "name"), [(True, "uv.exe"), (False, "uv")])
def test_a_program_ends_as_its_system_wants(windows: bool, name: str) -> None:  # noqa: FBT001 - pytest passes it by name
    assert platforms.program("uv", windows=windows) == name


@pytest.mark.parametrize(("windows", "place"), [(True, "env/Scripts/python.exe"), (False, "env/bin/python")])
def test_an_environments_interpreter_lies_where_venv_puts_it(windows: bool, place: str) -> None:  # noqa: FBT001
    assert platforms.environment_python(Path("env"), windows=windows) == Path(place)


@pytest.mark.parametrize(("windows", "names"), [(True, ("python.exe",)), (False, ("python3.11", "python3", "python"))])
def test_an_interpreter_is_looked_for_by_the_names_it_has_there(windows: bool, names: tuple[str, ...]) -> None:  # noqa: FBT001
    assert platforms.search_names("3.11", windows=windows) == names


@pytest.mark.parametrize(("windows", "file", "separator"), [(True, "nul", ";"), (False, "/dev/null", ":")])
def test_the_empty_file_and_the_separator_are_the_systems(windows: bool, file: str, separator: str) -> None:  # noqa: FBT001
    assert platforms.null_file(windows=windows) == file
    assert platforms.path_separator(windows=windows) == separator


def test_nothing_said_means_this_machine(tmp_path: Path) -> None:
    windows = sys.platform == "win32"
    assert platforms.program("uv") == platforms.program("uv", windows=windows)
    assert platforms.environment_python(tmp_path) == platforms.environment_python(tmp_path, windows=windows)
    assert platforms.search_names("3.11") == platforms.search_names("3.11", windows=windows)
    assert platforms.null_file() == platforms.null_file(windows=windows)
    assert platforms.path_separator() == platforms.path_separator(windows=windows)
