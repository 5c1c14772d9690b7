"""A training script that does what no script should: the text of it, for a job of a test.

It leaves processes that are hard to end, fills its log, looks for a secret of its caller wherever it can read, and
calls the listener of the ground (`netns`) by every way that it knows. What it found is its report. It looks at no
process but those of the ground, goes nowhere else, and runs in no network but one that a test made: so it is harmless
also where nothing holds it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MEGABYTE = 1 << 20

_SCRIPT = r'''
import contextlib, ctypes, hashlib, json, os, signal, socket, sys
known = json.loads(KNOWN)
libc = ctypes.CDLL(None, use_errno=True)
target = (known["address"], known["port"])


def network(pid="self"):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError as error:
        return f"unknown: {error}"


own = network()
assert own != known["machine"], "this script runs in a network of the test's own and nowhere else"


def leave(sessions):
    """Start a process that waits for ever, as many sessions away, with nothing of ours but the output."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        for _ in range(sessions):
            os.setsid()
            if os.fork():
                os._exit(0)
        wait = "import signal\nwhile True:\n    signal.pause()"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", wait, known["cookie"]], {})
    os.close(write)
    os.read(read, 1)  # ends with the exec
    os.close(read)
    if sessions:
        os.waitpid(child, 0)


def tried(act):
    try:
        return f"reached: {act()}"
    except (OSError, AttributeError) as error:
        return f"refused: {error}"


def tcp(address=target):
    with socket.create_connection(address, 5) as one:
        return one.send(known["cookie"].encode())


def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        return one.sendto(known["cookie"].encode(), target)


def dns():
    try:
        return socket.getaddrinfo(known["cookie"] + ".example.test", 80)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            return error  # an answer
        raise


def abstract():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\0" + known["abstract"])


def raw():
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, 253) as one:
        return one.sendto(known["cookie"].encode(), (known["address"], 0))


def packet():
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as one:
        one.bind(("lo", 0x0800))
        return one.send(known["cookie"].encode())


def elsewhere():
    """Go to the network of the ground by /proc, where it can be seen."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if own != known["network"] == network(pid):
            there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            if libc.setns(there, 0):
                raise OSError(ctypes.get_errno(), "setns")
            return tcp()
    raise OSError("nobody in sight is there")


def secrets():
    """Whose environment or command line holds the secret, of all that are in our network or the ground's."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if network(pid) not in {own, known["network"]}:
            continue
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as stream:
                parts = stream.read().split(b"\0")
                if any(hashlib.sha256(part).hexdigest() == known["secret"] for part in parts):
                    found.append(f"{name} of {open(f'/proc/{pid}/comm').read().strip()}")
    return found


def beneath():
    """The same after what lies over /proc was taken away, in a view of the files that is ours alone."""
    if own == known["network"]:
        return []
    if libc.unshare(0x20000) and libc.unshare(0x10000000 | 0x20000):  # CLONE_NEWNS, with CLONE_NEWUSER
        return []
    libc.mount(b"none", b"/", None, ctypes.c_ulong(0x4000 | 0x40000), None)  # MS_REC | MS_PRIVATE
    while libc.umount2(b"/proc", 2) == 0 and not os.path.exists("/proc/self"):  # MNT_DETACH
        pass
    return secrets() if os.path.exists("/proc/self") else []


def apart(act):
    """The result of something that a process of its own does: it changes where it is."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = act()
        except BaseException as error:
            result = f"refused: {error}"
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        result = json.loads(stream.read())
    os.waitpid(child, 0)
    return result


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
inherited = sorted(set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2})[:-1]  # the last one lists
for sessions in (0, 1, 2):
    leave(sessions)
line = b"x" * 1023 + b"\n"
for _ in range(known["output"] >> 20):
    os.write(1, line * 1024) == 1 << 20 or sys.exit("the log is cut short")
with open("metrics.json", "w") as stream:
    stream.write('{"accuracy": NaN}')
report = {
    "tcp": tried(tcp),
    "udp": tried(udp),
    "dns": tried(dns),
    "loopback": tried(lambda: tcp(("127.0.0.1", known["port"]))),
    "abstract": tried(abstract),
    "raw": tried(raw),
    "packet": tried(packet),
    "elsewhere": apart(lambda: tried(elsewhere)),
    "secrets": secrets(),
    # The first process of a tree of our own may be closed to us.
    "strangers": sum(network(pid) != own for pid in filter(str.isdigit, os.listdir("/proc")) if pid != "1"),
    "beneath": apart(beneath),
    "inherited": inherited,
    "home": os.environ["HOME"],
}
with open("report.part", "w") as stream:
    json.dump(report, stream)
os.rename("report.part", "report.json")
while known["stays"]:
    signal.pause()
'''


def script(known: Mapping[str, object]) -> str:
    """Give the script with what it has to know.

    ``address``, ``port``, ``abstract``: where the listener is; ``network``, ``machine``: what /proc calls the network
    of the ground, and the one that it must not run in; ``cookie``: what it sends and what its processes are found by;
    ``secret``: the sha256 of the assignment, NAME=value, that it looks for; ``output``: bytes of it; ``stays``:
    whether it waits for ever at its end.
    """
    return f"KNOWN = {json.dumps(known)!r}\n{_SCRIPT}"
