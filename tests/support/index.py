"""A real package index on loopback, with the faults that real ones have.

It answers as the Simple Repository API says (PEP 503 HTML, PEP 691 JSON with PEP 700's size and upload time, PEP 592
yanks, PEP 658 metadata). Everything a test wants changed is an attribute, read anew at each request.
"""

from __future__ import annotations

import base64
import contextlib
import email
import hashlib
import html
import json
import shutil
import socketserver
import ssl
import sys
import threading
import urllib.parse
import zipfile
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import Self

_HOST = "127.0.0.1"
_JSON = "application/vnd.pypi.simple.v1+json"
_LONG = 60.0  # seconds; a bound so that a broken test ends, never a time that a test needs
_UPLOADED = "2020-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes out for one request: decided first, written afterwards."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    gated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A distribution file as a listing shows it."""

    file: str
    name: str
    version: str
    sha256: str
    size: int
    requires_python: str
    metadata: bytes


class Gate(threading.Event):
    """A gate for ``Index.gate``, which also tells when a download stands before it."""

    def __init__(self) -> None:
        super().__init__()
        self._reached = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Stand before the gate until it is set (the index's side)."""
        self._reached.set()
        return super().wait(timeout)

    def wait_reached(self) -> None:
        """Return as soon as a client has half a file and waits for the rest: the moment to kill it."""
        assert self._reached.wait(_LONG), "no download reached the gate"


class Index:
    """An index of the wheels and sdists in *folder*, from ``with`` to its end, on a port of its own.

    Files that are added, replaced or deleted while it runs show at the next request. Files of other names are not
    listed but served under ``/files/``. All knobs are public attributes; ``requests`` and ``headers`` grow in step.
    With *tls*, a server's context, it speaks HTTPS.
    """

    _ports: ClassVar[set[int]] = set()

    def __init__(self, folder: Path, *, tls: ssl.SSLContext | None = None) -> None:
        self.folder = folder
        self.scheme = "https" if tls else "http"
        self.requests: list[str] = []  # "GET /simple/demo-alpha/"
        self.headers: list[dict[str, str]] = []  # of each request, names in lower case
        self.auth: tuple[str, str] | None = None  # user, password; anything else is answered 401
        self.status: dict[str, int] = {}  # path prefix → the status to answer with, the longest prefix wins
        self.gate: Gate | None = None  # each file stops in the middle of its body until this is set
        self.truncate: set[str] = set()  # files whose body ends in the middle
        self.corrupt: set[str] = (
            set()
        )  # files with one byte flipped, under the hash of the right one: uv may stumble over the zip first
        self.replaced: dict[str, bytes] = {}  # file → other bytes (a forged wheel) under the hash of the right one
        self.yanked: dict[str, str] = {}  # file → reason
        self.uploaded: dict[str, str] = {}  # file → upload time, RFC 3339
        self.hide: set[str] = set()  # projects that are answered 404
        self.html_only = False  # an old index: no JSON, whatever is asked for
        self.core_metadata = True  # False: an index without PEP 658, clients read the wheel for its metadata
        self._known: dict[Path, tuple[tuple[int, ...], Listed | None]] = {}
        self._news = threading.Condition()
        self._server = _fresh_port_server(self, self._ports)
        if tls:  # the handshake is left to the thread of each request: one that hangs holds nobody up
            plain = self._server.socket
            self._server.socket = tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        # poll_interval is how long shutdown may take; the default of half a second would be paid by every test.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.gate:
            self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._server.faults:
            raise self._server.faults[0]

    @property
    def address(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{_HOST}:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """What an ``index.url`` of a manifest names."""
        return f"{self.address}/simple"

    def add(self, *paths: Path) -> None:
        """Copy files, or all files of folders, into the index."""
        for path in paths:
            for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                shutil.copy2(file, self.folder / file.name)

    def sha256(self, file: str) -> str:
        """Give the hash that the listing shows for *file*."""
        return hashlib.sha256((self.folder / file).read_bytes()).hexdigest()

    def wait_for(self, prefix: str, count: int = 1) -> None:
        """Return as soon as *count* requests began with *prefix* ("GET /files/")."""

        def enough() -> bool:
            return sum(request.startswith(prefix) for request in self.requests) >= count

        with self._news:
            assert self._news.wait_for(enough, _LONG), f"no {count} of {prefix!r} in {self.requests}"

    def note(self, request: str, headers: Mapping[str, str]) -> None:
        """Log a request and wake who waits for it."""
        with self._news:
            self.requests.append(request)
            self.headers.append(dict(headers))
            self._news.notify_all()

    def answer(self, target: str, headers: Mapping[str, str]) -> Answer:
        """Decide what a request for *target* gets; the names of *headers* are in lower case."""
        path = urllib.parse.unquote(target.partition("?")[0])
        forced = [prefix for prefix in self.status if path.startswith(prefix)]
        if forced:
            return Answer(status=self.status[max(forced, key=len)], body=b"as the test ordered\n")
        if self.auth and headers.get("authorization") != _basic(*self.auth):
            return Answer(status=HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": 'Basic realm="index"'})
        kind, _, name = path.removeprefix("/").partition("/")
        if kind == "files":
            return self._file(name)
        if kind == "simple":
            return self._simple(name.rstrip("/"), as_json=_JSON in headers.get("accept", "") and not self.html_only)
        return Answer(status=HTTPStatus.NOT_FOUND)

    def _file(self, name: str) -> Answer:
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            return Answer(status=HTTPStatus.NOT_FOUND)
        if name.endswith(".metadata"):
            return self._metadata(path.with_suffix(""))
        return self._content(name, path) if path.is_file() else Answer(status=HTTPStatus.NOT_FOUND)

    def _content(self, name: str, path: Path) -> Answer:
        body = self.replaced[name] if name in self.replaced else path.read_bytes()
        return Answer(
            status=HTTPStatus.OK,
            body=_one_byte_wrong(body) if name in self.corrupt else body,
            headers={"Content-Type": "application/octet-stream", "Cache-Control": "max-age=600, immutable"},
            cut=name in self.truncate,
            gated=True,
        )

    def _metadata(self, wheel: Path) -> Answer:
        listed = self._look(wheel) if wheel.is_file() and self.core_metadata else None
        if not listed or not listed.metadata:
            return Answer(status=HTTPStatus.NOT_FOUND)
        return Answer(status=HTTPStatus.OK, body=listed.metadata, headers={"Content-Type": "text/plain"})

    def _simple(self, name: str, *, as_json: bool) -> Answer:
        project = canonicalize_name(name)
        shown = [item for item in self._listed() if item.name not in self.hide and (not name or item.name == project)]
        if name and not shown:
            return Answer(status=HTTPStatus.NOT_FOUND)
        if name:
            text = self._project_json(project, shown) if as_json else self._project_html(shown)
        else:
            names = sorted({item.name for item in shown})
            text = _names_json(names) if as_json else _page(f'<a href="/simple/{n}/">{n}</a>' for n in names)
        return Answer(
            status=HTTPStatus.OK, body=text.encode(), headers={"Content-Type": _JSON if as_json else "text/html"}
        )

    def _project_json(self, project: str, files: list[Listed]) -> str:
        return json.dumps(
            {
                "meta": {"api-version": "1.1"},
                "name": project,
                "versions": sorted({item.version for item in files}),
                "files": [self._file_json(item) for item in files],
            }
        )

    def _file_json(self, item: Listed) -> dict[str, object]:
        known: dict[str, object] = {
            "filename": item.file,
            "url": _file_url(item.file),
            "hashes": {"sha256": item.sha256},
            "size": item.size,
            "upload-time": self.uploaded.get(item.file, _UPLOADED),
            "yanked": self.yanked.get(item.file, False),
        }
        if item.requires_python:
            known["requires-python"] = item.requires_python
        if item.metadata and self.core_metadata:
            known["core-metadata"] = {"sha256": hashlib.sha256(item.metadata).hexdigest()}
        return known

    def _project_html(self, files: list[Listed]) -> str:
        return _page(f"<a {self._attributes(item)}>{item.file}</a>" for item in files)

    def _attributes(self, item: Listed) -> str:
        values = {"href": f"{_file_url(item.file)}#sha256={item.sha256}"}
        if item.requires_python:
            values["data-requires-python"] = item.requires_python
        if item.file in self.yanked:
            values["data-yanked"] = self.yanked[item.file]
        if item.metadata and self.core_metadata:
            values["data-core-metadata"] = f"sha256={hashlib.sha256(item.metadata).hexdigest()}"
        return " ".join(f'{name}="{html.escape(value)}"' for name, value in values.items())

    def _listed(self) -> list[Listed]:
        found = (self._look(path) for path in sorted(self.folder.iterdir()) if path.is_file())
        return [item for item in found if item]

    def _look(self, path: Path) -> Listed | None:
        """Read a file, or remember it: hashing uv's forty megabytes for each request would be felt."""
        stat = path.stat()
        mark = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        known = self._known.get(path)
        if known is None or known[0] != mark:
            known = self._known[path] = (mark, _read(path))
        return known[1]


class _Server(ThreadingHTTPServer):
    """A quiet server that keeps its own faults for the test, and looks up no name."""

    request_queue_size = 128  # uv opens dozens of connections at once

    def __init__(self, index: Index) -> None:
        self.index = index
        self.faults: list[BaseException] = []
        super().__init__((_HOST, 0), _Handler)

    def server_bind(self) -> None:
        """Bind, without the reverse look-up of HTTPServer, which may ask a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = _HOST, int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the signature is theirs
        """Keep what went wrong here for the end of the test; a client that left or trusts nobody is no fault."""
        fault = sys.exception()
        if fault and not isinstance(fault, ConnectionError | ssl.SSLError):
            self.faults.append(fault)


class _Handler(BaseHTTPRequestHandler):
    """Writes what the index decided."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes; Nagle would hold the second for 40 ms
    server: _Server

    def do_GET(self) -> None:
        """Answer, body included."""
        answer = self._head()
        half = len(answer.body) // 2
        self.wfile.write(answer.body[:half])
        gate = self.server.index.gate
        if gate and answer.gated:
            gate.wait()
        if answer.cut:
            self.close_connection = True
        else:
            self.wfile.write(answer.body[half:])

    def do_HEAD(self) -> None:
        """Answer without the body. No Accept-Ranges: clients that want a part of a file must take all of it."""
        self._head()

    def _head(self) -> Answer:
        index = self.server.index
        headers = {name.lower(): value for name, value in self.headers.items()}  # uv sends lower case, pip does not
        index.note(f"{self.command} {self.path}", headers)
        answer = index.answer(self.path, headers)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        return answer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature is theirs
        """Say nothing: Index.requests is the log."""


def _fresh_port_server(index: Index, used: set[int]) -> _Server:
    """Open a server on a port that no earlier index of this process had.

    uv's cache knows a file by its URL. On a port that comes around again, a test would be served another test's files.
    """
    rejected = []
    while (server := _Server(index)).server_port in used:
        rejected.append(server)  # kept open, or the system could offer the same port again
    for other in rejected:
        other.server_close()
    used.add(server.server_port)
    return server


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _file_url(file: str) -> str:
    return f"/files/{urllib.parse.quote(file)}"


def _names_json(names: list[str]) -> str:
    return json.dumps({"meta": {"api-version": "1.1"}, "projects": [{"name": name} for name in names]})


def _page(anchors: Iterable[str]) -> str:
    return "<!DOCTYPE html>\n<html><body>\n" + "<br>\n".join(anchors) + "\n</body></html>\n"


def _one_byte_wrong(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 0xFF]) + body[middle + 1 :]


def _read(path: Path) -> Listed | None:
    """Give what a listing says of a file; None for what is no distribution."""
    parsed = _parse(path.name)
    if parsed is None:
        return None
    data, metadata = path.read_bytes(), _wheel_metadata(path)
    return Listed(
        file=path.name,
        name=parsed[0],
        version=parsed[1],
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        requires_python=str(email.message_from_bytes(metadata).get("Requires-Python", "")),
        metadata=metadata,
    )


def _parse(file: str) -> tuple[str, str] | None:
    with contextlib.suppress(InvalidWheelFilename):
        name, version, *_ = parse_wheel_filename(file)
        return name, str(version)
    with contextlib.suppress(InvalidSdistFilename):
        name, version = parse_sdist_filename(file)
        return name, str(version)
    return None


def _wheel_metadata(path: Path) -> bytes:
    """Give a wheel's METADATA; nothing for an sdist and for a file that only claims to be a wheel."""
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".dist-info/METADATA"):
                return archive.read(name)
    return b""
