"""How tools are run: what they see, what is shown of them, and that nothing of them outlives the call."""

from __future__ import annotations

import base64
import os
import pty
import re
import signal
import string
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aml_nox import process
from aml_nox.process import Finished, Redactor, hermetic
from aml_nox.screen import Screen
from tests.support.processes import LIMIT, wait_until
from tests.support.project import Project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO

ESCAPE = "\x1b["
BIG = 8 * 2**20
SECRET = "hunter2hunter2"  # noqa: S105 - it is one, of the tests
#: DESIGN.md, section 5, "Hermetic": written here a second time, on purpose.
TABLE = frozenset(
    """
    HOME USER LOGNAME PATH TMPDIR TEMP TMP LANG TZ TERM LD_LIBRARY_PATH USERPROFILE APPDATA LOCALAPPDATA PROGRAMDATA
    SYSTEMROOT SYSTEMDRIVE COMSPEC PATHEXT WINDIR HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy
    all_proxy no_proxy SSL_CERT_FILE SSL_CERT_DIR SSL_CLIENT_CERT REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NETRC UV_NATIVE_TLS
    UV_SYSTEM_CERTS UV_KEYRING_PROVIDER UV_CACHE_DIR UV_PYTHON_CACHE_DIR UV_HTTP_TIMEOUT UV_HTTP_RETRIES
    """.split()
)
FAMILIES = re.compile(r"LC_.*|XDG_.*|UV_CONCURRENT_.*|UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)", re.DOTALL)


@dataclass
class Reader:
    """A screen that remembers."""

    lines: list[str] = field(default_factory=list)

    @property
    def screen(self) -> Screen:
        return Screen(self.lines.append)


def python(
    folder: Path,
    program: str,
    *,
    limit: float = LIMIT,
    stdin: str = "",
    reader: Reader | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Finished:
    """Run a program in this interpreter through the product's one function for it."""
    env = {**os.environ, **(secrets or {})}
    screen = reader.screen if reader else None
    return process.run([sys.executable, "-c", program], env=env, cwd=folder, limit=limit, stdin=stdin, screen=screen)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


@pytest.fixture
def orphans() -> Iterator[list[int]]:
    """Give a list of process ids that are killed at the end, should the product have left them."""
    pids: list[int] = []
    yield pids
    for pid in filter(is_alive, pids):
        os.kill(pid, signal.SIGKILL)


# --- what a tool sees


@given(st.dictionaries(st.text(string.ascii_letters + string.digits + "_", min_size=1), st.text()))
def test_nothing_outside_the_table_ever_passes(environ: dict[str, str]) -> None:
    assert {name for name in hermetic(environ) if name not in TABLE and not FAMILIES.fullmatch(name)} == set()


@given(st.sampled_from(sorted(TABLE)), st.text(string.ascii_uppercase + "_", max_size=3))
def test_a_name_that_only_resembles_one_of_the_table_does_not_pass(name: str, more: str) -> None:
    others = {f"{name}{more}", f"{more}{name}", name.swapcase()} - TABLE
    wanted = {other for other in others if FAMILIES.fullmatch(other)}
    assert set(hermetic(dict.fromkeys(others, "x"))) == wanted


def test_all_of_the_table_passes_unchanged() -> None:
    families = [
        "LC_ALL",
        "XDG_CACHE_HOME",
        "UV_CONCURRENT_DOWNLOADS",
        "UV_INDEX_CORP_USERNAME",
        "UV_INDEX_A_1_PASSWORD",
    ]
    environ = {name: f" {name} é\n" for name in (*TABLE, *families)}
    assert hermetic(environ) == environ


@pytest.mark.parametrize(
    "name",
    """UV_INDEX UV_DEFAULT_INDEX UV_INDEX_URL UV_EXTRA_INDEX_URL UV_INDEX_STRATEGY UV_CONSTRAINT UV_OVERRIDE UV_EXCLUDE
    UV_EXCLUDE_NEWER UV_RESOLUTION UV_CONFIG_FILE UV_VENV_CLEAR UV_PYTHON UV_SYSTEM_PYTHON UV_LINK_MODE UV_OFFLINE
    UV_PYTHON_INSTALL_DIR UV_PROJECT_ENVIRONMENT PIP_TARGET PIP_PREFIX PIP_CONFIG_FILE PYTHONPATH PYTHONHOME
    PYTHONSTARTUP VIRTUAL_ENV CONDA_PREFIX FORCE_COLOR NO_COLOR RUST_LOG LD_PRELOAD AWS_SECRET_ACCESS_KEY""".split(),
)
def test_what_would_change_a_result_or_betray_a_secret_does_not_pass(name: str) -> None:
    assert hermetic({name: "x"}) == {}


def test_a_tool_gets_its_environment_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX_URL", "from the caller")
    tell = "import os; print(sorted(os.environ))"
    done = process.run([sys.executable, "-I", "-c", tell], env={"A": "1"}, cwd=tmp_path, limit=LIMIT)
    assert done.out.strip() in {"['A']", "['A', 'LC_CTYPE']"}  # Python itself may set the second


# --- what goes in


def test_stdin_arrives_whole_and_ends(tmp_path: Path) -> None:
    text = "é" * 200_000
    tell = "import sys; data = sys.stdin.buffer.read(); print(len(data), data[-2:])"
    assert python(tmp_path, tell, stdin=text).out.split() == ["400000", "b'\\xc3\\xa9'"]


def test_stdin_is_empty_where_nothing_is_given(tmp_path: Path) -> None:
    assert python(tmp_path, "import sys; print(repr(sys.stdin.read()))").out.strip() == "''"


@pytest.mark.parametrize("program", ["pass", "import os; os.close(0)"], ids=["ends", "closes it"])
def test_a_tool_that_never_reads_its_stdin_is_no_fault(tmp_path: Path, program: str) -> None:
    done = python(tmp_path, program, stdin="x" * BIG)
    assert (done.status, done.timed_out, done.err) == (0, False, "")


# --- what comes out


def test_the_screen_gets_whole_lines_while_the_tool_runs(tmp_path: Path) -> None:
    """Half a line waits for its other half; the tool goes on only after the first line was seen."""
    reader = Reader()
    program = """
import os, sys, time
os.write(2, b"one\\ntw")
while not os.path.exists("seen"):
    time.sleep(0.001)
os.write(2, b"o\\n\\n   \\nthree")
"""
    thread = threading.Thread(target=lambda: _touch_when(lambda: reader.lines == ["one"], tmp_path / "seen"))
    thread.start()
    done = python(tmp_path, program, reader=reader)
    thread.join()
    assert reader.lines == ["one", "two", "three"]
    assert done.err == "one\ntwo\n\n   \nthree"


def _touch_when(holds: Callable[[], bool], path: Path) -> None:
    wait_until(holds, "the first line was shown")
    path.touch()


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (rb"caf\xe9\n", ["caf\ufffd"]),
        (rb"a\0b\n", ["a\0b"]),
        (rb"10%\r20%\r\nend\r\n", ["10%", "20%", "end"]),
        (rb"\xe2\x82\xac", ["€"]),
        (rb"\xe2\x82", ["\ufffd"]),
    ],
    ids=["latin-1", "nul", "carriage returns", "no line end", "half a character"],
)
def test_bytes_of_any_kind_are_shown(tmp_path: Path, data: bytes, shown: list[str]) -> None:
    reader = Reader()
    done = python(tmp_path, f"import os; os.write(2, b'{data.decode()}')", reader=reader)
    assert reader.lines == shown
    assert done.status == 0


@pytest.mark.parametrize("stream", [1, 2], ids=["stdout", "stderr"])
def test_output_without_end_fills_no_memory_and_keeps_its_last_words(tmp_path: Path, stream: int) -> None:
    shown = [0]
    size = 32 * 2**20
    write = f"os.write({stream}, b'x' * 2**16)"
    tool = f"import os\nfor _ in range({size >> 16}): {write}\nos.write({stream}, b'END')"
    argv = [sys.executable, "-c", tool]
    done = process.run(
        argv, env=os.environ, cwd=tmp_path, limit=LIMIT, screen=Screen(lambda text: shown.append(len(text)))
    )
    kept = done.out if stream == 1 else done.err
    assert kept.endswith("xEND")
    assert len(kept) < size / 4
    assert max(shown) < size / 4


def test_the_last_words_of_a_tool_are_those_of_an_error(tmp_path: Path) -> None:
    done = python(tmp_path, "import sys; sys.stderr.write('x' * 5000 + 'END \\n'); sys.exit(3)")
    assert done.status == 3
    assert done.tail == "x" * (400 - len("END \n")) + "END"


# --- that nothing outlives the call


#: Starts a child of its own, both deaf to SIGTERM, says their numbers, and never ends.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
deaf = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
deaf.stdout.readline()
open("pids", "w").write(f"{os.getpid()} {deaf.pid}")
time.sleep(60)
"""


def test_the_limit_ends_the_whole_group_also_what_is_deaf_to_sigterm(
    tmp_path: Path, orphans: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE", 0.1)
    done = python(tmp_path, STUBBORN, limit=1)
    orphans += map(int, (tmp_path / "pids").read_text().split())
    assert done.timed_out
    assert done.status == -signal.SIGKILL
    wait_until(lambda: not any(map(is_alive, orphans)), "the group is gone")


def test_the_limit_gives_a_tool_time_to_clean_up(tmp_path: Path) -> None:
    program = """
import signal, sys, time
def leave(*_):
    print("cleaned up", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, leave)
time.sleep(60)
"""
    done = python(tmp_path, program, limit=1)
    assert (done.timed_out, done.status, done.out) == (True, 5, "cleaned up\n")


def test_a_child_that_a_tool_leaves_behind_ends_with_it(tmp_path: Path, orphans: list[int]) -> None:
    program = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    )
    done = python(tmp_path, program)
    orphans.append(int(done.out))
    assert not done.timed_out
    wait_until(lambda: not is_alive(orphans[0]), "the child is gone")


def test_a_daemon_that_holds_the_pipes_of_a_tool_holds_nobody_up(tmp_path: Path, orphans: list[int]) -> None:
    """One in a session of its own is out of reach; what the tool itself said is kept."""
    program = """
import subprocess, sys
daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(daemon.pid, flush=True)
"""
    before = descriptors()
    done = python(tmp_path, program, stdin="x" * BIG)
    orphans.append(int(done.out))
    assert is_alive(orphans[0])
    assert (done.status, done.timed_out) == (0, False)
    os.kill(orphans[0], signal.SIGKILL)
    wait_until(lambda: descriptors() <= before, "what the daemon held is closed")


def descriptors() -> set[Path]:
    return {*Path("/proc/self/fd").iterdir()}


def test_what_cannot_be_started_leaves_no_descriptor_open(tmp_path: Path) -> None:
    def run_nothing() -> None:
        with pytest.raises(FileNotFoundError):
            process.run([tmp_path / "nothing"], env={}, cwd=tmp_path, limit=LIMIT)

    run_nothing()
    before = descriptors()
    run_nothing()
    assert descriptors() <= before


# --- secrets


PASSWORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=4)


@given(PASSWORDS, st.text(string.ascii_letters, min_size=1), st.text(string.ascii_letters))
def test_a_password_is_masked_raw_encoded_and_as_a_header(password: str, user: str, around: str) -> None:
    environ = {"UV_INDEX_CORP_USERNAME": user, "UV_INDEX_CORP_PASSWORD": password}
    header = base64.b64encode(f"{user}:{password}".encode()).decode()
    for form in (password, quote(password, safe=""), header, f"http://{user}:{quote(password, safe='')}@host/"):
        shown = Redactor.of(environ)(f"{around} {form} {around}")
        assert form not in shown
        assert "***" in shown


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy", "ALL_PROXY"])
def test_the_password_of_a_proxy_is_masked_in_the_form_that_it_has_behind_the_url_too(name: str) -> None:
    redact = Redactor.of({name: "http://ada:s%40fe%2Fly@proxy:3128"})
    header = base64.b64encode(b"ada:s@fe/ly").decode()
    for form in ("s%40fe%2Fly", "s@fe/ly", header):
        assert form not in redact(f"a {form} b")


@pytest.mark.parametrize("url", ["https://u:p@h/x", "ftp://token@h/x", "http://:p@h"])
def test_userinfo_of_any_url_is_masked_and_its_host_stays(url: str) -> None:
    shown = Redactor()(f"tried {url}, twice {url}")
    assert shown.count("//***@h") == 2


def test_text_without_a_secret_stays_as_it_is() -> None:
    text = "Installed 1 package from https://host/a@b in 5ms: mail me@host"
    assert Redactor.of({"UV_INDEX_A_PASSWORD": "s3cret", "HTTP_PROXY": "http://[", "NO_PROXY": "x"})(text) == text


def test_a_password_that_no_text_can_hold_is_no_fault() -> None:
    assert Redactor.of({"UV_INDEX_A_PASSWORD": "\udcff secret"})("x") == "x"


@pytest.mark.parametrize("gap", ["", "x" * 70_000], ids=["in one line", "in a line without end"])
def test_a_secret_that_comes_in_two_pieces_is_masked(tmp_path: Path, gap: str) -> None:
    reader = Reader()
    program = f"""
import os, time
os.write(2, b"{gap}hunter2")
time.sleep(0.05)
os.write(2, b"hunter2 end")
"""
    done = python(tmp_path, program, reader=reader, secrets={"UV_INDEX_A_PASSWORD": SECRET})
    assert "hunter" not in "".join(reader.lines) + done.err
    assert reader.lines[-1].endswith("*** end")


# --- a terminal


def in_a_terminal(project: Project, *args: str) -> str:
    """Run Python to its success with a terminal as stderr, and give all that was shown there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *args],
        env=project.environment({"TERM": "xterm-256color", "UV_INDEX_A_PASSWORD": SECRET}),
        cwd=project.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        start_new_session=True,
    ) as child:
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            shown = b"".join(iter(lambda: _read(terminal), b""))
        assert child.wait() == 0, shown.decode()
    return shown.decode()


def _read(terminal: IO[bytes]) -> bytes:
    with suppress(OSError):  # EIO: the other end is closed
        return terminal.read(65536)
    return b""


def test_on_a_terminal_uv_shows_its_progress_and_elsewhere_whole_plain_lines(project: Project) -> None:
    shown = in_a_terminal(project, "-m", "aml_nox", "provision")
    assert ESCAPE in shown
    assert "demo-alpha" in shown
    assert "is ready" in shown
    assert len(in_a_terminal(project, "-m", "aml_nox", "provision").splitlines()) == 1
    run = project.aml("provision", "--force", env={"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "RUST_LOG": "debug"})
    assert ESCAPE not in run.expect().err
    assert " + demo-alpha==1.0\n" in run.err
    assert not any(line.startswith("DEBUG") for line in run.err.splitlines())


@pytest.mark.parametrize("pieces", [("x hunter2hunter2 y\n",), ("x hunter2", "hunter2 y\n"), ("x hunter2", "hunter2")])
def test_a_secret_is_masked_on_a_terminal_too(project: Project, pieces: tuple[str, ...]) -> None:
    tool = f"import os, time; [(os.write(2, piece.encode()), time.sleep(0.05)) for piece in {pieces!r}]"
    project.write(
        "show.py",
        "import os, sys\nfrom pathlib import Path\nfrom aml_nox import process\nfrom aml_nox.screen import Screen\n"
        f"argv = [sys.executable, '-c', {tool!r}]\n"
        "process.run(argv, env=os.environ, cwd=Path(), limit=60, screen=Screen(print, live=True))\n",
    )
    assert in_a_terminal(project, "show.py").split("\r\n")[0].rstrip(" y") == "x ***"
