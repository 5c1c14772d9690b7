"""The command line `aml-nox VERB …`: the same engine without nox, with the exit status of each kind of fault."""

from __future__ import annotations

import os
import sys

from aml_nox import front, options
from aml_nox.calls import Call
from aml_nox.errors import AmlError, Code
from aml_nox.screen import Screen, ensure_streams, put

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported on the warm path
    from collections.abc import Mapping
    from typing import Any

_PROGRAM = "aml-nox"


def main() -> int:
    """Run one verb; the status is 0, that of the fault, or 128 + the signal that ended it."""
    ensure_streams()
    verb, *argv = sys.argv[1:] or ["--help"]
    if verb in {"--help", "-h", "help"}:
        put(sys.stdout, _overview())
        return 0
    try:
        error = _run(verb, argv)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    for line in error.lines() if error else []:
        _say(line)
    return error.status if error else 0


def _run(verb: str, argv: list[str]) -> AmlError | None:
    screen = Screen(_say, live=sys.stderr.isatty())
    command = f"{_PROGRAM} {verb}"
    try:
        cwd = os.getcwd()  # noqa: PTH109 - pathlib is not imported on the warm path
    except FileNotFoundError:
        return AmlError(Code.STATE, "the current folder is gone", "change to one that exists")
    call = Call(verb=verb, argv=argv, command=command, manifest=None, cwd=cwd, environ=os.environ, screen=screen)
    return front.execute(call)


def provision(environment: str, manifest: str) -> Mapping[str, Any]:
    """Make an environment ready and give what is reported of it; see `aml_nox.provision`."""
    argv = ["--env", environment]
    command = f"{_PROGRAM} provision --env {environment}"
    cwd = os.getcwd()  # noqa: PTH109 - pathlib is not imported on the warm path
    path = os.path.join(cwd, manifest)  # noqa: PTH118 - likewise
    screen = Screen(_say, live=sys.stderr.isatty())
    call = Call(verb="provision", argv=argv, command=command, manifest=path, cwd=cwd, environ=os.environ, screen=screen)
    outcome = front.perform(call)
    return outcome.values if outcome else {}


def _say(line: str) -> None:
    put(sys.stderr, f"{line}\n")


def _overview() -> str:
    verbs = "".join(f"  {verb:<10} {text}\n" for verb, text in options.VERBS.items())
    return f"usage: {_PROGRAM} VERB [options]\n\n{verbs}\n{_PROGRAM} VERB --help lists the options of a verb.\n"


if __name__ == "__main__":
    raise SystemExit(main())
