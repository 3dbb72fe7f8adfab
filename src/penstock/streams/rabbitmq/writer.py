"""Writing to a stream, and finding out where each message stands.

RabbitMQ confirms messages, but does not tell their offsets. So a writer also subscribes to its stream, from before its
first message on, and finds its messages there, which come in the order in which they were sent. A message that is
delivered is stored on a majority of the replicas.

A message that may be lost is sent again with the same publishing id, by a publisher with the same name: the server
drops it if it has it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.errors import BrokerUnavailableError, DeliveryError
from penstock.model import Pointer
from penstock.streams.adapting.append_queue import Appended
from penstock.streams.rabbitmq.client import StreamClient
from penstock.streams.rabbitmq.connection import BLOCKED, Mailbox, StreamConnection
from penstock.streams.rabbitmq.protocol import (
    MESSAGE_OVERHEAD,
    PUBLISH_OVERHEAD,
    Code,
    OffsetKind,
    OffsetSpec,
    meaning,
)
from penstock.streams.rabbitmq.topics import StreamTopic

CREDIT: Final = 16
"""How many chunks the server may deliver that were not looked at."""
_FRAME_BYTES: Final = 256 << 10
"""About how large frames are, if the messages are small."""
_OTHERS: Final = 5
"""After how many timeouts, in which only messages of others came, to try again."""
_LASTING: Final = frozenset({Code.ACCESS_REFUSED, Code.FRAME_TOO_LARGE})
"""Refusals that another attempt does not change."""


class Outgoing(NamedTuple):
    """A record under way, its publishing id, and its message."""

    appended: Appended
    id: int
    message: bytes


class PartitionWriter:
    """Writes to one partition. Used by one thread."""

    def __init__(
        self, place: StreamTopic, client: StreamClient, partition: int, stream: str, reference: str, timeout_s: float
    ) -> None:
        self._place = place
        self._client = client
        self._partition = partition
        self._stream = stream
        self._reference = reference
        self._timeout_s = timeout_s
        self._seen: Pointer | None = None
        """Our messages before this offset were found."""
        self._connection: StreamConnection | None = None
        self._mailbox = Mailbox(stream)
        self._publisher = self._subscription = 0
        self._outgoing: deque[Outgoing] = deque()

    def send(self, outgoing: Sequence[Outgoing], *, is_new: bool) -> None:
        """Send those that are not settled; some may have been sent, unless `is_new`. BrokerUnavailableError: again."""
        self._outgoing = deque(each for each in outgoing if not each.appended.receipt.done)
        if not self._outgoing:
            return
        if is_new and len(self._mailbox) >= CREDIT // 2:
            self._seen = None  # others have written much since: look for ours from the end on
            self.close()
        connection = self._opened()
        most_bytes = min(connection.frame_max - PUBLISH_OVERHEAD, _FRAME_BYTES)
        messages: list[tuple[int, bytes]] = []
        size_bytes = 0
        for each in self._outgoing:
            size = len(each.message) + MESSAGE_OVERHEAD
            if messages and size_bytes + size > most_bytes:
                connection.publish(self._publisher, messages)
                messages, size_bytes = [], 0
            messages.append((each.id, each.message))
            size_bytes += size
        connection.publish(self._publisher, messages)

    def wait(self) -> None:
        """Settle the receipts of all records sent, as they are found in the stream. BrokerUnavailableError if some
        are not found in time."""
        until_s = time.monotonic() + self._timeout_s
        pause_s = until_s + _OTHERS * self._timeout_s
        while self._outgoing:
            chunk = self._mailbox.take(until_s - time.monotonic())
            if chunk is not None:
                before = len(self._outgoing)
                self._settle(chunk.first, chunk.messages())
                self._seen = chunk.end
                assert self._connection is not None
                self._connection.give_credit(self._subscription, 1)
                until_s = time.monotonic() + self._timeout_s
                if len(self._outgoing) < before:
                    pause_s = until_s + _OTHERS * self._timeout_s
                elif until_s > pause_s:
                    raise BrokerUnavailableError(
                        f"{self._client.where}: messages sent to stream {self._stream!r} were not found among those "
                        "of others yet"
                    )
            elif refused := self._mailbox.take_refused():
                self._refuse(dict(refused))
            elif time.monotonic() >= until_s:
                problem = f"it did not store messages in stream {self._stream!r} within {self._timeout_s:g} s{BLOCKED}"
                assert self._connection is not None
                self._connection.lose(problem)
                raise BrokerUnavailableError(f"{self._client.where}: {problem}")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.unsubscribe(self._subscription, self._mailbox)
            connection.delete_publisher(self._publisher, self._mailbox)

    def _opened(self) -> StreamConnection:
        """The connection, with a subscription that goes on where the last one ended."""
        if self._connection is not None and not self._mailbox.is_broken:
            return self._connection
        self.close()
        if self._seen is None:
            self._seen = self._place.state(self._stream).end
        connection = self._connection = self._client.connection_for(self._stream, at_leader=True)
        self._mailbox = Mailbox(self._stream)
        try:
            with self._place.translating():
                start = OffsetSpec(OffsetKind.OFFSET, self._seen)
                self._subscription = connection.subscribe(self._stream, start, CREDIT, self._mailbox)
                self._publisher = connection.declare_publisher(self._stream, self._reference, self._mailbox)
        except BaseException:
            self.close()
            raise
        return connection

    def _settle(self, offset: Pointer, messages: Sequence[bytes]) -> None:
        outgoing, partition = self._outgoing, self._partition
        expected = outgoing[0].message
        for message in messages:
            if message == expected:
                outgoing.popleft().appended.receipt.settle(partition, offset)
                if not outgoing:
                    return
                expected = outgoing[0].message
            offset += 1

    def _refuse(self, refused: dict[int, int]) -> None:
        """Settle the records that the server will never store. BrokerUnavailableError for the others."""
        lasting = {id: code for id, code in refused.items() if code in _LASTING}
        kept: deque[Outgoing] = deque()
        for each in self._outgoing:
            if each.id in lasting:
                problem = f"{self._client.where} refused a record for stream {self._stream!r}"
                error = DeliveryError(f"{problem}: {meaning(lasting[each.id])}")
                each.appended.receipt.settle(self._partition, -1, error)
            else:
                kept.append(each)
        self._outgoing = kept
        if len(lasting) < len(refused):
            code = next(code for code in refused.values() if code not in _LASTING)
            self.close()
            raise BrokerUnavailableError(
                f"{self._client.where} did not store records in stream {self._stream!r}: {meaning(code)}"
            )
