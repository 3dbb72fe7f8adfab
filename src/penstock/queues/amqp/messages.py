"""Records as messages of AMQP 0-9-1."""

from __future__ import annotations

import json
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.model import NewRecord, Record
from penstock.queues.text_headers import offset_of

KEY: Final = "penstock-key"
TIMESTAMP: Final = "penstock-timestamp"
NULL: Final = "penstock-null"
_OURS: Final = (KEY, TIMESTAMP, NULL)
_COUNT: Final = "x-delivery-count"
"""Set by quorum queues: how often the message came back."""
_ADDED_BY_BROKER: Final = ("x-delivery-count", "x-acquired-count", "x-death", "x-first-death-", "x-last-death-")
_LONGEST_HEADER_NAME_BYTES: Final = 255


def encoded_headers(record: NewRecord) -> dict[str, Any] | None:
    headers: dict[str, Any] = {}
    for name, value in record.headers:
        if len(name.encode()) > _LONGEST_HEADER_NAME_BYTES:
            raise ConfigError(
                f"the header name {name[:40]!r}... is longer than AMQP's {_LONGEST_HEADER_NAME_BYTES} bytes"
            )
        if name in headers:
            before = headers[name]
            headers[name] = [*before, value] if isinstance(before, list) else [before, value]
        else:
            headers[name] = value
    if record.key is not None:
        headers[KEY] = record.key
    if record.value is None:
        headers[NULL] = True
    if record.timestamp_ms is not None:
        headers[TIMESTAMP] = record.timestamp_ms
    return headers or None


def decoded(queue: str, method: Any, properties: Any, body: bytes) -> tuple[Record, int]:
    """The record, and which delivery of it this is."""
    given: dict[str, Any] = properties.headers or {}
    key = given.get(KEY)
    stamp_ms = given.get(TIMESTAMP)
    if stamp_ms is None and properties.timestamp is not None:
        stamp_ms = properties.timestamp * 1000
    record = Record(
        queue,
        0,
        _offset(properties, body),
        None if key is None else _header_bytes(key),
        None if given.get(NULL) else body,
        tuple(
            (name, _header_bytes(value))
            for name, values in given.items()
            if name not in _OURS and not name.startswith(_ADDED_BY_BROKER)
            for value in (values if isinstance(values, list) else [values])
        ),
        stamp_ms,
    )
    returned = given.get(_COUNT, 0)
    return record, 1 + (returned or int(method.redelivered))


def _offset(properties: Any, body: bytes) -> int:
    """A number that is the same at each delivery. Equal messages of a program that sets no message id share one."""
    identity = (properties.message_id or "").encode() or repr(
        (properties.timestamp, properties.headers)
    ).encode() + body
    return offset_of(identity)


def _header_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, default=str).encode()
