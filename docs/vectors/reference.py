"""A second implementation of docs/digests.md, for reading: it computes what the vectors expect, and imports no product.

    python docs/vectors/reference.py            # write the expected values into the vectors
    python docs/vectors/reference.py --check    # exit 1 where one is another

It works on the vectors' lists of files, never on a file system; of RECORD it takes the names alone.
"""  # noqa: INP001 - a script

# ruff: noqa: D103 - the names are those of the specification

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import posixpath
import re
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name
from packaging.version import Version

FOLDER = Path(__file__).parent
ENVIRONMENT = "/somewhere/an environment"  # stands for {environment}; what it is must not show in any digest

NOTES = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"}
TOP = {"pyvenv.cfg", ".gitignore", ".lock", "CACHEDIR.TAG", "env.manifest.json"}
ACTIVATE = {f"activate{end}" for end in ("", ".bat", ".csh", ".fish", ".nu", ".ps1", ".xsh", "_this.py")}
BIN = ACTIVATE | {"Activate.ps1", "deactivate.bat", "pydoc.bat"}

UV = """\
# -*- coding: utf-8 -*-
import sys
from MODULE import NAME
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(FUNCTION())
"""
PIP = """\
import sys
from MODULE import NAME
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(FUNCTION())
"""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical(value: object) -> str:
    """The one text of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def key(case: dict[str, Any]) -> dict[str, Any]:
    artifacts = [{word: one[word] for word in ("name", "version", "sha256")} for one in case["artifacts"]]
    artifacts.sort(key=lambda one: (one["name"], one["version"]))
    local = [{word: one[word] for word in ("name", "path", "digest")} for one in case["editables"]]
    text = canonical({"scheme": 1, "artifacts": artifacts, "local": local, "target": case["target"]})
    return {"canonical": text, "key": sha256(text.encode())}


def manifest(case: dict[str, Any]) -> dict[str, Any]:
    text = canonical(case["inputs"])
    return {"canonical": text, "digest": sha256(text.encode())}


def environment(case: dict[str, Any]) -> dict[str, Any]:
    files, site = {one["path"]: one for one in case["files"]}, case["site"]
    infos = distributions(files, site)
    claims = claimed(files, site, infos)
    groups: dict[str, dict[str, str]] = {name: {} for name in ("", *infos.values())}
    for path, one in files.items():
        owner = owned(path, site, infos)
        if "__pycache__" in path.split("/")[:-1] or (owner and path.count("/") == site.count("/") + 2 and note(path)):
            continue
        if path not in claims and scaffold(path, one, files):
            continue
        owner = owner or claims.get(path, "")
        groups[owner][tree_path(path, site)] = leaf(path, one, site, references(files, site, infos, owner))
    strays = groups.pop("")
    digests = {name: lines(group) for name, group in groups.items()}
    value = {
        "scheme": 1,
        "interpreter": case["interpreter"],
        "settings": {"system_site": system_site(files)},
        "distributions": {name: {"digest": digests[name], "files": group} for name, group in groups.items()},
        "distributions_digest": lines({name: digest for name, digest in digests.items()}),  # noqa: C416 - name → value
        "strays": strays,
    }
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True) + "\n"
    return {"env.manifest.json": text, "env_digest": sha256(text.encode())}


def data_of(one: dict[str, Any]) -> bytes:
    if "base64" in one:
        return base64.b64decode(one["base64"])
    return str(one["text"]).replace("{environment}", ENVIRONMENT).encode()


def distributions(files: dict[str, Any], site: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in sorted({path.removeprefix(f"{site}/").split("/")[0] for path in files if path.startswith(site)}):
        if folder.endswith(".dist-info"):
            name, _, version = folder.removesuffix(".dist-info").rpartition("-")
            one = f"{canonicalize_name(name)}=={Version(version)}"
            found[folder] = f"{one} again" if one in found.values() else one
    return found


def claimed(files: dict[str, Any], site: str, infos: dict[str, str]) -> dict[str, str]:
    """Who claims a path first, in the order of the dist-info folders."""
    found: dict[str, str] = {}
    for folder, name in infos.items():
        record = files.get(f"{site}/{folder}/RECORD")
        rows = csv.reader(io.StringIO(data_of(record).decode(), newline="")) if record else ()
        for row in rows:
            found.setdefault(posixpath.normpath(posixpath.join(site, row[0])), name)
    return found


def owned(path: str, site: str, infos: dict[str, str]) -> str:
    parts = path.removeprefix(f"{site}/").split("/")
    return infos.get(parts[0], "") if path.startswith(f"{site}/") and len(parts) > 1 else ""


def note(path: str) -> bool:
    return path.rpartition("/")[2] in NOTES


def scaffold(path: str, one: dict[str, Any], files: dict[str, Any]) -> bool:
    folder, _, name = path.rpartition("/")
    if "link" in one:
        if path == "lib64":
            return bool(one["link"] == "lib")
        is_program = re.fullmatch(r"(python|pypy|\U0001d70bthon)[0-9.]*t?", name)
        return folder == "bin" and bool(is_program) and end(path, files) == end("bin/python", files)
    if folder == "":
        return name in TOP or re.fullmatch(r"\.aml-ok-[0-9a-f]{12}", name) is not None
    return (folder in {"bin", "Scripts"} and name in BIN) or path in {"Scripts/python.exe", "Scripts/pythonw.exe"}


def end(path: str, files: dict[str, Any]) -> str:
    """Where a link leads to in the end."""
    while "link" in files.get(path, {}):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), files[path]["link"]))
    return path


def tree_path(path: str, site: str) -> str:
    scripts = "Scripts" if site.startswith("Lib/") else "bin"
    for folder, name in ((site, "site"), (scripts, "bin")):
        if path.startswith(folder + "/"):
            return name + path[len(folder) :]
    return "data/" + path


def leaf(path: str, one: dict[str, Any], site: str, known: set[str]) -> str:
    if "link" in one:
        return "link:" + quote(one["link"].encode())
    data = data_of(one)
    if not tree_path(path, site).startswith("bin/"):
        return sha256(data)
    for first in first_lines():
        if data.startswith(first):
            body = data.removeprefix(first)
            for reference in known:
                module, function = reference.split(":")
                for template in (UV, PIP):
                    text = template.replace("MODULE", module).replace("FUNCTION", function)
                    if body == text.replace("NAME", function.split(".")[0]).encode():
                        return "launcher:" + reference
            return "script:" + sha256(body)
    return sha256(data)


def first_lines() -> list[bytes]:
    found = []
    for folder in ("bin", "Scripts"):
        for program in ("python", "python3", "python.exe", "pythonw.exe"):
            path = f"{ENVIRONMENT}/{folder}/{program}"
            found += [f"#!{path}\n", f'#!"{path}"\n']
            found += [f"#!/bin/sh\n'''exec' {one} \"$0\" \"$@\"\n' '''\n" for one in (path, f'"{path}"', f"'{path}'")]
    return [one.encode() for one in found]


def references(files: dict[str, Any], site: str, infos: dict[str, str], owner: str) -> set[str]:
    for folder, name in infos.items():
        one = files.get(f"{site}/{folder}/entry_points.txt")
        if name == owner and one:
            parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
            parser.read_string(data_of(one).decode())
            values = [
                value
                for section in ("console_scripts", "gui_scripts")
                if parser.has_section(section)
                for value in parser[section].values()
            ]
            found = {re.sub(r"\s+", "", value.split("[")[0]) for value in values}
            return {one for one in found if re.fullmatch(r"[\w.]+:[\w.]+", one)}
    return set()


def lines(group: dict[str, str]) -> str:
    found = []
    for name, value in group.items():
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        found.append(("\\" if escaped != name else "") + f"{value}  {escaped}\n")
    return sha256(b"".join(sorted(line.encode("utf-8", "surrogateescape") for line in found)))


def system_site(files: dict[str, Any]) -> bool:
    word = "true"
    text = data_of(files["pyvenv.cfg"]).decode() if "pyvenv.cfg" in files else ""
    for line in re.split(r"\r\n|\r|\n", text):
        name, equals, value = line.partition("=")
        if equals and name.strip().lower() == "include-system-site-packages":
            word = value.strip().lower()
    return word == "true"


def main() -> None:
    wrong = []
    for name, compute in (("key", key), ("manifest", manifest), ("environment", environment)):
        path = FOLDER / f"{name}.json"
        value = json.loads(path.read_text("utf-8"))
        for case in value["cases"]:
            expected = compute(case)
            wrong += [f"{name}: {case['name']}"] if case.get("expected") != expected else []
            case["expected"] = expected
        if "--check" not in sys.argv:
            path.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
    if "--check" in sys.argv and wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
