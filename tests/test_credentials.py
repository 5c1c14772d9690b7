"""Credentials reach whoever needs them, and nobody else: no output, no file, no argument ever holds one."""

from __future__ import annotations

import base64
import dataclasses
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import tomlkit
import trustme

from tests.support.frontend import BareProject, front_end
from tests.support.index import Gate, Index
from tests.support.interpreter import interpreter_copy
from tests.support.oracle import needs
from tests.support.processes import run
from tests.support.project import NOXFILE, PYTHON
from tests.support.provisioning import current, provision, site_packages
from tests.support.wheels import make_wheel
from tests.support.wheels import uv_wheel as make_uv_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.support.index import Answer
    from tests.support.processes import Run

USER = "us@er"
PASSWORD = "p@ss/w%rd:é#1"  # noqa: S105 - it opens nothing
#: pip sends what it finds in netrc or a keyring in Latin-1: beyond ASCII only the named variables are alike everywhere.
PLAIN = "p@ss/w%rd:#1"
#: How this machine trusts the outside: not what these tests are about.
TRUST = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "UV_SYSTEM_CERTS")


def forms(user: str, password: str) -> set[str]:
    """Give every form in which a password may be written."""
    as_latin = password.encode().decode("latin-1")
    texts = {password, *(quote(text, safe=safe) for text in (password, as_latin) for safe in ("", "/", "@:"))}
    pairs = (f"{user}:{password}", password, f"{quote(user, safe='')}:{quote(password, safe='')}")
    encoded = {one(pair.encode()).decode().rstrip("=") for pair in pairs for one in (base64.b64encode, _url_safe)}
    return texts | encoded | {password.split("/")[1]}


def _url_safe(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A project and all that its programs can write to; every run is held to tell nothing."""

    folder: Path
    project: BareProject
    index: Index
    uv_wheel: Path
    passwords: list[tuple[str, str]] = field(default_factory=list)

    def aml(self, *words: str, env: Mapping[str, str] | None = None, code: int = 0) -> Run:
        """Run a command to the exit code that is expected, and hold that it told no password."""
        done = self.project.aml(*words, env=self.environment(env)).expect(code)
        self.assert_untold(done.out + done.err)
        return done

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str | None]:
        """Give the variables; caches and temporary files lie where they are looked through afterwards."""
        # No second try, which would only cost time; loopback is reached without the proxy to nowhere.
        quick = {"UV_HTTP_RETRIES": "0", "NO_PROXY": "127.0.0.1"}
        temporary = {"TMPDIR": str(self.folder / "tmp"), "UV_CACHE_DIR": str(self.folder / "home" / "uv-cache")}
        return {**dict.fromkeys(TRUST), **temporary, **quick, **(env or {})}

    def assert_untold(self, text: str) -> None:
        for user, password in self.passwords:
            assert [form for form in forms(user, password) if form in text] == []

    def assert_unwritten(self) -> None:
        """Hold that no file holds a password, in its name or in its content, nor a link's target."""
        (self.project.home / ".netrc").unlink(missing_ok=True)  # the one place where it belongs
        wanted = {form.encode() for user, password in self.passwords for form in forms(user, password)}
        for path in self.folder.rglob("*"):
            data = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            assert [form for form in wanted if form in data or form in str(path).encode()] == [], path

    def protect(self, index: Index, password: str = PASSWORD, user: str = USER) -> None:
        """Let an index answer nobody else; what opens it is from now on a secret."""
        index.auth = (user, password)
        self.passwords.append((user, password))

    def lock(self, env: Mapping[str, str]) -> None:
        """Make the lock by the uv beside nox, and leave a machine without uv."""
        done = dataclasses.replace(self, project=self.project.with_uv())
        done.aml("lock", env=env)
        self.project.manifest(uv={"source": "none"})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the program of a base interpreter of our own, the only one on PATH."""
    return interpreter_copy(tmp_path_factory.mktemp("base") / "python")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the program of a front end without uv."""
    return str(front_end(tmp_path_factory.mktemp("front") / "end"))


@pytest.fixture(scope="module")
def small_uv_wheel(tmp_path_factory: pytest.TempPathFactory, uv_program: Path, uv_version: str) -> Path:
    """Give a wheel of a program that is the real uv, without its forty megabytes."""
    folder = tmp_path_factory.mktemp("uv")
    program = folder / "uv"
    program.write_text(f'#!/bin/sh\nexec "{uv_program}" "$@"\n')
    return make_uv_wheel(folder, uv_version, program)


@pytest.fixture(scope="session")
def uv_version(uv_wheel: Path) -> str:
    return uv_wheel.name.split("-")[1]


@pytest.fixture
def machine(tmp_path: Path, index: Index, base: Path, bare: str, small_uv_wheel: Path) -> Iterator[Machine]:
    """Give a machine whose only index, "corp", has demo-alpha; nothing on it is protected yet."""
    folder = tmp_path / "machine"
    for name in ("home", "tmp"):
        (folder / name).mkdir(parents=True)
    project = BareProject(
        folder=folder / "project", home=folder / "home", uv_cache=folder / "none", program=bare, path=str(base.parent)
    )
    make_wheel(index.folder, "demo-alpha", "1.0", requires=["demo-beta"])
    make_wheel(index.folder, "demo-beta", "1.0")
    tables = {
        "python": {"version": PYTHON},
        "index": {"url": index.url, "name": "corp"},
        "environment": {"requirements": ["demo-alpha==1.0"]},
    }
    project.write("aml.toml", tomlkit.dumps(tables))
    project.write("noxfile.py", NOXFILE)
    made = Machine(folder=folder, project=project, index=index, uv_wheel=small_uv_wheel)
    yield made
    made.assert_unwritten()
    assert list(site_packages(base.parents[1]).iterdir()) == []
    assert list((folder / "tmp").iterdir()) == []


# --- how they are given


def named(name: str, password: str = PASSWORD, user: str = USER) -> dict[str, str]:
    return {f"UV_INDEX_{name}_USERNAME": user, f"UV_INDEX_{name}_PASSWORD": password}


def given(machine: Machine, way: str, password: str) -> dict[str, str]:
    """Give the variables that go with a way to name a password, and put down the rest."""
    secrets = machine.folder.parent / "secrets"
    secrets.mkdir(exist_ok=True)
    if way == "named variables":
        return named("CORP", password)
    if way == "keyring":
        return keyring(machine, secrets, password)
    netrc = machine.project.home / ".netrc" if way == "home's netrc" else secrets / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login {USER} password {password}\n")
    netrc.chmod(0o600)
    return {} if way == "home's netrc" else {"NETRC": str(netrc)}


def keyring(machine: Machine, folder: Path, password: str) -> dict[str, str]:
    """Put a keyring on PATH, with the commands of the real one (25) that uv and pip use."""
    program = folder / "keyring"
    answer = f'{{"username": "{USER}", "password": "{password}"}}'
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in\n*{machine.index.address.partition("//")[2]}*) ;;\n*) exit 1 ;;\nesac\n'
        f"case \"$*\" in\n*mode*creds*) echo '{answer}' ;;\n*{USER}) echo '{password}' ;;\n*) exit 1 ;;\nesac\n"
    )
    program.chmod(0o755)
    path = {"PATH": f"{folder}:{machine.project.path}", "UV_INDEX_CORP_USERNAME": USER}
    return {**path, "UV_KEYRING_PROVIDER": "subprocess"}


WAYS = pytest.mark.parametrize("way", ["named variables", "netrc", "home's netrc", "keyring"])


@WAYS
def test_uv_locks_and_installs_from_an_index_with_a_password(machine: Machine, way: str) -> None:
    machine.protect(machine.index)
    env = given(machine, way, PASSWORD)
    beside = dataclasses.replace(machine, project=machine.project.with_uv())
    beside.aml("lock", env=env)
    beside.aml("provision", env=env)
    assert (site_packages(current(machine.project)) / "demo_beta").is_dir()


@WAYS
def test_pip_fetches_uv_from_an_index_with_a_password(machine: Machine, way: str) -> None:
    password = PASSWORD if way == "named variables" else PLAIN
    machine.index.add(machine.uv_wheel)
    machine.protect(machine.index, password)
    machine.project.manifest(uv={"source": "index"})
    machine.aml("bootstrap", env=given(machine, way, password))


@WAYS
def test_pip_installs_from_an_index_with_a_password_where_there_is_no_uv(machine: Machine, way: str) -> None:
    password = PASSWORD if way == "named variables" else PLAIN
    machine.protect(machine.index, password)
    machine.lock(named("CORP", password))
    machine.aml("provision", env=given(machine, way, password))
    assert (site_packages(current(machine.project)) / "demo_beta").is_dir()


@pytest.fixture
def vendor(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """Give an extra index of the machine, with a password of its own and a package of its own."""
    with Index(tmp_path_factory.mktemp("vendor")) as index:
        make_wheel(index.folder, "demo-vendor", "1.0")
        machine.project.manifest(
            index={"extra": [{"name": "the-vendor", "url": index.url}]},
            environment={"requirements": ["demo-alpha", "demo-vendor"]},
        )
        machine.protect(index, "other:/p@ss", "other user")
        yield index


def test_each_index_gets_its_own_credentials_and_no_other(machine: Machine, vendor: Index) -> None:
    """From uv and from pip; the name of an index becomes that of its variables."""
    machine.protect(machine.index)
    env = named("CORP") | named("THE_VENDOR", "other:/p@ss", "other user")
    machine.lock(env)
    machine.aml("provision", env=env)
    assert (site_packages(current(machine.project)) / "demo_vendor").is_dir()
    for index, other in ((machine.index, vendor), (vendor, machine.index)):
        sent = {headers.get("authorization") for headers in index.headers}
        assert other.auth is not None
        assert "Basic " + base64.b64encode(":".join(other.auth).encode()).decode() not in sent


# --- where they must not be


def argv_of(machine: Machine, *words: str, env: Mapping[str, str]) -> str:
    """Run a command and give all that it and its children were started with, escapes undone (strace)."""
    log = machine.folder.parent / "strace"
    trace: list[str | Path] = [needs("strace"), "-f", "-qq", "-s", "65536", "-e", "trace=execve,execveat", "-o", log]
    project = machine.project
    command = [*trace, "--", project.program, "-m", "aml_nox", *words]
    run(command, env=project.environment(machine.environment(env)), cwd=project.folder).expect()
    text = log.read_text(encoding="ascii")
    return text.encode().decode("unicode_escape").encode("latin-1", "replace").decode("utf-8", "replace")


def test_no_argument_of_any_process_holds_a_password(machine: Machine, vendor: Index) -> None:
    """Neither where pip fetches uv and uv locks and installs, nor where pip installs."""
    machine.index.add(machine.uv_wheel)
    machine.protect(machine.index)
    env = named("CORP") | named("THE_VENDOR", "other:/p@ss", "other user")
    machine.project.manifest(uv={"source": "index"})
    seen = argv_of(machine, "provision", env=env)
    machine.project.manifest(uv={"source": "none"})
    seen += argv_of(machine, "provision", "--force", env=env)
    for word in ('"download"', '"compile"', '"sync"', '"install"'):
        assert word in seen
    assert vendor.url in seen
    machine.assert_untold(seen)


TOOLS = pytest.mark.parametrize("tool", ["uv", "pip", "pip for uv"])


def failing(machine: Machine, tool: str, env: Mapping[str, str], *words: str) -> dict[str, str]:
    """Run the one tool to its failure, once for people and once for programs, and give the error."""
    if tool == "pip":
        auth, machine.index.auth = machine.index.auth, None
        machine.lock({})
        machine.index.auth = auth
    if tool == "pip for uv":
        machine.index.add(machine.uv_wheel)
        machine.project.manifest(uv={"source": "index"})
    ours = dataclasses.replace(machine, project=machine.project.with_uv() if tool == "uv" else machine.project)
    told = ours.aml("provision", *words, env=env, code=4).err
    error: dict[str, str] = ours.aml("provision", "--json", "-", *words, env=env, code=4).json()["error"]
    assert error["code"] in told
    return error


@TOOLS
@pytest.mark.parametrize("env", [named("CORP", "wr@ng/w%rd:é#1"), {}], ids=["wrong", "none"])
def test_a_password_that_is_wrong_or_missing_is_a_failed_fetch_with_the_way_out(
    machine: Machine, tool: str, env: dict[str, str]
) -> None:
    machine.protect(machine.index)
    machine.passwords.append((USER, "wr@ng/w%rd:é#1"))
    error = failing(machine, tool, env)
    assert error["code"] == "AML_FETCH"
    assert "UV_INDEX_<NAME>_PASSWORD" in error["hint"]
    assert machine.index.url in error["hint"]


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_tool_that_is_ended_at_its_limit_tells_no_password(machine: Machine, tool: str) -> None:
    machine.protect(machine.index)
    project = machine.project
    machine.lock(named("CORP"))
    project.manifest(timeouts={"install": "1s"}, uv=None if tool == "uv" else {"source": "none"})
    machine.index.gate = Gate()
    ours = dataclasses.replace(machine, project=project.with_uv() if tool == "uv" else project)
    assert "AML_TIMEOUT" in ours.aml("provision", env=named("CORP"), code=6).err


@pytest.mark.parametrize(
    ("verb", "url"),
    [
        ("bootstrap", f"http://{quote(USER)}:{quote(PASSWORD, safe='')}@127.0.0.1:9/simple"),
        ("lock", f"http://{USER}:{PASSWORD}@127.0.0.1:9/simple"),
        ("provision", f"https://{USER}:{PASSWORD}@"),
    ],
)
def test_a_mirror_with_a_password_in_its_url_is_refused_and_not_echoed(machine: Machine, verb: str, url: str) -> None:
    machine.passwords.append((USER, PASSWORD))
    machine.index.add(machine.uv_wheel)
    machine.project.manifest(uv={"source": "index"})
    told = machine.aml(verb, env={"AML_INDEX_URL": url}, code=2).err
    assert "AML_USAGE: AML_INDEX_URL" in told
    assert machine.index.requests == []


# --- what they do not decide


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_another_password_locks_and_builds_nothing_anew(machine: Machine, tool: str) -> None:
    machine.protect(machine.index)
    machine.lock(named("CORP"))
    if tool == "uv":
        machine.project.manifest(uv=None)
    project = machine.project.with_uv() if tool == "uv" else machine.project
    first = provision(project, env=machine.environment(named("CORP")))
    assert first.changed
    machine.protect(machine.index, "an/other p@ss")
    for env in (named("CORP", "an/other p@ss"), {}):
        again = provision(project, env=machine.environment(env))
        assert again.warm
        assert not again.lock_changed
        assert again.environment == first.environment


# --- proxies and certificates


class Proxy(Index):
    """An index that answers as a proxy for whatever host it is asked for."""

    def answer(self, target: str, headers: Mapping[str, str]) -> Answer:
        """Decide by the path alone."""
        return super().answer(re.sub(r"^http://[^/]+", "", target), headers)


@pytest.fixture
def proxy(machine: Machine) -> Iterator[Proxy]:
    """Give a proxy that has what the machine's index has, which is to be reached by a name that nobody knows."""
    machine.project.manifest(index={"url": "http://packages.invalid/simple"})
    with Proxy(machine.index.folder) as running:
        yield running


def by_proxy(machine: Machine, address: str) -> dict[str, str]:
    """Give the variables of a proxy with a password."""
    machine.passwords.append((USER, PASSWORD))
    url = f"http://{quote(USER, safe='')}:{quote(PASSWORD, safe='')}@{address.removeprefix('http://')}"
    return {"HTTP_PROXY": url, "http_proxy": url, "NO_PROXY": ""}


@pytest.mark.parametrize("tool", ["uv", "pip", "pip for uv"])
def test_a_proxy_with_a_password_is_used_and_its_password_told_to_nobody(
    machine: Machine, proxy: Proxy, tool: str
) -> None:
    env = by_proxy(machine, proxy.address)
    if tool == "pip for uv":
        machine.index.add(machine.uv_wheel)
        machine.project.manifest(uv={"source": "index"})
        machine.aml("bootstrap", env=env)
    else:
        machine.lock(env)
        if tool == "uv":
            machine.project.manifest(uv=None)
        project = machine.project.with_uv() if tool == "uv" else machine.project
        dataclasses.replace(machine, project=project).aml("provision", env=env)
    assert any("proxy-authorization" in headers for headers in proxy.headers)


@TOOLS
def test_a_proxy_that_is_not_there_is_a_failed_fetch_and_its_password_is_masked(machine: Machine, tool: str) -> None:
    env = by_proxy(machine, "http://127.0.0.1:9")
    assert failing(machine, tool, env)["code"] == "AML_FETCH"


@pytest.fixture
def company(machine: Machine, tmp_path: Path) -> Iterator[Path]:
    """Move the machine's index behind TLS, with a certificate of a company's own authority; give the authority's."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "company.pem")
    with Index(machine.index.folder, tls=context) as index:
        machine.project.manifest(index={"url": index.url})
        yield tmp_path / "company.pem"


@pytest.mark.parametrize(
    ("tool", "variables"),
    [
        ("uv", ["SSL_CERT_FILE"]),
        ("pip", ["SSL_CERT_FILE"]),
        ("pip", ["REQUESTS_CA_BUNDLE"]),
        ("pip", ["PIP_CERT"]),
        ("pip for uv", ["SSL_CERT_FILE"]),
        ("pip for uv", ["PIP_CERT"]),
    ],
)
def test_the_certificate_of_a_companys_authority_is_honoured(
    machine: Machine, company: Path, tool: str, variables: Sequence[str]
) -> None:
    env = dict.fromkeys(variables, str(company))
    if tool == "pip for uv":
        machine.index.add(machine.uv_wheel)
        machine.project.manifest(uv={"source": "index"})
        machine.aml("bootstrap", env=env)
        return
    machine.lock({"SSL_CERT_FILE": str(company)})
    if tool == "uv":
        machine.project.manifest(uv=None)
    project = machine.project.with_uv() if tool == "uv" else machine.project
    dataclasses.replace(machine, project=project).aml("provision", env=env)


@TOOLS
def test_a_certificate_that_nobody_vouches_for_is_a_failed_fetch(machine: Machine, company: Path, tool: str) -> None:
    if tool == "pip":
        machine.lock({"SSL_CERT_FILE": str(company)})
    elif tool == "pip for uv":
        machine.index.add(machine.uv_wheel)
        machine.project.manifest(uv={"source": "index"})
    project = machine.project.with_uv() if tool == "uv" else machine.project
    told = dataclasses.replace(machine, project=project).aml("provision", code=4).err
    assert "AML_FETCH" in told
    assert "certificate" in told.lower()
