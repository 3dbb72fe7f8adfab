from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.handlers.stand_in import StandIn


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., StandIn]]:
    """Starts a broker with the given settings: `start({"num.partitions": "3"})`."""
    started: list[StandIn] = []

    def start_one(settings: dict[str, str] | None = None, folder: Path | None = None) -> StandIn:
        started.append(StandIn(folder or tmp_path / f"data{len(started)}", settings or {}))
        return started[-1]

    yield start_one
    for broker in started:
        broker.close()


@pytest.fixture
def broker(start: Callable[..., StandIn]) -> StandIn:
    """A broker with the settings it has by default."""
    return start()
