"""What a handler may ask for beside the value: the record, which attempt it is, state, and the transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.abc import StoreTransaction
from penstock.errors import ConfigError, HandlerError
from penstock.model import NewRecord, Record

if TYPE_CHECKING:
    from penstock.serde import Topic


class Context:
    """One record in the hands of a handler. It is of no use once the handler has returned."""

    __slots__ = (
        "_encoded",
        "_key",
        "_state",
        "_store",
        "attempt",
        "fork",
        "group",
        "idempotency_key",
        "outputs",
        "record",
        "transaction_of",
    )

    def __init__(
        self,
        record: Record,
        attempt: int,
        group: str,
        store: dict[bytes, bytes] | None = None,
        transaction_of: TransactionOfRecord | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        self.record = record
        self.attempt = attempt
        """1 when this record is tried for the first time, as far as is known."""
        self.group = group
        self.idempotency_key = idempotency_key
        """The record's idempotency key, to hand on to systems that refuse to do one thing twice."""
        self.outputs: list[NewRecord] = []
        self.transaction_of = transaction_of
        self.fork: Callable[[str | Topic[Any], Any, object], None] | None = None
        self._store = store
        self._key = record.key or b""
        self._state: dict[str, Any] | None = None
        self._encoded: bytes | None = None

    @property
    def state(self) -> dict[str, Any]:
        """What is kept for the key of this record: a dictionary, empty at first. Change it as you like.

        It is saved together with the checkpoint, when the handler has returned, and only then. Names are text, values
        anything that msgpack can express.
        """
        if self._state is None:
            if self._store is None:
                raise HandlerError("there is no state here: it needs order='partition' or 'key', and no processes")
            self._encoded = self._store.get(self._key)
            self._state = {} if self._encoded is None else msgspec.msgpack.decode(self._encoded)
        return self._state

    def send(self, topic: str | Topic[Any], value: Any, key: object = None, **more: Any) -> None:
        """Send a record once this one is finished, with the guarantee of the handler; not at all if that fails."""
        from penstock.serde import topic_of

        self.outputs.append(topic_of(topic).new_record(value, key, **more))

    def emit(self, stage: str | Topic[Any], value: Any, key: object = None) -> None:
        """Give a task to a stage of the app, or to a topic that it handles: this record is finished when that task,
        and all that it leads to, is; and it is tried again when one of them fails for good, or takes too long."""
        if self.fork is None:
            raise HandlerError(f"there is no stage {str(stage)!r} here: declare one with @app.stage({str(stage)!r})")
        self.fork(stage, value, key)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """The database, inside the transaction in which this record's checkpoint is saved: both happen, or neither.

        It gives the database's own connection. When the block is left with an error, what was done in it is undone.
        """
        if self.transaction_of is None:
            raise HandlerError(
                "there is no transaction here: it needs guarantee='exactly-once' and checkpoints in SQLite or "
                "PostgreSQL, such as App(..., checkpoints='sqlite:./orders.db')"
            )
        with self.transaction_of.begin() as transaction:
            yield transaction.connection

    def changed_state(self) -> tuple[bytes, bytes | None] | None:
        """The key and the state to save for it, None when it is empty now; nothing when it has not changed."""
        if self._state is None:
            return None
        try:
            encoded = msgspec.msgpack.encode(self._state) if self._state else None
        except (TypeError, msgspec.MsgspecError) as error:
            raise ConfigError(f"the state of key {self._key!r} cannot be saved: {error}") from error
        return None if encoded == self._encoded else (self._key, encoded)


class TransactionOfRecord:
    """The part of a transaction that belongs to one record.

    Many records share one transaction. While each of them is alone in its own part, a failure can be undone without
    touching the others; that costs a savepoint, so at first it is done without, and `broken` says that it must be done
    again with.
    """

    __slots__ = ("_careful", "_transaction", "broken")

    def __init__(self, transaction: StoreTransaction, careful: bool) -> None:
        self._transaction = transaction
        self._careful = careful
        self.broken = False

    @contextlib.contextmanager
    def begin(self) -> Iterator[StoreTransaction]:
        try:
            if self._careful:
                with self._transaction.savepoint():
                    yield self._transaction
            else:
                yield self._transaction
        except BaseException:
            self.broken = True
            raise
