"""Deciding, without doing: digests, keys, what has to happen and why. Nothing here touches a disk or starts a process.

Canonical JSON is what is hashed: sorted keys, no spaces, UTF-8, no NaN.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aml_nox.editables import Editable
from aml_nox.errors import AmlError, Code
from aml_nox.manifest import Environment, Manifest, normal_url
from aml_nox.requirements import Declared, Line

# Stands for all fixed policy: no system site-packages, no bytecode, wheels alone. Raised when an environment of the
# same packages would get other bytes.
SCHEME = 1


def canonical(value: object) -> bytes:
    """The one byte form of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest(value: object) -> str:
    """sha256 of the canonical form, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an environment is built for: an interpreter by what it says of itself.

    `markers` are PEP 508's variables, `tags` the wheel tags (PEP 425) that it takes, the best first.
    """

    implementation: str
    version: str
    soabi: str
    platform: str
    markers: Mapping[str, str]
    tags: tuple[str, ...]

    @property
    def identity(self) -> dict[str, str]:
        """The part that keys and markers hold."""
        return {
            "implementation": self.implementation,
            "version": self.version,
            "soabi": self.soabi,
            "platform": self.platform,
        }

    def to_json(self) -> dict[str, Any]:
        return {**self.identity, "markers": dict(self.markers), "tags": list(self.tags)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Target:
        """Read what `to_json` or an interpreter's own probe wrote.

        Raises:
            KeyError, TypeError: it is neither.

        """
        words = ("implementation", "version", "soabi", "platform")
        return cls(
            **{word: str(value[word]) for word in words}, markers=dict(value["markers"]), tags=tuple(value["tags"])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One wheel that a lock selects. `url` or `path` (relative to the project) where no index serves it."""

    name: str
    version: str
    sha256: str
    url: str | None = None
    path: str | None = None
    is_source: bool = False

    @property
    def identity(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version, "sha256": self.sha256}

    def line(self, folder: Path) -> str:
        """The line of a hashed requirements file: any index that has these bytes may serve it."""
        if self.path is not None:
            source = f"{self.name} @ {(folder / self.path).resolve().as_uri()}"
        elif self.url is not None:
            source = f"{self.name} @ {self.url}"
        else:
            source = f"{self.name}=={self.version}"
        return f"{source} --hash=sha256:{self.sha256}"


# --- inputs of a lock ---


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that decides what a lock holds, each named, so that `why` is a difference."""

    values: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The manifest digest: equal digests need no new lock."""
        return digest(self.values)


def inputs(manifest: Manifest, environment: Environment, declared: Declared) -> Inputs:
    """What of the manifest, its requirement files and its local wheels decides a lock."""
    index = manifest.index
    # The first place is the main index's also where uv's default is meant: an extra index alone is not a main one.
    urls = [index.url or "", *(extra.url for extra in index.extra)]
    values: dict[str, Any] = {
        "scheme": SCHEME,
        "environment": environment.name,
        "python": manifest.python.version.text,
        "requirements": [_line(line) for line in declared.requirements],
        "constraints": [_line(line) for line in declared.constraints],
        "overrides": [_line(line) for line in declared.overrides],
        "editables": {one.path: one.digest for one in declared.editables},
        "allow-build": sorted(environment.allow_build),
        "torch-backend": environment.torch_backend or "",
        "wheels": {wheel.path: wheel.sha256 for wheel in declared.wheels},
        "indexes": [url and normal_url(url) for url in urls],
        "index-strategy": index.strategy,
        "exclude-newer": index.exclude_newer_text or "",
    }
    return Inputs(values)


def _line(line: Line) -> str:
    return " ".join([line.text, *(f"--hash={value}" for value in line.hashes)])


def stale_reasons(old: Mapping[str, Any], new: Inputs, declared: Declared) -> list[str]:
    """What changed between the inputs of a lock and those of today, in words."""
    reasons: list[str] = []
    lines = (*declared.requirements, *declared.constraints, *declared.overrides)
    origins = {_line(line): line.origin for line in lines}
    for name, value in new.values.items():
        before = old.get(name)
        if before == value:
            continue
        if isinstance(value, list) and name != "indexes":
            reasons += _list_reasons(name, before if isinstance(before, list) else [], value, origins)
        elif isinstance(value, dict):
            reasons += _table_reasons(name, before if isinstance(before, dict) else {}, value)
        else:
            reasons.append(f"{name}: {_show(before)} → {_show(value)}")
    return reasons or ["its digest differs"]


def _list_reasons(name: str, old: Sequence[str], new: Sequence[str], origins: Mapping[str, str]) -> list[str]:
    added = [f"{name}: + {item} ({origins.get(item, '?')})" for item in new if item not in old]
    return added + [f"{name}: - {item}" for item in old if item not in new]


def _table_reasons(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    added = [f"{name}: + {path}" for path in new if path not in old]
    changed = [f"{name}: {path} has other bytes" for path in new if old.get(path, new[path]) != new[path]]
    return [*added, *changed, *(f"{name}: {path} is gone" for path in old if path not in new)]


def _show(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(one) or "the default" for one in value) or "none"
    return "none" if value is None or value == "" else str(value)


# --- the lock's fate --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Whether this run may change the lock: `locked` is the option's word (None: not given), `ci` the variable's."""

    locked: bool | None = None
    ci: bool = False
    offline: bool = False
    check: bool = False

    def forbids(self, *, missing: bool) -> tuple[str, str] | None:
        """What keeps this run from making or changing a lock, and the way out; None when nothing does."""
        way_out = "run the session `lock` and commit its result"
        if self.check:
            return "--check", way_out
        if self.locked:
            return "--locked", way_out
        if self.ci and self.locked is None and not missing:
            return "CI", f"{way_out}, or pass --no-locked"
        return ("--offline", "run it once without --offline and commit the lock") if self.offline else None

    @property
    def strict(self) -> bool:
        """Whether nothing but what was committed may be used."""
        return self.locked if self.locked is not None else self.ci


@dataclass(frozen=True, slots=True)
class LockDecision:
    """What happens to a lock: `keep`, `make` or `update`, and why."""

    action: str
    reasons: tuple[str, ...] = ()


def decide_lock(name: str, stale: Sequence[str] | None, policy: Policy) -> LockDecision:
    """The lock's fate: `stale` is None without a lock, empty for one that belongs to the manifest.

    Raises:
        AmlError: AML_LOCK_MISSING or AML_LOCK_STALE where this run may not mend it.

    """
    if stale is not None and not stale:
        return LockDecision("keep")
    forbidden = policy.forbids(missing=stale is None)
    if stale is None:
        if forbidden:
            raise AmlError(Code.LOCK_MISSING, f"{name} is missing, and {forbidden[0]} does not make one", forbidden[1])
        return LockDecision("make", ("there is none",))
    if forbidden:
        message = f"{name} does not belong to the manifest ({'; '.join(stale)}), and {forbidden[0]} does not change it"
        raise AmlError(Code.LOCK_STALE, message, forbidden[1])
    return LockDecision("update", tuple(stale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a lock promises of uv: its version, and the sha256 of its wheels by file name."""

    version: str | None = None
    wheels: Mapping[str, str] = field(default_factory=dict)


# --- the environment ---


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPlan:
    """An environment to have: which artifacts, for which target."""

    name: str
    artifacts: tuple[Artifact, ...]
    target: Target
    editables: tuple[Editable, ...] = ()

    @property
    def key(self) -> str:
        """Equal exactly when the same bytes would be installed for the same target."""
        local = [one.identity for one in self.editables]
        return digest({"scheme": SCHEME, "artifacts": self.packages, "local": local, "target": self.target.identity})

    @property
    def packages(self) -> list[dict[str, str]]:
        """The artifacts as markers hold them, sorted."""
        return sorted((one.identity for one in self.artifacts), key=lambda one: (one["name"], one["version"]))

    @property
    def in_place(self) -> frozenset[str]:
        """The names of the editables: their versions are known once they are installed."""
        return frozenset(one.name for one in self.editables)

    @property
    def built(self) -> dict[str, str]:
        """The distributions that are built here rather than installed as they were published, and how."""
        return {
            f"{one.name}=={one.version}": "it is built here, from source" for one in self.artifacts if one.is_source
        }

    @property
    def unsealed(self) -> list[str]:
        """Why the promise of equal bytes does not hold for it; empty when it does."""
        in_place = [f"{one.name} is editable: its code lies in {one.path}" for one in self.editables]
        return in_place + [f"{name}: {why}" for name, why in self.built.items()]

    def requirements(self, folder: Path) -> str:
        """The hashed requirements file from which uv and pip install alike."""
        return "".join(f"{line}\n" for line in sorted(one.line(folder) for one in self.artifacts))


def rebuild_reasons(marker: Mapping[str, Any], plan: EnvironmentPlan) -> list[str]:
    """Why an environment with this marker is not the planned one, in words."""
    before = marker.get("target") or {}
    reasons = [
        f"{name}: {before.get(name)} → {value}"
        for name, value in plan.target.identity.items()
        if before.get(name) != value
    ]
    reasons += _local_reasons(marker.get("editables") or [], plan.editables)
    return reasons + package_changes(marker.get("packages") or [], plan.packages)


def _local_reasons(old: Sequence[Mapping[str, str]], new: Sequence[Editable]) -> list[str]:
    before, after = {one["path"]: one["digest"] for one in old}, {one.path: one.digest for one in new}
    reasons = [f"+ {path}, in place" for path in after if path not in before]
    reasons += [f"- {path}, in place" for path in before if path not in after]
    return reasons + [
        f"the project files of {path} changed" for path in after if before.get(path, after[path]) != after[path]
    ]


def package_changes(old: Iterable[Mapping[str, str]], new: Iterable[Mapping[str, str]]) -> list[str]:
    """The difference of two package lists, a line each."""
    before, after = ({one["name"]: one for one in packages} for packages in (old, new))
    lines = [f"+ {name} {after[name]['version']}" for name in sorted(after.keys() - before.keys())]
    lines += [f"- {name} {before[name]['version']}" for name in sorted(before.keys() - after.keys())]
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        if was["version"] != now["version"]:
            lines.append(f"{name} {was['version']} → {now['version']}")
        elif was.get("sha256") != now.get("sha256"):
            lines.append(f"{name} {now['version']} has other bytes")
    return lines
