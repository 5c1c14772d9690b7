"""What cuts a job off, proven from both sides: what it tries, and what arrives where it would.

The network is the tests' own (`tests/support/netns`): nothing can leave the machine, whatever a job may do.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aml_nox.train import isolation
from tests.support import refusal
from tests.support.netns import ADDRESS
from tests.support.processes import Run, run
from tests.support.users import USERS, uid_to_become

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.arena import Arena, Attack

pytest_plugins = ("tests.support.arena",)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and seccomp are Linux")

#: The ways out that carry a job's bytes to somebody; each has a listener of its own.
WAYS = ("tcp", "udp", "dns", "loopback", "abstract")


def python(prefix: list[str], text: str, cwd: Path) -> Run:
    return run([*prefix, sys.executable, "-I", "-S", "-c", text], env={"PATH": os.defpath}, cwd=cwd)


# --- the ground

LEAVES = """
import errno, fcntl, json, socket, struct


def is_up(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = struct.pack("16sH14x", name.encode(), 0)
        return bool(struct.unpack("16xH14x", fcntl.ioctl(one, 0x8913, request))[0] & 1)  # SIOCGIFFLAGS, IFF_UP


def is_reached(family, address):
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            number = one.connect_ex((address, 9))
    except OSError as error:
        number = error.errno
    return number not in {errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


outside = [(socket.AF_INET, "192.0.2.1"), (socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:db8::1")]
print(json.dumps([[name for _, name in socket.if_nameindex() if is_up(name)], [*map(is_reached, *zip(*outside))]]))
"""


@pytest.mark.parametrize("user", USERS)
def test_nothing_can_leave_the_machine_from_the_ground(arena: Arena, user: str) -> None:
    """There is loopback and no route to anywhere else, for root too: the kernel has nobody to give a packet to."""
    found = json.loads(python(arena.ground.entry(uid=uid_to_become(user)), LEAVES, arena.folder).expect().out)
    assert found == [["lo"], [False] * 3]


def test_the_ground_is_not_the_network_of_the_machine(arena: Arena) -> None:
    here = os.readlink("/proc/self/ns/net")  # noqa: PTH115 - a name, not a path
    there = python(arena.ground.entry(), "import os; print(os.readlink('/proc/self/ns/net'))", arena.folder)
    assert there.expect().out.strip() == arena.ground.network != here


def test_the_machine_does_not_reach_the_listener_of_the_ground(arena: Arena) -> None:
    arena.ground.received()
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(ConnectionRefusedError):
        one.connect(f"\0{arena.ground.abstract}")
    assert arena.ground.received() == []


@pytest.mark.parametrize("user", USERS)
def test_whatever_is_sent_in_the_ground_is_received(arena: Arena, user: str) -> None:
    ground = arena.ground
    text = f"""
import socket
with socket.create_connection(({ADDRESS!r}, {ground.port})) as one:
    one.send(b"by tcp")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.sendto(b"by udp", ({ADDRESS!r}, {ground.port}))
    one.sendto(b"a question of twelve bytes or more", ({ADDRESS!r}, 53))
with socket.socket(socket.AF_UNIX) as one:
    one.connect("\\0" + {ground.abstract!r})
    one.send(b"by name")
"""
    ground.received()
    python(ground.entry(uid=uid_to_become(user)), text, arena.folder).expect()
    events = ground.received()
    sent = {"tcp": b"by tcp", "udp": b"by udp", "dns": b"a question of twelve bytes or more", "abstract": b"by name"}
    assert {event.kind: event.data for event in events if event.data and event.kind in sent} == sent
    for data in (b"by tcp", b"by udp"):
        assert any(event.kind == "packet" and data in event.data for event in events), data


# --- kernels that refuse

CALLS = """
import ctypes, json, os, threading
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (272, 56, 435, 317), "aarch64": (97, 220, 435, 277)}[os.uname().machine]
unshare, clone, clone3, seccomp = numbers


def error(*words):
    ctypes.set_errno(0)
    if libc.syscall(*words) == 0 and words[0] == clone:
        os._exit(0)
    return ctypes.get_errno()


def new(flag):
    return ctypes.c_ulong(flag | 17)  # SIGCHLD


found = {
    "unshare": error(unshare, 0x10000000),
    "clone": error(clone, new(0x10000000), 0, 0, 0, 0),
    "clone3": error(clone3, 0, 0),
    "seccomp": error(seccomp, 0, 0, 0),
    "prctl": 0 if libc.prctl(22, 2, 0, 0, 0) == 0 else ctypes.get_errno(),
}
thread = threading.Thread(target=lambda: found.update(thread=True))
thread.start()
thread.join()
found["forked"] = os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1])
print(json.dumps(found))
"""
EPERM, ENOSYS, EFAULT, EINVAL = 1, 38, 14, 22


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("kind", refusal.KINDS)
def test_a_refusing_kernel_answers_as_a_container_does_and_lets_programs_run(
    arena: Arena, kind: str, user: str
) -> None:
    words = [*arena.ground.entry(uid=uid_to_become(user)), *refusal.command(kind)]
    found = python(words, CALLS, arena.folder).expect().json()
    assert (found["unshare"], found["clone"], found["clone3"]) == (EPERM, EPERM, ENOSYS)
    assert (found["thread"], found["forked"]) == (True, 0)
    # What is wrong with these calls is found only where they are let through.
    assert (found["seccomp"], found["prctl"]) == ((EPERM, EPERM) if kind == "everything" else (EINVAL, EFAULT))


@pytest.mark.parametrize(("view", "why"), [("covered", "/proc"), ("read-only", "uid_map")])
def test_a_view_refuses_what_its_name_says(arena: Arena, view: str, why: str) -> None:
    words = [*arena.ground.entry(uid=uid_to_become("plain"), view=view), "/usr/bin/unshare", "-Urpf", "--mount-proc"]
    done = run([*words, "true"], env={"PATH": os.defpath}, cwd=arena.folder)
    assert (done.code != 0, why in done.err) == (True, True), done


# --- what a job can do


def outcome(attack: Attack, code: int = 0) -> tuple[Run, dict[str, Any]]:
    """Run the job; give what was said and what its record says of isolation."""
    done = attack.run(code)
    assert attack.survivors() == {}
    found: dict[str, Any] = attack.record["isolation"]
    return done, found


def reached(attack: Attack) -> set[str]:
    """Give the ways by which the script says that it got out."""
    return {way for way in WAYS if attack.report[way].startswith("reached")}


@pytest.mark.parametrize("user", USERS)
def test_with_isolation_off_it_reaches_everything_and_is_said_not_to_be_isolated(
    attacks: Callable[..., Attack], user: str
) -> None:
    """The positive control: what the other tests do not find is found here, by the same script in the same place."""
    attack = attacks(user, isolation="off")
    done, found = outcome(attack)
    assert reached(attack) == {*WAYS}
    assert {"tcp", "udp", "dns", "abstract", "packet"} <= attack.received().keys()
    assert attack.report["secrets"] != []
    assert found == {"asked": "off", "mechanism": "none", "in_force": False, "refused": []}
    assert "(not isolated: isolation is off)" in done.err


@pytest.mark.parametrize("asked", ["prefer", "require"])
@pytest.mark.parametrize("user", USERS)
def test_in_namespaces_it_reaches_nothing_and_sees_no_secret(
    attacks: Callable[..., Attack], user: str, asked: str
) -> None:
    attack = attacks(user, isolation=asked)
    done, found = outcome(attack)
    assert (reached(attack), attack.received()) == (set(), {})
    assert (attack.report["secrets"], attack.report["beneath"], attack.report["strangers"]) == ([], [], 0)
    assert found == {"asked": asked, "mechanism": "namespace", "in_force": True, "refused": []}
    assert "(isolation: namespace)" in done.err


@pytest.mark.parametrize("user", USERS)
def test_where_no_fresh_proc_is_to_be_had_the_rest_holds_and_the_record_says_so(
    attacks: Callable[..., Attack], user: str
) -> None:
    """It sees processes that are not its own; in another user namespace than theirs, it may not read what they know."""
    attack = attacks(user, isolation="require", view="covered")
    _, found = outcome(attack)
    assert (reached(attack), attack.received()) == (set(), {})
    assert (attack.report["secrets"], attack.report["strangers"] > 0) == ([], True)
    assert (found["mechanism"], found["proc"] != "") == ("namespace", True)


@pytest.mark.parametrize("refuses", [{"refuses": "namespaces"}, {"view": "read-only"}], ids=["unshare", "uid_map"])
@pytest.mark.parametrize("user", USERS)
def test_where_namespaces_are_refused_require_takes_a_filter_and_says_why(
    attacks: Callable[..., Attack], user: str, refuses: dict[str, str]
) -> None:
    attack = attacks(user, isolation="require", **refuses)
    done, found = outcome(attack)
    assert reached(attack) <= {"abstract"}  # a local socket, which a filter cannot tell from another
    assert attack.received().keys() <= {"abstract"}
    assert (found["mechanism"], found["in_force"]) == ("seccomp", True)
    (one,) = found["refused"]
    assert one["mechanism"] == "namespace"
    assert f"(isolation: seccomp, since namespace: {one['error']})" in done.err


@pytest.mark.parametrize("user", USERS)
def test_where_namespaces_are_refused_prefer_runs_it_and_says_that_it_is_not_isolated(
    attacks: Callable[..., Attack], user: str
) -> None:
    """It takes no filter, since that would forbid loopback too, on which training in several processes stands."""
    attack = attacks(user, isolation="prefer", refuses="namespaces")
    done, found = outcome(attack)
    assert reached(attack) == {*WAYS}
    assert (found["mechanism"], found["in_force"]) == ("none", False)
    assert "(NOT ISOLATED: namespace: unshare: " in done.err


@pytest.mark.parametrize("user", USERS)
def test_where_everything_is_refused_require_runs_nothing(attacks: Callable[..., Attack], user: str) -> None:
    attack = attacks(user, isolation="require", refuses="everything")
    done, found = outcome(attack, 7)
    assert [one["mechanism"] for one in found["refused"]] == ["namespace", "seccomp"]
    assert (found["mechanism"], found["in_force"], attack.record["state"]) == (None, False, "failed")
    assert sorted(path.name for path in attack.job.iterdir() if path.stat().st_size and path.is_file()) == [
        "job.json",
        "spec.json",
    ]
    assert attack.received() == {}
    assert "train.isolation demands isolation, and namespace: " in done.err


LOOPBACK = """
import json, multiprocessing, multiprocessing.managers, os, socket


def work(address):
    with socket.create_connection(address) as one:
        one.sendall(str(os.getpid()).encode())


def main():
    names = sorted({info[4][0] for info in socket.getaddrinfo("localhost", 80, socket.AF_INET)})
    adaptive = socket.getaddrinfo("127.0.0.1", 80, socket.AF_INET, flags=socket.AI_ADDRCONFIG)
    with socket.create_server(("127.0.0.1", 0)) as server:
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(server.getsockname(),)) for _ in range(2)]
        for worker in workers:
            worker.start()
        told = set()
        for _ in workers:
            with server.accept()[0] as one:
                told.add(int(one.makefile("rb").read()))
        for worker in workers:
            worker.join()
    with multiprocessing.managers.BaseManager(address=("localhost", 0), authkey=b"x") as manager:
        managed = manager.address[1] > 0
    found = {"names": names, "adaptive": len(adaptive) > 0, "told": told == {worker.pid for worker in workers}}
    found |= {"managed": managed, "uid": os.getuid(), "codes": [worker.exitcode for worker in workers]}
    with open("found.json", "w") as stream:
        json.dump(found, stream)


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("user", USERS)
def test_training_in_several_processes_over_loopback_works_in_namespaces(
    attacks: Callable[..., Attack], user: str
) -> None:
    """Sockets of every kind that such libraries use, the name localhost, and the user that it was."""
    attack = attacks(user)
    attack.write(LOOPBACK, isolation="require")
    attack.run()
    found = json.loads((attack.job / "found.json").read_text())
    uid = uid_to_become(user)
    expected = {"names": ["127.0.0.1"], "adaptive": True, "told": True, "managed": True, "codes": [0, 0]}
    assert found == {**expected, "uid": os.getuid() if uid is None else uid}
    assert attack.record["isolation"]["mechanism"] == "namespace"


def test_in_namespaces_root_still_writes_into_files_of_others(attacks: Callable[..., Attack]) -> None:
    """A namespace that knows one user alone would refuse it: files of everybody else would be nobody's."""
    attack = attacks("root")
    foreign = attack.project.write("foreign.txt", "theirs")
    os.chown(foreign, 12345, 12345)
    foreign.chmod(0o600)
    attack.write(
        f"import os\nwith open({str(foreign)!r}, 'a') as one:\n    print('', os.fstat(one.fileno()).st_uid, file=one)"
    )
    attack.run()
    assert foreign.read_text() == "theirs 12345\n"


@pytest.mark.parametrize("user", USERS)
def test_a_job_may_be_no_one_else_and_gains_nothing_by_a_program(attacks: Callable[..., Attack], user: str) -> None:
    attack = attacks(user)
    attack.write("print(open('/proc/self/status').read())", isolation="off")
    attack.run()
    assert "NoNewPrivs:\t1" in (attack.job / "log.txt").read_text()


# --- the filter

FILTERED = """
import ctypes, errno, json, os, socket, sys
sys.path.append({package!r})
from aml_nox.train import isolation
isolation.forbid_sockets()
libc = ctypes.CDLL(None, use_errno=True)


def error(act):
    try:
        act()
    except OSError as one:
        return errno.errorcode[one.errno]
    return ""


def called(number):
    ctypes.set_errno(0)
    libc.syscall(number, *[ctypes.c_long(-1)] * 6)  # nothing that a kernel would do
    return errno.errorcode.get(ctypes.get_errno(), "")


families = ("AF_UNIX", "AF_NETLINK", "AF_INET", "AF_INET6", "AF_PACKET", "AF_VSOCK", "AF_ALG", "AF_BLUETOOTH")
kinds = {{"AF_NETLINK": socket.SOCK_RAW, "AF_PACKET": socket.SOCK_RAW}}
found = {{name: error(lambda: socket.socket(getattr(socket, name), kinds.get(name, socket.SOCK_STREAM)).close())
         for name in families if hasattr(socket, name)}}
found["pair"] = error(lambda: [one.close() for one in socket.socketpair()])
calls = {{"x86_64": (425, 101, 311, 438), "aarch64": (425, 117, 271, 438)}}[os.uname().machine]
found["roundabout"] = [called(number) for number in calls]
found["x32"] = called(0x40000000 | 41) if os.uname().machine == "x86_64" else "ENOSYS"
child = os.fork()
if child == 0:
    os._exit(error(lambda: socket.socket(socket.AF_INET).close()) != "EACCES")
found["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(found))
"""


@pytest.mark.parametrize("user", USERS)
def test_a_filter_refuses_every_socket_but_local_ones_and_the_ways_around_it(arena: Arena, user: str) -> None:
    package = str(Path(isolation.__file__).parents[2])
    words = arena.ground.entry(uid=uid_to_become(user))
    found = python(words, FILTERED.format(package=package), arena.folder).expect().json()
    assert (found.pop("AF_UNIX"), found.pop("AF_NETLINK"), found.pop("pair"), found.pop("child")) == ("", "", "", 0)
    assert (found.pop("roundabout"), found.pop("x32")) == (["ENOSYS"] * 4, "ENOSYS")
    assert {*found.values()} == {"EACCES"}, found


@pytest.mark.parametrize(
    ("asked", "platform", "expected"),
    [
        ("require", "linux", ("namespace", "seccomp")),
        ("prefer", "linux", ("namespace", "none")),
        ("off", "linux", ("none",)),
        ("require", "darwin", ("sandbox",)),
        ("prefer", "darwin", ("sandbox", "none")),
        ("off", "darwin", ("none",)),
        ("require", "win32", ()),
        ("prefer", "win32", ("none",)),
        ("off", "win32", ("none",)),
    ],
)
def test_which_mechanisms_are_tried_and_in_which_order(asked: str, platform: str, expected: tuple[str, ...]) -> None:
    assert isolation.mechanisms(asked, platform) == expected


# --- what a namespace does not cut off

BEYOND = """
import ctypes, errno, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)


def made(family, kind):
    try:
        socket.socket(getattr(socket, family), kind).close()
    except OSError as one:
        return errno.errorcode[one.errno]
    return ""


def called(name, *arguments):
    ctypes.set_errno(0)
    libc[name](*arguments)
    return errno.errorcode.get(ctypes.get_errno(), "")


families = ("AF_VSOCK", "AF_BLUETOOTH", "AF_ALG", "AF_UNIX", "AF_INET", "AF_INET6")
found = {name: made(name, socket.SOCK_STREAM) for name in families if hasattr(socket, name)}
found["ring"] = called("syscall", 425, *[ctypes.c_long(-1)] * 2)
found["unmount"] = called("umount2", b"/proc", 2)
json.dump(found, open("found.json", "w"))
"""


@pytest.mark.parametrize("user", USERS)
def test_in_namespaces_what_reaches_past_them_is_refused(attacks: Callable[..., Attack], user: str) -> None:
    """A virtual machine talks to its host by vsock; io_uring makes sockets past a filter; unmounting uncovers."""
    attack = attacks(user)
    attack.write(BEYOND, isolation="require")
    attack.run()
    found = json.loads((attack.job / "found.json").read_text())
    assert (found.pop("AF_UNIX"), found.pop("AF_INET"), found.pop("AF_INET6")) == ("", "", "")
    assert (found.pop("ring"), found.pop("unmount")) == ("ENOSYS", "EPERM")
    assert {*found.values()} == {"EACCES"}, found


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "made",
    ["os.makedirs('shut/in'); os.chmod('shut', 0)", "os.chdir('..'); os.rmdir(home); os.symlink('/nowhere', home)"],
    ids=["closed-folder", "link"],
)
def test_whatever_a_job_makes_of_its_home_it_is_removed(attacks: Callable[..., Attack], user: str, made: str) -> None:
    attack = attacks(user)
    attack.write(f"import os\nhome = os.environ['HOME']\nprint(home)\nos.chdir(home)\n{made}")
    attack.run()
    home = (attack.job / "log.txt").read_text().strip()
    assert home
    assert not os.path.lexists(home)
