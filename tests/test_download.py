"""Fetching one file by URL: whole or not at all, in bounded time, with the caller's credentials, proxy and trust."""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from aml_nox import download
from aml_nox.errors import AmlError, Code
from tests.support.index import Gate, Index
from tests.support.processes import LIMIT
from tests.support.project import Project

BODY = b"what was asked for\n"
BASIC = "Basic YWRhOnMzY3JldA=="  # ada:s3cret


@dataclass
class Server:
    """A server on loopback of which a test writes each answer; it keeps what it was asked, and by what name."""

    answers: dict[str, Callable[[http.server.BaseHTTPRequestHandler], None]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and Authorization
    port: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str = "/file", *, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Run a server; with a context it speaks TLS."""
    known = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.asked.append((self.path, self.headers.get("Authorization")))
            known.answers.get(self.path, plain)(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature is theirs
            pass

    class Quiet(http.server.ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that refused our certificate, or left, is what the test is about."""

    server = Quiet(("127.0.0.1", 0), Handler)
    known.port = server.server_address[1]
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield known
    finally:
        known.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def answer(
    status: int = 200, body: bytes = BODY, **headers: str
) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    """Give an answer; an underscore in a header's name stands for a hyphen."""

    def write(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return write


plain = answer()


def redirect(url: str) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    return answer(302, b"", Location=url)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "fetched"


def fetch(url: str, target: Path, *, limit: float = LIMIT, sha256: str | None = None) -> download.Fetched:
    return download.fetch(url, target, limit=limit, environ=os.environ, sha256=sha256)


def refusal(url: str, target: Path, *, limit: float = LIMIT, sha256: str | None = None) -> AmlError:
    with pytest.raises(AmlError) as caught:
        fetch(url, target, limit=limit, sha256=sha256)
    return caught.value


# --- whole, or not at all


def test_what_arrived_is_measured(server: Server, target: Path) -> None:
    assert fetch(server.url(), target) == download.Fetched(len(BODY), hashlib.sha256(BODY).hexdigest())
    assert target.read_bytes() == BODY


def test_a_file_url_is_a_url(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "a file"
    source.write_bytes(BODY)
    assert fetch(source.as_uri(), target).size == len(BODY)
    missing = refusal((tmp_path / "none").as_uri(), tmp_path / "other")
    assert (missing.code, "No such file" in missing.message) == (Code.FETCH, True)


def test_a_file_that_is_there_is_not_overwritten(server: Server, target: Path) -> None:
    target.write_text("mine")
    with pytest.raises(FileExistsError):
        fetch(server.url(), target)
    assert target.read_text() == "mine"


def test_bytes_that_were_not_promised_are_refused(server: Server, target: Path) -> None:
    error = refusal(server.url(), target, sha256="0" * 64)
    assert error.code is Code.INTEGRITY
    assert hashlib.sha256(BODY).hexdigest() in error.message
    assert "0" * 64 in error.message


def chunked(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"13\r\nhalf of")


def silent(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def garbage(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"SSH-2.0-server\r\n")


CUT: Mapping[str, tuple[Callable[[http.server.BaseHTTPRequestHandler], None], str]] = {
    "too-short": (answer(Content_Length=str(len(BODY) + 1)), f"was cut off after {len(BODY)} of {len(BODY) + 1} bytes"),
    "chunk": (chunked, "could not be fetched"),
    "no-answer": (silent, "could not be fetched: "),
    "no-http": (garbage, "could not be fetched: SSH-2.0-server"),
    "gone": (answer(410), "answered 410 Gone"),
    "refused": (answer(401), "answered 401 Unauthorized"),
    "loop": (lambda handler: redirect(handler.path)(handler), "answered 302"),
    "elsewhere": (redirect("file:///etc/hostname"), "answered 302"),
}


@pytest.mark.parametrize("kind", CUT)
def test_what_does_not_arrive_whole_is_a_failed_fetch(server: Server, target: Path, kind: str) -> None:
    server.answers["/file"], words = CUT[kind]
    error = refusal(server.url(), target)
    assert (error.code, words in error.message) == (Code.FETCH, True), error.message
    assert error.hint


@pytest.mark.parametrize("length", ["abc", "-1", ""])
def test_a_length_that_is_none_is_no_promise(server: Server, target: Path, length: str) -> None:
    server.answers["/file"] = answer(Content_Length=length)
    assert fetch(server.url(), target).size == len(BODY)


def test_a_file_that_never_ends_is_left(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a length nothing tells how much is to come."""
    monkeypatch.setattr(download, "LARGEST", 1 << 20)

    def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not server.ended.is_set():
            handler.wfile.write(bytes(1 << 16))

    server.answers["/file"] = endless
    error = refusal(server.url(), target)
    assert (error.code, "is larger than 1 MiB" in error.message) == (Code.FETCH, True)


# --- in bounded time


def no_answer(server: Server) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def write(_: http.server.BaseHTTPRequestHandler) -> None:
        server.ended.wait(LIMIT)

    return write


def stalls(server: Server) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def write(handler: http.server.BaseHTTPRequestHandler) -> None:
        answer(Content_Length="999")(handler)
        server.ended.wait(LIMIT)

    return write


def drips(where: str) -> Callable[[Server], Callable[[http.server.BaseHTTPRequestHandler], None]]:
    """Each byte comes in time, the whole never."""

    def make(server: Server) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
        def write(handler: http.server.BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"HTTP/1.0 200 OK\r\n" + (b"\r\n" if where == "body" else b"X-Long: "))
            while not server.ended.wait(0.05):
                handler.wfile.write(b"x")

        return write

    return make


@pytest.mark.parametrize(
    "slow", [no_answer, stalls, drips("body"), drips("head")], ids=["no-answer", "stalls", "drips", "drips-head"]
)
def test_whatever_a_server_does_the_limit_holds(
    server: Server, target: Path, slow: Callable[[Server], Callable[[http.server.BaseHTTPRequestHandler], None]]
) -> None:
    server.answers["/file"] = slow(server)
    error = refusal(server.url(), target, limit=0.5)
    assert (error.code, "took longer than its limit" in error.message) == (Code.TIMEOUT, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_end_ends_a_download(
    project: Project, index: Index, tmp_path: Path, number: signal.Signals
) -> None:
    """It does not wait for the next byte, nor for any limit; nothing is left."""
    (index.folder / "uv.zip").write_bytes(bytes(1000))
    (tmp_path / "temp").mkdir()
    platform = dict.fromkeys(("linux-x86_64", "linux-arm64", "macos-arm64"), "0" * 64)
    project.manifest(uv={"source": "url", "url": f"{index.address}/files/uv.zip", "sha256": platform})
    gate = index.gate = Gate()
    with project.start_aml("bootstrap", env={"TMPDIR": str(tmp_path / "temp")}) as process:
        gate.wait_reached()
        process.send_signal(number)
        run = process.finish(limit=20)  # what stalls is left after 30 seconds
    assert run.code == 128 + number
    assert "Traceback" not in run.err
    assert list((tmp_path / "temp").iterdir()) == []


# --- credentials


NETRC = "machine 127.0.0.1 login ada password s3cret\n"


@pytest.mark.parametrize("place", ["NETRC", "home"])
def test_credentials_are_taken_from_netrc(
    server: Server, target: Path, fresh_home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = fresh_home / (".netrc" if place == "home" else "elsewhere")
    path.write_text(NETRC)
    if place == "NETRC":
        (fresh_home / ".netrc").write_text(NETRC.replace("s3cret", "other"))
        monkeypatch.setenv("NETRC", str(path))
    fetch(server.url(), target)
    assert server.asked == [("/file", BASIC)]


@pytest.mark.parametrize(
    "text", [b"", b"machine other.example login ada password s3cret\n", b"machine 127.0.0.1 \xff\n", b"nonsense"]
)
def test_a_netrc_that_has_nothing_for_the_host_gives_nothing(
    server: Server, target: Path, fresh_home: Path, text: bytes
) -> None:
    """Nor does one that cannot be read: no stranger to a netrc needs one."""
    (fresh_home / ".netrc").write_bytes(text)
    fetch(server.url(), target)
    assert server.asked == [("/file", None)]


def test_a_redirect_to_another_host_gets_no_credentials(server: Server, target: Path, fresh_home: Path) -> None:
    """Another name is another host, wherever it leads; on the same server they are kept."""
    (fresh_home / ".netrc").write_text(NETRC)
    server.answers["/file"] = redirect("/same")
    server.answers["/same"] = redirect(server.url("/other", host="localhost"))
    fetch(server.url(), target)
    assert server.asked == [("/file", BASIC), ("/same", BASIC), ("/other", None)]


def test_a_redirect_to_another_port_gets_no_credentials(server: Server, target: Path, fresh_home: Path) -> None:
    (fresh_home / ".netrc").write_text(NETRC)
    with serving() as other:
        server.answers["/file"] = redirect(other.url())
        fetch(server.url(), target)
        assert other.asked == [("/file", None)]


def test_a_refusal_names_netrc_and_no_password(server: Server, target: Path, fresh_home: Path) -> None:
    (fresh_home / ".netrc").write_text(NETRC)
    server.answers["/file"] = answer(401)
    error = refusal(server.url(), target)
    assert "netrc" in error.hint
    assert "s3cret" not in error.message + error.hint


# --- proxies


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_a_proxy_is_honoured(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It is asked for the whole URL of a host that nobody else could find."""
    monkeypatch.setenv(name, server.url(""))
    server.answers["http://files.invalid/file"] = plain
    fetch("http://files.invalid/file", target)
    assert server.asked == [("http://files.invalid/file", None)]


def test_a_host_can_be_kept_from_the_proxy(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert fetch(server.url(), target).size == len(BODY)


def test_a_proxys_password_is_not_told(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://ada:s3cret@127.0.0.1:1")
    error = refusal("http://files.invalid/file", target)
    assert error.code is Code.FETCH
    assert "s3cret" not in error.message + error.hint


# --- trust


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Give a company's own certificate authority, which no machine knows."""
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serving(context) as running:
        yield running


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_company_is_trusted_where_the_caller_names_its_certificate(
    secure: Server, authority: trustme.CA, target: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(other, raising=False)
    error = refusal(secure.url(scheme="https"), target)
    assert (error.code, "CERTIFICATE_VERIFY_FAILED" in error.message) == (Code.FETCH, True)
    assert "certificate" in error.hint
    bundle = target.with_name("company.pem")
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv(name, str(bundle))
    assert fetch(secure.url(scheme="https"), target).size == len(BODY)
    wrong = refusal(secure.url(scheme="https", host="localhost"), target.with_name("other"))
    assert (wrong.code, "CERTIFICATE_VERIFY_FAILED" in wrong.message) == (Code.FETCH, True)


@pytest.mark.parametrize("text", [None, "", "no certificate\n"], ids=["missing", "empty", "nonsense"])
def test_a_certificate_that_cannot_be_read_is_named(
    secure: Server, target: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    bundle = target.with_name("company.pem")
    if text is not None:
        bundle.write_text(text)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    error = refusal(secure.url(scheme="https"), target)
    assert (error.code, str(bundle) in error.message) == (Code.FETCH, True)


def test_https_is_never_left_for_less(
    secure: Server, server: Server, authority: trustme.CA, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stands in between could answer: an installer has no digest that would tell."""
    bundle = target.with_name("company.pem")
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    secure.answers["/file"] = redirect(server.url())
    error = refusal(secure.url(scheme="https"), target)
    assert (error.code, "from https to http" in error.message) == (Code.FETCH, True)
    assert server.asked == []
