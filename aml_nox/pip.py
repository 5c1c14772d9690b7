"""pip, our own dependency: it fetches uv's wheel, and installs where there is no uv.

pip is told to read no configuration and sees none of the caller's PIP_* variables. The index reaches it by variables of
its own, never by arguments: a URL may then carry the credentials that uv would have found by itself.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

from aml_nox import diagnosis, platforms, process
from aml_nox.context import Context
from aml_nox.errors import Code


def download(ctx: Context, requirement: str, folder: Path, *, step: str, limit: float) -> None:
    """Download the wheel of uv that a requirement asks for, for this machine.

    Raises:
        AmlError: AML_FETCH, AML_RESOLUTION, AML_INTEGRITY, AML_TIMEOUT, else AML_UV_MISSING.

    """
    # Past pip's cache: what lies there is nobody's promise, and nothing is left in the home directory.
    words: list[str | Path] = ["download", "--no-cache-dir", "--no-deps", "--only-binary", ":all:"]
    words += ["--dest", folder, requirement]
    _call(ctx, words, folder, step=step, limit=limit, otherwise=Code.UV_MISSING)


def install(ctx: Context, python: Path, requirements: Path, builds: Sequence[str], *, anew: bool = False) -> None:
    """Install a hashed requirements file into an environment that need not have pip itself.

    `builds` says what may be built from source; `anew` installs over what is there, past the cache.

    Raises:
        AmlError: AML_FETCH, AML_INTEGRITY, AML_TIMEOUT.

    """
    words: list[str | Path] = ["-r", requirements, "--require-hashes", *builds]
    words += ["--no-cache-dir", "--force-reinstall"] if anew else []
    _install(ctx, python, words, "installing")


def install_editable(ctx: Context, python: Path, project: Path) -> None:
    """Install a project in place.

    Raises:
        AmlError: AML_FETCH, AML_TIMEOUT.

    """
    _install(ctx, python, ["-e", project], f"installing {project}")


def _install(ctx: Context, python: Path, words: Sequence[str | Path], step: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        argv: list[str | Path] = ["--python", python, "install", "--no-deps", "--no-compile", *words]
        limit = ctx.manifest.timeouts.install
        _call(ctx, argv, Path(folder), step=step, limit=limit, otherwise=Code.FETCH)


def _call(ctx: Context, words: Sequence[str | Path], folder: Path, *, step: str, limit: float, otherwise: Code) -> None:
    argv: list[str | Path] = [sys.executable, "-I", "-m", "pip", *words, "--quiet", *_flags(ctx)]
    env = environment(ctx, folder)
    done = process.run(argv, env=env, cwd=ctx.root.folder, limit=limit, screen=ctx.screen)
    if done.timed_out or done.status:
        raise diagnosis.failure(ctx, done, step=step, limit=limit, otherwise=otherwise)


def _flags(ctx: Context) -> list[str]:
    flags = ["--disable-pip-version-check", "--no-input"]
    for name, flag in (("PIP_CERT", "--cert"), ("PIP_CLIENT_CERT", "--client-cert")):
        if value := ctx.environ.get(name):
            flags += [flag, value]
    if ctx.environ.get("UV_KEYRING_PROVIDER") == "subprocess":
        flags += ["--keyring-provider", "subprocess"]
    return [*flags, "--no-index"] if ctx.offline else flags


def environment(ctx: Context, folder: Path) -> dict[str, str]:
    """All that pip sees: the kept variables, the indexes of this run, and `folder` for its temporary files."""
    index = ctx.manifest.index
    extra = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    extra |= {"PIP_CONFIG_FILE": platforms.null_file(), "PIP_RETRIES": "2"}
    if proxy := ctx.environ.get("PIP_PROXY"):
        extra |= dict.fromkeys(("http_proxy", "https_proxy"), proxy)
    extras = [(one.name, one.url) for one in index.extra]
    if url := ctx.index_url():
        extra["PIP_INDEX_URL"] = _with_credentials(ctx, index.name, url)
    if extras:
        extra["PIP_EXTRA_INDEX_URL"] = " ".join(_with_credentials(ctx, *one) for one in extras)
    # uv takes a plain http:// where the manifest says so; pip, but for loopback, only from a host that it is told of.
    plain = [urlsplit(one).netloc for _, one in [("", url or ""), *extras] if one.startswith("http://")]
    if plain:
        extra["PIP_TRUSTED_HOST"] = " ".join(plain)
    return process.hermetic(ctx.environ, **extra)


def _with_credentials(ctx: Context, name: str, url: str) -> str:
    """The URL with the named index's credentials, as uv finds them: UV_INDEX_<NAME>_USERNAME and _PASSWORD."""
    stem = f"UV_INDEX_{name.upper().replace('-', '_')}"
    user, password = (ctx.environ.get(f"{stem}_{what}") for what in ("USERNAME", "PASSWORD"))
    if user is None and password is None:
        return url
    pair = _userinfo(user or "") + (f":{_userinfo(password)}" if password is not None else "")
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{pair}@{rest}"


def _userinfo(text: str) -> str:
    """A user name or password in a URL for pip, which sends Latin-1 where uv and servers speak UTF-8 (RFC 7617)."""
    return quote(text.encode("utf-8", "surrogateescape").decode("latin-1"), safe="")
