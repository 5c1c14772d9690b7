"""URLs: what is refused, that nothing is echoed, and the one spelling."""

from __future__ import annotations

import re
import string
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aml_nox.faults import FaultError
from aml_nox.urls import check_link, check_url, normal_url


@pytest.mark.parametrize(
    ("url", "needle"),
    [
        ("", "is empty"),
        ("index.example.com/simple", "no scheme"),
        ("/srv/index", "no scheme"),
        ("ftp://index.example.com", "another scheme"),
        ("https://me:hunter2@index.example.com/simple", "user name or password"),
        ("https://hunter2@index.example.com/simple", "UV_INDEX_<NAME>_PASSWORD"),
        ("me:hunter2@index.example.com/simple", "user name or password"),
        ("https://me:hunter2/@index.example.com", "malformed"),
        ("https://$TOKEN@index.example.com", "variables are not expanded"),
        ("https://index.example.com/${X}", "variables are not expanded"),
        ("https:///simple", "names no host"),
        ("https:/index.example.com/simple", "names no host"),
        ("https:me:hunter2@index.example.com", "names no host"),
        ("https://:80/simple", "names no host"),
        ("https://index.example.com:0/", "names no host"),
        ("https://index.example.com:x/", "malformed"),
        ("https://index.example.com:99999/", "malformed"),
        ("https://[::1/simple", "malformed"),
        ("https://index.example.com/a b", "space"),
        ("https://index.example.com/\x1b[0m", "control character"),
        ("https://index.example.com\\@hunter2.example.com/", "backslash"),
        ("file:simple", "absolute"),
        ("https://index.example.com/simple?token=hunter2", "query"),
        ("https://index.example.com/simple#hunter2", "fragment"),
        ("https://index.example.com/simple?", "query"),
    ],
)
def test_a_url_that_leaks_or_means_something_else_is_refused_and_not_echoed(url: str, needle: str) -> None:
    with pytest.raises(FaultError, match=re.escape(needle)) as caught:
        check_url(url)
    assert "hunter2" not in str(caught.value)
    assert ";" in str(caught.value)


def test_the_url_of_a_file_may_have_what_the_url_of_an_index_may_not() -> None:
    url = "https://files.example.com/a.whl?x=1#sha256=00"
    assert check_link(url) == normal_url(url) == url


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("HTTPS://Index.Example.COM:443/Simple//", "https://index.example.com/Simple"),
        ("http://index.example.com:80", "http://index.example.com"),
        ("http://index.example.com:0443/x", "http://index.example.com:443/x"),
        ("https://index.example.com:/x", "https://index.example.com/x"),
        ("https://[2001:DB8::1]:8443/x/", "https://[2001:db8::1]:8443/x"),
        ("file:///Srv/Index/", "file:///Srv/Index"),
        ("FILE://localhost/srv", "file://localhost/srv"),
    ],
)
def test_a_normal_url_drops_what_has_no_meaning_and_keeps_the_case_of_the_path(url: str, normal: str) -> None:
    assert normal_url(check_url(url)) == normal


HOSTS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9-]{0,8}[A-Za-z0-9])?(\.[A-Za-z]{2,4}){0,2}", fullmatch=True)
PATHS = st.text(string.ascii_letters + string.digits + "/.-_~%+=:", max_size=20).map(lambda path: f"/{path}")


@given(st.sampled_from(["http", "https", "HTTPS"]), HOSTS, st.none() | st.integers(1, 65535), PATHS)
def test_normalising_twice_is_normalising_once(scheme: str, host: str, port: int | None, path: str) -> None:
    url = normal_url(check_url(f"{scheme}://{host}{'' if port is None else f':{port}'}{path}"))
    assert normal_url(url) == url == check_url(url)
    parts = urlsplit(url)
    assert (parts.hostname, parts.path) == (host.lower(), path.rstrip("/"))


@given(st.text(string.printable, max_size=30))
def test_any_text_is_a_url_or_a_fault(text: str) -> None:
    try:
        url = normal_url(check_url(text))
    except FaultError:
        return
    assert normal_url(url) == url
