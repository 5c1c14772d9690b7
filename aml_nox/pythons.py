"""Interpreters that uv installs into the AML root: never on PATH, never into the home directory."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aml_nox import download, store, uv
from aml_nox.context import Context
from aml_nox.errors import AmlError, Code
from aml_nox.uv import Uv
from aml_nox.versions import PythonRequest

_SHA256 = re.compile(r"[0-9a-f]{64}")


def held(ctx: Context) -> AbstractContextManager[None]:
    """The lock under which interpreters are installed: look again after getting it."""
    wait = ctx.manifest.timeouts.lock_wait
    return store.lock(ctx.root, "pythons", what="the interpreters", wait=wait, screen=ctx.screen)


def install(ctx: Context, tool: Uv, words: str, request: PythonRequest | None) -> None:
    """Let uv install an interpreter for a version request, of which none that lies there is of use; see `held`.

    Raises:
        AmlError: AML_UV_PYTHON_FAILED with uv's words, AML_FETCH, AML_INTEGRITY, AML_TIMEOUT.

    """
    broken = _broken(ctx, words, request)
    ctx.say(f"installing Python {words} into {ctx.root.pythons}" + (", which holds a broken one" if broken else ""))
    with tempfile.TemporaryDirectory() as folder:
        argv: list[str | Path] = ["python", "install", words, "--no-bin", "--install-dir", ctx.root.pythons]
        # By the folder's name alone uv takes one for installed.
        argv += [*(["--reinstall"] if broken else []), *_source(ctx, Path(folder))]
        limit = ctx.manifest.timeouts.python
        uv.call(ctx, tool, argv, step=f"installing Python {words}", limit=limit, otherwise=Code.UV_PYTHON_FAILED)


def _broken(ctx: Context, words: str, request: PythonRequest | None) -> bool:
    """Whether a folder is there that by its name (``cpython-3.11.7-linux-x86_64-gnu``) is what is asked for."""
    names = [path.name.split("-") for path in ctx.root.pythons.glob("*-*-*") if not path.is_symlink()]
    return any(request.accepts(name[1]) if request else name[1].startswith(words) for name in names)


def _source(ctx: Context, folder: Path) -> list[str | Path]:
    """Where uv takes the archive from, when not from its own list and host."""
    python = ctx.manifest.python
    flags: list[str | Path] = ["--mirror", python.mirror] if python.mirror else []
    if python.downloads_json:
        flags += ["--python-downloads-json-url", _checked_list(ctx, python.downloads_json, folder)]
    return flags


def _checked_list(ctx: Context, place: str, folder: Path) -> Path:
    """The list of builds as a file of ours: what was checked is what uv reads."""
    copy = folder / "downloads.json"
    scheme = urlsplit(place).scheme
    if ctx.offline and scheme in {"http", "https"}:
        message = f"python.downloads-json: {place} cannot be fetched: --offline allows no request"
        raise AmlError(Code.FETCH, message, "run once without --offline, or name a file")
    if scheme in download.SCHEMES:
        download.fetch(place, copy, limit=ctx.manifest.timeouts.python, environ=ctx.environ)
    else:
        copy.write_bytes(_read(ctx, place))
    unhashed = _without_digest(place, copy.read_bytes())
    if unhashed:
        message = f"python.downloads-json: {place} has no sha256 for {', '.join(unhashed[:3])}"
        raise AmlError(Code.INTEGRITY, message, "uv would not verify such a download: add the digests")
    return copy


def _read(ctx: Context, place: str) -> bytes:
    try:
        return (ctx.root.folder / place).read_bytes()
    except OSError as error:
        message = f"python.downloads-json: {place} cannot be read: {error.strerror}"
        raise AmlError(Code.MANIFEST, message, "correct the path; it is relative to aml.toml") from None


def _without_digest(place: str, data: bytes) -> list[str]:
    try:
        entries: dict[str, Any] = json.loads(data)
        return sorted(name for name, entry in entries.items() if not _SHA256.fullmatch(str(entry.get("sha256"))))
    except (ValueError, AttributeError):
        message = f"python.downloads-json: {place} is not a list of builds as uv reads it"
        raise AmlError(
            Code.MANIFEST, message, "it is a JSON object: key, then url, sha256 and what the build is"
        ) from None
