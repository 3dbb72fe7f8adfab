"""Topics as the driver sees them: their partitions, and the range of each that can be read now.

The end of a partition is the one that the stream reports: after the last record that is replicated and not in an open
transaction. Tasks never read beyond it, whatever the files contain.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.abc import Admin, Feature, Features, HasAddress, HasAdmin, Stream
from penstock.broker import last_address
from penstock.errors import UnknownTopicError
from penstock.model import Position
from penstock.model.administration import PartitionId
from penstock.spark.source.admission import AtTime
from penstock.spark.source.open_streams import OpenStream
from penstock.spark.source.origin import LogFolder, Origin, TopicSelection
from penstock.spark.source.positions import Pointers
from penstock.streams.capability import capability
from penstock.streams.connecting import open_stream
from penstock.streams.url import log_folder


@dataclass(frozen=True, slots=True)
class Described:
    partitions: tuple[PartitionId, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The id of each topic, which distinguishes it from another one of the same name, if the stream has such ids."""


class TopicView(OpenStream):
    """Queries about the topics of a selection, without caching, partition by partition. Used by one thread."""

    def __init__(self, stream: Stream, selection: TopicSelection, asked: Origin) -> None:
        super().__init__(stream)
        self._selection = selection
        self._asked = asked

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that were selected by name."""
        return self._selection.names

    @property
    def features(self) -> Features:
        return self.stream.features

    def describe(self) -> Described:
        """The partitions and ids of the topics. Topics of a selection of several are omitted if they do not exist.

        Raises UnknownTopicError for a single one.
        """
        single = self._selection.is_single
        names = self.names if single else [name for name in self.stream.topics() if name in self._selection]
        found: list[PartitionId] = []
        for name in names:
            with _unless_single(self._selection):
                found += [(name, partition) for partition in self.topic(name).partitions()]
        return Described(tuple(found))

    def starts(self, partitions: Iterable[PartitionId]) -> Pointers:
        """The earliest pointer of each partition."""
        return {(topic, partition): self.topic(topic).span(partition)[0] for topic, partition in partitions}

    def ends(self, partitions: Iterable[PartitionId]) -> Pointers:
        """The pointer after the last readable record of each partition."""
        return {(topic, partition): self.topic(topic).span(partition)[1] for topic, partition in partitions}

    def locate(self, position: Position, partitions: Iterable[PartitionId]) -> Pointers:
        return {(topic, partition): self.topic(topic).locate(partition, position) for topic, partition in partitions}

    def at_time(self) -> AtTime | None:
        """A function that finds the pointers of all partitions by time; None if the stream cannot."""
        if Feature.TIMES not in self.features:
            return None
        return lambda time_ms, partitions: self.locate(Position.at_time(time_ms), partitions)

    def first_pointer(self, partition: PartitionId) -> int:
        """The first pointer of a new partition, even if its first records have expired."""
        return self.starts([partition])[partition]

    def origin(self) -> Origin:
        """Where tasks read the records."""
        return self._asked


def open_topics(url: str, selection: TopicSelection, client: Mapping[str, Any]) -> TopicView:
    """Connect to topics. `client` has options of `penstock.connect`, whose errors this raises."""
    stream = open_stream(url, **client)
    administered = capability(stream, HasAdmin)
    if administered is not None and Feature.OFFSETS in stream.features:
        return _OffsetTopics(stream, administered, selection, Origin(url, client))
    return TopicView(stream, selection, Origin(url, client, has_offsets=Feature.OFFSETS in stream.features))


class _OffsetTopics(TopicView):
    """Topics of Kafka and the embedded log: one request for all partitions of a topic."""

    def __init__(self, stream: Stream, administered: HasAdmin, selection: TopicSelection, asked: Origin) -> None:
        super().__init__(stream, selection, asked)
        self._administered = administered

    def describe(self) -> Described:
        names: Iterable[str] = self.names
        if self._selection.pattern is not None:
            names = [each.name for each in self._admin.all() if each.name in self._selection]
        found = []
        for name in names:
            with _unless_single(self._selection):
                found.append(self._admin.describe(name))
        return Described(
            tuple((each.name, partition) for each in found for partition in each.partitions),
            {each.name: each.id for each in found if each.id is not None},
        )

    def starts(self, partitions: Iterable[PartitionId]) -> Pointers:
        return _by_topic(partitions, self._admin.earliest)

    def ends(self, partitions: Iterable[PartitionId]) -> Pointers:
        return _by_topic(partitions, self._admin.latest)

    def locate(self, position: Position, partitions: Iterable[PartitionId]) -> Pointers:
        return _by_topic(partitions, lambda topic, its: self._admin.locate(topic, position, its))

    def at_time(self) -> AtTime | None:
        return lambda time_ms, partitions: _by_topic(
            partitions, lambda topic, its: self._admin.at_time(topic, time_ms, its)
        )

    def first_pointer(self, partition: PartitionId) -> int:
        return 0

    def origin(self) -> Origin:
        folder = log_folder(self._asked.url)
        elsewhere = capability(self.stream, HasAddress)
        if folder is None or elsewhere is None:
            return self._asked
        client = {name: value for name, value in self._asked.client.items() if name != "exit_when_idle_s"}
        address = last_address(folder)
        there = None if address is None else LogFolder(str(folder), address.cluster_id)
        return Origin(elsewhere.address_url(), client, there)

    @property
    def _admin(self) -> Admin:
        return self._administered.admin()


def _by_topic(partitions: Iterable[PartitionId], ask: Any) -> Pointers:
    """The answers of a request for each topic, as pointers."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return {
        (topic, partition): pointer for topic, its in grouped.items() for partition, pointer in ask(topic, its).items()
    }


def _unless_single(selection: TopicSelection) -> contextlib.AbstractContextManager[None]:
    """Ignore that a topic is missing, unless it is the only one."""
    return contextlib.nullcontext() if selection.is_single else contextlib.suppress(UnknownTopicError)
