"""Requirement strings: their one normal form, and what cannot be locked."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aml_nox.faults import FaultError
from aml_nox.pep508 import parse

WHEEL = "a-1-py3-none-any.whl"
FILES = "https://files.example.com"


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("NumPy", "numpy"),
        ("  Foo_Bar\t>= 1 ", "foo-bar>=1"),
        ("a<2,>=1,<2", "a<2,>=1"),
        ("a[Y_z, X]==1.*", "a[x,y-z]==1.*"),
        ("a ; python_version>='3.8' and  extra == 'Some_X'", 'a; python_version >= "3.8" and extra == "some-x"'),
        ('a>=1; platform_machine=="x/y"', 'a>=1; platform_machine == "x/y"'),
        (f"a @ wheels//./{WHEEL}", f"a @ ./wheels/{WHEEL}"),
        (f"a @ ./{WHEEL}  ", f"a @ ./{WHEEL}"),
        (f"A@./{WHEEL}", f"a @ ./{WHEEL}"),
        (f"a[x] @ ../b/{WHEEL} ;os_name=='nt'", f'a[x] @ ../b/{WHEEL} ; os_name == "nt"'),
        (f"a @ ./with space/{WHEEL}", f"a @ ./with space/{WHEEL}"),
        (f"a @ ./100%25#?/{WHEEL}", f"a @ ./100%25#?/{WHEEL}"),
        (f"a @ file:///srv/w%20x/{WHEEL}", f"a @ file:///srv/w%20x/{WHEEL}"),
        (f"a @ file://LocalHost/srv/%61/{WHEEL}", f"a @ file:///srv/a/{WHEEL}"),
        (f"a @ /srv/100%/{WHEEL}", f"a @ file:///srv/100%25/{WHEEL}"),
        (f"a @ file:///C:/w/{WHEEL}", f"a @ file:///C:/w/{WHEEL}"),
        (f"a @ HTTPS://Files.Example.com:443/W/{WHEEL}", f"a @ {FILES}/W/{WHEEL}"),
        (f"a @ {FILES}/a-1%2Bcpu-py3-none-any.whl", f"a @ {FILES}/a-1%2Bcpu-py3-none-any.whl"),
        (f"a @ {FILES}/{WHEEL}#sha256={'0a' * 32}", f"a @ {FILES}/{WHEEL}#sha256={'0a' * 32}"),
    ],
)
def test_a_requirement_has_one_normal_form_which_reads_as_itself(written: str, normal: str) -> None:
    found = parse(written)
    assert found.text == normal
    assert parse(normal) == found


@pytest.mark.parametrize(
    ("written", "needle"),
    [
        ("", "is empty"),
        ("a\nb", "line break"),
        ("a\x1b", "control character"),
        ("a b", "not a PEP 508 requirement: Expected"),
        ("a==x @ https://me:hunter2@h.example.com/", "not a PEP 508 requirement"),
        (" -e .", "editable"),
        (f"./{WHEEL}", "NAME @"),
        (WHEEL, "NAME @"),
        (f"https://me:hunter2@files.example.com/{WHEEL}", "NAME @"),
        ("a @ git+https://me:hunter2@code.example.com/a", "version control"),
        ("a @", "folders and source archives"),
        ("a @ ./folder", "folders and source archives"),
        ("a @ ./a-1.tar.gz", "folders and source archives"),
        (f"a @ ./{WHEEL}#sha256=00", "fragment on a local wheel"),
        (f"a @ ./{WHEEL};os_name=='nt'", "space before ;"),
        (f"a @ ~/{WHEEL}", "not expanded"),
        (f"a @ ./${{X}}/{WHEEL}", "not expanded"),
        (f"a @ ./{WHEEL} ; nonsense", "not a PEP 508 requirement"),
        ("a @ ./a.whl", "not a wheel's file name"),
        ("a @ ./b-1-py3-none-any.whl", 'the wheel is of "b"'),
        (f"a @ {FILES}/a-1.tar.gz", "only wheels"),
        (f"a @ {FILES}/b-1-py3-none-any.whl", 'the wheel is of "b"'),
        (f"a @ https://me:hunter2@files.example.com/{WHEEL}", "user name or password"),
        (f"a @ {FILES}/$X/{WHEEL}", "variables"),
        (f"a @ {FILES}/{WHEEL}#egg=a", "not a sha256"),
        (f"a @ {FILES}/{WHEEL}#sha256=00", "not a sha256"),
        (f"a @ {FILES}/{WHEEL}; os_name == 'nt'", "space before ;"),
        (f"a @ file:///srv/{WHEEL}#sha256=00", "no query or fragment"),
        (f"a @ file:///srv/{WHEEL}?x=1", "no query or fragment"),
        (f"a @ file://server/srv/{WHEEL}", "with a host"),
        (f"a @ file:{WHEEL}", "absolute"),
        (f"a @ file:///srv/%FF/{WHEEL}", "does not decode"),
        (f"a @ file:///srv/%00/{WHEEL}", "control character"),
        (f"a @ ftp://files.example.com/{WHEEL}", "another scheme"),
    ],
)
def test_a_requirement_that_cannot_be_locked_is_refused_with_the_way_out(written: str, needle: str) -> None:
    with pytest.raises(FaultError, match=re.escape(needle)) as caught:
        parse(written)
    assert "hunter2" not in str(caught.value)
    assert ";" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "path"),
    [("/srv/", "/srv/"), ("file:///srv/", "/srv/"), ("file:///C:/w/", "C:/w/"), ("C:\\w\\", "C:/w/")],
)
def test_the_path_of_a_wheel_is_the_system_s_own_with_slashes(target: str, path: str) -> None:
    assert parse(f"a @ {target}{WHEEL}").wheel == f"{path}{WHEEL}"


FOLDERS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="$~\\"), max_size=8)


@given(FOLDERS, st.booleans())
def test_any_name_of_a_folder_survives_the_normal_form(folder: str, is_absolute: bool) -> None:  # noqa: FBT001
    found = parse(f"a @ {'/srv' if is_absolute else '.'}/x{folder}/{WHEEL}")
    assert parse(found.text) == found


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from(["a", "@", " ", WHEEL, "./", FILES, "/", ";", "#", "[x]"])).map("".join)
)
def test_any_text_is_a_requirement_or_a_fault(text: str) -> None:
    try:
        found = parse(text)
    except FaultError:
        return
    assert parse(found.text) == found
