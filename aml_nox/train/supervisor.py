"""The process between the worker and the job: it starts the job as isolated as asked, and ends all that it started.

Run with an empty environment, without site-packages, and with nothing imported that is not needed: what the job can
read of its parent is empty, and little can break. It reads from standard input one line of JSON, the order, and then
single bytes: `T` asks the job to end and kills it after the grace, `K` kills it now; the end of the input means that
the worker is gone, and kills it now. It writes to standard output a line of JSON for each event:

    {"event": "refused", "error": …}        the mechanism is not to be had; nothing was run
    {"event": "unstartable", "error": …}    the program cannot be started; nothing was run
    {"event": "started", "proc": ""}        the job runs, cut off; why it sees all of /proc, where it does
    {"event": "exit", "status": 0}          it ended; negative: by that signal
    {"event": "gone", "left": 0}            nothing is left of it, or so many processes

worker → supervisor → [first process of the namespaces] → job. The job writes straight to the supervisor's standard
error, which is its log. POSIX; on Windows see `supervisor_windows`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from aml_nox.train import isolation

_LAST_RESORT = 5.0  # seconds that killed processes get to be gone
_STEP = 0.005
_ENDED = "ZX"
_LINUX = sys.platform == "linux"
_UNSTARTABLE = b"!"


@dataclass(slots=True)
class Job:
    """The running job: its first process below us, the status of its main process, and when it is to be killed."""

    pid: int
    order: dict[str, Any]
    status: int | None = None
    deadline: float | None = None  # by time.monotonic
    lifeline: bool = True
    tree: bool = field(init=False)

    def __post_init__(self) -> None:
        self.tree = self.order["mechanism"] == isolation.NAMESPACE


def main() -> int:
    """Run one order to its end."""
    order = json.loads(first_line())
    for descriptor in order["kept"]:
        os.set_inheritable(descriptor, False)
    wake = _be_woken_by_children()
    if _LINUX:
        isolation.adopt_orphans()
    try:
        job = Job(pid=_start(order), order=order)
    except OSError as error:
        _say(event="refused", error=error.strerror or str(error))
        return 0
    _watch(job, wake)
    left = _clear(job)
    _say(event="gone", left=left)
    if not job.lifeline:
        remove_home(order["home"])  # the worker would have
    return 0


def first_line() -> bytes:
    """The first line of standard input, byte by byte: what follows it must not lie in a buffer of ours."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in {b"", b"\n"}:
        line += byte
    return bytes(line)


def _say(**event: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"\n{json.dumps(event)}\n".encode())  # whoever wrote half a line before does not take ours with it


def _be_woken_by_children() -> int:
    """A descriptor that can be read when a child ended; nothing but the worker ends us."""
    wake, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    return wake


# --- starting


def _start(order: dict[str, Any]) -> int:
    if order["mechanism"] != isolation.NAMESPACE:
        pid = _fork_job(order)
        _say(event="started", proc="")
        return pid
    isolation.enter_namespaces()
    ours, theirs = os.pipe()
    # Who asks before the first process can pass it on is heard once it can.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pid = os.fork()
    if pid == 0:
        os.close(theirs)
        _be_first(order, ours)
    os.close(ours)
    return pid  # the other end stays open as long as we live


def _be_first(order: dict[str, Any], parent: int) -> NoReturn:
    """Be the first process of the new tree: when it ends, the kernel kills every other one."""
    try:
        isolation.die_with_parent()
        if select.select([parent], [], [], 0)[0]:  # the parent was gone before it could be told to the kernel
            os._exit(1)
        proc = isolation.furnish()
        isolation.keep_inside()
        signal.signal(signal.SIGTERM, lambda *_: _signal(-1, signal.SIGTERM))  # to all of the tree but us
        pid = _fork_job(order)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        _say(event="started", proc=proc)
        _say(event="exit", status=_reap_until(pid))
    except OSError as error:
        _say(event="refused", error=error.strerror or str(error))
    finally:
        os._exit(0)


def _reap_until(pid: int) -> int:
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _fork_job(order: dict[str, Any]) -> int:
    """Fork and exec; an error on the way comes back through a pipe that a successful exec closes."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(order, write)
        except OSError as error:
            os.write(write, (error.strerror or str(error)).encode())
        finally:
            os._exit(127)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        why = stream.read()
    if not why:
        return pid
    os.waitpid(pid, 0)
    if why.startswith(_UNSTARTABLE):
        _say(event="unstartable", error=why[1:].decode())
        os._exit(0)
    raise OSError(0, why.decode())


def _become(order: dict[str, Any], errors: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if _LINUX:
        isolation.renounce_privileges()
    if order["mechanism"] == isolation.NAMESPACE:
        isolation.renounce_powers()
    elif order["mechanism"] == isolation.SECCOMP:
        isolation.forbid_sockets()
    prefix = isolation.SANDBOX_COMMAND if order["mechanism"] == isolation.SANDBOX else ()
    try:
        os.chdir(order["cwd"])
        argv = [*prefix, *order["argv"]]
        os.execve(argv[0], argv, order["env"])  # noqa: S606 - no shell is what is wanted
    except (OSError, ValueError) as error:
        os.write(errors, _UNSTARTABLE + f"{order['argv'][0]}: {error}".encode())


# --- watching


def _watch(job: Job, wake: int) -> None:
    """Return when the main process ended, by itself or by us."""
    while job.status is None:
        sources = [wake, 0] if job.lifeline else [wake]
        left = None if job.deadline is None else max(0.0, job.deadline - time.monotonic())
        ready = select.select(sources, [], [], left)[0]
        if wake in ready:
            os.read(wake, 4096)
        if 0 in ready:
            _obey(job, os.read(0, 1))
        if job.deadline is not None and time.monotonic() >= job.deadline:
            _kill(job)
        _reap(job)
    if not job.tree or job.status < 0:  # the first process of a tree tells of the job, unless it was killed with it
        _say(event="exit", status=job.status)


def _obey(job: Job, byte: bytes) -> None:
    now = time.monotonic()
    if byte == b"T" and job.deadline is None:
        job.deadline = now + job.order["grace"]
        _ask(job)
    elif byte != b"T":
        job.lifeline = byte != b""
        job.deadline = now


def _ask(job: Job) -> None:
    """Tell the whole job to end: the first process of a tree of its own tells the others."""
    below = descendants(os.getpid()) if _LINUX and not job.tree else [job.pid]
    for pid in below:
        _signal(pid, signal.SIGTERM)


def _kill(job: Job) -> None:
    """Kill the main process; of namespaces the kernel kills all others with the first."""
    _signal(job.pid if job.tree else -job.pid, signal.SIGKILL)  # negative: the whole group
    job.deadline = time.monotonic() + _STEP


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _reap(job: Job) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == job.pid:
                job.status = os.waitstatus_to_exitcode(ended[1])


# --- clearing away


def _clear(job: Job) -> int:
    """Kill whatever the job left; how many processes resisted. Of namespaces the kernel has killed all already."""
    if not _LINUX:
        _kill(job)
        return 0
    end = time.monotonic() + _LAST_RESORT
    return kill_below(os.getpid(), end)


def kill_below(root: int, end: float) -> int:
    """Kill all processes below one, which must be what adopts their orphans; how many are left at `end` (monotonic)."""
    while found := descendants(root):
        if time.monotonic() > end:
            return len(found)
        # First all are stopped, so that none forks between two kills.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                _signal(pid, number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_STEP)
    return 0


def remove_home(home: str) -> None:
    """Remove the home of a job, whatever it made of it: a link, folders that nobody may enter."""
    with contextlib.suppress(OSError):
        os.unlink(home)  # noqa: PTH108 - pathlib is not loaded here
        return
    _open_up(home)
    for place, folders, _ in os.walk(home):
        for name in folders:
            _open_up(f"{place}/{name}")
    shutil.rmtree(home, ignore_errors=True)


def _open_up(folder: str) -> None:
    if not os.path.islink(folder):  # noqa: PTH114 - likewise
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)  # noqa: PTH101 - likewise


def descendants(root: int) -> list[int]:
    """The living processes below one, by /proc (Linux)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not loaded here
        if name.isdigit() and (parent := _parent(name)):
            children.setdefault(parent, []).append(int(name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _parent(pid: str) -> int:
    """The parent of a living process; 0 of one that ended. proc_pid_stat(5): the name may hold blanks and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:  # noqa: PTH123 - likewise
            state, parent, *_ = stream.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if state.decode() in _ENDED else int(parent)
