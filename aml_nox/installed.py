"""What lies in an environment, held against the RECORD of each distribution (the format: PEP 376, PEP 627)."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from aml_nox import interrupts, launchers

# "sha256 or better" (the wheel format): sha1 and md5 prove nothing.
_HASHES = {"sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s"}

_PLAIN = re.compile(r"[^/\\.][^/\\]*(/[^/\\.][^/\\]*)*")


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference: the distribution ("" for a stray), the file (relative to the environment), what is wrong."""

    distribution: str
    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file} {self.what}" + (f" ({self.distribution})" if self.distribution else "")


@dataclass(frozen=True, slots=True)
class Claim:
    """A line of RECORD: who claims a file, with which hash and size ("" where RECORD gives none)."""

    distribution: str
    hash: str
    size: str

    def fits(self, sha256: str, size: int, path: str) -> bool:
        """Whether the file has this hash; `sha256` is known, another algorithm is computed."""
        if not self.hash:  # RECORD itself, and what an installer could not know
            return self.size in {"", str(size)}
        algorithm, _, value = self.hash.partition("=")
        if algorithm == "sha256":
            return self.hash == sha256
        return algorithm in _HASHES and value == _encoded(path, algorithm)


@dataclass(frozen=True, slots=True)
class Records:
    """All RECORDs: claims by path in the environment, the dist-info folders by name, what was unreadable."""

    root: Path
    site: str
    claims: Mapping[str, tuple[Claim, ...]]
    infos: Mapping[str, str]
    faults: tuple[Drift, ...]

    @property
    def distributions(self) -> tuple[str, ...]:
        """The distributions by name and version, sorted."""
        return tuple(sorted(self.infos.values()))

    def entry_points(self, distribution: str) -> frozenset[str]:
        """The references for which an installer makes programs."""
        return _entry_points(self, distribution)


def site_packages(environment: Path) -> Path:
    """The one site-packages folder of an environment.

    Raises:
        FileNotFoundError: there is none.

    """
    patterns = ("lib/python*/site-packages", "lib/pypy*/site-packages", "Lib/site-packages")
    found = [path for pattern in patterns for path in sorted(environment.glob(pattern))]
    if not found:
        raise FileNotFoundError(2, "no site-packages folder", str(environment))
    # A folder for another interpreter can be added by hand; nothing is installed there.
    return next((path for path in found if any(path.glob("*.dist-info"))), found[0])


def read_records(environment: Path) -> Records:
    """All RECORDs of an environment.

    Raises:
        FileNotFoundError: it has no site-packages.

    """
    site = site_packages(environment)
    place = site.relative_to(environment).as_posix()
    infos = _distributions(site)
    claims: dict[str, list[Claim]] = {}
    faults: list[Drift] = []
    for name, distribution in infos.items():
        try:
            with open_text(site / name / "RECORD") as stream:
                for file, digest, size in csv.reader(stream):
                    claims.setdefault(_place(environment, place, file), []).append(Claim(distribution, digest, size))
        except FileNotFoundError:
            faults.append(Drift(distribution, f"{place}/{name}/RECORD", "is missing"))
        except (OSError, ValueError, csv.Error):
            faults.append(Drift(distribution, f"{place}/{name}/RECORD", "cannot be read"))
    sealed = {path: tuple(found) for path, found in claims.items()}
    return Records(environment, place, sealed, infos, tuple(faults))


def is_outside(path: str) -> bool:
    """Whether a claim's path leads out of the environment."""
    return path == ".." or path.startswith(("../", "/"))


def open_text(path: Path) -> TextIO:
    """Open a file for reading as UTF-8, each line end as it is.

    Raises:
        OSError: also for what is no file: a pipe would be waited for.

    """
    if not path.is_file():
        raise FileNotFoundError(2, "no such file", str(path))
    return path.open(encoding="utf-8", newline="")


def settings(environment: Path) -> list[tuple[str, str]]:
    """The lines of pyvenv.cfg as Python reads them (its site.py): names in lower case, none where there is no file."""
    try:
        with open_text(environment / "pyvenv.cfg") as stream:
            lines = [line.partition("=") for line in stream]
    except (OSError, ValueError):
        return []
    return [(name.strip().lower(), value.strip()) for name, equals, value in lines if equals]


def _distributions(site: Path) -> dict[str, str]:
    """The distributions by their dist-info folders; a second folder of one is a distribution that nobody asked for."""
    found: dict[str, str] = {}
    for path in sorted(site.glob("*.dist-info")):
        name = _distribution(path)
        found[path.name] = f"{name} again" if name in found.values() else name
    return found


def _distribution(info: Path) -> str:
    """A distribution as locks write it, whatever spelling its wheel has: `Demo_A-2024.01` is demo-a==2024.1."""
    name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
    with contextlib.suppress(InvalidVersion):
        version = str(Version(version))
    return f"{canonicalize_name(name)}=={version}"


def _place(environment: Path, site: str, file: str) -> str:
    """The path of a RECORD's line (relative to `site`) in the environment, without following links."""
    if _PLAIN.fullmatch(file):  # nearly all of them, and what follows takes long
        return f"{site}/{file}"
    return os.path.relpath(os.path.normpath(environment / site / file), environment).replace(os.sep, "/")


def _entry_points(records: Records, distribution: str) -> frozenset[str]:
    for name, found in records.infos.items():
        if found == distribution:
            path = records.root / records.site / name / "entry_points.txt"
            with contextlib.suppress(OSError, ValueError), open_text(path) as stream:
                return launchers.entry_points(stream.read())
    return frozenset()


def drift(environment: Path, packages: Sequence[Mapping[str, str]], in_place: Collection[str] = ()) -> list[Drift]:
    """What was deleted or put in by hand: files are held by presence and size, nothing is read but RECORDs."""
    try:
        records = read_records(environment)
    except FileNotFoundError:
        return [Drift("", "site-packages", "is missing")]
    wrong = distribution_drift(records, packages, in_place)
    files = [fault for path, claims in records.claims.items() for fault in _examine(environment, path, claims)]
    return [*wrong, *records.faults, *files, *_strays(records)]


def distribution_drift(
    records: Records, packages: Sequence[Mapping[str, str]], in_place: Collection[str] = ()
) -> list[Drift]:
    """Distributions that are missing, and those that no lock asked for; `in_place` may have any version."""
    found = {distribution: name for name, distribution in records.infos.items()}
    there = {distribution.partition("==")[0]: distribution for distribution in found}
    wanted = {f"{one['name']}=={one['version']}" for one in packages} | {there.get(name, name) for name in in_place}
    missing = [Drift(name, f"the distribution {name}", "is missing") for name in sorted(wanted - found.keys())]
    unknown = sorted(found.keys() - wanted)
    return missing + [Drift(name, f"{records.site}/{found[name]}", "is not in the lock") for name in unknown]


def _examine(environment: Path, path: str, claims: Sequence[Claim]) -> Iterator[Drift]:
    interrupts.honour()
    owner = claims[0].distribution
    if "__pycache__" in path.split("/"):
        return
    if is_outside(path):
        yield Drift(owner, path, "is outside of the environment, and RECORD claims it")
        return
    try:
        size = (environment / path).stat().st_size
        # Several distributions may claim a file with different content; the installer's order decides, so one fits.
        if all(claim.size and claim.size != str(size) for claim in claims):
            yield Drift(owner, path, f"has {size} bytes, RECORD says {claims[0].size}")
    except FileNotFoundError:
        yield Drift(owner, path, "is missing")
    except (OSError, ValueError) as error:
        yield Drift(owner, path, f"cannot be read: {getattr(error, 'strerror', error)}")


def _encoded(path: str, algorithm: str) -> str:
    with Path(path).open("rb") as stream:
        digest = hashlib.file_digest(stream, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _strays(records: Records) -> Iterator[Drift]:
    """What no RECORD knows, among the names at the top: that is where an import or a .pth file is found."""
    prefix = f"{records.site}/"
    known = {path.removeprefix(prefix).partition("/")[0] for path in records.claims if path.startswith(prefix)}
    for path in sorted((records.root / records.site).iterdir()):
        if path.name not in known | records.infos.keys() and path.name != "__pycache__":
            yield Drift("", path.name, "in site-packages belongs to no distribution")
