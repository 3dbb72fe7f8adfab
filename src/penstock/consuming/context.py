"""What a handler can ask for besides the value: the record, the attempt, state, and the transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import msgspec

from penstock.abc import StoreTransaction
from penstock.errors import ConfigError, HandlerError
from penstock.model import NewRecord, Record
from penstock.serde import topic_of

if TYPE_CHECKING:
    from penstock.serde import SendOptions, Topic

T = TypeVar("T")


class HandlerCalls:
    """What all contexts of a handler share."""

    __slots__ = ("group", "handler", "id_of", "provide")

    def __init__(
        self,
        group: str,
        id_of: Callable[[Record], str | None] | None,
        provide: Callable[[Topic[Any]], None],
        handler: str = "",
    ) -> None:
        self.group = group
        self.id_of = id_of
        self.handler = handler
        self.provide = provide
        """Creates a topic that declares its number of partitions, if it does not exist."""


class Context:
    """One record being handled. Do not use it after the handler has returned.

    Every record gets one and most handlers use one attribute, so everything else is created on first use.
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
        calling: HandlerCalls,
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
        """1 for the first known attempt at this record."""
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
        """This record and the ones after it in its batch, `count` in all: the input of a batch handler."""
        return (self.record,) if count == 1 else self._batch[self._index : self._index + count]

    @property
    def group(self) -> str:
        return self._calling.group

    @property
    def handler(self) -> str:
        """The name of the handler."""
        return self._calling.handler

    @property
    def idempotency_key(self) -> str | None:
        """The record's idempotency key, for systems that deduplicate requests."""
        return None if self._calling.id_of is None else self._calling.id_of(self.record)

    @property
    def outputs(self) -> list[NewRecord]:
        """Records sent through this context."""
        if self._outputs is None:
            self._outputs = []
        return self._outputs

    @property
    def was_used(self) -> bool:
        """Whether there may be outputs, or state that changed."""
        return self._outputs is not None or self._state is not None

    @property
    def state(self) -> dict[str, Any]:
        """The state of this record's key: a dictionary, empty at first, that the handler may change.

        It is saved with the checkpoint after the handler has returned. Names are strings, values anything msgpack can
        encode.
        """
        if self._state is None:
            if self._store is None:
                raise HandlerError("ctx.state needs order='partition' or 'key', and no processes")
            self._encoded = self._store.get(self.record.key or b"")
            self._state = {} if self._encoded is None else msgspec.msgpack.decode(self._encoded)
        return self._state

    @overload
    def send(self, topic: Topic[T], value: T | None, key: object = None, **options: Unpack[SendOptions]) -> None: ...

    @overload
    def send(self, topic: str, value: object, key: object = None, **options: Unpack[SendOptions]) -> None: ...

    def send(self, topic: str | Topic[Any], value: object, key: object = None, **options: Unpack[SendOptions]) -> None:
        """Send a record when this one is finished, with the handler's guarantee. A failed attempt sends nothing."""
        declared = topic_of(topic)
        self.outputs.append(declared.new_record(value, key, **options))
        if declared.partitions is not None:
            self._calling.provide(declared)

    def emit(self, stage: str | Topic[Any], value: Any, key: object = None) -> None:
        """Give a task to a stage of the app, or to a topic that the app handles.

        This record is finished when that task and all that follow from it are. It is retried when one of them fails
        for good or takes too long.
        """
        if self.fork is None:
            raise HandlerError(f"there is no stage {str(stage)!r}: declare one with @app.stage({str(stage)!r})")
        self.fork(stage, value, key)

    def transaction(self) -> AbstractContextManager[Any]:
        """Open a block inside the database transaction that also saves this record's checkpoint: both or neither.

        Yields the database's own connection. An error that leaves the block rolls back what was done in it.
        """
        if self.transaction_of is None:
            raise HandlerError(
                "ctx.transaction() needs guarantee='exactly-once' and checkpoints in SQLite or "
                "PostgreSQL, such as App(..., checkpoints='sqlite:./orders.db')"
            )
        return self.transaction_of

    def changed_state(self) -> tuple[bytes, bytes | None] | None:
        """The key and its state to save, where None deletes it; None when nothing changed."""
        if self._state is None:
            return None
        key = self.record.key or b""
        try:
            encoded = msgspec.msgpack.encode(self._state) if self._state else None
        except (TypeError, msgspec.MsgspecError) as error:
            raise ConfigError(f"the state of key {key!r} cannot be saved: {error}") from error
        return None if encoded == self._encoded else (key, encoded)


class TransactionOfRecord:
    """One record's part of a transaction that many records share.

    With savepoints, an error in one part does not affect the others: a block that fails is undone at once, and all
    blocks of the record if its handler fails. Savepoints cost round trips, so the first try goes without them; `broken`
    then says that the transaction must be repeated with savepoints.
    """

    __slots__ = ("_depth", "_savepoints", "_transaction", "_with_savepoints", "broken")

    def __init__(self, transaction: StoreTransaction, with_savepoints: bool) -> None:
        self._transaction = transaction
        self._with_savepoints = with_savepoints
        self._savepoints: list[AbstractContextManager[None]] = []
        """Of open blocks, and of blocks that ended well, until the record ends."""
        self._depth = 0
        self.broken = False

    def __enter__(self) -> Any:
        """Return the database's own connection. Blocks may be nested."""
        self._depth += 1
        if self._with_savepoints:
            savepoint = self._transaction.savepoint()
            savepoint.__enter__()
            self._savepoints.append(savepoint)
        return self._transaction.connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if kind is not None:
            self.broken = True
        if self._savepoints and (kind is not None or self._depth):
            try:
                self._savepoints.pop().__exit__(kind, error, trace)
            except BaseException:
                self.broken = True
                raise

    def end_record(self, error: BaseException | None = None) -> None:
        """Keep what the record's blocks did, or undo it after an error of its handler."""
        savepoints, self._savepoints = self._savepoints, []
        self._depth = 0
        for savepoint in reversed(savepoints):
            savepoint.__exit__(None if error is None else type(error), error, None)
