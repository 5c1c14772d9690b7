"""A project as a user has it: a folder with aml.toml and noxfile.py, and the real programs run in it.

Each program gets an environment that the test chooses: nothing of the developer's machine decides a result.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tomlkit

from tests.support.processes import LIMIT, Run, Started, run, strace_execs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    #: Variables to set, or with None to remove.
    Changes = Mapping[str, str | None]

#: The interpreter that runs the tests, as a manifest asks for it.
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

NOXFILE = "import aml_nox\n\naml_nox.register()\n"

#: Of the caller's environment: how TLS works on this machine, where temporary files go, and coverage's own hand-over.
PASSED = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "UV_SYSTEM_CERTS"),
    *("TMPDIR", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"),
)


def hermetic(home: Path, uv_cache: Path) -> dict[str, str]:
    """Give the environment that all programs start from: this interpreter and the system's tools, nothing else."""
    bins = [str(Path(sys.executable).resolve().parent), "/usr/bin", "/bin"]
    base = {name: os.environ[name] for name in PASSED if name in os.environ}
    own = {"PATH": os.pathsep.join(bins), "HOME": str(home), "UV_CACHE_DIR": str(uv_cache), "LANG": "C.UTF-8"}
    return base | own | _source_path()


def _source_path() -> dict[str, str]:
    """Give the way to the package under test where it is not installed; an installed one needs none."""
    with suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution("aml-nox")
        return {}
    spec = importlib.util.find_spec("aml_nox")
    assert spec, "aml_nox cannot be imported"
    assert spec.origin, "aml_nox is a folder without __init__.py"
    return {"PYTHONPATH": str(Path(spec.origin).parents[1])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A folder with aml.toml and noxfile.py, and how to run things there."""

    folder: Path
    home: Path
    uv_cache: Path
    program: str = sys.executable
    started: list[Started] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        folder: Path,
        index_url: str,
        *,
        home: Path,
        uv_cache: Path,
        manifest: str | None = None,
        requirements: Sequence[str] = ("demo-alpha==1.0",),
        python: str = PYTHON,
    ) -> Self:
        """Write a project into *folder*; *manifest*, the whole text of aml.toml, goes before what the others say."""
        project = cls(folder=folder, home=home, uv_cache=uv_cache)
        tables = {
            "python": {"version": python},
            "index": {"url": index_url},
            "environment": {"requirements": [*requirements]},
        }
        project.write("aml.toml", tomlkit.dumps(tables) if manifest is None else manifest)
        project.write("noxfile.py", NOXFILE)
        return project

    @property
    def aml_root(self) -> Path:
        """Where the product keeps its state."""
        return self.folder / "aml"

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project, exactly this text."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        return path

    def manifest(self, **tables: Mapping[str, object] | None) -> Path:
        """Change aml.toml as it is now: ``manifest(uv={"source": "path", "version": None}, train=None)``.

        A key is set, or with None removed; a table is made where there is none, or with None removed whole.
        """
        path = self.folder / "aml.toml"
        known = tomllib.loads(path.read_text(encoding="utf-8"))
        changed = {name: _merged(known.get(name, {}), keys) for name, keys in tables.items() if keys is not None}
        kept = {name: keys for name, keys in (known | changed).items() if tables.get(name, keys) is not None}
        return self.write("aml.toml", tomlkit.dumps(kept))

    def environment(self, changes: Changes | None = None) -> dict[str, str]:
        """Give the hermetic environment with *changes*: a value sets, None removes."""
        whole = {**hermetic(self.home, self.uv_cache), **(changes or {})}
        return {name: value for name, value in whole.items() if value is not None}

    def nox(
        self,
        *args: str | Path,
        env: Changes | None = None,
        cwd: Path | None = None,
        limit: float = LIMIT,
    ) -> Run:
        """Run ``python -m nox ARGS`` to its end."""
        return self.python("-m", "nox", *args, env=env, cwd=cwd, limit=limit)

    def aml(
        self,
        *args: str | Path,
        env: Changes | None = None,
        cwd: Path | None = None,
        limit: float = LIMIT,
    ) -> Run:
        """Run ``python -m aml_nox ARGS`` to its end."""
        return self.python("-m", "aml_nox", *args, env=env, cwd=cwd, limit=limit)

    def python(
        self,
        *args: str | Path,
        env: Changes | None = None,
        cwd: Path | None = None,
        limit: float = LIMIT,
    ) -> Run:
        """Run the front end's Python, which is the tests' own where none is named, to its end."""
        return run([self.program, *args], env=self.environment(env), cwd=cwd or self.folder, limit=limit)

    def start_nox(self, *args: str | Path, env: Changes | None = None) -> Started:
        """Start ``python -m nox ARGS`` in a session of its own."""
        return self._start("-m", "nox", *args, env=env)

    def start_aml(self, *args: str | Path, env: Changes | None = None) -> Started:
        """Start ``python -m aml_nox ARGS`` in a session of its own."""
        return self._start("-m", "aml_nox", *args, env=env)

    def execs(self, *args: str | Path, env: Changes | None = None) -> list[str]:
        """Run ``python ARGS`` and give every program that was executed, Python first."""
        return strace_execs([self.program, *args], env=self.environment(env), cwd=self.folder)

    def close(self) -> None:
        """Kill what was started and never ended."""
        for process in self.started:
            with process:
                pass

    def _start(self, *args: str | Path, env: Changes | None) -> Started:
        process = Started([self.program, *args], env=self.environment(env), cwd=self.folder)
        self.started.append(process)
        return process


def _merged(old: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in {**old, **changes}.items() if value is not None}
