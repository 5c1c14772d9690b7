"""What an environment declares: aml.toml's requirements and the files that it names, read, followed and normalised.

The format of the files is pip's (pip documentation, "Requirements File Format"), without what would name an index, a
build or a variable: those belong into aml.toml, where they are seen. Everything here reads; nothing writes.
"""

from __future__ import annotations

import codecs
import hashlib
import os.path
import re
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aml_nox import editables, pep508
from aml_nox.editables import Editable
from aml_nox.errors import AmlError, Code
from aml_nox.faults import FaultError, Place, fault, quote
from aml_nox.manifest import DEFAULT, is_file, where

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aml_nox.manifest import Manifest
    from aml_nox.pep508 import Dependency

_COMMENT = re.compile(r"(^|\s+)#.*$")
_LINE_END = re.compile(r"\r\n|\n|\r")
_BEFORE_OPTIONS = re.compile(r"\s(?=--\w)")
_AFTER_NAME = re.compile(r"[=\s]")
_HASH = re.compile(r"--hash(?:=|\s+)(?P<algorithm>\w+):(?P<digest>[0-9A-Za-z]+)(?=\s|$)")
_BYTE_ORDER_MARKS = (
    # UTF-32's mark begins with UTF-16's.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)
_INCLUDES = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
_INSTEAD = {
    "--index-url": "use url in [index]",
    "--extra-index-url": "use extra in [index]",
    "--no-index": "use url in [index], which may be a file:// URL",
    "--find-links": "use environment.requirements with NAME @ ./wheels/x.whl",
    "--no-binary": "use allow-build in [environment]",
    "--only-binary": "take it out: only wheels are taken, but for allow-build in [environment]",
    "--prefer-binary": "take it out: only wheels are taken, but for allow-build in [environment]",
    "--pre": "name the pre-release in environment.requirements, for example NAME>=2.0rc1",
    "--trusted-host": "use an https URL in [index] url, and SSL_CERT_FILE for an authority of your own",
    "--require-hashes": "take it out: it is always on, for everything in the lock",
    "--editable": "use editable in [environment]",
}
_LONG = {"-i": "--index-url", "-f": "--find-links", "-e": "--editable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A requirement in normal form, the hashes that it demands, and where it was first written."""

    text: str
    hashes: tuple[str, ...]
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A requirement file that was read: its path from aml.toml's folder, with slashes, and its digest."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWheel:
    """A wheel that a requirement names by path; joined to aml.toml's folder, ``path`` leads to it."""

    name: str
    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """All that an environment declares; sorted, so that order and spelling do not show."""

    requirements: tuple[Line, ...]
    constraints: tuple[Line, ...]
    overrides: tuple[Line, ...]
    files: tuple[SourceFile, ...]
    wheels: tuple[LocalWheel, ...]
    editables: tuple[Editable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    dependency: Dependency
    hashes: tuple[str, ...] = ()
    is_constraint: bool = False
    is_override: bool = False
    origin: str = ""
    place: Place = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Include:
    path: Path
    is_constraint: bool
    origin: str = ""


@dataclass(slots=True)
class _Reading:
    """What has been read so far of the files below ``folder``."""

    folder: Path
    demands: list[_Demand] = field(default_factory=list)
    files: dict[str, SourceFile] = field(default_factory=dict)
    wheels: set[LocalWheel] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


def declare(manifest: Manifest, name: str = DEFAULT) -> Declared:
    """Read what an environment declares; raises AML_MANIFEST with all faults of all files, one a line."""
    reading = _Reading(manifest.folder)
    reading.demands += _own_demands(manifest, name)
    files = manifest.environment(name).requirements_files
    _follow(reading, deque(_Include(path=path, is_constraint=False, origin=manifest.path.name) for path in files))
    editables = _read_editables(manifest, reading, name)
    demands = [_located(manifest, reading, each) for each in reading.demands]
    if reading.faults:
        raise AmlError(Code.MANIFEST, "\n".join(reading.faults))
    return Declared(
        requirements=_lines(each for each in demands if not (each.is_constraint or each.is_override)),
        constraints=_lines(each for each in demands if each.is_constraint),
        overrides=_lines(each for each in demands if each.is_override),
        files=tuple(sorted(reading.files.values(), key=lambda each: each.path)),
        wheels=tuple(sorted(reading.wheels, key=lambda each: (each.name, each.path))),
        editables=editables,
    )


def _read_editables(manifest: Manifest, reading: _Reading, name: str) -> tuple[Editable, ...]:
    """Read the projects in place; what they depend on is demanded like anything else."""
    found: dict[str, Editable] = {}
    for path in manifest.environment(name).editable:
        try:
            one = editables.read(manifest.folder, placed(manifest.folder, path))
        except FaultError as error:
            reading.faults.append(f"{manifest.path.name}: environment.editable: {error}")
            continue
        found[one.path] = one
    in_place = {one.name for one in found.values()}
    for one in found.values():
        for each in one.dependencies:
            # What is in place is not looked for at an index, where anybody may have taken its name.
            if each.name not in in_place:
                reading.demands.append(_Demand(dependency=each, origin=one.files[0][0]))
            elif each.extras:
                reading.faults.append(
                    f"{manifest.path.name}: environment.editable: {quote(one.path)}: {each.text}: extras of a project"
                    " in place are not read; list what they name in environment.requirements"
                )
    return tuple(found[path] for path in sorted(found))


def _own_demands(manifest: Manifest, name: str) -> Iterator[_Demand]:
    base, environment = manifest.environment(), manifest.environment(name)
    for key in ("requirements", "constraints", "overrides"):
        inherited = len(getattr(base, key))
        for number, dependency in enumerate(getattr(environment, key)):
            place: Place = ("environment", key, number)
            if number >= inherited:
                place = ("environments", name, key, number - inherited)
            yield _Demand(
                dependency=dependency,
                is_constraint=key == "constraints",
                is_override=key == "overrides",
                origin=manifest.path.name,
                place=place,
            )


def _follow(reading: _Reading, pending: deque[_Include]) -> None:
    """Read files and what they include, each once in each role: no cycle and no depth can harm."""
    seen: set[tuple[str, bool]] = set()
    while pending:
        include = pending.popleft()
        path = placed(reading.folder, include.path)
        if (path, include.is_constraint) in seen:
            continue
        seen.add((path, include.is_constraint))
        try:
            text = _read_file(reading, path, include.origin)
        except FaultError as error:
            reading.faults.append(str(error))
            continue
        pending.extend(_read_lines(reading, text, path, is_constraint=include.is_constraint))


def _read_file(reading: _Reading, path: str, origin: str) -> str:
    file = reading.folder / path
    if not is_file(file):
        raise fault(f"{origin}: there is no file {quote(path)}; a path is relative to the file that names it")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise fault(f"{origin}: {quote(path)} cannot be read: {error.strerror}; mend its permissions") from None
    reading.files[path] = SourceFile(path=path, sha256=hashlib.sha256(data).hexdigest())
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise fault(f"{path}:{line}: not {encoding.upper()} (byte {error.start}); save it as UTF-8") from None


def _read_lines(reading: _Reading, text: str, path: str, *, is_constraint: bool) -> Iterator[_Include]:
    for number, line in logical_lines(text):
        origin = f"{path}:{number}"
        try:
            found = _read_line(line)
        except FaultError as error:
            reading.faults += [f"{origin}: {each.text}" for each in error.faults]
            continue
        # What a constraint file includes are constraints, whatever the option says.
        placed_here = replace(found, is_constraint=found.is_constraint or is_constraint, origin=origin)
        if isinstance(placed_here, _Include):
            yield replace(placed_here, path=Path(path).parent / placed_here.path)
        else:
            reading.demands.append(placed_here)


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Give each line with the number of its first physical line: continued lines joined, comments and blanks dropped.

    As pip does it: a line that is a comment ends a continuation, and never begins one.
    """
    joined: list[str] = []
    first = 1
    for number, line in enumerate(_LINE_END.split(text), 1):
        first = first if joined else number
        if line.endswith("\\") and not _COMMENT.match(line):
            joined.append(line[:-1])
            continue
        joined.append(f" {line}" if _COMMENT.match(line) else line)
        yield from _uncommented(first, joined)
        joined = []
    yield from _uncommented(first, joined)


def _uncommented(number: int, parts: list[str]) -> Iterator[tuple[int, str]]:
    line = _COMMENT.sub("", "".join(parts)).strip()
    if line:
        yield number, line


def _read_line(line: str) -> _Include | _Demand:
    if not line.replace("\t", " ").isprintable():
        raise fault("the line holds a control character; take it out")
    if "${" in line:
        raise fault("variables are not expanded; write the value out, or use aml.toml's [index] and [environment]")
    if line.startswith("-"):
        return _read_option(line)
    requirement, *options = _BEFORE_OPTIONS.split(line, maxsplit=1)
    return _Demand(dependency=pep508.parse(requirement), hashes=_hashes("".join(options)))


def _read_option(line: str) -> _Include:
    name = _AFTER_NAME.split(line)[0] if line.startswith("--") else line[:2]
    if name not in _INCLUDES:
        raise _refused(name)
    value = line.removeprefix(name)
    path = _unquoted(value.removeprefix("=") if name.startswith("--") else value)
    if not path or "://" in path:
        raise fault(f"{name} needs the path of a file; write {name} FILE, relative to this file")
    return _Include(path=Path(path), is_constraint=_INCLUDES[name])


def _unquoted(value: str) -> str:
    value = value.strip()
    return value[1:-1] if value[:1] in ("'", '"') and value[1:].endswith(value[0]) else value


def _refused(name: str) -> FaultError:
    advice = _INSTEAD.get(_LONG.get(name, name), "take it out: only -r, -c and --hash may stand in a requirement file")
    return fault(f"{name} is not allowed in a requirement file; {advice}")


def _hashes(options: str) -> tuple[str, ...]:
    found = list(_HASH.finditer(options))
    rest = _HASH.sub("", options).split()
    if rest:
        name = _AFTER_NAME.split(rest[0])[0]
        if name == "--hash":
            raise fault("a hash is malformed; write --hash=sha256: and 64 hexadecimal digits")
        raise _refused(name) if name.startswith("-") else fault("text after the hashes; write one requirement a line")
    return tuple(sorted({_sha256(each["algorithm"], each["digest"]) for each in found}))


def _sha256(algorithm: str, digest: str) -> str:
    if algorithm != "sha256":
        raise fault(f"a {algorithm} hash; only sha256 is used here, in locks and receipts too: give that one")
    if not re.fullmatch(r"[0-9A-Fa-f]{64}", digest):
        raise fault("a sha256 has 64 hexadecimal digits; copy it whole")
    return f"sha256:{digest.lower()}"


def _located(manifest: Manifest, reading: _Reading, demand: _Demand) -> _Demand:
    """Place and hash the wheel of a demand that has one."""
    if not demand.dependency.wheel:
        return demand
    path = placed(reading.folder, Path(demand.dependency.wheel))
    try:
        with (reading.folder / path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        origin = where(manifest, demand.place) if demand.place else demand.origin
        reading.faults.append(
            f"{origin}: there is no readable wheel {quote(path)}; paths of wheels are relative to aml.toml's folder"
        )
    else:
        reading.wheels.add(LocalWheel(name=demand.dependency.name, path=path, sha256=digest))
    return replace(demand, dependency=replace(demand.dependency, wheel=path))


def placed(folder: Path, path: Path) -> str:
    """Write a path with slashes: relative to ``folder`` where it was written so or lies inside, else absolute."""
    full, real = os.path.normpath(folder / path), os.path.realpath(folder / path)
    if os.path.realpath(full) != real:
        # A symbolic link before "..": only the path as written leads there.
        return path.as_posix()
    for root, target in ((os.path.normpath(folder), full), (os.path.realpath(folder), real)):
        if Path(target).is_relative_to(root):
            return Path(target).relative_to(root).as_posix()
    return Path(os.path.normpath(path)).as_posix()


def _lines(demands: Iterable[_Demand]) -> tuple[Line, ...]:
    merged: dict[str, Line] = {}
    for each in demands:
        text = each.dependency.text
        known = merged.setdefault(text, Line(text=text, hashes=(), origin=each.origin))
        merged[text] = replace(known, hashes=tuple(sorted({*known.hashes, *each.hashes})))
    return tuple(merged[text] for text in sorted(merged))
