"""Who runs it: root, or a plain user to whom nothing belongs but the project. Tests run as either."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

#: The plain user where the tests run as root: "nobody" wherever there is one.
_NOBODY = 65534

USERS = ("root", "plain")


def uid_to_become(user: str) -> int | None:
    """Give the number that a program has to become for *user*; None where the tests run as that already.

    A test for root is skipped where the tests do not run as root.
    """
    if os.geteuid():
        if user == "root":
            pytest.skip("only root can be root")
        return None
    return None if user == "root" else _NOBODY


def give(folder: Path, user: str) -> None:
    """Let everything below a folder, and it, belong to *user*."""
    uid = uid_to_become(user)
    if uid is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, uid, follow_symlinks=False)
