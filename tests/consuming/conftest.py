"""What tests of consumers share: streams in memory, a store, and a way to run a handler to the end of a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.model import NewRecord
from penstock.streams.memory import MemoryStream


@pytest.fixture
def streams() -> Iterator[MemoryStream]:
    found = MemoryStream(partitions=1)
    yield found
    found.close()


@pytest.fixture
def store() -> MemoryCheckpoints:
    return MemoryCheckpoints()


@pytest.fixture
def fill(streams: MemoryStream) -> Callable[..., None]:
    """Append values to a topic: `fill("orders", 100)` numbers, or `fill("orders", [b"a", b"b"])`."""

    def append(topic: str, values: int | list[bytes], keys: int | None = None) -> None:
        listed = [str(number).encode() for number in range(values)] if isinstance(values, int) else values
        records = [
            NewRecord(topic, value, None if keys is None else str(number % keys).encode())
            for number, value in enumerate(listed)
        ]
        for receipt in streams.open_topic(topic).append(records):
            receipt.result(10)

    return append


@pytest.fixture
def consume(streams: MemoryStream, store: MemoryCheckpoints) -> Callable[..., App]:
    """Run a handler to what is now the end of a topic."""

    def run(handler: Callable[..., Any], topic: Any = "orders", group: str = "group", **options: Any) -> App:
        app = App(streams, group=group, checkpoints=options.pop("checkpoints", store))
        options.setdefault("end", "latest")
        app.handle(topic, **options)(handler)
        app.run()
        return app

    return run
