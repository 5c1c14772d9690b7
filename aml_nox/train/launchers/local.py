"""The worker as a process beside us; by its standard input we ask for things, and it notices our death."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from aml_nox import process
from aml_nox.train import records, stage, worker
from aml_nox.train.records import Born


@dataclass(frozen=True, slots=True)
class Local:
    """A worker that we started."""

    child: process.Child

    def cancel(self) -> None:
        """Ask for the end of the job, with its grace."""
        process.tell(self.child, b"T")

    def kill(self) -> None:
        """Ask for its end at once."""
        process.tell(self.child, b"K")

    def has_ended(self, limit: float) -> bool:
        """Wait `limit` seconds at most; whether the worker is gone."""
        return process.has_ended(self.child, limit)


def submit(born: Born, environ: Mapping[str, str], passed: Mapping[str, str]) -> Local:
    """Start the worker of a job, and hand its lock over with it.

    `passed` are the values of pass-env: they go through the pipe, and stand neither in a file nor in an environment.
    """
    names = (*worker.ALLOWED, *worker.OWN)
    env = {name: environ[name] for name in names if name in environ}
    if stage.PACKAGES in environ.get("PYTHONPATH", "").split(os.pathsep):
        env["PYTHONPATH"] = stage.PACKAGES  # it is not installed: the worker imports what the caller imported
    argv = [sys.executable, "-P", "-X", "utf8", "-m", "aml_nox.train.worker", str(born.folder)]
    kept = [] if born.lock is None else [born.lock]
    child = process.start(argv, env=env, cwd=born.folder, stdin=process.PIPE, kept=kept)
    for descriptor in kept:
        os.close(descriptor)
    process.tell(child, (json.dumps({"lock": born.lock, "pass": records.as_utf8(passed)}) + "\n").encode())
    return Local(child)
