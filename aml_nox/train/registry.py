"""The registry: models that passed their gates, each version a directory that carries its own contract.

    aml/models/<name>/<version>/     model/ (the files)  io_spec.json  receipt.json  REGISTERED (written last)
    aml/models/<name>/latest         a relative link to the version that was registered last

A version counts only by a REGISTERED that names its own folders; all paths are relative, and `latest` is for people and
loaders alone. So a copied registry lists and serves the same, also where links were lost.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from aml_nox import interrupts, store, warm
from aml_nox.errors import AmlError, Code
from aml_nox.faults import quote
from aml_nox.train import dirhash
from aml_nox.train.dataset import IoSpec
from aml_nox.train.dirhash import Measured
from aml_nox.train.records import ID

LATEST = "latest"
REGISTERED = "REGISTERED"
_CHUNK = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)  # as store.now() writes it
_OURS = {"model", "io_spec.json", "receipt.json"}
_LINK_LEFT = re.compile(r"latest\.[0-9a-f]{8}")
_MARKER = {"name": str, "version": str, "digest": str, "files": int, "registered": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A registered model: its directory, when it was registered (UTC), the dirHash of `model`, what it measured."""

    name: str
    version: str
    path: Path
    registered: str
    digest: str
    metrics: Mapping[str, Any]

    @property
    def model(self) -> Path:
        """The directory with the model's own files."""
        return self.path / "model"


def register(
    root: store.Root, *, name: str, version: str, model: Path, io_spec: IoSpec, receipt: Mapping[str, Any]
) -> Version:
    """Copy a model into the registry; a version that is complete is left as it is and returned.

    The caller holds `store.lock(root, f"model-{name}", …)`, from before it reads the baseline that its gates compare
    with: of two jobs that both beat the same model only one may go before the other. A kill leaves a directory that
    nobody lists; the next try, and `rubbish`, take it away.

    Raises:
        AmlError: AML_JOB_FAILED for a model that is empty, holds a link or a pipe, or changes meanwhile; AML_STATE
            where something of the user's stands in the way. Nothing is left then.

    """
    path = _place(root, name, version)
    if _read(path) is None:
        try:
            _make(path, model, _moment(latest(root, name)), {"io_spec": io_spec.to_json(), "receipt": receipt})
        except BaseException:
            store.remove(path)
            raise
    made, last = _read(path), latest(root, name)
    if made is None or last is None:
        raise AmlError(Code.STATE, f"{path} was taken away while it was registered", "run the same command again")
    warm.switch(str(path.parent / LATEST), last.version)
    return made


def _make(path: Path, model: Path, moment: str, records: Mapping[str, Mapping[str, Any]]) -> None:
    what = f"the model {path.parent.name}"
    if model.is_symlink():
        raise AmlError(Code.JOB_FAILED, f"{what}: its directory is a link", "let the job write the files themselves")
    measured = dirhash.measure(model, what=what, code=Code.JOB_FAILED)
    store.remove(path)  # what a killed registration left
    _fill(path, model.resolve(), measured, what)
    for name, record in records.items():
        store.write_json(path / f"{name}.json", record)
    facts = {"digest": measured.digest, "files": measured.files, "registered": moment}
    store.write_json(path / REGISTERED, {"name": path.parent.name, "version": path.name, **facts})


def versions(root: store.Root, name: str | None = None) -> list[Version]:
    """All versions that are complete, of one model or of all; the oldest first."""
    found = (_read(path) for path in _folders(root) if name in (None, path.parent.name))
    return sorted((one for one in found if one), key=lambda one: (one.registered, one.name, one.version))


def latest(root: store.Root, name: str) -> Version | None:
    """The version of a model that was registered last; None where there is none. The link is not asked."""
    found = versions(root, name)
    return found[-1] if found else None


def rubbish(root: store.Root) -> list[Path]:
    """What killed registrations left: directories without a REGISTERED, halves of links.

    One that is being filled at this moment is among them: whoever removes it holds the model's lock, and asks again.
    A directory whose REGISTERED names others was copied or renamed by somebody, and is theirs.
    """
    if root.models.is_symlink():  # not ours to empty
        return []
    half = [path for path in _folders(root) if _is_ours(path) and not os.path.lexists(path / REGISTERED)]
    links = [path for path in _entries(root) if _LINK_LEFT.fullmatch(path.name) and path.is_symlink()]
    return sorted(half + links)


def _is_ours(path: Path) -> bool:
    """Whether a directory without REGISTERED can be one of ours: named as a job is, and nothing in it but ours."""
    try:
        return ID.fullmatch(path.name) is not None and {one.name for one in path.iterdir()} <= _OURS
    except OSError:  # another run has just removed it
        return False


def _folders(root: store.Root) -> Iterator[Path]:
    return (path for path in _entries(root) if path.is_dir() and not path.is_symlink())


def _entries(root: store.Root) -> Iterator[Path]:
    """What lies where versions lie; not what lies behind a link, which would be listed twice."""
    return (path for path in sorted(root.models.glob("*/*")) if not path.parent.is_symlink())


def _read(path: Path) -> Version | None:
    """The version in a directory; None where none is complete, or it is another's."""
    marker = store.read_json(path / REGISTERED) or {}
    if not all(isinstance(marker.get(name), kind) for name, kind in _MARKER.items()):
        return None
    names = (path.parent.name, path.name)
    if (marker["name"], marker["version"]) != names or not all(map(_NAME.fullmatch, names)):
        return None
    if not _MOMENT.fullmatch(marker["registered"]):
        return None
    metrics = (store.read_json(path / "receipt.json") or {}).get("metrics")
    return Version(
        name=marker["name"],
        version=marker["version"],
        path=path,
        registered=marker["registered"],
        digest=marker["digest"],
        metrics=metrics if isinstance(metrics, dict) else {},
    )


def _moment(last: Version | None) -> str:
    """Now, or just after the last registration where the clock was set back since: their order is their age."""
    now = store.now()
    if last is None or now > last.registered:
        return now
    later = datetime.fromisoformat(last.registered) + timedelta(microseconds=1)
    return later.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _place(root: store.Root, name: str, version: str) -> Path:
    """Where a version belongs, if nothing of the user's stands there."""
    for text in (name, version):
        if not _NAME.fullmatch(text) or text == LATEST:
            hint = "a-z, A-Z, 0-9, '-', '_' and '.', beginning with a letter or digit"
            raise AmlError(Code.USAGE, f"{quote(text)} is no name for a model or its version", hint)
    path = root.models / name / version
    for folder in (path.parents[1], path.parent, path):
        if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
            raise _in_the_way(folder, "is a link or a file, and a folder of the registry belongs there")
    link = path.parent / LATEST
    if os.path.lexists(link) and not _is_link(link):
        raise _in_the_way(link, "is a real file or folder, and the link to the latest version belongs there")
    if os.path.lexists(path / REGISTERED) and _read(path) is None:
        raise _in_the_way(path, f"holds a {REGISTERED} of something else")
    return path


def _is_link(path: Path) -> bool:
    """Whether it is a link, or a junction, which Windows has in its place."""
    with suppress(OSError):
        path.readlink()
        return True
    return False


def _in_the_way(path: Path, what: str) -> AmlError:
    return AmlError(Code.STATE, f"{path} {what}", "move it away; aml-nox never deletes what it did not make")


# --- copying


def _fill(path: Path, model: Path, measured: Measured, what: str) -> None:
    """Copy the files of a model, to the disk itself, and hold that they are what was measured."""
    target = path / "model"
    folders = {target}
    for name, _ in measured.names:
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        folders |= {file.parent, *(folder for folder in file.parents if folder.is_relative_to(target))}
        _copy(model / name, file, what)
    for folder in [*folders, path, path.parent]:
        _to_disk(folder)
    if dirhash.measure(target, what=what, code=Code.JOB_FAILED).digest != measured.digest:
        raise _changed(what)


def _copy(source: Path, target: Path, what: str) -> None:
    """A copy and never a link: what is written into the job's directory later must not reach the model."""
    try:
        stream = store.open_plain(source)
    except OSError:
        raise _changed(what) from None
    with stream, target.open("xb") as copy:
        try:
            while chunk := stream.read(_CHUNK):
                interrupts.honour()
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        except OSError as error:
            error.filename = error.filename or str(target)  # of a write: the system does not say where
            raise


def _changed(what: str) -> AmlError:
    return AmlError(Code.JOB_FAILED, f"{what}: changed while it was registered", "let nothing write into it meanwhile")


if os.name == "nt":  # not tried: no Windows machine at hand

    def _to_disk(folder: Path) -> None:
        """Windows has no way to do it for a folder."""

else:

    def _to_disk(folder: Path) -> None:
        """Bring a folder's names to the disk, so that a power cut cannot leave REGISTERED alone."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
