"""`LakeSink`: the records of a topic as rows of a lake table, exactly-once."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Unpack

import msgspec

from penstock.abc import CheckpointStore, Clock, Feature, GroupFeed, Grouping, Stream, TopicStream
from penstock.consuming.defaults import Opened, open_checkpoints
from penstock.consuming.handlers import Handler, HandlerArgument, handler_of
from penstock.consuming.lease_groups.group import LeaseGroupFeed
from penstock.consuming.lease_groups.membership import member_name
from penstock.consuming.loop.reading import FeedReader
from penstock.consuming.loop_consumer import Background
from penstock.consuming.options import ConsumerOptions, PositionChoice, position
from penstock.consuming.topic_wait import wait_for_topic
from penstock.consuming.workers.runners import decoder_of
from penstock.errors import (
    ConfigError,
    FencedError,
    GroupError,
    HandlerError,
    OffsetOutOfRangeError,
    PenstockError,
    SchemaMismatchError,
    StoreUnavailableError,
)
from penstock.lakes.commits import metadata_of
from penstock.lakes.dead_rows import DeadRow, DeadRowsTable
from penstock.lakes.fitting import row_of
from penstock.lakes.formats import Compaction
from penstock.lakes.pending import OwnedPartition, Pending, check_dead, moves_of, prepared, spans_of
from penstock.lakes.table import LakeTable
from penstock.lakes.writing import Delete, OpenTable
from penstock.model import Batch, Change, Checkpoint, CheckpointKey, Lease, Pointer, Position, Record
from penstock.model.clock import SystemClock
from penstock.model.retry import Retry
from penstock.model.stop_signals import on_stop_signals
from penstock.serde import Topic
from penstock.streams.aliases import current_topic
from penstock.streams.connecting import open_stream
from penstock.streams.options import ConnectOptions

logger = logging.getLogger(__name__)

_WAIT_S: Final = 0.2
_AT_ONCE: Final = 10_000
_OTHERS_EVERY_S: Final = 0.5
"""How often a run with an `end` looks whether other members have reached it."""
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Values of this size together are committed, whatever their number."""
_AGAIN: Final = Retry(first_delay_s=0.2, max_delay_s=10.0)
_PATIENCE: Final = 10
"""Attempts to read positions from a table that is away while partitions are assigned."""


_defined: list[weakref.ref[LakeSink]] = []


def defined_sinks() -> list[LakeSink]:
    """The sinks of this process that still exist, in order of creation."""
    return [sink for each in _defined if (sink := each()) is not None]


@dataclass(slots=True)
class LakeProgress:
    """What a sink has done since it was created."""

    read: int = 0
    """Records, those that were dropped before they could be committed included."""
    rows: int = 0
    deletes: int = 0
    dead_rows: int = 0
    commits: int = 0
    skipped: int = 0
    """Offsets that retention had deleted before they were read, with `on_expired`."""


class LakeSink(Background):
    """Fill a Delta or Iceberg table with the records of a topic, exactly-once, as a member of a group.

    ```python
    sink = LakeSink("log:./data", "orders", "delta:./lake/orders", key="id", group="lake")
    sink.run()
    ```
    Records are collected, and each commit stores rows together with the offsets up to which they were read. A restart
    continues at the offsets that the table has: killed at any moment, each record is in the table once. Another member
    of the group that has read the same records cannot commit them again.

    A record without a value deletes the row of its key, if the table has a key. Rows that do not fit into the table, or
    whose function fails, go to a table beside it, whose name ends with `_dead`.
    """

    def __init__(
        self,
        stream: str | Stream,
        topic: str | Topic[Any],
        table: str | LakeTable,
        *,
        group: str,
        key: str | Sequence[str] = (),
        rows: Callable[..., Any] | None = None,
        flush_rows: int = 50_000,
        flush_s: float = 10.0,
        dead_rows: bool = True,
        max_dead_rows: int | None = 1_000,
        compact_every: int | None = 100,
        compaction: Compaction | None = None,
        start: PositionChoice = "earliest",
        on_expired: PositionChoice | None = None,
        checkpoints: str | CheckpointStore | None = None,
        session_timeout_s: float = 10.0,
        clock: Clock | None = None,
        **connection: Unpack[ConnectOptions],
    ) -> None:
        """`table` is a LakeTable, or its URI; then `key` is its key.

        `rows` takes the value of a record, and the Record if it has a parameter for it, and returns a row: a dict or an
        object with fields; or a list of rows, a `Delete`, or None for no row. By default, the value is the row.

        A commit comes after `flush_rows` records, or `flush_s` seconds after the first of them: fewer and larger
        commits make larger files, and rows appear later. With `dead_rows` false, a row that does not fit ends the run
        with a SchemaMismatchError; so do more than `max_dead_rows` of them in one run. After every `compact_every`
        commits, small files are merged as `compaction` says; None: never. `start` and `on_expired` are those of
        `ConsumerOptions`, and `checkpoints` is the store in which members find each other if the stream has no groups.
        `connection` are options of `connect`, for a URL.
        """
        if isinstance(table, str):
            table = LakeTable(table, key=key)
        elif not isinstance(table, LakeTable):
            raise ConfigError(f"table={table!r} must be a LakeTable or its URI, such as 'delta:./lake/orders'")
        elif key:
            raise ConfigError(f"key={key!r}: give the key to the LakeTable")
        if not isinstance(group, str) or not group:
            raise GroupError("a sink needs a group: the name under which its offsets are stored in the table")
        for name, value in (("flush_rows", flush_rows), ("compact_every", compact_every)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}={value!r} must be an integer >= 1")
        if not isinstance(flush_s, int | float) or flush_s <= 0:
            raise ConfigError(f"flush_s={flush_s!r} must be a positive number of seconds")
        if not isinstance(stream, str | Stream):
            raise ConfigError(f"{stream!r} is not a stream: pass a URL such as 'log:./data', or a `connect` result")
        if connection and not isinstance(stream, str):
            raise ConfigError(f"{', '.join(connection)}: pass options of the connection to `connect`")
        self.table = table
        self.group = group
        self.progress = LakeProgress()
        self._handler = _row_handler(rows, topic)
        self._takes_none = rows is not None and self._handler.takes_none
        self._decode = decoder_of(replace(self._handler, takes_none=True))
        super().__init__(f"lake-{group}")
        self._stream = stream
        self._connection = connection
        self._flush_rows = flush_rows
        self._flush_s = flush_s
        self._with_dead_rows = dead_rows
        self._max_dead_rows = max_dead_rows if dead_rows else 0
        self._compact_every = compact_every
        self._compaction = compaction or Compaction()
        self._options = ConsumerOptions(
            start=position(start, "start"),
            on_expired=None if on_expired is None else position(on_expired, "on_expired"),
            session_timeout_s=session_timeout_s,
        )
        self._checkpoints = checkpoints
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self.started = False
        """Whether it was ever run."""
        _defined.append(weakref.ref(self))
        table.open()  # names what is not installed, and what the URI lacks, before anything is read

    def run(self, *, end: PositionChoice | None = None) -> None:
        """Fill the table until SIGTERM, Ctrl-C or `stop`; with `end`, up to that position: "latest" are the records
        that exist now. What was read is committed before it returns.

        While the stream or the table is unavailable, it retries.
        """
        until = None if end is None else position(end, "end")
        self.started = True
        with contextlib.ExitStack() as closing:
            closing.enter_context(on_stop_signals(lambda _: self.stop()))
            given = self._stream
            stream = closing.enter_context(_opened(given, self._connection))
            topic = stream.open_topic(current_topic(stream, self._handler.topic.name))
            closing.callback(topic.close)
            if not wait_for_topic(stream, topic, self._handler, self._stopping.wait, ends=until is not None):
                return
            store = None
            if not _has_groups(topic):
                store = open_checkpoints(self._checkpoints, stream, self._handler, self._options)
                closing.callback(store.close)
            maintenance = None
            if self._compact_every is not None:
                tables = [self.table, *([DeadRowsTable(self.table, self.group).table] if self._with_dead_rows else [])]
                maintenance = Maintenance(tables, self._compaction)
                maintenance.ask()
                closing.callback(maintenance.stop)
            _Run(self, topic, store, maintenance, until).run()

    def stop(self) -> None:
        """Make `run` return once everything that was read is committed. Thread-safe."""
        self._stopping.set()


class Maintenance:
    """Compacts tables when asked, and then deletes the files that only old versions have.

    It has connections of its own. What fails is logged, and tried again the next time: nobody waits for it.
    """

    def __init__(self, tables: Sequence[LakeTable], compaction: Compaction) -> None:
        self._tables = tables
        self._compaction = compaction
        self._asked = threading.Event()
        self._stopping = False
        self.merged = 0
        """How many small files were merged."""
        self._thread = threading.Thread(target=self._run, name="penstock-lake-compaction", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Compact soon, if there are enough small files."""
        self._asked.set()

    def stop(self) -> None:
        """Finish what is asked for or running, and end."""
        self._stopping = True
        self._asked.set()
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._asked.wait()
            is_last = self._stopping
            self._asked.clear()
            for table in self._tables:
                try:
                    self.merged += table.compact(self._compaction)
                except PenstockError as error:
                    logger.warning("%s is not compacted this time: %s", table.label, error)
                except Exception:
                    logger.exception("%s cannot be compacted; writing continues", table.label)


class _Run:
    """One run of a sink: the listener of its group's feed. Used by one thread."""

    def __init__(
        self,
        sink: LakeSink,
        topic: TopicStream,
        store: Opened | None,
        maintenance: Maintenance | None,
        end: Position | None,
    ) -> None:
        self._sink = sink
        self._topic = topic
        self._store = store
        self._maintenance = maintenance
        self._table: OpenTable = sink.table.open()
        self._dead = DeadRowsTable(sink.table, sink.group) if sink._with_dead_rows else None
        self._clock = sink._clock
        self._held: dict[int, OwnedPartition] = {}
        self._pending = Pending()
        self._failed = False
        self._failures = 0
        self._retry_at_s = 0.0
        self._check_others_s = 0.0
        self._ends: dict[int, Pointer] = {}
        if end is not None:
            self._ends = {each: topic.locate(each, end) for each in topic.partitions()}
        self._is_bounded = end is not None
        self._reader = FeedReader(topic.topic, self._clock, None)
        self._feed: GroupFeed = self._join()

    def run(self) -> None:
        stopping = self._sink._stopping
        try:
            has_ended = False
            while not has_ended:
                while not stopping.is_set() and not self._is_complete():
                    self._iterate()
                self._flush_all()  # which goes back if the table has other offsets
                has_ended = stopping.is_set() or self._is_complete()
        except BaseException:
            self._failed = True
            raise
        finally:
            self._feed.close()

    def _iterate(self) -> None:
        if self._failures and self._clock.monotonic_s() >= self._retry_at_s:
            self._try_flush()
        if self._reader.must_wait:
            self._sink._stopping.wait(_WAIT_S)
        else:
            for batch in self._poll():
                self._take(batch)
        if not self._failures and self._is_due():
            self._try_flush()

    def _poll(self) -> Sequence[Batch]:
        limit = max(1, min(_AT_ONCE, self._sink._flush_rows - self._pending.records))
        try:
            return self._reader.poll(self._feed, limit, _WAIT_S)
        except OffsetOutOfRangeError as error:
            held = self._held.get(error.partition)
            wanted = self._sink._options.on_expired
            if wanted is None:
                raise
            if held is not None:
                pointer = max(self._topic.locate(error.partition, wanted), error.start)
                logger.error("%s; continuing at %d", error, pointer)
                self._sink.progress.skipped += max(0, pointer - held.read)
                held.read = pointer
                self._feed.seek(error.partition, pointer)
            return ()

    def _is_due(self) -> bool:
        pending = self._pending
        if pending.since_s is None:
            return False
        return (
            pending.records >= self._sink._flush_rows
            or pending.size_bytes >= _MOST_BYTES
            or self._clock.monotonic_s() - pending.since_s >= self._sink._flush_s
        )

    def _is_complete(self) -> bool:
        """Whether a run with an `end` is done, the partitions of other members included."""
        if not self._is_bounded or any(each.end is not None and each.read < each.end for each in self._held.values()):
            return False
        others = [each for each in self._ends if each not in self._held]
        if not others:
            return True
        if self._clock.monotonic_s() < self._check_others_s:
            return False
        self._check_others_s = self._clock.monotonic_s() + _OTHERS_EVERY_S
        self._try_flush()  # others may wait for these
        start = self._sink._options.start
        try:
            now = self._table.positions([self._application(each) for each in others])
        except StoreUnavailableError as error:
            logger.warning("%s; trying again", error)
            return False
        places = {each: now[self._application(each)] for each in others}
        return all(
            (self._topic.locate(each, start) if place is None else place) >= self._ends[each]
            for each, place in places.items()
        )

    # What is read.

    def _take(self, batch: Batch) -> None:
        held = self._held.get(batch.partition)
        if held is None or batch.next <= held.read:
            return
        if held.end is not None and held.read >= held.end:
            return
        if self._pending.since_s is None:
            self._pending.since_s = self._clock.monotonic_s()
        for record in batch:
            if record.offset < held.read:
                continue
            if held.end is not None and record.offset >= held.end:
                break
            self._take_record(held, record)
        held.read = batch.next if held.end is None else min(batch.next, held.end)

    def _take_record(self, held: OwnedPartition, record: Record) -> None:
        self._pending.records += 1
        self._sink.progress.read += 1
        self._pending.size_bytes += len(record.value or b"") + len(record.key or b"")
        try:
            found = self._rows_of(record)
        except Exception as error:
            text = str(error) if isinstance(error, PenstockError) else _traceback(error)
            self._pending.dead.append(DeadRow(held.application, record, text))
            return
        self._pending.rows += [(held.application, record, row) for row in found]

    def _rows_of(self, record: Record) -> list[Mapping[str, Any] | Delete]:
        table, handler = self._sink.table, self._sink._handler
        if record.value is None and table.key:
            return [Delete(_key_of(record, table.key))]
        if record.value is None and not self._sink._takes_none:
            raise SchemaMismatchError("the record has no value, and the table has no key whose row it could delete")
        arguments: list[Any] = []
        for wanted in handler.wants:
            if wanted is HandlerArgument.RECORD:
                arguments.append(record)
            else:
                arguments.append(record.value if self._sink._decode is None else self._sink._decode(record.value))
        result = handler.function(*arguments)
        if result is None:
            return []
        results = result if isinstance(result, list | tuple) else [result]
        return [self._row_of(each) for each in results]

    def _row_of(self, result: object) -> Mapping[str, Any] | Delete:
        table = self._sink.table
        if isinstance(result, Delete):
            if not table.key:
                raise SchemaMismatchError(f"{table.label} has no key, so nothing can be deleted: give it one, key=...")
            return result
        row = row_of(result)
        if table.deletes is None:
            return row
        if row.get(table.deletes):
            return Delete({name: row.get(name) for name in table.key})
        return {name: value for name, value in row.items() if name != table.deletes}

    # What is committed.

    def _try_flush(self) -> None:
        """Commit. While the table is away, nothing more is read, and this is repeated later."""
        try:
            self._flush()
        except StoreUnavailableError as error:
            self._failures += 1
            if self._failures == 1:
                logger.warning("%s; what was read is kept, and committed later", error)
            self._retry_at_s = self._clock.monotonic_s() + _AGAIN.backoff_s(self._failures, random.Random())
            for partition in self._held:
                self._feed.pause(partition)
        else:
            if self._failures:
                for partition in self._held:
                    self._feed.resume(partition)
            self._failures = 0

    def _flush_all(self) -> None:
        """Commit at the end of a run, with some patience for a table that is away."""
        for attempt in range(1, _PATIENCE + 1):
            try:
                self._flush()
                return
            except StoreUnavailableError as error:
                if attempt == _PATIENCE or self._sink._stopping.is_set():
                    raise
                logger.warning("%s; trying again", error)
                self._clock.sleep(_AGAIN.backoff_s(attempt, random.Random()))

    def _flush(self) -> None:
        moved = {number: each for number, each in self._held.items() if each.is_moved}
        if not moved:
            self._pending.clear()
            return
        sink, table, progress = self._sink, self._table, self._sink.progress
        known = table.schema()
        found = prepared(self._pending, sink.table, known)
        if found.dead:
            check_dead(found.dead, progress.dead_rows, sink._max_dead_rows, sink.table)
            assert self._dead is not None, "without dead rows, the first one is too many"
            progress.dead_rows += self._dead.add(found.dead)
            self._pending.rows, self._pending.dead = found.fitting, []  # they count once, also if the rest fails
        if known is None and sink.table.schema is None and not found.rows.column_names:
            self._pending.clear()  # no row shows the columns of a new table yet: a restart reads these records again
            return
        table.evolve(found.rows.schema)
        metadata = metadata_of(sink.group, spans_of(moved, self._topic.topic))
        if not table.commit(lambda: found.rows, moves_of(moved.values()), metadata, deleted=found.deleted):
            logger.warning("%s has other offsets than this member has read: it continues there", sink.table.label)
            self._restart()
            return
        progress.commits += 1
        progress.rows += found.rows.num_rows
        progress.deletes += 0 if found.deleted is None else found.deleted.num_rows
        for each in moved.values():
            each.committed = each.begun = each.read
        self._pending.clear()
        self._show_progress(moved)
        every = sink._compact_every
        if self._maintenance is not None and every is not None and progress.commits % every == 0:
            self._maintenance.ask()

    def _restart(self) -> None:
        """Drop what was read, and continue at the positions of the table."""
        self._pending.clear()
        now = self._positions(self._held)
        for number, held in self._held.items():
            place = now[number]
            held.committed = place
            held.begun = held.read = held.begun if place is None else place
            with contextlib.suppress(GroupError):  # the next poll says that it is no longer ours
                self._feed.seek(number, held.read)

    def _show_progress(self, moved: Mapping[int, OwnedPartition]) -> None:
        """Let tools see the group's progress. The table decides, so an error here loses nothing."""
        self._feed.commit({number: each.read for number, each in moved.items()}, wait=False)
        if self._store is None:
            return
        for number, each in moved.items():
            if each.lease is None:
                continue
            key = CheckpointKey(self._sink.group, self._topic.topic, number)
            with contextlib.suppress(StoreUnavailableError, FencedError):
                self._store.store.save(each.lease, key, Change(Checkpoint(each.read, each.read)))

    # Callbacks of the group, called inside `poll` and `close`.

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        now = self._positions(partitions)
        for number, lease in partitions.items():
            place = now[number]
            start = self._topic.locate(number, self._sink._options.start) if place is None else place
            self._held[number] = OwnedPartition(
                self._application(number), lease, place, start, start, end=self._ends.get(number)
            )
        return {number: self._held[number].read for number in partitions}

    def revoked(self, partitions: Sequence[int]) -> None:
        if not self._failed:
            try:
                self._flush()
            except StoreUnavailableError as error:
                logger.warning("%s; the next owners of these partitions read the records again", error)
        self._drop(partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        self._drop(partitions)

    def _drop(self, partitions: Sequence[int]) -> None:
        gone = {self._held.pop(each).application for each in partitions if each in self._held}
        pending = self._pending
        pending.rows = [each for each in pending.rows if each[0] not in gone]
        pending.dead = [each for each in pending.dead if each.application not in gone]

    def _positions(self, partitions: Mapping[int, object]) -> dict[int, int | None]:
        for attempt in range(1, _PATIENCE + 1):
            try:
                found = self._table.positions([self._application(each) for each in partitions])
                return {each: found[self._application(each)] for each in partitions}
            except StoreUnavailableError as error:
                if attempt == _PATIENCE or self._sink._stopping.is_set():
                    raise
                logger.warning("%s; trying again", error)
                self._clock.sleep(_AGAIN.backoff_s(attempt, random.Random()))
        raise AssertionError("the loop above returns or raises")

    def _application(self, partition: int) -> str:
        return f"penstock/{self._sink.group}/{self._topic.topic}/{partition}"

    def _join(self) -> GroupFeed:
        options, member = self._sink._options, member_name()
        if _has_groups(self._topic) and isinstance(self._topic, Grouping):
            return self._topic.group_feed(
                self._sink.group,
                self,
                member=member,
                assignor=options.assignor,
                session_timeout_s=options.session_timeout_s,
            )
        assert self._store is not None, "opened for streams without groups"
        return LeaseGroupFeed(
            self._topic,
            self._store.store,
            self._sink.group,
            self,
            member=member,
            ttl_s=options.session_timeout_s,
            clock=self._clock,
            start=options.start,
        )


def _traceback(error: BaseException) -> str:
    """The error with the user's frames: the first two are those of this module."""
    trace = error.__traceback__
    for _ in range(2):
        trace = None if trace is None else trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).strip()


def _row_handler(rows: Callable[..., Any] | None, topic: str | Topic[Any]) -> Handler:
    if rows is None:
        return handler_of(lambda value: value, topic, name="LakeSink")
    handler = handler_of(rows, topic, to=str(topic))  # what it returns goes somewhere
    if handler.is_async or HandlerArgument.CONTEXT in handler.wants:
        raise HandlerError(
            f"{handler.name}: rows= takes the value of a record, and the Record if it wants, and returns rows at once: "
            "it cannot be async, nor take a Context"
        )
    return handler


def _key_of(record: Record, key: Sequence[str]) -> Mapping[str, Any]:
    """The key of the row that a record without a value deletes: from the record's key, as JSON object or as text."""
    if record.key is None:
        raise SchemaMismatchError("the record has neither value nor key: nothing says which row it deletes")
    text = record.key.decode()
    if text.startswith("{"):
        found = msgspec.json.decode(text)
        return {name: found.get(name) for name in key}
    if len(key) > 1:
        raise SchemaMismatchError(
            f"the record's key is {text!r}, and the table's {', '.join(key)}: send a JSON object as key"
        )
    return {key[0]: text}


def _has_groups(topic: TopicStream) -> bool:
    return Feature.GROUPS in topic.features and isinstance(topic, Grouping)


@contextlib.contextmanager
def _opened(given: str | Stream, connection: ConnectOptions) -> Iterator[Stream]:
    if not isinstance(given, str):
        yield given
        return
    stream = open_stream(given, **connection)
    try:
        yield stream
    finally:
        stream.close()
