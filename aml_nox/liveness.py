"""The lock that says that a process lives: a lock cannot be recycled as a process id can, nor survive its holder.

Unlike `store.lock` it is handed on: a process starts another with the descriptor, and the lock is held until the last
of both is gone. So what finds it free knows that nothing of a job runs any more (flock(2); the lock belongs to the open
file, not to the process). Whoever only asks shares it, so that nobody who asks is taken for the holder.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # no link is followed, no pipe waited for
CAN_BE_HANDED_ON = sys.platform != "win32"
"""On Windows a descriptor is not inherited under its number: each process takes the lock for itself. Not tried."""


def hold(path: Path) -> int | None:
    """Take the lock for as long as the descriptor is open anywhere; None when somebody has it.

    Raises:
        OSError: the file cannot be made, or the file system has no locks.

    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN, 0o644)
    while not _lock(descriptor, shared=False):
        if not _lock(descriptor, shared=True):
            os.close(descriptor)
            return None
        # It can be shared: only somebody who asks was in the way, and will be gone in a moment.
    return descriptor


def is_held(path: Path) -> bool:
    """Whether a process holds the lock."""
    with asked(path) as free:
        return not free


@contextlib.contextmanager
def asked(path: Path) -> Iterator[bool]:
    """Whether the lock is free; if so, nobody takes it while the block runs."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _PLAIN)
    except OSError:  # nobody ever did, or nothing can be told
        yield True
        return
    try:
        yield _lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, shared: bool) -> bool:
    if sys.platform == "win32":  # not tried: no Windows machine at hand
        import msvcrt  # noqa: PLC0415 - Windows only

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl  # noqa: PLC0415 - POSIX only

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
