"""The only file that starts processes for provisioning: hermetic environment, limit, end of the whole tree, streaming.

Nothing of the caller's environment reaches uv or pip but the names below: a variable that changes a resolution would be
an input that nobody recorded. Whatever a tool prints is shown line by line with secrets masked; on a terminal it gets a
terminal of its own, so that its progress bars are what the user knows.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote, urlsplit

from aml_nox import interrupts
from aml_nox.errors import AmlError, Code
from aml_nox.screen import Screen, put

KEPT = frozenset(
    """HOME USER LOGNAME PATH TMPDIR TEMP TMP LANG TZ TERM LD_LIBRARY_PATH USERPROFILE APPDATA LOCALAPPDATA PROGRAMDATA
    SYSTEMROOT SYSTEMDRIVE COMSPEC PATHEXT WINDIR HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR
    SSL_CLIENT_CERT REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NETRC UV_NATIVE_TLS UV_SYSTEM_CERTS UV_KEYRING_PROVIDER
    UV_CACHE_DIR UV_PYTHON_CACHE_DIR UV_HTTP_TIMEOUT UV_HTTP_RETRIES""".split()
)
KEPT_PREFIXES = ("LC_", "XDG_", "UV_CONCURRENT_")
_CREDENTIAL = re.compile(r"UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)")
_INDEX_VARIABLES = re.compile(r"(UV|PIP)_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX)")
_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")
_WINDOWS = sys.platform == "win32"
_TAIL = 400
_GRACE = 5.0
PIPE = subprocess.PIPE
Child = subprocess.Popen[bytes]
_PIECE = 65536
_KEPT_SIZE = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A process that ended: `tail` is the end of its stderr with secrets masked, `timed_out` says that we ended it."""

    argv: tuple[str, ...]
    status: int
    out: str
    err: str
    timed_out: bool

    @property
    def tail(self) -> str:
        """The last characters of stderr, for an error message."""
        end = self.err[-_TAIL:].strip()
        # From the first whole line on, where there is one.
        return end.partition("\n")[2] or end if len(self.err) > _TAIL else end


def hermetic(environ: Mapping[str, str], **extra: str) -> dict[str, str]:
    """What of the caller's environment a tool may see, and `extra`."""
    return {name: value for name, value in environ.items() if _kept(name)} | extra


def _kept(name: str) -> bool:
    upper = name.upper()
    # A proxy variable counts in both cases; elsewhere POSIX names are exact and Windows has none in lower case.
    exact = upper if _WINDOWS or upper.endswith("_PROXY") else name
    return exact in KEPT or exact.startswith(KEPT_PREFIXES) or _CREDENTIAL.fullmatch(exact) is not None


def dropped_index_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that would have named an index and were not passed on: a hint for a fetch that failed."""
    return sorted(name for name in environ if _INDEX_VARIABLES.fullmatch(name))


@dataclass(frozen=True, slots=True)
class Redactor:
    """Masks what must not be read: the secrets of an environment, in each form they take, and any URL's userinfo."""

    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Redactor:
        """The secrets that `hermetic` lets through: index passwords and those inside proxy URLs."""
        found: set[str] = set()
        for name, value in environ.items():
            if name.startswith("UV_INDEX_") and name.endswith("_PASSWORD"):
                user = environ.get(name.removesuffix("PASSWORD") + "USERNAME", "")
                found |= _forms(user, value)
            elif name.upper().endswith("_PROXY"):
                with contextlib.suppress(ValueError):
                    parts = urlsplit(value)
                    found |= _forms(unquote(parts.username or ""), unquote(parts.password or ""))
                    found |= {parts.password or ""} - {""}
        return cls(tuple(sorted(found, key=len, reverse=True)))

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return _USERINFO.sub("***@", text)

    def open_end(self, text: str) -> int:
        """How many characters at the end of a text may begin a secret: what follows has to be seen first."""
        sizes = (size for secret in self.secrets for size in range(1, len(secret)) if text.endswith(secret[:size]))
        return max(sizes, default=0)


def _forms(user: str, password: str) -> set[str]:
    if not password:
        return set()
    pair = base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogateescape")).decode()
    return {password, pair, *(quote(password, safe=safe, errors="surrogateescape") for safe in ("", "/"))}


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path,
    limit: float | None,
    stdin: str = "",
    screen: Screen | None = None,
) -> Finished:
    """Run a tool to its end and return what it printed; with a screen, its stderr is shown while it runs.

    `limit` is in seconds. Whatever ends the wait (the limit, Ctrl-C, a signal) ends the whole process group first.

    Raises:
        OSError: the program cannot be started.

    """
    redact = Redactor.of(env)
    with contextlib.ExitStack() as stack:
        out = _Pump(stack, redact=redact)
        err = _Pump(stack, redact=redact, screen=screen)
        child = start(argv, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=out.theirs, stderr=err.theirs)
        feeder = threading.Thread(target=_feed, args=(child, stdin), daemon=True)
        for thread in (out, err, feeder):
            thread.start()
        status, timed_out = supervise(child, limit=limit, grace=_GRACE)
        words = tuple(map(str, argv))
        return Finished(argv=words, status=status, out=out.text(), err=redact(err.text()), timed_out=timed_out)


def start(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] | None = None,
    kept: Sequence[int] = (),
) -> Child:
    """Start a program with this environment and no other; `kept` are descriptors that it inherits under their numbers.

    Raises:
        OSError: the program cannot be started.

    """
    # A session of its own: the group is the tree that we end, and a terminal's Ctrl-C reaches us, not half of the tree.
    return subprocess.Popen(
        [str(word) for word in argv],
        env=dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        pass_fds=tuple(kept),
    )


def has_ended(child: Child, limit: float = 0.0) -> bool:
    """Wait for a child, `limit` seconds at most; whether it has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(limit)
    return child.returncode is not None


def tell(child: Child, data: bytes) -> None:
    """Write to the input of a child; one that is gone hears nothing."""
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.write(data)
            child.stdin.flush()


def hang_up(child: Child) -> None:
    """End the input of a child."""
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()


def _feed(child: Child, text: str) -> None:
    if child.stdin is not None:
        with contextlib.suppress(OSError), child.stdin:  # a tool that ended before it read has its own error to tell
            child.stdin.write(text.encode())


def supervise(child: Child, *, limit: float | None, grace: float) -> tuple[int, bool]:
    """Wait for a child that leads its own group; the group is gone when this returns or raises."""
    ended = False
    try:
        ended = _wait(child, limit)
    finally:
        _end(child, grace)
    return child.returncode, not ended


def _wait(child: Child, limit: float | None) -> bool:
    """Wait for the end of a child, in steps between which a request to end is honoured; whether it came in time."""
    end = math.inf if limit is None else time.monotonic() + limit
    while (left := end - time.monotonic()) > 0:
        interrupts.honour()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(min(left, interrupts.STEP))
            return True
    return child.poll() is not None


def _end(child: Child, grace: float) -> None:
    """End what is left of a group: asked, waited for (a second request cuts that short), killed."""
    try:
        _signal_tree(child, hard=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
    finally:
        _signal_tree(child, hard=True)
        child.wait()


def _signal_tree(child: Child, *, hard: bool) -> None:
    if sys.platform == "win32":  # not tried: no Windows machine at hand
        if child.poll() is None:
            killer = ["taskkill", "/T", "/PID", str(child.pid), *(["/F"] if hard else [])]
            subprocess.run(killer, check=False, capture_output=True)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL if hard else signal.SIGTERM)


class _Pump:
    """Reads one stream of a child in a thread, keeps its end, and shows it on a screen with secrets masked."""

    def __init__(self, stack: contextlib.ExitStack, *, redact: Redactor, screen: Screen | None = None) -> None:
        self._screen, self._redact = screen, redact
        self._live = screen is not None and screen.live and not _WINDOWS
        self._ours, self.theirs = _terminal() if self._live else os.pipe()
        self._theirs_open = True
        self._kept: deque[str] = deque()
        self._size = 0
        self._thread = threading.Thread(target=self._pump, daemon=True)
        stack.callback(self._close)

    def start(self) -> None:
        """Start reading; our copy of the child's end is closed, so that its end is the end of the stream."""
        self._shut_theirs()
        self._thread.start()

    def text(self) -> str:
        """All that was kept. A grandchild outside the group can hold the stream open: it is not waited for."""
        self._thread.join(2)
        return "".join(list(self._kept))

    def _pump(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        with contextlib.suppress(OSError):  # EIO is how a pseudo-terminal says that its other end is closed
            while data := os.read(self._ours, _PIECE):
                text = decoder.decode(data)
                self._keep(text)
                rest = self._show(rest + text)
        os.close(self._ours)
        self._say(self._redact(rest + decoder.decode(b"", final=True)))

    def _keep(self, text: str) -> None:
        """A program that never stops talking must not fill the memory."""
        self._kept.append(text)
        self._size += len(text)
        while self._size > _KEPT_SIZE and len(self._kept) > 1:
            self._size -= len(self._kept.popleft())

    def _show(self, text: str) -> str:
        """Show what can be shown, and return what has to wait for what follows it: half a line, half a secret."""
        text = self._redact(text)
        if self._live or len(text) > _PIECE:
            cut = len(text) - self._redact.open_end(text)
        else:
            cut = max(text.rfind("\n"), text.rfind("\r")) + 1
        self._say(text[:cut])
        return text[cut:]

    def _say(self, text: str) -> None:
        if self._live:
            put(sys.stderr, text)
        elif self._screen is not None:
            for line in filter(str.strip, re.split(r"[\r\n]", text)):
                self._screen.say(line.rstrip())

    def _shut_theirs(self) -> None:
        if self._theirs_open:
            os.close(self.theirs)
            self._theirs_open = False

    def _close(self) -> None:
        self._shut_theirs()
        if self._thread.ident is None:  # once started, it closes what it reads: nobody else may, while it does
            os.close(self._ours)


def _terminal() -> tuple[int, int]:
    """A pseudo-terminal as wide as ours, for the stderr of a tool whose progress the user should see (POSIX only)."""
    import pty  # noqa: PLC0415 - POSIX only
    import termios  # noqa: PLC0415 - POSIX only

    ours, theirs = pty.openpty()
    with contextlib.suppress(OSError, termios.error):
        termios.tcsetwinsize(theirs, termios.tcgetwinsize(sys.stderr.fileno()))
        mode = termios.tcgetattr(theirs)
        mode[1] &= ~termios.OPOST  # the real terminal does the line ends
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
    return ours, theirs


def cannot_start(program: str | Path, error: OSError) -> AmlError:
    """The error for a program that exists and does not start."""
    return AmlError(Code.STATE, f"{program} cannot be started: {error.strerror or error}")
