"""What an environment declares: files followed, one normal form, and what may not stand in a file."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pip._internal.req.req_file import preprocess as lines_of_pip

from aml_nox import manifest
from aml_nox.errors import AmlError, Code
from aml_nox.requirements import Declared, LocalWheel, SourceFile, declare, logical_lines, placed
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable

HASH = "sha256:" + "0a" * 32
OTHER_HASH = "sha256:" + "1b" * 32


def project(folder: Path, environment: str = "", **files: str | bytes) -> Path:
    """Write an aml.toml with these lines of ``[environment]``, and files: ``reqs__base`` is reqs/base.txt."""
    for name, data in files.items():
        path = folder / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    path = folder / "aml.toml"
    path.write_text(f'[python]\nversion = "3.11"\n[environment]\n{environment}\n', encoding="utf-8")
    return path


def declared(folder: Path, environment: str = "", **files: str | bytes) -> Declared:
    return declare(manifest.load(project(folder, environment, **files)))


def of_file(folder: Path, text: str | bytes) -> Declared:
    return declared(folder, 'requirements-files = ["r.txt"]', r=text)


def refused(folder: Path, text: str | bytes, **files: str | bytes) -> list[str]:
    """Give the faults of the requirement file r.txt, and of what it includes."""
    with pytest.raises(AmlError) as caught:
        declared(folder, 'requirements-files = ["r.txt"]', r=text, **files)
    assert caught.value.code is Code.MANIFEST
    return caught.value.message.split("\n")


def texts(lines: Iterable[object]) -> list[str]:
    return [line.text for line in lines]  # type: ignore[attr-defined]


# One normal form -----------------------------------------------------------------------------------------------------


def test_manifest_and_files_are_one_declaration_sorted_and_unique(tmp_path: Path) -> None:
    found = declared(
        tmp_path,
        'requirements = ["NumPy >=2", "a"]\nconstraints = ["scipy<2"]\nrequirements-files = ["reqs/base.txt"]',
        reqs__base="# base\nnumpy>=2 # again\nB==1\n-c c.txt\n",
        reqs__c="scipy <2\nnumpy<3",
    )
    assert [(line.text, line.origin) for line in found.requirements] == [
        ("a", "aml.toml"),
        ("b==1", "reqs/base.txt:3"),
        ("numpy>=2", "aml.toml"),
    ]
    assert [(line.text, line.origin) for line in found.constraints] == [
        ("numpy<3", "reqs/c.txt:2"),
        ("scipy<2", "aml.toml"),
    ]


def test_a_named_environment_declares_what_the_base_does_and_its_own(tmp_path: Path) -> None:
    path = project(tmp_path, 'requirements = ["a"]\n[environments.gpu]\nrequirements = ["b"]\nconstraints = ["c<1"]')
    found = manifest.load(path)
    assert texts(declare(found).requirements) == ["a"]
    assert texts(declare(found, "gpu").requirements) == ["a", "b"]
    assert texts(declare(found, "gpu").constraints) == ["c<1"]


def test_hashes_are_sorted_and_those_of_equal_lines_are_one_set(tmp_path: Path) -> None:
    line = f"a==1 --hash={OTHER_HASH} \\\n  --hash {HASH.replace('0a', '0A')}\n"
    found = of_file(tmp_path, line + f"A == 1 --hash={HASH}\nb==1")
    assert [(each.text, each.hashes) for each in found.requirements] == [
        ("a==1", (HASH, OTHER_HASH)),
        ("b==1", ()),
    ]


class Spelling(NamedTuple):
    """One requirement, and ways to write it."""

    normal: str
    written: tuple[str, ...]


SPELLINGS = (
    Spelling("numpy<3,>=2", ("numpy>=2,<3", "NumPy >= 2 , < 3", "numpy<3,>=2,<3", "numpy(>=2,<3)")),
    Spelling("foo-bar[a,b-c]", ("foo_bar[a,b-c]", "Foo.Bar[B_C, a]", "foo--bar [a,b-c,a]")),
    Spelling('x==1; os_name == "nt"', ("x==1; os_name=='nt'", 'X == 1 ;os_name == "nt"')),
    Spelling("y~=1.4", ("y~=1.4", "Y ~= 1.4")),
)
FILLS = st.sampled_from(["", "\n", "# comment\n", "  # -e .\n", "\t\n"])
TAILS = st.sampled_from(["", " # why", "  ", " \\\n"])


@st.composite
def files(draw: st.DrawFn) -> str:
    lines = [f"{draw(FILLS)}{draw(st.sampled_from(each.written))}{draw(TAILS)}\n" for each in SPELLINGS]
    return "".join(draw(st.permutations([*lines, draw(st.sampled_from(lines))])))


@given(
    text=files(),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]),
)
def test_order_spelling_spacing_and_encoding_of_a_file_do_not_show(
    tmp_path_factory: pytest.TempPathFactory, text: str, line_end: str, encoding: str
) -> None:
    found = of_file(tmp_path_factory.mktemp("project"), text.replace("\n", line_end).encode(encoding))
    assert texts(found.requirements) == sorted(each.normal for each in SPELLINGS)


# Lines ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("# a\n  # b\n\n", []),
        ("a # b", [(1, "a")]),
        ("a#b", [(1, "a#b")]),
        ("a\\\n>=1", [(1, "a>=1")]),
        ("a \\\r\n >=1\r\nb", [(1, "a  >=1"), (3, "b")]),
        ("a \\\n# comment\nb", [(1, "a"), (3, "b")]),
        ("a\\\n# comment", [(1, "a")]),
        ("# comment \\\na", [(2, "a")]),
        ("a # comment \\\nb", [(1, "a")]),
        ("\\\n\\\na\n", [(1, "a")]),
        ("a\\", [(1, "a")]),
        ("a\x0bb\u2028c", [(1, "a\x0bb\u2028c")]),
    ],
)
def test_lines_are_joined_and_comments_dropped_as_pip_does(text: str, lines: list[tuple[int, str]]) -> None:
    assert list(logical_lines(text)) == lines


LINES = st.builds("{}{}".format, st.text(st.sampled_from("ab #\t"), max_size=5), st.sampled_from(["", "\\"]))


@given(st.lists(LINES, max_size=6).map("\n".join))
def test_pip_itself_reads_the_same_lines(text: str) -> None:
    assert [line for _, line in logical_lines(text)] == [line for _, line in lines_of_pip(text)]


# Includes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    [
        "-r sub/x.txt",
        "-rsub/x.txt",
        "--requirement sub/x.txt",
        "--requirement=sub/x.txt",
        "-r 'sub/x.txt'",
        "-r  sub/../sub/x.txt # c",
    ],
)
def test_a_file_includes_another_relative_to_itself(tmp_path: Path, option: str) -> None:
    found = declared(
        tmp_path,
        'requirements-files = ["reqs/r.txt"]',
        reqs__r=option,
        reqs__sub__x="a\n-r ../../top.txt",
        top="b",
    )
    assert texts(found.requirements) == ["a", "b"]
    assert [file.path for file in found.files] == ["reqs/r.txt", "reqs/sub/x.txt", "top.txt"]


@pytest.mark.parametrize("option", ["-c c.txt", "-cc.txt", "--constraint c.txt", "--constraint=c.txt"])
def test_what_a_constraint_file_includes_are_constraints(tmp_path: Path, option: str) -> None:
    found = declared(tmp_path, 'requirements-files = ["r.txt"]', r=f"a\n{option}", c="b<1\n-r d.txt", d="c<1")
    assert (texts(found.requirements), texts(found.constraints)) == (["a"], ["b<1", "c<1"])


def test_files_and_wheels_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, name, "1").name for name in ("c", "a", "b")]
    text = "".join(f"{name[0]} @ ./{name}\n" for name in wheels)
    found = declared(tmp_path, 'requirements-files = ["z.txt", "y.txt"]', z=text + "-r a.txt", y="", a="")
    assert [file.path for file in found.files] == ["a.txt", "y.txt", "z.txt"]
    assert [wheel.name for wheel in found.wheels] == ["a", "b", "c"]


def test_every_file_is_named_with_the_digest_of_its_bytes(tmp_path: Path) -> None:
    found = declared(tmp_path, 'requirements-files = ["r.txt"]', r="-r s.txt\r\n", s="# only a comment")
    assert found.files == tuple(
        SourceFile(path=path, sha256=hashlib.sha256(data).hexdigest())
        for path, data in (("r.txt", b"-r s.txt\r\n"), ("s.txt", b"# only a comment"))
    )


def test_a_cycle_is_read_once_in_each_role(tmp_path: Path) -> None:
    found = declared(tmp_path, 'requirements-files = ["r.txt"]', r="a\n-r s.txt", s="b\n-c r.txt\n-r ./r.txt")
    assert (texts(found.requirements), texts(found.constraints)) == (["a", "b"], ["a", "b"])


def test_a_long_chain_of_files_is_read_to_its_end(tmp_path: Path) -> None:
    chain = {f"f{number}": f"-r f{number + 1}.txt" for number in range(1500)}
    found = declared(tmp_path, 'requirements-files = ["f0.txt"]', **chain, f1500="a")
    assert texts(found.requirements) == ["a"]


def test_a_missing_file_is_named_with_the_line_that_includes_it(tmp_path: Path) -> None:
    told = refused(tmp_path, "a\n-r sub/none.txt\n-c https://files.example.com/c.txt\n-r")
    assert told[0].startswith("r.txt:3: -c needs the path of a file; ")
    assert told[1].startswith("r.txt:4: -r needs the path of a file; ")
    assert told[2] == 'r.txt:2: there is no file "sub/none.txt"; a path is relative to the file that names it'


def test_a_file_that_vanished_since_the_manifest_was_read_is_named(tmp_path: Path) -> None:
    found = manifest.load(project(tmp_path, 'requirements-files = ["r.txt"]', r=""))
    (tmp_path / "r.txt").unlink()
    with pytest.raises(AmlError, match=r'^aml\.toml: there is no file "r\.txt"; '):
        declare(found)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a file that nobody can read from its start")
def test_a_file_that_cannot_be_read_is_named_with_the_line_that_includes_it(tmp_path: Path) -> None:
    [told] = refused(tmp_path, "\n-r /proc/self/mem")
    assert told.startswith('r.txt:2: "/proc/self/mem" cannot be read: ')


def test_a_path_is_followed_as_the_system_does_where_a_link_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "shared" / "deep").mkdir(parents=True)
    (tmp_path / "shared" / "common.txt").write_text("right")
    (tmp_path / "shared" / "deep" / "r.txt").write_text("-r ../common.txt")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "common.txt").write_text("wrong")
    (folder / "reqs").symlink_to(tmp_path / "shared" / "deep")
    assert texts(declared(folder, 'requirements-files = ["reqs/r.txt"]').requirements) == ["right"]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("a/../b/./c", "b/c"),
        ("../x/c", "../x/c"),
        ("../project/c", "c"),
        ("{folder}/a/c", "a/c"),
        ("{outside}/c", "{outside}/c"),
        ("{link}/c", "c"),
    ],
)
def test_a_path_is_placed_from_the_folder_so_that_the_project_can_move(tmp_path: Path, path: str, place: str) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    names = {"folder": folder, "outside": tmp_path / "outside", "link": tmp_path / "link"}
    assert placed(folder, folder / path.format(**names) if path[0] == "{" else Path(path)) == place.format(**names)


# What may not stand in a file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name", "instead"),
    [
        ("-i https://me:hunter2@index.example.com/simple", "-i", "url in [index]"),
        ("-ihttps://me:hunter2@index.example.com/simple", "-i", "url in [index]"),
        ("--index-url=https://me:hunter2@index.example.com", "--index-url", "url in [index]"),
        ("--extra-index-url https://me:hunter2@index.example.com", "--extra-index-url", "extra in [index]"),
        ("--no-index", "--no-index", "url in [index]"),
        ("-f wheels", "-f", "environment.requirements"),
        ("--find-links wheels", "--find-links", "environment.requirements"),
        ("--no-binary :all:", "--no-binary", "allow-build"),
        ("--only-binary=:all:", "--only-binary", "allow-build"),
        ("--prefer-binary", "--prefer-binary", "allow-build"),
        ("--pre", "--pre", "environment.requirements"),
        ("--trusted-host h", "--trusted-host", "[index]"),
        ("--require-hashes", "--require-hashes", "always on"),
        ("-e .", "-e", "editable in [environment]"),
        ("-e.[x]", "-e", "editable in [environment]"),
        ("--editable=./x", "--editable", "editable in [environment]"),
        ("--use-feature=x", "--use-feature", "only -r, -c and --hash"),
        ("-", "-", "only -r, -c and --hash"),
        ('a --config-settings="x=y"', "--config-settings", "only -r, -c and --hash"),
        (f"a==1 --hash={HASH} --no-binary a", "--no-binary", "allow-build"),
    ],
)
def test_an_option_is_refused_by_name_with_the_key_to_use(tmp_path: Path, line: str, name: str, instead: str) -> None:
    [told] = refused(tmp_path, f"\n{line}")
    assert told.startswith(f"r.txt:2: {name} is not allowed in a requirement file; ")
    assert instead in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    ("line", "needle"),
    [
        ("a==${VERSION}", "variables are not expanded"),
        ("-r ${FOLDER}/x.txt", "variables are not expanded"),
        ("./wheels/a-1-py3-none-any.whl", "NAME @ ./wheels/x.whl"),
        ("https://me:hunter2@files.example.com/a-1-py3-none-any.whl", "NAME @"),
        ("a @ https://me:hunter2@files.example.com/a-1-py3-none-any.whl", "user name or password"),
        ("a @ git+ssh://me:hunter2@code.example.com/a", "version control"),
        ("a==1 --hash=sha512:00", "only sha256"),
        ("a==1 --hash=md5:00", "only sha256"),
        ("a==1 --hash=sha256:00", "64 hexadecimal digits"),
        ("a==1 --hash=sha256", "malformed"),
        ("a==1 --hash", "malformed"),
        (f"a==1 --hash={HASH} b", "one requirement a line"),
        ("a b", "not a PEP 508 requirement"),
        ("a\x0bb", "control character"),
        ("a\x00", "control character"),
        ("-r a\x00b.txt", "control character"),
        ("-r 'a", 'there is no file "\'a"'),
    ],
)
def test_a_line_that_cannot_be_locked_is_refused(tmp_path: Path, line: str, needle: str) -> None:
    [told] = refused(tmp_path, f"# first\n{line}")
    assert told.startswith("r.txt:2: ")
    assert needle in told
    assert ";" in told
    assert "hunter2" not in told


def test_all_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    told = refused(tmp_path, "--pre\n-r s.txt\na b\nw @ ./w-1-py3-none-any.whl", s=b"\n\xff\n-r none.txt")
    assert [line.split(": ")[0] for line in told] == ["r.txt:1", "r.txt:3", "s.txt:2", "r.txt:4"]
    assert "not UTF-8 (byte 1); save it as UTF-8" in told[2]


# Local wheels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "written", "text", "path"),
    [
        ("wheels", "wheels", "./wheels", "wheels"),
        ("wheels", "./x/../wheels/.", "./wheels", "wheels"),
        ("with space", "./with space", "./with space", "with space"),
        ("100%20", "./100%20", "./100%20", "100%20"),
        ("a#b?", "./a#b?", "./a#b?", "a#b?"),
        ("w", "file://{folder}/w", "./w", "w"),
        ("w", "{folder}/w", "./w", "w"),
        ("a b%20#?", "file://{folder}/a%20b%2520%23%3F", "./a b%20#?", "a b%20#?"),
        ("../out side", "../out side", "../out side", "../out side"),
        ("../out side", "file://{folder}/../out%20side", "file://{outside}/out%20side", "{outside}/out side"),
    ],
)
def test_a_local_wheel_is_found_from_the_manifest_and_named_by_content(
    tmp_path: Path, folder: str, written: str, text: str, path: str
) -> None:
    root = tmp_path / "project"
    wheel = root / folder
    wheel.mkdir(parents=True)
    made = make_wheel(wheel, "alpha", "1.0")
    names = {"folder": root, "outside": tmp_path}
    line = f"Alpha @ {written.format(**names)}/{made.name}"
    found = declared(root, 'requirements-files = ["reqs/r.txt"]', reqs__r=line)
    place = f"{path.format(**names)}/{made.name}"
    assert texts(found.requirements) == [f"alpha @ {text.format(**names)}/{made.name}"]
    assert found.wheels == (LocalWheel(name="alpha", path=place, sha256=hashlib.sha256(made.read_bytes()).hexdigest()),)
    assert (root / place).samefile(made)


@pytest.mark.parametrize("folder", ["wheels", "with space", "100%20", "../out"])
def test_uv_finds_the_wheel_where_we_do(tmp_path: Path, uv_program: Path, folder: str) -> None:
    root = tmp_path / "project"
    (root / folder).mkdir(parents=True)
    made = make_wheel(root / folder, "alpha", "1.0")
    found = declared(root, f'requirements = ["alpha @ ./{folder}/{made.name}"]')
    command = [
        str(uv_program),
        "pip",
        "compile",
        "-",
        "--offline",
        "--no-config",
        "--format",
        "pylock.toml",
        "--no-header",
    ]
    done = subprocess.run(
        command, input=found.requirements[0].text, cwd=root, capture_output=True, text=True, check=True
    )
    archive = tomllib.loads(done.stdout)["packages"][0]["archive"]
    assert archive == {"path": found.wheels[0].path, "hashes": {"sha256": found.wheels[0].sha256}}


def test_a_missing_wheel_is_named_with_the_line_that_asks_for_it(tmp_path: Path) -> None:
    wheel = "@ ./none/{}-1-py3-none-any.whl"
    environment = (
        f'requirements = [\n  "x",\n  "a {wheel.format("a")}",\n]\nconstraints = ["b {wheel.format("b")}"]\n'
        f'requirements-files = ["r.txt"]\n[environments.gpu]\nrequirements = ["c {wheel.format("c")}"]'
    )
    found = manifest.load(project(tmp_path, environment, r=f"d {wheel.format('d')}"))
    with pytest.raises(AmlError) as caught:
        declare(found, "gpu")
    assert [line.split(": there is")[0] for line in caught.value.message.split("\n")] == [
        "aml.toml:6: environment.requirements[1]",
        "aml.toml:11: environments.gpu.requirements[0]",
        "aml.toml:8: environment.constraints[0]",
        "r.txt:1",
    ]
    assert re.search(r'no readable wheel "none/a-1-py3-none-any\.whl"; paths of wheels are', caught.value.message)


def test_the_content_of_a_wheel_shows_and_its_age_does_not(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "alpha", "1.0", modules={"alpha.py": "one"})
    line = f'requirements = ["alpha @ ./{made.name}"]'
    first = declared(tmp_path, line)
    made.touch()
    assert declared(tmp_path, line) == first
    make_wheel(tmp_path, "alpha", "1.0", modules={"alpha.py": "two"})
    assert declared(tmp_path, line).wheels != first.wheels


@given(data=st.binary(max_size=60) | st.text(st.sampled_from("ab-rc @./=[];#\\\n${}\x00"), max_size=40).map(str.encode))
def test_whatever_the_bytes_of_a_file_no_traceback(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    found = manifest.load(project(tmp_path_factory.mktemp("project"), 'requirements-files = ["r.txt"]', r=data))
    try:
        declare(found)
    except AmlError as error:
        told = error.message.split("\n")
    else:
        told = []
    assert all(re.match(r"r\.txt:\d+: ", line) for line in told)
