"""Fetch one file by URL: held against its sha256, in bounded time, with the caller's proxies, certificates and netrc.

The only file that opens URLs itself; whatever an index serves is fetched by uv or pip.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import netrc
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from aml_nox import interrupts
from aml_nox.errors import AmlError, Code
from aml_nox.process import Redactor

SCHEMES = ("http", "https", "file")
LARGEST = 512 << 20
_CHUNK = 1 << 20
_STALL = 30.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """What arrived: how many bytes, and their sha256."""

    size: int
    sha256: str


def fetch(url: str, into: Path, *, limit: float, environ: Mapping[str, str], sha256: str | None = None) -> Fetched:
    """Write what `url` (http, https, file) holds to a file; `limit` is in seconds for the whole.

    Raises:
        AmlError: AML_FETCH when it cannot be had whole, AML_INTEGRITY when its sha256 is another, AML_TIMEOUT.

    """
    shown, end = Redactor.of(environ)(url), time.monotonic() + limit
    fetched = _bounded(lambda: _transfer(url, into, end, environ, shown), end, shown)
    if sha256 is not None and fetched.sha256 != sha256:
        message = f"{shown} has sha256 {fetched.sha256}, the manifest promises {sha256}"
        raise AmlError(Code.INTEGRITY, message, "find out which one is right; the file was not used")
    return fetched


def _bounded(work: Callable[[], Fetched], end: float, shown: str) -> Fetched:
    """Let a thread do it: a read cannot be left, the wait for it can, at the limit and when we are asked to end."""
    results: list[Fetched | AmlError | OSError] = []

    def run() -> None:
        try:
            results.append(work())
        except (AmlError, OSError) as error:  # raised by who waits; a bug of ours keeps its traceback
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        interrupts.honour()
        if (left := end - time.monotonic()) <= 0:
            raise _too_long(shown)
        thread.join(min(left, interrupts.STEP))
    (result,) = results
    if not isinstance(result, Fetched):
        raise result
    return result


def _too_long(shown: str) -> AmlError:
    return AmlError(Code.TIMEOUT, f"{shown} took longer than its limit and was left", "raise [timeouts]")


def _transfer(url: str, into: Path, end: float, environ: Mapping[str, str], shown: str) -> Fetched:
    try:
        with _opener(environ).open(_request(url, environ), timeout=_STALL) as reply, into.open("xb") as out:
            return _copy(reply, out, end, shown)
    except urllib.error.HTTPError as error:
        error.close()
        raise AmlError(Code.FETCH, f"{shown} answered {error.code} {error.reason}", _hint(error.code)) from None
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ssl.SSLError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        raise AmlError(Code.FETCH, f"{shown} could not be fetched: {reason}", _hint(0)) from None


def _hint(status: int) -> str:
    if status in {401, 403}:
        return "put the host's user name and password into netrc"
    return "check the URL" if status else "check the URL, the network, and the proxy and certificate variables"


def _copy(reply: Any, out: IO[bytes], end: float, shown: str) -> Fetched:  # noqa: ANN401 - urllib's own answer
    digest, size = hashlib.sha256(), 0
    while data := reply.read1(_CHUNK):
        out.write(data)
        digest.update(data)
        size += len(data)
        if time.monotonic() > end:
            raise _too_long(shown)
        if size > LARGEST:
            raise AmlError(Code.FETCH, f"{shown} is larger than {LARGEST >> 20} MiB", "check the URL")
    expected = reply.headers.get("Content-Length") or ""
    if expected.isdecimal() and size != int(expected):
        raise AmlError(Code.FETCH, f"{shown} was cut off after {size} of {expected} bytes", "run the command again")
    return Fetched(size, digest.hexdigest())


def _request(url: str, environ: Mapping[str, str]) -> urllib.request.Request:
    request = urllib.request.Request(url, headers={"User-Agent": "aml-nox"})  # noqa: S310 - checked by urls.py
    if credentials := _from_netrc(urlsplit(url).hostname or "", environ):
        # Not a header of the request: urllib would send that to whatever host a redirect names.
        request.add_unredirected_header("Authorization", credentials)
    return request


def _from_netrc(host: str, environ: Mapping[str, str]) -> str | None:
    """The Basic credentials (RFC 7617) of a host, from the file that NETRC names or ~/.netrc."""
    path = environ.get("NETRC") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".netrc")  # noqa: PTH111, PTH118 - as curl looks for it
    try:
        found = netrc.netrc(path).authenticators(host)
    except (OSError, netrc.NetrcParseError, UnicodeError):
        return None
    if found is None:
        return None
    user, _, password = found
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _opener(environ: Mapping[str, str]) -> urllib.request.OpenerDirector:
    authority = environ.get("SSL_CERT_FILE") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    try:
        context = ssl.create_default_context(cafile=authority)
    except OSError as error:
        message = f"the certificates of {authority} cannot be read: {error.strerror or error}"
        raise AmlError(Code.FETCH, message, "correct SSL_CERT_FILE, REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE") from None
    proxies = urllib.request.getproxies()
    if (proxy := proxies.get("all")) is not None:  # urllib knows of no such thing; uv and pip do
        proxies = dict.fromkeys(("http", "https"), proxy) | proxies
    handlers = (urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context), _Redirects)
    return urllib.request.build_opener(*handlers)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects are followed: with the credentials on the same server alone, and never from https to less."""

    def redirect_request(  # noqa: PLR0917 - the signature is theirs
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if old.scheme == "https" != new.scheme:
            fp.close()
            raise urllib.error.URLError(f"it leads from https to {new.scheme}")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        credentials = req.unredirected_hdrs.get("Authorization")
        if request is not None and credentials and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            request.add_unredirected_header("Authorization", credentials)
        return request
