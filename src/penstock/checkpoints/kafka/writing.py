"""Write under a lease of the Kafka store, through the only producer that is not fenced."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TopicPartition

from penstock.checkpoints.fencing import fenced
from penstock.checkpoints.kafka.entries import (
    NO_LEASE,
    Entry,
    decode_lease,
    encode_key,
    lease_entry,
    partition_of,
    pieces_of,
    transactional_id,
)
from penstock.checkpoints.kafka.topic_cache import TopicCache
from penstock.errors import StoreUnavailableError, TransactionLostError
from penstock.model import Lease
from penstock.streams.kafka.producing.transactions import TransactionalProducer, start_transactional
from penstock.streams.kafka.stream import KafkaStream

_ATTEMPTS: Final = 8
_LONGEST_PAUSE_S: Final = 2.0
_MOST_FREED: Final = 50

Values = Mapping[Entry, bytes | None]
"""The new values of entries; None deletes one."""

Offsets = list[TopicPartition] | tuple[()]
"""The group's offsets to commit, for tools that show Kafka's groups."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What all writers of a store share."""

    connection: KafkaStream
    topic: str
    history_topic: str
    cache: TopicCache
    timeout_s: float
    transaction_timeout_s: float

    def producer(self, group: str, name: str) -> TransactionalProducer:
        return start_transactional(
            self.connection.bootstrap,
            self.connection.options,
            transactional_id(group, name),
            timeout_s=self.timeout_s,
            transaction_timeout_s=self.transaction_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Write:
    """What a save writes."""

    values: Values
    offsets: Offsets = ()
    lines: bytes | None = None
    """History entries."""


class LeaseWriter:
    """Compare-and-set of what is stored under one lease. Used with its `lock` held.

    Starting a producer under the lease's transactional id waits for the previous producer's transaction and fences it.
    From then on only this producer can change the entries. So: start it, read everything, compare, write; if the write
    commits, nothing came in between. A producer that was fenced only because another process wanted to look is started
    again, and compares again.
    """

    def __init__(self, storage: Storage, group: str, name: str) -> None:
        self.lock = threading.Lock()
        self.group = group
        self.name = name
        self.stored = NO_LEASE
        """The current lease, while `is_ready`."""
        self.is_in_doubt = False
        """Whether a write has an unknown outcome."""
        self._storage = storage
        self._partition = partition_of(group, name, storage.cache.partitions)
        self._producer: TransactionalProducer | None = None
        self._counts: dict[Entry, int] = {}
        """How many pieces an entry was split into, for those with more than one."""

    @property
    def partition(self) -> int:
        """The partition of the store's topics that holds this lease and everything under it."""
        return self._partition

    @property
    def is_ready(self) -> bool:
        return self._producer is not None

    @property
    def producer(self) -> TransactionalProducer:
        if self._producer is None:
            raise TransactionLostError(f"the transaction under {self.name!r} was abandoned")
        return self._producer

    def ready(self) -> None:
        """Become the only writer and read what is stored. Raises StoreUnavailableError, TransactionLostError."""
        if self._producer is not None:
            return
        producer = self._storage.producer(self.group, self.name)
        try:
            self._storage.cache.look_to_the_end(self._partition, self._free)
            self.refresh()
        except BaseException:
            producer.close()
            raise
        self._producer = producer
        self.is_in_doubt = False

    def refresh(self) -> None:
        """Take the lease from the topic cache."""
        data = self._storage.cache.entry(lease_entry(self.group, self.name))
        self.stored = NO_LEASE if data is None else decode_lease(self.group, self.name, data)

    def look(self) -> None:
        """Read what was committed, without becoming the writer."""
        self._storage.cache.look([self._partition])

    def check_held(self, lease: Lease) -> None:
        """Raise FencedError unless the lease has this owner and epoch."""
        now = self.stored.lease
        if now is None or not now.owner or (now.owner, now.epoch) != (lease.owner, lease.epoch):
            raise fenced(lease, now)

    def discard(self) -> None:
        """Close the producer. The next write starts another one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def change(self, decide: Callable[[], Write | None], counted: Callable[[], bool]) -> bool:
        """Write what `decide` returns in view of `stored`, all or nothing. False when it returns None.

        It is asked again when the write failed. When the outcome of a write was unknown, `counted` is asked first, once
        it can be known.
        """
        problem: TransactionLostError | None = None
        deadline_s = time.monotonic() + self._storage.timeout_s
        for attempt in range(_ATTEMPTS):
            began_s = time.monotonic()
            if attempt and began_s > deadline_s:
                break
            try:
                if attempt and not self._is_worth_another(decide, counted):
                    return counted()
                self.ready()
                if attempt and counted():
                    return True
                write = decide()
                if write is None:
                    return False
                self.producer.begin()
                self.finish(write)
                return True
            except TransactionLostError as error:
                problem = error
                self.discard()
                self.is_in_doubt = True
            # Another writer that begins during an attempt ruins it: leave it the time of a whole one.
            took_s = min(time.monotonic() - began_s, _LONGEST_PAUSE_S)
            time.sleep(random.uniform(0, max(took_s, min(0.5, 0.01 * 2**attempt))))
        raise StoreUnavailableError(f"nothing could be written under {self.name!r}: {problem}") from problem

    def _is_worth_another(self, decide: Callable[[], Write | None], counted: Callable[[], bool]) -> bool:
        """Whether the write has not been made and still may be, as far as is known. So an owner that lost the lease
        finds out without fencing the new one."""
        self.look()
        self.refresh()
        return not counted() and decide() is not None

    def finish(self, write: Write) -> None:
        """Write in the open transaction and commit it."""
        if write.lines is not None:
            self.producer.produce(self._storage.history_topic, write.lines, None, self._partition)
        for entry, value in write.values.items():
            self._put(entry, value)
        if write.offsets:
            try:
                self.producer.send_offsets(self.group, list(write.offsets))
            except TransactionLostError:
                self.producer.abort()  # left open, it would hide everything behind it until its time is over
                raise
        self.producer.commit()
        self._storage.cache.wrote(self._partition)
        data = write.values.get(lease_entry(self.group, self.name), b"")
        if data is None:
            self.stored = NO_LEASE
        elif data:
            self.stored = decode_lease(self.group, self.name, data)

    def _put(self, entry: Entry, value: bytes | None) -> None:
        pieces: list[bytes | None] = [] if value is None else list(pieces_of(value))
        before = max(1, self._counts.get(entry, 0), self._storage.cache.count_pieces(entry))
        self._counts[entry] = len(pieces)
        if len(pieces) <= 1:
            del self._counts[entry]
        pieces += [None] * (before - len(pieces))
        for piece, content in enumerate(pieces):
            self.producer.produce(self._storage.topic, content, encode_key(entry, piece), self._partition)

    def _free(self) -> None:
        """Fence the writers whose open transaction, under another lease, keeps the partition from being read.

        Their owners may be dead. One that is alive only has to start again.
        """
        for lease in self._storage.cache.leases_in(self._partition)[:_MOST_FREED]:
            if (lease.group, lease.name) != (self.group, self.name):
                self._storage.producer(lease.group, lease.name).close()
