"""A job: a script of the project, run by the environment's interpreter in a fresh directory, and its true record.

What it sees of the caller's environment is an allow-list; its home and its temporary folder are fresh and short-lived,
since the caller's home holds secrets. It writes straight to its log, which is shown while it grows.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aml_nox import process, store
from aml_nox.context import Context
from aml_nox.engine import Found
from aml_nox.errors import AmlError, Code
from aml_nox.manifest import Train
from aml_nox.screen import put
from aml_nox.train import gates

ALLOWED = ("PATHEXT", "SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "WINDIR", "TEMP", "TMP", "PROGRAMFILES", "LANG", "LC_ALL")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_FOLLOW = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job that ended: its record as job.json holds it, the verdicts of its gates, and the error if it is one."""

    record: Mapping[str, Any]
    verdicts: Sequence[Mapping[str, Any]]
    error: AmlError | None


def run(ctx: Context, train: Train, environment: Found, arguments: Sequence[str]) -> Finished:
    """Run the job to its end; its directory keeps the record, the log and what it wrote.

    Ctrl-C and signals end the whole process group, are recorded as `cancelled`, and go on to the caller.

    Raises:
        AmlError: AML_MANIFEST for a script that is not there.

    """
    argv = _argv(ctx, train, environment, arguments)
    folder = _new_folder(ctx)
    ctx.say(f"job {folder.name}: {train.script or train.module} (isolation: not in force)")
    with _home() as home, store.alive(folder):
        record = _Record(folder, _facts(ctx, train, environment, argv))
        env = job_environment(ctx, train, environment, folder, home)
        store.write_json(folder / "spec.json", {"argv": argv, "env": sorted(env), "timeout": train.timeout})
        try:
            state, status = _execute(argv, env, folder, train)
        except BaseException:
            record.end("cancelled", None)
            raise
        return _judged(ctx, train, folder, record, state=state, status=status)


def _argv(ctx: Context, train: Train, environment: Found, arguments: Sequence[str]) -> list[str]:
    if train.module is not None:
        program = ["-m", train.module]
    else:
        script = ctx.root.folder / (train.script or "")
        if not script.is_file():
            message = f"{ctx.manifest.path.name}: train.script: there is no file {train.script}"
            raise AmlError(Code.MANIFEST, message, "correct train.script; it is relative to aml.toml")
        program = [str(script)]
    return [str(environment.python), *program, *train.args, *arguments]


def _new_folder(ctx: Context) -> Path:
    """The directory of a job; its name sorts by time and is its id."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")  # to the microsecond: several start in a second
    folder = ctx.root.jobs / f"{moment}-{secrets.token_hex(3)}"
    (folder / "model").mkdir(parents=True)
    return folder


@contextmanager
def _home() -> Iterator[Path]:
    # Short, because the path of a Unix socket in it ends at 107 bytes.
    home = Path(tempfile.mkdtemp(prefix="aml-"))
    try:
        yield home
    finally:
        store.remove(home)


def job_environment(ctx: Context, train: Train, environment: Found, folder: Path, home: Path) -> dict[str, str]:
    """All that the job sees of the environment: the allow-list, what the manifest adds, and where things are."""
    caller = ctx.environ
    ours = {
        "PATH": os.pathsep.join([str(environment.python.parent), caller.get("PATH", os.defpath)]),
        "HOME": str(home),
        "TMPDIR": str(home),
        "AML_JOB_DIR": str(folder),
        "AML_ROOT": str(ctx.root.path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        # The environment stays as it was built, and no bytecode that lies in it is run.
        "PYTHONPYCACHEPREFIX": str(ctx.root.runtime / "pycache" / environment.marker["key"]),
        **{name: "" for proxy in _PROXIES for name in (proxy, proxy.lower())},
    }
    if train.module is not None:
        ours["PYTHONPATH"] = str(ctx.root.folder)
    allowed, passed = ({name: caller[name] for name in names if name in caller} for names in (ALLOWED, train.pass_env))
    return allowed | ours | passed | dict(train.env)


def _facts(ctx: Context, train: Train, environment: Found, argv: Sequence[str]) -> dict[str, Any]:
    return {
        "argv": [ctx.root.relative(Path(argv[0])), *argv[1:]],
        "environment": {"path": ctx.root.relative(environment.path), "key": environment.marker["key"]},
        "isolation": {"asked": train.isolation, "in_force": False},
        "timeout": train.timeout,
        "pid": os.getpid(),
    }


class _Record:
    """job.json: what is true of the job, rewritten at each change of its state."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self._path = folder / "job.json"
        self._began = time.monotonic()
        self.values: dict[str, Any] = {"id": folder.name, "started": store.now(), **facts}
        self._set(state="running")

    def end(self, state: str, status: int | None, **more: Any) -> None:  # noqa: ANN401 - JSON values
        """Record the end; `status` is the exit status, negative for the signal that ended it."""
        duration = round(time.monotonic() - self._began, 3)  # seconds, by a clock that nobody sets
        self._set(state=state, exit_status=status, ended=store.now(), duration=duration, **more)

    def _set(self, **changes: Any) -> None:  # noqa: ANN401 - JSON values
        self.values |= changes
        self._path.parent.mkdir(parents=True, exist_ok=True)  # the job may have removed it
        store.write_json(self._path, self.values)


def _execute(argv: Sequence[str], env: Mapping[str, str], folder: Path, train: Train) -> tuple[str, int]:
    log = folder / "log.txt"
    with log.open("ab") as stream, _followed(log):
        try:
            status, timed_out = process.run_logged(
                argv, env=env, cwd=folder, limit=train.timeout, grace=train.grace, log=stream
            )
        except OSError as error:
            stream.write(f"aml-nox: the interpreter cannot be started: {error}\n".encode())
            return "failed", 127
    return "timeout" if timed_out else "failed" if status else "succeeded", status


@contextmanager
def _followed(log: Path) -> Iterator[None]:
    """Show a growing file on stderr, bytes as they are, until the block ends, and end its last line."""
    ended = threading.Event()
    follower = threading.Thread(target=_follow, args=(log, ended), daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


def _follow(log: Path, ended: threading.Event) -> None:
    with log.open("rb") as stream:
        last, shown = False, b"\n"
        while not last:
            last = ended.wait(_FOLLOW)
            while data := stream.read(1 << 16):
                _show(data)
                shown = data
        if not shown.endswith(b"\n"):
            _show(b"\n")


def _show(data: bytes) -> None:
    put(sys.stderr, data if hasattr(sys.stderr, "buffer") else data.decode("utf-8", "replace"))


def _judged(ctx: Context, train: Train, folder: Path, record: _Record, *, state: str, status: int) -> Finished:
    if state != "succeeded":
        record.end(state, status)
        return Finished(record=record.values, verdicts=(), error=_job_error(ctx, train, folder, state, status))
    metrics = gates.read_metrics(folder / "metrics.json")
    verdicts = gates.judge(train.gates, metrics)
    for verdict in verdicts:
        ctx.say(str(verdict))
    shown = [verdict.to_json() for verdict in verdicts]
    known = None if isinstance(metrics, str) else dict(metrics)
    record.end(state, status, metrics=_strict(known), gates=shown)
    failed = [str(verdict) for verdict in verdicts if not verdict.passed]
    if failed:
        hint = "the model is not accepted; its job directory keeps everything"
        error = AmlError(Code.GATE_FAILED, f"job {folder.name}: {'; '.join(failed)}", hint)
        return Finished(record=record.values, verdicts=shown, error=error)
    ctx.say(f"job {folder.name} succeeded: {folder}")
    return Finished(record=record.values, verdicts=shown, error=None)


def _strict(metrics: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The metrics for the record: without tables and lists, and without numbers that JSON cannot hold."""
    if metrics is None:
        return None
    plain = {name: value for name, value in metrics.items() if value is None or isinstance(value, str | int | float)}
    return {name: value if gates.is_finite(value) else None for name, value in plain.items()}


def _job_error(ctx: Context, train: Train, folder: Path, state: str, status: int) -> AmlError:
    what = train.script or train.module
    log = ctx.root.relative(folder / "log.txt")
    if state == "timeout":
        message = f"job {folder.name}: {what} ran longer than {train.timeout:g} s and was ended"
        return AmlError(Code.JOB_FAILED, message, f"raise train.timeout; its output is in {log}")
    ended = f"was ended by signal {-status}" if status < 0 else f"ended with {status}"
    return AmlError(Code.JOB_FAILED, f"job {folder.name}: {what} {ended}", f"its output is in {log}")


def environments_in_use(root: store.Root) -> list[Path]:
    """The environments that jobs run in at this moment."""
    folders = [path.parent for path in sorted(root.jobs.glob("*/job.json"))]
    records = [store.read_json(folder / "job.json") or {} for folder in folders if store.is_alive(folder)]
    return [root.path / str(record["environment"]["path"]) for record in records if record.get("environment")]


def states(root: store.Root) -> dict[str, int]:
    """How many jobs there are in each state; one whose process is gone while it was running is lost."""
    counts: dict[str, int] = {}
    for path in sorted(root.jobs.glob("*/job.json")):
        record = store.read_json(path)
        state = str(record["state"]) if record and "state" in record else "unreadable"
        if state == "running" and not store.is_alive(path.parent):
            state = "lost"
        counts[state] = counts.get(state, 0) + 1
    return counts
