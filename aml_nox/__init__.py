"""aml-nox: the same training environment on every machine, certified, for nox."""

from __future__ import annotations

from collections.abc import Sequence

from aml_nox.errors import AmlError

__all__ = ["AmlError", "register"]


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
