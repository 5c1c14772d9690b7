"""State is written whole or not at all, a lock is free as soon as its holder is gone, what is the user's is left."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import stat
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from aml_nox import store
from aml_nox.errors import AmlError, Code
from aml_nox.screen import Screen
from aml_nox.store import Root
from tests.support.processes import Started, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KEY = "0123456789ab" + "0" * 52
SILENT = Screen(lambda _: None)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Give a root that is ready for use."""
    made = store.locate(tmp_path, {})
    store.prepare(made)
    return made


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def no_space_beyond(size: int) -> Iterator[None]:
    """Let this process write no file beyond a size, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- where things lie


@pytest.mark.parametrize(
    ("folder", "moved", "expected"),
    [
        ("p", None, "p/aml"),
        ("p", "", "p/aml"),
        ("p", "state/here", "p/state/here"),
        ("p", "../beside", "beside"),
        ("p/../p", None, "p/aml"),
    ],
)
def test_the_root_is_beside_the_manifest_and_can_be_moved(
    tmp_path: Path, folder: str, moved: str | None, expected: str
) -> None:
    (tmp_path / "p").mkdir()
    environ = {} if moved is None else {"AML_ROOT": moved}
    assert store.locate(tmp_path / folder, environ).path == tmp_path / expected


@pytest.mark.parametrize("moved", ["/", "..", ".", "../home", "../home/x/.."])
def test_a_root_that_holds_the_project_or_the_home_directory_is_refused(tmp_path: Path, moved: str) -> None:
    """It can be deleted whole: nothing of the user may lie in it."""
    for name in ("p", "home"):
        (tmp_path / name).mkdir()
    environ = {"AML_ROOT": moved, "HOME": str(tmp_path / "home")}
    with pytest.raises(AmlError) as caught:
        store.locate(tmp_path / "p", environ)
    assert caught.value.code is Code.STATE
    assert "AML_ROOT" in caught.value.message


@pytest.mark.parametrize("home", [{}, {"HOME": ""}, {"HOME": "/nonexistent"}])
def test_without_a_home_directory_the_root_is_where_it_always_is(tmp_path: Path, home: Mapping[str, str]) -> None:
    assert store.locate(tmp_path, home).path == tmp_path / "aml"


@pytest.mark.parametrize("character", [":", "\n"])
def test_a_path_that_neither_path_nor_a_script_can_hold_is_refused_before_anything_is_made(
    tmp_path: Path, character: str
) -> None:
    folder = tmp_path / f"a{character}b"
    folder.mkdir()
    for place, environ in ((folder, {}), (tmp_path, {"AML_ROOT": f"x{character}y"})):
        with pytest.raises(AmlError) as caught:
            store.locate(place, environ)
        assert caught.value.code is Code.STATE
        assert repr(character) in caught.value.message
        assert len(caught.value.lines()) == 2
    assert list(folder.iterdir()) == []


def test_records_hold_paths_inside_of_the_root_relative_and_others_as_they_are(root: Root) -> None:
    assert root.relative(root.envs / "a") == "envs/a"
    assert root.relative(Path("/usr/bin/uv")) == "/usr/bin/uv"


def test_the_root_keeps_itself_out_of_version_control_and_leaves_a_gitignore_of_the_user(root: Root) -> None:
    ignore = root.path / ".gitignore"
    assert ignore.read_text() == "*\n"
    ignore.write_text("mine\n")
    store.prepare(root)
    assert ignore.read_text() == "mine\n"


# --- writing


FAILURES = ["no space", "a folder in the way", "no folder"]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_write_that_fails_leaves_the_old_content_and_no_second_file(tmp_path: Path, failure: str) -> None:
    path = tmp_path / "record.json"
    if failure == "a folder in the way":
        path.mkdir()
    elif failure == "no folder":
        path = tmp_path / "nothing" / "record.json"
    else:
        path.write_text("old")
    with pytest.raises(OSError), no_space_beyond(1000):  # noqa: PT011 - which one is the system's choice
        store.write_bytes(path, b"x" * (2000 if failure == "no space" else 10))
    assert not path.is_file() or path.read_text() == "old"
    assert [child.name for child in tmp_path.iterdir()] == ([] if failure == "no folder" else ["record.json"])


def test_who_reads_while_it_is_written_reads_the_old_to_its_end(tmp_path: Path) -> None:
    """The new file takes the name of the old one, which is never opened for writing."""
    path = tmp_path / "record"
    store.write_bytes(path, b"old" * 100_000)
    with path.open("rb") as reader:
        begun = reader.read(1000)
        store.write_bytes(path, b"new")
        assert begun + reader.read() == b"old" * 100_000
    assert path.read_bytes() == b"new"


def test_two_who_write_the_same_file_leave_one_of_both(tmp_path: Path) -> None:
    path = tmp_path / "record"
    contents = [bytes([letter]) * 20_000 for letter in b"abcd"]
    threads = [threading.Thread(target=store.write_bytes, args=(path, content)) for content in contents * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o000, 0o644), (0o002, 0o644)])
def test_files_follow_the_umask_and_are_never_writable_for_others(tmp_path: Path, mask: int, mode: int) -> None:
    with umask(mask):
        store.write_bytes(tmp_path / "file", b"")
        store.write_program(tmp_path / "bin" / "program", b"")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "bin" / "program").stat().st_mode) == mode | ((mode & 0o444) >> 2)


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("mine")
    (tmp_path / "record").symlink_to("users")
    store.write_bytes(tmp_path / "record", b"ours")
    assert (tmp_path / "users").read_text() == "mine"
    assert (tmp_path / "record").read_bytes() == b"ours"


def test_a_scratch_file_is_there_for_its_block_alone(root: Root) -> None:
    with store.scratch(root, "é") as path:
        assert path.read_text() == "é"
    assert not path.exists()
    with suppress(KeyboardInterrupt), store.scratch(root, "") as path:
        raise KeyboardInterrupt
    assert not path.exists()


# --- records


GARBAGE = {
    "nothing": b"",
    "not JSON": b"{",
    "half of it": b'{"schema": 1, "a": ',
    "not UTF-8": b'{"schema": 1, "a": "\xff"}',
    "zeros": b"\0" * 4096,
    "a list": b"[1]",
    "a number": b"1",
    "another schema": b'{"schema": 2}',
    "no schema": b"{}",
    "deep": b"[" * 100_000,
    "deep and whole": b'{"schema": 1, "a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "a huge number": b'{"schema": 1, "a": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_a_record_that_is_not_ours_is_as_good_as_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(data)
    assert store.read_json(path) is None


@pytest.mark.parametrize("kind", ["missing", "folder", "behind a file", "pipe", "link"])
def test_a_record_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, kind: str) -> None:
    """A pipe is not waited for, nor a link followed: a job can put either in its record's place."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    store.write_json(tmp_path / "whole.json", {})
    (tmp_path / "link").symlink_to("whole.json")
    assert store.read_json(tmp_path / {"behind a file": "file/x"}.get(kind, kind)) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=30)  # each waits for the disk
@given(value=st.dictionaries(st.text().filter(lambda name: name != "schema"), VALUES))
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, value: dict[str, object]) -> None:
    path = tmp_path_factory.getbasetemp() / "record.json"
    store.write_json(path, value)
    assert store.read_json(path) == {**value, "schema": 1}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_is_no_strict_json_is_not_written(tmp_path: Path, value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        store.write_json(tmp_path / "record.json", {"a": value})
    assert list(tmp_path.iterdir()) == []


def test_observations_are_kept_up_to_a_number_and_one_that_vanishes_is_no_fault(root: Root) -> None:
    folder = root.runtime / "ready"
    (folder / "dangling.json").symlink_to("nothing")
    for number in range(store._READY_KEPT + 5):  # noqa: SLF001 - the number is theirs
        store.write_ready(folder / f"{number}.json", {"number": number})
    left = {path.name for path in folder.iterdir()}
    assert len(left) == store._READY_KEPT  # noqa: SLF001 - likewise
    assert f"{store._READY_KEPT + 4}.json" in left  # noqa: SLF001 - likewise
    assert "0.json" not in left


# --- locks


#: Holds the lock of the root in its first argument until it is killed.
HOLD = """
import sys
from pathlib import Path
from aml_nox import store
from aml_nox.screen import Screen
root = store.locate(Path(sys.argv[1]), {})
with store.lock(root, "it", what="it", wait=60, screen=Screen(print)):
    print("held", flush=True)
    sys.stdin.read() if sys.argv[2] == "ends" else __import__("threading").Event().wait()
"""


def hold(root: Root, how: str = "stays") -> Started:
    """Start a process that has the lock when this returns."""
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = Started([sys.executable, "-c", HOLD, root.folder, how], env=env, cwd=root.folder)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def take(root: Root, *, wait: float = 60, said: list[str] | None = None) -> None:
    with store.lock(root, "it", what="the thing", wait=wait, screen=Screen((said if said is not None else []).append)):
        pass


def note(root: Root) -> Path:
    return root.runtime / "locks" / "it.json"


def test_a_holder_leaves_a_note_of_itself_and_takes_it_away(root: Root) -> None:
    with store.lock(root, "it", what="it", wait=0, screen=SILENT):
        told = json.loads(note(root).read_text())
        assert told["pid"] == os.getpid()
        assert told.keys() == {"schema", "pid", "host", "since", "command"}
    assert not note(root).exists()
    take(root, wait=0)


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_lock_is_free_whatever_ends_its_block(root: Root, fault: type[BaseException]) -> None:
    with suppress(fault), store.lock(root, "it", what="it", wait=0, screen=SILENT):
        raise fault
    assert not note(root).exists()
    take(root, wait=0)


def test_one_at_a_time_also_among_threads(root: Root) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with store.lock(root, "it", what="it", wait=60, screen=SILENT):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_a_lock_is_free_as_soon_as_its_holder_is_killed(root: Root) -> None:
    process = hold(root)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert note(root).exists()
    take(root, wait=0)
    process.finish()


def test_who_waits_says_once_for_what_and_for_whom_and_gets_the_lock_then(root: Root) -> None:
    said: list[str] = []
    with hold(root) as process:
        waiter = threading.Thread(target=take, args=(root,), kwargs={"said": said})
        waiter.start()
        wait_until(lambda: bool(said), "the waiting one said so")
        os.kill(process.pid, signal.SIGKILL)
        waiter.join()
    (line,) = said
    assert line.startswith(f"waiting for the thing, held by pid {process.pid} on ")


NOTES = {
    "nothing": b"",
    "wrong types": b'{"schema": 1, "pid": [], "host": {}, "since": null, "command": 5}',
    "no members": b'{"schema": 1}',
    **GARBAGE,
}


@pytest.mark.parametrize("data", NOTES.values(), ids=NOTES)
def test_a_note_that_tells_nothing_changes_neither_who_waits_nor_who_does_not(root: Root, data: bytes) -> None:
    """The operating system's lock decides, not the text."""
    note(root).write_bytes(data)
    take(root, wait=0)
    with hold(root):
        note(root).write_bytes(data)
        with pytest.raises(AmlError) as caught:
            take(root, wait=0)
    assert caught.value.code is Code.BUSY
    assert caught.value.message.startswith("waited 0 s for the thing, held by ")


def test_a_lock_that_is_held_by_a_tool_without_a_note_is_respected(root: Root) -> None:
    with FileLock(root.runtime / "locks" / "it.lock"), pytest.raises(AmlError) as caught:
        take(root, wait=0)
    assert caught.value.code is Code.BUSY


# --- environments


def test_each_build_has_a_directory_of_its_own(root: Root) -> None:
    made = [store.new_environment(root, KEY) for _ in range(50)]
    assert store.environments(root, KEY) == sorted(made)
    assert len(set(made)) == 50
    assert all(path.parent == root.envs and path.name.startswith("0123456789ab-") for path in made)
    assert store.environments(root, "f" * 64) == []


def test_a_marker_is_read_where_it_is_whole_and_gone_when_it_is_retired(root: Root) -> None:
    environment = store.new_environment(root, KEY)
    assert store.read_marker(environment) is None
    marker = {"key": KEY, "path": "x", "created": "y", "target": {}, "interpreter": {}, "packages": []}
    store.write_json(store.marker_path(environment), marker)
    assert store.read_marker(environment) == {**marker, "schema": 1}
    assert store.count_environments(root) == 1
    store.retire(environment)
    store.retire(environment)
    assert store.read_marker(environment) is None
    assert environment.is_dir()


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "x"},
        {"target": None},
        {"interpreter": []},
        {"packages": {"a": 1}},
        {"packages": ["demo"]},
        {"packages": [{"name": 1, "version": "1"}]},
        {"packages": [{"name": "demo"}]},
        {"key": 5},
        {"created": ["now"]},
    ],
    ids=str,
)
def test_a_marker_with_a_member_of_the_wrong_type_is_none(root: Root, wrong: Mapping[str, object]) -> None:
    environment = store.new_environment(root, KEY)
    marker = {"key": KEY, "path": "x", "created": "y", "target": {}, "interpreter": {}, "packages": []}
    store.write_json(store.marker_path(environment), {**marker, **wrong})
    assert store.read_marker(environment) is None


# --- the link


def test_the_link_is_relative_and_says_whether_it_changed(root: Root) -> None:
    first, second = (store.new_environment(root, KEY) for _ in range(2))
    assert store.current(root, "default") is None
    assert store.switch(root, "default", first)
    assert not store.switch(root, "default", first)
    assert store.switch(root, "default", second)
    link = root.path / ".venv"
    assert link.readlink() == Path("envs") / second.name
    assert store.current(root, "default") == second
    assert store.current(root, "gpu") is None
    assert {path.name for path in root.path.iterdir()} == {".gitignore", ".venv", "envs", "runtime"}


def test_who_follows_the_link_while_it_is_switched_always_arrives(root: Root) -> None:
    both = [store.new_environment(root, KEY) for _ in range(2)]
    store.switch(root, "default", both[0])
    done = threading.Event()
    seen: set[Path] = set()

    def follow() -> None:
        while not done.is_set():
            seen.add((root.path / ".venv").resolve(strict=True))

    reader = threading.Thread(target=follow)
    reader.start()
    for _ in range(300):
        for environment in both:
            store.switch(root, "default", environment)
    done.set()
    reader.join()
    assert seen <= set(both)


@pytest.mark.parametrize("kind", ["folder", "full folder", "file"])
def test_what_is_no_link_is_left_alone(root: Root, kind: str) -> None:
    users = root.path / ".venv"
    if kind == "file":
        users.write_text("mine")
    else:
        (users / "bin").mkdir(parents=True) if kind == "full folder" else users.mkdir()
    with pytest.raises(AmlError) as caught:
        store.switch(root, "default", store.new_environment(root, KEY))
    assert caught.value.code is Code.STATE
    assert str(users) in caught.value.message
    assert users.read_text() == "mine" if kind == "file" else users.is_dir()
    assert {path.name for path in root.path.iterdir()} == {".gitignore", ".venv", "envs", "runtime"}


def test_a_link_to_anywhere_is_taken_over(root: Root, tmp_path: Path) -> None:
    """Only the link is ours: what it led to stays."""
    (tmp_path / "users").mkdir()
    (root.path / ".venv").symlink_to(tmp_path / "users")
    assert store.switch(root, "default", store.new_environment(root, KEY))
    assert (tmp_path / "users").is_dir()


# --- removing


def test_removing_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "file").touch()
    (tmp_path / "link").symlink_to("users")
    store.remove(tmp_path / "link")
    assert (tmp_path / "users" / "file").exists()
    assert not (tmp_path / "link").is_symlink()
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "inner").symlink_to("../users")
    store.remove(folder)
    assert not folder.exists()
    assert (tmp_path / "users" / "file").exists()
    store.remove(tmp_path / "nothing")


# --- words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left for /x/y"),
        (errno.EDQUOT, "no space left for /x/y"),
        (errno.EROFS, "/x/y cannot be written: Read-only file system"),
        (errno.EACCES, "/x/y cannot be written or read: Permission denied"),
        (errno.EPERM, "/x/y cannot be written or read: Operation not permitted"),
        (errno.ENAMETOOLONG, "/x/y: File name too long"),
        (errno.ENOTDIR, "/x/y: Not a directory"),
        (errno.EEXIST, "/x/y: File exists"),
        (errno.EISDIR, "/x/y: Is a directory"),
        (errno.ELOOP, "/x/y: Too many levels of symbolic links"),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
def test_what_a_user_can_mend_is_told_in_words_with_its_path_and_a_hint(number: int, words: str) -> None:
    told = store.state_error(OSError(number, os.strerror(number), "/x/y"))
    assert told
    assert (told.code, told.message) == (Code.STATE, words)
    assert told.hint


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EBADF, errno.EINVAL])
def test_what_is_a_bug_of_ours_is_not_explained_away(number: int) -> None:
    assert store.state_error(OSError(number, os.strerror(number), "/x")) is None


@pytest.mark.parametrize("name", [None, 3, b"/x", "", "relative", "/nothing/at/all", "/proc/1/cwd/x"])
def test_any_name_of_a_file_can_be_told(name: object) -> None:
    for number in (errno.EACCES, errno.ENOSPC, errno.EROFS, errno.EEXIST):
        assert store.state_error(OSError(number, os.strerror(number), name))


def test_a_file_of_somebody_else_is_told_with_its_owner_and_with_us(tmp_path: Path) -> None:
    told = store.state_error(PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "deep" / "file")))
    assert told
    assert told.hint.startswith(f"{tmp_path} belongs to ")
