"""Writing under a lease of the Kafka store: whatever is written goes through the one producer that may."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TopicPartition

from penstock.checkpoints.fencing import fenced
from penstock.checkpoints.kafka_entries import (
    NO_LEASE,
    Entry,
    decode_lease,
    encode_key,
    lease_entry,
    partition_of,
    pieces_of,
    transactional_id,
)
from penstock.checkpoints.kafka_shelf import Shelf
from penstock.errors import StoreUnavailableError
from penstock.model import Lease
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.transactions import TransactionalProducer, TransactionLostError

_ATTEMPTS: Final = 8
_MOST_FREED: Final = 50

Values = Mapping[Entry, bytes | None]
"""What entries shall be; None where one shall go."""

Offsets = list[TopicPartition] | tuple[()]
"""How far the group shall have come, for everybody to see who knows Kafka's groups."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What all writers of a store share."""

    connection: Connection
    topic: str
    history_topic: str
    shelf: Shelf
    timeout_s: float
    transaction_timeout_s: float

    def producer(self, group: str, name: str) -> TransactionalProducer:
        return TransactionalProducer(
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
    """For the history."""


class LeaseWriter:
    """Compares and sets what is kept under one lease. Used with its `lock` held.

    Starting a producer under the lease's transactional id waits for what the one before has under way, and fences it.
    What stands in the topic then changes by this producer or by none. So: start it, read all there is, compare, write;
    if the write is committed, nothing came in between. A producer that was fenced only because somebody else wanted to
    look is started again, and compares again.
    """

    def __init__(self, storage: Storage, group: str, name: str) -> None:
        self.lock = threading.Lock()
        self.group = group
        self.name = name
        self.stored = NO_LEASE
        """The lease as it is, while `is_ready`."""
        self.is_in_doubt = False
        """Whether something may have been written of which nobody knows yet."""
        self._storage = storage
        self._partition = partition_of(group, name, storage.shelf.partitions)
        self._producer: TransactionalProducer | None = None
        self._counts: dict[Entry, int] = {}
        """Into how many pieces an entry was cut, for those that have been more than one."""

    @property
    def partition(self) -> int:
        """Of the store's topics: where this lease stands, with all that is written under it."""
        return self._partition

    @property
    def is_ready(self) -> bool:
        return self._producer is not None

    @property
    def producer(self) -> TransactionalProducer:
        if self._producer is None:
            raise TransactionLostError(f"what was under way under {self.name!r} was given up")
        return self._producer

    def ready(self) -> None:
        """Be the one who may write, and know what there is. Raises StoreUnavailableError, TransactionLostError."""
        if self._producer is not None:
            return
        producer = self._storage.producer(self.group, self.name)
        try:
            self._storage.shelf.look_to_the_end(self._partition, self._free)
            self.refresh()
        except BaseException:
            producer.close()
            raise
        self._producer = producer
        self.is_in_doubt = False

    def refresh(self) -> None:
        """Take over what the shelf says of the lease."""
        data = self._storage.shelf.entry(lease_entry(self.group, self.name))
        self.stored = NO_LEASE if data is None else decode_lease(self.group, self.name, data)

    def look(self) -> None:
        """See what was committed, without becoming the one who may write."""
        self._storage.shelf.look([self._partition])

    def check_held(self, lease: Lease) -> None:
        """FencedError unless the lease has this owner and epoch."""
        now = self.stored.lease
        if now is None or not now.owner or (now.owner, now.epoch) != (lease.owner, lease.epoch):
            raise fenced(lease, now)

    def discard(self) -> None:
        """Let go of the producer. What is written next begins with another one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def change(
        self,
        decide: Callable[[], Write | None],
        counted: Callable[[], bool],
    ) -> bool:
        """Write what `decide` says in view of `stored`, all of it or nothing. False when it says None.

        It is asked again when the write did not go through. Where nobody could tell whether it did, `counted` is asked
        first, once it can be known.
        """
        problem: TransactionLostError | None = None
        deadline_s = time.monotonic() + self._storage.timeout_s
        for attempt in range(_ATTEMPTS):
            if attempt and time.monotonic() > deadline_s:
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
            time.sleep(random.uniform(0, min(0.5, 0.01 * 2**attempt)))
        raise StoreUnavailableError(f"nothing could be written under {self.name!r}: {problem}") from problem

    def _is_worth_another(self, decide: Callable[[], Write | None], counted: Callable[[], bool]) -> bool:
        """Whether, as far as anybody can see, the write has not been done and may still be. So that one who has lost
        the lease finds out without fencing who has it."""
        self.look()
        self.refresh()
        return not counted() and decide() is not None

    def finish(self, write: Write) -> None:
        """Write it in the transaction that is open, and commit that."""
        if write.lines is not None:
            self.producer.produce(self._storage.history_topic, write.lines, None, self._partition)
        for entry, value in write.values.items():
            self._put(entry, value)
        if write.offsets:
            self.producer.send_offsets(self.group, list(write.offsets))
        self.producer.commit()
        self._storage.shelf.wrote(self._partition)
        data = write.values.get(lease_entry(self.group, self.name), b"")
        if data is None:
            self.stored = NO_LEASE
        elif data:
            self.stored = decode_lease(self.group, self.name, data)

    def _put(self, entry: Entry, value: bytes | None) -> None:
        pieces: list[bytes | None] = [] if value is None else list(pieces_of(value))
        before = max(1, self._counts.get(entry, 0), self._storage.shelf.count_pieces(entry))
        self._counts[entry] = len(pieces)
        if len(pieces) <= 1:
            del self._counts[entry]
        pieces += [None] * (before - len(pieces))
        for piece, content in enumerate(pieces):
            self.producer.produce(self._storage.topic, content, encode_key(entry, piece), self._partition)

    def _free(self) -> None:
        """Somebody's transaction, under another lease, keeps the partition from being read: perhaps its owner is dead.

        Those who may have left it are overtaken, which ends it. One who lives only has to begin again.
        """
        for lease in self._storage.shelf.leases_in(self._partition)[:_MOST_FREED]:
            if (lease.group, lease.name) != (self.group, self.name):
                self._storage.producer(lease.group, lease.name).close()
