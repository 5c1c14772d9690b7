"""Requirement strings: PEP 508, with local wheels, in one normal form.

What is refused here could not be locked: version control, folders and source archives have no bytes that a lock can
promise. uv's reading of ``name @ PATH`` is followed: a plain path is taken as it is, a ``file:`` URL is decoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import quote as percent_encode
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from aml_nox.faults import fault, quote
from aml_nox.urls import check_link, normal_url

_DIRECT = re.compile(r"\s*(?P<head>[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[^\]]*\])?)\s*@\s*(?P<target>.*)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters or more: C: is a drive
_DRIVE = re.compile(r"/?[A-Za-z]:[/\\]")
_WHEEL_PATH = re.compile(r"(?P<path>.+?\.whl)(?:\s+;\s*(?P<marker>.*))?", re.IGNORECASE)
_GLUED_MARKER = re.compile(r"\.(?:whl|zip|gz)(?:#[^\s;]*)?;", re.IGNORECASE)
_SHA256 = re.compile(r"sha256=[0-9a-f]{64}")
_BARE = re.compile(r"[./\\~]|[A-Za-z0-9._+-]*(?:[:/\\]|\.whl\b)", re.IGNORECASE)
_SECRET = re.compile(r"//\S*@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A requirement in normal form. At most one of ``specifier``, ``url`` and ``wheel`` is not empty.

    ``wheel`` is a file's path with slashes: relative to aml.toml's folder, or absolute.
    """

    name: str
    extras: tuple[str, ...] = ()
    specifier: str = ""
    url: str = ""
    wheel: str = ""
    marker: str = ""

    @property
    def text(self) -> str:
        """The requirement as PEP 508 writes it (a local wheel as uv reads it)."""
        head = f"{self.name}[{','.join(self.extras)}]" if self.extras else self.name
        target = self.url or (wheel_text(self.wheel) if self.wheel else "")
        body = f"{head} @ {target} " if target else f"{head}{self.specifier}"
        return f"{body}; {self.marker}" if self.marker else body.rstrip()


def wheel_text(path: str) -> str:
    """Write a local wheel's path as a requirement's target: ``./wheels/x.whl``, or a ``file:`` URL where absolute."""
    if path.startswith("/") or _DRIVE.match(path):
        return "file:///" + percent_encode(path.removeprefix("/"), safe="/:@+")
    return path if path.startswith("../") else f"./{path}"


def parse(text: str) -> Dependency:
    """Read one requirement string; raises ``FaultError``. A user part of a URL is never echoed."""
    if any(not char.isprintable() for char in text.replace("\t", " ")):
        raise fault("a requirement holds a control character or a line break; write one requirement a string")
    direct = _DIRECT.fullmatch(text)
    if direct is None:
        _check_shape(text)
        return _from_parts(_requirement(text))
    head, target = direct["head"], direct["target"].strip()
    if _GLUED_MARKER.search(target):
        raise fault("the marker is glued to the URL and would be read as part of it; put a space before ;")
    return _from_url(text, target) if _SCHEME.match(target) else _from_path(head, target)


def _check_shape(text: str) -> None:
    stripped = text.strip()
    if not stripped:
        raise fault("the requirement is empty; take it out")
    if stripped.startswith("-"):
        raise fault("an option is no requirement; files go into requirements-files, -e into editable")
    if _BARE.match(stripped):
        raise fault("a path or URL needs the name of what it holds; write NAME @ ./wheels/x.whl or NAME @ https://…")


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        reason = _SECRET.sub("//***@", str(error).splitlines()[0])
        raise fault(f"not a PEP 508 requirement: {reason}; write for example numpy>=2,<3") from None


def _from_parts(parsed: Requirement, *, url: str = "", wheel: str = "") -> Dependency:
    return Dependency(
        name=canonicalize_name(parsed.name),
        extras=tuple(sorted({canonicalize_name(extra) for extra in parsed.extras})),
        specifier=",".join(sorted({str(each) for each in parsed.specifier})),
        url=url,
        wheel=wheel,
        marker=str(parsed.marker or ""),
    )


def _from_url(text: str, target: str) -> Dependency:
    if "+" in target.partition(":")[0]:
        raise fault("version control cannot be locked to bytes; build a wheel and write NAME @ ./wheels/x.whl")
    parsed = _requirement(text)
    url = parsed.url or ""
    check_link(url)
    parts = urlsplit(url)
    if parts.scheme == "file":
        wheel = _file_path(url)
        _check_wheel(parsed.name, wheel)
        return _from_parts(parsed, wheel=_tidy(wheel))
    if parts.fragment and not _SHA256.fullmatch(parts.fragment):
        raise fault("the URL's fragment is not a sha256; write #sha256= and 64 hexadecimal digits, or none")
    _check_wheel(parsed.name, unquote(parts.path))
    return _from_parts(parsed, url=normal_url(url))


def _file_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc.lower() not in ("", "localhost"):
        raise fault("a file URL with a host; write file:///PATH, or a path relative to aml.toml: NAME @ ./wheels/x.whl")
    if parts.query or parts.fragment:
        raise fault("a file URL has no query or fragment (the file is hashed anyway); write # as %23 and ? as %3F")
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError:
        raise fault("the file URL does not decode to UTF-8; percent-encode the UTF-8 bytes of the path") from None
    return path.removeprefix("/") if _DRIVE.match(path) else path


def _from_path(head: str, target: str) -> Dependency:
    found = _WHEEL_PATH.fullmatch(target)
    if found is None:
        if ".whl#" in target:
            raise fault("a fragment on a local wheel (the file is hashed anyway); end the path with .whl")
        raise fault("neither a URL nor a wheel; folders and source archives are refused: build a wheel first")
    if target.startswith("~") or "${" in target:
        raise fault("~ and variables are not expanded; write a path relative to aml.toml's folder")
    parsed = _requirement(f"{head};{found['marker']}" if found["marker"] is not None else head)
    path = found["path"].replace("\\", "/")
    _check_wheel(parsed.name, path)
    return _from_parts(parsed, wheel=_tidy(path))


def _tidy(path: str) -> str:
    # PurePosixPath drops "./", "//" and "/./" and keeps "..", which a symbolic link can give another meaning.
    return str(PurePosixPath(path))


def _check_wheel(name: str, path: str) -> None:
    file_name = path.rsplit("/", 1)[-1]
    if any(not char.isprintable() for char in path):
        raise fault("the wheel's path holds a control character; rename the file")
    try:
        wheel_name = parse_wheel_filename(file_name)[0]
    except InvalidWheelFilename:
        raise fault(f"{quote(file_name)} is not a wheel's file name; only wheels can be locked: build one") from None
    if wheel_name != canonicalize_name(name):
        raise fault(f"the wheel is of {quote(wheel_name)}, the requirement of {quote(name)}; write {wheel_name} @ …")
