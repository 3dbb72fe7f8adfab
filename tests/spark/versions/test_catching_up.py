"""How far a version has come, in pointers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.spark.run.progress import QueryProgress
from penstock.spark.versions import reprocessing
from penstock.spark.versions.reprocessing import CatchUpProgress
from penstock.streams.memory.streams import MemoryStream


@dataclass(slots=True)
class _Query:
    name: str
    frame: list[str]


@dataclass(slots=True)
class _Pipeline:
    queries: list[_Query]
    told: dict[str, QueryProgress] = field(default_factory=dict)

    def progress(self) -> Mapping[str, QueryProgress]:
        return self.told

    def tell(self, query: str, *ends: dict[str, int] | None) -> None:
        sources: list[dict[str, Any]] = [{"source": "x", "end": end, "latest": None} for end in ends]
        self.told[query] = QueryProgress(query, sources=sources)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> MemoryStream:
    """Orders: 6 in each of two partitions, of which 2 have expired in the first; clicks: 3 in one."""
    monkeypatch.setattr(reprocessing, "sources", lambda frame: frame)
    memory = MemoryStream()
    memory.create_topic("orders", 2)
    memory.create_topic("clicks", 1)
    for partition in (0, 1):
        for number in range(6):
            memory.send("orders", str(number), partition=partition).result(5)
    for number in range(3):
        memory.send("clicks", str(number)).result(5)
    memory.expire("orders", 0, 2)
    return memory


def test_everything_there_is_for_each_query_is_counted(streams: MemoryStream) -> None:
    pipeline = _Pipeline([_Query("one", ["topic orders"]), _Query("two", ["topic orders", "topic clicks"])])
    way = CatchUpProgress(streams, pipeline)  # type: ignore[arg-type]
    assert (way.done, way.total) == (0, (4 + 6) + (4 + 6 + 3))
    pipeline.tell("one", {"0": 4, "1": 1})
    assert way.done == 2 + 1
    pipeline.tell("two", {"orders/0": 6, "orders/1": 6}, {"clicks/0": 2})
    assert way.done == 2 + 1 + 4 + 6 + 2


def test_what_came_later_does_not_count(streams: MemoryStream) -> None:
    pipeline = _Pipeline([_Query("one", ["topic orders"])])
    way = CatchUpProgress(streams, pipeline)  # type: ignore[arg-type]
    for number in range(50):
        streams.send("orders", str(number), partition=1).result(5)
    streams.add_partitions("orders", 3)
    pipeline.tell("one", {"0": 6, "1": 56, "2": 9})
    assert (way.done, way.total) == (10, 10)


def test_sources_that_are_no_topics_and_queries_that_have_not_begun_count_for_nothing(streams: MemoryStream) -> None:
    pipeline = _Pipeline([_Query("one", ["rate", "topic clicks"]), _Query("two", ["topic not-there"])])
    way = CatchUpProgress(streams, pipeline)  # type: ignore[arg-type]
    assert way.total == 3
    pipeline.tell("one", None, {"0": 3})
    assert way.done == 3
