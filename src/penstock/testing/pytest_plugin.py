"""The fixtures that pytest finds where Penstock is installed.

    def test_every_order_is_billed(penstock_stream: penstock.Connection) -> None:
        penstock_stream.send(orders, Order("ada", 350))
        result = run_to_end(build(penstock_stream))
        assert result.sent(bills) == [Bill("ada", 350)]

Every run of pytest loads it, so it uses the public names, which are loaded on use.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from pathlib import Path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("penstock").addoption(
        "--penstock-stream",
        choices=("memory", "log"),
        default="memory",
        help="what penstock_stream is: a stream in memory, or an embedded log with a broker of its own",
    )


@pytest.fixture
def penstock_stream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Connection]:
    """A stream of the test's own, without any topics: in memory, or on disk with `--penstock-stream=log`."""
    if request.config.getoption("--penstock-stream") == "log":
        with penstock.connect(f"log:{tmp_path / 'penstock'}", exit_when_idle_s=1) as stream:
            yield stream
        return
    with penstock.connect(f"memory:{uuid.uuid4().hex}") as stream:
        yield stream
        for topic in stream.topics():  # else they would stay for as long as the process
            stream.delete_topic(topic)
