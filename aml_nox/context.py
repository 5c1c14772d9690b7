"""What every step needs to know: the manifest, where state lies, the caller's environment, and who reads along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aml_nox.errors import AmlError, Code
from aml_nox.faults import FaultError
from aml_nox.manifest import Manifest, check_url
from aml_nox.screen import Screen
from aml_nox.store import Root

INDEX_VARIABLE = "AML_INDEX_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A run of one project. `environ` is the caller's environment: read here, never handed on as it is."""

    manifest: Manifest
    root: Root
    environ: Mapping[str, str]
    screen: Screen
    offline: bool = False

    def say(self, text: str) -> None:
        """One line for people."""
        self.screen.say(text)

    def silent(self) -> Context:
        """The same run with nobody reading along."""
        return replace(self, screen=Screen(lambda _: None))

    def index_url(self) -> str | None:
        """The main index for transport: AML_INDEX_URL before the manifest; None is the tool's own default.

        Raises:
            AmlError: AML_USAGE for a value that index.url would not be allowed either.

        """
        mirror = self.environ.get(INDEX_VARIABLE)
        if not mirror:
            return self.manifest.index.url
        try:
            return check_url(mirror)
        except FaultError as error:
            raise AmlError(Code.USAGE, f"{INDEX_VARIABLE}: {error}") from None
