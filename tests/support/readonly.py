"""A project on a file system that nobody can write to (Linux)."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import Run, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.project import Project


def in_read_only_tree(project: Project, *words: str) -> Run:
    """Run Python with the project's folder mounted read-only, in a mount namespace that ends with it."""
    namespace: list[str | Path] = ["unshare", "--mount", "--map-root-user"] if os.geteuid() else ["unshare", "--mount"]
    env, cwd = project.environment(), project.folder.parent
    if not shutil.which("unshare") or run([*namespace, "true"], env=env, cwd=cwd).code:
        pytest.skip("a private mount namespace needs root, or user namespaces")
    script = (
        'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && cd "$1" && ! touch x 2>&- && shift && exec "$@"'
    )
    return run([*namespace, "sh", "-c", script, "sh", project.folder, sys.executable, *words], env=env, cwd=cwd)
