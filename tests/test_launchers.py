"""Programs of an environment count by what they mean; whatever else is in one of them counts by its bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from aml_nox import launchers

HERE = Path("/somewhere/an environment")
PYTHON = f"{HERE}/bin/python"
UV = """\
# -*- coding: utf-8 -*-
import sys
from pkg.cli import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
"""
PIP = """\
import sys
from pkg.cli import main
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(main())
"""
BODIES = pytest.mark.parametrize("body", [UV, PIP], ids=["uv", "pip"])
FIRSTS = {
    "direct": f"#!{PYTHON}\n",
    "quoted": f'#!"{PYTHON}"\n',
    "uv's for a space": f"#!/bin/sh\n'''exec' '{PYTHON}' \"$0\" \"$@\"\n' '''\n",
    "pip's for a space": f"#!/bin/sh\n'''exec' \"{PYTHON}\" \"$0\" \"$@\"\n' '''\n",
    "pip's for a long path": f"#!/bin/sh\n'''exec' {PYTHON} \"$0\" \"$@\"\n' '''\n",
    "Windows": f"#!{HERE}/Scripts/python.exe\n",
}


def meaning(text: str, *references: str, here: Path = HERE) -> str | None:
    return launchers.meaning(text.encode(), here, references)


@BODIES
@pytest.mark.parametrize("first", FIRSTS.values(), ids=FIRSTS)
def test_an_entry_points_program_is_the_reference_by_whatever_installer_and_in_whatever_place(
    first: str, body: str
) -> None:
    assert meaning(first + body, "other:main", "pkg.cli:main") == "launcher:pkg.cli:main"


def test_a_path_with_an_apostrophe_is_quoted_as_a_shell_wants_it() -> None:
    here = Path("/it's here")
    first = "#!/bin/sh\n'''exec' '/it'\"'\"'s here/bin/python' \"$0\" \"$@\"\n' '''\n"
    assert meaning(first + UV, "pkg.cli:main", here=here) == "launcher:pkg.cli:main"


@BODIES
def test_an_attribute_of_an_object_is_called_on_the_imported_name(body: str) -> None:
    text = FIRSTS["direct"] + body.replace("exit(main())", "exit(main.run())")
    assert meaning(text, "pkg.cli:main.run") == "launcher:pkg.cli:main.run"
    assert str(meaning(text, "pkg.cli:main")).startswith("script:")


@BODIES
@pytest.mark.parametrize(
    "change",
    [
        lambda body: body + "\n",
        lambda body: body.replace("sys.exit", "import evil; sys.exit"),
        lambda body: body.replace("pkg.cli", "pkg.evil"),
        lambda body: body.replace("\n", "\r\n"),
        lambda body: body[:-1],
    ],
    ids=["a line more", "a statement", "another module", "other line ends", "no last line end"],
)
def test_any_other_body_counts_by_its_bytes(body: str, change: object) -> None:
    assert callable(change)
    changed = change(body)
    assert meaning(FIRSTS["direct"] + changed, "pkg.cli:main") == script(changed)


@BODIES
def test_a_program_of_no_entry_point_counts_by_its_bytes(body: str) -> None:
    assert meaning(FIRSTS["direct"] + body, "pkg.cli:other") == script(body)
    assert meaning(FIRSTS["direct"] + body) == script(body)


@pytest.mark.parametrize("first", FIRSTS.values(), ids=FIRSTS)
def test_a_script_counts_by_what_follows_the_interpreters_path(first: str) -> None:
    assert meaning(f"{first}print()\n") == script("print()\n")


@pytest.mark.parametrize(
    "first",
    [
        "",
        "#!/usr/bin/python3\n",
        "#!/usr/bin/env python3\n",
        "#!/bin/sh\n",
        "#!python\n",
        f"#!{PYTHON} -u\n",
        f"#! {PYTHON}\n",
        f"#!{PYTHON}\r\n",
        f"#!{PYTHON}x\n",
        f"#!{HERE}/bin/other\n",
        f"#!{HERE}/bin/../../evil/bin/python\n",
        "#!/somewhere/another environment/bin/python\n",
        f"\n#!{PYTHON}\n",
        f"#!/bin/sh\nevil\n'''exec' '{PYTHON}' \"$0\" \"$@\"\n' '''\n",
        f"#!/bin/sh\n'''exec' '{PYTHON}' -c evil \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_a_script_that_starts_anything_else_is_only_itself(first: str) -> None:
    assert meaning(first + UV, "pkg.cli:main") is None


def test_a_binary_is_only_itself() -> None:
    assert launchers.meaning(b"\x7fELF\0", HERE, ["pkg:main"]) is None


@pytest.mark.parametrize(
    ("text", "references"),
    [
        ("", set()),
        ("[console_scripts]\na = pkg.cli:main\n", {"pkg.cli:main"}),
        ("[gui_scripts]\na=pkg.cli:main\n", {"pkg.cli:main"}),
        ("[console_scripts]\na = pkg.cli : main.run [extra]\nb = é:é\n", {"pkg.cli:main.run", "é:é"}),
        ("[console_scripts]\nA = x:y\na = x:z\n", {"x:z"}),
        ("[other]\na = pkg:main\n", set()),
        ("[console_scripts]\na = pkg\nb =\nc = pkg:\nd = pkg:main()\ne = pkg:a b:c\n", set()),
        ("a = pkg:main\n", set()),
        ("[console_scripts]\na = pkg:main\n  evil\n", {"pkg:mainevil"}),
        ("[console_scripts]\na = %(x)s:y\n", set()),
        ("[console_scripts\n", set()),
    ],
)
def test_entry_points_are_the_references_of_programs_that_installers_make(text: str, references: set[str]) -> None:
    assert launchers.entry_points(text) == references


def script(body: str) -> str:
    return f"script:{hashlib.sha256(body.encode()).hexdigest()}"
