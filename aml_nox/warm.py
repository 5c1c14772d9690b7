"""Is everything ready? The question that both front ends ask first, answered without parsing or starting anything.

It imports only os, sys, json and hashlib, so that a warm run costs what an empty session costs. A provision that
succeeded leaves an observation of all that could make it untrue: contents of the small files, stats (with ctime, which
no tool sets back) of the large ones, the names in site-packages. All equal: nothing needs doing.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections.abc would be a fifth of the warm run
    from collections.abc import Mapping
    from typing import Any

SCHEMA = 1
DEFAULT = "default"
MANIFEST = "aml.toml"


def to_json(value: Mapping[str, Any]) -> str:
    """JSON as every record and report is written: strict, sorted, with the schema's number.

    It is ASCII, so that no encoding of a terminal and no path that is not UTF-8 stands in its way.
    """
    return json.dumps({"schema": SCHEMA, **value}, sort_keys=True, allow_nan=False, indent=1)


def find_manifest(start: str) -> str | None:
    """The nearest aml.toml from `start` upward."""
    folder = os.path.abspath(start)
    while True:
        candidate = os.path.join(folder, MANIFEST)
        if os.path.isfile(candidate):
            return candidate
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def root_path(folder: str, environ: Mapping[str, str]) -> str:
    """The AML root of a project folder; AML_ROOT moves it, relative to the folder."""
    return os.path.normpath(os.path.join(os.path.realpath(folder), environ.get("AML_ROOT") or "aml"))


def lock_name(environment: str) -> str:
    """The lock of an environment, beside aml.toml (PEP 751 fixes the form of the name)."""
    return "pylock.toml" if environment == DEFAULT else f"pylock.{environment}.toml"


def link_name(environment: str) -> str:
    """The link in the AML root that people and editors follow."""
    return ".venv" if environment == DEFAULT else f".venv-{environment}"


def stat(path: str) -> list[int] | None:
    """Size, times and identity of what `path` leads to; None where there is nothing."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_mode]


def sha256(path: str) -> str | None:
    """The digest of a small file's content; None where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return None


def names(folder: str) -> list[str] | None:
    """What lies in a site-packages folder, but for bytecode."""
    try:
        return sorted(name for name in os.listdir(folder) if name != "__pycache__")
    except OSError:
        return None


def ready_name(
    manifest_sha256: str | None, lock_sha256: str | None, environment: str, environ: Mapping[str, str]
) -> str:
    """An observation's file, named by what manifest and lock hold: a branch switched back finds its own."""
    parts = [manifest_sha256, lock_sha256, environment, environ.get("AML_UV_PYTHON", "")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest() + ".json"


def observe(root: str, folder: str, watched: Mapping[str, Any]) -> dict[str, Any]:
    """What is true now of the watched paths: `files`, `wheels` beside aml.toml, `stats` and `site` in the root."""
    return {
        "files": {name: sha256(os.path.join(folder, name)) for name in watched["files"]},
        "wheels": {name: stat(os.path.join(folder, name)) for name in watched["wheels"]},
        "stats": {name: stat(os.path.join(root, name)) for name in watched["stats"]},
        "names": names(os.path.join(root, watched["site"])),
    }


def check(manifest: str, environment: str, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """The report of a ready environment (see `report`), or None: then somebody has to look closer."""
    folder = os.path.realpath(os.path.dirname(manifest) or ".")
    root = root_path(folder, environ)
    lock = sha256(os.path.join(folder, lock_name(environment)))
    name = ready_name(sha256(manifest), lock, environment, environ)
    try:
        with open(os.path.join(root, "runtime", "ready", name), "rb") as stream:
            ready = json.load(stream)
        if ready["schema"] != SCHEMA or ready["root"] != os.path.realpath(root):
            return None
        if ready["observed"] != observe(root, folder, ready["watched"]):
            return None
        switched = switch(os.path.join(root, link_name(environment)), ready["environment"]["path"])
        if switched and ready["observed"] != observe(root, folder, ready["watched"]):  # `clean` was taking it
            return None
        return report(root, folder, environment, ready["environment"], switched=switched)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def report(root: str, folder: str, name: str, facts: Mapping[str, Any], *, switched: bool) -> dict[str, Any]:
    """What `provision` tells of an environment; `facts` holds paths as records do, relative to the root."""
    absolute = {key: os.path.join(root, facts[key]) for key in ("path", "python")}
    environment = {**facts, **absolute, "name": name, "link": os.path.join(root, link_name(name))}
    lock = {"path": os.path.join(folder, lock_name(name)), "changed": False}
    return {"environment": environment, "changed": False, "switched": switched, "reasons": [], "lock": lock}


def switch(link: str, target: str) -> bool:
    """Let the link point to `target` (relative to it); whether that was needed. The one thing that is written here.

    Raises:
        FileExistsError: something that is not a link stands there.

    """
    wanted = target if sys.platform != "win32" else os.path.join(os.path.dirname(link), target)
    try:
        if os.readlink(link).removeprefix("\\\\?\\") == wanted:
            return False
    except FileNotFoundError:
        pass
    except OSError as error:
        if not os.path.lexists(link):  # the folder cannot be looked into
            raise
        raise FileExistsError(error.errno, "not a link of aml-nox", link) from error
    _point(link, wanted)
    return True


if sys.platform == "win32":  # not tried: no Windows machine at hand

    def _point(link: str, target: str) -> None:
        """A junction needs no privilege; it holds an absolute path and cannot be replaced in one step."""
        import _winapi  # noqa: PLC0415 - Windows only

        if os.path.lexists(link):
            os.rmdir(link)
        _winapi.CreateJunction(os.path.normpath(target), link)

else:

    def _point(link: str, target: str) -> None:
        temporary = f"{link}.{os.urandom(4).hex()}"  # not our number: another machine may share the folder
        os.symlink(target, temporary)
        try:
            os.replace(temporary, link)
        except OSError:  # a folder came to stand there
            os.unlink(temporary)
            raise
