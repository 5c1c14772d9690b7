"""The nox sessions. The only file that imports nox: each session is a call of the same engine as the command line."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Concatenate, ParamSpec

import nox
import nox.registry

from aml_nox import front, options
from aml_nox.calls import Call
from aml_nox.errors import AmlError
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
    call = _call(session, verb, session.posargs, manifest, command=f"nox -s {name} --")
    call = replace(call, lenient=True, may_run=lambda: _would_run(session, name))
    error = front.execute(call)
    if error is not None:
        session.error("\n".join(error.lines()))


def _call(session: nox.Session, verb: str, argv: Sequence[str], manifest: Path, *, command: str) -> Call:
    return Call(
        verb=verb,
        argv=argv,
        command=command,
        manifest=str(manifest),
        cwd=session.invoked_from,
        environ=os.environ,
        screen=Screen(session.log, live=sys.stderr.isatty()),
    )


def _would_run(session: nox.Session, name: str) -> bool:
    # nox takes a function here (its _run_func), which its types do not tell.
    return session.run(_Ask(name)) is not None  # type: ignore[call-overload]


# --- sessions of the user's own

P = ParamSpec("P")
Function = Callable[Concatenate[nox.Session, P], None]


def in_env(environment: str, manifest: str) -> Callable[[Function[P]], Function[P]]:
    """Let a session of the user's own run its programs in a provisioned environment."""
    path = Path.cwd() / manifest

    def decorate(function: Function[P]) -> Function[P]:
        @functools.wraps(function)
        def session(session: nox.Session, /, *args: P.args, **kwargs: P.kwargs) -> None:
            with _entered(session, _provision(session, environment, path)):
                function(session, *args, **kwargs)

        return session

    return decorate


def _provision(session: nox.Session, environment: str, manifest: Path) -> Path:
    """Make the environment ready; its interpreter."""
    if session.venv_backend != "none":
        session.error(f'aml_nox.in_env: {session.name} needs @nox.session(venv_backend="none"), or nox\'s comes first')
    argv = ["--env", environment]
    call = _call(session, "provision", argv, manifest, command=f"aml-nox provision --env {environment}")
    try:
        outcome = front.perform(call)
    except AmlError as error:
        session.error("\n".join(error.lines()))
    if outcome is None or outcome.error is not None:
        session.error("\n".join(outcome.error.lines()) if outcome and outcome.error else "nothing was provisioned")
    return Path(outcome.values["environment"]["python"])


@contextmanager
def _entered(session: nox.Session, python: Path) -> Iterator[None]:
    """Put the environment before everything else that a program is looked for in.

    By `session.env` for what is started, also without the outer environment; by our own for nox, which looks a program
    up in the PATH of its own process. Sessions that run at once are processes of their own.
    """
    path = os.pathsep.join(filter(None, [str(python.parent), os.environ.get("PATH", os.defpath)]))
    ours = {"PATH": path, "VIRTUAL_ENV": str(python.parents[1])}
    session.env.update(ours)
    before = {name: os.environ.get(name) for name in ours}
    _set(ours)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
