"""What there is to tell of jobs and models that are, or were: lists, one job, its end on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aml_nox import interrupts, store
from aml_nox.context import Context
from aml_nox.errors import AmlError, Code
from aml_nox.screen import columns
from aml_nox.train import gates, job, records, registry, watching
from aml_nox.train.job import Finished
from aml_nox.train.registry import Version
from aml_nox.train.watching import Watch

_TOLD = ("id", "state", "why", "program", "created", "started", "ended", "duration", "exit_status", "registered")
_METRICS = 3
_COLUMNS = ("id", "state", "seconds", "program", "isolation", "metrics")


def find(ctx: Context, name: str) -> Path:
    """The directory of a job, by its id or an unmistakable end or beginning of it.

    Raises:
        AmlError: AML_USAGE where there is none, or several.

    """
    if not name:
        raise AmlError(Code.USAGE, "the id of a job is empty", "`jobs` lists them")
    found = [path for path in records.folders(ctx.root) if path.name.endswith(name) or path.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} jobs are called like" if found else "there is no job"
    raise AmlError(Code.USAGE, f"{problem} {name}", "`jobs` lists them")


def listing(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The jobs as a table, oldest first."""
    if not found:
        return ["no jobs yet"]
    rows = [_COLUMNS, *(_row(record) for record in found)]
    return _aligned(rows)


def _row(record: Mapping[str, Any]) -> tuple[str, ...]:
    isolation = record.get("isolation") or {}
    metrics = record.get("metrics") or {}
    seconds = record.get("duration")
    return (
        record["id"],
        record["state"],
        "" if seconds is None else f"{seconds:.1f}",
        str(record.get("program", "")),
        str(isolation.get("mechanism") or ""),
        _short(metrics, [one["metric"] for one in record.get("gates") or []]),
    )


def _short(metrics: Mapping[str, Any], first: Sequence[str] = ()) -> str:
    """Some metrics, those that gates judged first: the whole of them is in the record."""
    names = list(dict.fromkeys([*(name for name in first if name in metrics), *metrics]))
    shown = [f"{name}={_number(metrics[name])}" for name in names[:_METRICS]]
    return " ".join([*shown, *(["…"] if len(names) > _METRICS else [])])


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    return columns([[_printable(cell) for cell in row] for row in rows])


def _printable(text: str) -> str:
    """A job chooses the names of its metrics: none of them moves the cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)


def details(folder: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """One job, a line for each thing that is known of it."""
    for name in _TOLD:
        if record.get(name) is not None:
            yield f"{name}: {_printable(str(record[name]))}"
    if isolation := record.get("isolation"):
        yield watching.isolation_words(isolation)
    known = {**(record.get("metrics") or {}), **(record.get("inputs") or {})}
    for name, value in known.items():
        if value is not None:
            yield f"{_printable(name)}: {_printable(str(value))}"
    yield from gates.table([gates.Verdict.from_json(one) for one in record.get("gates") or []])
    yield f"directory: {folder}"


def cancel(ctx: Context, folder: Path) -> Mapping[str, Any]:
    """Ask for the end of a job, and wait until nothing of it is left.

    Raises:
        AmlError: AML_USAGE for one that has ended.

    """
    if not records.is_live(folder):
        record = records.settled(folder)
        raise AmlError(Code.USAGE, f"job {record['id']} is {record['state']} already", "`jobs` lists them")
    store.write_bytes(folder / records.CANCEL, b"")
    while records.is_live(folder, interrupts.STEP):
        interrupts.honour()
    store.remove(folder / records.CANCEL)  # which it ended before it could read
    record = records.settled(folder)
    ctx.say(f"job {record['id']} is {record['state']}")
    return record


def follow(ctx: Context, folder: Path) -> Finished:
    """Show a job from its beginning until it ends, as its caller sees it; who stops following stops nothing else."""
    Watch(folder, ctx.screen).until(lambda step: not records.is_live(folder, step))
    return job.told(ctx, folder, records.settled(folder))


# --- what killed runs left


def halves(root: store.Root) -> list[Path]:
    """Jobs that were never born, and models that were never registered."""
    return [*records.leftovers(root), *registry.rubbish(root)]


def discard(root: store.Root, half: Path) -> bool:
    """Remove one of these, unless somebody is at it by now; whether it is gone."""
    if half.is_relative_to(root.jobs) or half.is_relative_to(root.runtime):
        with store.try_lock(root, "queue") as held:  # under which every job is born
            if held and half in records.leftovers(root):
                store.remove(half)
        return not half.exists()
    with store.try_lock(root, f"model-{half.parent.name}") as held:
        if held and half in registry.rubbish(root):
            store.remove(half)
    return not half.exists()


# --- models


def models(found: Sequence[Version]) -> list[str]:
    """The registered models as a table, oldest version first; the latest of each is marked."""
    if not found:
        return ["no models yet"]
    latest = {one.name: one.version for one in found}
    rows = [("model", "version", "registered", "", "metrics")]
    rows += [
        (
            one.name,
            one.version,
            one.registered,
            "latest" if latest[one.name] == one.version else "",
            _short(one.metrics),
        )
        for one in found
    ]
    return _aligned(rows)


def model_values(ctx: Context, one: Version) -> dict[str, Any]:
    """A version as --json tells it."""
    return {
        "name": one.name,
        "version": one.version,
        "path": ctx.root.relative(one.path),
        "registered": one.registered,
        "digest": one.digest,
        "metrics": dict(one.metrics),
    }
