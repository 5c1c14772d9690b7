"""Who builds an environment: uv, or where there is none, the interpreter's own venv and our pip, from the same file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aml_nox import diagnosis, installed, pip, process, store, uv
from aml_nox.context import Context
from aml_nox.errors import Code
from aml_nox.interpreter import Interpreter
from aml_nox.manifest import Environment

# Older uv patches distutils in each of its environments; the same lock gives the same bytes by every uv.
_PATCHES = ("_virtualenv.pth", "_virtualenv.py")
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

    def refetch(self, ctx: Context, python: Path, requirements: Path) -> None:
        """Install a hashed requirements file over what is there, from the index and not from a cache."""
        ...

    def install_editable(self, ctx: Context, python: Path, project: Path) -> None:
        """Install a project in place, without what it depends on: that came from the lock."""
        ...


@dataclass(frozen=True, slots=True)
class UvBackend:
    """uv."""

    tool: uv.Uv
    environment: Environment

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"backend": "uv", "uv": {"version": self.tool.version, "source": self.tool.source}}

    def make(self, ctx: Context, interpreter: Interpreter, path: Path) -> None:
        argv: list[str | Path] = ["venv", path, "-p", interpreter.path, "--no-project", "--no-python-downloads"]
        limit = ctx.manifest.timeouts.venv
        uv.call(ctx, self.tool, [*argv, "--quiet"], step=_STEP, limit=limit, otherwise=Code.VENV_FAILED)
        for name in _PATCHES:
            store.remove(installed.site_packages(path) / name)

    def install(self, ctx: Context, python: Path, requirements: Path) -> None:
        words: list[str | Path] = ["sync", requirements, "--require-hashes", "--allow-empty-requirements"]
        self._pip(ctx, python, words, "installing")

    def refetch(self, ctx: Context, python: Path, requirements: Path) -> None:
        words: list[str | Path] = ["install", "-r", requirements, "--require-hashes", "--no-deps", "--reinstall"]
        self._pip(ctx, python, [*words, "--no-cache"], "fetching past the cache")

    def install_editable(self, ctx: Context, python: Path, project: Path) -> None:
        argv: list[str | Path] = ["pip", "install", "-p", python, "--no-python-downloads", "--no-deps", "-e", project]
        limit = ctx.manifest.timeouts.install
        argv += ["--no-sources", *_link_mode(self.environment), *uv.index_flags(ctx)]
        uv.call(ctx, self.tool, argv, step=f"installing {project}", limit=limit, otherwise=Code.VENV_FAILED)

    def _pip(self, ctx: Context, python: Path, words: Sequence[str | Path], step: str) -> None:
        argv: list[str | Path] = ["pip", *words, "-p", python, "--no-python-downloads", *builds(self.environment)]
        if self.environment.torch_backend:
            argv += ["--torch-backend", self.environment.torch_backend]
        argv += [*_link_mode(self.environment), *uv.index_flags(ctx)]
        uv.call(ctx, self.tool, argv, step=step, limit=ctx.manifest.timeouts.install, otherwise=Code.FETCH)


def builds(environment: Environment) -> list[str]:
    """Wheels alone, but for what the manifest allows to be built; uv and pip share these words."""
    return ["--only-binary", ":all:", *(word for name in environment.allow_build for word in ("--no-binary", name))]


def _link_mode(environment: Environment) -> list[str]:
    return ["--link-mode", environment.link_mode] if environment.link_mode else []


@dataclass(frozen=True, slots=True)
class PipBackend:
    """The standard library's venv, and pip from outside: the environment itself has none, as with uv."""

    environment: Environment

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
        pip.install(ctx, python, requirements, builds(self.environment))

    def refetch(self, ctx: Context, python: Path, requirements: Path) -> None:
        pip.install(ctx, python, requirements, builds(self.environment), anew=True)

    def install_editable(self, ctx: Context, python: Path, project: Path) -> None:
        pip.install_editable(ctx, python, project)
