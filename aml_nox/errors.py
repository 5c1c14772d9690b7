"""The one error of aml-nox, and the one table of its kinds.

A fault of the user (a wrong manifest, an unreachable index, a full disk) is an ``AmlError``: one line, a hint, an exit
status. Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import enum


class Code(enum.Enum):
    """A kind of fault: its exit status and what it means. docs/errors.md is generated from these lines."""

    status: int
    meaning: str

    USAGE = 2, "the command line is wrong"
    MANIFEST = 2, "aml.toml, or a file that it names, is wrong"
    LOCK_MISSING = 3, "a lock is demanded and there is none"
    LOCK_STALE = 3, "the lock does not belong to the manifest"
    LOCK_INVALID = 3, "the lock cannot be read, or holds what no lock may hold"
    RESOLUTION = 3, "nothing satisfies the requirements, or the lock has nothing for this machine"
    FETCH = 4, "an index or a file could not be reached, refused, was cut off, or is not an index"
    UV_MISSING = 4, "no uv fits the manifest and none could be had"
    PYTHON_MISSING = 4, "no interpreter fits the manifest and none could be had"
    UV_PYTHON_FAILED = 4, "uv could not install the interpreter"
    INTEGRITY = 5, "bytes differ from what was promised: a hash, a RECORD, an environment's content"
    VENV_FAILED = 6, "the virtual environment could not be made"
    TIMEOUT = 6, "a step ran longer than its limit"
    STATE = 6, "the AML root cannot be used: not writable, disk full, or something of yours where ours belongs"
    JOB_FAILED = 7, "the training job failed"
    GATE_FAILED = 8, "a metric did not pass its gate"
    BUSY = 9, "another process holds what is needed"

    def __new__(cls, status: int, meaning: str) -> Code:
        # The meaning is unique, the status is not: with the status as value, enum would make aliases of equal ones.
        member = object.__new__(cls)
        member._value_ = meaning
        member.status = status
        member.meaning = meaning
        return member

    def __str__(self) -> str:
        return f"AML_{self.name}"


class AmlError(Exception):
    """A fault that its reader can mend: what is wrong (one line a fault), and what to do about it."""

    def __init__(self, code: Code, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    @property
    def status(self) -> int:
        """The exit status of the command line for this kind of fault."""
        return self.code.status

    def lines(self) -> list[str]:
        """What a person reads: the code and message, then the hint."""
        first = f"{self.code}: {self.message}"
        return [first, f"  hint: {self.hint}"] if self.hint else [first]
