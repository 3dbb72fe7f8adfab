"""Dead letters in a table of a PostgreSQL database."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.abc import Clock, Feature, Features
from penstock.consuming.dead_letters.merging import admitted, merged
from penstock.consuming.dead_letters.postgres_hold import PostgresHold
from penstock.consuming.dead_letters.rows import COLUMNS, TABLE, conditions, letter_of, row_of
from penstock.errors import ConfigError, MissingExtraError, StoreUnavailableError
from penstock.model import DeadLetter, LetterFilter, LetterState

if TYPE_CHECKING:
    import psycopg

CONNECT_TIMEOUT_S: Final = 10

_SCHEMA: Final = (
    f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    place BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    consumer_group TEXT NOT NULL,
    topic TEXT NOT NULL,
    topic_partition BIGINT NOT NULL,
    pointer TEXT NOT NULL,
    record_key BYTEA,
    record_value BYTEA,
    headers TEXT NOT NULL,
    timestamp_ms BIGINT,
    error TEXT NOT NULL,
    error_kind TEXT NOT NULL,
    traceback TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    first_ms BIGINT NOT NULL,
    last_ms BIGINT NOT NULL,
    handler TEXT NOT NULL,
    handler_version TEXT NOT NULL,
    state TEXT NOT NULL,
    redrives BIGINT NOT NULL,
    taker TEXT NOT NULL DEFAULT ''
)""",
    f"CREATE INDEX IF NOT EXISTS {TABLE}_by_state ON {TABLE} (state, place)",
)
_NAMES: Final = ", ".join(COLUMNS)
_WRITE: Final = (
    f"INSERT INTO {TABLE} ({_NAMES}) VALUES ({', '.join(['%s'] * len(COLUMNS))}) ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in COLUMNS)
    + ", taker = ''"
)
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('penstock_dead_letters'))"
_LOCK_ROWS: Final = f"SELECT place FROM {TABLE} WHERE id = ANY(%(ids)s) ORDER BY place FOR UPDATE"
_AMONG: Final = "{column} = ANY({parameter})"
_CONTAINS: Final = "position({parameter} in {column}) > 0"


class PostgresDeadLetters:
    """`abc.DeadLetters` in PostgreSQL, in the table `penstock_dead_letters`, which is made where there is none.

    One connection, made anew after it broke. Those who put wait for each other, so that letters appear in the order of
    their places and who pages through them misses none; all else runs side by side.
    """

    def __init__(self, url: str, *, connect_timeout_s: int = CONNECT_TIMEOUT_S) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingExtraError("keeping dead letters in PostgreSQL", "postgres") from error
        self._psycopg = psycopg
        try:
            settings: dict[str, Any] = {"connect_timeout": connect_timeout_s, **psycopg.conninfo.conninfo_to_dict(url)}
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"the URL of the dead letters in PostgreSQL cannot be understood: {error}") from error
        self._address = psycopg.conninfo.make_conninfo(**settings)
        self.where = f"{settings.get('host', 'the local server')}/{settings.get('dbname', '')}"
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._is_closed = False
        with self._transaction() as database:
            database.execute(_LOCK)
            for statement in _SCHEMA:
                database.execute(statement)

    @property
    def features(self) -> Features:
        return frozenset({Feature.DURABLE})

    def put(self, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        ids = {letter.id for letter in letters}
        with self._transaction() as database:
            database.execute(_LOCK)
            rows = database.execute(
                f"SELECT {_NAMES} FROM {TABLE} WHERE id = ANY(%s) ORDER BY place FOR UPDATE", [list(ids)]
            )
            stored = {row[0]: letter_of(row) for row in rows}
            written: dict[str, DeadLetter] = {}
            for letter in map(admitted, letters):
                known = written.get(letter.id) or stored.get(letter.id)
                written[letter.id] = letter if known is None else merged(known, letter)
            with database.cursor() as cursor:
                cursor.executemany(_WRITE, [row_of(letter) for letter in written.values()])

    def browse(self, which: LetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        condition, parameters = _conditions(which)
        with self._transaction() as database:
            place = _place(database, after)
            return _letters(
                database,
                f"SELECT {_NAMES} FROM {TABLE} WHERE place > %(place)s AND {condition} ORDER BY place LIMIT %(limit)s",
                {**parameters, "place": place, "limit": max(0, limit)},
            )

    def count(self, which: LetterFilter) -> int:
        condition, parameters = _conditions(which)
        with self._transaction() as database:
            row = database.execute(f"SELECT count(*) FROM {TABLE} WHERE {condition}", parameters).fetchone()
            assert row is not None
            return int(row[0])

    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        parameters = {"ids": list(ids), "taker": taker, "taken": LetterState.TAKEN.value}
        with self._transaction() as database:
            database.execute(_LOCK_ROWS, parameters)
            database.execute(
                f"UPDATE {TABLE} SET state = %(taken)s, taker = %(taker)s"
                " WHERE id = ANY(%(ids)s) AND state IN (%(waiting)s, %(taken)s)",
                {**parameters, "waiting": LetterState.WAITING.value},
            )
            return _letters(
                database,
                f"SELECT {_NAMES} FROM {TABLE} WHERE id = ANY(%(ids)s) AND state = %(taken)s AND taker = %(taker)s"
                " ORDER BY place",
                parameters,
            )

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        parameters = {
            "ids": list(ids),
            "taker": taker,
            "taken": LetterState.TAKEN.value,
            "state": (LetterState.REDRIVEN if redriven else LetterState.WAITING).value,
            "more": int(redriven),
        }
        with self._transaction() as database:
            database.execute(_LOCK_ROWS, parameters)
            database.execute(
                f"UPDATE {TABLE} SET state = %(state)s, redrives = redrives + %(more)s, taker = ''"
                " WHERE id = ANY(%(ids)s) AND state = %(taken)s AND taker = %(taker)s",
                parameters,
            )

    def discard(self, ids: Collection[str]) -> int:
        parameters = {"ids": list(ids), "discarded": LetterState.DISCARDED.value}
        with self._transaction() as database:
            database.execute(_LOCK_ROWS, parameters)
            return database.execute(
                f"UPDATE {TABLE} SET state = %(discarded)s, taker = ''"
                " WHERE id = ANY(%(ids)s) AND state != %(discarded)s",
                parameters,
            ).rowcount

    def hold(self, holder: str, wait_s: float, clock: Clock) -> PostgresHold:
        """See `holding.Holdable`."""
        return PostgresHold(self._address, self.where, holder)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._hang_up()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Commits when the block is left, rolls back when it is left with an error."""
        with self._lock:
            if self._is_closed:
                raise ConfigError(f"the dead letters in PostgreSQL at {self.where} were closed: open them again")
            try:
                if self._connection is None:
                    self._connection = self._psycopg.connect(self._address, autocommit=True)
                with self._connection.transaction():
                    yield self._connection
            except (self._psycopg.OperationalError, self._psycopg.InterfaceError) as error:
                self._hang_up()
                raise StoreUnavailableError(
                    f"the dead letters in PostgreSQL at {self.where} cannot be reached now: {error}"
                ) from error
            except self._psycopg.Error as error:
                raise ConfigError(f"PostgreSQL at {self.where} refused the dead letters: {error}") from error
            except BaseException:
                if self._connection is not None and self._connection.broken:
                    self._hang_up()
                raise

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _conditions(which: LetterFilter) -> tuple[str, dict[str, Any]]:
    condition, parameters = conditions(which, _AMONG, _CONTAINS)
    return re.sub(r":(\w+)", r"%(\1)s", condition), parameters


def _place(database: psycopg.Connection[tuple[Any, ...]], after: str | None) -> int:
    if after is None:
        return 0
    row = database.execute(f"SELECT place FROM {TABLE} WHERE id = %s", [after]).fetchone()
    if row is None:
        raise ConfigError(f"there is no dead letter {after!r} to go on after: begin without it")
    return int(row[0])


def _letters(
    database: psycopg.Connection[tuple[Any, ...]], query: str, parameters: Mapping[str, Any]
) -> list[DeadLetter]:
    return [letter_of(row) for row in database.execute(query, parameters)]
