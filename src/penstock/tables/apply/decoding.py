"""What a record of change data capture does to its table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.errors import SerdeError
from penstock.tables.cdc.records import Form
from penstock.tables.changes import ADDED_FIELDS, Outcome, is_truncate

_decode: Final = msgspec.json.Decoder().decode

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowChange:
    outcome: Outcome
    key: Row
    """The columns of the primary key."""
    row: Row
    """All columns, of a row that is set."""


def decode_change(topic: str, key: bytes | None, value: bytes | None, form: Form) -> RowChange:
    """Raises SerdeError for a record of another form."""
    if value is None:
        return RowChange(Outcome.DELETE, _object(topic, key, "key"), {}) if key else _NOTHING
    decoded = _object(topic, value, "value")
    if form is Form.DEBEZIUM:
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


_NOTHING: Final = RowChange(Outcome.NOTHING, {}, {})


def _object(topic: str, data: bytes | None, what: str) -> Row:
    try:
        found = _decode(data or b"")
    except msgspec.DecodeError as error:
        raise SerdeError(
            f"topic {topic!r}: a {what} is not JSON ({error}): only topics of captures can be applied"
        ) from error
    if not isinstance(found, dict):
        raise SerdeError(f"topic {topic!r}: a {what} is no JSON object: only topics of captures can be applied")
    return _payload(found) if what == "key" else found


def _payload(found: Row) -> Row:
    """Without the schema that Debezium may put around."""
    inner = found.get("payload")
    return inner if isinstance(inner, dict) and "schema" in found else found
