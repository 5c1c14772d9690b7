"""The one command that every launcher runs: ``PYTHON -P -m aml_nox.train.worker JOB_DIR``.

It holds the job's lock, waits for its turn, runs what spec.json says under a supervisor, judges what was measured,
registers the model, and writes job.json at every step. A caller that sits at the other end of its standard input may
ask for the end of the job; its death is such a wish, too. Without one (standard input is empty) the job is on its own.

Its own environment is as narrow as the job's: a job that can read it finds nothing.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from aml_nox import interrupts, liveness, store
from aml_nox.errors import AmlError, Code
from aml_nox.train import dirhash, inputs, isolation, judging, queue, records, spec, stage, supervisor
from aml_nox.train.inbox import Inbox
from aml_nox.train.spec import Spec
from aml_nox.train.stage import Course, Order

ALLOWED = ("PATHEXT", "SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "WINDIR", "TEMP", "TMP", "PROGRAMFILES", "LANG", "LC_ALL")
OWN = ("PATH", "TMPDIR", "HOME", "PYTHONUSERBASE")
"""What a worker needs of its caller's environment besides, to find what the caller finds; the job gets its own."""

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_LONGEST_HOME = 60  # bytes: the path of a Unix socket below it ends at 107
_EXIT = {records.TIMEOUT: 124, records.CANCELLED: 143}
_FAILED = 1
_RESERVED = 124  # from here on a status has a meaning of its own, ours or the shell's
REPORTED = "reported.json"
"""What the script itself claims of its metrics, where an evaluation measures them."""


def main() -> int:
    """Run the job of a directory to its end; the status is 0, that of the job, 124 for a timeout, 143 for cancelled."""
    job = Path(sys.argv[1]).absolute()  # not resolved: the folder of all jobs may be a link
    if sys.platform == "linux":
        isolation.adopt_orphans()  # of a supervisor that is killed
    inbox = Inbox(job)
    inbox.listen()
    lock = inbox.hello.get("lock") or liveness.hold(records.lock_path(job))
    if lock is None:
        print(f"{job}: another worker runs this job", file=sys.stderr)  # noqa: T201 - a launcher's log
        return _FAILED
    os.set_inheritable(lock, False)
    writer = records.Writer(job)
    try:
        _run(job, inbox, writer, lock)
    except BaseException:
        with suppress(OSError):
            writer.end(records.FAILED, why="a fault of aml-nox: its traceback is in the launcher's log")
        raise
    return _exit_status(writer.values)


def _run(job: Path, inbox: Inbox, writer: records.Writer, lock: int) -> None:
    """Run the job; a fault that a user can mend is what its record says."""
    try:
        Worker(job=job, spec=spec.read(job), inbox=inbox, writer=writer, lock=lock).run()
    except AmlError as error:
        _record_fault(writer, error)
    except OSError as error:
        known = store.state_error(error)
        if known is None:
            raise
        try:
            _record_fault(writer, known)
        except OSError:  # a full disk: who reads the record next finds that the job is lost
            print(f"job {job.name}: {known.message}", file=sys.stderr)  # noqa: T201 - a launcher's log


def _record_fault(writer: records.Writer, error: AmlError) -> None:
    writer.end(records.FAILED, why=error.message, error=judging.described(error))


def _exit_status(record: Mapping[str, Any]) -> int:
    if record["state"] == records.SUCCEEDED:
        return 0
    status = record.get("exit_status")
    return _EXIT.get(record["state"]) or (status if isinstance(status, int) and 0 < status < _RESERVED else _FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A job and who runs it; `lock` is the descriptor that says that it lives."""

    job: Path
    spec: Spec
    inbox: Inbox
    writer: records.Writer
    lock: int

    def run(self) -> None:
        """Wait, run, judge, record."""
        try:
            with interrupts.asking(self.inbox.honour):
                if self._have_turn():
                    self._run_and_judge()
        except KeyboardInterrupt:  # out of what takes long beside the programs: digests, a lock, a copy
            self.writer.end(records.CANCELLED, why=self.inbox.why)

    def _have_turn(self) -> bool:
        line = queue.Line(self.spec.aml_root, self.job, self.spec.max_parallel)

        def wait(seconds: float) -> bool:
            wish = self.inbox.wish(seconds)
            if wish is not None:
                self.writer.end(records.CANCELLED, why=wish.why)
            return wish is not None

        return queue.wait_turn(line, lambda: self.writer.start(pid=os.getpid(), host=socket.gethostname()), wait)

    def _run_and_judge(self) -> None:
        self._hold_data("while the job waited")
        self._hold_code()
        deadline = None if self.spec.timeout is None else time.monotonic() + self.spec.timeout
        with _home() as home, (self.job / records.LOG).open("ab") as log:
            order = self._order(self._argv(), home, deadline)
            course = stage.run(order, self.inbox, log, self._tell_started)
            if course.state == records.SUCCEEDED:
                self._hold_data("while it was trained on")
                course = self._evaluated(course, order, log)
        self._record(course)

    def _order(self, argv: Sequence[str], home: Path, deadline: float | None) -> Order:
        return Order(
            argv=argv,
            env=job_environment(self.spec, self.job, home, os.environ, self.inbox.hello.get("pass")),
            cwd=self.job,
            home=home,
            grace=self.spec.grace,
            lock=self.lock,
            mechanisms=isolation.mechanisms(self.spec.isolation),
            deadline=deadline,
        )

    def _argv(self) -> list[str]:
        program = (
            ["-m", self.spec.module] if self.spec.module else [str(Path(self.spec.folder, self.spec.script or ""))]
        )
        return [str(self.spec.python), *program, *self.spec.args]

    def _tell_started(self, course: Course) -> None:
        self.writer.change(isolation=course.isolation(self.spec.isolation))

    def _hold_data(self, when: str) -> None:
        """Refuse data that is not what the job was made for: what it learnt from would not be what the record names."""
        data = self.spec.dataset
        if data is None:
            return
        known = dirhash.Measured(digest=data.digest, files=data.files, size=data.size, stamp=data.stamp, names=())
        if not dirhash.unchanged(Path(data.path), known):
            message = f"the dataset {data.path} changed {when}"
            raise AmlError(Code.JOB_FAILED, message, "train again, on data that nobody writes to meanwhile")

    def _hold_code(self) -> None:
        """Refuse code that is not what the job was made for: what runs would not be what the record names."""
        spec = self.spec
        scripts = [spec.script, spec.evaluate]
        found = inputs.code_digest(spec.aml_root, scripts, whole=spec.module is not None, kit=Path(spec.kit))
        if found != spec.inputs["code"]:
            message = f"the code of {spec.program} changed while the job waited"
            raise AmlError(Code.JOB_FAILED, message, "train again")

    def _hold_evaluation(self) -> None:
        """Refuse to be judged by another program than the record names, as the training could have written."""
        spec = self.spec
        if inputs.evaluation_digest(spec.aml_root, spec.evaluate, kit=Path(spec.kit)) != spec.inputs["evaluation"]:
            message = f"{spec.evaluate}, or the kit, changed while the training ran"
            raise AmlError(Code.JOB_FAILED, message, "train again, and let nothing write to them meanwhile")

    def _evaluated(self, course: Course, order: Order, log: IO[bytes]) -> Course:
        """Let the evaluation measure; what the script claims is kept apart, and judged by nobody."""
        if self.spec.evaluate is None:
            return course
        metrics = self.job / records.METRICS
        store.remove(self.job / REPORTED)
        if metrics.is_symlink() or metrics.exists():
            metrics.replace(self.job / REPORTED)
        self._hold_evaluation()
        script = str(Path(self.spec.folder, self.spec.evaluate))
        argv, mechanism = [str(self.spec.python), script], course.mechanism or isolation.NONE
        order = replace(order, argv=argv, mechanisms=[mechanism])  # no less isolated than what it judges
        result = stage.run(order, self.inbox, log, lambda _: None)
        result.left += course.left
        result.refused = [*course.refused, *result.refused]
        if result.state == records.SUCCEEDED:
            self._hold_data("while the model was measured on it")
        elif result.state == records.FAILED:
            colon = ":" if result.why else ""
            result.why = f"{self.spec.evaluate}{colon} {judging.ending(result.why, result.status)}"
        return result

    def _record(self, course: Course) -> None:
        values: dict[str, Any] = {
            "isolation": course.isolation(self.spec.isolation),
            "exit_status": course.status,
            **({"why": course.why} if course.why else {}),
            **({"left_running": course.left} if course.left else {}),
        }
        if course.state != records.SUCCEEDED:
            self.writer.end(course.state, **values)
            return
        self.writer.change(**values)
        judged = judging.judge(self.spec, self.job, self.writer.values)
        self.writer.end(records.SUCCEEDED if judged.accepted else records.FAILED, **values, **judged.to_json())


@contextmanager
def _home() -> Iterator[Path]:
    # Short, because the path of a Unix socket in it ends at 107 bytes.
    usual = tempfile.gettempdir()
    short = usual if len(os.fsencode(usual)) < _LONGEST_HOME or os.name == "nt" else "/tmp"  # noqa: S108 - mkdtemp's own
    home = Path(tempfile.mkdtemp(prefix="aml-", dir=short))
    try:
        yield home
    finally:
        supervisor.remove_home(str(home))


def job_environment(
    spec: Spec, job: Path, home: Path, environ: Mapping[str, str], passed: Mapping[str, str] | None
) -> dict[str, str]:
    """All that the job sees of the environment: the allow-list, what the manifest adds, and where things are.

    `passed` are the values of pass-env; where nobody handed them over they are looked for in `environ`.
    """
    given = environ if passed is None else passed
    named = {name: given[name] for name in spec.pass_env if name in given} | dict(spec.env)
    paths = [spec.kit, *([spec.folder] if spec.module else []), named.pop("PYTHONPATH", "")]
    ours = {
        "PATH": os.pathsep.join(filter(None, [str(spec.python.parent), environ.get("PATH", os.defpath)])),
        "HOME": str(home),
        "TMPDIR": str(home),
        "AML_JOB_DIR": str(job),
        "AML_ROOT": spec.root,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        # The environment stays as it was built, and no bytecode that lies in it is run.
        "PYTHONPYCACHEPREFIX": str(Path(spec.root, "runtime", "pycache", spec.environment["key"])),
        **{name: "" for proxy in _PROXIES for name in (proxy, proxy.lower())},
        **({"AML_DATASET_DIR": spec.dataset.path} if spec.dataset else {}),
    }
    allowed = {name: environ[name] for name in ALLOWED if name in environ}
    return allowed | ours | named


if __name__ == "__main__":
    raise SystemExit(main())
