"""How fast is the digest beside a plain loop over the same files? The RECORD check is in it.

    python benchmarks/digest.py [--environment PATH] [--megabytes 650] [--runs 5]

The plain loop is one thread that opens, reads and hashes a list of paths. Without an environment one is made of files
in the sizes of a scientific stack. The two are run in turn, each in a process of its own, after one run that warms the
file cache; medians, the median of the pairs' ratios and the peak of memory are printed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Shares of a real stack of 8,000 files: (bytes, share of the files). A few libraries hold most of the bytes.
_SIZES = ((400, 0.25), (4_000, 0.35), (20_000, 0.25), (100_000, 0.12), (1_500_000, 0.025), (25_000_000, 0.0014))
_PER_DISTRIBUTION = 800
_IDENTITY = {"implementation": "cpython", "version": "3.11.7", "soabi": "x", "platform": "x"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, help="a real environment")
    parser.add_argument("--megabytes", type=int, default=650)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--one", choices=["plain", "digest"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(_once(given.one, given.environment)))
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = given.environment or _make(Path(folder), given.megabytes * 1_000_000)
        _report(environment, given.runs)


def _report(environment: Path, runs: int) -> None:
    _child("plain", environment)
    found = [(_child("plain", environment), _child("digest", environment)) for _ in range(runs)]
    plain, digest = (statistics.median(pair[side]["seconds"] for pair in found) for side in (0, 1))
    ratio = statistics.median(one["seconds"] / other["seconds"] for one, other in found)
    size, files, peak = found[0][0]["bytes"], found[0][0]["files"], max(pair[1]["peak"] for pair in found)
    print(f"{files} files, {size / 1e6:.0f} MB, {os.cpu_count()} processors, medians of {runs} pairs")
    print(f"plain loop        {plain:.2f} s  {size / plain / 1e6:.0f} MB/s")
    print(f"digest and RECORD {digest:.2f} s  {size / digest / 1e6:.0f} MB/s  ratio {ratio:.2f}")
    print(f"peak memory of the digest {peak / 1e6:.0f} MB")


def _child(what: str, environment: Path) -> dict[str, float]:
    argv = [sys.executable, __file__, "--one", what, "--environment", str(environment)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _once(what: str, environment: Path) -> dict[str, float]:
    if what == "plain":
        found = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
        paths = [str(path) for path in found if "__pycache__" not in path.parts]
        start = time.perf_counter()
        size = 0
        for path in paths:
            with open(path, "rb") as stream:  # noqa: PTH123 - the plain loop is as fast as one can be
                data = stream.read()
            size += len(data)
            hashlib.sha256(data).hexdigest()
        return {"seconds": time.perf_counter() - start, "bytes": size, "files": len(paths)}
    from aml_nox import envdigest  # noqa: PLC0415 - the plain loop must not pay for it

    start = time.perf_counter()
    content = envdigest.compute(environment, _IDENTITY)
    seconds = time.perf_counter() - start
    assert not [one for one in content.drift if "RECORD" in one.what], content.drift[:3]  # noqa: S101 - it is checked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"seconds": seconds, "peak": peak}


def _make(folder: Path, total: int) -> Path:
    site = folder / "lib" / "python3.11" / "site-packages"
    (folder / "bin").mkdir()
    chance = random.Random(0)  # noqa: S311 - the same files in each run
    block = chance.randbytes(1 << 20)
    written = number = 0
    while written < total:
        rows: list[str] = []
        for _ in range(_PER_DISTRIBUTION):
            if written >= total:
                break
            (size,) = chance.choices([one for one, _ in _SIZES], [share for _, share in _SIZES])
            size = int(size * chance.uniform(0.2, 1.8))
            path = f"demo{number}/part{chance.randrange(40)}/file{len(rows)}.py"
            data = (chance.randbytes(16) + block * (size // len(block) + 1))[:size]
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{size}\n")
            written += size
        info = site / f"demo{number}-1.0.dist-info"
        info.mkdir()
        (info / "RECORD").write_text("".join([*rows, f"{info.name}/RECORD,,\n"]))
        number += 1
    return folder


if __name__ == "__main__":
    main()
