"""Scripts of an environment, reduced to what they mean: an installer writes the environment's own path into them.

uv and pip make a program of a console or GUI entry point (the entry points specification) by a template of their own,
and put a line with the path of the interpreter before it. Two environments of the same packages differ in nothing else.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import re
from collections.abc import Collection
from pathlib import Path

_SECTIONS = ("console_scripts", "gui_scripts")
_UV = """\
# -*- coding: utf-8 -*-
import sys
from {module} import {name}
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit({function}())
"""
_PIP = """\
import sys
from {module} import {name}
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit({function}())
"""
_TEMPLATES = (_UV, _PIP)
_REFERENCE = re.compile(r"[\w.]+:[\w.]+")


def entry_points(text: str) -> frozenset[str]:
    """The references `module:attribute` of an entry_points.txt for which installers make programs."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return frozenset()
    values = [value for section in _SECTIONS if parser.has_section(section) for value in parser[section].values()]
    references = (re.sub(r"\s+", "", value.partition("[")[0]) for value in values if value)
    return frozenset(one for one in references if _REFERENCE.fullmatch(one))


def meaning(data: bytes, environment: Path, references: Collection[str]) -> str | None:
    """What a script means: `launcher:module:attribute`, or `script:` and the sha256 of what follows its first line.

    None where the first line does not name this environment's interpreter: only that path is taken out, for a script
    that starts another interpreter is another script.
    """
    body = _without_path(data, environment)
    if body is None:
        return None
    for reference in references:
        if body in _bodies(reference):
            return f"launcher:{reference}"
    return f"script:{hashlib.sha256(body).hexdigest()}"


def _bodies(reference: str) -> set[bytes]:
    module, _, function = reference.partition(":")
    name = function.partition(".")[0]
    return {template.format(module=module, name=name, function=function).encode() for template in _TEMPLATES}


def _without_path(data: bytes, environment: Path) -> bytes | None:
    """The script below the lines that name the environment's interpreter; None where it names none."""
    for folder in ("bin", "Scripts"):
        for program in ("python", "python3", "python.exe", "pythonw.exe"):
            for first in _firsts(str(environment / folder / program)):
                if data.startswith(first):
                    return data[len(first) :]
    return None


def _firsts(path: str) -> tuple[bytes, ...]:
    """The ways to name an interpreter; the longer ones are for paths with a space, or too long for the kernel."""
    single = path.replace("'", "'\"'\"'")
    quoted = (f'"{path}"', f"'{single}'", path)
    shell = [f"#!/bin/sh\n'''exec' {one} \"$0\" \"$@\"\n' '''\n" for one in quoted]
    return tuple(os.fsencode(one) for one in (f"#!{path}\n", f'#!"{path}"\n', *shell))
