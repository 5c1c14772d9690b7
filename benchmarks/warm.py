"""What does a warm `nox -s provision` cost beside an empty nox session? Run it in a project that is provisioned.

    python benchmarks/warm.py [PROJECT] [--runs 15]

The two are run in turn, so that a machine that slows down slows both; medians of whole processes are printed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_EMPTY = """\
import nox


@nox.session(venv_backend="none", default=False)
def empty(session: nox.Session) -> None:
    session.log("nothing")
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", nargs="?", default=".", type=Path)
    parser.add_argument("--runs", default=15, type=int)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "noxfile.py")
        empty.write_text(_EMPTY)
        ways = {
            "empty nox session": ["-m", "nox", "-f", str(empty), "-s", "empty"],
            "warm nox -s provision": ["-m", "nox", "-s", "provision"],
            "warm aml-nox provision": ["-m", "aml_nox", "provision"],
            "python -c pass": ["-c", "pass"],
        }
        times = measure(ways, chosen.project, chosen.runs)
    for name, seconds in times.items():
        median, least, most = (1000 * one for one in (statistics.median(seconds), min(seconds), max(seconds)))
        print(f"{name:<24} {median:7.1f} ms  ({least:.1f} to {most:.1f})")


def measure(ways: dict[str, list[str]], project: Path, runs: int) -> dict[str, list[float]]:
    """Seconds of each run of each way; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(runs + 1):
        for name, words in ways.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *words], cwd=project, check=True, capture_output=True)
            if round_:
                times[name].append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    main()
