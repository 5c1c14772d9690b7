"""The tests of aml-nox. A package, so that each test can say ``from tests.support.index import Index``."""
