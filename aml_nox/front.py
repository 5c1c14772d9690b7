"""What both front ends do alike: read the options, ask `warm` first, run the verb, report.

Nothing but the standard library is imported before it is known that something has to be done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from aml_nox import options, warm
from aml_nox.calls import Call, Outcome
from aml_nox.errors import AmlError, Code
from aml_nox.options import Options


def execute(call: Call) -> AmlError | None:
    """Run one verb from its arguments to its report; a user's fault comes back, a bug is raised.

    SIGTERM and SIGHUP leave by SystemExit with the status 128 + number, after every child was ended.
    """
    target = options.json_target(call.argv)
    try:
        chosen = options.parse(call.verb, call.argv, command=call.command, lenient=call.lenient)
        if chosen.help:
            sys.stdout.write(options.usage(call.verb, call.command))
            return None
        with _signals():
            outcome = _warm(call, chosen) or _cold(call, chosen)
    except AmlError as error:
        outcome = Outcome(error=error)
    try:
        _report(call, target, outcome)
    except OSError as error:
        return AmlError(Code.USAGE, f"--json {target}: {error.strerror}", "name a file that can be written, or -")
    return outcome.error


def _warm(call: Call, chosen: Options) -> Outcome | None:
    if call.verb != "provision" or chosen.force:
        return None
    manifest = call.manifest_path(chosen)
    ready = warm.check(manifest, chosen.env or warm.DEFAULT, call.environ) if manifest else None
    if ready is None:
        return None
    environment = ready["environment"]
    verb = "switched to" if ready["switched"] else "is ready:"
    call.screen.say(f"environment {environment['name']} {verb} {environment['python']}")
    return Outcome(ready)


def _cold(call: Call, chosen: Options) -> Outcome:
    from aml_nox import verbs  # noqa: PLC0415 - a warm run must not pay for it

    return verbs.run(call, chosen)


def _report(call: Call, target: str | None, outcome: Outcome) -> None:
    if target is None:
        return
    error = outcome.error
    described = {"code": str(error.code), "message": error.message, "hint": error.hint} if error else None
    text = warm.to_json({"verb": call.verb, "ok": error is None, "error": described, **outcome.values}) + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        with open(os.path.join(call.cwd, target), "w", encoding="utf-8") as stream:  # noqa: PTH118, PTH123 - likewise
            stream.write(text)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let a request to end unwind the stack, so that children are ended and locks released on the way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, _leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
