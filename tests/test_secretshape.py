"""What counts as a secret in aml.toml: by a variable's name, and by the form of its value. All tokens are made up."""

from __future__ import annotations

import base64
import random
import string

import pytest

from aml_nox import secretshape

WORD = string.ascii_letters + string.digits
BASE64 = WORD + "-_"


def drawn(length: int, alphabet: str = WORD) -> str:
    """Give what a service would have drawn: so that no token stands in this file, where scanners would find it."""
    return "".join(random.Random(length).choices(alphabet, k=length))  # noqa: S311 - nobody's token


def jwt(*parts: bytes) -> str:
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


TOKENS = {
    "AWS": "AKIA" + drawn(16, string.ascii_uppercase + "234567"),
    "AWS, for a session": "ASIA" + drawn(16, string.ascii_uppercase + "234567"),
    **{f"GitHub {kind}": f"gh{kind}_" + drawn(36) for kind in "pousr"},
    "GitHub, fine-grained": "github_pat_" + drawn(22) + "_" + drawn(59),
    "GitLab": "glpat-" + drawn(20, BASE64),
    "GitLab, routable": "glpat-" + drawn(27, BASE64) + ".01." + drawn(9, string.digits),
    **{f"Slack {kind}": f"xox{kind}-" + drawn(12, string.digits) + "-" + drawn(24) for kind in "abprs"},
    "OpenAI": "sk-" + drawn(20) + "T3BlbkFJ" + drawn(20),
    "OpenAI, of a project": "sk-proj-" + drawn(74, BASE64) + "T3BlbkFJ" + drawn(74, BASE64),
    "Anthropic": "sk-ant-" + "api03-" + drawn(93, BASE64) + "AA",
    "Hugging Face": "hf_" + drawn(34, string.ascii_letters),
    "Google": "AIza" + drawn(35, BASE64),
    "PyPI": "pypi-" + "AgEIcHlwaS5vcmc" + drawn(70, BASE64),
    "TestPyPI": "pypi-" + "AgENdGVzdC5weXBpLm9yZw" + drawn(70, BASE64),
    "npm": "npm_" + drawn(36),
    "Stripe": "sk_" + "live_" + drawn(24),
    "Stripe, restricted": "rk_" + "live_" + drawn(99),
    "a signed JWT": jwt(b'{"alg":"HS256","typ":"JWT"}', b'{"sub":"1234567890"}', b"x" * 32),
    "an encrypted JWT": jwt(b'{"alg":"dir","enc":"A128GCM"}', b"", b"i" * 12, b"c" * 40, b"t" * 16),
    **{
        f"PEM {kind}": f"-----BEGIN {kind}PRIVATE KEY-----"
        for kind in ("", "RSA ", "EC ", "DSA ", "ENCRYPTED ", "OPENSSH ")
    },
    "PGP": "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "a URL with a password": "https://me:pass@example.com/x",
    "a URL with a name alone": "redis://me@example.com",
    "a URL with an empty name": "redis://:pass@example.com:6379/0",
    "a URL of a driver": "postgresql+psycopg2://me:p%40ss@example.com/x?a=b",
    "a URL with a strange password": "amqp://me:p=a&s;s,!\\'@example.com",
}
HARMLESS = """
    /data/run-1:/data/run-2 https://example.com/a@b?x=@ me@example.com git@example.com:me/x.git s3://bucket/key=1
    sk-learn scikit-learn task-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ask-0123456789abcdef0123456789abcdef
    hf_transfer
    sk-learn-intelex-2026-benchmark-of-november my_hf_model npm_config_loglevel AKIA eyJ eyJhbGciOiJub25lIn0 glpat-
    https://example.com/ghp_/x xoxo-xoxo 0123456789abcdef0123456789abcdef01234567 pypi-AgE sk_live_ file:///x@y
    -----BEGIN-CERTIFICATE----- ssh-ed25519 sha256:0123456789abcdef http://[::1]:80/ 1,2@3 max_split_size_mb:128
""".split()


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize("around", ["{}", "Bearer {}", "--token={} --fast", '{{"a": "{}"}}', "x\n{}\n"])
def test_a_token_of_a_known_form_is_found_wherever_it_stands(token: str, around: str) -> None:
    assert secretshape.found_in(around.format(token))


@pytest.mark.parametrize("value", ["", "-----BEGIN PUBLIC KEY-----", *HARMLESS])
def test_what_only_resembles_a_token_is_none(value: str) -> None:
    assert secretshape.found_in(value) == ""


def test_what_was_found_is_named_and_not_repeated() -> None:
    for token in TOKENS.values():
        assert token not in secretshape.found_in(token)
    assert secretshape.found_in(TOKENS["GitHub p"]) == "a token of GitHub"


@pytest.mark.parametrize(
    "name", "KEY TOKEN SECRET PASSWORD HF_TOKEN AWS_SECRET_ACCESS_KEY key Db_Password _KEY x_secret".split()
)
def test_a_name_says_that_its_value_is_a_secret(name: str) -> None:
    assert secretshape.names_one(name)


@pytest.mark.parametrize(
    "name", "TOKENIZERS_PARALLELISM KEYS MONKEY API_KEYS KEY_FILE PASSWORD_FILE SECRETARY HOTKEY MAX_TOKENS".split()
)
def test_a_name_that_only_holds_such_a_word_says_nothing(name: str) -> None:
    assert not secretshape.names_one(name)


@pytest.mark.parametrize("piece", ["eyJ", "://", "-eyJ", "a://", "sk-", "-----BEGIN ", "A ", "xoxb-", "x-", "@."])
def test_a_value_as_long_as_a_manifest_may_be_is_still_searched(piece: str) -> None:
    """No form goes over the text again for each of its characters: that would take hours."""
    secretshape.found_in(piece * ((1 << 20) // len(piece)))
