"""The nox sessions. The only file that imports nox: each session is a call of the same engine as the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import nox
import nox.registry

from aml_nox import front, options
from aml_nox.calls import Call
from aml_nox.screen import Screen, ensure_streams, put


def register(manifest: str, prefix: str, sessions: Sequence[str] | None, tags: Sequence[str]) -> None:
    """Register the chosen sessions; nox has changed to the noxfile's folder before it reads the noxfile."""
    chosen = options.SESSIONS if sessions is None else tuple(sessions)
    if unknown := [name for name in chosen if name not in options.SESSIONS]:
        message = f"aml_nox has no session {', '.join(unknown)}: it has {', '.join(options.SESSIONS)}"
        raise ValueError(message)
    ensure_streams()
    path = Path.cwd() / manifest
    taken = nox.registry.get()
    for verb in chosen:
        name = prefix + verb
        if name in taken:
            put(sys.stderr, f"aml-nox: this noxfile has its own session {name}, it is left alone\n")
        else:
            _register(verb, name, path, tags)


def _register(verb: str, name: str, manifest: Path, tags: Sequence[str]) -> None:
    def session(session: nox.Session) -> None:
        _run(session, verb, name, manifest)

    session.__doc__ = f"aml-nox: {options.VERBS[verb]}."
    # No requires=: nox hands the same arguments to every session, so each sees to what it needs itself.
    decorate = nox.session(name=name, tags=list(tags), default=False, venv_backend="none", allow_parallel=True)
    decorate(session)


class _Ask:
    """A function for `session.run`, which alone knows of --install-only; nox prints it by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return self._name

    def __call__(self) -> bool:
        return True


def _run(session: nox.Session, verb: str, name: str, manifest: Path) -> None:
    call = Call(
        verb=verb,
        argv=session.posargs,
        command=f"nox -s {name} --",
        manifest=str(manifest),
        cwd=session.invoked_from,
        environ=os.environ,
        screen=Screen(session.log, live=sys.stderr.isatty()),
        lenient=True,
        may_run=lambda: _would_run(session, name),
    )
    error = front.execute(call)
    if error is not None:
        session.error("\n".join(error.lines()))


def _would_run(session: nox.Session, name: str) -> bool:
    # nox takes a function here (its _run_func), which its types do not tell.
    return session.run(_Ask(name)) is not None  # type: ignore[call-overload]
