"""The lock: made from the manifest, kept until that changes, judged before it is trusted, never half written."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.pylock import Pylock

from aml_nox import lockfile
from tests.support.index import Index
from tests.support.processes import Run
from tests.support.project import PYTHON, Project
from tests.support.provisioning import certified, current, provision, snapshot
from tests.support.wheels import make_wheel

ALPHA = "demo_alpha-1.0-py3-none-any.whl"
ONCE = {"UV_HTTP_RETRIES": "0"}  # patience is uv's own and not what these tests are about


@pytest.fixture(scope="module")
def steady(wheelhouse: Path) -> Iterator[Index]:
    """Give an index that no test changes."""
    with Index(wheelhouse) as running:
        yield running


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory, steady: Index, uv_cache: Path) -> dict[str, str]:
    """Give the files of a project as a clone has them: manifest, noxfile, lock."""
    folder = tmp_path_factory.mktemp("committed")
    (folder / "home").mkdir()
    made = Project.make(folder / "project", steady.url, home=folder / "home", uv_cache=uv_cache)
    made.aml("lock").expect()
    return {path.name: path.read_text() for path in made.folder.iterdir() if path.is_file()}


@pytest.fixture
def locked(tmp_path: Path, committed: dict[str, str], fresh_home: Path, uv_cache: Path) -> Project:
    """Give a project with a lock that belongs to it, of the steady index, and nothing else."""
    project = Project(folder=tmp_path / "locked", home=fresh_home, uv_cache=uv_cache)
    for name, text in committed.items():
        project.write(name, text)
    return project


def lock(project: Project) -> Path:
    return project.folder / "pylock.toml"


def document(project: Project) -> dict[str, Any]:
    return tomllib.loads(lock(project).read_text())


def versions(project: Project) -> dict[str, str]:
    return {one["name"]: one["version"] for one in document(project)["packages"]}


def require(project: Project, *requirements: str) -> None:
    project.manifest(environment={"requirements": [*requirements]})


def assert_error(run: Run, code: str, *words: str) -> None:
    """Hold that the last line but the hint begins with the code, that the words are told, and that there is a hint."""
    assert f"\n{code}: " in f"\n{run.err}", run
    assert run.err.splitlines()[-1].startswith("  hint: "), run
    assert "Traceback" not in run.err
    for word in words:
        assert word in run.err, f"{word!r} is not in\n{run}"


# --- what moves, and what stays


@pytest.fixture
def outdated(project: Project, index: Index) -> Project:
    """Give a project whose lock is of the time when demo-alpha 1.1 and demo-gamma 1.0 were the newest."""
    for newer in ("demo_alpha-2.0-py3-none-any.whl", "demo_gamma-1.1-py3-none-any.whl"):
        (index.folder / newer).rename(index.folder / f"{newer}.later")
    require(project, "demo-gamma")
    project.aml("lock").expect()
    for later in index.folder.glob("*.later"):
        later.rename(later.with_suffix(""))
    assert versions(project) == {"demo-alpha": "1.1", "demo-beta": "1.0", "demo-gamma": "1.0"}
    return project


NEWEST = {"demo-alpha": "2.0", "demo-beta": "1.0", "demo-gamma": "1.1"}


@pytest.mark.parametrize(
    ("words", "moved", "told"),
    [
        ([], {}, "pylock.toml: the same packages"),
        (["--upgrade"], NEWEST, "pylock.toml: demo-alpha 1.1 → 2.0, demo-gamma 1.0 → 1.1"),
        (["--upgrade-package", "Demo_Alpha"], {"demo-alpha": "2.0"}, "pylock.toml: demo-alpha 1.1 → 2.0"),
        (["--force"], NEWEST, "pylock.toml: demo-alpha 1.1 → 2.0, demo-gamma 1.0 → 1.1"),
    ],
    ids=["kept", "upgrade", "one package", "force"],
)
def test_a_stale_lock_keeps_its_versions_but_for_those_that_may_move(
    outdated: Project, words: Sequence[str], moved: dict[str, str], told: str
) -> None:
    before = versions(outdated)
    require(outdated, "demo-gamma", "demo-beta>=1.0")
    said = outdated.aml("lock", *words).expect().err
    assert versions(outdated) == {**before, **moved}
    assert told in said.splitlines()
    assert outdated.aml("lock", "--check").code == 0


def test_a_fresh_lock_is_upgraded_only_when_asked(outdated: Project) -> None:
    before = lock(outdated).read_bytes()
    assert "pylock.toml belongs to the manifest: nothing to do" in outdated.aml("lock").expect().err
    assert lock(outdated).read_bytes() == before
    report = outdated.aml("lock", "--upgrade", "--json", "-").expect().json()
    assert report["lock"] == {"path": str(lock(outdated)), "changed": True}
    assert versions(outdated) == NEWEST


def test_a_name_that_is_none_or_that_the_lock_has_not_is_told(locked: Project) -> None:
    assert_error(locked.aml("lock", "--upgrade-package", "demo-alpha==2.0").expect(2), "AML_USAGE", "demo-alpha==2.0")
    said = locked.aml("lock", "--upgrade-package", "demo-alhpa").expect().err
    assert "pylock.toml has no package demo-alhpa" in said.splitlines()


def test_the_lock_holds_what_it_was_made_from(project: Project, index: Index, uv_wheel: Path) -> None:
    index.add(uv_wheel)
    project.aml("lock").expect()
    table = document(project)["tool"]["aml-nox"]
    assert table["scheme"] == 1
    assert table["uv"] == {
        "version": uv_wheel.name.split("-")[1],
        "wheels": {uv_wheel.name: index.sha256(uv_wheel.name)},
    }
    assert table["inputs"]["requirements"] == ["demo-alpha==1.0"]
    assert table["inputs"]["python"] == PYTHON
    assert re.fullmatch(r"[0-9a-f]{64}", table["manifest-digest"])
    assert re.fullmatch(r"[0-9a-f]{64}", table["packages-digest"])


def test_an_index_without_that_uv_is_no_fault(locked: Project) -> None:
    assert document(locked)["tool"]["aml-nox"]["uv"]["wheels"] == {}


@pytest.mark.parametrize("front_end", ["nox", "aml"])
def test_the_lock_has_the_same_bytes_whatever_the_folder_it_is_made_from(
    project: Project, tmp_path: Path, front_end: str
) -> None:
    wheel = make_wheel(project.folder / "wheels", "demo-local", "1.0")
    project.write("requirements/deep.txt", f"demo-local @ ./wheels/{wheel.name}\n")
    project.manifest(environment={"requirements-files": ["requirements/deep.txt"]})
    project.aml("lock").expect()
    before = lock(project).read_bytes()
    lock(project).unlink()
    if front_end == "nox":
        project.nox("-f", project.folder / "noxfile.py", "-s", "lock", cwd=tmp_path).expect()
    else:
        project.aml("lock", "--manifest", project.folder / "aml.toml", cwd=tmp_path).expect()
    assert lock(project).read_bytes() == before
    assert str(tmp_path) not in before.decode()


def test_the_lock_has_the_same_bytes_in_every_project_of_the_same_manifest(locked: Project, tmp_path: Path) -> None:
    other = Project(folder=tmp_path / "é other", home=locked.home, uv_cache=locked.uv_cache)
    other.write("aml.toml", (locked.folder / "aml.toml").read_text())
    other.aml("lock").expect()
    assert lock(other).read_bytes() == lock(locked).read_bytes()


def test_leftovers_of_a_killed_run_are_removed_and_files_of_others_are_not(project: Project) -> None:
    foreign = ["pylock.amlx.toml", "pylock.aml12345.toml", "pylock.amlABCD.toml", "pylock.aml.toml", "aml1a2b.toml"]
    for name in (*foreign, "pylock.aml1a2b.toml", "pylock.aml0000.toml"):
        project.write(name, "x")
    project.aml("lock").expect()
    assert {path.name for path in project.folder.glob("*.toml")} == {*foreign, "aml.toml", "pylock.toml"}


# --- what a run may do with a lock


def make_stale(project: Project) -> None:
    require(project, "demo-alpha==1.1")


def take_lock_away(project: Project) -> None:
    lock(project).unlink()


def aml(project: Project, command: str) -> Run:
    """Run a line as a shell reads it: ``CI=true provision --locked``."""
    words = command.split()
    env = dict(word.split("=") for word in words if "=" in word)
    return project.aml(*(word for word in words if "=" not in word), env=env)


@pytest.mark.parametrize(
    ("change", "command", "told"),
    [
        (make_stale, "provision --locked", "--locked does not change it"),
        (make_stale, "provision --offline", "--offline does not change it"),
        (make_stale, "lock --offline", "run it once without --offline"),
        (make_stale, "lock --check", "--check does not change it"),
        (make_stale, "CI=true provision", "CI does not change it"),
        (make_stale, "CI=1 provision", "or pass --no-locked"),
        (make_stale, "CI=yes train", "CI does not change it"),
        (take_lock_away, "provision --locked", "--locked does not make one"),
        (take_lock_away, "provision --offline", "--offline does not make one"),
        (take_lock_away, "lock --check", "--check does not make one"),
    ],
)
def test_who_may_not_change_a_lock_is_told_so_and_nothing_is_changed(
    locked: Project, steady: Index, change: Callable[[Project], None], command: str, told: str
) -> None:
    locked.write("train.py", "")
    locked.manifest(train={"script": "train.py"})
    change(locked)
    before, asked = snapshot(locked.folder), len(steady.requests)
    failed = aml(locked, command).expect(3)
    if change is make_stale:
        reason = "requirements: + demo-alpha==1.1 (aml.toml); requirements: - demo-alpha==1.0"
        assert_error(failed, "AML_LOCK_STALE", told, reason)
    else:
        assert_error(failed, "AML_LOCK_MISSING", told)
    assert snapshot(locked.folder) == before
    assert len(steady.requests) == asked


@pytest.mark.parametrize(
    "command",
    [
        "CI=0 provision",
        "CI=false provision",
        "CI=False provision",
        "CI= provision",
        "CI=true provision --no-locked",
        "CI=true lock",
        "CI=true lock --upgrade",
    ],
)
def test_who_may_change_a_lock_does(locked: Project, command: str) -> None:
    make_stale(locked)
    aml(locked, command).expect()
    assert versions(locked) == {"demo-alpha": "1.1"}


@pytest.mark.parametrize("words", [["--upgrade"], ["--upgrade-package", "demo-alpha"], ["--force"]])
def test_offline_never_locks_anew(locked: Project, words: Sequence[str]) -> None:
    before = lock(locked).read_bytes()
    assert_error(locked.aml("lock", "--offline", *words).expect(2), "AML_USAGE", "--offline never changes a lock")
    assert lock(locked).read_bytes() == before


def test_ci_without_a_lock_makes_one_and_warns(project: Project) -> None:
    said = project.aml("provision", env={"CI": "true"}).expect().err
    assert "warning: CI is set and pylock.toml is missing" in said
    assert versions(project) == {"demo-alpha": "1.0"}


def test_locked_and_ci_install_what_the_lock_says(locked: Project) -> None:
    before = lock(locked).read_bytes()
    for words, env in ((["--locked"], {}), ([], {"CI": "true"}), (["--force", "--locked"], {})):
        provision(locked, *words, env=env)
    assert lock(locked).read_bytes() == before


def test_check_is_content_with_a_fresh_lock_and_asks_nobody(locked: Project, steady: Index) -> None:
    before, asked = snapshot(locked.folder), len(steady.requests)
    assert "pylock.toml belongs to the manifest" in locked.aml("lock", "--check").expect().err
    report = locked.aml("lock", "--check", "--json", "-").expect().json()
    assert report["lock"] == {"path": str(lock(locked)), "changed": False}
    assert snapshot(locked.folder) == before
    assert len(steady.requests) == asked


def test_offline_builds_from_a_warm_cache_without_a_request(locked: Project, steady: Index) -> None:
    first = provision(locked)
    asked = len(steady.requests)
    again = provision(locked, "--offline", "--force")
    assert again.changed
    assert again.environment == current(locked) != first.environment
    assert len(steady.requests) == asked


def test_offline_with_a_cold_cache_says_what_to_do(locked: Project, tmp_path: Path) -> None:
    failed = locked.aml("provision", "--offline", env={"UV_CACHE_DIR": str(tmp_path / "cold")}).expect(4)
    assert_error(failed, "AML_FETCH", "hint: --offline allows no request: run once without it")
    assert certified(locked) == []


# --- a lock that was edited


def edit(project: Project, old: str, new: str) -> bytes:
    text = lock(project).read_text()
    assert old in text
    lock(project).write_text(text.replace(old, new, 1))
    return lock(project).read_bytes()


def merge_another_version(project: Project) -> None:
    """Take over the package's entry as another branch has it, and leave the table: what a merge by hand does."""
    mine = lock(project).read_text()
    make_stale(project)
    project.aml("lock").expect()
    theirs = lock(project).read_text()
    require(project, "demo-alpha==1.0")
    head, table = (re.split(r"(?=\[tool\.aml-nox\])", text, maxsplit=1) for text in (theirs, mine))
    lock(project).write_text(head[0] + table[1])


def edit_hash(project: Project) -> None:
    edit(project, document(project)["packages"][0]["wheels"][0]["hashes"]["sha256"], "0" * 64)


def drop_table(project: Project) -> None:
    lock(project).write_text(lock(project).read_text().partition("[tool.aml-nox]")[0])


EDITED = "its packages were edited or merged by hand"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (merge_another_version, EDITED),
        (edit_hash, EDITED),
        (lambda it: edit(it, 'requires-python = ">=', 'requires-python = ">='.replace(">=", "!=9,>=")), EDITED),
        (drop_table, "it has no table of aml-nox: another tool wrote it"),
        (lambda it: edit(it, "packages-digest", "packages-digset"), "it has no table of aml-nox"),
    ],
    ids=["merged", "hash", "requires-python", "no table", "half a table"],
)
def test_a_lock_that_was_edited_is_stale_and_put_right(
    locked: Project, change: Callable[[Project], None], reason: str
) -> None:
    right = lock(locked).read_bytes()
    change(locked)
    assert_error(locked.aml("lock", "--check").expect(3), "AML_LOCK_STALE", reason)
    assert_error(locked.aml("provision", "--locked").expect(3), "AML_LOCK_STALE", reason)
    after = provision(locked)
    assert after.lock_changed
    assert after.tells(reason)
    assert lock(locked).read_bytes() == right


def test_comments_in_a_lock_are_the_users_and_no_change(locked: Project) -> None:
    edited = edit(locked, "[[packages]]", "# reviewed by Ada\n[[packages]]")
    locked.aml("lock", "--check").expect()
    provision(locked, "--locked")
    locked.aml("lock").expect()
    assert lock(locked).read_bytes() == edited


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("lock-version", "lock-version ~", "cannot be read"),
        ('lock-version = "1.0"\n', "", "lock-version"),
        ('lock-version = "1.0"', 'lock-version = "2.0"', "2.0"),
        ("[[packages]]", "<<<<<<< HEAD\n[[packages]]", "line"),
        ('version = "1.0"\nwheels', 'version = "1.1"\nwheels', "is not consistent with package version"),
        ("scheme = 1", "scheme = 99", "was made by a newer aml-nox (scheme 99"),
    ],
    ids=["no TOML", "no version", "foreign version", "conflict", "version alone", "newer scheme"],
)
def test_a_lock_that_cannot_be_understood_is_never_overwritten_but_by_force(
    locked: Project, old: str, new: str, told: str
) -> None:
    right, bad = lock(locked).read_bytes(), edit(locked, old, new)
    for words in (["provision", "--no-locked", "--force"], ["lock", "--upgrade"], ["lock", "--check"]):
        assert_error(locked.aml(*words).expect(3), "AML_LOCK_INVALID", told, "`lock --force`")
        assert lock(locked).read_bytes() == bad
    assert told in locked.aml("status").expect().err
    locked.aml("lock", "--force").expect()
    assert lock(locked).read_bytes() == right


SHA = "a" * 64
FINE = f'wheels = [{{url = "https://h/demo-1.0-py3-none-any.whl", hashes = {{sha256 = "{SHA}"}}}}]'


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (FINE, ""),
        (FINE.replace("//h", "//ada:secret@h"), "a URL holds credentials"),
        (FINE.replace("//h", "//token@h"), "a URL holds credentials"),
        (f'index = "https://ada:secret@h/simple"\n{FINE}', "a URL holds credentials"),
        (f'index = "https://h/simple"\n{FINE}', ""),
        (FINE.replace('url = "https://h/', 'path = "/home/ada/'), "a path is absolute"),
        (FINE.replace("https://h/", "file:///home/ada/"), "a path is absolute"),
        (FINE.replace('url = "https://h/', 'path = "C:/ada/'), "a path is absolute"),
        (FINE.replace('url = "https://h/', 'path = "./wheels/'), ""),
        (FINE.replace(SHA, ""), "has no sha256"),
        (FINE.replace("sha256 =", "md5 ="), "has no sha256"),
        (f'sdist = {{url = "https://h/demo-1.0.tar.gz", hashes = {{sha512 = "{SHA}"}}}}', "has no sha256"),
        (f'archive = {{path = "/a/demo-1.0-py3-none-any.whl", hashes = {{sha256 = "{SHA}"}}}}', "a path is absolute"),
        ('archive = {url = "https://h/demo-1.0.tar.gz", hashes = {sha256 = ""}}', "has no sha256"),
        (f'vcs = {{type = "git", url = "https://h/x.git", commit-id = "{SHA}"}}', "has no hash"),
        ('directory = {path = "."}', "has no hash"),
        ('directory = {path = ".", editable = true}', "has no hash"),
    ],
)
def test_lint_tells_what_no_lock_may_hold(source: str, told: str) -> None:
    text = f'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "demo"\nversion = "1.0"\n{source}\n'
    faults = lockfile.lint(Pylock.from_dict(tomllib.loads(text)))
    assert (told in "; ".join(faults)) if told else faults == []
    assert "secret" not in "".join(faults)
    assert "token" not in "".join(faults)


def test_a_hand_written_lock_is_linted_before_it_is_installed(locked: Project) -> None:
    edit(locked, "url = ", 'path = "/home/ada/demo_alpha-1.0-py3-none-any.whl", url = ')
    known = document(locked)["tool"]["aml-nox"]["packages-digest"]
    edit(locked, known, lockfile.packages_digest(document(locked)))
    locked.aml("lock", "--check").expect()
    assert_error(locked.aml("provision").expect(3), "AML_LOCK_INVALID", "demo-alpha: a path is absolute")


# --- what uv says, and what it means


@pytest.mark.parametrize(
    ("requirements", "told"),
    [
        (["demo-alpha<0.5"], "you require demo-alpha<0.5"),
        (["demo-alpha==1.0", "demo-alpha==2.0"], "unsatisfiable"),
        (["demo-nothing"], "demo-nothing was not found in the package registry"),
        (["demo-alpha==1.500"], "there is no version of demo-alpha==1.500"),
        (["demo-alpha==401"], "there is no version of demo-alpha==401"),
    ],
)
def test_what_cannot_be_resolved_is_told_in_uvs_words_and_leaves_the_lock(
    locked: Project, steady: Index, requirements: Sequence[str], told: str
) -> None:
    before = lock(locked).read_bytes()
    require(locked, *requirements)
    failed = locked.aml("provision").expect(3)
    assert_error(failed, "AML_RESOLUTION", told, f"the index tried is {steady.url}")
    assert lock(locked).read_bytes() == before


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "401 Unauthorized"),
        (403, "403 Forbidden"),
        (500, "500 Internal Server Error"),
        (503, "503 Service Unavailable"),
    ],
)
def test_an_index_that_refuses_is_named(project: Project, index: Index, status: int, told: str) -> None:
    index.status = {"/simple/": status}
    failed = project.aml("provision", env=ONCE).expect(4)
    assert_error(failed, "AML_FETCH", told, f"the index tried is {index.url}")
    assert not lock(project).exists()


def test_an_index_that_knows_nothing_is_named(project: Project, index: Index) -> None:
    index.status = {"/": 404}
    failed = project.aml("provision").expect(3)
    assert_error(failed, "AML_RESOLUTION", "demo-alpha was not found", f"the index tried is {index.url}")


def test_an_index_that_is_gone_is_named_with_the_variables_that_were_not_used(
    project: Project, steady: Index, tmp_path: Path
) -> None:
    (tmp_path / "nothing").mkdir()
    with Index(tmp_path / "nothing") as gone:
        project.manifest(index={"url": gone.url})
    ignored = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_URL")
    failed = project.aml("lock", env={**ONCE, **dict.fromkeys(ignored, steady.url)}).expect(4)
    assert_error(failed, "AML_FETCH", f"the index tried is {gone.url}", f"not used: {', '.join(ignored)}")
    assert steady.url not in failed.err


def test_a_password_that_was_brought_is_used_and_is_nowhere_afterwards(project: Project, index: Index) -> None:
    index.auth = ("ada", "s3cr3t/#")
    project.manifest(index={"name": "corp"})
    known = {"UV_INDEX_CORP_USERNAME": "ada", "UV_INDEX_CORP_PASSWORD": "s3cr3t/#"}
    assert_error(project.aml("provision").expect(4), "AML_FETCH", "401 Unauthorized")
    said = project.aml("provision", "--json", "-", env=known).expect()
    files = b"".join(
        path.read_bytes() for path in project.folder.rglob("*") if path.is_file() and not path.is_symlink()
    )
    for secret in ("s3cr3t", "s3cr3t%2F%23"):
        assert secret not in said.out + said.err
        assert secret.encode() not in files


# --- the bytes


def forge(index: Index, tmp_path: Path) -> None:
    forged = make_wheel(tmp_path / "forged", "demo-alpha", "1.0", modules={"demo_alpha/__init__.py": "evil = True\n"})
    index.replaced = {ALPHA: forged.read_bytes()}


def test_a_forged_wheel_is_refused_and_nothing_is_certified(project: Project, index: Index, tmp_path: Path) -> None:
    forge(index, tmp_path)
    failed = project.aml("provision").expect(5)
    assert_error(failed, "AML_INTEGRITY", "Hash mismatch for `demo-alpha==1.0`", index.sha256(ALPHA))
    assert certified(project) == []
    assert not (project.aml_root / ".venv").is_symlink()
    index.replaced = {}
    provision(project)


def test_a_hash_in_a_requirement_file_is_held_against_the_lock(project: Project, index: Index) -> None:
    project.write("r.txt", f"demo-alpha==1.0 --hash=sha256:{'0' * 64}\n")
    project.manifest(environment={"requirements": [], "requirements-files": ["r.txt"]})
    failed = project.aml("provision").expect(5)
    assert_error(failed, "AML_INTEGRITY", "r.txt:1: demo-alpha is locked with sha256", index.sha256(ALPHA))
    assert certified(project) == []
    project.write("r.txt", f"demo-alpha==1.0 --hash=sha256:{'0' * 64} \\\n --hash=sha256:{index.sha256(ALPHA)}\n")
    assert provision(project).changed


def test_a_lock_of_one_index_is_installed_from_another_without_a_request_to_the_first(
    locked: Project, steady: Index, index: Index, wheelhouse: Path
) -> None:
    index.add(wheelhouse)
    before, asked = lock(locked).read_bytes(), len(steady.requests)
    after = provision(locked, env={"AML_INDEX_URL": index.url})
    assert after.changed
    assert not after.lock_changed
    assert lock(locked).read_bytes() == before
    assert len(steady.requests) == asked
    assert f"GET /files/{ALPHA}" in index.requests


def test_a_mirror_with_other_bytes_is_refused(locked: Project, tmp_path: Path) -> None:
    make_wheel(tmp_path / "mirror", "demo-alpha", "1.0", modules={"demo_alpha.py": "other = True\n"})
    with Index(tmp_path / "mirror") as mirror:
        failed = locked.aml("provision", env={"AML_INDEX_URL": mirror.url}).expect(5)
    assert_error(failed, "AML_INTEGRITY", "demo-alpha")
    assert certified(locked) == []
