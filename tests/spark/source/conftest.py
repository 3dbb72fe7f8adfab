"""One embedded log for all tests of the source; each test has a topic of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import penstock
from penstock import Connection

_numbers = itertools.count()


@pytest.fixture(scope="session")
def log_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"log:{tmp_path_factory.mktemp('source') / 'log'}"


@pytest.fixture(scope="session")
def connection(log_url: str) -> Iterator[Connection]:
    with penstock.connect(log_url) as connected:
        yield connected


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"topic{next(_numbers)}"
