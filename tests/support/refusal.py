"""A kernel that refuses: a program that runs a command as under a container's seccomp filter (Linux, x86-64 and arm64).

``namespaces``  new namespaces are refused, as Docker's default profile does it: unshare, setns and clone with any
                CLONE_NEW flag give EPERM, clone3 ENOSYS, because a filter cannot read its flags
``everything``  further filters are refused too, so that no isolation is left

    python -I -S refusal.py namespaces COMMAND ARGUMENT…

The command takes the place of this program. What a filter returns: seccomp(2); its language: linux/filter.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path
from typing import NoReturn

# linux/bpf_common.h, linux/seccomp.h, linux/prctl.h
_LOAD, _IS, _HAS, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_NEW_NAMESPACE = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_SET_SECCOMP, _NO_NEW_PRIVILEGES, _FILTER = 22, 38, 2

#: By machine: its AUDIT_ARCH, and the numbers of the calls (asm/unistd.h).
_MACHINES = {
    "x86_64": (0xC000003E, {"unshare": 272, "setns": 308, "clone": 56, "clone3": 435, "seccomp": 317, "prctl": 157}),
    "aarch64": (0xC00000B7, {"unshare": 97, "setns": 268, "clone": 220, "clone3": 435, "seccomp": 277, "prctl": 167}),
}
KINDS = ("namespaces", "everything")

_Step = tuple[int, int, int, int]


def command(kind: str) -> list[str]:
    """Give the words before a command that run it under the filter."""
    assert kind in KINDS, kind
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), kind]


def _program(kind: str) -> list[_Step]:
    """Write the filter; the numbers after a comparison are the steps to skip where it holds and where it does not."""
    architecture, calls = _MACHINES[os.uname().machine]
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_IS, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    refused = {"unshare": errno.EPERM, "setns": errno.EPERM, "clone3": errno.ENOSYS}
    if kind == "everything":
        refused["seccomp"] = errno.EPERM
    for name, number in refused.items():
        steps += [(_IS, 0, 1, calls[name]), (_RETURN, 0, 0, _ERROR | number)]
    steps += _unless(calls["clone"], _HAS, _NEW_NAMESPACE)
    if kind == "everything":
        steps += _unless(calls["prctl"], _IS, _SET_SECCOMP)
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _unless(call: int, test: int, value: int) -> list[_Step]:
    """Refuse one call if its first argument is, or has, a value; the number is loaded again for what follows."""
    refuse = [(_LOAD, 0, 0, _FIRST_ARGUMENT), (test, 0, 1, value), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    return [(_IS, 0, len(refuse), call), *refuse, (_LOAD, 0, 0, _NUMBER)]


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def _install(steps: list[_Step]) -> None:
    """Put this process, and all that it will be and start, under a filter; it cannot be undone."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    whole = _Filter(len(steps), ctypes.addressof(code))
    for words in ((_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), 0, 0, 0), (_SET_SECCOMP, _FILTER, ctypes.byref(whole), 0, 0)):
        if libc.prctl(*words):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _main(kind: str, *argv: str) -> NoReturn:
    _install(_program(kind))
    os.execv(argv[0], argv)  # noqa: S606 - a command that the test names


if __name__ == "__main__":
    _main(*sys.argv[1:])
