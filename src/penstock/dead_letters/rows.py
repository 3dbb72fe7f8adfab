"""Dead letters as rows of an SQL table: what SQLite and PostgreSQL have in common."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from penstock.abc import Feature, Features
from penstock.databases import Schema
from penstock.dead_letters.merging import FAILURE, admitted, failure_of, merged, no_such_letter, plain_filter
from penstock.model import DeadLetter, DeadLetterFilter, Headers, LetterState, Record

TABLE: Final = "penstock_dead_letters"

_RECORD_COLUMNS: Final = (
    "id", "consumer_group", "topic", "topic_partition", "pointer", "record_key", "record_value", "headers",
    "timestamp_ms", "state",
)  # fmt: skip
COLUMNS: Final = (*_RECORD_COLUMNS, *FAILURE)
"""In the order of a row's values. The table has two more: `place`, which orders the letters, and `taker`."""
NAMES: Final = ", ".join(COLUMNS)


def schema(place: str, integer: str, blob: str) -> Schema:
    """The table of letters, in the types of a database."""
    table = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    place {place},
    id TEXT NOT NULL UNIQUE,
    consumer_group TEXT NOT NULL,
    topic TEXT NOT NULL,
    topic_partition {integer} NOT NULL,
    pointer TEXT NOT NULL,
    record_key {blob},
    record_value {blob},
    headers TEXT NOT NULL,
    timestamp_ms {integer},
    error TEXT NOT NULL,
    error_kind TEXT NOT NULL,
    traceback TEXT NOT NULL,
    attempts {integer} NOT NULL,
    first_ms {integer} NOT NULL,
    last_ms {integer} NOT NULL,
    handler TEXT NOT NULL,
    handler_version TEXT NOT NULL,
    state TEXT NOT NULL,
    redrives {integer} NOT NULL,
    taker TEXT NOT NULL DEFAULT ''
)"""
    index = f"CREATE INDEX IF NOT EXISTS {TABLE}_by_state ON {TABLE} (state, place)"
    return Schema("dead letters", 1, f"{TABLE}_schema", (table, index))


def row_of(letter: DeadLetter) -> tuple[Any, ...]:
    record = letter.record
    return (
        letter.id,
        letter.group,
        record.topic,
        record.partition,
        record.pointer,
        record.key,
        record.value,
        headers_text(record.headers),
        record.timestamp_ms,
        letter.state.value,
        *failure_of(letter).values(),
    )


def letter_of(row: Sequence[Any]) -> DeadLetter:
    """The letter of a row with exactly COLUMNS."""
    id, group, topic, partition, pointer, key, value, headers, timestamp_ms, state, *failure = row
    record = Record(topic, partition, int(pointer), _bytes(key), _bytes(value), headers_of(headers), timestamp_ms)
    named = dict(zip(FAILURE, failure, strict=True))
    return DeadLetter(id=id, group=group, record=record, state=LetterState(state), **named)


def headers_text(headers: Headers) -> str:
    """Headers as a JSON array of names and base64 contents: exact for all bytes, repeated names, and any text."""
    return json.dumps(
        [(name, None if content is None else base64.b64encode(content).decode()) for name, content in headers]
    )


def headers_of(text: str) -> Headers:
    return tuple((name, None if content is None else base64.b64decode(content)) for name, content in json.loads(text))


class SqlDeadLetters(ABC):
    """`abc.DeadLetters` in a table of an SQL database. A subclass says how its statements differ."""

    features: Features = frozenset({Feature.DURABLE})
    _mark: str
    """How a parameter is written that has no name."""
    _among: str
    """A template for "`{column}` is one of `{parameter}`"."""
    _contains: str
    """A template for "`{column}` contains `{parameter}`"."""
    _state = "state"
    """How the state is compared where letters are chosen by id."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """A cursor in a transaction, which is committed at the end of the block."""

    @abstractmethod
    def _read(self, sql: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]: ...

    @abstractmethod
    def _list(self, values: Collection[str]) -> Any:
        """A list as a parameter."""

    @abstractmethod
    def _lock(self, cursor: Any, parameters: Mapping[str, Any], *, to_put: bool = False) -> None:
        """Keep others from changing these letters until the transaction ends."""

    def _sql(self, sql: str) -> str:
        """A statement whose parameters are written `:name`, as the database has it."""
        return sql

    def put(self, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        parameters = {"ids": self._list({letter.id for letter in letters})}
        marks = ", ".join([self._mark] * len(COLUMNS))
        changes = ", ".join(f"{column} = excluded.{column}" for column in COLUMNS)
        with self._transaction() as cursor:
            self._lock(cursor, parameters, to_put=True)
            cursor.execute(self._sql(f"SELECT {NAMES} FROM {TABLE} WHERE {self._these}"), parameters)
            stored = {letter.id: letter for letter in map(letter_of, cursor.fetchall())}
            for letter in map(admitted, letters):
                stored[letter.id] = merged(stored[letter.id], letter) if letter.id in stored else letter
            cursor.executemany(
                f"INSERT INTO {TABLE} ({NAMES}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {changes}, taker = ''",
                list(map(row_of, stored.values())),
            )

    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        condition, parameters = self._conditions(which)
        rows = self._read(
            f"SELECT {NAMES} FROM {TABLE} WHERE place > :place AND {condition} ORDER BY place LIMIT :limit",
            {**parameters, "place": self._place(after), "limit": max(0, limit)},
        )
        return list(map(letter_of, rows))

    def count(self, which: DeadLetterFilter) -> int:
        condition, parameters = self._conditions(which)
        ((count,),) = self._read(f"SELECT count(*) FROM {TABLE} WHERE {condition}", parameters)
        return int(count)

    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        parameters = {"ids": self._list(ids), "taker": taker, **_STATES}
        taken = f"{self._these} AND {self._state} = :taken AND taker = :taker"
        with self._transaction() as cursor:
            self._change(
                cursor,
                f"state = :taken, taker = :taker WHERE {self._these} AND {self._state} IN (:waiting, :taken)",
                parameters,
            )
            cursor.execute(self._sql(f"SELECT {NAMES} FROM {TABLE} WHERE {taken} ORDER BY place"), parameters)
            return list(map(letter_of, cursor.fetchall()))

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        state = LetterState.REDRIVEN if redriven else LetterState.WAITING
        parameters = {"ids": self._list(ids), "taker": taker, "state": state.value, "more": int(redriven), **_STATES}
        with self._transaction() as cursor:
            self._change(
                cursor,
                "state = :state, redrives = redrives + :more, taker = ''"
                f" WHERE {self._these} AND {self._state} = :taken AND taker = :taker",
                parameters,
            )

    def discard(self, ids: Collection[str]) -> int:
        parameters = {"ids": self._list(ids), **_STATES}
        with self._transaction() as cursor:
            change = f"state = :discarded, taker = '' WHERE {self._these} AND state != :discarded"
            return self._change(cursor, change, parameters)

    def _change(self, cursor: Any, change: str, parameters: Mapping[str, Any]) -> int:
        """Update letters. Returns how many."""
        self._lock(cursor, parameters)
        cursor.execute(self._sql(f"UPDATE {TABLE} SET {change}"), parameters)
        return int(cursor.rowcount)

    @property
    def _these(self) -> str:
        return self._among.format(column="id", parameter=":ids")

    def _place(self, after: str | None) -> int:
        if after is None:
            return 0
        rows = self._read(f"SELECT place FROM {TABLE} WHERE id = :id", {"id": after})
        if not rows:
            raise no_such_letter(after)
        return int(rows[0][0])

    def _conditions(self, which: DeadLetterFilter) -> tuple[str, dict[str, Any]]:
        """The SQL condition of a filter, and its parameters."""
        which = plain_filter(which)
        terms: list[str] = []
        parameters: dict[str, Any] = {}

        def add(term: str, name: str, wanted: Any) -> None:
            if wanted is not None:
                terms.append(term)
                parameters[name] = wanted

        add("consumer_group = :group", "group", which.group)
        add("topic = :topic", "topic", which.topic)
        add("topic_partition = :partition", "partition", which.partition)
        add("error_kind = :error_kind", "error_kind", which.error_kind)
        add(self._contains.format(column="error", parameter=":text"), "text", which.error_contains)
        add("last_ms >= :since_ms", "since_ms", which.since_ms)
        add("last_ms < :until_ms", "until_ms", which.until_ms)
        add(self._these, "ids", self._list(sorted(which.ids)) if which.ids else None)
        states = sorted(state.value for state in which.states)
        add(self._among.format(column="state", parameter=":states"), "states", self._list(states) if states else None)
        return " AND ".join(terms) or "TRUE", parameters


_STATES: Final = {state.name.lower(): state.value for state in LetterState}


def _bytes(content: Any) -> bytes | None:
    return None if content is None else bytes(content)
