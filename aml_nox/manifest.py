"""aml.toml: from text to ``Manifest``.

One table of keys, ``KEYS``, drives the parser, the JSON schema and the reference page. To add a key: a row there, and a
field of the same name in its dataclass.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from aml_nox import kinds, toml_lines, toml_text, traintable
from aml_nox.errors import AmlError, Code
from aml_nox.faults import Fault, FaultError, Gather, fault, key_path, quote, suggest
from aml_nox.keys import ANY_USE, OTHERS, REQUIRED, Format, Key, Rule, Table
from aml_nox.kinds import Kind, Schema, at_least, choice, list_of, map_of, read
from aml_nox.traintable import Gate, Register, Resources, Train
from aml_nox.urls import check_url, normal_url
from aml_nox.versions import PythonRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from packaging.specifiers import SpecifierSet

    from aml_nox.faults import Place
    from aml_nox.pep508 import Dependency

__all__ = [
    "Gate",
    "Manifest",
    "PythonRequest",
    "Register",
    "Train",
    "check_url",
    "load",
    "normal_url",
    "parse",
    "reference",
    "schema",
    "where",
]

DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uv:
    """Where uv comes from. ``version`` includes the floor; ``sha256`` pairs a platform with a digest."""

    source: str
    version: SpecifierSet
    path: Path | None
    url: str | None
    sha256: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """Which interpreter, and where it comes from."""

    version: PythonRequest
    preference: str
    path: Path | None
    mirror: str | None
    downloads_json: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraIndex:
    """An index that is asked before the default one."""

    name: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Where packages come from. ``url`` is None where uv's own default applies; ``exclude_newer`` is in UTC."""

    url: str | None
    name: str
    extra: tuple[ExtraIndex, ...]
    strategy: str
    exclude_newer: datetime | None

    @property
    def exclude_newer_text(self) -> str | None:
        """The moment as uv takes it, in UTC: ``2026-11-01T00:00:00Z``."""
        return self.exclude_newer.isoformat().replace("+00:00", "Z") if self.exclude_newer else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What an environment is made of, with what it takes over from ``[environment]``."""

    name: str = DEFAULT
    requirements: tuple[Dependency, ...]
    requirements_files: tuple[Path, ...]
    constraints: tuple[Dependency, ...]
    overrides: tuple[Dependency, ...]
    editable: tuple[Path, ...]
    allow_build: tuple[str, ...]
    torch_backend: str | None
    link_mode: str | None

    @property
    def lock_name(self) -> str:
        """The name of the lock file, as PEP 751 wants it."""
        return f"pylock{self._suffix('.')}.toml"

    @property
    def link_name(self) -> str:
        """The name of the link to the environment."""
        return f".venv{self._suffix('-')}"

    def _suffix(self, separator: str) -> str:
        return "" if self.name == DEFAULT else separator + self.name

    def over(self, base: Environment) -> Environment:
        """Lay this environment over the base: lists append, scalars replace."""
        both = {each.name: (getattr(base, each.name), getattr(self, each.name)) for each in fields(self)}
        merged = {
            name: old + new if isinstance(new, tuple) else old if new is None else new
            for name, (old, new) in both.items()
        }
        return replace(self, **merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long each step may run, in seconds."""

    uv: float
    python: float
    venv: float
    install: float
    lock_wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole aml.toml. Relative paths in it are relative to ``folder``; ``sha256`` is of the bytes that were read."""

    path: Path
    sha256: str
    uv: Uv
    python: Python
    index: Index
    environments: tuple[Environment, ...]
    timeouts: Timeouts
    train: Train | None

    @property
    def folder(self) -> Path:
        """The project's folder, absolute."""
        return self.path.parent

    def environment(self, name: str = DEFAULT) -> Environment:
        """Return an environment by name; raises AML_USAGE for an unknown one."""
        for each in self.environments:
            if each.name == name:
                return each
        known = [each.name for each in self.environments]
        raise AmlError(Code.USAGE, f"no environment {quote(name)} in {self.path.name}", suggest(name, known))


def _environment_name(name: str) -> str:
    if name == DEFAULT:
        raise fault("the name is reserved for [environment] itself; choose another")
    if re.fullmatch(r"aml[0-9a-f]{4}", name):
        raise fault("names like this are reserved for locks that are being made; choose another")
    kinds.NAME.parse(name)
    return name


def _table(name: str, example: str = "{}") -> Kind:
    return Kind(
        words="a table", example=example, parse=lambda raw: FORMAT.read(name, raw), schema=lambda: FORMAT.schema(name)
    )


_INDEX = _table("index.extra", '{name = "corp", url = "https://index.example.com/simple"}')
_GATE = _table("train.gates", '{metric = "accuracy", min = 0.95}')
_REGISTER = _table("train.register", '{name = "digits"}')
_ENVIRONMENT_NAME = read("a name", '"gpu"', r"(?!default$)(?!aml[0-9a-f]{4}$)[a-z0-9][a-z0-9-]*", _environment_name)
_PLATFORM = choice(*(f"{system}-{cpu}" for system in ("linux", "macos", "windows") for cpu in ("x86_64", "arm64")))
_SOURCE = choice("auto", "index", "installer", "url", "path", "system", "none")
_PREFERENCE = choice("managed", "only-managed", "system", "only-system")
_STRATEGY = choice("first-index", "unsafe-first-match", "unsafe-best-match")
_LINKS = choice("clone", "copy", "hardlink")  # no symlink: an environment would be a part of uv's cache
_ISOLATION = choice("prefer", "require", "off")
_VERDICT = choice("pass", "fail")
_EXTRAS = list_of(_INDEX, "an array of tables")
_GATES = list_of(_GATE, "an array of tables")
_REQUIREMENTS = list_of(kinds.REQUIREMENT, "an array of PEP 508 requirements")
_PATHS = list_of(kinds.PATH, "an array of paths")
_NAMES = list_of(kinds.PACKAGE, "an array of package names")
_ENVIRONMENTS = map_of(_ENVIRONMENT_NAME, _table("environment"), "a table of environments", "{}")
_SHA256 = map_of(
    _PLATFORM, kinds.SHA256, "a table from platform to sha256", f"{{linux-x86_64 = {kinds.SHA256.example}}}"
)
_VALUES = map_of(kinds.JOB_VARIABLE, kinds.VALUE, "a table of strings", '{KEY = "value"}')
_SETTINGS = map_of(kinds.TEXT, kinds.SCALAR, "a table of strings and integers", '{partition = "gpu"}')

# A row to a key: what would not fit in a line has a name above.
KEYS = (
    Key("", "uv", _table("uv"), {}, "Where uv comes from."),
    Key("", "python", _table("python", '{version = "3.11"}'), {}, "Which interpreter."),
    Key("", "index", _table("index"), {}, "Where packages come from."),
    Key("", "environment", _table("environment"), {}, "What the environment called default is made of."),
    Key("", "environments", _ENVIRONMENTS, {}, "More environments by name, each laid over [environment]."),
    Key("", "timeouts", _table("timeouts"), {}, "How long each step may run."),
    Key("", "train", _table("train", '{script = "train.py"}'), None, "The training job."),
    Key("uv", "source", _SOURCE, "auto", "Where from; none: the fallback to pip."),
    Key("uv", "version", kinds.UV, ">=0.11.32", "Which uv; never one below 0.11.32."),
    Key("uv", "path", kinds.PATH, None, "The uv to use, for source path."),
    Key("uv", "url", kinds.ARCHIVE, None, "What holds uv, for source url; the script, for source installer."),
    Key("uv", "sha256", _SHA256, {}, "Its digest for each platform, for source url."),
    Key("python", "version", kinds.PYTHON, REQUIRED, "Which CPython. A string: unquoted, TOML reads 3.10 as 3.1."),
    Key("python", "preference", _PREFERENCE, "managed", "Whether uv's own builds or the system's come first."),
    Key("python", "path", kinds.PATH, None, "The interpreter to use."),
    Key("python", "mirror", kinds.URL, None, "From where uv downloads its builds."),
    Key("python", "downloads-json", kinds.PLACE, None, "uv's list of builds."),
    Key("index", "url", kinds.URL, None, "The index that replaces uv's default one. No user name or password."),
    Key("index", "name", kinds.NAME, "default", "Its name, as in `UV_INDEX_<NAME>_USERNAME`."),
    Key("index", "extra", _EXTRAS, [], "Indexes that are asked before it. The order has meaning."),
    Key("index", "strategy", _STRATEGY, "first-index", "How uv chooses between indexes, in uv's words."),
    Key("index", "exclude-newer", kinds.OFFSET_TIME, None, "Leave out what was uploaded later, when locking."),
    Key("index.extra", "name", kinds.NAME, REQUIRED, "Its name; unique."),
    Key("index.extra", "url", kinds.URL, REQUIRED, "Its URL."),
    Key("environment", "requirements", _REQUIREMENTS, [], "What is installed. Local wheels: `name @ ./wheels/x.whl`."),
    Key("environment", "requirements-files", _PATHS, [], "Files in pip's format with more of them."),
    Key("environment", "constraints", _REQUIREMENTS, [], "Bounds for what is installed for whatever reason."),
    Key("environment", "overrides", _REQUIREMENTS, [], "What beats the packages' own demands."),
    Key("environment", "editable", _PATHS, [], "Projects installed in place."),
    Key("environment", "allow-build", _NAMES, [], "Packages that may be built from source."),
    Key("environment", "torch-backend", kinds.BACKEND, None, "Which builds of torch, in uv's words."),
    Key("environment", "link-mode", _LINKS, None, "How files leave uv's cache; absent: its choice."),
    Key("timeouts", "uv", kinds.DURATION, "10m", "Fetching uv."),
    Key("timeouts", "python", kinds.DURATION, "10m", "Fetching an interpreter."),
    Key("timeouts", "venv", kinds.DURATION, "5m", "Making the virtual environment."),
    Key("timeouts", "install", kinds.DURATION, "10m", "Locking, or installing."),
    Key("timeouts", "lock-wait", kinds.DURATION, "20m", "Waiting for another run."),
    Key("train", "script", kinds.PATH, None, "The script to run; this or module."),
    Key("train", "module", kinds.MODULE, None, "The module to run; this or script."),
    Key("train", "args", list_of(kinds.ARGUMENT, "an array of strings"), [], "Its arguments."),
    Key("train", "environment", kinds.NAME, "default", "The environment it runs in."),
    Key("train", "evaluate", kinds.PATH, None, "A script that measures the model, in place of the job's claims."),
    Key("train", "dataset", kinds.PATH, None, "The folder with the data; it is hashed, and must stay as it is."),
    Key("train", "timeout", kinds.DURATION, None, "How long it may run; absent: for ever."),
    Key("train", "grace", kinds.DURATION, "10s", "How long it has to end by itself once it is told to."),
    Key("train", "isolation", _ISOLATION, "prefer", "Whether it runs cut off from network."),
    Key("train", "pass-env", list_of(kinds.JOB_VARIABLE, "an array of names"), [], "Variables that it inherits."),
    Key("train", "env", _VALUES, {}, "Variables that are set for it. No secrets: these go through pass-env."),
    Key("train", "max-parallel", at_least(1), 1, "How many jobs may run at once; others wait their turn."),
    Key("train", "launcher", choice("local", "slurm", "ray"), "local", "What starts it.", planned=OTHERS),
    Key("train", "gates", _GATES, [], "What its metrics must fulfil."),
    Key("train", "register", _REGISTER, None, "The registry of models: where an accepted one is kept."),
    Key("train", "resources", _table("train.resources"), None, "What a launcher is asked for.", planned=ANY_USE),
    Key("train", "slurm", _SETTINGS, None, "Options for Slurm.", planned=ANY_USE),
    Key("train", "ray", _SETTINGS, None, "Options for Ray.", planned=ANY_USE),
    Key("train.gates", "metric", kinds.TEXT, REQUIRED, "The metric's name in metrics.json."),
    Key("train.gates", "min", kinds.NUMBER, None, "The least that passes."),
    Key("train.gates", "max", kinds.NUMBER, None, "The most that passes."),
    Key("train.gates", "better", choice("higher", "lower"), None, "Which way it must beat the registered model."),
    Key("train.gates", "min-gain", kinds.NUMBER, None, "By how much at least; negative permits a loss."),
    Key("train.gates", "min-relative-gain", kinds.NUMBER, None, "Likewise, as a share of the registered value."),
    Key("train.gates", "required", kinds.BOOL, True, "Whether it fails where the metric is not reported."),
    Key("train.gates", "if-no-baseline", _VERDICT, "pass", "Its verdict where no registered model has the metric."),
    Key("train.register", "name", kinds.FOLDER, REQUIRED, "The model's name: its folder in `aml/models`."),
    Key("train.resources", "cpus", at_least(1), None, "Processors."),
    Key("train.resources", "memory", kinds.MEMORY, None, "Memory."),
    Key("train.resources", "gpus", at_least(0), 0, "Accelerators."),
)


def _source_has_what_it_needs(source: str, path: Path | None) -> None:
    if source == "path" and path is None:
        raise fault('source = "path" needs the path; add path = "…"', "source")


def _download_is_pinned(source: str, url: str | None, sha256: Sequence[object]) -> None:
    if source == "url" and not (url and sha256):
        raise fault('source = "url" needs both url and sha256; add them', "source")


def _url_is_of_its_source(source: str, url: str | None) -> None:
    is_script = (url or "").split("#")[0].split("?")[0].endswith((".sh", ".ps1"))
    if url and source == "url" and is_script:
        raise fault('source = "url" takes an archive or wheel; a script belongs to source = "installer"', "url")
    if url and source in {"auto", "installer"} and not is_script:
        raise fault(f'source = "{source}" runs it as a script, this is none; write source = "url"', "url")


def _index_names_differ(name: str, extra: Sequence[ExtraIndex]) -> None:
    names = [name, *(each.name for each in extra)]
    twice = [
        Fault(("extra", number, "name"), f"{quote(each.name)} is the name of another index, too; choose another")
        for number, each in enumerate(extra)
        if each.name in names[: number + 1]
    ]
    if twice:
        raise FaultError(*twice)


def _assemble(environment: Environment, environments: Sequence[tuple[str, Environment]], **others: object) -> Manifest:
    named = (replace(each.over(environment), name=name) for name, each in environments)
    make: Callable[..., Manifest] = Manifest
    return make(path=Path("aml.toml"), sha256="", environments=(environment, *named), **others)


TABLES = (
    Table("", "", _assemble),
    Table(
        "uv",
        "Where uv comes from; it is never put on PATH.",
        Uv,
        (
            Rule(("source", "path"), _source_has_what_it_needs),
            Rule(("source", "url", "sha256"), _download_is_pinned),
            Rule(("source", "url"), _url_is_of_its_source),
        ),
    ),
    Table("python", "Which interpreter the environments are made with.", Python),
    Table(
        "index",
        "Where packages come from; without `url`, uv's own default applies.",
        Index,
        (Rule(("name", "extra"), _index_names_differ),),
    ),
    Table("index.extra", "An item of `extra`: another index.", ExtraIndex),
    Table(
        "environment",
        "What is installed. `[environments.NAME]` takes the same keys: lists append to those of "
        "`[environment]`, other values replace them.",
        Environment,
    ),
    Table("timeouts", "How long each step may run: seconds, or a string with s, m or h.", Timeouts),
    Table(
        "train",
        "The training job. It needs one of `script` and `module`.",
        Train,
        (
            Rule(("script", "module"), traintable.one_program),
            Rule(("env",), traintable.no_secret_is_written),
            Rule(("gates", "register"), traintable.better_has_a_registry),
        ),
    ),
    Table(
        "train.gates",
        "An item of `[[train.gates]]`; it needs `min`, `max` or `better`. A metric that is no finite number fails. "
        "The gain is how far the metric lies on the better side of the registered model's (the latest's); without "
        "`min-gain` and `min-relative-gain` it must be more than 0, with both it must reach both.",
        Gate,
        (
            Rule(("min", "max"), traintable.bounds_in_order),
            Rule(("min", "max", "better"), traintable.gate_can_fail),
            Rule(("better", "min_gain", "min_relative_gain", "if_no_baseline"), traintable.gain_has_a_direction),
        ),
    ),
    Table("train.register", "Under which name an accepted model is registered.", Register),
    Table("train.resources", "What a launcher is asked for.", Resources),
)

FORMAT = Format(KEYS, TABLES)

_PREFACE = """# aml.toml

Generated by `docs/generate.py` from the table of keys in `aml_nox/manifest.py`; `aml.schema.json` is made of the same.

Paths are relative to the folder of aml.toml; `~` and variables are not expanded. Only `python.version` is required. All
faults of a file are told at once, each with its line, its key and a remedy. Requirement files may hold requirements,
comments, continued lines, `-r`, `-c` and `--hash=sha256:…`; all other options belong in aml.toml."""


def load(path: Path) -> Manifest:
    """Read an aml.toml; raises AML_MANIFEST with all its faults, one a line, each with line, key path and remedy."""
    try:
        with path.open("rb") as file:
            data = file.read(toml_text.MAX_BYTES + 1)
    except FileNotFoundError:
        raise AmlError(Code.MANIFEST, f"{path}: there is no such file", "`aml-nox init` makes one") from None
    except OSError as error:
        raise AmlError(Code.MANIFEST, f"{path}: cannot be read: {error.strerror}") from None
    return parse(data, path)


def parse(data: bytes, path: Path) -> Manifest:
    """Read the bytes of the aml.toml at ``path``; raises AML_MANIFEST as ``load`` does."""
    label = _label(path)
    text = toml_text.decode(data, label)
    document = toml_text.document(text, label)
    gather = Gather()
    with gather.under():
        manifest = cast("Manifest", FORMAT.read("", document))
    known = {each.place for each in gather.faults}
    faults = gather.faults + [each for each in _across(document, path.parent) if each.place not in known]
    if faults:
        raise _error(faults, text, label)
    return replace(manifest, path=path.absolute(), sha256=hashlib.sha256(data).hexdigest())


def schema() -> Schema:
    """Return the JSON schema (draft-07) of aml.toml, for editors."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "aml.toml", **FORMAT.schema("")}


def reference() -> str:
    """Return the reference page of aml.toml, in Markdown."""
    return "\n".join((_PREFACE, *FORMAT.page(), ""))


def where(manifest: Manifest, place: Place) -> str:
    """Say where a key of a loaded manifest stands, for a message: ``aml.toml:7: environment.requirements[0]``."""
    try:
        lines = toml_lines.index(manifest.path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the file has changed since
        lines = {}
    return f"{manifest.path.name}:{toml_lines.find(lines, place)}: {key_path(place)}"


def _label(path: Path) -> str:
    return path.name if path.is_absolute() else path.as_posix()


def _error(faults: list[Fault], text: str, label: str) -> AmlError:
    lines = toml_lines.index(text)
    found = sorted((toml_lines.find(lines, each.place), key_path(each.place), each.text) for each in faults)
    return AmlError(Code.MANIFEST, "\n".join(f"{label}:{line}: {key}: {what}" for line, key, what in found))


def _across(document: dict[str, object], folder: Path) -> Iterator[Fault]:
    """Find what spans tables or folders. From the document, so that other faults do not hide it."""
    match document:
        case {"train": {"environment": str(name)}} if name not in (known := _environment_names(document)):
            yield Fault(("train", "environment"), f"there is no environment {quote(name)}; {suggest(name, known)}")
    for place, name in _requirements_files(document):
        if not is_file(folder / name):
            yield Fault(place, f"there is no file {quote(name)} in aml.toml's folder; make it, or mend the path")


def _environment_names(document: dict[str, object]) -> list[str]:
    named = document.get("environments")
    return [DEFAULT, *(named if isinstance(named, dict) else ())]


def _requirements_files(document: dict[str, object]) -> Iterator[tuple[Place, str]]:
    named = document.get("environments")
    tables: list[tuple[Place, object]] = [(("environment",), document.get("environment"))]
    tables += [(("environments", name), each) for name, each in named.items()] if isinstance(named, dict) else []
    for place, table in tables:
        match table:
            case {"requirements-files": list(files)}:
                yield from (
                    ((*place, "requirements-files", number), name)
                    for number, name in enumerate(files)
                    if isinstance(name, str)
                )


def is_file(path: Path) -> bool:
    """Say whether there is a file to read; a name that no file system takes is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
