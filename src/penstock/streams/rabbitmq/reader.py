"""Reading a stream from one place on: a subscription, and the messages that it has delivered."""

from __future__ import annotations

import time
from typing import Final

from penstock.errors import BrokerUnavailableError, OffsetOutOfRangeError
from penstock.model import Pointer, Record
from penstock.streams.rabbitmq.client import StreamClient
from penstock.streams.rabbitmq.connection import Mailbox
from penstock.streams.rabbitmq.messages import record_of
from penstock.streams.rabbitmq.protocol import OffsetKind, OffsetSpec
from penstock.streams.rabbitmq.topics import StreamTopic

FIRST_CREDIT: Final = 4
_LEAST_CREDIT: Final = 2
_MOST_CREDIT: Final = 200
_AHEAD_BYTES: Final = 16 << 20
"""About how much the server may deliver before it is read."""
_BATCH_BYTES: Final = 32 << 20
"""About how much one read returns at most."""


class PartitionReader:
    """A place in a partition. One thread uses it at a time."""

    def __init__(
        self, place: StreamTopic, client: StreamClient, partition: int, stream: str, start: Pointer, timeout_s: float
    ) -> None:
        """Subscribe from `start` on. OffsetOutOfRangeError if that record was removed, or does not exist yet."""
        self.next = start
        self._place = place
        self._client = client
        self._partition = partition
        self._stream = stream
        self._timeout_s = timeout_s
        state = place.state(stream)
        if not state.first <= start <= state.end:
            raise self._out_of_range(state.first, state.end)
        self._end = state.end
        """There are messages up to here at least."""
        self._messages: list[bytes] = []
        self._first = self._time_ms = 0
        """Of the chunk that the messages are from."""
        self._mailbox = Mailbox(stream)
        self._credit = FIRST_CREDIT
        """How many chunks the server may still deliver."""
        with place.translating():
            self._connection = client.connection_for(stream, at_leader=False)
            self._id = self._connection.subscribe(
                stream, OffsetSpec(OffsetKind.OFFSET, start), self._credit, self._mailbox
            )

    @property
    def is_over(self) -> bool:
        """Whether the connection is lost, or the stream has moved, and nothing is left that was delivered before."""
        return self._mailbox.is_broken and not self._mailbox and not self._left

    def read(self, limit: int, wait_s: float) -> list[Record]:
        """Up to `limit` records, as soon as there is one; none if none comes within `wait_s`."""
        if not self._left and not self._fill(wait_s):
            return []
        records: list[Record] = []
        size_bytes = 0
        topic, partition = self._place.topic, self._partition
        while True:  # ends: each turn takes messages that are there, until there are none, or enough
            start = self.next - self._first
            taken = self._messages[start : start + limit - len(records)]
            time_ms, offset = self._time_ms, self.next
            for message in taken:
                records.append(record_of(topic, partition, offset, time_ms, message))
                offset += 1
                size_bytes += len(message)
            self.next = offset
            if len(records) >= limit or size_bytes >= _BATCH_BYTES or not self._mailbox or not self._take(0.0):
                return records

    def close(self) -> None:
        self._connection.unsubscribe(self._id, self._mailbox)

    @property
    def _left(self) -> bool:
        """Whether messages of the last chunk are left."""
        return self.next < self._first + len(self._messages)

    def _fill(self, wait_s: float) -> bool:
        """Whether a chunk came. If the partition is known to hold more, waits for it, however short `wait_s` is."""
        until_s = time.monotonic() + wait_s
        if self._take(wait_s):
            return True
        if wait_s <= 0 and self.next >= self._end:
            self._end = self._place.state(self._stream).end
        if self.next >= self._end:
            return False
        if self._take(max(until_s, time.monotonic() + self._timeout_s) - time.monotonic()):
            return True
        self._connection.lose(f"it delivered nothing from stream {self._stream!r} within {self._timeout_s:g} s")
        raise BrokerUnavailableError(f"{self._client.where} delivered nothing, though there is more to read")

    def _take(self, wait_s: float) -> bool:
        """Whether a chunk came that has messages from `next` on."""
        until_s = time.monotonic() + wait_s
        while (chunk := self._mailbox.take(until_s - time.monotonic())) is not None:
            self._credit -= 1
            self._give_credit(len(chunk.data))
            if chunk.end <= self.next:
                continue
            if chunk.first > self.next:
                self._check_gap()
                self.next = chunk.first
            self._messages = chunk.messages()
            self._first, self._time_ms = chunk.first, chunk.time_ms
            return True
        return False

    def _give_credit(self, chunk_bytes: int) -> None:
        """Let the server send ahead: many small chunks, or few large ones."""
        wanted = min(_MOST_CREDIT, max(_LEAST_CREDIT, _AHEAD_BYTES // max(1, chunk_bytes)))
        more = wanted - self._credit - len(self._mailbox)
        if more > 0 and not self._mailbox.is_broken:
            self._connection.give_credit(self._id, more)
            self._credit += more

    def _check_gap(self) -> None:
        """Raise OffsetOutOfRangeError if retention may have removed the messages of a gap. Gaps are RabbitMQ's own
        entries otherwise."""
        first = self._place.first(self._stream)
        if self.next < first:
            raise self._out_of_range(first, self._place.state(self._stream).end)

    def _out_of_range(self, first: Pointer, end: Pointer) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(f"{self._place.topic}-{self._partition}", self.next, first, end)
