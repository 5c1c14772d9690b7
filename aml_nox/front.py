"""What both front ends do alike: read the options, ask `warm` first, run the verb, report.

Nothing but the standard library is imported before it is known that something has to be done.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from aml_nox import interrupts, options, warm
from aml_nox.calls import Call, Outcome
from aml_nox.errors import AmlError, Code
from aml_nox.options import Options
from aml_nox.screen import put


def execute(call: Call) -> AmlError | None:
    """Run one verb from its arguments to its report; a user's fault comes back, a bug is raised.

    SIGTERM and SIGHUP leave by SystemExit with the status 128 + number, after every child was ended.
    """
    target = options.json_target(call.argv)
    try:
        outcome = perform(call)
    except AmlError as error:
        outcome = Outcome(error=error)
    if outcome is None:
        put(sys.stdout, options.usage(call.verb, call.command))
        return None
    try:
        _report(call, target, outcome)
    except OSError as error:
        # What the work ended with weighs more than that nobody could be told.
        told = AmlError(Code.USAGE, f"--json {target}: {error.strerror}", "name a file that can be written, or -")
        return outcome.error or told
    return outcome.error


def perform(call: Call) -> Outcome | None:
    """Run one verb and give what came of it; None when only its help was asked for.

    Raises:
        AmlError: what stopped it before it had anything to report.

    """
    chosen = options.parse(call.verb, call.argv, command=call.command, lenient=call.lenient)
    if chosen.help:
        return None
    with interrupts.noted(), _nothing_for_everyone():
        return _warm(call, chosen) or _cold(call, chosen)


@contextlib.contextmanager
def _nothing_for_everyone() -> Iterator[None]:
    """Let nobody but owner and group write what is made meanwhile, however loose the caller's umask is."""
    before = os.umask(0o022)
    os.umask(before | 0o002)
    try:
        yield
    finally:
        os.umask(before)


def _warm(call: Call, chosen: Options) -> Outcome | None:
    if call.verb != "provision" or chosen.force:
        return None
    manifest = call.manifest_path(chosen)
    name = warm.DEFAULT if chosen.env is None else chosen.env
    ready = warm.check(manifest, name, call.environ) if manifest else None
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
        if unheard := put(sys.stdout, text):
            raise unheard
    else:
        with open(os.path.join(call.cwd, target), "w", encoding="utf-8") as stream:  # noqa: PTH118, PTH123 - likewise
            stream.write(text)
