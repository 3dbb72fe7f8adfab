"""A checkpoint store with somebody between it and its callers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar

from penstock.abc import CheckpointStore, Features, StoreTransaction, TransactionalStore
from penstock.model import Change, Checkpoint, CheckpointKey, Happening, Lease, Pointer
from penstock.testing.interception import Interceptor


class InterceptedStore:
    """`abc.CheckpointStore`. Its operations are the names of the methods; with transactions, also "begin", "commit" and
    "transaction.save", for the save inside of one. `transaction` is there if the store has it."""

    OPERATIONS: ClassVar = (
        frozenset({"claim", "renew", "release", "leases", "forget_lease", "load", "save", "checkpoints", "groups"})
        | frozenset({"forget", "state", "handled", "history"})
        | frozenset({"begin", "transaction.save", "commit"})
    )

    def __init__(self, store: CheckpointStore, between: Interceptor) -> None:
        self._store = store
        self._between = between
        if isinstance(store, TransactionalStore):
            self.transaction = self._transaction

    @property
    def features(self) -> Features:
        return self._store.features

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        return self._between.call("claim", self._store.claim, group, name, owner, seen)

    def renew(self, lease: Lease) -> Lease:
        return self._between.call("renew", self._store.renew, lease)

    def release(self, lease: Lease) -> None:
        self._between.call("release", self._store.release, lease)

    def leases(self, group: str) -> Sequence[Lease]:
        return self._between.call("leases", self._store.leases, group)

    def forget_lease(self, lease: Lease) -> None:
        self._between.call("forget_lease", self._store.forget_lease, lease)

    def load(self, key: CheckpointKey) -> Checkpoint | None:
        return self._between.call("load", self._store.load, key)

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        self._between.call("save", self._store.save, lease, key, change)

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        return self._between.call("checkpoints", self._store.checkpoints, group)

    def groups(self) -> Sequence[str]:
        return self._between.call("groups", self._store.groups)

    def forget(self, group: str) -> None:
        self._between.call("forget", self._store.forget, group)

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        return self._between.call("state", self._store.state, key)

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        return self._between.call("handled", self._store.handled, group, topic, ids)

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[Happening]:
        return self._between.call("history", self._store.history, key, pointer, limit)

    def close(self) -> None:
        self._store.close()

    @contextmanager
    def _transaction(self) -> Iterator[StoreTransaction]:
        assert isinstance(self._store, TransactionalStore)
        with ExitStack() as stack:  # rolls back, unless the commit was reached
            transaction = self._between.call("begin", stack.enter_context, self._store.transaction())
            yield _InterceptedTransaction(transaction, self._between)
            self._between.call("commit", stack.close)


class _InterceptedTransaction:
    def __init__(self, transaction: StoreTransaction, between: Interceptor) -> None:
        self._transaction = transaction
        self._between = between

    @property
    def connection(self) -> Any:
        return self._transaction.connection

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        self._between.call("transaction.save", self._transaction.save, lease, key, change)

    def savepoint(self) -> AbstractContextManager[None]:
        return self._transaction.savepoint()
