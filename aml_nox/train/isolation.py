"""Cut a process off from the network, and prove it: Linux namespaces, or a seccomp filter where these are refused.

Standard library only, and nothing of ours but this file: the supervisor imports it in an interpreter without
site-packages. Whatever is refused is an OSError that says which step. Sources: namespaces(7), user_namespaces(7),
netdevice(7), seccomp(2) and linux/{sched,prctl,seccomp,filter,audit}.h of Linux 6.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NoReturn

NAMESPACE, SECCOMP, SANDBOX, NONE = "namespace", "seccomp", "sandbox", "none"

_NEWNS, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 0x20
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_SET_PDEATHSIG, _SET_SECCOMP, _DROP_CAPABILITY, _SET_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 22, 24, 36, 38
_CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 19, 21
_GET_FLAGS, _SET_FLAGS, _SET_ADDRESS = 0x8913, 0x8914, 0x8916
_UP, _RUNNING = 0x1, 0x40
_FILTER = 2
_DISCARD = ("192.0.2.1", 9)  # TEST-NET-1 (RFC 5737): an address that no route of a cut-off process may reach

#: Behind these a service or a device of the machine talks to the network for whoever asks, past every namespace.
_DOORS = (
    *("/run/nscd", "/var/run/nscd", "/run/dbus", "/run/containerd", "/run/podman"),
    *("/run/systemd", "/run/crio", "/run/k3s", "/run/libvirt", "/dev/infiniband"),
    *("/run/docker.sock", "/var/run/docker.sock"),
)

_OWN_DOORS = ("bus", "systemd", "docker.sock", "docker", "podman", "containerd", "containerd-rootless")
"""Likewise, of the user's own services."""

#: AUDIT_ARCH, then the numbers of socket, io_uring_setup, ptrace, process_vm_writev and pidfd_getfd.
_CALLS = {"x86_64": (0xC000003E, 41, 425, 101, 311, 438), "aarch64": (0xC00000B7, 198, 425, 117, 271, 438)}
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, |JGE|K, BPF_RET|K
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data
_AF_NETLINK, _AF_PACKET, _AF_VSOCK = 16, 17, 40
_LOCAL = (int(socket.AF_UNIX), _AF_NETLINK)
"""Families that reach no network; getaddrinfo asks the kernel for its addresses by netlink."""
_IN_NAMESPACE = (*_LOCAL, int(socket.AF_INET), int(socket.AF_INET6), _AF_PACKET)
"""Families that a network namespace cuts off. Not vsock, by which a virtual machine talks to its host."""


def mechanisms(asked: str, platform: str = sys.platform) -> tuple[str, ...]:
    """What may be tried, in order. A filter forbids loopback too, so that `prefer` never takes it silently."""
    strong = {"linux": (NAMESPACE, SECCOMP), "darwin": (SANDBOX,)}.get(platform, ())
    return {"require": strong, "prefer": (*strong[:1], NONE), "off": (NONE,)}[asked]


def prctl(option: int, value: int) -> None:
    """Set a property of this process (Linux)."""
    _call("prctl", option, *(ctypes.c_ulong(word) for word in (value, 0, 0, 0)))


def adopt_orphans() -> None:
    """Become the parent of every process below this one that loses its own (Linux)."""
    prctl(_SET_SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed when the parent's thread that forked this process ends (Linux)."""
    prctl(_SET_PDEATHSIG, 9)


def renounce_privileges() -> None:
    """Let no program that this process starts gain anything: neither setuid nor file capabilities count (Linux)."""
    prctl(_SET_NO_NEW_PRIVS, 1)


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[name](*arguments) != 0:
        _refused(name, ctypes.get_errno())


def _refused(what: str, number: int) -> NoReturn:
    raise OSError(number, f"{what}: {os.strerror(number)}")


# --- namespaces


def enter_namespaces() -> None:
    """Give this process a network of its own, where only loopback is, and its children a process tree of their own.

    Who it is and what it may write stays as it was: the ids are mapped to themselves, by a helper that stays outside,
    since only from there more than one can be mapped.
    """
    asked, ask = os.pipe()
    helper = os.fork()
    if helper == 0:
        os._exit(_map_ids(os.getppid(), asked, ask))
    os.close(asked)
    try:
        _call("unshare", _NEWUSER | _NEWNET | _NEWNS | _NEWPID)
        os.write(ask, b"m")
    finally:
        os.close(ask)
        status = os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1])
    if status:
        _refused("uid_map", status if status > 0 else errno.EPERM)
    _raise_loopback()
    _prove_cut_off()


def _map_ids(process: int, asked: int, ask: int) -> int:
    """The helper's whole life; its exit status is the number of the error."""
    os.close(ask)
    try:
        if os.read(asked, 1):
            user = os.geteuid()
            if user:
                _write(f"/proc/{process}/setgroups", "deny")
            _write(f"/proc/{process}/gid_map", _identity("gid", os.getegid(), everyone=not user))
            _write(f"/proc/{process}/uid_map", _identity("uid", user, everyone=not user))
    except OSError as error:
        return error.errno or errno.EPERM
    return 0


def _identity(kind: str, own: int, *, everyone: bool) -> str:
    """Each id as itself: for root all that there are, so that files of other users stay what they were."""
    if not everyone:
        return f"{own} {own} 1"
    with open(f"/proc/self/{kind}_map", encoding="ascii") as stream:  # noqa: PTH123 - pathlib is not loaded here
        rows = [line.split() for line in stream]
    return "\n".join(f"{first} {first} {count}" for first, _, count in rows)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as stream:  # noqa: PTH123 - likewise
        stream.write(text)


def _raise_loopback() -> None:
    import fcntl  # noqa: PLC0415 - POSIX only

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP | _RUNNING))
        # A second address: with 127.0.0.1 alone, glibc's getaddrinfo(AI_ADDRCONFIG) finds no IPv4 and no localhost.
        second = struct.pack("16sH2s4s8x", b"lo:1", socket.AF_INET, b"", socket.inet_aton("127.0.0.2"))
        fcntl.ioctl(any_socket, _SET_ADDRESS, second)


def _prove_cut_off() -> None:
    """See that loopback serves and that nothing else can be reached."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        socket.create_connection(listener.getsockname(), 2).close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
        number = outward.connect_ex(_DISCARD)
    if number != errno.ENETUNREACH:
        _refused("a new network that still has a route", number or errno.EPERM)


def furnish() -> str:
    """Give the first process of a new tree its own view: no door to the network, and a /proc of this tree alone.

    Returns why there is no such /proc ("": there is one); a container may refuse it, and the rest holds without.
    """
    _call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
    for door in (*_DOORS, *(f"/run/user/{os.geteuid()}/{name}" for name in _OWN_DOORS)):
        if os.path.isdir(door):  # noqa: PTH112 - pathlib is not loaded here
            _call("mount", b"tmpfs", door.encode(), b"tmpfs", ctypes.c_ulong(_MS_NOSUID | _MS_NODEV), None)
        elif os.path.exists(door):  # noqa: PTH110 - likewise
            _call("mount", b"/dev/null", door.encode(), None, ctypes.c_ulong(_MS_BIND), None)
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    try:
        _call("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(flags), None)
    except OSError as error:
        return error.strerror or "refused"
    # Root could have the machine start a program of its choice by what is written there.
    settings = b"/proc/sys"
    _call("mount", settings, settings, None, ctypes.c_ulong(_MS_BIND), None)
    _call("mount", None, settings, None, ctypes.c_ulong(_MS_BIND | _MS_REMOUNT | _MS_RDONLY | flags), None)
    return ""


def renounce_powers() -> None:
    """Take from the program that follows what could undo the namespaces: unmounting, getting at the first process.

    What root keeps of its other powers counts in the namespaces alone, and lets it write the files that it could.
    """
    for power in (_CAP_SYS_ADMIN, _CAP_SYS_PTRACE):
        prctl(_DROP_CAPABILITY, power)


def keep_inside() -> None:
    """Refuse this process and all it starts the sockets that no network namespace cuts off, and prove it."""
    if os.uname().machine in _CALLS:
        _, new_socket, ring, *_ = _calls()
        _filter(new_socket, _IN_NAMESPACE, [ring])
        _prove_refused(_AF_VSOCK)


# --- a filter of system calls


def forbid_sockets() -> None:
    """Refuse this process and all it starts any socket but local ones, and prove it.

    Loopback is refused with the rest, since a filter sees no addresses. What would get at a socket in a roundabout way
    is refused too: io_uring, and reaching into another process of the same user.
    """
    _, new_socket, *roundabout = _calls()
    _filter(new_socket, _LOCAL, roundabout)
    _prove_refused(int(socket.AF_INET))
    _prove_refused(int(socket.AF_INET6))


def _calls() -> tuple[int, ...]:
    machine = os.uname().machine
    if machine not in _CALLS:
        raise OSError(errno.ENOSYS, f"seccomp: no table of system calls for {machine}")
    return _CALLS[machine]


def _filter(new_socket: int, families: Sequence[int], refused: Sequence[int]) -> None:
    program = b"".join(struct.pack("HBBI", *step) for step in _program(_calls()[0], new_socket, families, refused))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))

    steps = ctypes.create_string_buffer(program, len(program))
    described = Program(len(program) // 8, ctypes.addressof(steps))
    renounce_privileges()
    _call("prctl", _SET_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.byref(described), 0, 0)


def _prove_refused(family: int) -> None:
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
    except PermissionError:
        return
    _refused("seccomp that lets a socket pass", errno.EPERM)


def _program(
    arch: int, new_socket: int, families: Sequence[int], refused: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    """The filter in classic BPF: code, jump where true, jump where false, operand."""
    refuse, unknown = (_ERRNO | number for number in (errno.EACCES, errno.ENOSYS))
    return [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),  # another architecture numbers its calls otherwise
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, len(refused) + 1, 0, _X32),
        *((_EQUAL, len(refused) - place, 0, number) for place, number in enumerate(refused)),
        (_EQUAL, 2, 1, new_socket),
        (_RETURN, 0, 0, unknown),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        *((_EQUAL, len(families) - place, 0, family) for place, family in enumerate(families)),
        (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
    ]


# --- macOS

_PROFILE = (
    '(version 1)(allow default)(deny network*)(allow network* (local ip "localhost:*") (remote ip "localhost:*"))'
    "(allow network* (remote unix-socket))"
)
SANDBOX_COMMAND = ("/usr/bin/sandbox-exec", "-p", _PROFILE)
"""What stands before a command on macOS. Not tried: no such machine at hand."""
