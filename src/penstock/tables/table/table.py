"""`Table`: a keyed topic as rows that can be looked up."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, Self, TypeVar, overload

from penstock.abc import HasAdmin, Stream
from penstock.errors import BrokerUnavailableError, ClosedError, ConfigError, PenstockError
from penstock.model import Pointer, Receipt, RecordMetadata
from penstock.model.closing import Closing
from penstock.model.observing import OBSERVED
from penstock.model.times import check_seconds
from penstock.serde import Topic
from penstock.serde.topic import topic_of
from penstock.streams.aliases import current_topic
from penstock.streams.capability import capability
from penstock.streams.connecting import check_url, connect
from penstock.streams.declared import provide_topic
from penstock.streams.url import without_password
from penstock.tables.changes import ChangeDecoder, ChangeFormat, field_of
from penstock.tables.table.disk import DiskRows, KeptRows
from penstock.tables.table.following import Follower
from penstock.tables.table.history import When, read_as_of
from penstock.tables.table.rows import Indexes, MemoryRows, Readable, Rows, TableChange
from penstock.tables.table.serving import TableServer

logger = logging.getLogger(__name__)

T = TypeVar("T")
OnChange = Callable[[TableChange], object]

_TIMEOUT_S: Final = 30.0
_started: weakref.WeakSet[Table[Any]] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class TableFreshness:
    """How fresh a table is."""

    rows: int
    pointers: dict[int, Pointer]
    """For each partition, the pointer before which every record was applied."""
    is_caught_up: bool
    """Whether rows can be looked up: everything that the topic had when the table was opened was applied."""
    problem: str | None
    """Why the rows are not being brought up to date; None while they are."""


class _Lookups(Generic[T]):
    """Looking up rows. The slot of the rows is set to something that refuses while there are none."""

    _rows: Readable

    def __getitem__(self, key: Any) -> T:
        """The row of this key. Raises KeyError if there is none, and SerdeError if it cannot be decoded."""
        row: T = self._rows[key]
        return row

    @overload
    def get(self, key: Any) -> T | None: ...

    @overload
    def get(self, key: Any, default: T) -> T: ...

    def get(self, key: Any, default: T | None = None) -> T | None:
        """The row of this key, or `default` if there is none."""
        try:
            row: T = self._rows[key]
        except KeyError:
            return default
        return row

    def __contains__(self, key: Any) -> bool:
        try:
            self._rows[key]
        except KeyError:
            return False
        return True

    def __len__(self) -> int:
        return len(self._rows)

    def __bool__(self) -> bool:
        """A table is true, also without rows."""
        return True

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._rows.items())

    def items(self) -> Iterator[tuple[Any, T]]:
        """All keys and rows: of one moment in memory, of a moment for each thousand rows on disk."""
        return self._rows.items()

    def by(self, index: str, value: Any) -> dict[Any, T]:
        """The rows whose field `index` has this value, by key. Raises ConfigError if there is no such index."""
        return self._rows.by(index, value)


class TableSnapshot(_Lookups[T]):
    """The rows of a table as they were. They do not change."""

    def __init__(self, rows: Readable) -> None:
        self._rows = rows


class Table(_Lookups[T], Closing):
    """A keyed topic as a table in this process, kept fresh: `users["42"]` is the newest value with this key.

        users = ps.Table("log:./data", ps.Topic("users", User), indexes=["city"])
        with users:
            users["42"], users.by("city", "Oslo")

    A record without a value deletes the row of its key. The topic should be compacted. Use the table in a `with` block,
    which starts to read the topic; `start` and `close` do the same. Lookups are thread-safe and call no database. The
    first one waits until everything that the topic has at the start was read; from then on, none waits.

    While the stream is unavailable, lookups find the last known rows, and `progress.problem` tells why. If the topic is
    deleted, they raise UnknownTopicError; if it is created again, the table is read again. The same happens if
    records expired before they were read, or if the table was away for longer than the topic keeps deletions.
    """

    @overload
    def __init__(
        self: Table[Any],
        stream: str | Stream,
        topic: str,
        *,
        storage: str | os.PathLike[str] | None = None,
        in_memory: bool = False,
        indexes: Sequence[str] | Mapping[str, Callable[[Any], Any]] = (),
        format: str = "plain",
        timeout_s: float = _TIMEOUT_S,
    ) -> None: ...

    @overload
    def __init__(
        self,
        stream: str | Stream,
        topic: Topic[T],
        *,
        storage: str | os.PathLike[str] | None = None,
        in_memory: bool = False,
        indexes: Sequence[str] | Mapping[str, Callable[[T], Any]] = (),
        format: str = "plain",
        timeout_s: float = _TIMEOUT_S,
    ) -> None: ...

    def __init__(
        self,
        stream: str | Stream,
        topic: str | Topic[Any],
        *,
        storage: str | os.PathLike[str] | None = None,
        in_memory: bool = False,
        indexes: Sequence[str] | Mapping[str, Callable[[Any], Any]] = (),
        format: str = "plain",
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """`stream` is a URL or what `connect` returned. A topic that is given by its name has rows of bytes; those of
        change data capture have dicts.

        `storage` is a SQLite file that keeps the rows with the pointers after them: for tables larger than memory, and
        to continue after a restart where the table was. With `in_memory`, rows are looked up in memory all the same,
        and the file is read at the start. Without `storage` they are in memory, and are read from the beginning of the
        topic. `indexes` are fields of the rows, or functions of a row by name. `format` is "plain" for rows as they
        are, "flat" or "debezium" for the topics of change data capture, where a key is the value of the primary key. A
        lookup waits for at most `timeout_s` until the table has caught up.
        """
        if isinstance(stream, str):
            check_url(stream)
        elif not isinstance(stream, Stream):
            raise ConfigError(f"{stream!r} is not a stream: pass a URL such as 'log:./data', or a `connect` result")
        if storage is not None and not os.fspath(storage):
            raise ConfigError("storage has an empty path: use storage='./rows.db', or omit it for rows in memory")
        if in_memory and storage is None:
            raise ConfigError("in_memory=True is for a table with a file: add storage='./rows.db', or omit it")
        check_seconds(timeout_s, "timeout_s")
        try:
            self._format = ChangeFormat(format)
        except ValueError:
            raise ConfigError(f"format={format!r} must be one of {', '.join(ChangeFormat)}") from None
        self.topic: Topic[Any] = topic_of(topic)
        self._given = stream
        self._storage = None if storage is None else os.fspath(storage)
        self._in_memory = in_memory
        self._decoder = ChangeDecoder(self.topic, self._format)
        self._indexes = Indexes(_extracts(indexes, self._decoder.is_bytes, self.topic.name))
        self._timeout_s = timeout_s
        self._callbacks: list[OnChange] = []
        self._closing = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._follower: Follower | None = None
        self._target: Rows | None = None
        self._rows: Readable = _Refusing(self._not_open)

    def start(self) -> None:
        """Begin to read the topic, in a thread. Raises UnknownTopicError if there is no such topic; one that is
        declared with a number of partitions is created, compacted."""
        with self._lock:
            if self._follower is not None:
                raise ConfigError(f"the table of {self.topic.name!r} has been started already")
            with contextlib.ExitStack() as opening:
                given = self._given
                stream: Stream = opening.enter_context(connect(given)) if isinstance(given, str) else given
                self._provide(stream)
                name = current_topic(stream, self.topic.name)
                rows = self._open_rows()
                opening.callback(rows.close)
                self._rows = _Refusing(self._wait_for_rows)
                follower = Follower(
                    stream,
                    name,
                    rows,
                    serve=self._serve_rows,
                    withhold=self._withhold_rows,
                    tell=self._tell,
                    is_wanted=lambda: bool(self._callbacks),
                )
                self._stream, self._target, self._follower = stream, rows, follower
                try:
                    follower.start()
                except BaseException:
                    self._stream = self._target = self._follower = None
                    self._rows = _Refusing(self._not_open)
                    raise
                opening.callback(follower.stop)
                self._closing = opening.pop_all()
            _started.add(self)
            OBSERVED.enter(self)

    def close(self) -> None:
        """Stop reading. Lookups are refused from then on."""
        OBSERVED.leave(self)
        with self._lock:
            _started.discard(self)
            self._rows = _Refusing(self._not_open)
            self._closing.close()
            self._follower = self._target = self._stream = None

    def __enter__(self) -> Self:
        self.start()
        return self

    @property
    def progress(self) -> TableFreshness:
        """How fresh the table is. Never waits."""
        follower, target = self._following()
        return TableFreshness(len(target), follower.next(), self._rows is target, follower.problem)

    @property
    def pointers(self) -> dict[int, Pointer]:
        """For each partition, the pointer before which every record was applied: pass it to `as_of`."""
        return self._following()[0].next()

    def wait_until_caught_up(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Return once everything that the topic has now was applied. Raises TimeoutError."""
        follower, _ = self._following()
        follower.wait_until(follower.ends(), timeout_s)

    def wait_for(
        self, written: Receipt | RecordMetadata | Sequence[Receipt | RecordMetadata], timeout_s: float = _TIMEOUT_S
    ) -> None:
        """Return once the table has what was written: `users.wait_for(stream.send(...))`. Raises TimeoutError.

        A receipt is awaited first, and raises what `Receipt.result` raises.
        """
        follower, _ = self._following()
        wanted: dict[int, Pointer] = {}
        for each in [written] if isinstance(written, Receipt | RecordMetadata) else written:
            place = each.result(timeout_s) if isinstance(each, Receipt) else each
            if place.topic not in (follower.topic, self.topic.name):
                raise ConfigError(f"{place} is not a record of topic {self.topic.name!r}, whose table this is")
            wanted[place.partition] = max(place.offset + 1, wanted.get(place.partition, 0))
        follower.wait_until(wanted, timeout_s)

    def as_of(self, when: When, *, timeout_s: float = 10 * _TIMEOUT_S) -> TableSnapshot[T]:
        """The table as it was: after all records up to a time, or before a pointer of each partition.

        The topic is read again, and the rows are kept in memory. Raises HistoryLostError if that cannot be exact
        because records have expired, or because compaction may have removed some that were replaced later: set the
        topic's `min.compaction.lag.ms` to how far back you look.
        """
        follower, _ = self._following()
        assert self._stream is not None
        rows = MemoryRows(self._decoder, self._indexes)
        read_as_of(self._stream, follower.topic, rows, when, timeout_s)
        return TableSnapshot(rows)

    def on_change(self, callback: OnChange) -> OnChange:
        """Call a function with each `TableChange`, after the rows have changed; it can be a decorator.

        It is called in the table's thread, so it must be quick; what it raises is logged. Without `storage`, a table
        whose callback is added before the start also reports the rows that it begins with. A change is reported once,
        or never if the process is killed: use a handler of an `App` for what must happen.
        """
        if not callable(callback):
            raise ConfigError(f"{callback!r} must be a function that takes a change")
        self._callbacks.append(callback)
        return callback

    def serve(self, address: str = "127.0.0.1:0", *, insecure: bool = False) -> TableServer:
        """Answer over HTTP at HOST:PORT until the table is closed.

        `GET /42` is a row as JSON, `GET /?city=Oslo` the rows of an index, `GET /` the progress; `/healthz` and
        `/readyz` tell whether the table works and has caught up.

        There is no login, so an address that other machines can reach is refused unless `insecure` is true.
        """
        self._following()
        server = TableServer(self, address, insecure=insecure)
        with self._lock:
            self._closing.callback(server.close)
        return server

    def key_of_text(self, text: str) -> list[Any]:
        """The keys that a text of a URL may mean, likeliest first."""
        return self._decoder.keys_of_text(text)

    @property
    def index_names(self) -> list[str]:
        return list(self._indexes.extracts)

    def _open_rows(self) -> Rows:
        if self._storage is None:
            return MemoryRows(self._decoder, self._indexes)
        # Indexes of rows in memory are in memory, too.
        indexes = Indexes({}) if self._in_memory else self._indexes
        stored = DiskRows(self._storage, self.topic.name, self._decoder, str(self._format), indexes)
        return KeptRows(stored, self._decoder, self._indexes) if self._in_memory else stored

    def _following(self) -> tuple[Follower, Rows]:
        follower, target = self._follower, self._target
        if follower is None or target is None:
            self._not_open()
        return follower, target

    def _provide(self, stream: Stream) -> None:
        partitions = self.topic.partitions
        if partitions is None:
            return
        administered = capability(stream, HasAdmin)
        if administered is not None:
            administered.admin().provide(self.topic.name, partitions, {"cleanup.policy": "compact"})
        else:
            provide_topic(stream, self.topic.name, partitions)

    def _serve_rows(self) -> None:
        assert self._target is not None
        self._rows = self._target

    def _withhold_rows(self, error: PenstockError | None) -> None:
        def refuse() -> NoReturn:
            assert error is not None
            raise error

        self._rows = _Refusing(self._wait_for_rows if error is None else refuse)

    def _wait_for_rows(self) -> Readable:
        """Wait until the rows may be looked up."""
        follower, target = self._following()
        try:
            follower.wait_until({}, self._timeout_s)
        except TimeoutError as error:
            raise BrokerUnavailableError(
                f"{error}: wait with wait_until_caught_up(timeout_s=...), or check that "
                f"{without_password(self._stream.url) if self._stream is not None else 'the stream'} can be reached"
            ) from error
        return target

    def _not_open(self) -> NoReturn:
        raise ClosedError(f"the table of {self.topic.name!r} is not open: use it inside its with block")

    def _tell(self, changes: Sequence[TableChange]) -> None:
        for change in changes:
            for callback in self._callbacks:
                try:
                    callback(change)
                except Exception:
                    logger.exception("a callback of the table of %r failed", self.topic.name)

    def _forked(self) -> None:
        """A forked process has the rows, but not the thread that keeps them fresh."""

        def refuse() -> NoReturn:
            raise ClosedError(f"the table of {self.topic.name!r} belongs to another process: open one in this process")

        self._rows = _Refusing(refuse)

    def __repr__(self) -> str:
        return f"<Table of {self.topic.name!r}>"


class _Refusing:
    """In place of rows that must not be looked up yet, or any more: every use waits for the rows, or raises."""

    def __init__(self, resolve: Callable[[], Readable]) -> None:
        self._resolve = resolve

    def __getitem__(self, key: Any) -> Any:
        return self._resolve()[key]

    def __len__(self) -> int:
        return len(self._resolve())

    def items(self) -> Iterator[tuple[Any, Any]]:
        return self._resolve().items()

    def by(self, index: str, value: Any) -> dict[Any, Any]:
        return self._resolve().by(index, value)


def _extracts(
    indexes: Sequence[str] | Mapping[str, Callable[[Any], Any]], is_bytes: bool, topic: str
) -> dict[str, Callable[[Any], Any]]:
    if isinstance(indexes, str):
        raise ConfigError(f"indexes={indexes!r} must be a list: [{indexes!r}]")
    if isinstance(indexes, Mapping):
        for name, function in indexes.items():
            if not callable(function):
                raise ConfigError(f"the index {name!r} must be a function of a row, not {function!r}")
        return dict(indexes)
    if indexes and is_bytes:
        raise ConfigError(
            f"the rows of topic {topic!r} are bytes, which have no fields to index: pass a Topic with a type, or "
            "functions by name, indexes={'city': ...}"
        )
    return {name: field_of(name) for name in indexes}


def _forked() -> None:
    for table in list(_started):
        table._forked()


os.register_at_fork(after_in_child=_forked)
