"""Who builds an environment: uv, or where there is none, the interpreter's own venv and our pip, from the same file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aml_nox import diagnosis, pip, process, uv
from aml_nox.context import Context
from aml_nox.errors import Code
from aml_nox.interpreter import Interpreter

_STEP = "making the virtual environment"


class Backend(Protocol):
    """A builder. Both leave the same distributions; launchers and bookkeeping differ."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a marker tells of it."""
        ...

    def make(self, ctx: Context, interpreter: Interpreter, path: Path) -> None:
        """Make an empty virtual environment in a directory that is there and empty."""
        ...

    def install(self, ctx: Context, python: Path, requirements: Path) -> None:
        """Install a hashed requirements file; `python` is the environment's program."""
        ...


@dataclass(frozen=True, slots=True)
class UvBackend:
    """uv."""

    tool: uv.Uv

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"backend": "uv", "uv": {"version": self.tool.version, "source": self.tool.source}}

    def make(self, ctx: Context, interpreter: Interpreter, path: Path) -> None:
        argv: list[str | Path] = ["venv", path, "-p", interpreter.path, "--no-project", "--no-python-downloads"]
        limit = ctx.manifest.timeouts.venv
        uv.call(ctx, self.tool, [*argv, "--quiet"], step=_STEP, limit=limit, otherwise=Code.VENV_FAILED)

    def install(self, ctx: Context, python: Path, requirements: Path) -> None:
        argv: list[str | Path] = ["pip", "sync", requirements, "-p", python, "--require-hashes", "--no-build"]
        argv += ["--no-python-downloads", "--allow-empty-requirements", *uv.index_flags(ctx)]
        limit = ctx.manifest.timeouts.install
        uv.call(ctx, self.tool, argv, step="installing", limit=limit, otherwise=Code.FETCH)


@dataclass(frozen=True, slots=True)
class PipBackend:
    """The standard library's venv, and pip from outside: the environment itself has none, as with uv."""

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"backend": "pip", "uv": None}

    def make(self, ctx: Context, interpreter: Interpreter, path: Path) -> None:
        # -I: a venv.py in the project's folder is not the module that is meant.
        argv: list[str | Path] = [interpreter.path, "-I", "-m", "venv", "--without-pip", path]
        limit = ctx.manifest.timeouts.venv
        done = process.run(argv, env=process.hermetic(ctx.environ), cwd=ctx.root.folder, limit=limit, screen=ctx.screen)
        if done.timed_out or done.status:
            raise diagnosis.failure(ctx, done, step=_STEP, limit=limit, otherwise=Code.VENV_FAILED)

    def install(self, ctx: Context, python: Path, requirements: Path) -> None:
        pip.install(ctx, python, requirements)
