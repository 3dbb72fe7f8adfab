"""Checkpoints in Kafka itself: in a compacted topic, fenced by Kafka's own transactions."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.abc import Feature, Features
from penstock.checkpoints.fencing import in_use
from penstock.checkpoints.format import decode_checkpoint
from penstock.checkpoints.kafka_entries import (
    CHECKPOINT,
    LEASE,
    STATE,
    checkpoint_entry,
    decode_lease,
    encode_grave,
    encode_lease,
    key_of,
    lease_entry,
    lease_name_of,
    partition_of,
)
from penstock.checkpoints.kafka_history import KafkaHistory
from penstock.checkpoints.kafka_saving import Saving, opened_checkpoint
from penstock.checkpoints.kafka_shelf import Shelf
from penstock.checkpoints.kafka_transaction import KafkaTransaction
from penstock.checkpoints.kafka_writing import LeaseWriter, Storage, Write
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    FencedError,
    StoreUnavailableError,
)
from penstock.model import Change, Checkpoint, CheckpointKey, Happening, Lease, Pointer
from penstock.streams import connect
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.groups import GroupAdministration
from penstock.streams.kafka.transactions import TransactionLostError

TOPIC: Final = "penstock.checkpoints"
HISTORY_SUFFIX: Final = ".history"
TOKEN_BYTES: Final = 16
_BEGIN_ATTEMPTS: Final = 5


class KafkaCheckpoints:
    """`penstock.abc.CheckpointStore` on Kafka, or on the embedded log. Given a connection, which stays its maker's to
    close, or a URL.

    Everything is in one compacted topic, which is created if it is not there, and the lines of the history in another.
    Each lease has a transactional id. Whatever is written under it, a claim too, is a transaction of the producer that
    was started last under this id: Kafka refuses all others, and ends at once what a dead one has left open. So a claim
    compares and sets, and an owner that wakes up late can write nothing. With each save the group's offsets in the
    topic are committed to the checkpoint's start, in the same transaction, so that every Kafka tool shows the progress.

    `begin` gives a transaction in which records sent to any topics count together with the checkpoint.

    - `topic` ("penstock.checkpoints"); the history is in the topic of that name and ".history".
    - `partitions` (16): of the topic, when it is created. Never change them afterwards: a lease's place hangs on it.
    - `timeout_s` (30 s): how long the broker may take, or the one whose transaction is in the way, before
      StoreUnavailableError.
    - `transaction_timeout_s` (60 s): after so long the broker ends a transaction by itself.
    - `history_retention_s` (7 days): how long lines are kept, when the topic is created.

    What stands in the topic's partitions that a program has to do with is held in memory, state and idempotency keys
    too: this store is for checkpoints and modest state.
    """

    def __init__(
        self,
        connection: Connection | str,
        *,
        topic: str = TOPIC,
        partitions: int = 16,
        timeout_s: float = 30.0,
        transaction_timeout_s: float = 60.0,
        history_retention_s: float = 7 * 86_400.0,
    ) -> None:
        if partitions < 1 or timeout_s <= 0 or transaction_timeout_s <= 0 or history_retention_s <= 0:
            raise ConfigError("partitions, timeout_s, transaction_timeout_s and history_retention_s must be positive")
        self._is_ours = isinstance(connection, str)
        self._connection = connect(connection) if isinstance(connection, str) else connection
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._writers: dict[tuple[str, str], LeaseWriter] = {}
        self._is_closed = False
        try:
            self._shelf = Shelf(self._connection, topic, partitions, timeout_s)
            history = topic + HISTORY_SUFFIX
            self._history = KafkaHistory(self._connection, history, self._shelf.partitions, history_retention_s)
        except BaseException:
            self.close()
            raise
        self._storage = Storage(self._connection, topic, history, self._shelf, timeout_s, transaction_timeout_s)
        self._saving = Saving(self._connection, self._shelf, self._history)

    @property
    def features(self) -> Features:
        return frozenset(
            {Feature.DURABLE, Feature.LEASES, Feature.STATE, Feature.HISTORY, Feature.DEDUPLICATION},
        )

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        if not owner:
            raise ValueError("an owner has a name: the empty one means that nobody holds the lease")
        entry, token = lease_entry(group, name), os.urandom(TOKEN_BYTES)
        with self._writer(group, name) as writer:
            writer.look()
            known = writer.stored
            writer.refresh()
            if writer.stored.lease != seen:
                return None  # to find that out, nobody has to be fenced
            if writer.stored != known:
                writer.discard()  # somebody else has written since we were the one who may

            def decide() -> Write | None:
                if writer.stored.lease != seen:
                    return None
                lease = Lease(group, name, owner, writer.stored.epoch + 1, 0)
                return Write({entry: encode_lease(lease, writer.stored.floor, token)})

            if not writer.change(decide, lambda: writer.stored.token == token):
                writer.discard()
                return None
            return writer.stored.lease

    def renew(self, lease: Lease) -> Lease:
        entry, token = lease_entry(lease.group, lease.name), os.urandom(TOKEN_BYTES)
        with self._writer(lease.group, lease.name) as writer:

            def decide() -> Write:
                writer.check_held(lease)
                now = writer.stored.lease
                assert now is not None
                renewed = Lease(now.group, now.name, now.owner, now.epoch, now.beat + 1)
                return Write({entry: encode_lease(renewed, writer.stored.floor, token)})

            with _let_go_when_fenced(writer):
                writer.change(decide, lambda: writer.stored.token == token)
            assert writer.stored.lease is not None
            return writer.stored.lease

    def release(self, lease: Lease) -> None:
        entry, token = lease_entry(lease.group, lease.name), os.urandom(TOKEN_BYTES)
        with self._writer(lease.group, lease.name) as writer:

            def decide() -> Write | None:
                now = writer.stored.lease
                if now is None or (now.owner, now.epoch) != (lease.owner, lease.epoch):
                    return None
                free = Lease(now.group, now.name, "", now.epoch, now.beat)
                return Write({entry: encode_lease(free, writer.stored.floor, token)})

            writer.change(decide, lambda: writer.stored.token == token)
            writer.discard()

    def leases(self, group: str) -> Sequence[Lease]:
        self._look()
        found = [
            decode_lease(group, str(entry[2]), data).lease for entry, data in self._shelf.entries(group, LEASE).items()
        ]
        return sorted((lease for lease in found if lease is not None), key=lambda lease: lease.name)

    def forget_lease(self, lease: Lease) -> None:
        entry = lease_entry(lease.group, lease.name)
        with self._writer(lease.group, lease.name) as writer:
            writer.change(
                lambda: Write({entry: None}) if writer.stored.lease == lease else None,
                lambda: writer.stored.lease is None,
            )
            writer.discard()

    def load(self, key: CheckpointKey) -> Checkpoint | None:
        self._look(key)
        data = self._shelf.entry(checkpoint_entry(key))
        return None if data is None else decode_checkpoint(opened_checkpoint(data, key).data, key)

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        _check_is_for(lease, key)
        token = os.urandom(TOKEN_BYTES)
        with self._writer(lease.group, lease.name) as writer, _let_go_when_fenced(writer):

            def decide() -> Write:
                writer.check_held(lease)
                return self._saving.prepare(lease, key, change, token)

            writer.change(decide, lambda: self._saving.token_of(key) == token)

    def begin(self, lease: Lease) -> KafkaTransaction:
        """Begin a transaction in which outputs and checkpoint count together. FencedError unless the lease is held."""
        writer = self._writer_of(lease.group, lease.name)
        self._take(writer)
        try:
            with _let_go_when_fenced(writer):
                self._begin(writer, lease)
            return KafkaTransaction(writer, lease, self._saving.prepare, self._saving.token_of)
        except BaseException:
            writer.lock.release()
            raise

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        self._look()
        found = {key_of(entry): data for entry, data in self._shelf.entries(group, CHECKPOINT).items()}
        return {key: decode_checkpoint(opened_checkpoint(data, key).data, key) for key, data in found.items()}

    def groups(self) -> Sequence[str]:
        self._look()
        return [group for group in self._shelf.groups() if self._is_there(group)]

    def forget(self, group: str) -> None:
        """See `penstock.abc.CheckpointStore.forget`. The group's offsets in Kafka go, too."""
        for lease in self.leases(group):
            if lease.owner:
                raise in_use(lease)
        self._forget_offsets(group)
        for name in sorted({lease_name_of(entry) for entry in self._shelf.names(group)}):
            self._forget(group, name)

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        self._look(key)
        entries = self._shelf.entries(key.group, STATE).items()
        return {name: data for entry, data in entries if key_of(entry) == key and isinstance(name := entry[4], bytes)}

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        self._look()
        return self._shelf.handled(group, topic, ids)

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[Happening]:
        self._look(key)
        lease = self._shelf.entry(lease_entry(key.group, key.lease_name))
        checkpoint = self._shelf.entry(checkpoint_entry(key))
        if lease is None or checkpoint is None:
            return []
        try:
            return self._read_history(key, lease, checkpoint, pointer, limit)
        except BrokerUnavailableError as error:
            raise StoreUnavailableError(f"the history of {key} cannot be read: {error}") from error

    def _read_history(
        self, key: CheckpointKey, lease: bytes, checkpoint: bytes, pointer: Pointer | None, limit: int
    ) -> Sequence[Happening]:
        return self._history.read(
            key,
            partition_of(key.group, key.lease_name, self._shelf.partitions),
            above_epoch=decode_lease(key.group, key.lease_name, lease).floor,
            since_ms=opened_checkpoint(checkpoint, key).history_since_ms,
            pointer=pointer,
            limit=limit,
        )

    def close(self) -> None:
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            writers, self._writers = list(self._writers.values()), {}
        if not is_first:
            return
        for writer in writers:
            writer.discard()
        if hasattr(self, "_shelf"):
            self._shelf.close()
        if self._is_ours:
            self._connection.close()

    def _begin(self, writer: LeaseWriter, lease: Lease) -> None:
        problem: TransactionLostError | None = None
        deadline_s = time.monotonic() + self._timeout_s
        for attempt in range(_BEGIN_ATTEMPTS):
            if attempt and time.monotonic() > deadline_s:
                break
            try:
                if not writer.is_ready:  # who has lost the lease finds out without fencing who has it
                    writer.look()
                    writer.refresh()
                    writer.check_held(lease)
                writer.ready()
                writer.check_held(lease)
                writer.producer.begin()
                return
            except TransactionLostError as error:
                problem = error
                writer.discard()
        raise StoreUnavailableError(f"no transaction could be begun under {lease.name!r}: {problem}") from problem

    def _is_there(self, group: str) -> bool:
        if any(entry[0] == CHECKPOINT for entry in self._shelf.names(group)):
            return True
        leases = self._shelf.entries(group, LEASE).values()
        return any(decode_lease(group, "", data).lease is not None for data in leases)

    def _forget(self, group: str, name: str) -> None:
        """Everything under one lease, but for its epoch."""
        token = os.urandom(TOKEN_BYTES)
        with self._writer(group, name) as writer:

            def decide() -> Write:
                if writer.stored.lease is not None and writer.stored.lease.owner:
                    raise in_use(writer.stored.lease)
                gone = [entry for entry in self._shelf.names(group) if lease_name_of(entry) == name]
                grave = encode_grave(writer.stored.epoch, token)
                return Write({**dict.fromkeys(gone), lease_entry(group, name): grave})

            writer.change(decide, lambda: writer.stored.token == token)
            writer.discard()

    def _forget_offsets(self, group: str) -> None:
        groups = GroupAdministration(self._connection.administration)
        try:
            if group in {each.name for each in groups.all()}:
                groups.delete(group)
        except BrokerUnavailableError as error:
            raise StoreUnavailableError(f"group {group!r} could not be forgotten: {error}") from error

    def _look(self, key: CheckpointKey | None = None) -> None:
        """See what was committed: under the lease of one partition, or everywhere."""
        self._check_open()
        if key is None:
            self._shelf.look()
            return
        writer = self._writer_of(key.group, key.lease_name)
        if writer.is_in_doubt:
            with self._writer(key.group, key.lease_name):
                try:
                    writer.ready()
                except TransactionLostError as error:
                    raise StoreUnavailableError(f"what became of a write is not known yet: {error}") from error
        writer.look()

    def _writer_of(self, group: str, name: str) -> LeaseWriter:
        with self._lock:
            self._check_open()
            writer = self._writers.get((group, name))
            if writer is None:
                writer = self._writers[group, name] = LeaseWriter(self._storage, group, name)
            return writer

    @contextmanager
    def _writer(self, group: str, name: str) -> Iterator[LeaseWriter]:
        writer = self._writer_of(group, name)
        self._take(writer)
        try:
            yield writer
        finally:
            writer.lock.release()

    def _take(self, writer: LeaseWriter) -> None:
        if not writer.lock.acquire(timeout=self._timeout_s):
            raise StoreUnavailableError(
                f"{writer.name!r} of group {writer.group!r} has had a transaction open for {self._timeout_s:g} s"
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosedError("these checkpoints have been closed")


@contextmanager
def _let_go_when_fenced(writer: LeaseWriter) -> Iterator[None]:
    """Who is fenced needs no producer any more, and it would fence the new owner's when that begins again."""
    try:
        yield
    except FencedError:
        writer.discard()
        raise


def _check_is_for(lease: Lease, key: CheckpointKey) -> None:
    if (lease.group, lease.name) != (key.group, key.lease_name):
        raise FencedError(f"{lease} is not the lease of {key}, {key.lease_name!r}. Nothing was saved")
