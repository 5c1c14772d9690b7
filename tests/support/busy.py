"""Somebody who does the same again and again while a test runs."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def busy(step: Callable[[], object]) -> Iterator[None]:
    """Repeat a step in a thread while the block runs, from before it begins."""
    began, ended = threading.Event(), threading.Event()

    def work() -> None:
        while not ended.is_set():
            step()
            began.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        began.wait()
        yield
    finally:
        ended.set()
        thread.join()
