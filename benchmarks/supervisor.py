"""What supervision costs: the launch of an empty job, and memory and time for a log of a gigabyte.

Run as ``python benchmarks/supervisor.py [COUNT]``; the figures are for this machine, at this moment.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aml_nox import liveness
from aml_nox.train import isolation, stage
from aml_nox.train.inbox import Inbox
from aml_nox.train.stage import Order

GIGABYTE = "import sys; piece = b'x' * 99 + b'\\n'\nfor _ in range(1000): sys.stdout.buffer.write(piece * 10_000)"
MECHANISMS = (isolation.NAMESPACE, isolation.SECCOMP, isolation.NONE)


def supervised(argv: list[str], mechanism: str) -> tuple[float, Path]:
    """Run a program under a supervisor; the seconds it took, and its log."""
    job = Path(tempfile.mkdtemp())
    lock = liveness.hold(job / "alive.lock")
    order = Order(argv=argv, env={}, cwd=job, home=job, grace=1, lock=lock or 0, mechanisms=[mechanism], deadline=None)
    log = job / "log.txt"
    began = time.perf_counter()
    with log.open("ab") as stream:
        course = stage.run(order, Inbox(job), stream, lambda _: None)
    seconds = time.perf_counter() - began
    if course.status:
        raise SystemExit(f"{mechanism}: {course.why} {course.refused}")
    return seconds, log


def plain(argv: list[str]) -> float:
    """Run a program without a supervisor."""
    began = time.perf_counter()
    subprocess.run(argv, check=True, env={})
    return time.perf_counter() - began


@contextmanager
def peak() -> Iterator[list[int]]:
    """Sample the largest resident memory of this process and all below it, in kB; the reader of the log included."""
    found, ended = [0], threading.Event()

    def sample() -> None:
        while not ended.wait(0.02):
            for status in Path("/proc").glob("[0-9]*/status"):
                try:
                    text = status.read_text()
                except OSError:
                    continue
                if f"\nPPid:\t{os.getpid()}\n" in text and "VmHWM:" in text:
                    found[0] = max(found[0], int(text.partition("VmHWM:")[2].split()[0]))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def main() -> None:
    """Print the figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    nothing = ["/bin/true"]
    print(f"launch of /bin/true, median of {count}:")
    print(f"  without supervisor  {1000 * statistics.median(plain(nothing) for _ in range(count)):6.1f} ms")
    for mechanism in MECHANISMS:
        times = [supervised(nothing, mechanism)[0] for _ in range(count)]
        print(f"  {mechanism:<18}  {1000 * statistics.median(times):6.1f} ms")
    with peak() as found:
        seconds, log = supervised([sys.executable, "-c", GIGABYTE], isolation.NAMESPACE)
    size = log.stat().st_size
    log.unlink()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"a log of {size / 1e9:.2f} GB: {seconds:.2f} s")
    print(f"  peak memory: supervisor {found[0] / 1000:.1f} MB, worker's side {own / 1000:.1f} MB")


if __name__ == "__main__":
    main()
