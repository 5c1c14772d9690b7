"""What lies in an environment, held against the RECORD of each distribution (the format: PEP 376, PEP 627)."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from aml_nox import interrupts

# "sha256 or better" (the wheel format): sha1 and md5 prove nothing.
_HASHES = {"sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s"}


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference: the distribution ("" for a stray), the file (relative to the environment), what is wrong."""

    distribution: str
    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file} {self.what}" + (f" ({self.distribution})" if self.distribution else "")


@dataclass(frozen=True, slots=True)
class _Claim:
    """A line of RECORD: who claims a file, with which hash and size ("" where RECORD gives none)."""

    distribution: str
    hash: str
    size: str


@dataclass(slots=True)
class _Claims:
    """All lines of all RECORDs by file, and what was wrong in reading them."""

    by_file: dict[Path, list[_Claim]] = field(default_factory=dict)
    faults: list[Drift] = field(default_factory=list)


def site_packages(environment: Path) -> Path:
    """The one site-packages folder of an environment.

    Raises:
        FileNotFoundError: there is none.

    """
    for pattern in ("lib/python*/site-packages", "lib/pypy*/site-packages", "Lib/site-packages"):
        for found in environment.glob(pattern):
            return found
    raise FileNotFoundError(2, "no site-packages folder", str(environment))


def drift(environment: Path, packages: Sequence[Mapping[str, str]], *, hashes: bool) -> list[Drift]:
    """Every difference between an environment and what was to be installed in it.

    Without `hashes` files are held by presence and size alone: enough to see what was deleted or put in by hand.
    """
    try:
        site = site_packages(environment)
    except FileNotFoundError:
        return [Drift("", "site-packages", "is missing")]
    found = {_distribution(path): path for path in sorted(site.glob("*.dist-info"))}
    wanted = {f"{one['name']} {one['version']}" for one in packages}
    missing = [Drift(name, f"the distribution {name}", "is missing") for name in sorted(wanted - found.keys())]
    extra = [Drift(name, found[name].name, "is not in the lock") for name in sorted(found.keys() - wanted)]
    claims = _read_claims(site, found)
    files = [fault for path, claim in claims.by_file.items() for fault in _examine(environment, path, claim, hashes)]
    return missing + extra + claims.faults + files + list(_strays(site, claims, found))


def _distribution(info: Path) -> str:
    """A distribution as locks write it, whatever spelling its wheel has: `Demo_A-2024.01` is demo-a 2024.1."""
    name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
    with contextlib.suppress(InvalidVersion):
        version = str(Version(version))
    return f"{canonicalize_name(name)} {version}"


def _read_claims(site: Path, found: Mapping[str, Path]) -> _Claims:
    claims = _Claims()
    for distribution, info in found.items():
        try:
            with (info / "RECORD").open(encoding="utf-8", newline="") as stream:
                for file, digest, size in csv.reader(stream):
                    path = Path(_normal(site, file))
                    claims.by_file.setdefault(path, []).append(_Claim(distribution, digest, size))
        except FileNotFoundError:
            claims.faults.append(Drift(distribution, f"{info.name}/RECORD", "is missing"))
        except (OSError, ValueError, csv.Error):
            claims.faults.append(Drift(distribution, f"{info.name}/RECORD", "cannot be read"))
    return claims


def _normal(site: Path, file: str) -> str:
    import os.path  # noqa: PLC0415 - pathlib has no way to take ".." out without following links

    return os.path.normpath(site / file)


def _examine(environment: Path, path: Path, claims: Sequence[_Claim], hashes: bool) -> Iterator[Drift]:  # noqa: FBT001 - private, passed on
    interrupts.honour()
    shown = path.relative_to(environment).as_posix() if path.is_relative_to(environment) else str(path)
    owner = claims[0].distribution
    if "__pycache__" in path.parts:
        return
    if not path.is_relative_to(environment):
        yield Drift(owner, shown, "is outside of the environment, and RECORD claims it")
        return
    try:
        size = path.stat().st_size
        # Several distributions may claim a file with different content; the installer's order decides, so one fits.
        if all(claim.size and claim.size != str(size) for claim in claims):
            yield Drift(owner, shown, f"has {size} bytes, RECORD says {claims[0].size}")
        elif hashes and not any(_fits(path, claim.hash) for claim in claims):
            yield Drift(owner, shown, "differs from its hash in RECORD")
    except FileNotFoundError:
        yield Drift(owner, shown, "is missing")
    except (OSError, ValueError) as error:
        yield Drift(owner, shown, f"cannot be read: {getattr(error, 'strerror', error)}")


def _fits(path: Path, recorded: str) -> bool:
    if not recorded:  # RECORD itself, and what an installer could not know
        return True
    algorithm, _, value = recorded.partition("=")
    if algorithm not in _HASHES:
        return False
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == value


def _strays(site: Path, claims: _Claims, found: Mapping[str, Path]) -> Iterator[Drift]:
    """What no RECORD knows, among the names at the top: that is where an import or a .pth file is found."""
    known = {path.relative_to(site).parts[:1] for path in claims.by_file if path.is_relative_to(site)}
    known |= {(path.name,) for path in found.values()}
    for path in sorted(site.iterdir()):
        if (path.name,) not in known and path.name != "__pycache__":
            yield Drift("", path.name, "in site-packages belongs to no distribution")
