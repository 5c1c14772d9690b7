"""URLs that a manifest may hold: checked before use, and one spelling for digests. No message ever echoes a URL."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from aml_nox.faults import fault

SCHEMES = ("http", "https", "file")
_DEFAULT_PORTS = {"http": 80, "https": 443}
CREDENTIALS = "credentials go into UV_INDEX_<NAME>_USERNAME and UV_INDEX_<NAME>_PASSWORD, into netrc, or into a keyring"


def check_url(text: str) -> str:
    """Return the URL of an index or a mirror, to which names get appended; raises ``FaultError``."""
    parts = _checked(text)
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise fault("the URL has a query or a fragment, which is lost when names are appended; end it with the path")
    return text


def check_link(text: str) -> str:
    """Return the URL of one file, which may have a query and a fragment; raises ``FaultError``."""
    _checked(text)
    return text


def normal_url(url: str) -> str:
    """Return the one spelling of a checked URL: scheme and host in lower case, no default port, no trailing slashes.

    The case of the path is kept: servers tell ``/Simple`` from ``/simple``. A user part is dropped.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}{query}{fragment}"


def _checked(text: str) -> SplitResult:
    _check_characters(text)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        # The standard library's message holds the authority, and with it the password.
        raise fault("the URL cannot be read: its host or port is malformed; write https://HOST:PORT/PATH") from None
    if "@" in parts.netloc:
        raise fault(f"the URL holds a user name or password; take it out: {CREDENTIALS}")
    _check_scheme(text, parts)
    if parts.scheme != "file" and (not parts.hostname or port == 0):
        raise fault("the URL names no host; write https://HOST/PATH")
    return parts


def _check_characters(text: str) -> None:
    if not text:
        raise fault("the URL is empty; write https://… or take the key out")
    if any(char.isspace() or not char.isprintable() for char in text):
        raise fault("the URL holds a space or a control character; write a space as %20")
    if "$" in text:
        raise fault(f"variables are not expanded in a URL; write it out ({CREDENTIALS})")
    if "\\" in text:
        # Browsers' rules, which uv follows, read it as a slash; Python does not: the two would see different hosts.
        raise fault("the URL holds a backslash; write /")


def _check_scheme(text: str, parts: SplitResult) -> None:
    if parts.scheme in SCHEMES:
        if parts.scheme == "file" and not text[5:].startswith("//"):
            raise fault("a file URL is absolute; write file:///PATH")
        return
    if "@" in text.partition("/")[0]:
        raise fault(f"the URL holds a user name or password, and no scheme; write https://HOST/PATH: {CREDENTIALS}")
    if "://" in text:
        raise fault("the URL has another scheme than http, https or file; use one of these")
    raise fault("the URL has no scheme and would be taken as a local folder; write https://… or file:///…")
