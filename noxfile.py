"""The sessions of this repository: its own checks, and the plugin's on the embedded example."""

from __future__ import annotations

import nox

import aml_nox

nox.options.sessions = ["tests", "lint", "typing"]
nox.options.default_venv_backend = "uv|venv"


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, in parallel, with branch coverage."""
    session.install("-e", ".[test,uv]")
    session.run("pytest", "-n", "auto", *session.posargs)


aml_nox.register()
