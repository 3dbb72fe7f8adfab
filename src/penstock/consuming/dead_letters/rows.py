"""Letters as rows of an SQL table, and filters as conditions. SQLite and PostgreSQL share them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Final

from penstock.consuming.dead_letters.merging import plain_filter
from penstock.model import DeadLetter, Headers, LetterFilter, LetterState, Record

TABLE: Final = "penstock_dead_letters"

COLUMNS: Final = (
    "id",
    "consumer_group",
    "topic",
    "topic_partition",
    "pointer",
    "record_key",
    "record_value",
    "headers",
    "timestamp_ms",
    "error",
    "error_kind",
    "traceback",
    "attempts",
    "first_ms",
    "last_ms",
    "handler",
    "handler_version",
    "state",
    "redrives",
)
"""In the order of the values of a row. The table has two more: `place`, which orders the letters, and `taker`."""


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
        letter.error,
        letter.error_kind,
        letter.traceback,
        letter.attempts,
        letter.first_ms,
        letter.last_ms,
        letter.handler,
        letter.handler_version,
        letter.state.value,
        letter.redrives,
    )


def letter_of(row: Sequence[Any]) -> DeadLetter:
    """The letter of a row with exactly COLUMNS."""
    record = Record(
        topic=row[2],
        partition=row[3],
        offset=int(row[4]),
        key=_bytes(row[5]),
        value=_bytes(row[6]),
        headers=headers_of(row[7]),
        timestamp_ms=row[8],
    )
    return DeadLetter(
        id=row[0],
        group=row[1],
        record=record,
        error=row[9],
        error_kind=row[10],
        traceback=row[11],
        attempts=row[12],
        first_ms=row[13],
        last_ms=row[14],
        handler=row[15],
        handler_version=row[16],
        state=LetterState(row[17]),
        redrives=row[18],
    )


def headers_text(headers: Headers) -> str:
    """A JSON array of names and contents in base64: exact for all bytes, repeated names, and names of any text."""
    return json.dumps(
        [(name, None if content is None else base64.b64encode(content).decode()) for name, content in headers]
    )


def headers_of(text: str) -> Headers:
    return tuple((name, None if content is None else base64.b64decode(content)) for name, content in json.loads(text))


def conditions(which: LetterFilter, among: str, contains: str) -> tuple[str, dict[str, Any]]:
    """The condition that holds for the letters that match, and its parameters, written `:name`.

    `among` and `contains` are how the database says that `{column}` is one of, or has in it, `{parameter}`.
    """
    which = plain_filter(which)
    terms: list[str] = []
    parameters: dict[str, Any] = {}
    equal = {
        "consumer_group": which.group,
        "topic": which.topic,
        "topic_partition": which.partition,
        "error_kind": which.error_kind,
    }
    for column, wanted in equal.items():
        if wanted is not None:
            terms.append(f"{column} = :{column}")
            parameters[column] = wanted
    if which.error_contains is not None:
        terms.append(contains.format(column="error", parameter=":error_contains"))
        parameters["error_contains"] = which.error_contains
    if which.since_ms is not None:
        terms.append("last_ms >= :since_ms")
        parameters["since_ms"] = which.since_ms
    if which.until_ms is not None:
        terms.append("last_ms < :until_ms")
        parameters["until_ms"] = which.until_ms
    if which.ids:
        terms.append(among.format(column="id", parameter=":ids"))
        parameters["ids"] = sorted(which.ids)
    if which.states:
        terms.append(among.format(column="state", parameter=":states"))
        parameters["states"] = sorted(state.value for state in which.states)
    return " AND ".join(terms) or "TRUE", parameters


def _bytes(content: Any) -> bytes | None:
    return None if content is None else bytes(content)
