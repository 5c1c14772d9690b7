"""The registry: only what is complete is listed, whatever was killed; it is a copy, and a copy of it serves as well."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import UserDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aml_nox import store
from aml_nox.errors import AmlError, Code
from aml_nox.store import Root
from aml_nox.train import dirhash, registry
from aml_nox.train.dataset import IoSpec, Port
from tests.support.busy import busy
from tests.support.processes import Started, run, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aml_nox.train.registry import Version

LATEST = "models/digits/latest"
#: How often the random ones run; `nox -s soak` sets more.
COUNT = int(os.environ.get("AML_TEST_COUNT", "3"))
MIB = 1 << 20
SPEC = IoSpec(
    inputs=(Port(name="image", type="number", shape=(28, 28)),), outputs=(Port(name="digit", type="integer", shape=()),)
)
#: Registers versions of one model, one after the other, each told when it begins and when it is done.
REGISTER = """if True:
    import sys
    from pathlib import Path
    from aml_nox import interrupts, store
    from aml_nox.screen import Screen
    from aml_nox.train import registry
    from aml_nox.train.dataset import IoSpec
    folder, *versions = sys.argv[1:]
    root = store.locate(Path(folder), {})
    with interrupts.noted():
        for version in versions:
            with store.lock(root, "model-digits", what="the model", wait=100, screen=Screen(lambda _: None)):
                print("begin", version, flush=True)
                registry.register(
                    root, name="digits", version=version, model=Path(folder, "model"),
                    io_spec=IoSpec(inputs=(), outputs=()), receipt={"metrics": {"accuracy": 0.9}},
                )
            print("done", version, flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Give a root that is ready for use, with a model beside it."""
    made = store.locate(tmp_path, {})
    store.prepare(made)
    fill(tmp_path / "model", {"weights.bin": bytes(range(256)), "parts/a b": b"1", "parts/é": b""})
    return made


def fill(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def register(root: Root, version: str = "v1", *, name: str = "digits", **metrics: Any) -> Version:  # noqa: ANN401 - any JSON
    receipt = {"metrics": metrics, "job": version}
    model = root.folder / "model"
    return registry.register(root, name=name, version=version, model=model, io_spec=SPEC, receipt=receipt)


def refusal(root: Root, code: Code, version: str = "v1", *, name: str = "digits") -> str:
    with pytest.raises(AmlError) as caught:
        register(root, version, name=name)
    assert caught.value.code is code
    assert caught.value.hint
    return caught.value.message


def names(versions: list[Version]) -> list[str]:
    return [f"{one.name} {one.version}" for one in versions]


def latest_link(root: Root) -> str:
    return str((root.path / LATEST).readlink())


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def whole(version: Version) -> bool:
    """Say whether a listed version has all that it promises."""
    measured = dirhash.measure(version.model, what="it", code=Code.STATE)
    records = [store.read_json(version.path / name) for name in ("io_spec.json", "receipt.json", "REGISTERED")]
    return measured.digest == version.digest and None not in records


# --- what a version is


def test_a_version_carries_its_files_its_contract_and_where_it_comes_from(root: Root) -> None:
    made = register(root, accuracy=0.97)
    assert made.path == root.path / "models" / "digits" / "v1"
    assert content(made.model) == content(root.folder / "model")
    assert made.digest == dirhash.measure(root.folder / "model", what="it", code=Code.STATE).digest
    assert json.loads((made.path / "io_spec.json").read_text()) == {"schema": 1, **SPEC.to_json()}
    assert json.loads((made.path / "receipt.json").read_text())["job"] == "v1"
    marker = json.loads((made.path / "REGISTERED").read_text())
    assert marker.keys() == {"schema", "name", "version", "digest", "files", "registered"}
    assert (marker["name"], marker["version"], marker["files"]) == ("digits", "v1", 3)
    assert made.metrics == {"accuracy": 0.97}
    assert sorted(path.name for path in made.path.iterdir()) == ["REGISTERED", "io_spec.json", "model", "receipt.json"]


#: As a job is named, and so the version that it registers.
JOB = "20260101T000000.000000Z-abcdef"


class Observer(UserDict[str, object]):
    """A receipt that looks into the registry when it is written."""

    def __init__(self, root: Root) -> None:
        super().__init__(metrics={})
        self.root = root
        self.seen: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[str]:
        self.seen.append((len(registry.versions(self.root)), len(registry.rubbish(self.root))))
        return super().__iter__()


def test_while_it_is_being_written_a_version_is_rubbish_and_not_listed(root: Root) -> None:
    receipt = Observer(root)
    model = root.folder / "model"
    registry.register(root, name="digits", version=JOB, model=model, io_spec=SPEC, receipt=receipt)
    assert set(receipt.seen) == {(0, 1)}
    assert (len(registry.versions(root)), len(registry.rubbish(root))) == (1, 0)


def test_the_latest_is_what_was_registered_last_whatever_the_names_say(root: Root) -> None:
    for version in ("b", "c", "a"):
        register(root, version)
        assert latest_link(root) == version
    register(root, "z", name="other")
    assert names(registry.versions(root, "digits")) == ["digits b", "digits c", "digits a"]
    assert names(registry.versions(root)) == ["digits b", "digits c", "digits a", "other z"]
    latest = registry.latest(root, "digits")
    assert latest is not None
    assert latest.version == "a"


def test_the_order_outlasts_a_clock_that_was_set_back(root: Root) -> None:
    marker = register(root, "old").path / "REGISTERED"
    now = json.loads(marker.read_bytes())["registered"].encode()
    marker.write_bytes(marker.read_bytes().replace(now, b"9998-12-31T23:59:59.999999Z"))
    for version in ("new", "newer"):
        assert register(root, version) == registry.latest(root, "digits")
    assert names(registry.versions(root)) == ["digits old", "digits new", "digits newer"]


def test_nothing_is_registered_where_nothing_is(root: Root) -> None:
    assert registry.versions(root) == []
    assert registry.latest(root, "digits") is None
    assert registry.rubbish(root) == []


def test_what_is_written_into_the_jobs_directory_later_does_not_reach_the_model(root: Root) -> None:
    made = register(root)
    with (root.folder / "model" / "weights.bin").open("r+b") as stream:
        stream.write(b"changed")
    assert whole(made)


def test_a_second_try_finds_the_version_and_mends_the_link_alone(root: Root) -> None:
    made = register(root, accuracy=0.9)
    (root.path / "models" / "digits" / "latest").unlink()
    (root.folder / "model" / "weights.bin").write_bytes(b"another")
    again = register(root, accuracy=0.1)
    assert again == made
    assert latest_link(root) == "v1"
    register(root, "v2")
    assert register(root) == made
    assert latest_link(root) == "v2"


# --- what is refused


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (shutil.rmtree, "there is no folder"),
        (lambda model: [path.unlink() for path in model.rglob("*") if path.is_file()], "there is no file in it"),
        (lambda model: (model / "parts" / "x").symlink_to("a b"), '"parts/x" is a link'),
        (lambda model: (model / "x").symlink_to("/etc/passwd"), '"x" is a link'),
        (
            lambda model: model.rename(model.with_name("m")).with_name("model").symlink_to("m"),
            "its directory is a link",
        ),
        (lambda model: os.mkfifo(model / "x"), '"x" is neither a file nor a folder'),
        (lambda model: (model / "a\nb").touch(), "line end in its name"),
    ],
)
def test_a_model_that_cannot_be_kept_honestly_is_refused_before_anything_is_written(
    root: Root, change: Callable[[Path], object], why: str
) -> None:
    change(root.folder / "model")
    assert why in refusal(root, Code.JOB_FAILED)
    assert not (root.path / "models").exists()


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "/a", "-a", "a.", "latest", "a b", "a\n", "\x1b", "x" * 129])
def test_a_name_is_one_folder_and_nothing_else(root: Root, text: str) -> None:
    assert "is no name for a model or its version" in refusal(root, Code.USAGE, text)
    assert "is no name for a model or its version" in refusal(root, Code.USAGE, name=text)
    assert not (root.path / "models").exists()


OURS = ("models", "models/digits", "models/digits/v1")


@pytest.mark.parametrize(
    ("place", "kind"),
    [*((place, kind) for place in OURS for kind in ("file", "link")), *((LATEST, kind) for kind in ("file", "folder"))],
)
def test_what_the_user_put_where_ours_belongs_is_left_alone(root: Root, place: str, kind: str) -> None:
    path, theirs = root.path / place, root.folder / "theirs"
    theirs.mkdir()
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(theirs)
    assert str(path) in refusal(root, Code.STATE)
    assert os.path.lexists(path)
    assert list(theirs.iterdir()) == []


def test_a_version_that_somebody_copied_under_another_name_is_theirs(root: Root) -> None:
    made = register(root)
    shutil.copytree(made.path, made.path.with_name("mine"))
    shutil.copytree(made.path.parent, root.path / "models" / "also-mine")
    assert names(registry.versions(root)) == ["digits v1"]
    assert registry.rubbish(root) == []
    assert "REGISTERED of something else" in refusal(root, Code.STATE, "mine")
    assert whole(made)


def test_a_model_that_changes_meanwhile_is_refused_and_nothing_of_it_stays(root: Root) -> None:
    """Whether it is found while it is measured or after it was copied."""
    fill(root.folder / "model", {"z": bytes(32 * MIB)})
    path = root.folder / "model" / "weights.bin"
    with busy(lambda: path.write_bytes(os.urandom(9))):
        assert "changed while it was" in refusal(root, Code.JOB_FAILED)
    assert registry.versions(root) == []
    assert registry.rubbish(root) == []
    assert not (root.path / "models" / "digits" / "v1").exists()


def test_a_model_that_changes_after_it_was_measured_is_refused_too(root: Root) -> None:
    """The copy is held against what was measured: here the source changes as soon as its copy is begun."""
    fill(root.folder / "model", {"a": bytes(32 * MIB)})
    target = root.path / "models" / "digits" / "v1" / "model" / "a"
    last = root.folder / "model" / "weights.bin"

    def change() -> None:
        if target.exists():
            last.write_bytes(b"changed")

    with busy(change):
        assert "changed while it was registered" in refusal(root, Code.JOB_FAILED)
    assert not (root.path / "models" / "digits" / "v1").exists()
    assert whole(register(root))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "name": "digits"}'])
def test_a_version_without_a_right_marker_is_not_listed(root: Root, text: str) -> None:
    made = register(root)
    (made.path / "REGISTERED").write_text(text)
    assert registry.versions(root) == []


@pytest.mark.parametrize(("field", "value"), [("registered", "soon"), ("files", "3"), ("digest", None), ("name", "x")])
def test_a_marker_with_a_wrong_value_is_no_marker(root: Root, field: str, value: object) -> None:
    made = register(root)
    marker = json.loads((made.path / "REGISTERED").read_text())
    (made.path / "REGISTERED").write_text(json.dumps(marker | {field: value}))
    assert registry.versions(root) == []


@pytest.mark.parametrize("receipt", ["", '{"schema": 1}', '{"schema": 1, "metrics": 3}'])
def test_a_version_whose_receipt_was_lost_has_no_metrics(root: Root, receipt: str) -> None:
    made = register(root, accuracy=0.9)
    (made.path / "receipt.json").write_text(receipt)
    (found,) = registry.versions(root)
    assert found.metrics == {}


# --- what kills leave


def start(root: Root, *versions: str) -> Started:
    return Started([sys.executable, "-c", REGISTER, root.folder, *versions], env=dict(os.environ), cwd=root.folder)


def done(out: str) -> list[str]:
    return [line.split()[1] for line in out.splitlines() if line.startswith("done")]


@pytest.fixture
def typical(root: Root) -> float:
    """Give how long it takes here and now to register a model of many files, to choose instants from."""
    fill(root.folder / "model", {f"part{number}": os.urandom(999) for number in range(150)})
    begin = time.monotonic()
    with start(root, "first") as process:
        process.finish().expect()
    return time.monotonic() - begin


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(COUNT))
def test_killed_at_a_random_instant_only_complete_versions_are_listed_and_the_next_try_repairs(
    root: Root, typical: float, seed: int
) -> None:
    instant = random.Random(seed).uniform(0, typical)  # noqa: S311 - nothing secret
    with start(root, "second", "third") as process:
        end = time.monotonic() + instant
        while time.monotonic() < end and process.poll() is None:
            assert all(map(whole, registry.versions(root)))
        process.kill_tree()
        assert process.stdout
        finished = done(process.stdout.read())
    listed = [one.version for one in registry.versions(root)]
    assert all(map(whole, registry.versions(root)))
    assert set(finished) <= set(listed)
    with start(root, "second", "third") as process:
        process.finish().expect()
    assert names(registry.versions(root)) == ["digits first", "digits second", "digits third"]
    assert all(map(whole, registry.versions(root)))
    assert latest_link(root) == "third"
    for path in registry.rubbish(root):
        store.remove(path)
    assert sorted(path.name for path in (root.path / "models" / "digits").iterdir()) == sorted(
        ["first", "second", "third", "latest"]
    )


@pytest.mark.slow
def test_killed_in_the_middle_of_the_copy_it_is_rubbish_until_it_is_tried_again(root: Root) -> None:
    (root.folder / "model" / "zz").touch()
    os.truncate(root.folder / "model" / "zz", 256 * MIB)
    half = root.path / "models" / "digits" / JOB
    with start(root, JOB) as process:
        wait_until((half / "model").exists, "the copy was begun")
        os.kill(process.pid, signal.SIGKILL)
    assert registry.versions(root) == []
    assert registry.rubbish(root) == [half]
    assert whole(register(root, JOB))
    assert registry.rubbish(root) == []


@pytest.mark.slow
def test_asked_to_end_in_the_middle_it_leaves_nothing(root: Root) -> None:
    (root.folder / "model" / "zz").touch()
    os.truncate(root.folder / "model" / "zz", 256 * MIB)
    half = root.path / "models" / "digits" / JOB
    with start(root, JOB) as process:
        wait_until((half / "model").exists, "the copy was begun")
        process.terminate()
        run_ = process.finish()
    assert run_.code in {0, 143}  # it may just have been done
    assert registry.rubbish(root) == []
    assert names(registry.versions(root)) == ([f"digits {JOB}"] if half.exists() else [])


def test_what_killed_registrations_left_is_found_and_nothing_else(root: Root) -> None:
    """What a user keeps there is theirs: of another name, or with something in it that is none of ours."""
    made = register(root)
    folder = made.path.parent
    (folder / JOB / "model").mkdir(parents=True)
    (folder / "latest.0123abcd").symlink_to(JOB)
    (folder / "latest.txt").touch()
    (folder / "theirs").symlink_to("half")
    (folder.parent / "linked").symlink_to("digits")
    (folder / "notes").mkdir()
    (folder / JOB.replace("2026", "2025")).mkdir()
    (folder / JOB.replace("2026", "2025") / "thesis.txt").touch()
    assert registry.rubbish(root) == [folder / JOB, folder / "latest.0123abcd"]
    assert names(registry.versions(root)) == ["digits v1"]


# --- several at once, and copies


@pytest.mark.slow
def test_ten_at_once_under_the_lock_are_ten_versions_and_the_latest_is_the_last(root: Root) -> None:
    wanted = [f"v{number}" for number in range(10)]
    processes = [start(root, version) for version in wanted]
    runs = [process.finish().expect() for process in processes]
    found = registry.versions(root, "digits")
    assert sorted(one.version for one in found) == wanted == sorted(done("".join(one.out for one in runs)))
    assert all(map(whole, found))
    assert len({one.registered for one in found}) == len(wanted)
    assert latest_link(root) == found[-1].version


def without_links(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=lambda folder, all_: {one for one in all_ if Path(folder, one).is_symlink()})


@pytest.mark.parametrize("copy", [["cp", "-r"], ["cp", "-rL"], without_links], ids=["links", "followed", "no links"])
def test_a_copied_root_lists_and_serves_the_same(
    root: Root, tmp_path: Path, copy: list[str] | Callable[[Path, Path], None]
) -> None:
    before = [register(root, version, accuracy=0.5) for version in ("a", "b")]
    there = tmp_path / "there"
    there.mkdir()
    if callable(copy):
        copy(root.path, there / "aml")
    else:
        run([*copy, root.path, there / "aml"], env=dict(os.environ), cwd=tmp_path).expect()
    shutil.rmtree(root.path)
    found = registry.versions(store.locate(there, {}))
    assert [(one.version, one.digest, one.registered, one.metrics) for one in found] == [
        (one.version, one.digest, one.registered, one.metrics) for one in before
    ]
    assert all(map(whole, found))
    assert registry.rubbish(store.locate(there, {})) == []
    assert content(found[-1].model) == content(root.folder / "model")
