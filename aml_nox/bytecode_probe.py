"""Run by an environment's own interpreter: name the bytecode that is not what its source compiles to.

Started as ``PY -I -S bytecode_probe.py FOLDER``. Python runs a .pyc whose noted source time and size fit (PEP 552), or
whose source is gone, without a look at the source: forged bytecode is code that no hash of a source shows.
"""

import importlib.util
import json
import marshal
import os
import sys
import types


def forged(path: str) -> bool:
    """Whether a file in __pycache__ is anything but the compiled form of its source, at any optimisation."""
    try:
        source = importlib.util.source_from_cache(path)
        with open(path, "rb") as stream:
            data = stream.read()
        with open(source, "rb") as stream:
            text = stream.read()
        optimisation = path.rpartition(".opt-")[2][:1] if ".opt-" in path else "0"
        # The path that the source had when it was compiled is in the bytecode: take it from there.
        found = marshal.loads(data[16:])  # noqa: S302 - never run, only compared; the environment's interpreter would
        right = compile(text, found.co_filename, "exec", dont_inherit=True, optimize=int(optimisation))
        return found != right or stacks(found) != stacks(right)
    except (OSError, ValueError, EOFError, TypeError, SyntaxError, AttributeError):
        return True


def stacks(code: types.CodeType) -> list[int]:
    """The stack sizes of a code object and those in it, which its equality leaves out: one too small is an overflow."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return [code.co_stacksize, *(size for one in inner for size in stacks(one))]


def main() -> None:
    """Print the forged files, relative to the folder, as a JSON array."""
    root = sys.argv[1]
    answer = []
    for folder, _, files in os.walk(root):
        if os.path.basename(folder) == "__pycache__":
            paths = [os.path.join(folder, name) for name in files if name.endswith(".pyc")]
            answer += [os.path.relpath(path, root) for path in paths if forged(path)]
    sys.stdout.write(json.dumps(sorted(answer)))


if __name__ == "__main__":
    main()
