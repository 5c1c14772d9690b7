"""A base interpreter of the tests' own: what is installed into it instead of into an environment is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.interpreter import interpreter_copy
from tests.support.provisioning import site_packages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the program of a base interpreter of our own."""
    return interpreter_copy(tmp_path_factory.mktemp("base") / "python")


@pytest.fixture
def untouched_base(base: Path) -> Iterator[None]:
    """Hold after a test that nothing was installed into the base interpreter."""
    yield
    assert list(site_packages(base.parents[1]).iterdir()) == []
