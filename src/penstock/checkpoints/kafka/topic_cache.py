"""The content of the Kafka store's topic, read as needed and kept in memory."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from penstock.checkpoints.format import corrupt
from penstock.checkpoints.kafka.entries import (
    HANDLED,
    LEASE,
    Entry,
    decode_handled,
    decode_key,
    decode_lease,
    opened_piece,
    partition_of,
)
from penstock.errors import BrokerUnavailableError, PenstockError, StoreUnavailableError, StreamError
from penstock.model import Handled, Lease
from penstock.streams.kafka.administration.topics import TopicAdministration
from penstock.streams.kafka.reading.feed import KafkaFeed
from penstock.streams.kafka.stream import KafkaStream

_AT_ONCE: Final = 2_000
_SLICE_S: Final = 0.1
_PATIENCE_S: Final = 1.0
"""How long to wait for another writer's open transaction before acting on it."""


class TopicCache:
    """The entries of the topic, partition by partition. Thread-safe.

    Reads only on demand: nothing is fetched in between.
    """

    def __init__(self, connection: KafkaStream, topic: str, partitions: int, timeout_s: float) -> None:
        self._connection = connection
        self._topic = topic
        self._timeout_s = timeout_s
        self._topics = TopicAdministration(connection.administration.admin, timeout_s)
        self._lock = threading.RLock()
        self._feed: KafkaFeed | None = None
        self._next: dict[int, int] = {}
        self._pieces: dict[Entry, list[bytes | None]] = {}
        self._by_group: dict[str, set[Entry]] = {}
        self._handled: dict[tuple[str, str], dict[str, int]] = {}
        """For each group and topic, the remembered idempotency keys, and since when."""
        self._written: set[int] = set()
        """Partitions that this process wrote to since they were last read to the end."""
        self.partitions = self._topics.provide(topic, partitions, {"cleanup.policy": "compact"})

    def entry(self, entry: Entry) -> bytes | None:
        with self._lock:
            return self._value(entry)

    def names(self, group: str) -> list[Entry]:
        """All entries of a group, including damaged ones."""
        with self._lock:
            return list(self._by_group.get(group, ()))

    def entries(self, group: str, kind: str) -> dict[Entry, bytes]:
        """All entries of one kind of a group."""
        with self._lock:
            found = {entry: self._value(entry) for entry in self._by_group.get(group, ()) if entry[0] == kind}
        return {entry: value for entry, value in found.items() if value is not None}

    def groups(self) -> list[str]:
        with self._lock:
            return sorted(group for group, entries in self._by_group.items() if entries)

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        """Which of these idempotency keys are remembered."""
        with self._lock:
            known = self._handled.get((group, topic), {})
            return frozenset(each for each in ids if each in known)

    def count_pieces(self, entry: Entry) -> int:
        with self._lock:
            return len(self._pieces.get(entry, ()))

    def leases_in(self, partition: int) -> list[Lease]:
        """All leases in a partition."""
        with self._lock:
            entries = [entry for entry in self._pieces if entry[0] == LEASE]
            found = [(str(entry[1]), str(entry[2]), self._value(entry)) for entry in entries]
        leases = [decode_lease(group, name, data).lease for group, name, data in found if data is not None]
        return [
            each
            for each in leases
            if each is not None and partition_of(each.group, each.name, self.partitions) == partition
        ]

    def wrote(self, partition: int) -> None:
        """Note a commit of our own: the next read must see it."""
        with self._lock:
            self._written.add(partition)

    def look(self, partitions: Iterable[int] | None = None) -> None:
        """Read what is committed by now, in the given partitions or all.

        Others' commits after a transaction that is still open are seen later; our own are always seen.
        """
        with self._lock:
            asked = sorted(range(self.partitions) if partitions is None else partitions)
            targets = self._targets(asked, [each for each in asked if each in self._written])
            self._read(targets, None)
            self._written.difference_update(asked)

    def look_to_the_end(self, partition: int, when_stuck: Callable[[], None]) -> None:
        """Read to the end. A transaction that is open there must end first; `when_stuck` may see to that."""
        with self._lock:
            self._read(self._targets([partition], [partition]), when_stuck)
            self._written.discard(partition)

    def close(self) -> None:
        with self._lock:
            if self._feed is not None:
                self._feed.close()

    def _targets(self, committed: list[int], everything: list[int]) -> dict[int, int]:
        """Up to where to read each partition."""
        topics = self._topics
        try:
            targets = topics.latest(self._topic, [each for each in committed if each not in everything])
            targets |= topics.ends(self._topic, everything)
        except (BrokerUnavailableError, StreamError) as error:
            raise StoreUnavailableError(f"the checkpoints in topic {self._topic!r} cannot be read: {error}") from error
        return {partition: end for partition, end in targets.items() if end > self._next.get(partition, 0)}

    def _read(self, targets: dict[int, int], when_stuck: Callable[[], None] | None) -> None:
        if not targets:
            return
        feed = self._open_feed()
        begun_s = time.monotonic()
        waiting: set[int] = set()
        try:
            for partition in targets:
                feed.add(partition, self._next.get(partition, 0))
                waiting.add(partition)
            while waiting:
                for batch in feed.poll(_AT_ONCE, _SLICE_S):
                    for key, value in zip(batch.keys(), batch.values(), strict=True):
                        self._apply(key, value)
                    self._next[batch.partition] = batch.next
                    if batch.partition in waiting and batch.next >= targets[batch.partition]:
                        waiting.discard(batch.partition)
                        feed.remove(batch.partition)
                waited_s = time.monotonic() - begun_s
                if waiting and waited_s > self._timeout_s:
                    raise StoreUnavailableError(
                        f"{self._topic}-{min(waiting)} could not be read to its end within {self._timeout_s:g} s: the "
                        "broker does not answer, or another transaction is open there"
                    )
                if waiting and when_stuck is not None and waited_s > _PATIENCE_S:
                    when_stuck()
                    when_stuck = None
        except PenstockError as error:
            self._feed = None  # open another next time, from the current position
            feed.close()
            if isinstance(error, BrokerUnavailableError | StreamError):
                raise StoreUnavailableError(f"topic {self._topic!r} cannot be read: {error}") from error
            raise
        finally:
            if self._feed is not None:
                for partition in waiting:
                    feed.remove(partition)

    def _open_feed(self) -> KafkaFeed:
        if self._feed is None:
            # A partition's end comes with the answer to a fetch, which must not wait for records.
            prompt = {"fetch.wait.max.ms": 5, **self._connection.options.librdkafka}
            options = dataclasses.replace(self._connection.options, librdkafka=prompt)
            self._feed = KafkaFeed(self._connection.bootstrap, options, self._topic, self._topics, _AT_ONCE)
            self._connection.keep(self._feed)
        return self._feed

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        try:
            entry, piece = decode_key(key or b"")
            count, content = (0, None) if value is None else opened_piece(value)
        except ValueError as error:
            self._damaged(key, error)
            return
        group = str(entry[1])
        pieces = self._pieces.get(entry, [])
        if entry[0] == HANDLED:
            self._forget_handled(entry)
        if content is None:
            del pieces[piece:]
        else:
            pieces = [*pieces[:count], *[None] * (count - len(pieces))]
            pieces[piece] = content
        if pieces:
            self._pieces[entry] = pieces
            self._by_group.setdefault(group, set()).add(entry)
        else:
            self._pieces.pop(entry, None)
            self._by_group.get(group, set()).discard(entry)
        if entry[0] == HANDLED:
            self._remember_handled(entry)

    def _remember_handled(self, entry: Entry) -> None:
        known = self._handled.setdefault((str(entry[1]), str(entry[2])), {})
        for each in self._handled_in(entry):
            known[each.id] = max(each.at_ms, known.get(each.id, each.at_ms))

    def _forget_handled(self, entry: Entry) -> None:
        known = self._handled.get((str(entry[1]), str(entry[2])), {})
        for each in self._handled_in(entry):
            if known.get(each.id) == each.at_ms:
                del known[each.id]

    def _handled_in(self, entry: Entry) -> list[Handled]:
        """The idempotency keys of an entry, once all of its pieces are there."""
        pieces = [piece for piece in self._pieces.get(entry, []) if piece is not None]
        if not pieces or len(pieces) < len(self._pieces[entry]):
            return []
        return decode_handled(b"".join(pieces))

    def _damaged(self, key: bytes | None, error: ValueError) -> None:
        """Treat a damaged piece as missing: reading its entry raises the error."""
        try:
            entry, piece = decode_key(key or b"")
        except ValueError:
            return  # not a record of ours
        pieces = self._pieces.setdefault(entry, [None])
        pieces[min(piece, len(pieces) - 1)] = None
        self._by_group.setdefault(str(entry[1]), set()).add(entry)

    def _value(self, entry: Entry) -> bytes | None:
        pieces = self._pieces.get(entry)
        if pieces is None:
            return None
        whole = [piece for piece in pieces if piece is not None]
        if len(whole) < len(pieces):
            raise corrupt(f"the {entry[0]!s} of {entry[2:]!r} of group {entry[1]!r}", "a piece of it is damaged")
        return whole[0] if len(whole) == 1 else b"".join(whole)
