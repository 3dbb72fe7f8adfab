"""A transaction of the Kafka store: a handler's outputs and its group's progress are committed together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from penstock.checkpoints.kafka.entries import encode_lease, lease_entry
from penstock.checkpoints.kafka.writing import LeaseWriter, Write
from penstock.errors import (
    FencedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TransactionAbortedError,
    TransactionError,
    TransactionLostError,
)
from penstock.model import Change, CheckpointKey, Lease, NewRecord

Prepare = Callable[[Lease, CheckpointKey, Change, bytes], Write]
"""Returns what saving a change writes, marked with a token."""


class KafkaTransaction:
    """Created by `KafkaCheckpoints.begin` and ended once, with `commit` or `abort`; leaving its `with` block commits,
    or aborts on an error. Until then, everything else under the lease waits.

    Readers of committed records, as all of ours are, see nothing of it before it commits, and nothing at all if it
    aborts. Records have no receipts: they are stored when `commit` returns, and visible at once or, on Apache Kafka, a
    moment later.
    """

    def __init__(
        self, writer: LeaseWriter, lease: Lease, prepare: Prepare, token_of: Callable[[CheckpointKey], bytes]
    ) -> None:
        """The caller holds the writer's lock and has begun its transaction."""
        self._writer = writer
        self._lease = lease
        self._prepare = prepare
        self._token_of = token_of
        self._token = os.urandom(16)
        self._write: Write | None = None
        self._key: CheckpointKey | None = None
        self._is_open = True

    def append(self, records: Iterable[NewRecord]) -> None:
        """Send records to any topics, in this order. Blocks while the producer's buffer is full.

        TransactionAbortedError: the transaction was aborted; repeat all of it. FencedError: it was aborted, and the new
        owner repeats it.
        """
        self._check_open()
        try:
            self._writer.producer.append(records)
        except TransactionLostError as error:
            self._give_up(error)

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        """Save like `CheckpointStore.save`, effective when the transaction commits."""
        self._check_open()
        if (lease.group, lease.name) != (key.group, key.lease_name) or (lease.owner, lease.epoch) != (
            self._lease.owner,
            self._lease.epoch,
        ):
            raise FencedError(f"this transaction belongs to {self._lease}, not to {lease}. Nothing was saved")
        if self._write is not None:
            raise TransactionError(f"the checkpoint of {key} is already in this transaction: save once, at its end")
        self._write = self._prepare(lease, key, change, self._token)
        self._key = key

    def commit(self) -> None:
        """Return when the transaction is committed. Raises as `append` does.

        OutcomeUnknownError: it is unknown whether it committed. `CheckpointStore.load` tells once it answers.
        """
        self._check_open()
        try:
            self._writer.finish(self._write or self._mark())
        except TransactionLostError as error:
            self._resolve(error)
        finally:
            self._end()

    def abort(self) -> None:
        """Abort: readers will see nothing of it."""
        self._check_open()
        try:
            self._writer.producer.abort()
        except TransactionLostError:
            self._writer.discard()  # the next writer ends it
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_open:
            return
        if kind is None:
            self.commit()
        else:
            self.abort()

    def _mark(self) -> Write:
        """A write that identifies a transaction in which nothing is saved."""
        stored = self._writer.stored
        assert stored.lease is not None
        data = encode_lease(stored.lease, stored.floor, self._token)
        return Write({lease_entry(self._writer.group, self._writer.name): data})

    def _resolve(self, error: TransactionLostError) -> None:
        """Find out whether it committed, after an error during the commit."""
        writer = self._writer
        writer.discard()
        writer.is_in_doubt = True
        try:
            writer.look()  # an owner that lost the lease finds out without fencing the new one
            writer.refresh()
            if self._counts():
                return
            writer.check_held(self._lease)
            writer.ready()
        except (TransactionLostError, StoreUnavailableError) as again:
            raise OutcomeUnknownError(f"it is unknown whether a transaction committed: {again}") from error
        if self._counts():
            return
        writer.check_held(self._lease)
        raise TransactionAbortedError(f"{error}. The transaction was aborted: repeat it") from error

    def _counts(self) -> bool:
        """Whether its token is among what was committed."""
        token = self._writer.stored.token if self._key is None else self._token_of(self._key)
        return token == self._token

    def _give_up(self, error: TransactionLostError) -> None:
        """Raise the error of a transaction that cannot commit any more, which says whether to repeat it."""
        writer = self._writer
        try:
            writer.discard()
            writer.look()
            writer.refresh()
            writer.check_held(self._lease)
        finally:
            self._end()
        raise TransactionAbortedError(f"{error}. The transaction was aborted: repeat it") from error

    def _check_open(self) -> None:
        if not self._is_open:
            raise TransactionError(f"the transaction of {self._lease.name!r} has ended: begin another")

    def _end(self) -> None:
        self._is_open = False
        self._writer.lock.release()
