"""A connection over a stream that has nothing but `abc.Stream`: it sends, reads and administers by `open_topic`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock import Connection, Topic
from penstock.abc import Feature, Features, TopicStream
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    DeliveryError,
    OffsetOutOfRangeError,
    StreamError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import Batch, NewRecord, Pointer, Position, Receipt
from penstock.streams import connect
from penstock.streams.memory.streams import MemoryBackend, MemoryStream
from penstock.streams.memory.topics import Topics
from penstock.streams.schemes import CHECKPOINTS, DEAD_LETTERS, QUEUES, STREAMS, installed_schemes, scheme_of
from penstock.testing import conformance


class PlainTopic:
    """`abc.TopicStream`, without a feed, over one in memory. What is appended is settled when `settle` says so."""

    def __init__(self, stream: TopicStream, waiting: list[Receipt] | None) -> None:
        self._stream = stream
        self._waiting = waiting
        self.closed = False

    @property
    def topic(self) -> str:
        return self._stream.topic

    @property
    def features(self) -> Features:
        return self._stream.features

    def partitions(self) -> Sequence[int]:
        return self._stream.partitions()

    def locate(self, partition: int, position: Position) -> Pointer:
        return self._stream.locate(partition, position)

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        return self._stream.span(partition)

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        return self._stream.read(partition, start, limit, wait_s)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        if self._waiting is None:
            return self._stream.append(records)
        receipts = [Receipt(record.topic) for record in records]
        self._waiting += receipts
        return receipts

    def close(self) -> None:
        self.closed = True
        self._stream.close()


class StuckTopic(PlainTopic):
    """Its partitions end later than what can be read."""

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        first, end = super().span(partition)
        return first, end + 1


class PlainStream(MemoryBackend):
    """A backend whose topics have no feed."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(Topics(partitions), "plain://me:secret@host")
        self.waiting: list[Receipt] | None = None
        self.kind = PlainTopic
        self.opened: list[PlainTopic] = []

    def open_topic(self, topic: str) -> PlainTopic:  # type: ignore[override]  # its topics are others
        self.opened.append(self.kind(super().open_topic(topic), self.waiting))
        return self.opened[-1]


def connection(partitions: int = 1) -> Connection:
    return Connection(PlainStream(partitions))


TestConnectionToAPlainBackend = conformance.stream(connection)


def test_records_are_sent_read_and_followed_over_all_partitions() -> None:
    with connection(3) as stream:
        for number in range(30):
            stream.send("topic", b"%d" % number, partition=number % 3).result(5)
        assert stream.unacknowledged == 0
        read = [record.value for record in stream.read("topic")]
        assert sorted(map(str, read)) == sorted(str(b"%d" % number) for number in range(30))
        assert len(list(stream.read("topic", {1: 7}, partitions=[1]))) == 3
        assert [record.offset for record in stream.read("topic", "earliest", limit=2, partitions=[2])] == [0, 1]
        assert list(stream.read("topic", "latest", follow=True, timeout_s=0)) == []
        with pytest.raises(OffsetOutOfRangeError):
            stream.read("topic", {0: 11})


def test_an_event_loop_sends_and_reads() -> None:
    async def go() -> list[bytes | None]:
        async with connection() as stream:
            await stream.send_async("topic", "a")
            await stream.send_async("topic", "b")
            return [record.value async for record in stream.read("topic")]

    assert asyncio.run(go()) == [b"a", b"b"]


def test_flush_waits_for_what_is_under_way_and_tells_what_failed() -> None:
    backend = PlainStream()
    backend.waiting = []
    stream = Connection(backend)
    receipts = [stream.send("topic", b"x") for _ in range(3)]
    assert stream.unacknowledged == 3
    with pytest.raises(TimeoutError, match="3 records were not acknowledged"):
        stream.flush(0)
    receipts[0].settle(0, 0)
    receipts[1].settle(-1, -1, DeliveryError("refused"))
    receipts[2].settle(-1, -1, DeliveryError("refused, too"))
    assert stream.unacknowledged == 0
    with pytest.raises(DeliveryError, match=r"refused \(1 more"):
        stream.flush(0)
    stream.flush(0)
    stream.send("topic", b"x")
    with pytest.raises(DeliveryError, match="1 records were not acknowledged"):
        stream.close(0)
    with pytest.raises(ConnectionClosedError):
        stream.send("topic", b"x")


def test_a_declared_topic_is_created_with_its_partitions() -> None:
    with connection() as stream:
        stream.send(Topic("orders", partitions=4), b"x").result(5)
        assert list(stream.open_topic("orders").partitions()) == [0, 1, 2, 3]


def test_a_reader_that_is_closed_says_so() -> None:
    with connection() as stream:
        stream.send("topic", b"x").result(5)
        reader = stream.read("topic")
        reader.close()
        with pytest.raises(ConnectionClosedError, match="stopped before its end"):
            next(reader)


def test_every_topic_that_was_opened_is_closed() -> None:
    backend = PlainStream()
    with Connection(backend) as stream:
        stream.send("topic", b"x").result(5)
        assert len(list(stream.read("topic"))) == 1
        following = stream.read("topic", follow=True)
        with pytest.raises(UnknownTopicError):
            stream.read("missing")
        assert [summary.name for summary in stream.admin().all()] == ["topic"]
        assert stream.survey(5).ends([("topic", 0), ("missing", 0)]) == {("topic", 0): 1}
    assert following.ready == 0
    assert len(backend.opened) >= 6
    assert all(opened.closed for opened in backend.opened)


def test_a_stream_that_returns_nothing_before_the_end_is_an_error() -> None:
    backend = PlainStream()
    backend.kind = StuckTopic
    with Connection(backend) as stream:
        stream.send("topic", b"x").result(5)
        reader = stream.read("topic", timeout_s=0.05)
        assert next(reader).value == b"x"
        for _ in range(2):
            with pytest.raises(BrokerUnavailableError, match="was not read to its end: nothing came"):
                next(reader)


def test_a_reader_from_the_earliest_record_starts_at_what_is_left() -> None:
    memory = MemoryStream()
    backend = PlainStream()
    backend._topics = memory._topics
    with memory, Connection(backend) as stream:
        for number in range(5):
            memory.send("topic", b"%d" % number).result(5)
        earliest, offset = stream.read("topic"), stream.read("topic", {0: 0})
        memory.expire("topic", 0, 3)
        assert [record.offset for record in earliest] == [3, 4]
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError):
                next(offset)


def test_passwords_are_not_in_the_messages_of_plain_administration() -> None:
    with connection() as stream:
        for refused in (
            lambda: stream.admin().sizes(),
            lambda: stream.admin().add_partitions("topic", 2),
            lambda: stream.group_admin().delete("group"),
        ):
            with pytest.raises((StreamError, ConfigError), match="plain://me@host") as refusal:
                refused()
            assert "secret" not in str(refusal.value)


def test_features_are_those_of_the_backend() -> None:
    with connection() as stream:
        assert Feature.ADMIN not in stream.features
        assert stream.features == stream.backend.features


def test_our_own_schemes_are_found_as_those_of_other_packages_are() -> None:
    assert {"log", "kafka", "memory"} <= set(installed_schemes(STREAMS))
    assert {"memory"} <= set(installed_schemes(QUEUES))
    stores = {"sqlite", "file", "memory", "postgresql", "postgres", "redis", "rediss", "dynamodb", "s3", "kafka"}
    assert stores <= set(installed_schemes(CHECKPOINTS))
    assert {"sqlite", "file", "postgresql", "postgres"} <= set(installed_schemes(DEAD_LETTERS))


@pytest.mark.parametrize(
    ("url", "scheme"), [("log:./data", "log"), (" Kafka://a", "kafka"), ("./data", ""), ("", ""), (None, "")]
)
def test_the_scheme_of_a_url(url: object, scheme: str) -> None:
    assert scheme_of(url) == scheme


def test_an_unknown_scheme_names_those_that_are_installed() -> None:
    with pytest.raises(UrlError, match=r"is not a URL of a stream; schemes that are installed: .*kafka:.*, log:"):
        connect("carrier-pigeon://coop")
    with pytest.raises(ConfigError, match="connect has no option 'speed'"):
        connect("memory:", speed=3)  # type: ignore[call-arg]
