"""The bytes of a TOML file to its document: whatever the bytes, the worst that happens is AML_MANIFEST."""

from __future__ import annotations

import re
import tomllib

from aml_nox.errors import AmlError, Code

MAX_BYTES = 1 << 20

_POSITION = re.compile(r" \(at (?:line (?P<line>[0-9]+), (?P<column>column [0-9]+)|end of document)\)")


class Written(float):
    """A TOML float that remembers its spelling: 3.10 is not 3.1 to a person who means a version."""

    text: str

    def __new__(cls, text: str) -> Written:
        number = super().__new__(cls, text)
        number.text = text
        return number


def decode(data: bytes, label: str) -> str:
    """Decode a file; ``label`` names it in the error."""
    if len(data) > MAX_BYTES:
        raise AmlError(Code.MANIFEST, f"{label}: larger than 1 MiB, which no person writes; is it the right file?")
    if data.startswith(b"\xef\xbb\xbf"):
        raise AmlError(Code.MANIFEST, f"{label}:1: starts with a byte-order mark; remove the byte-order mark")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise AmlError(Code.MANIFEST, f"{label}:1: not UTF-8 (byte 0: UTF-16's mark); save it as UTF-8")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        at = f"byte {error.start}: 0x{data[error.start]:02x}"
        raise AmlError(Code.MANIFEST, f"{label}:{line}: not UTF-8 ({at}); save it as UTF-8") from None


def document(text: str, label: str) -> dict[str, object]:
    """Parse a text; its floats are ``Written``."""
    try:
        return tomllib.loads(text, parse_float=Written)
    except RecursionError:
        raise AmlError(Code.MANIFEST, f"{label}:1: nested too deep to be read; three levels are enough") from None
    except ValueError as error:
        # Not only TOMLDecodeError: Python itself refuses integers of more than 4300 digits.
        raise _syntax_error(str(error), text, label) from None


def _syntax_error(message: str, text: str, label: str) -> AmlError:
    position = _POSITION.search(message)
    line, column = position.group("line", "column") if position else (None, None)
    reason = _POSITION.sub(f" ({column})" if column else "", message)
    return AmlError(Code.MANIFEST, f"{label}:{line or text.count(chr(10)) + 1}: not TOML: {reason}; mend the line")
