"""Does the lock give the same bytes a second time? Build it elsewhere, from nothing, and compare file by file."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from aml_nox import engine
from aml_nox.backend import Backend
from aml_nox.context import Context
from aml_nox.engine import Found, Wish
from aml_nox.envdigest import Content
from aml_nox.errors import AmlError
from aml_nox.store import Root

_UMASK = 0o027
_TIMES = re.compile(rb"[0-9]{1,19}([.:][0-9]+)*")
_PATHS = re.compile(rb"(/[^/\s\0\"':;,<>|()]+){2,}/?")
_LARGEST = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A file that the second build has otherwise: what is wrong, and why where that is known."""

    distribution: str
    file: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.file} {self.what}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """Both digests, and every difference."""

    first: str
    second: str
    differences: tuple[Difference, ...]


def reproduce(ctx: Context, wish: Wish, found: Found, get_backend: Callable[[], Backend]) -> Reproduced:
    """Build the environment again under another root, cache, home, umask, time zone and language, and compare.

    Raises:
        AmlError: whatever a build can raise.

    """
    first = engine.read(ctx, found.path, found.marker["target"])
    with tempfile.TemporaryDirectory(prefix="aml-reproduce-") as folder, _umask(_UMASK):
        elsewhere = _elsewhere(ctx, Path(folder))
        try:
            again = engine.ensure(elsewhere, wish, get_backend, force=False)
        except AmlError as error:
            raise AmlError(error.code, f"the second build failed: {error.message}", error.hint) from error
        second = engine.read(elsewhere, again.path, again.marker["target"])
        built = wish.plan.built
        differences = tuple(_compare(found.path, first, again.path, second, built))
    return Reproduced(first=first.digest, second=second.digest, differences=differences)


def _elsewhere(ctx: Context, folder: Path) -> Context:
    home = folder / "home"
    home.mkdir()
    netrc = ctx.environ.get("NETRC") or str(Path(ctx.environ.get("HOME", "~"), ".netrc"))
    changed = {
        "HOME": str(home),
        "UV_CACHE_DIR": str(folder / "cache"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TZ": "Asia/Kathmandu",
        "LANG": "C",
        "LC_ALL": "C",
        "NETRC": netrc,
    }
    root = Root((folder / "another place" / "aml").resolve(), ctx.root.folder)
    return replace(ctx, root=root, environ={**ctx.environ, **changed})


@contextmanager
def _umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def _compare(
    first_path: Path, first: Content, second_path: Path, second: Content, built: Mapping[str, str]
) -> Iterator[Difference]:
    was, now = _flat(first), _flat(second)
    for owner, file in sorted(was.keys() | now.keys()):
        one, other = was.get((owner, file)), now.get((owner, file))
        if one == other:
            continue
        what = "is missing in the second" if other is None else "is only in the second" if one is None else "differs"
        real = (second if one is None else first).real_path(file)
        paths = first_path / real, second_path / second.real_path(file)
        why = _why(paths, (first_path, second_path)) if one and other else ""
        reasons = [built.get(owner, ""), why]
        yield Difference(distribution=owner, file=real, what=what, why="; ".join(filter(None, reasons)))


def _flat(content: Content) -> dict[tuple[str, str], str]:
    return {(owner, file): leaf for owner, files in content.files.items() for file, leaf in files.items()}


def _why(paths: tuple[Path, Path], roots: tuple[Path, Path]) -> str:
    """Why two files differ, where their bytes tell."""
    try:
        one, other = (path.read_bytes() for path in paths if path.stat().st_size <= _LARGEST)
    except (OSError, ValueError):
        return ""
    if one.replace(bytes(roots[0]), b"") == other.replace(bytes(roots[1]), b""):
        return "it holds the path of its build"
    if _TIMES.sub(b"", one) == _TIMES.sub(b"", other):
        return "only numbers differ, as a time of building would"
    if _PATHS.sub(b"", one) == _PATHS.sub(b"", other):
        return "only paths differ, as the place of building would"
    return ""
