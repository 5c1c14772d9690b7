"""Run by a candidate interpreter, of any version from 3.10: what is it? One JSON object on stdout.

Started as ``PY -I -S target_probe.py FOLDER``: without site, so that nothing of its packages takes part; FOLDER holds
our `packaging`, which computes the markers (PEP 508) and the wheel tags (PEP 425) as the interpreter itself sees them.
"""

import json
import os
import platform
import sys
import sysconfig


def library() -> str:
    """The shared library that this interpreter really runs from: where it says it was installed can be elsewhere."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            paths = {line.split(None, 5)[5].strip() for line in maps if "libpython" in line}
    except OSError:
        parts = [sysconfig.get_config_var(name) or "" for name in ("LIBDIR", "LDLIBRARY")]
        paths = {os.path.join(*parts)} if all(parts) and parts[1].endswith((".so", ".dylib", ".dll")) else set()
    return next((path for path in sorted(paths) if os.path.isfile(path)), "")


def main() -> None:
    """Print what this interpreter is."""
    sys.path.append(sys.argv[1])
    from packaging.markers import default_environment  # noqa: PLC0415 - its folder was only now named
    from packaging.tags import sys_tags  # noqa: PLC0415 - likewise

    answer = {
        "executable": os.path.realpath(sys.executable),
        "library": os.path.realpath(library()) if library() else "",
        "implementation": sys.implementation.name,
        "version": platform.python_version(),
        "soabi": sysconfig.get_config_var("SOABI") or sysconfig.get_config_var("EXT_SUFFIX") or "",
        "platform": sysconfig.get_platform(),
        "markers": default_environment(),
        "tags": [str(tag) for tag in sys_tags()],
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
