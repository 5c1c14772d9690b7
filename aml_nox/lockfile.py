"""The lock, pylock.toml (PEP 751) with our [tool.aml-nox] table: read, lint, freshness, selection. All pure reading."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from packaging.markers import Environment
from packaging.pylock import (
    Package,
    PackageArchive,
    PackageSdist,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockValidationError,
)
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from aml_nox import plan
from aml_nox.errors import AmlError, Code
from aml_nox.plan import Artifact, Inputs, Promise, Target
from aml_nox.requirements import Declared

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FORCE = "`lock --force` makes a new one from the manifest alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """[tool.aml-nox]: what the lock was made from, and uv's own wheels by file name with their sha256."""

    scheme: int
    manifest_digest: str
    packages_digest: str
    uv_version: str
    uv_wheels: Mapping[str, str]
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock as it was read; `table` is None where another tool wrote it, `sha256` is of the file's bytes."""

    path: Path
    sha256: str
    pylock: Pylock
    packages_digest: str
    table: Table | None

    @property
    def packages(self) -> list[dict[str, str]]:
        """Names and versions of all packages for all targets."""
        return [{"name": str(one.name), "version": str(one.version or "")} for one in self.pylock.packages]


def read(path: Path) -> Lock | None:
    """The lock at this path, or None where there is none.

    Raises:
        AmlError: AML_LOCK_INVALID for what no tool, or only a newer one, could read.

    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        document = tomllib.loads(data.decode())
        pylock = Pylock.from_dict(document)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, PylockValidationError) as error:
        raise AmlError(Code.LOCK_INVALID, f"{path.name} cannot be read: {error}", _FORCE) from None
    table = _table(document, path)
    return Lock(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        pylock=pylock,
        packages_digest=packages_digest(document),
        table=table,
    )


def packages_digest(document: Mapping[str, Any]) -> str:
    """Of the parsed packages: a merge or an edit by hand that still is a lock is found by it."""
    return plan.digest(_plain({name: document.get(name) for name in ("requires-python", "environments", "packages")}))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _table(document: Mapping[str, Any], path: Path) -> Table | None:
    values = document.get("tool", {}).get("aml-nox")
    if values is None:
        return None
    try:
        scheme = int(values["scheme"])
        if scheme > plan.SCHEME:
            message = f"{path.name} was made by a newer aml-nox (scheme {scheme}, this one knows {plan.SCHEME})"
            raise AmlError(Code.LOCK_INVALID, message, f"update aml-nox; {_FORCE}")
        return Table(
            scheme=scheme,
            manifest_digest=str(values["manifest-digest"]),
            packages_digest=str(values["packages-digest"]),
            uv_version=str(values["uv"]["version"]),
            uv_wheels={str(name): str(value) for name, value in values["uv"]["wheels"].items()},
            inputs=dict(values["inputs"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def stale(lock: Lock | None, inputs: Inputs, declared: Declared) -> list[str] | None:
    """Why the lock does not belong to the manifest; empty when it does, None when there is no lock."""
    if lock is None:
        return None
    if lock.table is None:
        return ["it has no table of aml-nox: another tool wrote it"]
    if lock.table.scheme != plan.SCHEME:
        return [f"scheme: {lock.table.scheme} → {plan.SCHEME}"]
    if lock.table.packages_digest != lock.packages_digest:
        return ["its packages were edited or merged by hand"]
    if lock.table.manifest_digest != inputs.digest:
        return plan.stale_reasons(lock.table.inputs, inputs, declared)
    return []


def promise(lock: Lock | None) -> Promise:
    """What the lock promises of uv."""
    if lock is None or lock.table is None:
        return Promise()
    return Promise(version=lock.table.uv_version, wheels=lock.table.uv_wheels)


# --- lint ---


def lint(pylock: Pylock) -> list[str]:
    """What no lock of ours may hold: userinfo, absolute paths, artifacts without sha256, sources without one."""
    return [f"{package.name}: {fault}" for package in pylock.packages for fault in _lint_package(package)]


def _lint_package(package: Package) -> Iterator[str]:
    if package.vcs is not None or package.directory is not None:
        yield "a version control or directory source has no hash"
    if _has_userinfo(package.index):
        yield "a URL holds credentials"
    for artifact in (*(package.wheels or ()), *([package.sdist] if package.sdist else ()), *_archive(package)):
        if not _SHA256.fullmatch(artifact.hashes.get("sha256", "")):
            yield f"{artifact.url or artifact.path} has no sha256"
        if _has_userinfo(artifact.url):
            yield "a URL holds credentials"
        if (artifact.url or "").startswith("file:") or _absolute(artifact.path or ""):
            yield "a path is absolute: write it relative to aml.toml, `name @ ./wheels/x.whl`"


def _has_userinfo(url: str | None) -> bool:
    return "@" in (url or "").partition("://")[2].partition("/")[0]


def _archive(package: Package) -> tuple[PackageArchive, ...]:
    return (package.archive,) if package.archive is not None else ()


def _absolute(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or re.match(r"[A-Za-z]:|\\", path) is not None


# --- selection ---


def select(lock: Lock, target: Target, declared: Declared, allow_build: Collection[str] = ()) -> tuple[Artifact, ...]:
    """The artifacts that the lock has for a target, by the rules of PEP 751.

    Raises:
        AmlError: AML_RESOLUTION when there is nothing for it; AML_INTEGRITY when a declared hash says otherwise;
            AML_LOCK_INVALID when the lock holds what no lock of ours may hold.

    """
    if faults := lint(lock.pylock):
        raise AmlError(Code.LOCK_INVALID, f"{lock.path.name}: " + "; ".join(faults), _FORCE)
    tags = [Tag(*text.split("-", 2)) for text in target.tags]
    try:
        chosen = list(
            lock.pylock.select(
                environment=cast("Environment", target.markers),
                tags=tags,
                prefer_sdist_predicate=allow_build.__contains__,
            )
        )
    except PylockSelectError as error:
        message = f"{lock.path.name} has nothing for Python {target.version} on {target.platform}: {error}"
        raise AmlError(Code.RESOLUTION, message, "lock again, or use an interpreter that the lock covers") from None
    artifacts = tuple(_artifact(lock, package, item, target, allow_build) for package, item in chosen)
    _hold_declared(artifacts, declared)
    return artifacts


def _artifact(lock: Lock, package: Package, item: object, target: Target, allow_build: Collection[str]) -> Artifact:
    name = str(package.name)
    if isinstance(item, PackageWheel):
        return Artifact(name=name, version=str(package.version), sha256=item.hashes["sha256"], path=item.path)
    if isinstance(item, PackageArchive):
        version = str(package.version or _wheel_version(item.path or item.url or ""))
        return Artifact(name=name, version=version, sha256=item.hashes["sha256"], url=item.url, path=item.path)
    if isinstance(item, PackageSdist) and name in allow_build:
        version = str(package.version)
        return Artifact(name=name, version=version, sha256=item.hashes["sha256"], path=item.path, is_source=True)
    message = f"{lock.path.name} has no wheel of {name} {package.version} for {target.platform}"
    raise AmlError(Code.RESOLUTION, message, "ask for a version that has one")


def _wheel_version(location: str) -> str:
    try:
        return str(parse_wheel_filename(location.partition("#")[0].rpartition("/")[2].replace("%2B", "+"))[1])
    except InvalidWheelFilename:
        return ""


def _hold_declared(artifacts: Sequence[Artifact], declared: Declared) -> None:
    chosen = {one.name: one for one in artifacts}
    for line in declared.requirements:
        name = re.split(r"[^a-z0-9-]", line.text, maxsplit=1)[0]
        if line.hashes and name in chosen and f"sha256:{chosen[name].sha256}" not in line.hashes:
            message = f"{line.origin}: {name} is locked with sha256 {chosen[name].sha256}, its --hash says otherwise"
            raise AmlError(Code.INTEGRITY, message, "find out which one is right, then correct the hash or lock again")
