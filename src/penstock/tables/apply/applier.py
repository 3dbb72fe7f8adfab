"""`Applier`: the changes of a topic into a table, exactly-once."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from penstock.abc import Stream
from penstock.checkpoints.opening import open_store
from penstock.consuming.context import Context
from penstock.consuming.handler_consumer import HandlerConsumer
from penstock.consuming.handlers import handler_of
from penstock.consuming.loop.failures import ExhaustedError
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.topic_wait import wait_for_topic
from penstock.errors import ConfigError, PenstockError, SchemaMismatchError
from penstock.model import Guarantee, Ordering, Position
from penstock.model.retry import Retry
from penstock.serde import Topic, topic_of
from penstock.streams.connecting import connect
from penstock.tables.apply.decoding import PlainRows, RowChange, decode_change
from penstock.tables.apply.freshness import Freshness, open_freshness_store
from penstock.tables.apply.target import TargetTable, is_sqlite
from penstock.tables.changes import ChangeFormat, Outcome

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,150}")
_BATCH: Final = 1_000


class Applier:
    """Keeps a table of PostgreSQL or SQLite in sync with a topic of change data capture.

    Rows and pointers are written in one transaction of the database: killed at any moment, it continues without a loss
    and without a repetition. A missing table is created, and missing columns are added; what would lose data is refused
    with a SchemaMismatchError before anything of it is written.
    """

    def __init__(
        self,
        stream: str | Stream,
        topic: str | Topic[Any],
        target: str,
        *,
        table: str,
        format: ChangeFormat | str = ChangeFormat.DEBEZIUM,
        key: str | None = None,
        name: str | None = None,
        create: bool = True,
        evolve: bool = True,
        batch: int = _BATCH,
        continue_after_loss: bool = False,
    ) -> None:
        """`target` is postgresql://... or sqlite:FILE, and `name`, by default that of topic and table, tells appliers
        into one database apart. With format "plain", values are rows, in JSON or as the `Topic` says, and `key` is the
        column for the records' keys. `create` and `evolve` allow to create the table and to add columns.
        `continue_after_loss`: go on after a ChangesLostError; then repair the target with `compare`."""
        self._is_sqlite = is_sqlite(target)
        try:
            form = ChangeFormat(format)
        except ValueError:
            raise ConfigError(f"format={format!r} must be one of {', '.join(ChangeFormat)}") from None
        declared = topic_of(topic)
        self._decode = _decoder(declared, form, key, is_typed=not isinstance(topic, str))
        topic = declared.name
        name = f"{topic}-{table}" if name is None else name
        if _NAME.fullmatch(name) is None:
            raise ConfigError(f"name={name!r} must have 1 to 150 letters, digits, dots, underscores and dashes")
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise ConfigError(f"batch={batch!r} must be an integer >= 1")
        self.topic = topic
        self.group = f"penstock-apply-{name}"
        self.applied = 0
        """How many records were applied since this program started, including those of transactions that failed."""
        self._stream = stream
        self._target = target
        self._batch = batch
        self._accepts_loss = continue_after_loss
        self._table = TargetTable(
            table, is_sqlite=self._is_sqlite, create=create, evolve=evolve, is_plain=form is ChangeFormat.PLAIN
        )
        self._partitions: Callable[[], Sequence[int]] = lambda: (0,)
        self._stopping = threading.Event()
        self._consumer: HandlerConsumer | None = None

    def run(self, *, end: Position | None = None) -> None:
        """Apply changes until `stop`, or up to `end`: `Position.LATEST` are the changes that exist now.

        While database or stream are unavailable, it retries. Raises SchemaMismatchError for a row that does not fit,
        and ChangesLostError if it was away for longer than the topic keeps deletions.
        """
        with contextlib.ExitStack() as closing:
            given = self._stream
            stream: Stream = closing.enter_context(connect(given)) if isinstance(given, str) else given
            opened = stream.open_topic(self.topic)
            closing.callback(opened.close)
            self._partitions = opened.partitions
            handler = handler_of(self._handle, self.topic, batch=self._batch, name=f"applier of {self._table.name}")
            options = ConsumerOptions(
                guarantee=Guarantee.EXACTLY_ONCE,
                order=Ordering.PARTITION,
                start=Position.EARLIEST,
                end=end,
                # Databases come back; what does not fit does not change by itself.
                retry=Retry(None, max_delay_s=5.0, on={ConfigError: Retry(1)}),
            )
            store = open_store(self._target, stream)
            closing.callback(store.close)
            consumer = HandlerConsumer(
                stream, self.topic, replace(handler), group=self.group, options=options, checkpoints=store
            )
            closing.callback(consumer.abandon)
            if not wait_for_topic(stream, opened, handler, self._stopping.wait, ends=end is not None):
                return
            kept = open_freshness_store(self._target, is_sqlite=self._is_sqlite)
            closing.callback(kept.close)
            freshness = Freshness(stream, opened, self.group, store, kept)
            freshness.start(accept_loss=self._accepts_loss)
            closing.callback(freshness.stop)
            self._consumer = consumer
            try:
                if not self._stopping.is_set():
                    consumer.run()
            except ExhaustedError as error:
                raise _cause(error) from error
            finally:
                self._consumer = None

    def stop(self) -> None:
        """Make `run` return once running transactions have ended. Thread-safe."""
        self._stopping.set()
        consumer = self._consumer
        if consumer is not None:
            consumer.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _handle(self, values: list[bytes | None], context: Context) -> None:
        records = context.records(len(values))
        changes = [self._decode(each.key, each.value) for each in records]
        is_truncated = any(each.outcome is Outcome.TRUNCATE for each in changes)
        if is_truncated and (count := len(self._partitions())) > 1:
            raise SchemaMismatchError(
                f"topic {self.topic!r} has {count} partitions and a truncate, which deletes the earlier "
                "rows of its partition, and a table cannot tell which these are: capture the table into a topic of one "
                "partition, or empty the table, start with another --name at the end, and run: penstock cdc compare "
                "--repair"
            )
        try:
            with context.transaction() as connection:
                self._table.apply(connection, changes)
        except BaseException:
            self._table.forget()  # columns that were added are rolled back
            raise
        self.applied += len(records)


def _decoder(
    topic: Topic[Any], form: ChangeFormat, key: str | None, *, is_typed: bool
) -> Callable[[bytes | None, bytes | None], RowChange]:
    if form is not ChangeFormat.PLAIN:
        if key is not None:
            raise ConfigError(f"key={key!r}: the records of a capture have the columns of their key: omit it")
        if is_typed:
            raise ConfigError(f"topic {topic.name!r}: what a capture wrote has no type of a program: pass the name")
        return lambda key, value: decode_change(topic.name, key, value, form)
    if not key:
        raise ConfigError("format='plain' needs key: the column for the records' keys, such as 'id'")
    return PlainRows(topic, key).change


def _cause(error: BaseException) -> BaseException:
    """The error that a consumer gave up on."""
    found = error.__cause__
    return found if isinstance(found, PenstockError) else error
