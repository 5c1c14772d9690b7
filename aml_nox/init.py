"""A first aml.toml and noxfile.py for a project that has none."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aml_nox import store, tomlwriter, warm
from aml_nox.errors import AmlError, Code
from aml_nox.screen import Screen

_MANIFEST = """\
# What this project's environment is made of; `nox -s provision` makes it true on every machine.
[python]
version = "{python}"

[environment]
{requirements}

# [index]                          # where not uv's default one
# url = "https://index.example.com/simple"

# [train]                          # nox -s train
# script = "train.py"
"""
_NOXFILE = '''\
"""The sessions of this project; `nox -l` lists them."""

import aml_nox

aml_nox.register()
'''


def write(folder: Path, screen: Screen, *, force: bool) -> Mapping[str, Any]:
    """Write both files; a noxfile that is there is the user's and stays as it is.

    Raises:
        AmlError: AML_USAGE when there is an aml.toml already.

    """
    manifest, noxfile = folder / warm.MANIFEST, folder / "noxfile.py"
    if manifest.exists() and not force:
        raise AmlError(Code.USAGE, f"there is an {manifest.name} already", "edit it, or pass --force to write it anew")
    store.write_bytes(manifest, _manifest(folder).encode())
    written = [manifest]
    if noxfile.exists():
        screen.say("noxfile.py is there: add to it `import aml_nox`, and as its last line `aml_nox.register()`")
    else:
        store.write_bytes(noxfile, _NOXFILE.encode())
        written.append(noxfile)
    names = " and ".join(path.name for path in written)
    screen.say(f"wrote {names}; next: nox -s provision")
    return {"written": [str(path) for path in written]}


def _manifest(folder: Path) -> str:
    python = "{}.{}".format(*sys.version_info)
    known = (folder / "requirements.txt").is_file()
    key, values = ("requirements-files", ["requirements.txt"]) if known else ("requirements", [])
    return _MANIFEST.format(python=python, requirements=f"{key} = {tomlwriter.string_list(values)}")
