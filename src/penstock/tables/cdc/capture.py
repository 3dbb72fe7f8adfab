"""`Capture`: a database's tables, and every change to them, into topics of a stream."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from penstock.abc import Stream
from penstock.errors import (
    BrokerUnavailableError,
    ChangesLostError,
    ConfigError,
    DeliveryError,
    OvertakenError,
    PenstockError,
    SourceUnavailableError,
    StoreUnavailableError,
    StreamError,
    TransactionLostError,
    UrlError,
)
from penstock.model.observing import OBSERVED
from penstock.streams import Connection
from penstock.streams.connecting import connect
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES, without_password
from penstock.tables.cdc.delivery import Delivery, open_delivery
from penstock.tables.cdc.records import CaptureFormat
from penstock.tables.cdc.reports import FAILED, STOPPED, WAITING, Reporter
from penstock.tables.cdc.requests import RequestReader
from penstock.tables.cdc.source import CaptureProgress, Refreshing, SnapshotMode, Source, SourceBatch, SourceOptions
from penstock.tables.cdc.sqlite import SqliteSource

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[a-z0-9_]{1,50}")
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 30.0
_LONGEST_HISTORY_S: Final = 100 * 365 * 86_400.0
Choice = TypeVar("Choice", bound=StrEnum)
POSTGRES: Final = ("postgresql", "postgres")
MYSQL: Final = ("mysql", "mariadb")


class Capture:
    """Reads tables of the database at `source`, and then every change to them, into the stream at `stream`.

    Each table has a topic, PREFIX.SCHEMA.TABLE, compacted and keyed by the primary key. Rows and position are stored
    in one transaction where the stream has transactions (`log:`, `kafka:`): killed at any moment, it continues without
    a loss and without a repetition. Elsewhere the position is saved after the rows, in a checkpoint store:
    at-least-once. A second capture with the same name and stream takes over from the first.
    """

    def __init__(
        self,
        source: str,
        stream: str | Stream,
        *,
        tables: Sequence[str],
        name: str | None = None,
        format: CaptureFormat | str = CaptureFormat.DEBEZIUM,
        prefix: str | None = None,
        snapshot: SnapshotMode | str = SnapshotMode.INITIAL,
        partitions: int = 1,
        slot: str | None = None,
        publication: str | None = None,
        checkpoints: str | None = None,
        snapshot_rows: int = 20_000,
        batch_rows: int = 10_000,
        heartbeat_s: float = 10.0,
        history_s: float | None = None,
    ) -> None:
        """`tables` are names with their schema; `*` and `?` match any. `name`, by default that of the database, tells
        captures into one stream apart. `partitions` are those of topics that do not exist: with one, the default, a
        topic has the changes of its table in the order of commits; with more, those of each key. The docs explain all
        others: how-to/change-data-capture.md."""
        if isinstance(tables, str) or not tables or not all(isinstance(each, str) and each for each in tables):
            raise ConfigError(f"tables={tables!r} must be names of tables, such as ['public.users', 'public.o*']")
        for option, number in {
            "partitions": partitions,
            "snapshot_rows": snapshot_rows,
            "batch_rows": batch_rows,
        }.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"{option}={number!r} must be an integer >= 1")
        if not heartbeat_s > 0:
            raise ConfigError(f"heartbeat_s={heartbeat_s!r} must be positive")
        if history_s is not None and not 0 <= history_s < _LONGEST_HISTORY_S:
            raise ConfigError(f"history_s={history_s!r} must be seconds, from 0 to {_LONGEST_HISTORY_S:g}")
        self._history_s = history_s
        name = _database_name(source) if name is None else name
        if _NAME.fullmatch(name) is None:
            raise ConfigError(f"name={name!r} must have 1 to 50 of the characters a-z, 0-9 and _: it names a slot")
        self.name = name
        self.source_url = without_password(source)
        self._stream_given = stream
        self._partitions = partitions
        self._checkpoints = checkpoints
        options = SourceOptions(
            name=name,
            tables=tuple(tables),
            form=_choice(CaptureFormat, format, "format"),
            prefix=prefix,
            snapshot=_choice(SnapshotMode, snapshot, "snapshot"),
            snapshot_rows=snapshot_rows,
            batch_rows=batch_rows,
            heartbeat_s=heartbeat_s,
        )
        self._is_only = options.snapshot is SnapshotMode.ONLY
        self._source = _open_source(source, options, slot, publication)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._thread: int | None = None
        """The thread in `run`."""
        self._owner: str | None = None
        self._has_started = False
        """Whether database and stream were reached, and the tables can be captured."""

    def run(self) -> None:
        """Capture until `stop`; with snapshot="only", until every row is read.

        While the database or the stream is unavailable, it is retried. Raises ConfigError before anything starts if
        the database is not set up for it, ChangesLostError if the database no longer has the next changes, and
        OvertakenError if another capture with this name has taken over.
        """
        self._thread = threading.get_ident()
        OBSERVED.enter(self)
        pause_s = _FIRST_PAUSE_S
        try:
            while True:  # ends when stopped, or with an error that another attempt would not change
                before = self._stored
                try:
                    self._run_once()
                    return
                except PenstockError as error:
                    if not self._has_started or not is_passing(error):
                        raise
                    if self._stored != before:
                        pause_s = _FIRST_PAUSE_S
                    logger.warning("the capture %r will be retried: %s", self.name, error)
                if self._stopping.wait(random.uniform(pause_s / 2, pause_s)):
                    return
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self.progress.phase = "stopped"
            OBSERVED.leave(self)
            self._thread = None
            self._ended.set()

    def stop(self) -> None:
        """Make `run` return once what was read is stored. Thread-safe."""
        self._stopping.set()

    @property
    def progress(self) -> CaptureProgress:
        return self._source.progress

    def close(self) -> None:
        """Stop, and wait until a `run` in another thread has returned."""
        self.stop()
        if self._thread not in (None, threading.get_ident()):
            self._ended.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _stored(self) -> int:
        progress = self.progress
        return progress.changes + sum(table.rows for table in progress.tables.values())

    def _run_once(self) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._source.close)
            topics = self._source.topics()
            stream: Stream
            if isinstance(self._stream_given, str):
                stream = closing.enter_context(_connected(self._stream_given))
            else:
                stream = self._stream_given
            self._has_started = True
            delivery: Delivery
            delivery, self._owner = open_delivery(
                stream,
                self.name,
                topics.values(),
                self._partitions,
                self._checkpoints,
                self._owner,
                history_s=self._history_s,
            )
            closing.callback(delivery.close)
            self.progress.guarantee = str(delivery.guarantee)
            reporter = Reporter(self.name, self.source_url) if delivery.has_reports else None
            requests = RequestReader(stream, self.name) if delivery.has_reports else None
            if requests is not None:
                closing.callback(requests.close)
            with contextlib.closing(_generator(self._source.batches(delivery.load(), self._stopping))) as batches:
                self._deliver(batches, delivery, reporter, requests)
            if reporter is not None:
                # A snapshot alone leaves nothing behind that could be lost.
                report = b"" if self._is_only else reporter.report(self.progress, STOPPED)
                delivery.deliver([], {}, report)

    def _deliver(
        self,
        batches: Iterator[SourceBatch],
        delivery: Delivery,
        reporter: Reporter | None,
        requests: RequestReader | None,
    ) -> None:
        while True:  # ends with the source
            try:
                batch = next(batches, None)
            except PenstockError as error:
                if reporter is not None:
                    phase, is_lost = WAITING if is_passing(error) else FAILED, isinstance(error, ChangesLostError)
                    delivery.deliver([], {}, reporter.report(self.progress, phase, str(error), is_lost=is_lost))
                raise
            if batch is None:
                return
            report = None if reporter is None else reporter.due(self.progress)
            if batch.records or batch.state or report is not None:
                delivery.deliver(batch.records, batch.state, report)
            if requests is not None and self.progress.phase == "streaming":
                self._take_requests(requests)

    def _take_requests(self, requests: RequestReader) -> None:
        source = self._source
        for table, request in requests.open().items():
            if not isinstance(source, Refreshing):
                requests.close_request(table, request, "captures of this database cannot do that")
                continue
            try:
                is_done = source.refresh(table, request)
            except ConfigError as error:
                requests.close_request(table, request, str(error))
                continue
            if is_done:
                requests.close_request(table, request)


def _generator(iterator: Any) -> Any:
    """An iterator of a source is a generator: closing it closes what it has opened."""
    return iterator


def _choice(kind: type[Choice], given: str, option: str) -> Choice:
    try:
        return kind(given)
    except ValueError:
        raise ConfigError(f"{option}={given!r} must be one of {', '.join(kind)}") from None


def is_passing(error: PenstockError) -> bool:
    """Whether another attempt may succeed."""
    if isinstance(error, OvertakenError | ConfigError):
        return False
    if isinstance(error, BrokerUnavailableError | DeliveryError):
        return error.retriable
    return isinstance(error, SourceUnavailableError | TransactionLostError | StoreUnavailableError | StreamError)


def _open_source(url: str, options: SourceOptions, slot: str | None, publication: str | None) -> Source:
    scheme = scheme_of(url)
    if scheme in POSTGRES:
        from penstock.tables.cdc.postgres.source import PostgresSource  # needs an extra

        return PostgresSource(url, options, slot=slot, publication=publication)
    given = {"slot": slot, "publication": publication}
    if any(each is not None for each in given.values()):
        name = next(name for name, each in given.items() if each is not None)
        raise ConfigError(f"{name}={given[name]!r}: only PostgreSQL has it")
    if scheme in MYSQL:
        from penstock.tables.cdc.mysql.source import MysqlSource  # needs an extra

        return MysqlSource(url, options)
    if scheme == "sqlite":
        return SqliteSource(url, options)
    raise UrlError(
        f"{without_password(url)!r} is not a database that can be captured: postgresql://..., mysql://..., "
        "mariadb://... or sqlite:FILE"
    )


def _connected(url: str) -> Connection:
    """Every record names its table, database and columns: compressed, a topic takes a fraction of the disk."""
    return connect(url, compression="lz4") if scheme_of(url) in KAFKA_SCHEMES else connect(url)


def _database_name(url: str) -> str:
    """The name of a capture by default: that of its database."""
    path = url.partition("?")[0].rstrip("/").rpartition("/")[2]
    if scheme_of(url) == "sqlite":
        path = Path(path.removeprefix("sqlite:")).stem
    return re.sub(r"[^a-z0-9_]+", "_", path.rpartition("@")[2].lower())[:50].strip("_") or "database"
