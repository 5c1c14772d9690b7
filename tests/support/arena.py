"""Where hostile jobs run: a network of the test's own, and projects in it, root's and a plain user's."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aml_nox
from tests.support import refusal
from tests.support.hostile import script
from tests.support.netns import ADDRESS, Ground
from tests.support.processes import Run, Started, wait_until
from tests.support.project import Project
from tests.support.users import give, uid_to_become

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: By role: what is in a command line of that process alone.
_ROLES = {"worker": "aml_nox.train.worker", "supervisor": "supervisor.main"}
_VARIABLE = "DEPLOY_TOKEN"
_NETWORK = Path("/proc/self/ns/net")


@dataclass(slots=True)
class Arena:
    """A ground, and for each kind of user a project that needs no provision; both are shared by many tests."""

    folder: Path
    ground: Ground

    @classmethod
    def open(cls, folder: Path) -> Arena:
        """Make the ground, or skip the test where the kernel refuses it."""
        folder.chmod(0o755)
        package = Path(aml_nox.__file__).parents[1]
        reach = {folder, package, Path(__file__).parents[2], Path(sys.prefix), Path(sys.base_prefix)}
        ground = Ground.open(folder, sorted(reach))
        if isinstance(ground, str):
            pytest.skip(f"no network of a test's own: {ground}")
        return cls(folder, ground)

    def project(self, user: str) -> Project:
        """Give the project of a user; it was provisioned outside, and lies at the same path inside."""
        folder, uid = self.folder / user, uid_to_become(user)
        project = Project(folder=folder / "project", home=folder / "home", uv_cache=folder / "cache")
        if not folder.exists():
            project.home.mkdir(parents=True)
            Project.make(project.folder, "", home=project.home, uv_cache=project.uv_cache, requirements=())
            project.manifest(index=None)
            project.aml("provision").expect()
            give(folder, user)
            inside = dataclasses.replace(project, program=str(self.program(project, uid=uid)))
            inside.aml("plan").expect()  # what it needs can be reached from inside
        return project

    def program(
        self, project: Project, *, uid: int | None, refuses: str = "", view: str = "plain", quiet: bool = False
    ) -> Path:
        """Write the front end's Python as it runs inside: under a filter of `refusal`, with a view of `netns`.

        One that is *quiet* shows nothing to anybody.
        """
        path = project.folder.parent / f"python-{view}-{refuses}-{quiet}"
        words = [*self.ground.entry(uid=uid, view=view), *(refusal.command(refuses) if refuses else ()), sys.executable]
        end = " >/dev/null 2>&1" if quiet else ""
        path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"{end}\n', encoding="utf-8")
        path.chmod(0o755)
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One hostile job: who its caller is, what it looks for, and what it leaves.

    `front` is the project as its front end is run, under a filter or in a view where one was asked for.
    """

    arena: Arena
    project: Project
    front: Project
    secret: str
    cookie: str

    @classmethod
    def prepare(
        cls,
        arena: Arena,
        user: str,
        *,
        refuses: str = "",
        view: str = "plain",
        output: int = 0,
        stays: bool = False,
        quiet: bool = False,
        **train: object,
    ) -> Attack:
        """Write the job; the keys of [train] have underscores here. One that *stays* waits for ever at its end."""
        project, uid = arena.project(user), uid_to_become(user)
        program = arena.program(project, uid=uid, refuses=refuses, view=view, quiet=quiet)
        front = dataclasses.replace(project, program=str(program), started=[])
        inside = dataclasses.replace(project, program=str(arena.program(project, uid=uid)))
        marks = {"secret": secrets.token_hex(16), "cookie": f"cookie-{secrets.token_hex(8)}"}
        self = cls(arena=arena, project=inside, front=front, **marks)
        shutil.rmtree(project.aml_root / "jobs", ignore_errors=True)
        self.write(script(self._known(output, stays=stays)), grace=1, **train)
        arena.ground.received()
        return self

    def _known(self, output: int, *, stays: bool) -> dict[str, object]:
        ground, assignment = self.arena.ground, f"{_VARIABLE}={self.secret}"
        where = {"address": ADDRESS, "port": ground.port, "abstract": ground.abstract, "network": ground.network}
        marks = {"cookie": self.cookie, "secret": hashlib.sha256(assignment.encode()).hexdigest()}
        return {**where, **marks, "machine": str(_NETWORK.readlink()), "output": output, "stays": stays}

    def write(self, text: str, **train: object) -> None:
        """Set the job to a script."""
        self.project.write("train.py", text)
        keys = {name.replace("_", "-"): value for name, value in train.items()}
        self.project.manifest(train=None)
        self.project.manifest(train={"script": "train.py", **keys})

    def start(self, front: str = "aml") -> Started:
        """Start the front end, with the secret in its environment."""
        env = {_VARIABLE: self.secret}
        if front == "nox":
            return self.front.start_nox("-s", "train", env=env)
        return self.front.start_aml("train", env=env)

    def run(self, code: int = 0) -> Run:
        """Run the job to its end, and hold the exit status."""
        return self.start().finish().expect(code)

    @property
    def job(self) -> Path:
        """The directory of the job."""
        (found,) = self.project.aml_root.glob("jobs/*-*")
        return found

    @property
    def record(self) -> dict[str, Any]:
        """What job.json says."""
        return _read(self.job / "job.json")

    @property
    def records(self) -> list[dict[str, Any]]:
        """What job.json says, of the one job or of none."""
        return [_read(path) for path in self.project.aml_root.glob("jobs/*-*/job.json")]

    @property
    def report(self) -> dict[str, Any]:
        """What the script found."""
        return _read(self.job / "report.json")

    def wait_ready(self) -> None:
        """Return as soon as the script has done all that it does."""
        wait_until(lambda: any(self.project.aml_root.glob("jobs/*-*/report.json")), "the report")

    def received(self) -> dict[str, int]:
        """Count what arrived at the ground since the job was prepared, by the way that it came."""
        return dict(Counter(event.kind for event in self.arena.ground.received()))

    def role(self, role: str) -> int | None:
        """Give the process that is the `worker` or the `supervisor` of the job, if there is one now."""
        found = [pid for pid, line in self.survivors().items() if _ROLES[role] in line]
        return min(found, default=None)  # what a supervisor has forked still has its command line

    def kill(self, *roles: str) -> None:
        """SIGKILL processes of the job at one instant, as far as they can tell: all are stopped first."""
        pids = [pid for role in roles if (pid := self.role(role)) is not None]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def states(self) -> dict[str, int]:
        """Count the jobs in each state, as `status` does; it sets right what nobody was left to write."""
        counts: dict[str, int] = self.project.aml("status", "--json", "-").expect().json()["jobs"]
        return counts

    def survivors(self) -> dict[int, str]:
        """Give the command lines of what still runs of this job: by its cookie there, or a file of it that is open.

        Its worker and its supervisor count too.
        """
        return {pid: line for pid, line in _command_lines().items() if self.cookie in line or self._is_open_in(pid)}

    def wait_gone(self) -> None:
        """Return as soon as nothing of the job runs."""
        wait_until(lambda: not self.survivors(), "nothing is left")

    def _is_open_in(self, pid: int) -> bool:
        with contextlib.suppress(OSError):  # it ended, or is somebody else's
            jobs = str(self.project.aml_root / "jobs")
            return any(str(one.readlink()).startswith(jobs) for one in Path(f"/proc/{pid}/fd").iterdir())
        return False

    def files_with_secret(self) -> list[Path]:
        """Give the files of the job, its log and records among them, in which the secret stands."""
        files = (path for path in self.job.rglob("*") if path.is_file())
        return [path for path in files if self.secret.encode() in path.read_bytes()]

    def close(self) -> None:
        """End what should have ended, and leave no large logs behind."""
        self.front.close()
        for pid in self.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.project.aml_root / "jobs", ignore_errors=True)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _command_lines() -> dict[int, str]:
    """Read the command lines of all processes; one that has ended has none."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if data := path.read_bytes():
                found[int(path.parent.name)] = data.replace(b"\0", b" ").decode(errors="replace")
    return found


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Give the place where hostile jobs run."""
    made = Arena.open(tmp_path_factory.mktemp("arena"))
    yield made
    made.ground.close()


@pytest.fixture(scope="session")
def job_seconds(arena: Arena) -> float:
    """Give how long a hostile job takes here and now, in seconds, to choose instants from."""
    attack = Attack.prepare(arena, "plain")
    start = time.monotonic()
    attack.run()
    return time.monotonic() - start


@pytest.fixture
def attacks(arena: Arena) -> Iterator[Callable[..., Attack]]:
    """Give what prepares hostile jobs, as `Attack.prepare` does; nothing of them outlives the test."""
    made: list[Attack] = []

    def prepare(user: str = "plain", **given: Any) -> Attack:  # noqa: ANN401 - as prepare takes it
        made.append(Attack.prepare(arena, user, **given))
        return made[-1]

    yield prepare
    for one in made:
        one.close()
