"""The architecture, read from the source: imports go one way, and each power over the outside has one owner."""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "aml_nox"

#: The layers from the ground up: a module may import those before it. A new module needs its place here.
ORDER = """
warm errors faults screen interrupts target_probe bytecode_probe tomlwriter platforms launchers
toml_text toml_lines urls pep508 versions kinds keys secretshape traintable manifest editables requirements
plan lockfile installed envdigest
process download liveness store context diagnosis uv pip pythons uvfetch interpreter backend engine locking
verify reproduce clean
options calls
kit kit.amlkit kit.aml_eval
train train.isolation train.supervisor train.supervisor_windows
train.strictjson train.dirhash train.dataset train.gates train.records train.registry
train.queue train.spec train.inbox train.stage train.judging train.inputs train.worker
train.launchers train.launchers.local train.watching train.job train.history
project init verbs
front __main__ sessions aml_nox
""".split()

#: Imports inside of functions: what a warm run, or a noxfile that only imports the package, must not pay for.
LAZY = {"front": {"verbs"}, "aml_nox": {"__main__", "sessions"}}

#: Who may import what does not come with Python, or starts processes. Exactly these do.
OWNERS = {
    "nox": {"sessions"},
    "tomlkit": {"tomlwriter"},
    "filelock": {"store"},
    "subprocess": {"process", "train.supervisor_windows"},
    "amlkit": {"kit.aml_eval"},  # its neighbour, by the name that a job imports it by
    "packaging": set(
        "editables installed kinds lockfile locking manifest pep508 target_probe uv uvfetch verbs versions".split()
    ),
}

#: Who may change a file system, and how. All state is written by store; each other one has its reason.
WRITERS = {
    "store": {"mkdir", "os.open", "os.fdopen", "replace", "rmtree", "unlink"},
    "warm": {"os.replace", "os.rmdir", "os.symlink", "os.unlink"},  # the link, which a warm run may have to switch
    "front": {"open"},  # the file of --json
    "screen": {"open", "os.open"},  # the null device
    "download": {"open"},  # where its caller says, in a folder that goes away
    "pip": {"tempfile.TemporaryDirectory"},  # what pip unpacks
    "uvfetch": {"tempfile.TemporaryDirectory", "open"},  # what was downloaded, before it is proved
    "pythons": {"tempfile.TemporaryDirectory", "write_bytes"},  # the list of downloads as uv reads it
    "reproduce": {"tempfile.TemporaryDirectory", "mkdir"},  # the second environment, and a home for its build
    "liveness": {"os.open"},  # a lock that is handed on
    "kit.amlkit": {"mkdir", "open", "os.open", "replace", "unlink"},  # the job's own files, from inside of it
    "train.isolation": {"open"},  # /proc, for the ids of its namespaces
    "train.supervisor": {"os.chmod", "os.fdopen", "os.open", "os.unlink", "rmtree"},  # a pipe, null; the job's home
    "train.supervisor_windows": {"rmtree"},
    "train.registry": {"mkdir", "open", "os.open"},  # the copy of a model
    "train.records": {"mkdir", "os.link", "rename"},  # the directory of a job, born whole
    "train.worker": {"open", "replace", "tempfile.gettempdir", "tempfile.mkdtemp"},  # the log, the claim, the home
}

_CHANGES = {"mkdir", "rmdir", "touch", "unlink", "rename", "symlink_to", "hardlink_to", "chmod", "write_text", "rmtree"}
_OF_OS = {
    "open",
    "fdopen",
    "replace",
    "rename",
    "unlink",
    "remove",
    "rmdir",
    "mkdir",
    "makedirs",
    "symlink",
    "link",
    "chmod",
}
#: Starts processes by the system's own calls: it runs without site-packages, between the worker and the job.
_SUPERVISOR = {"train.supervisor", "train.isolation"}
_STARTS = {"fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp", "startfile"}


@dataclass(frozen=True, slots=True)
class Import:
    """An import: of what, and where it stands: `top`, `lazy` in a function, `typing` for the type checker alone."""

    name: str
    kind: str


@cache
def modules() -> dict[str, ast.Module]:
    """Parse every module; its name is relative to the package."""
    return {_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def _name(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return (name.removesuffix("__init__").removesuffix(".") or "aml_nox") if name.endswith("__init__") else name


def imports(node: ast.AST, kind: str = "top") -> Iterator[Import]:
    """Find all imports of a module, each name once per place."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(_ours(alias.name), kind) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (Import(_ours(f"{child.module}.{alias.name}"), kind) for alias in child.names)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(child, "lazy" if kind == "top" else kind)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from imports(child, "typing")
        else:
            yield from imports(child, kind)


def _ours(name: str) -> str:
    """Give the module that holds a name: `aml_nox.errors.Code` is errors, `os.path` stays as it is."""
    if name.partition(".")[0] != "aml_nox":
        return name
    parts = name.split(".")[1:]
    known = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((each for each in known if each in modules()), "aml_nox")


def own(module: str) -> set[Import]:
    return {each for each in imports(modules()[module]) if each.name in modules()}


# --- layers


def test_every_module_has_its_place() -> None:
    assert sorted(ORDER) == sorted(modules())


@pytest.mark.parametrize("module", ORDER)
def test_imports_go_one_way(module: str) -> None:
    """Lazy ones and those for types too: so there is no cycle of any kind."""
    below = set(ORDER[: ORDER.index(module)])
    assert {each.name for each in own(module)} <= below


def test_an_import_inside_of_a_function_is_an_exception_that_is_named() -> None:
    found = {module: {each.name for each in own(module) if each.kind == "lazy"} for module in modules()}
    assert {module: names for module, names in found.items() if names} == LAZY


def test_each_outside_library_has_its_owners() -> None:
    found: dict[str, set[str]] = {}
    for module, tree in modules().items():
        for each in imports(tree):
            top = each.name.partition(".")[0]
            if each.name not in modules() and (top not in sys.stdlib_module_names or top == "subprocess"):
                found.setdefault(top, set()).add(module)
    assert found == OWNERS


def test_the_first_look_imports_next_to_nothing() -> None:
    """It is asked by every run, and a run with nothing to do costs what it costs."""
    found = {(each.name, each.kind) for each in imports(modules()["warm"])}
    assert {name for name, kind in found if kind == "top"} == {"__future__.annotations", "hashlib", "json", "os", "sys"}
    assert {name for name, kind in found if kind == "lazy"} == {"_winapi"}


# --- powers


def calls(module: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(modules()[module]) if isinstance(node, ast.Call))


def _writes(call: ast.Call, position: int) -> bool:
    """Say whether an `open` writes; its mode, where one is given, stands at a position or by name."""
    given = [*call.args[position : position + 1], *(each.value for each in call.keywords if each.arg == "mode")]
    return bool(given) and ast.unparse(given[0]) not in {"'r'", "'rb'"}  # what is no literal can be any mode


def changes(call: ast.Call) -> str:
    """Name the call if it can change a file system."""
    found = ""
    match call.func:
        case ast.Name("open"):
            found = "open" if _writes(call, 1) else ""
        case ast.Attribute(attr=name, value=ast.Name("os" | "tempfile" as owner)):
            found = f"{owner}.{name}" if owner == "tempfile" or name in _OF_OS else ""
        case ast.Attribute(attr="open"):
            found = "open" if _writes(call, 0) else ""
        case ast.Attribute(attr="replace"):  # of a path; a text's has two arguments
            found = "replace" if len(call.args) == 1 and not call.keywords else ""
        case ast.Attribute(attr="write_bytes", value=owner):
            found = "write_bytes" if ast.unparse(owner) != "store" else ""
        case ast.Attribute(attr=name):
            found = name if name in _CHANGES else ""
    return found


def test_state_is_written_by_one_module() -> None:
    found = {module: {name for call in calls(module) if (name := changes(call))} for module in modules()}
    assert {module: names for module, names in found.items() if names} == WRITERS


def test_nobody_starts_a_process_past_the_one_that_may() -> None:
    """Importing subprocess is held above; these are the ways around it."""
    for module in modules().keys() - _SUPERVISOR:
        for call in calls(module):
            match call.func:
                case ast.Attribute(attr=name, value=ast.Name("os" | "pty" | "asyncio")):
                    assert name not in _STARTS, ast.unparse(call)
                    assert not name.startswith(("exec", "spawn", "create_subprocess")), ast.unparse(call)


def test_the_callers_environment_is_read_by_whoever_is_called_alone() -> None:
    """The front ends, the worker, and what a job imports: everybody else is handed it as a value."""
    found = {
        module
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"environ", "environb", "getenv"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    }
    assert found == {"__main__", "sessions", "train.worker", "kit.amlkit"}


def test_a_bug_of_ours_keeps_its_traceback() -> None:
    """Whoever catches everything raises it again; a user's fault has one class, and a parser's its own."""
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "BaseException"
                if {"Exception", "BaseException"} & set(caught.strip("()").replace(",", " ").split()):
                    assert isinstance(node.body[-1], ast.Raise), f"{module}:{node.lineno}"
                    assert node.body[-1].exc is None, f"{module}:{node.lineno}"
    raised = {
        cls.name
        for tree in modules().values()
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef)
        if any("Error" in ast.unparse(base) or "Exception" in ast.unparse(base) for base in cls.bases)
    }
    assert raised == {"AmlError", "FaultError", "KitError"}  # the kit cannot import the first


# --- figures


def functions() -> dict[str, int]:
    """Count the lines of every function, its signature and docstring included."""
    return {
        f"{module}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def code_lines(path: Path) -> int:
    """Count the lines that hold code: no blank one, no comment, no docstring."""
    text = path.read_text(encoding="utf-8")
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in skipped
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_functions_and_modules_stay_small() -> None:
    """The figures are printed: `pytest -s tests/test_layers.py -k small`."""
    lengths, sizes = functions(), {path: code_lines(path) for path in PACKAGE.rglob("*.py")}
    longest, largest = max(lengths, key=lengths.__getitem__), max(sizes, key=sizes.__getitem__)
    median = statistics.median(lengths.values())
    print(f"\n{len(lengths)} functions: median {median:g} lines, longest {longest} {lengths[longest]}")  # noqa: T201
    print(f"{len(sizes)} modules: {sum(sizes.values())} code lines, largest {largest.name} {sizes[largest]}")  # noqa: T201
    assert median <= 9
    assert lengths[longest] <= 50, longest
    assert sizes[largest] <= 400, largest
