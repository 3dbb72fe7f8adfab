"""Running queries: `penstock.sql`.

Every query gets a DuckDB of its own, in memory, which may not open files, load extensions or reach the network, and
whose settings are locked.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, Unpack

from penstock.errors import ConfigError, MissingExtraError, QueryError, QueryStoppedError, UnknownTopicError

try:
    import duckdb
    import pyarrow as pa
except ModuleNotFoundError as error:
    if error.name not in ("duckdb", "pyarrow"):
        raise
    raise MissingExtraError("penstock sql", "sql") from error

from penstock.java.downloads import cache_folder
from penstock.querying.json_fields import MISFIT, JsonFields, json_fields, quoted
from penstock.querying.registered_types import RegisteredType, registered_type
from penstock.querying.segment_cache import CachedSegments, SegmentCache
from penstock.querying.statements import LATEST, Statement, parse, plain
from penstock.querying.topic_table import Readers, Stopping, TopicSource, TopicTable
from penstock.querying.values import (
    ABOUT,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    VALUE,
    Texts,
    TopicColumns,
    Undecodable,
    texts_of,
)
from penstock.serde import Topic
from penstock.serde.registry.client import SchemaRegistry
from penstock.streams import Connection
from penstock.streams.connecting import connect
from penstock.streams.options import ConnectOptions
from penstock.tables.changes import TRUNCATE_KEY

logger = logging.getLogger(__name__)

MEMORY_LIMIT: Final = "1GB"
_ROWS_AT_ONCE: Final = 10_000
_LONGEST_QUERY: Final = 100_000
_UNDECODABLE: Final = ("Malformed JSON", "Could not convert string", MISFIT)
"""What DuckDB says of a value that is not JSON, or has a field that does not fit its column."""
_IDLE_CONNECTIONS: Final = 2
_SAMPLE_KEPT_S: Final = 10.0
"""How long what a sample of a topic told is taken for true."""


def sql(
    url: str,
    *,
    types: Sequence[Topic[Any]] = (),
    registry: SchemaRegistry | str | None = None,
    undecodable: Undecodable = "null",
    timeout_s: float | None = None,
    memory_limit: str = MEMORY_LIMIT,
    threads: int | None = None,
    cache_bytes: int | None = None,
    **options: Unpack[ConnectOptions],
) -> TopicDatabase:
    """The topics of a stream as tables that SQL can query. Use it in a `with` block, or `close` it.

    Tables have the columns partition, "offset", timestamp, key, value and headers. If `types` has a Topic of that name,
    or `registry` the Avro or JSON Schema of its values, each field of the type is a column. Otherwise keys and values
    are text where they are UTF-8, and bytes where they are not; if the values are JSON objects, the fields that a
    sample of them has are columns, except those that are called like a column of the record.

    `undecodable`: what becomes of a value that cannot be decoded: "null", with a warning, or "error". A query ends
    after `timeout_s` with a QueryStoppedError, and fails when it needs more memory than `memory_limit`. `threads` are
    those of DuckDB, by default one per core. `options` are those of `penstock.connect`.

    With `cache_bytes`, closed segments of topics on this machine are kept as Parquet files in the cache folder, up to
    this size. The first query of a topic writes them; later ones are many times faster. `undecodable="error"` does
    without.
    """
    return TopicDatabase(
        connect(url, **options),
        url,
        types=types,
        registry=registry,
        undecodable=undecodable,
        timeout_s=timeout_s,
        memory_limit=memory_limit,
        threads=threads,
        cache_bytes=cache_bytes,
        owns_connection=True,
    )


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query found."""

    table: pa.Table
    is_cut: bool
    """Whether there are more rows than the limit."""
    records_read: int
    records_cached: int
    """How many records the cached segments hold that the query could use."""
    undecodable: Mapping[str, int]
    """How many keys and values of each topic could not be decoded, and are null. Topics without any are omitted."""
    took_s: float
    notes: Sequence[str] = ()
    """Why fields of a registered schema are not columns."""

    @property
    def warnings(self) -> list[str]:
        return [*self.notes] + [
            f"topic {topic!r}: {count:,} {'cell' if count == 1 else 'cells'} could not be decoded, and "
            f"{'is' if count == 1 else 'are'} null"
            for topic, count in self.undecodable.items()
        ]


@dataclass(frozen=True, slots=True)
class _Sampled:
    """What a sample of a topic's records tells about all of them."""

    texts: Texts
    fields: JsonFields | None
    at_s: float


@dataclass(eq=False)
class _Run:
    """A query that is running."""

    connection: duckdb.DuckDBPyConnection
    cache: SegmentCache | None
    stopping: Stopping = field(default_factory=Stopping)
    cached: dict[str, CachedSegments] = field(default_factory=dict)
    """By topic."""
    notes: list[str] = field(default_factory=list)
    """What there is to say about the types of topics."""
    registered: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    """The views and macros that were made for the query, each with its kind."""
    has_ended_well: bool = False
    """Whether the connection can run another query."""

    def make(self, kind: str, name: str, definition: str) -> None:
        """Make a view or a table macro for this query alone."""
        self.connection.execute(f"create temp {kind} {name}{definition}")
        self.made.append(f"{'macro table' if kind == 'macro' else kind} {name}")

    def clean_up(self) -> None:
        """Remove all that was made for the query."""
        for each in reversed(self.made):
            self.connection.execute(f"drop {each}")
        for name in self.registered:
            self.connection.unregister(name)

    def stop(self, why: str) -> None:
        self.stopping.why = self.stopping.why or why
        self.stopping.event.set()
        self.connection.interrupt()


class TopicDatabase:
    """Queries topics. Thread-safe: queries of several threads run beside each other. Made by `penstock.sql`."""

    def __init__(
        self,
        connection: Connection,
        url: str,
        *,
        types: Sequence[Topic[Any]] = (),
        registry: SchemaRegistry | str | None = None,
        undecodable: Undecodable = "null",
        timeout_s: float | None = None,
        memory_limit: str = MEMORY_LIMIT,
        threads: int | None = None,
        cache_bytes: int | None = None,
        owns_connection: bool = False,
    ) -> None:
        if undecodable not in ("null", "error"):
            raise ConfigError(f"undecodable={undecodable!r} must be null or error")
        if timeout_s is not None and timeout_s <= 0:
            raise ConfigError(f"timeout_s={timeout_s!r} must be positive")
        self._connection = connection
        self._url = url
        self._types = {topic.name: topic for topic in types}
        self._registry = SchemaRegistry(registry) if isinstance(registry, str) else registry
        self._undecodable: Undecodable = undecodable
        self._timeout_s = timeout_s
        self._settings: dict[str, Any] = {"memory_limit": memory_limit}
        if threads is not None:
            self._settings["threads"] = threads
        self._cache = None if cache_bytes is None else SegmentCache(cache_folder() / "sql", cache_bytes)
        self._owns_connection = owns_connection
        self._readers = Readers()
        self._idle: list[tuple[bool, duckdb.DuckDBPyConnection]] = []
        """Connections that no query uses, and whether they may read the cache: making one takes longer than many
        queries."""
        self._is_closed = False
        self._samples: dict[str, _Sampled] = {}
        self._running: set[_Run] = set()
        self._lock = threading.Lock()

    def query(self, text: str, *, limit: int | None = None) -> pa.Table:
        """The rows of a query, at most `limit`. Logs a warning if values could not be decoded.

        Raises QueryError, UnknownTopicError, QueryStoppedError.
        """
        result = self.run(text, limit=limit)
        for warning in result.warnings:
            logger.warning("%s", warning)
        return result.table

    def run(self, text: str, *, limit: int | None = None) -> QueryResult:
        """As `query`, with what there is to say about it."""
        if len(text) > _LONGEST_QUERY:
            raise QueryError(f"the query has {len(text):,} characters; the limit is {_LONGEST_QUERY:,}")
        if limit is not None and limit < 0:
            raise ConfigError(f"limit={limit} must be an integer >= 0")
        begun_s = time.monotonic()
        cache, checks_json = self._cache, False
        while True:
            with self._started(cache) as run:
                try:
                    return self._run(run, text, limit, begun_s, checks_json=checks_json)
                except QueryError as error:
                    if run.stopping.event.is_set():
                        raise
                    if cache is not None and isinstance(error.__cause__, duckdb.IOException):
                        cache = None  # another process has removed a file
                    elif not checks_json and any(what in str(error) for what in _UNDECODABLE):
                        cache, checks_json = None, True  # some value is not what the others are: look at each
                    else:
                        raise

    def topics(self) -> list[str]:
        """The topics that can be queried."""
        return sorted(self._connection.topics())

    def cancel(self) -> None:
        """End all running queries with a QueryStoppedError. Any thread may call it."""
        with self._lock:
            for run in self._running:
                run.stop("the query was cancelled")

    def close(self) -> None:
        self.cancel()
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()
        self._readers.close()
        if self._owns_connection:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside.

    @contextlib.contextmanager
    def _started(self, cache: SegmentCache | None) -> Iterator[_Run]:
        reads_cache = cache is not None
        with self._lock:
            at = next((at for at, (reads, _) in enumerate(self._idle) if reads is reads_cache), None)
            connection = None if at is None else self._idle.pop(at)[1]
        if connection is None:
            connection = _locked_down(self._settings, None if cache is None else cache.folder)
        with contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            run = _Run(connection, cache)
            with self._lock:
                self._running.add(run)
            timer = None
            if self._timeout_s is not None:
                why = f"the query ran for longer than {self._timeout_s:g} s: let it read less, or raise the timeout"
                timer = threading.Timer(self._timeout_s, self._stop, [run, why])
                timer.daemon = True
                timer.start()
            try:
                yield run
            finally:
                if timer is not None:
                    timer.cancel()
                with self._lock:
                    self._running.discard(run)  # from here on, nothing interrupts it
            if run.has_ended_well and not run.stopping.event.is_set():
                run.clean_up()
                with self._lock:
                    if not self._is_closed and len(self._idle) < _IDLE_CONNECTIONS:
                        self._idle.append((reads_cache, connection))
                        stack.pop_all()

    def _stop(self, run: _Run, why: str) -> None:
        with self._lock:
            if run in self._running:
                run.stop(why)

    def _run(self, run: _Run, text: str, limit: int | None, begun_s: float, *, checks_json: bool) -> QueryResult:
        tables: dict[str, TopicTable] = {}
        try:
            statement = parse(run.connection, text)
            if statement.lists_topics:
                table = pa.table({"name": pa.array(self.topics(), pa.string())})
                return QueryResult(table, False, 0, 0, {}, time.monotonic() - begun_s)
            self._register(run, statement, tables, checks_json=checks_json)
            table, is_cut = _fetched(run.connection, statement.text, limit)
        except duckdb.Error as error:
            raise _told(error, run, tables, self._settings["memory_limit"]) from error
        run.stopping.check()
        run.has_ended_well = not is_cut  # a reader that was not read to its end may still hold it
        undecodable = {name: each.columns.undecodable for name, each in tables.items()}
        for name, cached in run.cached.items():
            undecodable[name] += cached.undecodable
        return QueryResult(
            table,
            is_cut,
            sum(each.source.records_read for each in tables.values()),
            sum(each.records for each in run.cached.values()),
            {name: count for name, count in undecodable.items() if count},
            time.monotonic() - begun_s,
            tuple(run.notes),
        )

    def _register(self, run: _Run, statement: Statement, tables: dict[str, TopicTable], *, checks_json: bool) -> None:
        names = self.topics() if statement.tables or statement.latest else []
        wanted = {
            parts: _resolved(parts, names) for parts in (*statement.tables, *((each,) for each in statement.latest))
        }
        for name in dict.fromkeys(wanted.values()):
            tables[name] = self._registered(run, name, statement, checks_json=checks_json)
        for latest in statement.latest:
            name = wanted[latest,]
            run.make("view", *_latest_view(name, latest, tables[name]))
        if statement.latest:
            run.make("macro", LATEST, f"(topic) as table select * from query_table('{LATEST} ' || hex(topic))")

    def _registered(self, run: _Run, name: str, statement: Statement, *, checks_json: bool) -> TopicTable:
        """Let the query read a topic."""
        source = TopicSource(self._connection, self._url, name, run.stopping, self._readers)
        typed, note = self._type_of(name)
        if note:
            run.notes.append(f"topic {name!r}: {note}")
        sampled = self._sampled(source, is_typed=typed is not None)

        def columns(*, are_views: bool) -> TopicColumns:
            return TopicColumns(
                typed,
                name,
                sampled.texts,
                has_offsets=source.has_offsets,
                are_views=are_views,
                checks_json=checks_json,
                on_undecodable=self._undecodable,
                json_fields=sampled.fields,
            )

        records = f"records of {name}"  # names of topics have no spaces
        if run.cache is not None and self._undecodable == "null":
            starts = {partition: start for partition, (start, _) in source.spans.items()}
            decoder = "" if typed is None else f"{typed.type!r} {typed.serde!r}"
            cached = run.cache.closed(source, columns(are_views=False), decoder, sampled.fields)
            if cached is not None:
                run.cached[name] = cached
                source.skip_to(cached.ends)
        table = TopicTable(source, columns(are_views=source.is_local and not statement.may_filter))
        run.connection.register(records, table)
        run.registered.append(records)
        sources: list[tuple[str, Mapping[str, str]]] = [(quoted(records), {})]
        if name in run.cached:
            sources = [*run.cached[name].sources(table.columns, starts), *sources]
        names, fields = table.columns.schema.names, sampled.fields
        parts = []
        for each, stored in sources:
            if fields is None:
                parts.append(f"select {', '.join(map(quoted, names))} from {each}")
            else:
                parts.append(fields.view(each, names, statement.names, strict=not checks_json, stored=stored))
        run.make("view", quoted(name), f" as {' union all '.join(parts)}")
        return table

    def _type_of(self, name: str) -> RegisteredType:
        """The type of a topic that was given, or that the registry has."""
        if name in self._types:
            return RegisteredType(self._types[name])
        return RegisteredType(None) if self._registry is None else registered_type(self._registry, name)

    def _sampled(self, source: TopicSource, *, is_typed: bool) -> _Sampled:
        """What some records of the topic tell. Remembered for a while, once there were any."""
        known = self._samples.get(source.topic)
        if known is not None and time.monotonic() - known.at_s < _SAMPLE_KEPT_S:
            return known
        keys, values = source.sample()
        texts = texts_of(keys, values)
        fields = json_fields(values, ABOUT) if texts.value and not is_typed else None
        sampled = _Sampled(texts, fields, time.monotonic())
        if values:
            self._samples[source.topic] = sampled
        return sampled


def _locked_down(settings: Mapping[str, Any], folder: Path | None) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory that can reach nothing but what it is given, and this folder."""
    safe = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
        "python_scan_all_frames": "false",
        "temp_directory": "",
        **settings,
    }
    try:
        connection = duckdb.connect(":memory:", config=safe)
    except duckdb.Error as error:
        raise ConfigError(f"DuckDB does not accept these settings: {plain(error)}") from error
    if folder is not None:
        connection.execute("set allowed_directories = ?", [[str(folder)]])
    for setting in (
        "TimeZone = 'UTC'",
        "enable_progress_bar = false",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"set {setting}")
    return connection


def _fetched(connection: duckdb.DuckDBPyConnection, text: str, limit: int | None) -> tuple[pa.Table, bool]:
    """The rows, at most `limit`, and whether there are more."""
    relation = connection.sql(text)
    if relation is None:
        return pa.table({}), False
    if limit is None:
        return relation.to_arrow_table(), False
    reader = relation.to_arrow_reader(max(1, min(limit + 1, _ROWS_AT_ONCE)))
    batches: list[Any] = []
    rows = 0
    for batch in reader:
        batches.append(batch)
        rows += batch.num_rows
        if rows > limit:
            break
    table = pa.Table.from_batches(batches, reader.schema)
    return table.slice(0, limit), rows > limit


def _told(error: duckdb.Error, run: _Run, tables: Mapping[str, TopicTable], memory_limit: str) -> BaseException:
    """The error to raise for one of DuckDB's."""
    failure = next((table.failure for table in tables.values() if table.failure is not None), None)
    if run.stopping.event.is_set():
        return QueryStoppedError(run.stopping.why)
    if failure is not None:
        return failure
    if isinstance(error, duckdb.InterruptException):
        return KeyboardInterrupt()
    if isinstance(error, duckdb.OutOfMemoryException):
        return QueryError(f"the query needs more memory than {memory_limit}: let it read or group less")
    return QueryError(plain(error))


def _resolved(parts: tuple[str, ...], names: Sequence[str]) -> str:
    """The topic that a query names. Raises UnknownTopicError, which names similar ones."""
    name = ".".join(parts)
    if name in names:
        if len(parts) > 1:
            raise QueryError(f'write the topic in double quotes, as its name contains a dot: "{name}"')
        return name
    same = [each for each in names if each.lower() == name.lower()]
    if len(same) == 1 and len(parts) == 1:
        return same[0]
    near = difflib.get_close_matches(name, names, n=3) or [each for each in names if name and name in each][:3]
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        hint = f"there are: {', '.join(names[:20]) or 'none yet'}{', …' if len(names) > 20 else ''}"
    raise UnknownTopicError(f"there is no topic {name!r}; {hint}")


def _latest_view(name: str, called: str, table: TopicTable) -> tuple[str, str]:
    """The name and definition of a view: the newest row of every key, without those whose newest record is a tombstone,
    or that a truncate removed.

    A key usually stays in one partition, where the offset decides. After partitions were added it may be in two: then
    the time decides.
    """
    names = table.columns.names
    partition, offset, time_, key, value = (quoted(names[each]) for each in (PARTITION, OFFSET, TIMESTAMP, KEY, VALUE))
    is_text = table.columns.schema.field(names[KEY]).type in (pa.string(), pa.string_view())
    truncate = f"'{TRUNCATE_KEY.decode()}'" + ("" if is_text else "::blob")
    newest = (
        f"select {key} as k, {partition} as p, max({offset}) as o, arg_max({time_}, {offset}) as t "
        f"from {quoted(name)} where {key} is not null group by {key}, {partition}"
    )
    chosen = f"select p, o from newest where k <> {truncate}"
    if len(table.source.spans) > 1:
        chosen += " qualify row_number() over (partition by k order by t desc, p desc) = 1"
    kept = (
        f"select n.p, n.o from ({chosen}) n anti join (select p, o from newest where k = {truncate}) cut "
        "on n.p = cut.p and n.o < cut.o"
    )
    return (
        # `query_table` would take a dot in a name for a schema.
        quoted(f"{LATEST} {called.encode().hex().upper()}"),
        f" as with newest as materialized "
        f"({newest}) select r.* from {quoted(name)} r semi join ({kept}) n "
        f"on r.{partition} = n.p and r.{offset} = n.o where r.{value} is not null",
    )
