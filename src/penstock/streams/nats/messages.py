"""Records as messages of NATS, and messages as records.

The payload is the value. The key is the header `Penstock-Key`, or `Penstock-Key-B64` in base64 if it is not printable
ASCII; a null value is an empty payload with `Penstock-Null`. Headers of NATS are text, and a name may not occur twice
in nats-py; so headers of a record are headers of the message if all of them fit, and otherwise all of them together are
`Penstock-Headers`, in JSON with base64. The timestamp of a record is when the server stored it, so that positions at a
time are exact; a producer's own comes back as the header `penstock-timestamp`.

Messages of other programs: the payload is the value, and headers are headers. If a message has another subject than its
partition, as in streams with wildcards, it is the header `nats-subject`.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

from penstock.model import Headers, NewRecord, Record

KEY: Final = "Penstock-Key"
KEY_BASE64: Final = "Penstock-Key-B64"
NULL: Final = "Penstock-Null"
HEADERS: Final = "Penstock-Headers"
MESSAGE_ID: Final = "Nats-Msg-Id"
TIMESTAMP_HEADER: Final = "penstock-timestamp"
SUBJECT_HEADER: Final = "nats-subject"
_ID_PREFIX: Final = "penstock-"
_OURS: Final = frozenset({KEY, KEY_BASE64, NULL, HEADERS})
_TEXT: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
_NAME: Final = re.compile(r"(?!nats-|penstock-)[A-Za-z0-9_-]{1,200}", re.IGNORECASE)
_NS_PER_MS: Final = 1_000_000


def message_id(producer: str, number: int) -> str:
    """The id by which the server recognises a message that is sent again."""
    return f"{_ID_PREFIX}{producer}-{number}"


def headers_of(record: NewRecord, id: str) -> dict[str, str]:
    """The headers of the message of a record."""
    headers = {MESSAGE_ID: id}
    if record.value is None:
        headers[NULL] = "1"
    if record.key is not None:
        if _TEXT.fullmatch(record.key):
            headers[KEY] = record.key.decode()
        else:
            headers[KEY_BASE64] = base64.b64encode(record.key).decode() or "="
    given = record.headers
    if record.timestamp_ms is not None and all(name != TIMESTAMP_HEADER for name, _ in given):
        given = (*given, (TIMESTAMP_HEADER, b"%d" % record.timestamp_ms))
    if given:
        if _fit(given):
            headers.update((name, (content or b"").decode()) for name, content in given)
        else:
            encoded = [
                [name, None if content is None else base64.b64encode(content).decode()] for name, content in given
            ]
            headers[HEADERS] = json.dumps(encoded)
    return headers


def record_of(topic: str, partition: int, subject: str, message: Any, sequence: int, time_ns: int) -> Record:
    """The record of a message; `subject` is that of the partition."""
    headers = message.headers
    stamp_ms = time_ns // _NS_PER_MS
    if not headers and message.subject == subject:
        return Record(topic, partition, sequence, None, message.data, (), stamp_ms)
    headers = headers or {}
    key: bytes | None = None
    if KEY in headers:
        key = headers[KEY].encode()
    elif KEY_BASE64 in headers:
        key = base64.b64decode(headers[KEY_BASE64].rstrip("=") + "==")
    value = None if NULL in headers else message.data
    found = [
        (name, content.encode())
        for name, content in headers.items()
        if name not in _OURS and not (name == MESSAGE_ID and content.startswith(_ID_PREFIX))
    ]
    restored: list[tuple[str, bytes | None]] = []
    if HEADERS in headers:
        for name, content in json.loads(headers[HEADERS]):
            restored.append((name, None if content is None else base64.b64decode(content)))
    if message.subject != subject:
        found.append((SUBJECT_HEADER, message.subject.encode()))
    return Record(topic, partition, sequence, key, value, (*restored, *found), stamp_ms)


def place_of(reply: str) -> tuple[int, int]:
    """Sequence number and time, in ns, of a message from a consumer, by its reply subject:

    `$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.N.TIME.PENDING`, or with `DOMAIN.ACCOUNT` after `ACK`.
    """
    tokens = reply.split(".")
    first = 5 if len(tokens) < 11 else 7
    return int(tokens[first]), int(tokens[first + 2])


def _fit(headers: Headers) -> bool:
    names = {name.lower() for name, _ in headers}
    own = all(_NAME.fullmatch(name) or name == TIMESTAMP_HEADER for name, _ in headers)
    return own and len(names) == len(headers) and all(content and _TEXT.fullmatch(content) for _, content in headers)
