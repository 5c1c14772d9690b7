"""dirHash: what a folder's digest says is what the shell's own tools say, and what would make it a lie is refused."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aml_nox import store
from aml_nox.errors import AmlError, Code
from aml_nox.train import dirhash
from tests.support.busy import busy
from tests.support.processes import Started, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aml_nox.train.dirhash import Measured

PAGE = (Path(__file__).parents[1] / "docs" / "digests.md").read_text(encoding="utf-8").partition("## dirHash")[2]
ABC_XYZ = "10fe967c3a104d293d9259f1723ae2589386cedb9e254cb01cd9967aaf9e7c1f"
MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder to fill."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def measure(folder: Path) -> Measured:
    return dirhash.measure(folder, what="train.dataset", code=Code.MANIFEST)


def refusal(folder: Path) -> str:
    with pytest.raises(AmlError) as caught:
        measure(folder)
    assert caught.value.code is Code.MANIFEST
    assert caught.value.message.startswith("train.dataset: ")
    assert caught.value.hint
    assert caught.value.message.isprintable()
    return caught.value.message


def fill(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def by_shell(folder: Path) -> str:
    """Give what the line of docs/digests.md prints in a folder."""
    line = re.search(r"^find .*$", PAGE, re.MULTILINE)
    assert line
    return run(["sh", "-c", line[0]], env=dict(os.environ), cwd=folder).expect().out.split()[0]


# --- what the digest is


def test_the_digest_of_two_known_files_is_as_specified(folder: Path) -> None:
    fill(folder, {"xyz": b"data for xyz", "abc": b"data for abc"})
    assert measure(folder).digest == ABC_XYZ
    assert ABC_XYZ in PAGE


def test_the_shells_own_tools_give_the_same_digest(folder: Path) -> None:
    """The names are such as tools stumble over: blanks, quotes, what looks like an option, other scripts."""
    names = [
        "a b",
        " a",
        "é",
        "e/é",
        "日本語/データ",
        "-",
        "-n",
        "--help",
        "'",
        '"',
        "$x",
        "*",
        ".hidden",
        "a\tb",
        "\x1b[0m",
    ]
    names += ["a", "a.b/c", "a-b", "aa/b", "\U0001f40d", "\ue000", "~", "#", ";", "\x7f", "x" * 255, "empty"]
    fill(folder, {name: name.encode() * 3 for name in names} | {"empty": b"", "large": os.urandom(3 * MIB + 1)})
    (folder / "nothing" / "at all").mkdir(parents=True)
    assert measure(folder).digest == by_shell(folder)


def test_the_shells_own_tools_agree_about_many_files_too(folder: Path) -> None:
    """So many that xargs has to call sha256sum more than once."""
    fill(folder, {f"{number % 7}/{'x' * 60}{number}": str(number).encode() for number in range(3000)})
    assert measure(folder).digest == by_shell(folder)


def test_files_are_counted_and_named_in_order(folder: Path) -> None:
    fill(folder, {"b": b"12", "a/z": b"123", "a-": b"", "é": b"1"})
    measured = measure(folder)
    assert measured.names == (("a-", 0), ("a/z", 3), ("b", 2), ("é", 1))
    assert (measured.files, measured.size) == (4, 6)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\\\n\r\0"), min_size=1, max_size=5).filter(
    lambda name: name not in {".", ".."}
)


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(NAMES.map(str.lower), st.binary(max_size=9), min_size=1, max_size=4))
def test_whatever_the_names_the_digest_is_the_shells_or_there_is_none(
    tmp_path_factory: pytest.TempPathFactory, files: Mapping[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("law")
    fill(folder, files)
    with suppress(AmlError):
        assert measure(folder).digest == by_shell(folder)


# --- what changes it


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: os.utime(folder / "a", (0, 0)),
        lambda folder: (folder / "a").chmod(0o755),
        lambda folder: (folder / "empty").mkdir(),
        lambda folder: (folder / "a").write_bytes(b"1"),
        lambda folder: (folder / "b" / "c").rename(folder / "x") and (folder / "x").rename(folder / "b" / "c"),
    ],
    ids=["touched", "mode", "empty folder", "same bytes", "moved and back"],
)
def test_what_is_no_content_does_not_change_it(folder: Path, change: Callable[[Path], object]) -> None:
    fill(folder, {"a": b"1", "b/c": b"2"})
    before = measure(folder)
    change(folder)
    assert measure(folder).digest == before.digest
    assert dirhash.unchanged(folder, before)


def set_back(path: Path, data: bytes) -> None:
    """Write a file, and set its times to what they were."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a").write_bytes(b"3"),
        lambda folder: set_back(folder / "a", b"3"),
        lambda folder: (folder / "a").rename(folder / "d"),
        lambda folder: (folder / "a").unlink(),
        lambda folder: (folder / "d").write_bytes(b""),
        lambda folder: ((folder / "a").write_bytes(b"2"), (folder / "b" / "c").write_bytes(b"1")),
        lambda folder: (folder / "link").symlink_to("a"),
        shutil.rmtree,
    ],
    ids=["byte", "byte, times set back", "renamed", "removed", "added", "exchanged", "link", "gone"],
)
def test_what_is_content_changes_it(folder: Path, change: Callable[[Path], object]) -> None:
    fill(folder, {"a": b"1", "b/c": b"2"})
    before = measure(folder)
    change(folder)
    assert not dirhash.unchanged(folder, before)
    with suppress(AmlError):
        assert measure(folder).digest != before.digest


def test_a_copy_has_the_same_digest_and_a_link_to_the_folder_leads_to_it(folder: Path, tmp_path: Path) -> None:
    fill(folder, {"a": b"1", "b/c": b"2"})
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "link").symlink_to("data")
    assert measure(tmp_path / "copy").digest == measure(folder).digest
    assert measure(tmp_path / "link") == measure(folder)


def bytes_read() -> int:
    """Give how many bytes this process has read so far (Linux)."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/io")
def test_what_nobody_touched_is_not_read_again(folder: Path) -> None:
    fill(folder, {"a": bytes(8 * MIB)})
    measured, start = measure(folder), bytes_read()
    assert dirhash.unchanged(folder, measured)
    assert bytes_read() - start < MIB
    os.utime(folder / "a")
    assert dirhash.unchanged(folder, measured)
    assert bytes_read() - start >= 8 * MIB


# --- what is refused


def in_its_place(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Let something else stand where the folder is."""

    def change(folder: Path) -> None:
        shutil.rmtree(folder)
        make(folder)

    return change


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)  # the path of a socket must be short
        server.bind(path.name)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: (folder / "a\nb").touch(), r'"a\nb" has a backslash or a line end in its name'),
        (lambda folder: (folder / "a\rb").touch(), r'"a\rb" has a backslash or a line end in its name'),
        (lambda folder: (folder / "a\\b").touch(), r'"a\\b" has a backslash or a line end in its name'),
        (lambda folder: (folder / "a\nb").mkdir(), "has a backslash or a line end in its name"),
        (lambda folder: (folder / os.fsdecode(b"sub/caf\xe9")).touch(), r"the name b'sub/caf\xe9' is not UTF-8"),
        (lambda folder: os.mkfifo(folder / "sub/x"), '"sub/x" is neither a file nor a folder'),
        (lambda folder: listening(folder / "x"), '"x" is neither a file nor a folder'),
        (lambda folder: (folder / "x").symlink_to("sub/file"), '"x" is a link'),
        (lambda folder: (folder / "x").symlink_to("sub"), '"x" is a link'),
        (lambda folder: (folder / "x").symlink_to("nowhere"), '"x" is a link'),
        (lambda folder: (folder / "x").symlink_to("/etc/passwd"), '"x" is a link'),
        (lambda folder: (folder / "x\x1b[2J").symlink_to("x"), r'"x\u001b[2J" is a link'),
        (lambda folder: (folder / "sub/FILE").touch(), '"sub/FILE" and "sub/file" are one name on other systems'),
        (lambda folder: (folder / "Sub").mkdir(), '"Sub" and "sub" are one name'),
        (lambda folder: [(folder / name).touch() for name in ("\xe9", "e\u0301")], "are one name on other systems"),
        (lambda folder: [(folder / name).touch() for name in ("Stra\xdfe", "STRASSE")], "are one name"),
        (lambda folder: (folder / "sub/file").unlink(), "there is no file in it"),
        (shutil.rmtree, "there is no folder"),
        (in_its_place(lambda folder: folder.touch()), "is not a folder"),
        (in_its_place(lambda folder: folder.symlink_to("nowhere")), "there is no folder"),
        (in_its_place(lambda folder: folder.symlink_to("data")), 'data" '),
    ],
)
def test_what_cannot_be_hashed_honestly_is_refused_with_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], why: str
) -> None:
    monkeypatch.chdir(folder.parent)
    fill(folder, {"sub/file": b"1"})
    make(folder)
    assert why in refusal(folder)


@pytest.mark.parametrize(("name", "mode"), [("sub/file", 0o000), ("sub", 0o000), ("sub", 0o444), (".", 0o111)])
def test_what_cannot_be_read_is_refused_with_its_name(name: str, mode: int) -> None:
    with as_somebody(), tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        fill(folder, {"sub/file": b"1"})
        (folder / name).chmod(mode)
        why = refusal(folder)
        (folder / name).chmod(0o755)
    assert re.search(r'"(sub/file|sub/|\.)" cannot be read: Permission denied', why)


@contextmanager
def as_somebody() -> Iterator[None]:
    """Let root be nobody while the block runs: it could read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_pipe_or_a_link_that_came_to_stand_in_a_files_place_is_not_opened(folder: Path) -> None:
    """Opening a pipe waits for whoever writes into it: for ever."""
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/etc/hostname")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=name):
            store.open_plain(folder / name)


def append(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"x")


def add_another(path: Path) -> None:
    numbers = len(list(path.parent.iterdir()))
    path.with_name(f"new{numbers}").touch()


def replace_by_equal(path: Path) -> None:
    twin = path.with_name("twin")
    twin.touch()
    twin.replace(path)


@pytest.mark.parametrize("step", [append, add_another, lambda path: set_back(path, b"y"), replace_by_equal])
def test_a_folder_into_which_somebody_writes_meanwhile_has_no_digest(
    folder: Path, step: Callable[[Path], object]
) -> None:
    fill(folder, {"a": b"x", "z": bytes(64 * MIB)})
    with busy(lambda: step(folder / "a")):
        why = refusal(folder)
    assert "changed while it was read" in why


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sparse files")
def test_a_request_to_end_does_not_wait_for_a_large_file(folder: Path) -> None:
    """The file would take hours."""
    (folder / "large").touch()
    os.truncate(folder / "large", 4 << 40)
    script = """if True:
        from pathlib import Path
        from aml_nox import interrupts
        from aml_nox.errors import Code
        from aml_nox.train import dirhash
        with interrupts.noted():
            print("reading", flush=True)
            dirhash.measure(Path("data"), what="it", code=Code.MANIFEST)
    """
    with Started([sys.executable, "-c", script], env=dict(os.environ), cwd=folder.parent) as process:
        assert process.stdout
        assert process.stdout.readline() == "reading\n"
        process.terminate()
        process.finish().expect(143)
