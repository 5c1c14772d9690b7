"""Get a uv into the project's tools: from the index, from a URL, or by the official installer.

Whatever is fetched is held against a sha256 before it is unpacked, placed whole, run, and only then recorded. The
installer alone cannot be held against anything of ours; it is recorded as not verified.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from aml_nox import diagnosis, download, pip, platforms, process, store, uv, warm
from aml_nox.context import Context
from aml_nox.errors import AmlError, Code
from aml_nox.plan import Promise
from aml_nox.uv import Uv

INSTALLER = "https://astral.sh/uv/{version}/install.{ending}"
# What the standard library raises for bytes that are no archive, or one of a kind that it cannot read.
_NO_ARCHIVE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)
_FATAL = {Code.INTEGRITY, Code.STATE, Code.USAGE}


_Way = Callable[[Context, Promise], Uv]


def ensure(ctx: Context, promise: Promise, *, locked: bool) -> Uv:
    """The uv of this project: found, or fetched into the AML root.

    `locked` rules out the installer, which nothing verifies, where nobody asked for it by name.

    Raises:
        AmlError: what the one source that was asked for says, else AML_UV_MISSING; both list every attempt.

    """
    attempts: dict[Path, str] = {}
    found = uv.look(ctx, attempts)
    if found is not None:
        return found
    wait = ctx.manifest.timeouts.lock_wait
    stats = {path: warm.stat(str(path)) for path in attempts}
    with store.lock(ctx.root, "toolchain", what="the toolchain", wait=wait, screen=ctx.screen):
        # Another run may have mended one meanwhile; what is as it was is not asked again.
        same = {path: why for path, why in attempts.items() if warm.stat(str(path)) == stats[path]}
        return uv.look(ctx, same) or _fetch(ctx, promise, [*(attempts | same).values()], locked=locked)


def _fetch(ctx: Context, promise: Promise, attempts: list[str], *, locked: bool) -> Uv:
    ways = _ways(ctx, locked=locked)
    if ctx.offline and ways:
        raise uv.missing(ctx, attempts, "run once without --offline, or put a uv into aml/tools")
    last: AmlError | None = None
    for name, way in ways:
        try:
            found = way(ctx, promise)
        except AmlError as error:
            if error.code in _FATAL:
                raise _told(error, attempts) from None
            attempts.append(f"{name}: {error.message}")
            last = error
        else:
            uv.remember(ctx, found, name)
            return found
    if last is not None and len(ways) == 1 and last.code is not Code.RESOLUTION:
        raise _told(last, attempts[:-1])
    raise uv.missing(ctx, attempts, last.hint if last else 'install uv, or set uv.source = "auto"')


def _told(error: AmlError, attempts: Sequence[str]) -> AmlError:
    """The error of a fetch, with what was tried before it."""
    return AmlError(error.code, error.message + uv.tried(attempts), error.hint)


def _ways(ctx: Context, *, locked: bool) -> Sequence[tuple[str, _Way]]:
    """The ways to fetch one that a source allows, in their order; the name is also the record's method."""
    return {
        "auto": (("index", _from_index), *(() if locked else (("installer", _from_installer),))),
        "index": (("index", _from_index),),
        "url": (("url", _from_url),),
        "installer": (("installer", _from_installer),),
    }.get(ctx.manifest.uv.source, ())


def _proven(ctx: Context, target: Path, source: str, version: str | None = None) -> Uv:
    """Run what was placed; what does not run or fit, or is not the version that it was given for, is removed again."""
    found = uv.probe(ctx, target, source)
    if isinstance(found, Uv) and version is not None and Version(found.version) != Version(version):
        found = f"is uv {found.version}, not {version}"
    if isinstance(found, str):
        store.remove(target.parent)
        raise AmlError(Code.UV_MISSING, f"what {source} gave {found}", "correct uv.version or the source")
    return found


def _place(ctx: Context, version: str) -> Path:
    return ctx.root.tools / f"uv-{version}" / platforms.program("uv")


# --- the index ---


def _from_index(ctx: Context, promise: Promise) -> Uv:
    """One wheel of uv for this machine, by pip, which holds it against the index's own hash."""
    ctx.say("fetching uv from the index")
    with tempfile.TemporaryDirectory() as folder:
        pip.download(
            ctx, f"uv{ctx.manifest.uv.version}", Path(folder), step="fetching uv", limit=ctx.manifest.timeouts.uv
        )
        wheel = next(Path(folder).glob("uv-*.whl"))
        _hold(ctx, wheel, promise.wheels)
        version = str(parse_wheel_filename(wheel.name)[1])
        target = _place(ctx, version)
        _unpack(wheel, target)
    return _proven(ctx, target, "the index", version)


def _hold(ctx: Context, wheel: Path, wheels: Mapping[str, str]) -> None:
    expected = wheels.get(wheel.name)
    if expected is None:
        ctx.say(f"{wheel.name}: no hash of it is in a lock yet, the index's own hash was trusted")
        return
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != expected:
        message = f"{wheel.name} has sha256 {found}, the lock promises {expected}"
        raise AmlError(Code.INTEGRITY, message, "find out who changed the index; `lock --upgrade` takes the new one")


# --- a URL ---


def _from_url(ctx: Context, _promise: Promise) -> Uv:
    """An archive or wheel from a URL of the manifest, held against the sha256 that stands beside it."""
    here, place = platforms.name(), uv.url_place(ctx)
    if place is None:
        message = f"uv.sha256 has no entry for {here}"
        raise AmlError(Code.UV_MISSING, message, f"add the digest of the archive for {here}")
    url = (ctx.manifest.uv.url or "").replace("{platform}", here).replace("{target}", platforms.triple(here) or here)
    ctx.say(f"fetching uv from {url}")
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, PurePosixPath(urlsplit(url).path).name)
        expected = dict(ctx.manifest.uv.sha256)[here]
        download.fetch(url, archive, limit=ctx.manifest.timeouts.uv, environ=ctx.environ, sha256=expected)
        _unpack(archive, place)
    return _proven(ctx, place, "uv.url")


# --- unpacking ---


def _unpack(archive: Path, target: Path) -> None:
    """Take the one program out of an archive (.tar.gz, .zip) or a wheel (PEP 427: .data/scripts)."""
    try:
        with _member(archive, target.name) as data:
            store.write_program(target, data)
    except (*_NO_ARCHIVE, OSError) as error:
        if isinstance(error, OSError) and store.state_error(error):
            raise
        raise AmlError(
            Code.INTEGRITY, f"{archive.name} cannot be unpacked: {error}", "check where it came from"
        ) from None


@contextmanager
def _member(archive: Path, program: str) -> Iterator[bytes]:
    if archive.name.endswith((".whl", ".zip")):
        with zipfile.ZipFile(archive) as opened:
            name = _named(archive, program, [one.filename for one in opened.infolist() if not one.is_dir()])
            yield opened.read(name)
    else:
        # First whole: only at its end does gzip tell that the bytes are not those that were packed.
        with gzip.open(archive) as packed, tarfile.open(fileobj=io.BytesIO(packed.read())) as opened_tar:
            members = {one.name: one for one in opened_tar.getmembers() if one.isfile()}
            stream = opened_tar.extractfile(members[_named(archive, program, list(members))])
            yield stream.read() if stream else b""


def _named(archive: Path, program: str, names: Sequence[str]) -> str:
    for name in names:
        if PurePosixPath(name).name == program:
            return name
    message = f"{archive.name} holds no {program}: it is not uv's, or for another platform"
    raise AmlError(Code.INTEGRITY, message, "check where it came from")


# --- the official installer ---


def _from_installer(ctx: Context, promise: Promise) -> Uv:
    """The official script, fetched to a file and run with its own words for: into this folder, touch nothing else."""
    version = _exact(ctx, promise)
    windows = sys.platform == "win32"
    official = INSTALLER.replace("{ending}", "ps1" if windows else "sh")
    url = (ctx.manifest.uv.url or official).replace("{version}", version)
    ctx.say(f"fetching uv by the installer {url}; nothing of ours verifies it")
    limit = ctx.manifest.timeouts.uv
    target = _place(ctx, version)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "install.ps1" if windows else "install.sh")
        download.fetch(url, script, limit=limit, environ=ctx.environ)
        shell = ["powershell", "-ExecutionPolicy", "Bypass", "-File"] if windows else ["sh"]
        places = {"UV_INSTALL_DIR": folder, "UV_UNMANAGED_INSTALL": folder, "UV_NO_MODIFY_PATH": "1"}
        env = process.hermetic(ctx.environ, UV_DISABLE_UPDATE="1", **places)
        try:
            done = process.run([*shell, script], env=env, cwd=Path(folder), limit=limit, screen=ctx.screen)
        except OSError as error:
            message = f"uv's installer: {shell[0]} cannot be started: {error.strerror or error}"
            raise AmlError(Code.FETCH, message, f"put {shell[0]} on PATH, or use another uv.source") from error
        if done.timed_out or done.status:
            raise diagnosis.failure(ctx, done, step="uv's installer", limit=limit, otherwise=Code.FETCH)
        placed = Path(folder, target.name)
        if not placed.is_file():
            raise AmlError(Code.FETCH, "uv's installer ended well and left no uv", "use another uv.source")
        store.write_program(target, placed.read_bytes())
    return _proven(ctx, target, "uv's installer", version)


def _exact(ctx: Context, promise: Promise) -> str:
    """The version to pin the installer to: the manifest's, where it names one, else the lock's."""
    pinned = [one.version for one in ctx.manifest.uv.version if one.operator == "==" and "*" not in one.version]
    if pinned:
        return pinned[0]
    if promise.version and ctx.manifest.uv.version.contains(promise.version, prereleases=True):
        return promise.version
    message = "the installer is used with one exact version, and neither uv.version nor a lock names one"
    raise AmlError(Code.UV_MISSING, message, 'write uv.version = "==X.Y.Z"')
