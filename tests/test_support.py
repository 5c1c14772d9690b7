"""The ground itself holds: what the other tests stand on is real, and does what it says."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.index import Gate, Index
from tests.support.interpreter import interpreter_copy
from tests.support.processes import Run, Started, descendants, parse_execs, run, strace_execs, wait_until
from tests.support.project import PYTHON, Project, hermetic
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping

ALPHA, BETA = "demo_alpha-1.0-py3-none-any.whl", "demo_beta-1.0-py3-none-any.whl"
JSON = "application/vnd.pypi.simple.v1+json"
FOREVER = "import threading; threading.Event().wait()"


class Client:
    """Installs hashed requirements from an index into ``target``: the real uv and pip, past their caches."""

    def __init__(self, folder: Path, index: Index, uv: Path) -> None:
        self.folder, self.index, self.target = folder, index, folder / "target"
        # One try only: the tests are about the refusal, not about patience.
        self.env = {**hermetic(folder, folder), "UV_HTTP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
        self.tools: Mapping[str, list[str | Path]] = {
            "uv": [uv, "pip", "install", "--no-config", "--no-cache", "--python", sys.executable, "--default-index"],
            "pip": [sys.executable, "-I", "-m", "pip", "install", "--isolated", "--no-cache-dir", "--index-url"],
        }

    def argv(self, tool: str, *files: str, url: str = "") -> list[str | Path]:
        """Give the command that installs *files*, each with the hash that the index promises."""
        lines = ["==".join(file.split("-")[:2]) + f" --hash=sha256:{self.index.sha256(file)}\n" for file in files]
        requirements = self.folder / "requirements.txt"
        requirements.write_text("".join(lines))
        where: list[str | Path] = [
            url or self.index.url,
            "--target",
            self.target,
            "--require-hashes",
            "-r",
            requirements,
        ]
        return [*self.tools[tool], *where]

    def install(self, tool: str, *files: str, url: str = "") -> Run:
        return run(self.argv(tool, *files, url=url), env=self.env, cwd=self.folder)


@pytest.fixture
def client(tmp_path: Path, index: Index, wheelhouse: Path, uv_program: Path) -> Client:
    index.add(wheelhouse)
    return Client(tmp_path, index, uv_program)


def get(url: str, accept: str = "*/*") -> tuple[int, str]:
    """Ask an index; an error status is an answer too."""
    request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310 - an Index: http, on loopback
    try:
        with urllib.request.urlopen(request) as response:  # noqa: S310 - likewise
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


# --- wheels


def test_a_wheel_has_the_same_bytes_wherever_and_whenever_it_is_made(tmp_path: Path) -> None:
    first, second = (
        make_wheel(tmp_path / folder, "x", "1.0", requires=["y"], scripts={"x": "x.cli:main"}, data_scripts={"p": b""})
        for folder in ("one", "two")
    )
    assert first.read_bytes() == second.read_bytes()
    assert {member.date_time for member in zipfile.ZipFile(first).infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_wheel_of_uv_installs_the_real_program(client: Client, uv_wheel: Path, fresh_home: Path) -> None:
    client.index.add(uv_wheel)
    client.install("uv", uv_wheel.name).expect()
    version = run([client.target / "bin" / "uv", "--version"], env=hermetic(fresh_home, fresh_home), cwd=fresh_home)
    assert version.expect().out.split()[:2] == ["uv", uv_wheel.name.split("-")[1]]


# --- index


@pytest.mark.parametrize("html_only", [False, True], ids=["json", "html"])
@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_real_installers_install_from_it_with_hashes(client: Client, tool: str, html_only: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    client.index.html_only = html_only
    client.install(tool, ALPHA, BETA).expect()
    assert (client.target / "demo_alpha" / "cli.py").is_file()
    assert (client.target / "demo_beta-1.0.dist-info").is_dir()
    assert "GET /simple/demo-beta/" in client.index.requests


def test_who_brings_no_password_is_refused_and_who_brings_it_is_served(client: Client) -> None:
    client.index.auth = ("ada", "s3cret")
    assert client.install("uv", ALPHA).code != 0
    assert get(f"{client.index.url}/demo-alpha/")[0] == 401
    assert not any(request.startswith("GET /files/") for request in client.index.requests)
    client.install("uv", ALPHA, url=client.index.url.replace("//", "//ada:s3cret@")).expect()
    assert client.index.headers[-1]["authorization"].startswith("Basic ")


def test_a_truncated_file_is_refused(client: Client) -> None:
    client.index.truncate = {ALPHA}
    failed = client.install("uv", ALPHA)
    assert failed.code != 0
    assert not (client.target / "demo_alpha").exists()


def test_a_file_with_a_flipped_byte_is_refused(client: Client) -> None:
    client.index.corrupt = {ALPHA}
    failed = client.install("uv", ALPHA)
    assert failed.code != 0
    assert not (client.target / "demo_alpha").exists()


def test_a_sound_wheel_under_the_hash_of_another_is_refused_for_its_hash(client: Client, tmp_path: Path) -> None:
    forged = make_wheel(tmp_path, "demo-alpha", "1.0", modules={"demo_alpha/__init__.py": "evil = True\n"})
    client.index.replaced = {ALPHA: forged.read_bytes()}
    assert "Hash mismatch" in client.install("uv", ALPHA).err


def test_a_gated_download_waits_for_its_test(client: Client) -> None:
    gate = client.index.gate = Gate()
    with Started(client.argv("uv", ALPHA), env=client.env, cwd=client.folder) as process:
        gate.wait_reached()
        assert process.poll() is None
        gate.set()
        process.finish().expect()
    client.index.wait_for(f"GET /files/{ALPHA}")


def test_a_forced_status_holds_for_its_prefix_and_the_longest_prefix_wins(client: Client) -> None:
    client.index.status = {"/files/": 500, f"/files/{ALPHA}": 418}
    asked = [f"/files/{ALPHA}", f"/files/{BETA}", "/simple/demo-alpha/"]
    assert [get(client.index.address + path)[0] for path in asked] == [418, 500, 200]


def test_a_listing_shows_the_folder_as_it_is_now(client: Client) -> None:
    url, file = f"{client.index.url}/demo-alpha/", client.index.folder / ALPHA
    assert client.index.sha256(ALPHA) in get(url, JSON)[1]
    old = client.index.sha256(ALPHA)
    make_wheel(client.index.folder, "demo-alpha", "1.0", modules={"demo_alpha.py": ""})
    assert old not in get(url, JSON)[1]
    file.unlink()
    assert ALPHA not in get(url, JSON)[1]


def test_listings_tell_in_both_formats_what_is_yanked_and_what_python_is_required(client: Client) -> None:
    file = make_wheel(client.index.folder, "demo-delta", "1.0", requires_python=">=3.99").name
    client.index.yanked = {file: "by mistake"}
    as_json, as_html = (get(f"{client.index.url}/demo-delta/", accept)[1] for accept in (JSON, "text/html"))
    assert '"requires-python": ">=3.99"' in as_json
    assert '"yanked": "by mistake"' in as_json
    assert 'data-requires-python="&gt;=3.99"' in as_html
    assert 'data-yanked="by mistake"' in as_html


def test_what_is_hidden_or_outside_the_folder_is_not_served(client: Client) -> None:
    client.index.hide = {"demo-alpha"}
    assert get(f"{client.index.url}/demo-alpha/")[0] == 404
    assert get(f"{client.index.url}/demo-beta/")[0] == 200
    (client.index.folder.parent / "secret").touch()
    assert get(f"{client.index.address}/files/%2e%2e/secret")[0] == 404


# --- interpreter


def test_a_copied_interpreter_stands_alone(tmp_path: Path, uv_program: Path, fresh_home: Path) -> None:
    env = hermetic(fresh_home, fresh_home)
    program = interpreter_copy(tmp_path / "copy")
    tell = "import sys, ssl, ctypes, json, site; print(json.dumps([sys.base_prefix, *site.getsitepackages()]))"
    prefix, packages, *_ = run([program, "-c", tell], env=env, cwd=tmp_path).expect().json()
    assert prefix == str(tmp_path / "copy")
    assert list(Path(packages).iterdir()) == []
    maps = run([program, "-c", "print(open('/proc/self/maps').read())"], env=env, cwd=tmp_path).expect().out
    assert sys.base_prefix + os.sep not in maps
    run([uv_program, "venv", "--no-config", "--python", program, "venv"], env=env, cwd=tmp_path).expect()
    shutil.rmtree(tmp_path / "copy")
    assert not (tmp_path / "venv" / "bin" / "python").exists()


# --- processes


def test_each_exec_is_counted_once_and_named_also_beyond_ascii(tmp_path: Path, fresh_home: Path) -> None:
    other = tmp_path / "é è"
    other.symlink_to(shutil.which("true") or "")
    argv: list[str | Path] = [sys.executable, "-I", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", other]
    assert strace_execs(argv, env=hermetic(fresh_home, fresh_home), cwd=tmp_path) == [sys.executable, str(other)]


def test_an_exec_that_failed_is_not_counted() -> None:
    log = '7 execve("/a/x", ["x"], 0x7f /* 9 vars */) = -1 ENOENT (No such file or directory)\n'
    assert parse_execs(log + '7 execve("/b/x", ["x"], 0x7f /* 9 vars */) = 0\n7 +++ exited with 0 +++\n') == ["/b/x"]


def test_what_never_ends_is_killed_and_fails_the_test_with_its_output(tmp_path: Path, fresh_home: Path) -> None:
    argv = [sys.executable, "-c", f"print('so far', flush=True); open('said', 'w'); {FOREVER}"]
    process = Started(argv, env=hermetic(fresh_home, fresh_home), cwd=tmp_path)
    wait_until((tmp_path / "said").exists, "it said something")
    with pytest.raises(pytest.fail.Exception, match="so far"):
        process.finish(limit=0)
    assert process.returncode < 0


def test_killing_a_tree_reaches_a_child_in_a_session_of_its_own(tmp_path: Path, fresh_home: Path) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FOREVER!r}], start_new_session=True)"
    with Started([sys.executable, "-c", child], env=hermetic(fresh_home, fresh_home), cwd=tmp_path) as process:
        wait_until(lambda: len(descendants(process.pid)) == 1, "the child runs")
        below = descendants(process.pid)
        process.kill_tree()
    wait_until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in below), "the child is gone")


# --- project


def test_nothing_of_the_callers_environment_reaches_a_program_but_how_tls_and_coverage_work(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CI", "UV_INDEX_URL", "PIP_INDEX_URL", "AML_ROOT", "VIRTUAL_ENV", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, "from the caller")
    seen = project.python("-c", "import json, os; print(json.dumps({**os.environ}))").expect().json()
    allowed = {"PATH", "HOME", "LANG", "UV_CACHE_DIR", "PYTHONPATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    allowed |= {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "UV_SYSTEM_CERTS", "LC_CTYPE"}
    assert {name for name in seen if not name.startswith("COVERAGE_")} <= allowed
    assert seen["SSL_CERT_DIR"] == "from the caller"
    assert seen["HOME"] == str(project.home) == os.environ["HOME"]


def test_a_test_sets_and_removes_variables(project: Project) -> None:
    tell = "import os; print(os.environ.get('A'), os.environ.get('UV_CACHE_DIR'))"
    assert project.python("-c", tell, env={"A": "1", "UV_CACHE_DIR": None}).out.split() == ["1", "None"]


def test_nox_runs_in_the_project_with_the_package_under_test(project: Project) -> None:
    session = "@nox.session(venv_backend='none')\ndef hello(session):\n    print(aml_nox.__name__)\n"
    project.write("noxfile.py", f"import nox, aml_nox\n\n{session}")
    assert "aml_nox\n" in project.nox("-s", "hello").expect().out


def test_a_manifest_changes_key_by_key(project: Project) -> None:
    project.manifest(uv={"source": "index", "version": "1"}, environment={"requirements": []}, index=None)
    text = project.manifest(uv={"version": None}).read_text()
    assert tomllib.loads(text) == {
        "uv": {"source": "index"},
        "python": {"version": PYTHON},
        "environment": {"requirements": []},
    }


def test_output_that_is_not_json_fails_with_that_output(project: Project) -> None:
    with pytest.raises(AssertionError, match="hello"):
        project.python("-c", "print('hello')").json()


def test_what_a_test_started_and_forgot_is_killed_with_its_project(project: Project) -> None:
    project.write("noxfile.py", FOREVER)
    process = project.start_nox("--list")
    assert process.poll() is None
    project.close()
    assert process.returncode < 0
