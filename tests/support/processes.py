"""Real processes: run to an end that is certain, started to be killed, counted.

Linux only where it says so (/proc, strace). Only processes that the test itself started are ever signalled, by number.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

#: Seconds after which a test fails rather than hangs. Nothing that works comes near it.
LIMIT = 120.0

_EXEC = re.compile(r'^(?:\d+ +)?execve(?:at)?\((?:\w+, )?"((?:[^"\\]|\\.)*)".*\) = 0$')


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A process that ended: what it was, its exit code (negative: the signal), what it said."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"{' '.join(self.argv)}\nexit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def json(self) -> dict[str, Any]:
        """Parse stdout, all of it."""
        try:
            found: dict[str, Any] = json.loads(self.out)
        except ValueError as error:
            raise AssertionError(f"stdout is not JSON: {error}\n{self}") from error
        return found

    def expect(self, code: int = 0) -> Run:
        """Fail, with everything it said, unless the exit code is *code*."""
        assert self.code == code, f"expected exit {code}:\n{self}"
        return self


class Started(subprocess.Popen[str]):
    """A running process in a session of its own, with both outputs piped; leaving ``with`` kills its tree."""

    def __init__(self, argv: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path) -> None:
        super().__init__(
            [*map(str, argv)],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill_tree()
        super().__exit__(exc_type, value, traceback)

    def kill_tree(self) -> None:
        """SIGKILL it and all below it, at one instant as far as they can tell, and reap it."""
        kill_tree(self.pid)
        self.wait()

    def finish(self, limit: float = LIMIT) -> Run:
        """Wait for its end and give what it said."""
        try:
            out, err = self.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            self.kill_tree()
            out, err = self.communicate()
            pytest.fail(f"still running after {limit} s: {self._run(out, err)}")
        return self._run(out, err)

    def _run(self, out: str, err: str) -> Run:
        args = self.args
        assert isinstance(args, list)
        return Run(argv=tuple(map(str, args)), code=self.returncode, out=out, err=err)


def run(argv: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, limit: float = LIMIT) -> Run:
    """Run a command to its end, with closed stdin; one that outlasts *limit* seconds fails the test with its output."""
    with Started(argv, env=env, cwd=cwd) as process:
        return process.finish(limit)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Return as soon as *holds*; fail the test, naming *what*, when that never comes."""
    end = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"never: {what}")
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """Give the living processes below *pid*, parents first (Linux). Those it disowned are not found."""
    table = _processes()
    found = [pid]
    for parent in found:
        found += [child for child, entry in table.items() if entry.parent == parent]
    return found[1:]


def kill_tree(pid: int) -> None:
    """SIGKILL *pid*, all below it and all of its session (Linux: /proc); silent when they are gone.

    First everything is stopped, so that none can start another, or mend something, between two kills.
    """
    assert pid > 1, "only processes that the test started"
    frozen: set[int] = set()
    while new := {pid, *descendants(pid), *_session(pid)} - frozen:
        _signal(new, signal.SIGSTOP)
        frozen |= new
    _signal(frozen, signal.SIGKILL)


def strace_execs(argv: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path) -> list[str]:
    """Give the programs that a command and all below it executed with success, the command's own first (strace).

    A command that fails is a failed test: its count would prove nothing.
    """
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        options = ["-f", "-qq", "--seccomp-bpf", "-e", "trace=execve,execveat", "-e", "status=successful"]
        run([strace, *options, "-o", log, "--", *argv], env=env, cwd=cwd).expect()
        return parse_execs(log.read_text())


def parse_execs(log: str) -> list[str]:
    """Read the programs out of strace's lines: ``12 execve("/bin/true", ["true"], 0x7f /* 3 vars */) = 0``."""
    return [_unescaped(found[1]) for line in log.splitlines() if (found := _EXEC.match(line))]


class _Process(NamedTuple):
    parent: int
    session: int


def _processes() -> dict[int, _Process]:
    """Read all living processes; a zombie is none."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # "12 (a name) S 1 12 12 …": the name may hold blanks and parentheses, what follows the last one may not
                state, parent, _, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if state not in "ZX":
                    found[int(entry.name)] = _Process(int(parent), int(session))
    return found


def _session(pid: int) -> set[int]:
    return {one for one, entry in _processes().items() if entry.session == pid}


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _unescaped(text: str) -> str:
    """Undo strace's C escapes; a byte beyond ASCII is three octal digits."""
    return text.encode().decode("unicode_escape").encode("latin-1").decode()
