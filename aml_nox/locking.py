"""Make or update a lock through uv.

uv works on a copy beside the lock, so that relative paths stay right, the old versions are kept, and a failure leaves
the old lock as it was. uv drops our table whenever it compiles: it is appended, the whole is checked, then published.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from packaging.pylock import Pylock

from aml_nox import lockfile, plan, store, tomlwriter, uv
from aml_nox.context import Context
from aml_nox.errors import AmlError, Code
from aml_nox.interpreter import Interpreter
from aml_nox.lockfile import Lock
from aml_nox.manifest import Environment
from aml_nox.plan import Inputs
from aml_nox.requirements import Declared, Line

_LEFTOVER = re.compile(r"pylock\.aml[0-9a-f]{4}\.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """What a compilation may move: nothing, everything, some packages; `anew` forgets the old lock altogether."""

    everything: bool = False
    packages: tuple[str, ...] = ()
    anew: bool = False

    @property
    def wanted(self) -> bool:
        """Whether a lock that is fresh has to be compiled all the same."""
        return self.everything or self.anew or bool(self.packages)

    @property
    def flags(self) -> list[str]:
        names = [word for name in self.packages for word in ("--upgrade-package", name)]
        return (["--upgrade"] if self.everything else []) + names


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What compiles: a uv, and the interpreter whose version and platform it starts from."""

    uv: uv.Uv
    interpreter: Interpreter


def compile_lock(
    ctx: Context,
    tools: Tools,
    path: Path,
    *,
    environment: Environment,
    declared: Declared,
    inputs: Inputs,
    upgrade: Upgrade,
) -> Lock:
    """Make or update the lock at `path`; the caller holds the project's lock.

    Raises:
        AmlError: AML_RESOLUTION, AML_FETCH, AML_TIMEOUT from uv; AML_LOCK_INVALID from the lint.

    """
    _sweep(path.parent)
    with _copy(path, keep=not upgrade.anew) as copy:
        words = [line.text for line in declared.requirements]
        files = {"--constraints": declared.constraints, "--overrides": declared.overrides}
        flags = [*upgrade.flags, *_choices(environment)]
        _resolve(ctx, tools, copy, words, files=files, flags=flags)
        text = copy.read_text("utf-8")
    return _publish(path, text, inputs, tools.uv, _own_wheels(ctx, tools, path))


def _choices(environment: Environment) -> list[str]:
    """What of an environment changes what is chosen, in uv's words."""
    builds = [word for name in environment.allow_build for word in ("--no-binary", name)]
    return builds + (["--torch-backend", environment.torch_backend] if environment.torch_backend else [])


def _sweep(folder: Path) -> None:
    """Remove the copies of killed runs: we hold the lock, so nobody works on one."""
    for leftover in folder.glob("pylock.aml*.toml"):
        if _LEFTOVER.fullmatch(leftover.name):
            store.remove(leftover)


@contextlib.contextmanager
def _copy(path: Path, *, keep: bool) -> Iterator[Path]:
    copy = path.with_name(f"pylock.aml{secrets.token_hex(2)}.toml")
    try:
        if keep and path.exists():
            store.write_bytes(copy, path.read_bytes())
        yield copy
    finally:
        store.remove(copy)


def _resolve(
    ctx: Context,
    tools: Tools,
    output: Path,
    words: Sequence[str],
    *,
    files: Mapping[str, Sequence[Line]] = MappingProxyType({}),
    flags: Sequence[str],
) -> None:
    with contextlib.ExitStack() as stack:
        argv = [*compile_argv(ctx, tools, output), *flags]
        for flag, lines in files.items():
            if lines:  # uv warns of an empty file
                text = "".join(f"{line.text}\n" for line in lines)
                argv += [flag, stack.enter_context(store.scratch(ctx.root, text))]
        stdin = "".join(f"{one}\n" for one in words)
        limit = ctx.manifest.timeouts.install
        uv.call(ctx, tools.uv, argv, step="resolving", limit=limit, otherwise=Code.RESOLUTION, stdin=stdin)


def compile_argv(ctx: Context, tools: Tools, output: Path) -> list[str | Path]:
    """The words for uv for a lock of all platforms, of wheels alone, that does not depend on where it is made."""
    newer = ctx.manifest.index.exclude_newer_text
    return [
        *("pip", "compile", "-", "--output-file", output, "--format", "pylock.toml", "--universal", "--no-header"),
        *("--python-version", ctx.manifest.python.version.lowest, "-p", tools.interpreter.path),
        *("--no-python-downloads", "--only-binary", ":all:"),
        *(["--exclude-newer", newer] if newer else []),
        *uv.index_flags(ctx),
    ]


def _own_wheels(ctx: Context, tools: Tools, path: Path) -> Mapping[str, str]:
    """The sha256 of uv's wheels for all platforms, so that the next machine's first fetch is held against the lock.

    An index without this version has none to tell: that is no fault of the lock.
    """
    quiet = ctx.silent()
    try:
        with _copy(path, keep=False) as output:
            _resolve(quiet, tools, output, [f"uv=={tools.uv.version}"], flags=["--no-deps"])
            wheels = Pylock.from_dict(tomllib.loads(output.read_text("utf-8"))).packages[0].wheels or ()
    except AmlError:
        return {}
    return {wheel.filename: wheel.hashes["sha256"] for wheel in wheels}


def _publish(path: Path, text: str, inputs: Inputs, tool: uv.Uv, wheels: Mapping[str, str]) -> Lock:
    document = tomllib.loads(text)
    if faults := lockfile.lint(Pylock.from_dict(document)):
        hint = "correct the requirement that asks for it"
        raise AmlError(Code.LOCK_INVALID, f"{path.name} was not written: " + "; ".join(faults), hint)
    table = {
        "scheme": plan.SCHEME,
        "manifest-digest": inputs.digest,
        "packages-digest": lockfile.packages_digest(document),
        "uv": {"version": tool.version, "wheels": dict(sorted(wheels.items()))},
        "inputs": dict(inputs.values),
    }
    whole = text.rstrip("\n") + "\n\n" + tomlwriter.document({"tool": {"aml-nox": table}})
    store.write_bytes(path, whole.encode())
    made = lockfile.read(path)
    if made is None or made.table is None or made.table.manifest_digest != inputs.digest:
        message = f"{path} does not read back as it was written"
        raise AssertionError(message)
    return made
