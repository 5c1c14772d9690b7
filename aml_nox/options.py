"""The one table of options, for the command line and the nox sessions alike.

nox hands the same arguments to every session, so a session passes over the options of the others; an option that nobody
has is refused with the command that was meant. What stands behind `--` (in nox: behind a second one) is the script's.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from aml_nox.errors import AmlError, Code

VERBS = {
    "bootstrap": "find or fetch uv and find the interpreter",
    "lock": "make or update the lock of an environment",
    "provision": "make the environment that the lock describes",
    "plan": "tell what provision would do, and why; change nothing",
    "status": "tell what is ready and what is not",
    "verify": "hold the environment against what it was certified to be",
    "reproduce": "build the environment a second time elsewhere and compare every file",
    "clean": "remove environments that nobody uses",
    "train": "run the training job in its environment and judge its metrics",
    "jobs": "list the training jobs, or tell of one; follow or cancel it",
    "models": "list the registered models",
    "init": "write a first aml.toml and noxfile.py",
}
SESSIONS = tuple(verb for verb in VERBS if verb != "init")
_ENVIRONMENT = ("lock", "provision", "plan", "status", "verify", "reproduce", "train")
_BUILDING = ("provision", "plan", "verify", "reproduce", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: `metavar` empty is a flag; `store` is what a flag stores, `many` collects. No dash: an argument."""

    name: str
    verbs: tuple[str, ...]
    text: str
    metavar: str = ""
    dest: str = ""
    store: bool = True
    many: bool = False

    @property
    def key(self) -> str:
        """The field of `Options` that it sets."""
        return self.dest or self.name.removeprefix("--").replace("-", "_")


OPTIONS = (
    Option(name="--env", verbs=_ENVIRONMENT, metavar="NAME", text="the environment, where not the default one"),
    Option(name="--json", verbs=tuple(VERBS), metavar="FILE", text="write the result as JSON; - is standard output"),
    Option(name="--manifest", verbs=SESSIONS, metavar="PATH", text="the aml.toml, where not the nearest upward"),
    Option(name="--force", verbs=("bootstrap", "lock", "provision", "init"), text="do it anew"),
    Option(name="--offline", verbs=("bootstrap", "lock", *_BUILDING), text="allow no request"),
    Option(name="--locked", verbs=_BUILDING, text="a lock that is stale or missing is an error"),
    Option(
        name="--no-locked", verbs=_BUILDING, dest="locked", store=False, text="update a stale lock even where CI is set"
    ),
    Option(name="--level", verbs=("verify",), metavar="LEVEL", text="quick, full or strict; full where left out"),
    Option(name="--repair", verbs=("verify",), text="build anew what is not as it was certified"),
    Option(name="--all", verbs=("clean",), text="also those younger than 7 days"),
    Option(name="--dry-run", verbs=("clean",), text="only tell what would go"),
    Option(name="--if-changed", verbs=("train",), text="run nothing where the same job has succeeded already"),
    Option(name="JOB", verbs=("jobs",), dest="job", text="tell of this job alone; the end of its id will do"),
    Option(name="--follow", verbs=("jobs",), metavar="JOB", text="show a job until it ends"),
    Option(name="--cancel", verbs=("jobs",), metavar="JOB", text="end a job, with its grace"),
    Option(name="MODEL", verbs=("models",), dest="model", text="the versions of this model alone"),
    Option(name="--check", verbs=("lock",), text="say whether the lock belongs to the manifest; change nothing"),
    Option(name="--upgrade", verbs=("lock",), text="let every package move"),
    Option(name="--upgrade-package", verbs=("lock",), metavar="NAME", many=True, text="let this package move"),
    Option(name="--help", verbs=tuple(VERBS), text="show this"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a front end was asked; `arguments` belong to the script."""

    env: str | None = None
    json: str | None = None
    manifest: str | None = None
    force: bool = False
    offline: bool = False
    locked: bool | None = None
    check: bool = False
    upgrade: bool = False
    upgrade_package: tuple[str, ...] = ()
    level: str = "full"
    repair: bool = False
    all: bool = False
    dry_run: bool = False
    if_changed: bool = False
    job: str | None = None
    follow: str | None = None
    cancel: str | None = None
    model: str | None = None
    help: bool = False
    arguments: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise AmlError(Code.USAGE, message, f"`{self.prog} --help` lists the options")


def parse(verb: str, argv: Sequence[str], *, command: str, lenient: bool) -> Options:
    """Read the options of a verb; `lenient` passes over those of other verbs, `command` is how the user called it.

    Raises:
        AmlError: AML_USAGE, with the corrected command where it can be guessed.

    """
    if verb not in VERBS:
        raise _unknown_verb(verb, command)
    ours, arguments = _split(argv)
    parser = _parser(verb, command, VERBS if lenient else [verb])
    values, unknown = parser.parse_known_args(ours)
    if unknown:
        raise _unknown(verb, ours, unknown, command)
    if arguments and verb != "train" and not lenient:
        raise AmlError(Code.USAGE, f"{verb} takes no arguments behind --", f"`{command} --help` lists the options")
    own = {option.key for option in OPTIONS if verb in option.verbs}
    found = {name: value for name, value in vars(values).items() if value is not None and name in own}
    return Options(**{**found, "upgrade_package": tuple(found.get("upgrade_package", ()))}, arguments=tuple(arguments))


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(argv)
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parser(verb: str, command: str, verbs: Iterable[str]) -> _Parser:
    parser = _Parser(prog=command, description=VERBS[verb], add_help=False, allow_abbrev=False)
    for option in OPTIONS:
        if not option.name.startswith("-"):
            if verb in option.verbs:
                parser.add_argument(option.key, nargs="?", metavar=option.name, help=option.text)
        elif set(option.verbs) & set(verbs):
            help_text = option.text if verb in option.verbs else argparse.SUPPRESS
            if not option.metavar:
                parser.add_argument(
                    option.name, dest=option.key, action="store_const", const=option.store, help=help_text
                )
            else:
                action = "append" if option.many else "store"
                parser.add_argument(option.name, dest=option.key, action=action, metavar=option.metavar, help=help_text)
    return parser


def _unknown_verb(verb: str, command: str) -> AmlError:
    program = command.removesuffix(f" {verb}")
    close = difflib.get_close_matches(verb, VERBS, n=1)
    hint = f"did you mean `{program} {close[0]}`" if close else f"`{program} --help` lists the verbs"
    return AmlError(Code.USAGE, f"there is no verb {verb!r}", hint)


def _unknown(verb: str, ours: Sequence[str], unknown: Sequence[str], command: str) -> AmlError:
    word = unknown[0]
    known = [option.name for option in OPTIONS if verb in option.verbs]
    close = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=0.7)
    kind = "option" if word.startswith("-") else "argument"
    message = f"{verb} has no {kind} {word}"
    if close:
        corrected = [close[0] + one.removeprefix(word.partition("=")[0]) if one == word else one for one in ours]
        return AmlError(Code.USAGE, message, f"did you mean `{command} {shlex.join(corrected)}`")
    if verb == "train":
        behind = shlex.join([*_without(ours, unknown), "--", *unknown])
        return AmlError(Code.USAGE, message, f"the script's own arguments stand behind --: `{command} {behind}`")
    return AmlError(Code.USAGE, message, f"`{command} --help` lists the options")


def _without(words: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The words but for those of a subsequence: the value of an option that is known may equal an unknown word."""
    kept, left = [], list(taken)
    for word in words:
        if left and word == left[0]:
            del left[0]
        else:
            kept.append(word)
    return kept


def usage(verb: str, command: str) -> str:
    """The help of a verb."""
    text = _parser(verb, command, [verb]).format_help()
    return text + ("\nWhat stands behind -- is handed to the script.\n" if verb == "train" else "")


def json_target(argv: Sequence[str]) -> str | None:
    """Where the JSON goes, from arguments that may be wrong otherwise: an error is reported there too."""
    ours, _ = _split(argv)
    for word, following in itertools.pairwise([*ours, ""]):
        if word == "--json":
            return following or None
        if word.startswith("--json="):
            return word.removeprefix("--json=") or None
    return None
