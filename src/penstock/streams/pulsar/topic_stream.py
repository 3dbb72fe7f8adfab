"""One topic in Pulsar, as `abc.TopicStream`."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.abc import Feature, Features
from penstock.errors import OffsetOutOfRangeError
from penstock.model import NewRecord, Pointer, Receipt
from penstock.streams.adapting.stream_base import PARTITIONED_LOG, TopicBase, check_limit
from penstock.streams.pulsar.appender import PulsarAppender
from penstock.streams.pulsar.client import PulsarClient
from penstock.streams.pulsar.messages import (
    LEDGER_SHIFT,
    PulsarBatch,
    entry_of,
    index_of,
    ledger_of,
    next_after,
    parse_pointer,
    pointer,
    pointer_of,
    pointer_text,
)
from penstock.streams.pulsar.settings import PulsarSettings
from penstock.streams.pulsar.topics import PartitionLedgers, PulsarTopic, keeps_everything, partition_name

logger = logging.getLogger(__name__)

FEATURES: Final[Features] = PARTITIONED_LOG
BLOCK_S: Final = 1.0
"""The longest time for which a reader waits before it looks whether the topic was closed."""
_READERS: Final = 4
"""How many places in one partition are kept open for the next read."""
_PREFETCH_BYTES: Final = 128 << 20
"""About how much the broker may send ahead of a reader, by the average size of entries."""
_STATE_S: Final = 10.0
"""How often a reader that waits at the end looks where the end is: ledgers before it may be removed."""
_SCANNED: Final = 100
_MOST_BATCHES: Final = 1_000
_LATEST_MS: Final = (1 << 62) - 1


def features_of(settings: PulsarSettings) -> Features:
    return FEATURES | {Feature.IDEMPOTENCE} if settings.deduplicate else FEATURES


@dataclass(slots=True, eq=False)
class _Reader:
    """A reader of Pulsar's client, at a place in a partition."""

    reader: Any
    next: Pointer
    state: PartitionLedgers
    """What the partition held when it was last asked for."""
    state_s: float
    """When that was."""
    prefetch: int
    is_new: bool = True
    """No message was read yet."""
    is_stuck: bool = False
    """The broker has something after this place that is no message (yet): chunks without the last one."""


class PulsarTopicStream(TopicBase):
    """A topic of `PulsarBackend`."""

    def __init__(self, topic: str, client: PulsarClient, settings: PulsarSettings) -> None:
        super().__init__(topic)
        self.features = features_of(settings)
        self._client = client
        self._settings = settings
        self._place = PulsarTopic(topic, client, settings)
        self._appender = PulsarAppender(self._place, client, settings)
        self._lock = threading.Lock()
        self._readers: dict[int, list[_Reader]] = {}
        self._partitions: int | None = None
        """How many there were when that was last asked for; 0 for a topic without partitions."""

    def partitions(self) -> Sequence[int]:
        self._check_open()
        is_first = self._partitions is None
        self._partitions = self._place.partitions()
        if self._partitions is None:
            raise self._place.unknown()
        if is_first:
            self._warn_of_retention()
        return range(max(1, self._partitions))

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        state = self._state(partition)
        return self._first(state), state.end

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> PulsarBatch:
        check_limit(limit)
        until_s = time.monotonic() + wait_s
        self._check_open()
        reader = self._take(partition, start) or self._opened(partition, start)
        try:
            batch = self._batch(partition, reader, limit, until_s)
        except BaseException:
            self._client.release(reader.reader)
            raise
        reader.next = batch.next
        self._keep(partition, reader)
        return batch

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return self._appender.append(records)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            readers = list(itertools.chain.from_iterable(self._readers.values()))
            self._readers.clear()
        for reader in readers:
            self._client.release(reader.reader)
        self._appender.close()

    def _batch(self, partition: int, reader: _Reader, limit: int, until_s: float) -> PulsarBatch:
        start = reader.next
        messages: list[Any] = []
        pointers: list[Pointer] = []
        most = min(limit, 4 * reader.prefetch)
        ledger, after = ledger_of(start), start

        def take(message: Any) -> bool:
            nonlocal ledger, after
            place = pointer_of(message.message_id())
            if place >> LEDGER_SHIFT > ledger:
                self._check_followed(partition, reader, after, place)
                ledger = place >> LEDGER_SHIFT
            if place >= after:  # else it is earlier in the entry of `start`, or was sent again on a new connection
                messages.append(message)
                pointers.append(place)
                after = place + 1
            return len(pointers) < most

        first = self._first_message(partition, reader, until_s)
        if first is not None:
            self._client.read_on(reader.reader, first, take)
        if pointers:
            end = next_after(messages[-1].message_id())
            return PulsarBatch(self.topic, partition, start, end, messages, pointers)
        return PulsarBatch(self.topic, partition, start, self._end_of_wait(partition, reader), messages, pointers)

    def _first_message(self, partition: int, reader: _Reader, until_s: float) -> Any:
        """A message, not earlier than the place of the reader; None if there is none in time."""
        wait_until_s = until_s
        while True:  # ends: when there is a message, or the time is over and the broker has none
            self._check_open()
            left_s = wait_until_s - time.monotonic()
            message = self._client.read(reader.reader, max(0, math.ceil(1000 * min(left_s, BLOCK_S))))
            if message is not None:
                place = pointer_of(message.message_id())
                if reader.is_new and place > reader.next and self._restarted(partition, reader):
                    continue
                reader.is_new = reader.is_stuck = False
                if place >= reader.next:
                    return message
                continue
            self._reconnect(partition, reader)
            if time.monotonic() < wait_until_s:
                continue
            if reader.is_stuck or not self._has_more(partition, reader):
                return None
            if wait_until_s == until_s:
                wait_until_s = time.monotonic() + self._settings.timeout_s  # it is on its way
            elif not (reader.is_new and self._restarted(partition, reader)):
                reader.is_stuck = True
                return None

    def _has_more(self, partition: int, reader: _Reader) -> bool:
        """Whether the broker has a record that was not read. The client is wrong about a new reader at the end of a
        batch."""
        has_more = self._client.has_more(reader.reader)
        return has_more and (not reader.is_new or self._state(partition).end > reader.next)

    def _restarted(self, partition: int, reader: _Reader) -> bool:
        """Whether the place is the last chunk of a message, and the reader begins at its first one now."""
        reader.is_new = False
        start = reader.next
        if index_of(start) or entry_of(start) >= reader.state.ledgers.get(ledger_of(start), 0):
            return False
        name = self._name(partition)
        first = self._place.chunk_start(name, start)
        if first is None or first == start:
            return False
        self._client.release(reader.reader)
        reader.reader = self._client.reader(name, first, reader.prefetch)
        return True

    def _reconnect(self, partition: int, reader: _Reader) -> None:
        """Replace a reader without a connection: Pulsar's client connects again by itself, but later and later."""
        if not reader.reader.is_connected():
            self._client.release(reader.reader)
            fresh = self._opened(partition, reader.next)
            reader.reader, reader.is_new, reader.is_stuck = fresh.reader, True, False

    def _end_of_wait(self, partition: int, reader: _Reader) -> Pointer:
        """Where reading continues when nothing came: further on if the newest ledger is another one now, or if all of
        the last entry, a batch, was read."""
        now_s = time.monotonic()
        is_in_batch = index_of(reader.next) > 0 and not reader.is_stuck
        if is_in_batch and reader.state.end == pointer(ledger_of(reader.next), entry_of(reader.next) + 1):
            return reader.state.end
        if now_s - reader.state_s < _STATE_S:
            return reader.next
        state = self._state(partition)
        end = state.end
        is_at_end = state.has(ledger_of(reader.next)) and state.follows(reader.next, ledger_of(end))
        reader.state, reader.state_s = state, now_s
        return max(reader.next, end) if is_at_end and not entry_of(end) else reader.next

    def _check_followed(self, partition: int, reader: _Reader, place: Pointer, found: Pointer) -> None:
        """Raise OffsetOutOfRangeError if ledgers between two places may have been removed unread."""
        if self._settings.read_compacted:
            return
        state, before = self._state(partition), reader.state
        reader.state, reader.state_s = state, time.monotonic()
        if state.has(ledger_of(place)) or self._is_whole(place):
            return
        known = before.ledgers.keys()
        ledger = ledger_of(found)
        if not (before.has(ledger_of(place)) and ledger in known and before.follows(place, ledger)):
            raise self._out_of_range(partition, place, state)

    def _opened(self, partition: int, start: Pointer) -> _Reader:
        """A new reader, if what follows `start` is still there."""
        state = self._state(partition)
        if start > state.end or (start < self._first(state) and not self._is_whole(start)):
            raise self._out_of_range(partition, start, state)
        average = state.size_bytes // max(1, state.entries)
        prefetch = max(1, min(self._settings.prefetch, _PREFETCH_BYTES // max(1, average)))
        reader = self._client.reader(self._name(partition), start, prefetch)
        return _Reader(reader, start, state, time.monotonic(), prefetch)

    def _is_whole(self, start: Pointer) -> bool:
        """Whether nothing can be missing after the start of a ledger that is gone: Pulsar also removes a ledger that
        stayed empty, and nothing else from a topic that keeps everything."""
        return not entry_of(start) and not index_of(start) and keeps_everything(self._place.retention())

    def _take(self, partition: int, start: Pointer) -> _Reader | None:
        """A reader that is at this place already."""
        with self._lock:
            readers = self._readers.get(partition, [])
            for index, reader in enumerate(readers):
                if reader.next == start:
                    del readers[index]
                    break
            else:
                return None
        if reader.reader.is_connected():
            return reader
        self._client.release(reader.reader)
        return None

    def _keep(self, partition: int, reader: _Reader) -> None:
        """Keep a reader for the next read, and close the oldest one that was kept."""
        dropped = reader
        with self._lock:
            if not self._is_closed:
                readers = self._readers.setdefault(partition, [])
                readers.append(reader)
                if len(readers) <= _READERS:
                    return
                dropped = readers.pop(0)
        self._client.release(dropped.reader)

    def _pointer_of(self, text: str) -> Pointer:
        return parse_pointer(text)

    def _at_time(self, partition: int, time_ms: int) -> Pointer:
        """The entry that the broker finds by its time, or the first after it that is not older."""
        state = self._state(partition)
        place = self._place.message_at(self._name(partition), min(max(0, time_ms), _LATEST_MS))
        place = max(place, self._first(state))
        for _ in range(_MOST_BATCHES):
            if place >= state.end:
                return state.end
            batch = self.read(partition, place, _SCANNED, 0.0)
            for found, stamp_ms in zip(batch.pointers(), batch.timestamps(), strict=True):
                if stamp_ms is not None and stamp_ms >= time_ms:
                    return found
            if not len(batch):
                return state.end
            place = batch.next
        return place

    def _state(self, partition: int) -> PartitionLedgers:
        self._check_open()
        return self._place.state(partition, self._name(partition))

    def _first(self, state: PartitionLedgers) -> Pointer:
        """The earliest pointer. A compacted topic has records of ledgers that were removed."""
        return 0 if self._settings.read_compacted and state.is_compacted else state.first

    def _name(self, partition: int) -> str:
        if self._partitions is None or not 0 <= partition < max(1, self._partitions):
            self._partitions_now(partition)
        return partition_name(self.topic, partition, self._partitions or 0)

    def _partitions_now(self, partition: int) -> None:
        if partition not in self.partitions():
            raise self._place.unknown(partition)

    def _out_of_range(self, partition: int, start: Pointer, state: PartitionLedgers) -> OffsetOutOfRangeError:
        name = f"{self.topic}-{partition}"
        first = self._first(state)
        error = OffsetOutOfRangeError(name, start, first, state.end)
        what = "may have been deleted by retention" if start < state.end else "has not been written yet"
        error.args = (
            f"{self._client.where}: what follows {pointer_text(start)} in {name} {what}; it holds "
            f"{pointer_text(first)} to {pointer_text(state.end)}. Choose earliest, latest, or a message id in between; "
            "keep records longer with the topic's retention",
        )
        return error

    def _warn_of_retention(self) -> None:
        minutes, size_mb = self._place.retention()
        if minutes == 0 or size_mb == 0:
            logger.warning(
                "%s deletes records of topic %r that no subscription waits for, whether or not they were read here. "
                "Keep them with `pulsar-admin topics set-retention %s --time 7d --size -1`",
                self._client.where,
                self.topic,
                self._client.full_name(self.topic),
            )
