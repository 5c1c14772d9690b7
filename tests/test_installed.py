"""An environment is held against its RECORDs: whatever differs is told, and nothing that fits is."""

from __future__ import annotations

import os
import shutil
import string
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aml_nox import envdigest, installed
from aml_nox.installed import Drift
from tests.support.oracle import RECORD, rewrite_record
from tests.support.processes import run
from tests.support.project import hermetic
from tests.support.wheels import make_wheel

ALPHA = {"name": "demo-alpha", "version": "1.0"}
BETA = {"name": "demo-beta", "version": "1.0"}
SITE = "lib/python3.11/site-packages"
INIT = f"{SITE}/demo_alpha/__init__.py"


class Place:
    """An environment made of wheels alone; no interpreter is needed to look at files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = folder / "environment"
        self.site = self.environment / SITE
        self.site.mkdir(parents=True)

    def install(self, name: str, version: str = "1.0", *, modules: dict[str, str] | None = None) -> Path:
        """Unpack a wheel, and give its RECORD."""
        with zipfile.ZipFile(make_wheel(self.folder, name, version, modules=modules)) as wheel:
            wheel.extractall(self.site)
            (record,) = (member for member in wheel.namelist() if member.endswith("/RECORD"))
        return self.site / record

    def drift(self, *packages: dict[str, str], hashes: bool = True) -> list[Drift]:
        """Tell what differs: at a glance, as before each use, or with every byte read, as after each build."""
        if not hashes:
            return installed.drift(self.environment, packages)
        wrong = installed.distribution_drift(installed.read_records(self.environment), packages)
        return [*wrong, *envdigest.compute(self.environment, {}).drift]

    def faults(self, *packages: dict[str, str], hashes: bool = True) -> list[str]:
        return [str(one) for one in self.drift(*packages, hashes=hashes)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Give an environment with demo-alpha."""
    made = Place(tmp_path)
    made.install("demo-alpha")
    return made


BOTH = pytest.mark.parametrize("hashes", [False, True], ids=["quick", "full"])


@BOTH
def test_what_was_installed_and_only_that_is_no_drift(place: Place, hashes: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    place.install("demo-beta")
    assert place.drift(ALPHA, BETA, hashes=hashes) == []


def test_bytecode_is_no_drift(place: Place) -> None:
    for folder in (place.site, place.site / "demo_alpha"):
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"x")
    assert place.drift(ALPHA) == []


@BOTH
def test_a_distribution_that_is_missing_or_not_in_the_lock_is_drift(place: Place, hashes: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    found = place.drift(BETA, hashes=hashes)
    assert found[0] == Drift("demo-beta==1.0", "the distribution demo-beta==1.0", "is missing")
    assert found[1] == Drift("demo-alpha==1.0", f"{SITE}/demo_alpha-1.0.dist-info", "is not in the lock")


def test_another_version_is_drift(place: Place) -> None:
    assert len(place.drift(ALPHA | {"version": "1.1"})) == 2


@pytest.mark.parametrize("lost", [INIT, f"{SITE}/demo_alpha", f"{SITE}/demo_alpha-1.0.dist-info/METADATA"])
@BOTH
def test_a_file_that_is_missing_is_drift_and_named(place: Place, lost: str, hashes: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    path = place.environment / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = place.drift(ALPHA, hashes=hashes)
    assert found
    assert all(one.file.startswith(lost) and one.what == "is missing" for one in found)
    assert {one.distribution for one in found} == {"demo-alpha==1.0"}


def test_a_record_that_is_missing_is_drift_and_so_is_what_it_would_have_claimed(place: Place) -> None:
    (place.site / "demo_alpha-1.0.dist-info" / "RECORD").unlink()
    faults = place.faults(ALPHA, hashes=False)
    assert faults[0] == f"{SITE}/demo_alpha-1.0.dist-info/RECORD is missing (demo-alpha==1.0)"
    assert "demo_alpha in site-packages belongs to no distribution" in faults


@BOTH
def test_a_file_of_another_size_is_drift(place: Place, hashes: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    (place.environment / INIT).write_text("x")
    what = "differs from its hash in RECORD" if hashes else "has 1 bytes, RECORD says 16"
    assert place.faults(ALPHA, hashes=hashes) == [f"{INIT} {what} (demo-alpha==1.0)"]


def test_a_file_of_the_same_size_with_other_bytes_is_drift_where_hashes_are_held(place: Place) -> None:
    path = place.environment / INIT
    path.write_bytes(path.read_bytes()[::-1])
    assert place.faults(ALPHA, hashes=False) == []
    assert place.faults(ALPHA, hashes=True) == [f"{INIT} differs from its hash in RECORD (demo-alpha==1.0)"]


@pytest.mark.parametrize("name", ["evil.pth", "evil.py", "demo_alpha.py", "_virtualenv.py"])
@BOTH
def test_a_stray_at_the_top_of_site_packages_is_drift(place: Place, name: str, hashes: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    (place.site / name).touch()
    (found,) = place.drift(ALPHA, hashes=hashes)
    assert found.distribution == ""
    assert found.file.rpartition("/")[2] == name
    assert found.what.endswith("belongs to no distribution")


@pytest.mark.parametrize(
    "name", ["demo_alpha/added.py", "demo_alpha/sub/__init__.py", "demo_alpha-1.0.dist-info/ADDED"]
)
def test_a_stray_below_the_top_is_drift_where_every_byte_is_read(place: Place, name: str) -> None:
    (place.site / name).parent.mkdir(exist_ok=True)
    (place.site / name).touch()
    assert [one.file for one in place.drift(ALPHA)] == [f"{SITE}/{name}"]


def test_a_link_that_leads_nowhere_is_a_missing_file(place: Place) -> None:
    path = place.environment / INIT
    path.unlink()
    path.symlink_to("nothing")
    assert place.faults(ALPHA, hashes=False) == [f"{INIT} is missing (demo-alpha==1.0)"]
    assert place.faults(ALPHA) == [f"{INIT} is a link, which no wheel can hold (demo-alpha==1.0)"]


def test_a_folder_without_site_packages_is_one_drift(tmp_path: Path) -> None:
    assert installed.drift(tmp_path, [ALPHA]) == [Drift("", "site-packages", "is missing")]
    with pytest.raises(FileNotFoundError):
        envdigest.compute(tmp_path, {})


# --- several claims on one file


SHARED = {"shared/__init__.py": ""}


@pytest.mark.parametrize("winner", ["demo-alpha", "demo-beta"])
def test_a_file_that_two_claim_passes_when_it_equals_one_claim(tmp_path: Path, winner: str) -> None:
    """Which of two packages wins is left open by uv and pip: the file may be either's, but nobody else's."""
    place = Place(tmp_path)
    content = {"demo-alpha": "alpha\n", "demo-beta": "beta beta\n"}
    for name in sorted(content, key=lambda name: name == winner):
        place.install(name, modules={**SHARED, "shared/who.py": content[name]})
    assert (place.site / "shared" / "who.py").read_text() == content[winner]
    assert place.drift(ALPHA, BETA) == []
    (place.site / "shared" / "who.py").write_text("gamma\n")  # as long as one claim, and the content of none
    assert place.faults(ALPHA, BETA, hashes=False) == []
    assert len(place.faults(ALPHA, BETA)) == 1


# --- how RECORD and names are spelled


@pytest.mark.parametrize(
    "spell",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"".join(b'"%s",%s' % tuple(line.split(b",", 1)) for line in data.splitlines(keepends=True)),
        lambda data: data.rstrip(b"\n"),
        lambda data: data.replace(b"demo_alpha/", b"./demo_alpha/../demo_alpha/"),
    ],
    ids=["carriage returns", "quotes", "no last line end", "dots"],
)
def test_a_record_may_be_spelled_in_other_ways(place: Place, spell: object) -> None:
    assert callable(spell)
    record = place.site / "demo_alpha-1.0.dist-info" / "RECORD"
    record.write_bytes(spell(record.read_bytes()))
    assert place.drift(ALPHA) == []


def test_names_of_files_may_hold_commas_quotes_and_what_else_a_file_system_takes(tmp_path: Path) -> None:
    place = Place(tmp_path)
    names = ["a, b.py", 'say "hi".py', "é.py", "line\nbreak.py", "#.py", "%20.py"]
    place.install("demo-alpha", modules={f"demo_alpha/{name}": name for name in names})
    assert place.drift(ALPHA) == []
    for name in names:
        (place.site / "demo_alpha" / name).unlink()
    assert len(place.drift(ALPHA)) == len(names)


def test_a_claim_without_hash_is_held_by_presence_and_size(place: Place) -> None:
    rewrite_record(place.site, lambda rows: [[row[0], "", row[2]] for row in rows])
    path = place.environment / INIT
    path.write_bytes(path.read_bytes()[::-1])
    assert place.drift(ALPHA) == []
    path.write_text("")
    assert len(place.drift(ALPHA)) == 1


@pytest.mark.parametrize(
    "digest", ["md5=xxxx", "sha256=", "sha256=xxxx", "nothing=xxxx", "sha256", "=x", "shake_128=xxxx"]
)
def test_a_hash_that_does_not_fit_or_nobody_knows_is_drift(place: Place, digest: str) -> None:
    rewrite_record(place.site, lambda rows: [[row[0], digest if row[1] else "", row[2]] for row in rows])
    assert place.drift(ALPHA, hashes=False) == []
    assert {one.what for one in place.drift(ALPHA)} == {"differs from its hash in RECORD"}


@pytest.mark.parametrize("claim", ["../../../../../../../../../../../../etc/passwd", "/etc/passwd", "../../../.."])
@BOTH
def test_a_claim_outside_of_the_environment_is_drift(place: Place, claim: str, hashes: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    rewrite_record(place.site, lambda rows: [*rows, [claim, "", ""]])
    assert [one.what for one in place.drift(ALPHA, hashes=hashes)] == [
        "is outside of the environment, and RECORD claims it"
    ]


@pytest.mark.parametrize(
    ("spelled", "version"),
    [("2024.01.05", "2024.1.5"), ("1.0.POST1", "1.0.post1"), ("v1.0", "1.0"), ("1.0+Local.1", "1.0+local.1")],
)
def test_a_version_in_another_spelling_is_the_same(tmp_path: Path, spelled: str, version: str) -> None:
    place = Place(tmp_path)
    place.install("Demo_Alpha", spelled)
    assert place.drift(ALPHA | {"version": version}) == []


@pytest.mark.parametrize(
    "name", ["demo_alpha-.dist-info", "-1.0.dist-info", "x.dist-info", "a-b-c-not a version.dist-info"]
)
def test_a_dist_info_of_any_name_is_drift_and_no_crash(place: Place, name: str) -> None:
    (place.site / name).mkdir()
    assert f"{SITE}/{name}" in {one.file for one in place.drift(ALPHA)}


@pytest.mark.parametrize("name", ["RECORD", "entry_points.txt"])
def test_a_pipe_is_told_and_not_waited_for(place: Place, name: str) -> None:
    path = place.site / "demo_alpha-1.0.dist-info" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert path.relative_to(place.environment).as_posix() in {one.file for one in place.drift(ALPHA)}


def test_a_second_folder_of_one_distribution_is_drift(place: Place) -> None:
    info = place.site / "Demo.Alpha-1.0.0.dist-info"
    shutil.copytree(place.site / "demo_alpha-1.0.dist-info", place.site / "demo-alpha-1.0.dist-info")
    assert not info.exists()
    assert Drift("demo-alpha==1.0 again", f"{SITE}/demo_alpha-1.0.dist-info", "is not in the lock") in place.drift(
        ALPHA
    )


def test_a_folder_for_another_interpreter_is_not_taken_for_site_packages(place: Place) -> None:
    for version in ("3.9", "3.10", "3.12"):
        (place.environment / "lib" / f"python{version}" / "site-packages").mkdir(parents=True)
    assert installed.site_packages(place.environment) == place.site
    assert place.drift(ALPHA) == []


@pytest.mark.parametrize(
    ("text", "lets_in"),
    [
        ("include-system-site-packages = false\n", False),
        ("home = /opt\ninclude-system-site-packages = false\n", False),
        ("include-system-site-packages = no\n", False),
        ("include-system-site-packages = false\ninclude-system-site-packages = true\n", True),
        ("include-system-site-packages = true\ninclude-system-site-packages = false\n", False),
        ("INCLUDE-system-site-packages=True", True),
        ("Include-System-Site-Packages = FALSE", False),
        ("include-system-site-packages = true\rx = y", True),
        ("include-system-site-packages = true\nx =\x85include-system-site-packages = false\n", True),
        ("home = /opt\n", True),
        ("", True),
    ],
)
def test_pyvenv_cfg_is_read_as_python_reads_it(tmp_path: Path, text: str, lets_in: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    """A made-up environment of this interpreter is asked, so that nothing here is only our own reading of site.py."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "pyvenv.cfg").write_bytes(text.encode())
    tell = "import site; print(site.ENABLE_USER_SITE is not False or site.PREFIXES[-1] != __import__('sys').prefix)"
    asked = run([tmp_path / "bin" / "python", "-c", tell], env=hermetic(tmp_path, tmp_path), cwd=tmp_path).expect()
    assert asked.out.strip() == str(lets_in)
    assert envdigest.lets_in_system(tmp_path) is lets_in


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(),
        st.lists(st.lists(st.text(string.printable + "é\0", max_size=8), max_size=4).map(",".join)).map(
            lambda rows: "\n".join(rows).encode()
        ),
        st.sampled_from([b",,\n", b".,,\n", b'"\n', b"\xff,,", b"a\0b,,\n", b"x" * 5000 + b",,\n", b"a," * 200_000]),
    )
)
def test_a_record_of_any_content_is_told_and_never_a_crash(place: Place, data: bytes) -> None:
    """It cannot claim what is there, so there is always something to tell."""
    (place.site / "demo_alpha-1.0.dist-info" / RECORD).write_bytes(data)
    assert place.drift(ALPHA)
