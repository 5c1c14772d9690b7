"""The supervisor on Windows: the same orders and events as `supervisor`, the tree held together by a job object.

Not tried: no Windows machine at hand. A job object with KILL_ON_JOB_CLOSE ends all its processes when its last handle
is closed, also by our own death; there is no isolation from the network without an administrator. Source:
Job Objects and JOBOBJECT_EXTENDED_LIMIT_INFORMATION in the Windows API's reference.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

_KILL_ON_CLOSE = 0x2000
_EXTENDED_LIMITS = 9  # JobObjectExtendedLimitInformation
_SIZE = 144  # of that structure on 64 bits
_FLAGS_AT = 16  # LimitFlags in it
_STEP = 0.2


def main() -> int:
    """Run one order to its end."""
    order = json.loads(sys.stdin.buffer.readline())
    tree = _new_tree()
    try:
        child = _start(order)
    except OSError as error:
        _say(event="unstartable", error=f"{order['argv'][0]}: {error}")
        return 0
    _kernel().AssignProcessToJobObject(tree, ctypes.c_void_p(int(child._handle)))  # type: ignore[attr-defined]  # noqa: SLF001 - the one way to it
    _say(event="started", proc="")
    is_orphan = _watch(order, child, tree)
    _say(event="exit", status=child.wait())
    _kernel().TerminateJobObject(tree, 1)
    _say(event="gone", left=0)
    if is_orphan:
        shutil.rmtree(order["home"], ignore_errors=True)
    return 0


def _kernel() -> Any:  # noqa: ANN401 - ctypes has no type for a library of this system elsewhere
    return ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]


def _say(**event: object) -> None:
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps(event) + "\n").encode())


def _new_tree() -> Any:  # noqa: ANN401 - a handle
    flags = _KILL_ON_CLOSE.to_bytes(4, "little")
    limits = ctypes.create_string_buffer(bytes(_FLAGS_AT) + flags, _SIZE)
    _kernel().CreateJobObjectW.restype = ctypes.c_void_p
    tree = ctypes.c_void_p(_kernel().CreateJobObjectW(None, None))
    _kernel().SetInformationJobObject(tree, _EXTENDED_LIMITS, limits, _SIZE)
    return tree


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        order["argv"], env=order["env"], cwd=order["cwd"], stdin=nothing, stdout=2, stderr=2, creationflags=group
    )


def _watch(order: dict[str, Any], child: subprocess.Popen[bytes], tree: Any) -> bool:  # noqa: ANN401 - a handle
    """Wait for the main process, and end it when told to; whether the worker is gone."""
    heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_hear, args=(heard,), daemon=True).start()
    deadline: float | None = None
    is_orphan = False
    while child.poll() is None:
        with contextlib.suppress(queue.Empty):
            byte = heard.get(timeout=_STEP)
            is_orphan = byte == b""
            if byte == b"T" and deadline is None:
                deadline = time.monotonic() + order["grace"]
                child.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))
            elif byte != b"T":
                deadline = time.monotonic()
        if deadline is not None and time.monotonic() >= deadline:
            _kernel().TerminateJobObject(tree, 1)
    return is_orphan


def _hear(heard: queue.SimpleQueue[bytes]) -> None:
    byte = b"?"
    while byte:
        byte = os.read(0, 1)
        heard.put(byte)
