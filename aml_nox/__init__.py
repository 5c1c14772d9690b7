"""aml-nox: the same training environment on every machine, certified, for nox."""

from __future__ import annotations

from collections.abc import Sequence

from aml_nox.errors import AmlError

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported on the warm path
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["AmlError", "in_env", "provision", "register"]


def register(
    manifest: str = "aml.toml",
    prefix: str = "",
    sessions: Sequence[str] | None = None,
    tags: Sequence[str] = ("aml",),
) -> None:
    """Register the sessions of a project in a noxfile; call it last, so that the noxfile's own names win.

    `manifest` is relative to the noxfile. `sessions` is a choice among the verbs; all where it is left out.

    Raises:
        ValueError: `sessions` names one that does not exist.

    """
    from aml_nox import sessions as ours  # noqa: PLC0415 - importing the package must not import nox

    ours.register(manifest, prefix, sessions, tags)


def in_env(environment: str = "default", *, manifest: str = "aml.toml") -> Callable[[Any], Any]:
    """Decorate a session of your own so that it runs its programs in a provisioned environment.

    It stands below ``@nox.session(venv_backend="none")``. The environment is made ready first; then `session.run` finds
    its programs before all others, by PATH and VIRTUAL_ENV. `manifest` is relative to the noxfile.
    """
    from aml_nox import sessions as ours  # noqa: PLC0415 - importing the package must not import nox

    return ours.in_env(environment, manifest)


def provision(environment: str = "default", *, manifest: str = "aml.toml") -> Mapping[str, Any]:
    """Make an environment ready, for a program of your own that runs without nox.

    Returns what ``aml-nox provision --json`` reports: `["environment"]["python"]` is the interpreter to run. `manifest`
    is relative to the current folder; what people read goes to standard error.

    Raises:
        AmlError: with `code`, `message`, `hint` and the exit `status` of the command line.

    """
    from aml_nox import __main__ as ours  # noqa: PLC0415 - importing the package must import next to nothing

    return ours.provision(environment, manifest)
