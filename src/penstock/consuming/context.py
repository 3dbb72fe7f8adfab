"""What a handler may ask for beside the value: the record, which attempt it is, state, and the transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.abc import StoreTransaction
from penstock.errors import ConfigError, HandlerError
from penstock.model import NewRecord, Record

if TYPE_CHECKING:
    from penstock.serde import Topic


class Calling:
    """What all contexts of a handler have in common."""

    __slots__ = ("group", "id_of")

    def __init__(self, group: str, id_of: Callable[[Record], str | None] | None) -> None:
        self.group = group
        self.id_of = id_of


class Context:
    """One record in the hands of a handler. It is of no use once the handler has returned.

    There is one for each record, and most handlers ask it for one thing: so all else is made when it is asked for.
    """

    __slots__ = (
        "_batch",
        "_calling",
        "_encoded",
        "_index",
        "_outputs",
        "_record",
        "_state",
        "_store",
        "attempt",
        "fork",
        "transaction_of",
    )

    def __init__(
        self,
        calling: Calling,
        batch: Sequence[Record],
        index: int,
        attempt: int,
        store: dict[bytes, bytes] | None = None,
        transaction_of: TransactionOfRecord | None = None,
    ) -> None:
        self._calling = calling
        self._batch = batch
        self._index = index
        self.attempt = attempt
        """1 when this record is tried for the first time, as far as is known."""
        self.transaction_of = transaction_of
        self.fork: Callable[[str | Topic[Any], Any, object], None] | None = None
        self._store = store
        self._record: Record | None = None
        self._outputs: list[NewRecord] | None = None
        self._state: dict[str, Any] | None = None
        self._encoded: bytes | None

    @property
    def record(self) -> Record:
        if self._record is None:
            self._record = self._batch[self._index]
        return self._record

    def records(self, count: int) -> Sequence[Record]:
        """The record and those behind it in its batch, `count` together: those that a batch handler has in hand."""
        return (self.record,) if count == 1 else self._batch[self._index : self._index + count]

    @property
    def group(self) -> str:
        return self._calling.group

    @property
    def idempotency_key(self) -> str | None:
        """The record's idempotency key, to hand on to systems that refuse to do one thing twice."""
        return None if self._calling.id_of is None else self._calling.id_of(self.record)

    @property
    def outputs(self) -> list[NewRecord]:
        """What was sent through it."""
        if self._outputs is None:
            self._outputs = []
        return self._outputs

    @property
    def was_used(self) -> bool:
        """Whether there may be outputs, or state that changed."""
        return self._outputs is not None or self._state is not None

    @property
    def state(self) -> dict[str, Any]:
        """What is kept for the key of this record: a dictionary, empty at first. Change it as you like.

        It is saved together with the checkpoint, when the handler has returned, and only then. Names are text, values
        anything that msgpack can express.
        """
        if self._state is None:
            if self._store is None:
                raise HandlerError("there is no state here: it needs order='partition' or 'key', and no processes")
            self._encoded = self._store.get(self.record.key or b"")
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

    def transaction(self) -> AbstractContextManager[Any]:
        """The database, inside the transaction in which this record's checkpoint is saved: both happen, or neither.

        It gives the database's own connection. When the block is left with an error, what was done in it is undone.
        """
        if self.transaction_of is None:
            raise HandlerError(
                "there is no transaction here: it needs guarantee='exactly-once' and checkpoints in SQLite or "
                "PostgreSQL, such as App(..., checkpoints='sqlite:./orders.db')"
            )
        return self.transaction_of

    def changed_state(self) -> tuple[bytes, bytes | None] | None:
        """The key and the state to save for it, None when it is empty now; nothing when it has not changed."""
        if self._state is None:
            return None
        key = self.record.key or b""
        try:
            encoded = msgspec.msgpack.encode(self._state) if self._state else None
        except (TypeError, msgspec.MsgspecError) as error:
            raise ConfigError(f"the state of key {key!r} cannot be saved: {error}") from error
        return None if encoded == self._encoded else (key, encoded)


class TransactionOfRecord:
    """The part of a transaction that belongs to one record.

    Many records share one transaction. While each of them is alone in its own part, a failure can be undone without
    touching the others; that costs a savepoint, so at first it is done without, and `broken` says that it must be done
    again with.
    """

    __slots__ = ("_careful", "_savepoints", "_transaction", "broken")

    def __init__(self, transaction: StoreTransaction, careful: bool) -> None:
        self._transaction = transaction
        self._careful = careful
        self._savepoints: list[AbstractContextManager[None]] = []
        self.broken = False

    def __enter__(self) -> Any:
        """The database's own connection. Blocks may be one in the other."""
        if self._careful:
            savepoint = self._transaction.savepoint()
            savepoint.__enter__()
            self._savepoints.append(savepoint)
        return self._transaction.connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.broken = True
        if self._savepoints:
            try:
                self._savepoints.pop().__exit__(kind, error, trace)
            except BaseException:
                self.broken = True
                raise
