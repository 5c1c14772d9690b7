"""The verb `jobs`: the list, one job, what a terminal shows of it, and its end on request."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import Started, wait_until
from tests.test_queue import HOLD, Shop
from tests.test_train import POLITE, TELLING, WAIT, Trainer, assert_gone, record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.processes import Run
    from tests.support.project import Project

pytest_plugins = ("tests.support.ready",)

GATE = {"metric": "accuracy", "min": 0.9}
#: Characters that would move the cursor, colour what follows, or ring.
EVIL = "\x1b[2J\x1b]0;title\x07\r\u202e\x9b31m"


@pytest.fixture
def trainer(ready: Project) -> Trainer:
    """Give the shared project as one that trains."""
    return Trainer(ready)


@pytest.fixture
def shop(trainer: Trainer) -> Iterator[Shop]:
    """Give a shop in which one job runs at once, until it is released."""
    made = Shop.open(trainer, HOLD)
    yield made
    made.close()


def jobs(trainer: Trainer, *words: str | Path, code: int = 0) -> Run:
    """Run ``aml-nox jobs`` to its end."""
    return trainer.project.aml("jobs", *words).expect(code)


def following(trainer: Trainer, folder: Path) -> Started:
    return trainer.project.start_aml("jobs", "--follow", folder.name)


def wait_shown(process: Started, text: str) -> None:
    """Read what a process says until it says this."""
    assert process.stderr
    assert any(text in line for line in process.stderr), f"it never said {text}"


# --- the list


def test_without_jobs_it_says_so(trainer: Trainer) -> None:
    run = jobs(trainer, "--json", "-")
    assert (run.json()["jobs"], run.err) == ([], "no jobs yet\n")


def test_the_list_is_a_table_for_people_and_the_records_for_programs(trainer: Trainer) -> None:
    """The oldest job is first, and of the metrics those are first that gates judged."""
    script = "import json; json.dump({'a': 1, 'b': 0.123456, 'c': 'x', 'accuracy': 0.95}, open('metrics.json', 'w'))"
    done = trainer.train(script, gates=[GATE])
    failed = trainer.train("raise SystemExit(3)", code=7)
    run = jobs(trainer, "--json", "-")
    assert run.json()["jobs"] == [record(done.folder), record(failed.folder)]
    head, first, second = (line.split() for line in run.err.splitlines())
    assert head == ["id", "state", "seconds", "program", "isolation", "metrics"]
    assert first[:2] == [done.job["id"], "succeeded"]
    assert first[-4:] == ["accuracy=0.95", "a=1", "b=0.1235", "…"]
    assert second[:2] == [failed.job["id"], "failed"]
    starts = [line.index(word) for line, word in zip(run.err.splitlines(), ("state", "succ", "fail"), strict=True)]
    assert len(set(starts)) == 1, "the columns stand below each other"


def test_a_job_is_found_by_its_id_its_end_or_its_beginning(trainer: Trainer) -> None:
    done = trainer.train("").job
    trainer.train("")
    for name in (done["id"], done["id"][-6:], done["id"].partition("Z")[0]):
        run = jobs(trainer, name, "--json", "-")
        assert run.json()["job"] == done
        assert f"id: {done['id']}\nstate: succeeded\n" in run.err


def test_what_is_told_of_one_job_is_a_line_for_each_thing(trainer: Trainer) -> None:
    done = trainer.train("import json; json.dump({'m': 1.25}, open('metrics.json', 'w'))")
    lines = jobs(trainer, done.job["id"]).err.splitlines()
    assert {"program: train.py", "exit_status: 0", "m: 1.25"} <= set(lines)
    assert f"environment: {done.job['inputs']['environment']}" in lines
    assert any(line.startswith(("isolation: ", "NOT ISOLATED: ")) for line in lines)


@pytest.mark.parametrize("words", [(), ("--follow",), ("--cancel",)], ids=["told", "followed", "cancelled"])
def test_a_job_that_is_not_there_or_not_alone_is_a_fault_of_the_call(trainer: Trainer, words: tuple[str, ...]) -> None:
    first, second = trainer.train("").job["id"], trainer.train("").job["id"]
    year = first[:4]
    assert second.startswith(year)
    run = jobs(trainer, *words, "no-such-job", code=2)
    assert run.err.startswith("AML_USAGE: there is no job no-such-job\n")
    run = jobs(trainer, *words, year, code=2)
    assert run.err.startswith(f"AML_USAGE: 2 jobs are called like {year}\n")


# --- following


@pytest.mark.parametrize(
    ("script", "code"),
    [("print('said')", 0), ("print('said')\nraise SystemExit(3)", 7), ("print('said')\nopen('metrics.json', 'w')", 8)],
)
def test_who_follows_a_job_that_ended_sees_all_of_it_and_has_its_exit_status(
    trainer: Trainer, script: str, code: int
) -> None:
    done = trainer.train(script, code=code, gates=[GATE] if code == 8 else [])
    run = jobs(trainer, "--follow", done.job["id"], "--json", "-", code=code)
    assert run.json()["job"] == record(done.folder)
    assert "said\n" in run.err
    assert run.err.splitlines()[-1] == done.run.err.splitlines()[-1]


@pytest.mark.parametrize(("last", "code"), [("", 0), ("raise SystemExit(3)", 7)])
def test_another_terminal_shows_a_job_while_it_runs_and_has_its_exit_status(
    trainer: Trainer, last: str, code: int
) -> None:
    trainer.write(f"print('so far')\nopen('pid', 'w')\n{WAIT}print('the end')\n{last}")
    caller, folder = trainer.start()
    follower = following(trainer, folder)
    wait_shown(follower, "so far")
    assert record(folder)["state"] == "running"
    (folder / "stop").touch()
    assert "the end\n" in follower.finish().expect(code).err
    caller.finish().expect(code)


def test_who_stops_following_stops_nothing_else(trainer: Trainer) -> None:
    trainer.write(f"print('so far')\nopen('pid', 'w')\n{WAIT}print('the end')")
    caller, folder = trainer.start()
    follower = following(trainer, folder)
    wait_shown(follower, "so far")
    follower.send_signal(signal.SIGINT)
    run = follower.finish().expect(130)
    assert "Traceback" not in run.err
    assert record(folder)["state"] == "running"
    (folder / "stop").touch()
    assert "the end\n" in caller.finish().expect().err


def test_a_job_that_waits_is_followed_into_its_run(shop: Shop) -> None:
    running, waiting = shop.start(), shop.start()
    running.wait_begun()
    follower = following(shop.trainer, waiting.folder)
    wait_shown(follower, "waits for its turn: train.max-parallel is 1")
    running.release()
    waiting.wait_begun()
    waiting.release()
    follower.finish().expect()


def test_who_follows_a_job_that_is_killed_is_told_that_it_is_lost(shop: Shop) -> None:
    work = shop.start()
    work.wait_begun()
    follower = following(shop.trainer, work.folder)
    wait_shown(follower, work.folder.name)
    work.kill()
    assert (
        f"{work.folder.name}: train.py is lost: its worker was gone before it told of the end"
        in follower.finish().expect(7).err
    )


REPLACED = {
    "pipe": "os.mkfifo(name)",
    "link": "os.symlink(os.environ['AML_ROOT'] + '/../secret', name)",
    "folder": "os.mkdir(name)",
    "nothing": "pass",
}


@pytest.mark.parametrize("how", REPLACED.values(), ids=REPLACED)
def test_what_a_job_puts_in_the_place_of_its_files_holds_up_and_misleads_nobody(trainer: Trainer, how: str) -> None:
    trainer.project.write("secret", "do not show\n")
    names = "('log.txt', 'events.jsonl', 'metrics.json')"
    spoil = f"import os\nfor name in {names}:\n    os.path.exists(name) and os.remove(name)\n    {how}\n"
    trainer.write(f"{spoil}open('pid', 'w')\n{WAIT}")
    caller, folder = trainer.start()
    with OnTerminal.start(trainer, "jobs", "--follow", folder.name) as terminal:
        terminal.wait_shown("isolat")
        (folder / "stop").touch()
        assert terminal.wait() == 0
    assert "do not show" not in terminal.text + caller.finish().expect().err
    assert record(folder)["state"] == "succeeded"


def test_a_job_that_writes_faster_than_it_is_read_is_cancelled_by_the_first_ctrl_c(trainer: Trainer) -> None:
    """Whoever still has much to show asks between two pieces of it whether to go on."""
    trainer.write(f"import os\nfor _ in range(256):\n    os.write(1, b'x' * 65536)\nopen('pid', 'w')\n{WAIT}")
    caller, folder = trainer.start()
    caller.send_signal(signal.SIGINT)
    left = 8 << 20  # half of it; then nobody reads
    while left:
        left -= len(os.read(fd(caller), min(left, 1 << 16)))
    wait_until(lambda: record(folder)["state"] == "cancelled", "the job is cancelled")
    caller.finish().expect(130)


def fd(process: Started) -> int:
    assert process.stderr
    return process.stderr.fileno()


# --- ending one


def test_a_running_job_is_cancelled_from_anywhere_with_its_grace(shop: Shop) -> None:
    shop.project.write("train.py", POLITE)
    work = shop.start()
    work.wait_begun()
    run = jobs(shop.trainer, "--cancel", work.folder.name[-6:], "--json", "-")
    assert run.json()["job"]["state"] == record(work.folder)["state"] == "cancelled"
    assert run.err == f"job {work.folder.name} is cancelled\n"
    assert (record(work.folder)["why"], record(work.folder)["exit_status"]) == ("it was cancelled", -signal.SIGTERM)
    assert not (work.folder / "cancel").exists()
    work.finish()
    assert_gone(work.folder)


def test_a_job_that_does_not_heed_is_killed_after_its_grace(shop: Shop) -> None:
    shop.spec["grace"] = 1
    shop.project.write("train.py", TELLING)
    work = shop.start()
    work.wait_begun()
    jobs(shop.trainer, "--cancel", work.folder.name)
    assert (work.folder / "told").exists()
    assert (record(work.folder)["state"], record(work.folder)["exit_status"]) == ("cancelled", -signal.SIGKILL)
    work.finish()
    assert_gone(work.folder)


def test_a_job_that_waits_is_cancelled_and_never_starts(shop: Shop) -> None:
    running, waiting = shop.start(), shop.start()
    running.wait_begun()
    jobs(shop.trainer, "--cancel", waiting.folder.name)
    found = waiting.finish()
    assert (found["state"], found["why"], "started" in found) == ("cancelled", "it was cancelled", False)
    assert not waiting.has_begun()
    assert running.state == "running"


def test_a_job_that_has_ended_cannot_be_cancelled(trainer: Trainer) -> None:
    done = trainer.train("")
    run = jobs(trainer, "--cancel", done.job["id"], code=2)
    assert run.err.startswith(f"AML_USAGE: job {done.job['id']} is succeeded already\n")
    assert record(done.folder)["state"] == "succeeded"


@pytest.mark.parametrize("state", ["succeeded", "failed", "nonsense"])
def test_a_job_that_says_it_has_ended_is_followed_and_cancelled_all_the_same(trainer: Trainer, state: str) -> None:
    """As long as its processes live it has not; its record is the worker's to write, from memory."""
    forged = f"found = json.load(open('job.json')) | {{'state': {state!r}, 'error': {{'code': 'NONE'}}}}"
    trainer.write(f"import json\n{forged}\njson.dump(found, open('job.json', 'w'))\nopen('pid', 'w')\n{WAIT}")
    process, folder = trainer.start()
    follower = following(trainer, folder)
    jobs(trainer, "--cancel", folder.name)
    assert record(folder)["state"] == "cancelled"
    assert "is cancelled: it was cancelled" in follower.finish().expect(7).err
    process.finish().expect(7)


def test_a_job_that_is_lost_cannot_be_cancelled(shop: Shop) -> None:
    work = shop.start()
    work.wait_begun()
    work.kill()
    assert "is lost already" in jobs(shop.trainer, "--cancel", work.folder.name, code=2).err


@pytest.mark.parametrize(("front", "code"), [("aml", 7), ("nox", 1)])
def test_the_front_end_of_a_job_that_somebody_cancels_says_so(trainer: Trainer, front: str, code: int) -> None:
    trainer.write(POLITE)
    caller, folder = trainer.start(front)
    jobs(trainer, "--cancel", folder.name)
    assert f"job {folder.name}: train.py is cancelled: it was cancelled" in caller.finish().expect(code).err
    assert record(folder)["state"] == "cancelled"
    assert_gone(folder)


# --- a terminal


@dataclass(slots=True)
class OnTerminal:
    """A program whose standard error is a terminal, and what it showed there."""

    process: Started
    ours: int
    shown: bytearray = field(default_factory=bytearray)

    @classmethod
    def start(cls, trainer: Trainer, *words: str, columns: int = 80) -> OnTerminal:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        # The shell moves the one stream; all else is as for every other program of the tests.
        argv = ["sh", "-c", 'exec "$@" 2>"$0"', os.ttyname(theirs), sys.executable, "-m", "aml_nox", *words]
        process = Started(argv, env=trainer.project.environment(), cwd=trainer.project.folder)
        trainer.project.started.append(process)
        wait_until(lambda: is_on(process, theirs), "it is on the terminal")
        os.close(theirs)
        os.set_blocking(ours, False)
        return cls(process, ours)

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill_tree()
        os.close(self.ours)

    @property
    def text(self) -> str:
        """All that was shown so far."""
        with contextlib.suppress(OSError):  # nothing more now; or its end, which a terminal tells so
            while data := os.read(self.ours, 1 << 16):
                self.shown += data
        return self.shown.decode()

    def wait_shown(self, words: str) -> None:
        wait_until(lambda: words in self.text, f"{words!r} is shown")

    def wait(self) -> int:
        """Wait for the end, reading on: a terminal that nobody reads holds its writer."""
        wait_until(lambda: self.text is not None and self.process.poll() is not None, "it ends")
        return self.process.returncode


def is_on(process: Started, terminal: int) -> bool:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{process.pid}/fd/2").readlink()) == os.ttyname(terminal)
    return False


def screen(text: str, columns: int) -> list[str]:
    """What stands on the lines of a terminal in the end: it knows both ends of a line, and how one is cleared."""
    lines, row, column = [""], 0, 0
    for piece in text.replace("\x1b[K", "\0"):
        if piece == "\n":
            row, lines = row + 1, [*lines, ""]
        elif piece == "\r":
            column = 0
        elif piece == "\0":
            lines[row] = lines[row][:column]
        else:
            if column == columns:
                row, column, lines = row + 1, 0, [*lines, ""]
            lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + 1 :]
            column += 1
    return lines


def progress(fraction: object, note: str = "") -> str:
    """Give a line of a script that tells of progress as the kit does."""
    line = json.dumps({"event": "progress", "fraction": fraction, "note": note})
    return f"open('events.jsonl', 'a').write({line + chr(10)!r})\n"


@pytest.mark.parametrize("words", ["train", "jobs"])
@pytest.mark.parametrize("columns", [80, 40])
def test_progress_is_shown_while_it_is_made_and_cleared_at_the_end(trainer: Trainer, words: str, columns: int) -> None:
    """It fits into one line of the terminal however long the note is: of two only the last would be cleared."""
    trainer.write(f"{progress(0.25, 'epoch 1 ' * 30)}open('pid', 'w')\n{WAIT}print('printed')\n{progress(1.0)}")
    if words == "train":
        terminal = OnTerminal.start(trainer, "train", columns=columns)
    else:
        _, job = trainer.start()
        terminal = OnTerminal.start(trainer, "jobs", "--follow", job.name, columns=columns)
    with terminal:
        terminal.wait_shown("\r\x1b[K[#####...............]  25 % epoch 1")
        assert "[#####" in screen(terminal.text, columns)[-1]
        (trainer.jobs[-1] / "stop").touch()
        assert terminal.wait() == 0
    lines = screen(terminal.text, columns)
    assert not [line for line in lines if "[#" in line or "epoch" in line]
    assert "printed" in lines


def test_progress_is_never_written_into_a_pipe(trainer: Trainer) -> None:
    done = trainer.train(progress(0.5, "half"))
    assert "half" not in done.run.err
    assert "half" not in jobs(trainer, "--follow", done.job["id"]).err


@pytest.mark.parametrize(
    "event",
    [
        progress(0.5, EVIL),
        progress(10**400),
        progress("0.5"),
        progress([]),
        "open('events.jsonl', 'w').write('[' * 100000 + '\\n')\n",
        "open('events.jsonl', 'w').write('{\"event\": \"progress\", \"fraction\": NaN}\\n7\\nnull\\n')\n",
        "open('events.jsonl', 'wb').write(b'x' * 5_000_000 + b'\\xff\\n')\n",
    ],
    ids=["control", "digits", "text", "list", "deep", "not-json", "one-line"],
)
def test_nothing_that_a_job_reports_moves_the_cursor_or_disturbs_who_watches(trainer: Trainer, event: str) -> None:
    trainer.write(f"{event}{progress(0.75, 'well')}open('pid', 'w')\n{WAIT}")
    with OnTerminal.start(trainer, "train") as terminal:
        terminal.wait_shown("75 % well")
        (trainer.jobs[-1] / "stop").touch()
        assert terminal.wait() == 0
    assert_harmless(terminal.text)


def assert_harmless(text: str) -> None:
    """Hold that nothing but ends of lines and the clearing of one stands between what can be read."""
    rest = text.replace("\r\x1b[K", "").replace("\r\n", "").replace("\n", "")
    assert not [character for character in rest if not character.isprintable()]


def test_no_name_or_value_of_a_metric_moves_the_cursor(trainer: Trainer) -> None:
    values = {EVIL: 1, "text": EVIL, "m": EVIL}
    script = f"import json; json.dump({values!r}, open('metrics.json', 'w'))"
    done = trainer.train(script, code=8, gates=[{"metric": "m", "min": 1}])
    name = done.job["id"]
    for text in (done.run.err, *(jobs(trainer, *words).err for words in ((), (name,)))):
        assert_harmless(text)
    assert_harmless(jobs(trainer, "--follow", name, code=8).err)
