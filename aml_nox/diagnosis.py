"""What a tool's failure means: its own last words, what kind of fault they tell, and what to do about it."""

from __future__ import annotations

import re

from aml_nox import process, urls
from aml_nox.context import INDEX_VARIABLE, Context
from aml_nox.errors import AmlError, Code

# What a tool's words mean, the first that fits; measured on uv 0.13 and pip 26. pip says "from versions: none" of an
# index that refuses, has no such page, or is not to be asked.
_REFUSED = r"\b(401|403) [A-Z]|from versions: none"
_FETCH_WORDS = (
    _REFUSED + r"|\b(407|429|50\d) [A-Z]|HTTP error [45]\d\d|Failed to (fetch|download)|[Rr]equest failed|"
    r"error sending request|Network connectivity is disabled|network was disabled|[Cc]onnection (refused|reset|broken)|"
    r"Max retries|NewConnectionError|Could not (connect|fetch)|IncompleteRead|incomplete-download|error reading a body|"
    r"peer certificate|CERTIFICATE_VERIFY"
)
_DAMAGED = r"[Tt]he wheel is invalid"
_WORDS = (
    (r"[Hh]ash mismatch|DO NOT MATCH THE HASHES|[Ss]ize mismatch", Code.INTEGRITY),
    (_DAMAGED, Code.INTEGRITY),
    (r"No space left on device|Disk quota exceeded", Code.STATE),
    (_FETCH_WORDS, Code.FETCH),
    (r"Failed to build|[Bb]uild backend|metadata-generation-failed|Getting requirements to build", Code.VENV_FAILED),
    (r"No solution found|not found in the package registry|No matching distribution|unsatisfiable", Code.RESOLUTION),
)
_NO_WHEEL = r"no usable wheels|building from source is disabled"
_ALLOW = "it has no wheel for this: take a version that has one, or name it in environment.allow-build"
_HINTS = {
    Code.INTEGRITY: "the bytes are not those that were promised: find out who changed the index, then lock again",
    Code.STATE: "free some space and run the same command again",
    Code.VENV_FAILED: "its own words say what stands in the way",
    Code.RESOLUTION: "loosen the requirement that is named, or add the index that has it",
}


def failure(ctx: Context, done: process.Finished, *, step: str, limit: float, otherwise: Code) -> AmlError:
    """The error for a tool that failed: its own last words, what kind of fault they tell, what to do.

    Where no resolution was asked for (`otherwise` is another code), what an index does not have is a failed fetch.
    """
    if done.timed_out:
        return AmlError(Code.TIMEOUT, f"{step} took longer than {limit:g} s and was ended", "raise [timeouts]")
    if done.status < 0:
        hint = "somebody ended it, or the machine ran out of memory: run the same command again"
        return AmlError(otherwise, f"{step} was ended by signal {-done.status}", hint)
    words = done.err + done.out
    code = next((code for pattern, code in _WORDS if re.search(pattern, words)), otherwise)
    if code is Code.RESOLUTION and otherwise is Code.FETCH:
        code = otherwise
    tail = done.tail or process.Redactor.of(ctx.environ)(done.out)[-400:].strip()
    hint = _ALLOW if re.search(_NO_WHEEL, words) else _HINTS.get(code, "")
    hints = [hint, _fetch_hint(ctx, words) if code in {Code.FETCH, Code.RESOLUTION} else ""]
    return AmlError(code, f"{step} failed (exit {done.status}):\n{tail}", "; ".join(filter(None, hints)))


def is_damaged(error: AmlError) -> bool:
    """Whether a tool could not read what it has in its cache: that is not what was once downloaded."""
    return re.search(_DAMAGED, error.message) is not None


def _fetch_hint(ctx: Context, words: str) -> str:
    where = ctx.index_url()
    hint = f"the index tried is {where}" if where else "no index.url is set, so the tool's own default index was tried"
    if re.search(_REFUSED, words):
        hint += f"; {urls.CREDENTIALS}"
    if ctx.offline:
        hint = "--offline allows no request: run once without it"
    if dropped := process.dropped_index_variables(ctx.environ):
        hint += f"; not used: {', '.join(dropped)} (set index.url or {INDEX_VARIABLE})"
    return hint
