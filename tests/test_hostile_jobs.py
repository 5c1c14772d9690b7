"""However a hostile job ends: nothing of it runs on, it saw no secret, it sent no byte, and its record is true.

All of it happens in a network of the tests' own (see `tests/support/netns`), which has somebody who listens, and no way
out. That the same script reaches him where nothing holds it is in `test_isolation`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.hostile import MEGABYTE
from tests.support.processes import wait_until
from tests.support.users import USERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.arena import Attack
    from tests.support.processes import Started

pytest_plugins = ("tests.support.arena",)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and /proc are Linux")

COUNT = int(os.environ.get("AML_TEST_COUNT", "3"))
INTERRUPTED, HUNG_UP, TERMINATED, JOB_FAILED, KILLED = 130, 129, 143, 7, -9


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A way in which a job ends: what brings it about, and what the front end and the record then say."""

    act: Callable[[Attack, Started], object]
    code: int
    state: str
    why: str


def nothing(_attack: Attack, _front: Started) -> None:
    """Let it end by itself, or by its own limit."""


def to_group(number: signal.Signals) -> Callable[[Attack, Started], object]:
    """Send a signal as a terminal does: to the front end and whoever is in its group."""
    return lambda _, front: os.killpg(front.pid, number)


def killed(*roles: str, front: bool = False) -> Callable[[Attack, Started], object]:
    """SIGKILL the front end first, so that it cannot notice anything, then others of the job at one instant."""

    def act(attack: Attack, process: Started) -> None:
        if front:
            process.kill()
        attack.kill(*roles)

    return act


#: By name; a job that ends normally or by its limit needs nobody who waits for it to be ready.
ENDS = {
    "normal": End(act=nothing, code=0, state="succeeded", why=""),
    "timeout": End(act=nothing, code=JOB_FAILED, state="timeout", why="its time was up"),
    "ctrl-c": End(act=to_group(signal.SIGINT), code=INTERRUPTED, state="cancelled", why="the caller asked for it"),
    "sigterm": End(
        act=lambda _, front: front.terminate(), code=TERMINATED, state="cancelled", why="the caller asked for it"
    ),
    "sighup": End(act=to_group(signal.SIGHUP), code=HUNG_UP, state="cancelled", why="the caller asked for it"),
    "front-killed": End(act=killed(front=True), code=KILLED, state="cancelled", why="the caller died"),
    "worker-killed": End(
        act=killed("worker"), code=JOB_FAILED, state="lost", why="its worker was gone before it told of the end"
    ),
    "supervisor-killed": End(
        act=killed("supervisor"), code=JOB_FAILED, state="failed", why="its supervisor was killed"
    ),
}
#: Only the kernel is left to end such a job, so that it has to be in namespaces.
TOGETHER = {
    "worker-and-supervisor-killed": End(
        act=killed("worker", "supervisor"),
        code=JOB_FAILED,
        state="lost",
        why="its worker was gone before it told of the end",
    ),
    "all-killed": End(
        act=killed("worker", "supervisor", front=True),
        code=KILLED,
        state="lost",
        why="its worker was gone before it told of the end",
    ),
}
CUT_OFF = ENDS | TOGETHER


def end(
    attacks: Callable[..., Attack],
    name: str,
    user: str,
    *,
    front: str = "aml",
    output: int = 2 * MEGABYTE,
    **given: object,
) -> Attack:
    """Let a job come to an end, and hold what is true of it wherever it ran: its record, and that nothing is left."""
    expected = CUT_OFF[name]
    timeout = {"timeout": 2} if name == "timeout" else {}
    attack = attacks(user, stays=name != "normal", output=output, **timeout, **given)
    process = attack.start(front)
    if name not in {"normal", "timeout"}:
        attack.wait_ready()
        expected.act(attack, process)
    run = process.finish()
    if expected.code == KILLED:
        attack.wait_gone()
    assert attack.survivors() == {}, run
    assert attack.states() == {expected.state: 1}
    assert run.code == (1 if front == "nox" and expected.code == JOB_FAILED else expected.code), run
    assert (attack.record["state"], attack.record.get("why", "")) == (expected.state, expected.why), run
    return attack


def assert_saw_and_sent_nothing(attack: Attack) -> None:
    """Hold it for a job that was cut off; one that its limit ended may not have come to its report."""
    assert attack.received() == {}
    assert attack.files_with_secret() == []
    assert attack.record["isolation"] == {"asked": "prefer", "in_force": True, "mechanism": "namespace", "refused": []}
    if attack.record["state"] == "timeout" and not (attack.job / "report.json").exists():
        return
    found = attack.report
    assert found["secrets"] == found["beneath"] == found["inherited"] == [], found
    ways = ("tcp", "udp", "dns", "loopback", "abstract", "elsewhere")
    assert [way for way in ways if not found[way].startswith("refused")] == [], found
    if attack.record["state"] != "lost":  # there was nobody left to remove it, where all were killed
        assert not Path(found["home"]).exists()


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("name", CUT_OFF)
def test_a_job_that_is_cut_off_leaves_nothing_sees_nothing_and_sends_nothing(
    attacks: Callable[..., Attack], name: str, user: str
) -> None:
    assert_saw_and_sent_nothing(end(attacks, name, user))


@pytest.mark.parametrize("name", ["normal", "ctrl-c", "sigterm", "sighup", "front-killed", "worker-killed"])
def test_under_nox_it_is_the_same(attacks: Callable[..., Attack], name: str) -> None:
    assert_saw_and_sent_nothing(end(attacks, name, "plain", front="nox"))


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("name", ENDS)
def test_a_job_that_nothing_holds_is_ended_with_all_that_it_started(
    attacks: Callable[..., Attack], name: str, user: str
) -> None:
    """Daemons that ignore every signal, and that belong to nobody any more once their supervisor is killed."""
    attack = end(attacks, name, user, isolation="off")
    assert attack.record["isolation"]["mechanism"] == "none"


@pytest.mark.parametrize("name", ["normal", "front-killed", "supervisor-killed", "worker-killed"])
def test_under_a_filter_it_is_ended_likewise_and_sends_nothing(attacks: Callable[..., Attack], name: str) -> None:
    attack = end(attacks, name, "plain", isolation="require", refuses="namespaces")
    assert attack.record["isolation"]["mechanism"] == "seccomp"
    assert {*attack.received()} <= {"abstract"}  # a local socket, which a filter cannot tell from another


def test_metrics_that_are_not_json_are_no_metrics_of_the_record(attacks: Callable[..., Attack]) -> None:
    attack = end(attacks, "normal", "plain")
    assert "NaN" in (attack.job / "metrics.json").read_text()
    assert attack.record["metrics"] is None
    assert "NaN" not in (attack.job / "job.json").read_text()


def test_a_gate_on_metrics_that_are_not_json_fails(attacks: Callable[..., Attack]) -> None:
    attack = attacks("plain", gates=[{"metric": "accuracy", "min": 0.5}])
    attack.run(8)
    assert attack.survivors() == {}


@pytest.mark.parametrize("asked", ["prefer", "require"])
def test_a_supervisor_that_is_killed_as_it_starts_is_no_reason_for_less_isolation(
    attacks: Callable[..., Attack], asked: str
) -> None:
    """It refused nothing: what comes next in the order of mechanisms is for kernels that do."""
    attack = attacks("plain", isolation=asked)
    process = attack.start()
    wait_until(lambda: attack.role("supervisor") is not None, "the supervisor starts")
    attack.kill("supervisor")
    run = process.finish().expect(JOB_FAILED)
    assert attack.survivors() == {}
    assert (attack.received(), attack.record["state"]) == ({}, "failed"), run
    assert attack.record["why"] == "its supervisor was killed", run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal", "front-killed"])
def test_much_output_is_all_in_the_log_and_holds_nobody_up(attacks: Callable[..., Attack], name: str) -> None:
    """A gigabyte of it in the soak; nobody reads what the front end shows."""
    size = 20 * COUNT * MEGABYTE
    attack = end(attacks, name, "plain", output=size, quiet=True)
    assert_saw_and_sent_nothing(attack)
    assert (attack.job / "log.txt").stat().st_size == size


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["front", "worker", "supervisor"])
@pytest.mark.parametrize("number", range(COUNT))
def test_killed_at_any_instant_a_job_is_told_of_truly_and_nothing_is_left(
    attacks: Callable[..., Attack], job_seconds: float, victim: str, number: int
) -> None:
    """Also while it is made, handed over, and cut off: the seed says when."""
    moment = random.Random(f"{victim} {number}").uniform(0, job_seconds)  # noqa: S311 - an instant, not a secret
    attack = attacks("plain", output=MEGABYTE)
    process = attack.start()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(moment)
    killed(*([] if victim == "front" else [victim]), front=victim == "front")(attack, process)
    run = process.finish()
    attack.wait_gone()
    assert attack.received() == {}, run
    states = attack.states()
    assert sum(states.values()) == len(attack.records) <= 1, run
    assert states.keys() <= {"succeeded", "failed", "cancelled", "lost"}, run
    for job in attack.records:
        assert job["state"] != "succeeded" or (job["exit_status"] == 0 and attack.report["secrets"] == []), run
