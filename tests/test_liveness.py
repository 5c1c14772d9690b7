"""The lock that says that a process lives: handed on, held to the last holder's end, and in nobody's way who asks."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest

from aml_nox import liveness, process
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 300
#: Asks and asks, from a process of its own, until its input ends.
ASK = """
import pathlib, select, sys
from aml_nox import liveness
while not select.select([0], [], [], 0)[0]:
    if liveness.is_held(pathlib.Path("alive.lock")):
        open("seen-held", "w")
    open("asked", "w")
"""
#: Takes the lock, and notes whether the file `inside` was there when it had it.
TAKE = """
import os, pathlib
from aml_nox import liveness
open("trying", "w")
taken = liveness.hold(pathlib.Path("alive.lock"))
pathlib.Path("taken.part").write_text(f"{taken is not None} {os.path.exists('inside')}")
os.rename("taken.part", "taken")
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Give the place of a lock that nobody took yet."""
    return tmp_path / "alive.lock"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., process.Child]]:
    """Give what starts a program that lives until its input ends, `kept` being handed on to it."""
    children: list[process.Child] = []

    def begin(*argv: str, kept: tuple[int, ...] = ()) -> process.Child:
        child = process.start(
            argv or ["cat"], env=dict(os.environ), cwd=tmp_path, stdin=process.PIPE, stderr=None, kept=kept
        )
        children.append(child)
        return child

    yield begin
    for child in children:
        process.hang_up(child)
        child.wait()


def test_a_lock_that_nobody_ever_took_is_free(lock: Path) -> None:
    assert not liveness.is_held(lock)
    assert not lock.exists(), "asking makes nothing"


def test_a_held_lock_is_seen_and_not_given_twice(lock: Path) -> None:
    held = liveness.hold(lock)
    assert held is not None
    assert liveness.is_held(lock)
    assert liveness.hold(lock) is None
    os.close(held)
    assert not liveness.is_held(lock)


@pytest.mark.parametrize("last", ["killed", "ended"])
def test_it_is_held_until_the_last_of_those_it_was_handed_on_to_is_gone(
    lock: Path, start: Callable[..., process.Child], last: str
) -> None:
    held = liveness.hold(lock)
    assert held is not None
    first, second = start(kept=(held,)), start(kept=(held,))
    os.close(held)
    first.kill()
    first.wait()
    assert liveness.is_held(lock)
    if last == "killed":
        second.kill()
    else:
        process.hang_up(second)
    second.wait()
    assert not liveness.is_held(lock)


def test_it_is_not_handed_on_to_whoever_is_started_besides(lock: Path, start: Callable[..., process.Child]) -> None:
    held = liveness.hold(lock)
    assert held is not None
    start()
    os.close(held)
    assert not liveness.is_held(lock)


def test_who_asks_is_never_taken_for_the_holder(
    lock: Path, start: Callable[..., process.Child], tmp_path: Path
) -> None:
    """Neither by another that asks, nor by one that takes the lock."""
    lock.touch()
    for _ in range(2):
        start(sys.executable, "-c", ASK)
    wait_until((tmp_path / "asked").exists, "another process asks")
    for _ in range(ROUNDS):
        assert not liveness.is_held(lock)
        with liveness.asked(lock) as free:
            assert free
    assert not (tmp_path / "seen-held").exists()
    for _ in range(ROUNDS):
        held = liveness.hold(lock)
        assert held is not None
        os.close(held)


def test_nobody_takes_a_lock_while_one_that_found_it_free_acts_on_that(
    lock: Path, start: Callable[..., process.Child], tmp_path: Path
) -> None:
    lock.touch()
    inside = tmp_path / "inside"
    with liveness.asked(lock) as free:
        assert free
        inside.touch()
        start(sys.executable, "-c", TAKE)
        wait_until((tmp_path / "trying").exists, "another process tries to take it")
        inside.unlink()
    wait_until((tmp_path / "taken").exists, "it took the lock")
    assert (tmp_path / "taken").read_text() == "True False"


def test_of_many_that_take_it_at_once_one_gets_it(lock: Path) -> None:
    """Also while others ask: those who want it do not take each other for some who only ask, or the other way round."""
    done = Event()

    def ask() -> None:
        while not done.is_set():
            liveness.is_held(lock)

    with ThreadPoolExecutor(6) as pool:
        pool.submit(ask)
        try:
            for _ in range(ROUNDS // 3):
                (taken,) = (found for found in pool.map(liveness.hold, [lock] * 4) if found is not None)
                assert liveness.is_held(lock)
                os.close(taken)
        finally:
            done.set()
