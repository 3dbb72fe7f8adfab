"""What a record of change data capture does to its table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.errors import SerdeError
from penstock.serde import Topic
from penstock.tables.changes import ADDED_FIELDS, ChangeDecoder, ChangeFormat, Outcome, is_truncate, plain_value

_decode: Final = msgspec.json.Decoder().decode

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowChange:
    outcome: Outcome
    key: Row
    """The columns of the primary key."""
    row: Row
    """All columns, of a row that is set."""


def decode_change(topic: str, key: bytes | None, value: bytes | None, form: ChangeFormat) -> RowChange:
    """Raises SerdeError for a record of another form."""
    if value is None:
        return RowChange(Outcome.DELETE, _object(topic, key, "key"), {}) if key else _NOTHING
    decoded = _object(topic, value, "value")
    if form is ChangeFormat.DEBEZIUM:
        decoded = _payload(decoded)
        op, row = decoded.get("op"), decoded.get("after")
        if op is None:
            raise SerdeError(
                f"topic {topic!r}: a value has no `op`, so it is not Debezium's envelope: if the capture wrote the "
                "rows themselves, pass --format flat"
            )
    else:
        if {"op", "after", "source"} <= decoded.keys():
            raise SerdeError(f"topic {topic!r}: a value is Debezium's envelope: pass --format debezium")
        op = decoded.get("__op")
        row = {name: each for name, each in decoded.items() if name not in ADDED_FIELDS}
    if is_truncate(key, value):
        return RowChange(Outcome.TRUNCATE, {}, {})
    if key is None:
        return _NOTHING
    if op == "d":
        return RowChange(Outcome.DELETE, _object(topic, key, "key"), {})
    if not isinstance(row, dict) or not row:
        return _NOTHING
    return RowChange(Outcome.SET, _object(topic, key, "key"), row)


class PlainRows:
    """Decodes a topic whose values are the rows, and whose key is one column of them."""

    def __init__(self, topic: Topic[Any], column: str) -> None:
        self._topic = topic
        self._column = column
        self._decoder = ChangeDecoder(topic, ChangeFormat.PLAIN)

    def change(self, key: bytes | None, value: bytes | None) -> RowChange:
        """Raises SerdeError for a record that is no row, because skipping it would lose data."""
        if key is None:
            raise SerdeError(
                f"topic {self._topic.name!r}: a record has no key, so it is no row of a table: send the records with "
                "keys to another topic, and apply that one"
            )
        outcome, data = self._decoder.outcome(key, value)
        if outcome is Outcome.TRUNCATE:
            return RowChange(outcome, {}, {})
        found = self._key(key)
        if data is None:
            return RowChange(outcome, {self._column: found}, {})
        return RowChange(outcome, {self._column: found}, self._row(data, found))

    def _key(self, data: bytes) -> str | int:
        key = self._decoder.key(data)
        plain = key if type(key) is bytes else msgspec.to_builtins(key, enc_hook=plain_value)
        if isinstance(plain, bool) or not isinstance(plain, str | int):
            raise SerdeError(
                f"topic {self._topic.name!r}: {str(key)[:100]!r} cannot be the value of one column: keys must be text "
                "in UTF-8 or, in a topic with a key_serde, text or whole numbers"
            )
        return plain

    def _row(self, data: bytes, key: str | int) -> Row:
        topic = self._topic.name
        row = self._decoder.row(data)
        if self._decoder.is_bytes:
            try:
                row = _decode(data)
            except msgspec.DecodeError as error:
                raise SerdeError(
                    f"topic {topic!r}: the value of {key!r} is not JSON ({error}): give Applier the topic with its "
                    "type or serde"
                ) from error
        else:
            row = msgspec.to_builtins(row, str_keys=True, enc_hook=plain_value)
        if not isinstance(row, dict):
            raise SerdeError(f"topic {topic!r}: the value of {key!r} is no JSON object, so it has no columns")
        if {"op", "after", "source"} <= row.keys() or {"__op", "__ts_ms"} <= row.keys():
            raise SerdeError(f"topic {topic!r}: a capture wrote the value of {key!r}: pass --format debezium or flat")
        own = row.get(self._column)
        if own is not None and _text(own) != _text(key):
            raise SerdeError(
                f"topic {topic!r}: the row of the key {key!r} has {str(own)[:100]!r} in {self._column!r}: pass as "
                "--key the column that has the key, or a name that no column has, and the key becomes one"
            )
        return row


_NOTHING: Final = RowChange(Outcome.NOTHING, {}, {})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _object(topic: str, data: bytes | None, what: str) -> Row:
    try:
        found = _decode(data or b"")
    except msgspec.DecodeError as error:
        raise SerdeError(
            f"topic {topic!r}: a {what} is not JSON ({error}): if no capture wrote the topic, pass --format plain"
        ) from error
    if not isinstance(found, dict):
        raise SerdeError(
            f"topic {topic!r}: a {what} is no JSON object: if no capture wrote the topic, pass --format plain"
        )
    return _payload(found) if what == "key" else found


def _payload(found: Row) -> Row:
    """Without the schema that Debezium may put around."""
    inner = found.get("payload")
    return inner if isinstance(inner, dict) and "schema" in found else found
