"""A network of a test's own: nothing but loopback, with a second address on which somebody listens (Linux).

What runs in it cannot leave the machine: there is no other interface and no route. Whatever is sent to the second
address, 198.51.100.1 (TEST-NET-2, RFC 5737), by whatever way, arrives at the holder, which keeps it for the test; names
are asked for there too. Files are those of the machine, at the same paths; where a folder above them is closed to
others (a root's home, pytest's temporary one), a view of its own lets a plain user through.

This file is also the two programs that a test runs by path: the holder, and the way in. They need Python alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Where the listeners are.
ADDRESS = "198.51.100.1"
_DNS = 53

# linux/sched.h, linux/mount.h, linux/sockios.h, linux/if.h, linux/if_ether.h
_NEWNS, _NEWUSER, _NEWNET = 0x20000, 0x10000000, 0x40000000
_NO_SUID_DEV_EXEC, _RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 2 | 4 | 8, 1, 0x20, 0x1000, 0x4000, 0x40000
_GET_FLAGS, _SET_FLAGS, _SET_ADDRESS, _SET_MASK, _UP = 0x8913, 0x8914, 0x8916, 0x891C, 1
_EVERY_PROTOCOL = 3
_LIBC = ctypes.CDLL(None, use_errno=True)

#: How the machine looks to a program that enters: as it is; with a part of /proc covered, so that the kernel lets
#: nobody mount a fresh one (containers do that); with a /proc in which no map of users can be written.
VIEWS = ("plain", "covered", "read-only")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that reached the holder: by which of its sockets, and its bytes (of a packet and of a stream)."""

    kind: str
    data: bytes


@dataclass(slots=True)
class Ground:
    """The network, from ``open`` to ``close``; both it and what still runs in it are seen from the machine's /proc."""

    pid: int
    port: int
    abstract: str
    _holder: subprocess.Popen[str] = field(repr=False)

    @classmethod
    def open(cls, folder: Path, reach: Sequence[Path]) -> Ground | str:
        """Make one, or say why the kernel refuses it; *reach* are the paths that a plain user has to get to.

        *folder* takes the file that names whom to ask for names.
        """
        resolv = folder / "resolv.conf"
        resolv.write_text(f"nameserver {ADDRESS}\noptions timeout:1 attempts:1\n")
        resolv.chmod(0o644)
        argv = [*_PROGRAM, "hold", str(resolv), *map(str, reach)]
        holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        first = json.loads(_pipe(holder.stdout).readline() or '{"refused": "the holder did not start"}')
        if "refused" in first:
            holder.communicate()
            return str(first["refused"])
        return cls(pid=holder.pid, port=first["port"], abstract=first["abstract"], _holder=holder)

    @property
    def network(self) -> str:
        """What /proc calls the network of this ground: ``net:[4026532177]``."""
        return str(Path(f"/proc/{self.pid}/ns/net").readlink())

    def entry(self, *, uid: int | None = None, view: str = "plain") -> list[str]:
        """Give the words before a command that runs it inside, as user *uid* where one is named.

        The command takes the place of the way in: its process number is the one that was started.
        """
        return [*_PROGRAM, "enter", str(self.pid), "" if uid is None else str(uid), view]

    def received(self) -> list[Event]:
        """Give all that arrived since the last time: what was sent before this is asked is in it."""
        asked, answer = _pipe(self._holder.stdin), _pipe(self._holder.stdout)
        asked.write("\n")
        asked.flush()
        return [Event(one["kind"], bytes.fromhex(one["data"])) for one in json.loads(answer.readline())]

    def close(self) -> None:
        """End the holder; the network goes with the last process in it."""
        self._holder.communicate()


#: Both programs start alike in any environment: nothing of it is read.
_PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).resolve()))


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream, "it was asked for"
    return stream


# --- the way in


def _enter(holder: str, uid: str, view: str, *argv: str) -> NoReturn:
    """Go into the holder's namespaces, become the user, and become the command."""
    folder = Path.cwd()
    mine = os.stat("/proc/self/ns/user").st_ino == os.stat(f"/proc/{holder}/ns/user").st_ino  # noqa: PTH116 - in step with os.open below
    for kind in ("mnt", "net") if mine else ("user", "mnt", "net"):
        namespace = os.open(f"/proc/{holder}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        _check(_LIBC.setns(namespace, 0), f"setns to {kind}")
        os.close(namespace)
    _change(view)
    os.chdir(folder)
    if uid:
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    os.execv(argv[0], argv)  # noqa: S606 - a command that the test names


def _change(view: str) -> None:
    """Change what this program alone sees of /proc."""
    if view == "plain":
        return
    _check(_LIBC.unshare(_NEWNS), "unshare")
    _mount("none", "/", _REC | _PRIVATE)
    if view == "covered":
        _mount("/dev/null", "/proc/kcore" if Path("/proc/kcore").exists() else "/proc/uptime", _BIND)
    else:
        _mount("none", "/proc", _REMOUNT | _BIND | _RDONLY | _NO_SUID_DEV_EXEC)


# --- the holder


def _hold(resolv: str, *reach: str) -> None:
    """Make the namespaces, listen in them, and answer until nobody asks any more."""
    try:
        _leave_everything()
        _mount(resolv, os.path.realpath("/etc/resolv.conf"), _BIND)
        _open_ways([Path(path) for path in reach])
        _raise_loopback()
        listeners = _Listeners()
    except OSError as error:
        _tell({"refused": str(error)})
        return
    _tell({"port": listeners.port, "abstract": listeners.abstract})
    listeners.serve()


def _leave_everything() -> None:
    """Take a network and a view of files of our own; a plain user needs a user namespace for it, and stays itself."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_LIBC.unshare(_NEWNET | _NEWNS | (_NEWUSER if uid else 0)), "unshare")
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path("/proc/self", name).write_text(text)
    _mount("none", "/", _REC | _PRIVATE)


def _open_ways(paths: Sequence[Path]) -> None:
    """Let others through to *paths*: a folder above that is closed to them is covered, with the paths alone in it."""
    closed = {path: way for path in paths if (way := _closed_way(path)) and os.geteuid() == 0}
    kept = {path: os.open(path, os.O_PATH) for path in closed}
    for way in dict.fromkeys(closed.values()):
        _mount("tmpfs", str(way), 0, "tmpfs", "mode=755")
    for path, known in kept.items():
        path.mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{known}", str(path), _BIND | _REC)
        os.close(known)


def _closed_way(path: Path) -> Path | None:
    """Give the topmost folder above a path that only its owner can go through."""
    return next((way for way in reversed(path.parents) if not way.stat().st_mode & 0o001), None)


def _raise_loopback() -> None:
    """Bring the one interface up, and give it the second address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = struct.unpack("16xH14x", fcntl.ioctl(control, _GET_FLAGS, struct.pack("16sH14x", b"lo", 0)))[0]
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))
        for word, value in ((_SET_ADDRESS, ADDRESS), (_SET_MASK, "255.255.255.255")):
            address = struct.pack("16sH2x4s8x", b"lo:1", socket.AF_INET, socket.inet_aton(value))
            fcntl.ioctl(control, word, address)


class _Listeners:
    """All sockets of the holder, and what came in by them."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._events: list[dict[str, str]] = []
        tcp = self._listen("tcp", socket.socket(socket.AF_INET, socket.SOCK_STREAM), ("0.0.0.0", 0))  # noqa: S104 - there is no outside
        self.port: int = tcp.getsockname()[1]
        self._datagrams("udp", self.port)
        self._datagrams("dns", _DNS)
        self.abstract = f"aml-ground-{os.getpid()}"
        self._listen("abstract", socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), f"\0{self.abstract}")
        # Every packet of every protocol: what comes by no door that we thought of is seen too.
        every = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_EVERY_PROTOCOL))
        self._add(every, lambda: self._note("packet", every.recv(65536)))

    def serve(self) -> None:
        """Take what comes; at each line on stdin, give what came, once nothing more is on its way."""
        self._selector.register(0, selectors.EVENT_READ)
        while True:
            ready = [key for key, _ in self._selector.select()]
            self._take(ready)
            if any(key.fd == 0 for key in ready):
                if not os.read(0, 4096):
                    return
                while more := [key for key, _ in self._selector.select(0) if key.fd != 0]:
                    self._take(more)
                _tell(self._events)
                self._events.clear()

    def _take(self, ready: Sequence[selectors.SelectorKey]) -> None:
        for key in ready:
            if key.data:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    key.data()

    def _add(self, one: socket.socket, act: Callable[[], object]) -> None:
        one.setblocking(False)
        self._selector.register(one, selectors.EVENT_READ, act)

    def _note(self, kind: str, data: bytes) -> None:
        self._events.append({"kind": kind, "data": data.hex()})

    def _listen(self, kind: str, one: socket.socket, address: tuple[str, int] | str) -> socket.socket:
        one.bind(address)
        one.listen()
        self._add(one, lambda: self._accept(kind, one))
        return one

    def _accept(self, kind: str, listener: socket.socket) -> None:
        one, _ = listener.accept()
        self._note(kind, b"")  # that somebody came is told, also of one who says nothing
        self._add(one, lambda: self._read(kind, one))

    def _read(self, kind: str, one: socket.socket) -> None:
        if data := one.recv(65536):
            self._note(kind, data)
        else:
            self._selector.unregister(one)
            one.close()

    def _datagrams(self, kind: str, port: int) -> None:
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("0.0.0.0", port))  # noqa: S104 - there is no outside
        self._add(one, lambda: self._datagram(kind, one))

    def _datagram(self, kind: str, one: socket.socket) -> None:
        data, sender = one.recvfrom(65536)
        self._note(kind, data)
        if kind == "dns":  # RFC 1035, 4.1.1: the same question as an answer, "no such name"; so nobody waits for one
            one.sendto(data[:2] + bytes([data[2] | 0x80, 0x83]) + data[4:], sender)


def _tell(value: Any) -> None:  # noqa: ANN401 - a JSON value
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _mount(source: str, target: str, flags: int, kind: str = "none", options: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind, options)]
    _check(_LIBC.mount(*words[:3], ctypes.c_ulong(flags), words[3]), f"mount of {target}")


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        _hold(*sys.argv[2:])
    else:
        _enter(*sys.argv[2:])
