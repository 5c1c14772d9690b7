"""Secrets by their shape: names of variables that say it, and values that have the form of a known service's token.

The forms are those of the services' own documentation, as the rules of gitleaks (config/gitleaks.toml, 2026) collect
them. Where a form is loose, the pattern asks for the start of a word, so that `task-…` is not taken for `sk-…`.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"(?:.*_)?(?:KEY|TOKEN|SECRET|PASSWORD)", re.IGNORECASE)
_FORMS = tuple(
    (what, re.compile(pattern, re.ASCII))
    for what, pattern in (
        ("an access key of AWS", r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
        ("a token of GitHub", r"gh[opusr]_[A-Za-z0-9]{36}|github_pat_\w{22}"),
        ("a token of GitLab", r"\bgl(?:pat|dt|rt|ptt|cbt)-[\w-]{20}"),
        ("a token of Slack", r"\bxox[abceoprs]-[A-Za-z0-9-]{10}|\bxapp-\d-[A-Z0-9]+-\d"),
        (
            "an API key",
            r"(?<![\w-])sk-(?:(?:ant|proj|svcacct|admin|or)-[\w-]{20}|[A-Za-z0-9]{32})",
        ),  # OpenAI, Anthropic
        ("a token of Hugging Face", r"\bhf_[A-Za-z0-9]{30}"),
        ("an API key of Google", r"\bAIza[\w-]{35}"),
        ("a token of PyPI", r"pypi-AgE[\w-]{16}"),
        ("a token of npm", r"\bnpm_[A-Za-z0-9]{36}"),
        ("a key of Stripe", r"\b[rs]k_(?:live|test|prod)_[A-Za-z0-9]{10}"),
        # RFC 7519: what is signed or encrypted; each part is base64url, and the first begins with `{"`.
        ("a JSON web token", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]*\.[\w-]{8}"),
        ("a private key", r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY"),  # RFC 7468, OpenSSH and PGP
        ("a URL with a user name or password", r"[A-Za-z0-9+.-]://[^\s/?#]*@"),  # RFC 3986, 3.2.1
    )
)


def names_one(name: str) -> bool:
    """Say whether a variable's name calls its value a secret: `HF_TOKEN`, but not `TOKENIZERS_PARALLELISM`."""
    return _NAME.fullmatch(name) is not None


def found_in(value: str) -> str:
    """Say what secret a value holds, at whatever place in it: `a token of GitHub`; "" where none is known."""
    return next((what for what, form in _FORMS if form.search(value)), "")
