"""Checkpoints in Kafka itself: in a compacted topic, fenced by Kafka's transactions."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.abc import Stream
from penstock.checkpoints.fencing import FEATURES, check_lease_of, check_owner, in_use
from penstock.checkpoints.format import decode_checkpoint
from penstock.checkpoints.kafka.change_encoding import ChangeEncoder, KafkaHistory, opened_checkpoint
from penstock.checkpoints.kafka.entries import (
    CHECKPOINT,
    LEASE,
    STATE,
    checkpoint_entry,
    decode_lease,
    encode_deleted_lease,
    encode_lease,
    key_of,
    lease_entry,
    lease_name_of,
    partition_of,
)
from penstock.checkpoints.kafka.topic_cache import TopicCache
from penstock.checkpoints.kafka.transaction import KafkaTransaction
from penstock.checkpoints.kafka.writing import LeaseWriter, Storage, Write
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    FencedError,
    StoreUnavailableError,
    TransactionLostError,
)
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Lease, Pointer
from penstock.streams import connect
from penstock.streams.kafka.administration.groups import GroupAdministration
from penstock.streams.kafka.stream import kafka_of

TOPIC: Final = "penstock.checkpoints"
HISTORY_SUFFIX: Final = ".history"
TOKEN_BYTES: Final = 16
_BEGIN_ATTEMPTS: Final = 5


class KafkaCheckpoints:
    """`penstock.abc.CheckpointStore` on Kafka, or on the embedded log. Takes a URL, or a connection, which the
    caller closes.

    Everything is in one compacted topic, which is created if missing, and the history in another. Each lease has a
    transactional id. Every write under it, including a claim, is a transaction of the producer that was started last
    under this id: Kafka fences all others, and at once aborts what a dead one has left open. So a claim is a
    compare-and-set, and an owner that wakes up late can write nothing. Each save also commits the group's offsets in
    the topic to the checkpoint's start, in the same transaction, so that every Kafka tool shows the progress.

    `begin` returns a transaction that commits records to any topics together with the checkpoint.

    - `topic` ("penstock.checkpoints"); the history is in the topic of that name plus ".history".
    - `partitions` (16): of the topic, when it is created. Never change it afterwards: it decides where a lease is.
    - `timeout_s` (30 s): how long to wait for the broker, or for another transaction that is in the way, before
      StoreUnavailableError.
    - `transaction_timeout_s` (60 s): after this long the broker aborts a transaction.
    - `history_retention_s` (7 days): how long history is kept, when the topic is created.

    The topic's partitions that a program uses are held in memory, including state and idempotency keys: this store is
    for checkpoints and modest state.
    """

    features = FEATURES

    def __init__(
        self,
        connection: Stream | str,
        *,
        topic: str = TOPIC,
        partitions: int = 16,
        timeout_s: float = 30.0,
        transaction_timeout_s: float = 60.0,
        history_retention_s: float = 7 * 86_400.0,
    ) -> None:
        if partitions < 1 or timeout_s <= 0 or transaction_timeout_s <= 0 or history_retention_s <= 0:
            raise ConfigError("partitions, timeout_s, transaction_timeout_s and history_retention_s must be positive")
        stream = connect(connection) if isinstance(connection, str) else connection
        self._opened = stream if isinstance(connection, str) else None
        self._connection = kafka_of(stream)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._writers: dict[tuple[str, str], LeaseWriter] = {}
        self._is_closed = False
        try:
            self._cache = TopicCache(self._connection, topic, partitions, timeout_s)
            history = topic + HISTORY_SUFFIX
            self._history = KafkaHistory(self._connection, history, self._cache.partitions, history_retention_s)
        except BaseException:
            self.close()
            raise
        self._storage = Storage(self._connection, topic, history, self._cache, timeout_s, transaction_timeout_s)
        self._encoder = ChangeEncoder(self._connection, self._cache, self._history)

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        check_owner(owner)
        entry, token = lease_entry(group, name), os.urandom(TOKEN_BYTES)
        with self._writer(group, name) as writer:
            writer.look()
            known = writer.stored
            writer.refresh()
            if writer.stored.lease != seen:
                return None  # known without fencing anyone
            if writer.stored != known:
                writer.discard()  # another writer has written since

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

            with _discard_when_fenced(writer):
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

    def leases(self, group: str, prefix: str = "") -> Sequence[Lease]:
        self._look()
        found = [
            decode_lease(group, str(entry[2]), data).lease
            for entry, data in self._cache.entries(group, LEASE).items()
            if str(entry[2]).startswith(prefix)
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
        data = self._cache.entry(checkpoint_entry(key))
        return None if data is None else decode_checkpoint(opened_checkpoint(data, key).data, key)

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        check_lease_of(lease, key)
        token = os.urandom(TOKEN_BYTES)
        with self._writer(lease.group, lease.name) as writer, _discard_when_fenced(writer):

            def decide() -> Write:
                writer.check_held(lease)
                if writer.is_in_doubt:  # the last write failed, maybe as the topic was deleted
                    self._encoder.forget_topics()
                return self._encoder.prepare(lease, key, change, token)

            writer.change(decide, lambda: self._encoder.token_of(key) == token)

    def begin(self, lease: Lease) -> KafkaTransaction:
        """Begin a transaction that commits outputs and checkpoint together. FencedError unless the lease is held."""
        writer = self._writer_of(lease.group, lease.name)
        self._take(writer)
        try:
            with _discard_when_fenced(writer):
                self._begin(writer, lease)
            return KafkaTransaction(writer, lease, self._encoder.prepare, self._encoder.token_of)
        except BaseException:
            writer.lock.release()
            raise

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        self._look()
        found = {key_of(entry): data for entry, data in self._cache.entries(group, CHECKPOINT).items()}
        return {key: decode_checkpoint(opened_checkpoint(data, key).data, key) for key, data in found.items()}

    def groups(self) -> Sequence[str]:
        self._look()
        return [group for group in self._cache.groups() if self._is_there(group)]

    def forget(self, group: str) -> None:
        """Delete the checkpoints of a group, as in `penstock.abc.CheckpointStore.forget`, and its offsets in Kafka."""
        for lease in self.leases(group):
            if lease.owner:
                raise in_use(lease)
        self._forget_offsets(group)
        for name in sorted({lease_name_of(entry) for entry in self._cache.names(group)}):
            self._forget(group, name)

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        self._look(key)
        entries = self._cache.entries(key.group, STATE).items()
        return {name: data for entry, data in entries if key_of(entry) == key and isinstance(name := entry[4], bytes)}

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        self._look()
        return self._cache.handled(group, topic, ids)

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        self._look(key)
        lease = self._cache.entry(lease_entry(key.group, key.lease_name))
        checkpoint = self._cache.entry(checkpoint_entry(key))
        if lease is None or checkpoint is None:
            return []
        try:
            return self._read_history(key, lease, checkpoint, pointer, limit)
        except BrokerUnavailableError as error:
            raise StoreUnavailableError(f"the history of {key} cannot be read: {error}") from error

    def _read_history(
        self, key: CheckpointKey, lease: bytes, checkpoint: bytes, pointer: Pointer | None, limit: int
    ) -> Sequence[HistoryEntry]:
        return self._history.read(
            key,
            partition_of(key.group, key.lease_name, self._cache.partitions),
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
        if hasattr(self, "_cache"):
            self._cache.close()
        if self._opened is not None:
            self._opened.close()

    def _begin(self, writer: LeaseWriter, lease: Lease) -> None:
        problem: TransactionLostError | None = None
        deadline_s = time.monotonic() + self._timeout_s
        for attempt in range(_BEGIN_ATTEMPTS):
            if attempt and time.monotonic() > deadline_s:
                break
            try:
                if not writer.is_ready:  # an owner that lost the lease finds out without fencing the new one
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
        raise StoreUnavailableError(f"no transaction could be started under {lease.name!r}: {problem}") from problem

    def _is_there(self, group: str) -> bool:
        if any(entry[0] == CHECKPOINT for entry in self._cache.names(group)):
            return True
        leases = self._cache.entries(group, LEASE).values()
        return any(decode_lease(group, "", data).lease is not None for data in leases)

    def _forget(self, group: str, name: str) -> None:
        """Delete everything under one lease except its epoch."""
        token = os.urandom(TOKEN_BYTES)
        with self._writer(group, name) as writer:

            def decide() -> Write:
                if writer.stored.lease is not None and writer.stored.lease.owner:
                    raise in_use(writer.stored.lease)
                gone = [entry for entry in self._cache.names(group) if lease_name_of(entry) == name]
                grave = encode_deleted_lease(writer.stored.epoch, token)
                return Write({**dict.fromkeys(gone), lease_entry(group, name): grave})

            writer.change(decide, lambda: writer.stored.token == token)
            writer.discard()

    def _forget_offsets(self, group: str) -> None:
        groups = GroupAdministration(self._connection.administration)
        try:
            if group in {each.name for each in groups.all()}:
                groups.delete(group)
        except BrokerUnavailableError as error:
            raise StoreUnavailableError(f"group {group!r} could not be deleted: {error}") from error

    def _look(self, key: CheckpointKey | None = None) -> None:
        """Read what was committed: under the lease of one partition, or everywhere."""
        self._check_open()
        if key is None:
            self._cache.look()
            return
        writer = self._writer_of(key.group, key.lease_name)
        if writer.is_in_doubt:
            with self._writer(key.group, key.lease_name):
                try:
                    writer.ready()
                except TransactionLostError as error:
                    raise StoreUnavailableError(f"the outcome of a write is not known yet: {error}") from error
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
            raise ConnectionClosedError("the checkpoint store is closed")


@contextmanager
def _discard_when_fenced(writer: LeaseWriter) -> Iterator[None]:
    """Discard the producer of a writer that turns out to be fenced. If it restarted, it would fence the new owner's
    producer."""
    try:
        yield
    except FencedError:
        writer.discard()
        raise
