"""A front end's call and what comes of it; free of imports that a warm run would have to pay for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aml_nox import warm
from aml_nox.errors import AmlError
from aml_nox.options import Options
from aml_nox.screen import Screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A front end's call: the verb, its arguments, and how the user wrote the command.

    `manifest` is used where no option names one; None looks for it from `cwd` upward. `may_run` says whether the job
    itself is to be run; it is asked when all is ready for it.
    """

    verb: str
    argv: Sequence[str]
    command: str
    manifest: str | None
    cwd: str
    environ: Mapping[str, str]
    screen: Screen
    lenient: bool = False
    may_run: Callable[[], bool] = lambda: True

    def manifest_path(self, chosen: Options) -> str | None:
        """The aml.toml that was named, or the nearest upward."""
        if chosen.manifest:
            return os.path.join(self.cwd, chosen.manifest)  # noqa: PTH118 - pathlib is not imported on the warm path
        return self.manifest or warm.find_manifest(self.cwd)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: the values that `--json` reports, and the error if there was one."""

    values: Mapping[str, Any] = field(default_factory=dict)
    error: AmlError | None = None
