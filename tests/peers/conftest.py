"""An embedded log that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.streams.embedded import stop_broker


@pytest.fixture(scope="session")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Connection]:
    folder = tmp_path_factory.mktemp("peers") / "data"
    try:
        with penstock.connect(f"log:{folder}") as connection:
            yield connection
    finally:
        stop_broker(folder)
