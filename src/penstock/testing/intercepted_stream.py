"""A stream with somebody between it and its callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from penstock.abc import Features, Feed, Feeding, GroupFeed, Grouping, GroupListener, Stream, Streams
from penstock.model import Batch, NewRecord, Pointer, Position, Receipt
from penstock.testing.interception import Interceptor, nothing


class InterceptedStream:
    """`abc.Stream`. Its operations are the names of the methods, those of its feeds are "poll" and "commit", and
    "acknowledge" is what happens when a receipt is settled, ahead of all its other callbacks. `feed` and `group_feed`
    are there if the stream has them."""

    OPERATIONS: ClassVar = (
        frozenset({"partitions", "locate", "span", "read", "append", "acknowledge", "close"})
        | frozenset({"poll", "commit"})
        | frozenset({"topics", "create_topic"})
    )

    def __init__(self, stream: Stream, between: Interceptor) -> None:
        self._stream = stream
        self._between = between
        if isinstance(stream, Feeding):
            self.feed = self._feed
        if isinstance(stream, Grouping):
            self.group_feed = self._group_feed

    @property
    def topic(self) -> str:
        return self._stream.topic

    @property
    def features(self) -> Features:
        return self._stream.features

    def partitions(self) -> Sequence[int]:
        return self._between.call("partitions", self._stream.partitions)

    def locate(self, partition: int, position: Position) -> Pointer:
        return self._between.call("locate", self._stream.locate, partition, position)

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        return self._between.call("span", self._stream.span, partition)

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        return self._between.call("read", self._stream.read, partition, start, limit, wait_s)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        receipts = self._between.call("append", self._append, records)
        for receipt in receipts:
            receipt.add_done_callback(self._acknowledged)
        return receipts

    def _append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return self._stream.append(records)

    def _acknowledged(self, receipt: Receipt) -> None:
        self._between.call("acknowledge", nothing)

    def close(self) -> None:
        self._between.call("close", self._stream.close)

    def _feed(self) -> Feed:
        assert isinstance(self._stream, Feeding)
        return InterceptedFeed(self._stream.feed(), self._between)

    def _group_feed(
        self, group: str, listener: GroupListener, *, member: str, assignor: str, session_timeout_s: float
    ) -> GroupFeed:
        assert isinstance(self._stream, Grouping)
        feed = self._stream.group_feed(
            group, listener, member=member, assignor=assignor, session_timeout_s=session_timeout_s
        )
        return InterceptedGroupFeed(feed, self._between)


class InterceptedFeed:
    """`abc.Feed`."""

    def __init__(self, feed: Feed, between: Interceptor) -> None:
        self._inner = feed
        self._between = between

    def add(self, partition: int, start: Pointer) -> None:
        self._inner.add(partition, start)

    def remove(self, partition: int) -> None:
        self._inner.remove(partition)

    def pause(self, partition: int) -> None:
        self._inner.pause(partition)

    def resume(self, partition: int) -> None:
        self._inner.resume(partition)

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        return self._between.call("poll", self._inner.poll, limit, wait_s)

    def wake(self) -> None:
        self._inner.wake()

    def close(self) -> None:
        self._inner.close()


class InterceptedGroupFeed(InterceptedFeed):
    """`abc.GroupFeed`."""

    def __init__(self, feed: GroupFeed, between: Interceptor) -> None:
        super().__init__(feed, between)
        self._group_feed = feed

    def seek(self, partition: int, start: Pointer) -> None:
        self._group_feed.seek(partition, start)

    def commit(self, pointers: Mapping[int, Pointer], wait: bool) -> None:
        self._between.call("commit", self._group_feed.commit, pointers, wait)


class InterceptedStreams:
    """`abc.Streams` whose streams are all intercepted by the same one."""

    def __init__(self, streams: Streams, between: Interceptor) -> None:
        self._streams = streams
        self._between = between

    @property
    def url(self) -> str:
        return self._streams.url

    @property
    def features(self) -> Features:
        return self._streams.features

    def stream(self, topic: str) -> InterceptedStream:
        return InterceptedStream(self._streams.stream(topic), self._between)

    def topics(self) -> Sequence[str]:
        return self._between.call("topics", self._streams.topics)

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        self._between.call("create_topic", self._streams.create_topic, topic, partitions)

    def close(self) -> None:
        self._streams.close()
