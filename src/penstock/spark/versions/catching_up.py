"""How far a pipeline has come on its way to where its inputs ended when it began, in pointers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from penstock.abc import Streams
from penstock.errors import UnknownTopicError
from penstock.spark.plans import sources
from penstock.spark.progress import QueryProgress
from penstock.spark.queries import PlannedQuery

Spans = dict[int, tuple[int, int]]
"""Of each partition: the first pointer, and the place behind the last record."""

_TOPIC: Final = "topic "


class Catching(Protocol):
    """A pipeline, as far as it matters here."""

    @property
    def queries(self) -> Any: ...

    def progress(self) -> Mapping[str, QueryProgress]: ...


class CatchingUp:
    """What there was to read for each query of a pipeline when this was made, and how much of it has been read."""

    def __init__(self, streams: Streams, pipeline: Catching) -> None:
        self._pipeline = pipeline
        known: dict[str, Spans] = {}
        self._inputs: dict[str, list[Spans]] = {}
        for planned in pipeline.queries:
            self._inputs[planned.name] = [_spans(streams, topic, known) for topic in _topics(planned)]

    @property
    def total(self) -> int:
        """How many pointers there are to pass. With transactions or compaction, there are fewer records."""
        return sum(end - start for spans in self._inputs.values() for each in spans for start, end in each.values())

    @property
    def done(self) -> int:
        """How many of them were passed by batches that are finished, also by an earlier run."""
        progress = self._pipeline.progress()
        return sum(
            _passed(spans, source.get("end") or {})
            for query, inputs in self._inputs.items()
            if query in progress
            for spans, source in zip(inputs, progress[query].sources, strict=False)
        )


def _passed(spans: Spans, pointers: Mapping[str, int]) -> int:
    """Pointers are by partition, or by topic and partition: 0, or spend/0."""
    passed = 0
    for name, pointer in pointers.items():
        partition = int(name.rpartition("/")[2])
        if partition in spans:
            start, end = spans[partition]
            passed += max(0, min(pointer, end) - start)
    return passed


def _topics(planned: PlannedQuery) -> list[str]:
    """The topics a query reads, in the order in which its progress names them."""
    return [name.removeprefix(_TOPIC) if name.startswith(_TOPIC) else "" for name in sources(planned.frame)]


def _spans(streams: Streams, topic: str, known: dict[str, Spans]) -> Spans:
    if topic not in known:
        known[topic] = {}
        if topic:
            stream = streams.stream(topic)
            try:
                known[topic] = {partition: stream.span(partition) for partition in stream.partitions()}
            except UnknownTopicError:  # the query will say so
                known[topic] = {}
            finally:
                stream.close()
    return known[topic]
