"""What is done to an environment by hand changes its digest and is named by verify; what is harmless does neither."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import json
import marshal
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import pytest

from aml_nox import envdigest
from tests.support.index import Index
from tests.support.processes import Run, run
from tests.support.project import Project
from tests.support.provisioning import marker, provision, site_packages
from tests.support.wheels import make_wheel

FOREIGN = "/usr/bin/python3"
SO = "demo_alpha/core.cpython-311-x86_64-linux-gnu.so"
INFO = "demo_alpha-1.0.dist-info"
MODULES: dict[str, str | bytes] = {
    "demo_alpha/__init__.py": "VERSION = 1\n",
    "demo_alpha/cli.py": "def main():\n    print('hello')\n",
    SO: b"\x7fELF\0 not run here\0",
    "demo_alpha/sub/__init__.py": "",
    "demo_alpha/sub/deep.py": "DEEP = True\n",
    "demo_alpha-1.0.data/data/share/demo/table.csv": "1,2\n",
    "demo_alpha-1.0.data/headers/demo.h": "#define DEMO 1\n",
}


@dataclass(frozen=True, slots=True)
class Ground:
    """A project that is ready, with its environment, whose files are nobody else's."""

    project: Project
    environment: Path
    whole: Path

    @property
    def site(self) -> Path:
        return site_packages(self.environment)

    @property
    def info(self) -> Path:
        return self.site / INFO

    @property
    def bin(self) -> Path:
        return self.environment / "bin"

    def certified(self) -> str:
        return str(json.loads(marker(self.whole).read_bytes())["env_digest"])

    def digest(self) -> str:
        target = json.loads(marker(self.whole).read_bytes())["target"]
        return envdigest.compute(self.environment, target).digest

    def verify(self, level: str = "full") -> Run:
        return self.project.aml("verify", "--level", level, "--json", "-")


@pytest.fixture(scope="module")
def _provisioned(tmp_path_factory: pytest.TempPathFactory, uv_cache: Path) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("tampering")
    (folder / "home").mkdir()
    (folder / "index").mkdir()
    with Index(folder / "index") as index:
        scripts, plain = {"demo-alpha": "demo_alpha.cli:main"}, {"demo-script": b"#!python\nprint('script')\n"}
        make_wheel(index.folder, "demo-alpha", "1.0", modules=MODULES, scripts=scripts, data_scripts=plain)
        make_wheel(index.folder, "demo-beta", "1.0", requires=["demo-alpha"])
        project = Project.make(
            folder / "project", index.url, home=folder / "home", uv_cache=uv_cache, requirements=["demo-beta"]
        )
        environment = provision(project).environment
        shutil.copytree(environment, folder / "whole", symlinks=True)
        yield Ground(project, environment, folder / "whole")


@pytest.fixture
def ground(_provisioned: Ground) -> Ground:
    """Give that project with an environment as it was built; no file of it is linked to uv's cache."""
    shutil.rmtree(_provisioned.environment)
    shutil.copytree(_provisioned.whole, _provisioned.environment, symlinks=True)
    return _provisioned


Change = Callable[[Ground], object]


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def rows_of(ground: Ground) -> list[list[str]]:
    with (ground.info / "RECORD").open(newline="") as stream:
        return list(csv.reader(stream))


def write_rows(ground: Ground, rows: list[list[str]]) -> None:
    with (ground.info / "RECORD").open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


def edited_with_record(ground: Ground) -> None:
    """Change a module, and its line in RECORD so that it fits."""
    path = ground.site / "demo_alpha" / "cli.py"
    path.write_text("def main():\n    print('evil!')\n")
    value = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    fits = ["demo_alpha/cli.py", f"sha256={value}", str(path.stat().st_size)]
    write_rows(ground, [fits if row[0] == fits[0] else row for row in rows_of(ground)])


def added_with_record(ground: Ground) -> None:
    """Add a module, and a line for it."""
    (ground.site / "demo_alpha" / "added.py").touch()
    write_rows(ground, [*rows_of(ground), ["demo_alpha/added.py", "", ""]])


def removed_with_record(ground: Ground) -> None:
    """Remove a module, and its line."""
    (ground.site / "demo_alpha" / "cli.py").unlink()
    write_rows(ground, [row for row in rows_of(ground) if row[0] != "demo_alpha/cli.py"])


def module_to_package(ground: Ground) -> None:
    path = ground.site / "demo_alpha" / "cli.py"
    text = path.read_text()
    path.unlink()
    path.with_suffix("").mkdir()
    (path.with_suffix("") / "__init__.py").write_text(text)


def linked_file(ground: Ground) -> None:
    """Move a module away and link to it: the bytes that are imported are the same."""
    path = ground.site / "demo_alpha" / "cli.py"
    elsewhere = ground.project.folder / "elsewhere.py"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def linked_folder(ground: Ground) -> None:
    path = ground.site / "demo_alpha" / "sub"
    elsewhere = ground.project.folder / "elsewhere"
    shutil.rmtree(elsewhere, ignore_errors=True)
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def linked_library(ground: Ground) -> None:
    (ground.environment / "lib64").unlink(missing_ok=True)
    (ground.environment / "lib64").symlink_to(ground.project.folder)


def sourceless(ground: Ground) -> None:
    data = importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(compile("EVIL = 1", "x", "exec"))
    (ground.site / "demo_alpha" / "evil.pyc").write_bytes(data)


def piped(ground: Ground) -> None:
    path = ground.site / "demo_alpha" / "cli.py"
    path.unlink()
    os.mkfifo(path)


def other_program(ground: Ground) -> None:
    (ground.bin / "python3").unlink()
    (ground.bin / "python3").write_text(f'#!/bin/sh\nexec {FOREIGN} "$@"\n')


def other_link(ground: Ground) -> None:
    (ground.bin / "python3").unlink()
    (ground.bin / "python3").symlink_to(FOREIGN)


def setting(ground: Ground, text: str) -> None:
    with (ground.environment / "pyvenv.cfg").open("a") as stream:
        stream.write(text)


def setting_and_file(ground: Ground) -> None:
    setting(ground, "include-system-site-packages=true\n")
    (ground.site / "added.py").touch()


def removed(folder: Path, pattern: str) -> None:
    for path in [*folder.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def copied_info(ground: Ground) -> None:
    shutil.copytree(ground.info, ground.site / "demo.alpha-1.0.dist-info")


def piped_manifest(ground: Ground) -> None:
    (ground.environment / envdigest.MANIFEST).unlink()
    os.mkfifo(ground.environment / envdigest.MANIFEST)


TAMPERINGS: dict[str, tuple[Change, str]] = {
    "a byte in a module": (lambda it: flip(it.site / "demo_alpha" / "__init__.py"), "demo_alpha/__init__.py"),
    "a byte in a library": (lambda it: flip(it.site / SO), SO),
    "a byte in METADATA": (lambda it: flip(it.info / "METADATA"), f"{INFO}/METADATA"),
    "a byte in WHEEL": (lambda it: flip(it.info / "WHEEL"), f"{INFO}/WHEEL"),
    "a byte in a data file": (lambda it: flip(it.environment / "share/demo/table.csv"), "share/demo/table.csv"),
    "a byte in a header": (
        lambda it: flip(next((it.environment / "include").rglob("demo.h"))),
        "demo-alpha/demo.h",
    ),
    "an entry point": (
        lambda it: replace(it.info / "entry_points.txt", "cli:main", "cli:evil"),
        f"{INFO}/entry_points.txt",
    ),
    "a launcher's body": (lambda it: replace(it.bin / "demo-alpha", "sys.exit", "import evil; sys.exit"), "demo-alpha"),
    "a launcher's reference": (lambda it: replace(it.bin / "demo-alpha", "demo_alpha.cli", "evil.cli"), "demo-alpha"),
    "a launcher's interpreter": (
        lambda it: replace(it.bin / "demo-alpha", f"{it.environment}/bin/python", FOREIGN),
        "demo-alpha",
    ),
    "a script's body": (lambda it: replace(it.bin / "demo-script", "script", "evil"), "bin/demo-script"),
    "a script's interpreter": (
        lambda it: replace(it.bin / "demo-script", f"{it.environment}/bin/python", FOREIGN),
        "bin/demo-script",
    ),
    "a script's placeholder": (
        lambda it: replace(it.bin / "demo-script", f"{it.environment}/bin/python", "python"),
        "bin/demo-script",
    ),
    "a stray .pth": (lambda it: (it.site / "evil.pth").write_text("import evil\n"), "site-packages/evil.pth"),
    "sitecustomize": (lambda it: (it.site / "sitecustomize.py").touch(), "sitecustomize.py"),
    "usercustomize": (lambda it: (it.site / "usercustomize.py").touch(), "usercustomize.py"),
    "uv's old patch": (lambda it: (it.site / "_virtualenv.pth").touch(), "_virtualenv.pth"),
    "sourceless bytecode": (sourceless, "demo_alpha/evil.pyc"),
    "a module that becomes a package": (module_to_package, "demo_alpha/cli/__init__.py"),
    "an added module": (lambda it: (it.site / "demo_alpha" / "added.py").touch(), "demo_alpha/added.py"),
    "an added module, with a line in RECORD": (added_with_record, "demo_alpha/added.py"),
    "an added hidden file": (lambda it: (it.site / "demo_alpha" / ".hidden").touch(), "demo_alpha/.hidden"),
    "a name that is not UTF-8": (
        lambda it: Path(os.fsdecode(os.fsencode(it.site) + b"/\xff.py")).touch(),
        "site-packages/\udcff.py",
    ),
    "a removed module": (lambda it: (it.site / "demo_alpha" / "cli.py").unlink(), "demo_alpha/cli.py"),
    "a removed module, without its line in RECORD": (removed_with_record, "demo_alpha/cli.py"),
    "a removed RECORD": (lambda it: (it.info / "RECORD").unlink(), f"{INFO}/RECORD"),
    "an emptied RECORD": (lambda it: (it.info / "RECORD").write_bytes(b""), "demo_alpha/__init__.py"),
    "a module, with its line in RECORD": (edited_with_record, "demo_alpha/cli.py"),
    "a file that becomes a link": (linked_file, "demo_alpha/cli.py"),
    "a folder that becomes a link": (linked_folder, "demo_alpha/sub"),
    "lib64 that leads elsewhere": (linked_library, "lib64"),
    "a linked __pycache__": (
        lambda it: (it.site / "demo_alpha" / "__pycache__").symlink_to("/nowhere"),
        "demo_alpha/__pycache__",
    ),
    "a file that becomes a pipe": (piped, "demo_alpha/cli.py"),
    "an added distribution": (lambda it: (it.site / "evil-1.0.dist-info").mkdir(), "evil-1.0.dist-info"),
    "a second dist-info of one": (copied_info, "demo.alpha-1.0.dist-info/METADATA"),
    "a removed distribution": (
        lambda it: removed(it.site, "demo_beta*"),
        "the distribution demo-beta==1.0",
    ),
    "the system's packages": (
        lambda it: replace(it.environment / "pyvenv.cfg", "packages = false", "packages = true"),
        "pyvenv.cfg",
    ),
    "the system's packages, by a last word": (
        lambda it: setting(it, "include-system-site-packages=true\n"),
        "pyvenv.cfg",
    ),
    "the system's packages, and a file": (
        setting_and_file,
        "pyvenv.cfg",
    ),
    "another pyvenv.cfg beside the program": (lambda it: (it.bin / "pyvenv.cfg").touch(), "bin/pyvenv.cfg"),
    "an added program": (lambda it: (it.bin / "evil").write_text("#!/bin/sh\n"), "bin/evil"),
    "a program named like a way in": (lambda it: (it.bin / "activate-evil").touch(), "bin/activate-evil"),
    "a program in the interpreter's place": (other_program, "bin/python3"),
    "a link of the interpreter that leads elsewhere": (other_link, "bin/python3"),
    "a file beside the folders": (lambda it: (it.environment / "added").touch(), "added"),
    "a pipe in the manifest's place": (piped_manifest, envdigest.MANIFEST),
    "another marker": (lambda it: (it.environment / ".aml-ok-evil").touch(), ".aml-ok-evil"),
}


@pytest.mark.parametrize(("change", "name"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_each_tampering_changes_the_digest_and_is_named(ground: Ground, change: Change, name: str) -> None:
    change(ground)
    assert ground.digest() != ground.certified()
    report = ground.verify().expect(5).json()
    assert any(one["file"].endswith(name) for one in report["drift"]), report["drift"]


def forged(ground: Ground, make: Callable[[CodeType], CodeType]) -> None:
    """Write bytecode whose note of its source's time and size is right."""
    source = ground.site / "demo_alpha" / "cli.py"
    code = make(compile(source.read_bytes(), str(source), "exec", dont_inherit=True))
    found = source.stat()
    note = bytes(4) + int(found.st_mtime).to_bytes(4, "little") + found.st_size.to_bytes(4, "little")
    target = Path(importlib.util.cache_from_source(str(source)))
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(importlib.util.MAGIC_NUMBER + note + marshal.dumps(code))


def test_the_code_that_a_source_compiles_to_is_not_forged(ground: Ground) -> None:
    forged(ground, lambda code: code)
    ground.verify("strict").expect()


def evil(code: CodeType) -> CodeType:
    return compile("def main():\n    print('evil')\n", code.co_filename, "exec")


FORGERIES: dict[str, Callable[[CodeType], CodeType]] = {
    "other code": evil,
    "a stack too small": lambda code: code.replace(co_stacksize=code.co_stacksize - 1),
    "a constant": lambda code: code.replace(co_consts=(*code.co_consts, 1)),
    "another exception table": lambda code: code.replace(co_exceptiontable=b"\x80\x01\x02\x03"),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_forged_bytecode_is_named_by_strict(ground: Ground, forge: Callable[[CodeType], CodeType]) -> None:
    """Bytecode is in no digest, for each import writes it; what is forged would run in its source's place."""
    forged(ground, forge)
    assert ground.digest() == ground.certified()
    ground.verify().expect()
    (found,) = ground.verify("strict").expect(5).json()["drift"]
    assert found["file"].startswith("lib/")
    assert "__pycache__/cli." in found["file"]


def test_forged_bytecode_would_be_run(ground: Ground) -> None:
    """The forgery of these tests is one: otherwise they would prove nothing."""
    forged(ground, evil)
    env = ground.project.environment({"PYTHONDONTWRITEBYTECODE": "1"})
    assert run([ground.bin / "demo-alpha"], env=env, cwd=ground.project.folder).expect().out == "evil\n"


def zeroed_hashes(ground: Ground) -> None:
    lock = ground.project.folder / "pylock.toml"
    text = lock.read_text()
    first = text.partition('sha256 = "')[2][:64]
    lock.write_text(text.replace(first, "0" * 64))


def other_base(ground: Ground) -> None:
    (ground.bin / "python").unlink()
    (ground.bin / "python").symlink_to(FOREIGN)


def repeated_home(ground: Ground) -> None:
    path = ground.environment / "pyvenv.cfg"
    path.write_text(f"home = /usr/bin\n{path.read_text()}")


def mark(ground: Ground, name: str, value: object) -> None:
    path = marker(ground.environment)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), name: value}))


def other_interpreter(ground: Ground) -> None:
    known = json.loads(marker(ground.environment).read_bytes())["interpreter"]
    mark(ground, "interpreter", {**known, "path": FOREIGN})


TARGET = {"implementation": "cpython", "version": "3.11.99", "soabi": "x", "platform": "x"}
BESIDE: dict[str, tuple[Change, str]] = {
    "env.manifest.json, a byte": (
        lambda it: replace(it.environment / envdigest.MANIFEST, "demo_alpha/cli.py", "demo_alpha/clj.py"),
        envdigest.MANIFEST,
    ),
    "env.manifest.json, spelled otherwise": (
        lambda it: (it.environment / envdigest.MANIFEST).write_text(
            json.dumps(json.loads((it.environment / envdigest.MANIFEST).read_bytes()))
        ),
        envdigest.MANIFEST,
    ),
    "env.manifest.json, gone": (lambda it: (it.environment / envdigest.MANIFEST).unlink(), envdigest.MANIFEST),
    "the marker's digest": (lambda it: mark(it, "env_digest", "0" * 64), envdigest.MANIFEST),
    "the marker's packages": (lambda it: mark(it, "packages", []), "demo_beta-1.0.dist-info is not in the lock"),
    "the marker's target": (lambda it: mark(it, "target", TARGET), ".aml-ok-"),
    "the marker's key": (lambda it: mark(it, "key", "0" * 64), "the lock describes another environment"),
    "the marker's interpreter": (other_interpreter, "was replaced"),
    "the marker's path": (lambda it: mark(it, "path", "/elsewhere"), "/elsewhere"),
    "a marker of nothing": (lambda it: marker(it.environment).write_text('{"schema": 1}'), "cannot be verified"),
    "a marker that is no JSON": (lambda it: marker(it.environment).write_text("{"), "cannot be verified"),
    "pyvenv.cfg's home": (
        lambda it: (it.environment / "pyvenv.cfg").write_text("home = /usr\ninclude-system-site-packages = false\n"),
        "pyvenv.cfg names the home /usr",
    ),
    "pyvenv.cfg's home, by a first word": (repeated_home, "pyvenv.cfg names the home"),
    "the program of the interpreter": (other_base, "bin/python leads to"),
    "a line of RECORD for nothing": (
        lambda it: write_rows(it, [*rows_of(it), ["demo_alpha/nothing.py", "", ""]]),
        "demo_alpha/nothing.py is missing",
    ),
    "a line of RECORD for what lies outside": (
        lambda it: write_rows(it, [*rows_of(it), ["../../../../outside", "", ""]]),
        "is outside of the environment",
    ),
    "hashes in the lock": (zeroed_hashes, "edited or merged by hand"),
}


@pytest.mark.parametrize(("change", "told"), BESIDE.values(), ids=BESIDE)
def test_what_lies_beside_the_content_is_held_by_verify(ground: Ground, change: Change, told: str) -> None:
    """None of this is content: the digest is that of what is installed, but verify certifies nothing by it."""
    lock = (ground.project.folder / "pylock.toml").read_bytes()
    change(ground)
    assert ground.digest() == ground.certified()
    said = ground.verify().expect(5)
    (ground.project.folder / "pylock.toml").write_bytes(lock)
    assert told in said.err


def imported(ground: Ground) -> None:
    run([ground.bin / "demo-alpha"], env=ground.project.environment(), cwd=ground.project.folder).expect()
    assert [*ground.site.glob("demo_alpha/__pycache__/cli.*.pyc")]


def compiled(ground: Ground) -> None:
    argv: list[str | Path] = [
        ground.bin / "python",
        "-m",
        "compileall",
        "-q",
        "-o",
        "0",
        "-o",
        "1",
        "-o",
        "2",
        ground.site,
    ]
    run(argv, env=ground.project.environment(), cwd=ground.project.folder).expect()


def recompiled(ground: Ground) -> None:
    compiled(ground)
    removed(ground.site / "demo_alpha", "__pycache__")


def touched(ground: Ground) -> None:
    for path in ground.site.rglob("*.py"):
        path.touch()


def other_installer(ground: Ground) -> None:
    for name, text in {"INSTALLER": "pip\n", "REQUESTED": "", "direct_url.json": "{}", "uv_cache.json": "{}"}.items():
        (ground.info / name).write_text(text)


def hard_link(ground: Ground) -> None:
    target = ground.project.folder / "linked.py"
    target.unlink(missing_ok=True)
    target.hardlink_to(ground.site / "demo_alpha" / "cli.py")


def copied(ground: Ground) -> None:
    path = ground.site / "demo_alpha" / "cli.py"
    again = path.with_suffix(".again")
    shutil.copy(path, again)
    again.replace(path)


def chmod_all(ground: Ground) -> None:
    for path in ground.environment.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700)


def activated(ground: Ground) -> None:
    for path in ground.bin.glob("activate*"):
        path.write_text("another\n")


HARMLESS: dict[str, Change] = {
    "touched": touched,
    "an old time": lambda it: os.utime(it.site / SO, (1, 1)),
    "another mode": chmod_all,
    "imported": imported,
    "compiled, with all optimisations": compiled,
    "a folder of bytecode that is removed": recompiled,
    "an empty folder": lambda it: (it.site / "demo_alpha" / "empty" / "deep").mkdir(parents=True),
    "an empty folder for another interpreter": lambda it: (it.environment / "lib/python3.9/site-packages").mkdir(
        parents=True
    ),
    "ways in": activated,
    "ways in that are gone": lambda it: removed(it.bin, "activate*"),
    "uv's lock": lambda it: (it.environment / ".lock").write_text("1"),
    "a tag for back-ups": lambda it: (it.environment / "CACHEDIR.TAG").unlink(missing_ok=True),
    "another installer's notes": other_installer,
    "a hard link elsewhere": hard_link,
    "the same bytes in another inode": copied,
    "lib64 that is missing": lambda it: (it.environment / "lib64").unlink(missing_ok=True),
    "a program less that leads to the interpreter": lambda it: (it.bin / "python3").unlink(),
    "the order of lines in RECORD": lambda it: write_rows(it, rows_of(it)[::-1]),
    "another prompt": lambda it: setting(it, "prompt = another\n"),
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_is_harmless_changes_neither_the_digest_nor_the_verdict(ground: Ground, change: Change) -> None:
    change(ground)
    assert ground.digest() == ground.certified()
    assert ground.verify("strict").expect().json()["drift"] == []
