"""The sessions of this repository: its own checks, and the plugin's on the embedded example."""

from __future__ import annotations

import nox

import aml_nox

nox.options.sessions = ["tests", "lint", "typing"]
nox.options.reuse_existing_virtualenvs = True

LINTERS = ("mypy==2.4.1", "ruff==0.17.6")
TYPES = ("types-jsonschema",)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, in parallel; the slow ones last."""
    session.install("-e", ".[test,uv]")
    session.run("pytest", "-n", "auto", *session.posargs)


@nox.session(default=False)
def coverage(session: nox.Session) -> None:
    """Measure branch coverage; programs that run as another user cannot write its data, and say so."""
    session.install("-e", ".[test,uv]")
    session.run("pytest", "-n", "auto", "--cov", "--cov-report=term", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Hold the style."""
    session.install(*LINTERS)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def typing(session: nox.Session) -> None:
    """Hold the types, the tests' too."""
    session.install("-e", ".[test,uv]", *LINTERS, *TYPES)
    session.run("mypy")


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Repeat the kills and races in large counts: minutes, not for every change."""
    session.install("-e", ".[test,uv]")
    session.run("pytest", "-n", "auto", "-m", "slow", *session.posargs, env={"AML_TEST_COUNT": "50"})


aml_nox.register()
