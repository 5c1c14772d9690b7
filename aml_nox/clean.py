"""Remove what nobody uses: environments that no link points to, no job runs in, and that are old.

Only directories of our own naming are looked at, never through a link; each one's lock is taken without waiting, and
what was decided is looked at again under it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aml_nox import store
from aml_nox.context import Context

WEEK = 7 * 24 * 3600.0
_NAME = re.compile(r"[0-9a-f]{12}-[0-9a-f]{4}")
_BYTECODE = re.compile(r"[0-9a-f]{64}")
_STATS = re.compile(r"[0-9a-f]{12}-[0-9a-f]{4}\.json")
_SCRATCH = re.compile(r"scratch-[0-9a-f]{8}\.txt")
_YOUNG = "younger than 7 days"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A directory or file that could go: its size in bytes, and why it stays ("": it goes)."""

    path: Path
    size: int
    kept: str


def survey(ctx: Context, *, everything: bool, live: Sequence[Path]) -> list[Item]:
    """What could go, with sizes; `everything` counts young ones too, `live` are environments that jobs run in."""
    environments = [
        Item(path=path, size=_size(path), kept=why_kept(ctx, path, everything=everything, live=live))
        for path in _matching(ctx.root.envs, _NAME)
    ]
    staying = [item.path.name for item in environments if item.kept]
    rest = [Item(path=path, size=_size(path), kept="") for path in _companions(ctx, staying)]
    # A tool may be reading the file of a run of today, so that no option removes it.
    scratch = [
        Item(path=path, size=_size(path), kept=_YOUNG if _age(path) < WEEK else "")
        for path in _matching(ctx.root.runtime, _SCRATCH)
    ]
    return [*environments, *rest, *scratch]


def rubbish(path: Path) -> Item:
    """What somebody else knows to be of no use."""
    return Item(path=path, size=_size(path), kept="")


def _companions(ctx: Context, staying: Collection[str]) -> Iterator[Path]:
    """What was kept for environments that go or are gone; it spares work, and nothing depends on it."""
    if ctx.root.envs.is_symlink():  # nobody looked there
        return
    keys = {name.partition("-")[0] for name in staying}
    for path in _matching(ctx.root.runtime / "pycache", _BYTECODE):
        if path.name[:12] not in keys:
            yield path
    for path in _matching(ctx.root.runtime / "stats", _STATS):
        if path.stem not in staying:
            yield path


def _matching(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The entries of our own naming. A folder that is a link is not ours to empty."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name) and not path.is_symlink())


def why_kept(ctx: Context, path: Path, *, everything: bool, live: Sequence[Path]) -> str:
    """Why an environment stays; "" when it may go."""
    return _use(ctx, path, live) or ("" if everything or _age(path) >= WEEK else _YOUNG)


def _use(ctx: Context, path: Path, live: Sequence[Path]) -> str:
    linked = {store.resolved(link) for link in ctx.root.path.glob(".venv*") if link.is_symlink()}
    if path.resolve() in linked:
        return "a link points to it"
    return "a job runs in it" if path in live else ""


def _age(path: Path) -> float:
    """Seconds; nothing is as young as what another run has just removed."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int:
    """Bytes that would be freed: a file that is linked elsewhere too (uv's cache) frees nothing."""
    if not path.is_dir():
        return _freed(str(path))
    return sum(_freed(f"{folder}/{name}") for folder, _, files in os.walk(path) for name in files)


def _freed(file: str) -> int:
    try:
        found = os.lstat(file)
    except FileNotFoundError:  # another run has just removed it
        return 0
    return found.st_size if found.st_nlink == 1 else 0


def remove(ctx: Context, item: Item, *, everything: bool, live: Sequence[Path]) -> bool:
    """Remove one thing; False when it is an environment whose lock somebody holds, or that is in use by now."""
    if item.path.parent != ctx.root.envs:
        store.remove(item.path)
        return not item.path.exists()
    with store.try_lock(ctx.root, f"env-{item.path.name.partition('-')[0]}") as held:
        if not held or why_kept(ctx, item.path, everything=everything, live=live):
            return False
        # The marker first: a half-removed environment must not count. A provision that had found it may have led the
        # link to it by now; it looks for the marker after that, as we look for the link after this: one of us sees it.
        marker = store.read_marker(item.path)
        store.retire(item.path)
        if _use(ctx, item.path, live):
            if marker is not None:
                store.write_json(store.marker_path(item.path), marker)
            return False
        store.remove(item.path)
        return not item.path.exists()
