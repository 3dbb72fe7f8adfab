"""Records as HTTP requests, and requests as records.

The body is the value. A record that is sent has its headers as headers of the request, as far as HTTP allows their
names and values. What HTTP has no place for stands in headers of ours, percent-encoded: the key in `penstock-key`, the
number of headers in `penstock-headers` and each of them, exactly, in `penstock-header: NAME=VALUE` (a null has no `=`),
the timestamp in `penstock-timestamp`, a null value in `penstock-null`. A channel that listens reads these back.
"""

from __future__ import annotations

import fnmatch
import re
import urllib.parse
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import msgspec

from penstock.channels.http.settings import HttpSettings
from penstock.channels.http.signatures import GITHUB_SIGNATURE, STANDARD_SIGNATURE, STRIPE_SIGNATURE
from penstock.errors import RecordTooLargeError
from penstock.model import Headers, NewRecord, Record
from penstock.model.record import ID_HEADERS, RECORD_ID, own_id

KEY: Final = "penstock-key"
HEADER: Final = "penstock-header"
HEADER_COUNT: Final = "penstock-headers"
TIMESTAMP: Final = "penstock-timestamp"
NULL: Final = "penstock-null"
_NEVER_STORED: Final = frozenset(
    {
        "authorization", "proxy-authorization", "cookie", "set-cookie", "x-gitlab-token", "x-hub-signature",
        GITHUB_SIGNATURE, STRIPE_SIGNATURE, STANDARD_SIGNATURE, KEY, HEADER, HEADER_COUNT,
        TIMESTAMP, NULL,
    }
)  # fmt: skip
"""Credentials, and what becomes something else of a record than a header."""
_NEVER_SENT: Final = _NEVER_STORED | {
    "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "keep-alive", "te",
    "trailer", "upgrade", "expect", "proxy-authenticate", "proxy-connection", "user-agent", "accept", "accept-encoding",
    "idempotency-key", "webhook-id", "webhook-timestamp", RECORD_ID,
}  # fmt: skip
"""Headers that the client sets itself, or that would change what the request means."""
_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,200}")
_VALUE: Final = re.compile(rb"[!-~]([ -~]*[!-~])?")
_LONGEST_HEADER_BYTES: Final = 8_000
_MOST_HEADERS: Final = 50
_SAFE: Final = "!$'()*,;:@/?"


class RequestHeaders(Protocol):
    """The headers of a request. Names are found in any case."""

    def get(self, key: str, default: str) -> str: ...

    def getall(self, key: str, default: list[str]) -> list[str]: ...

    def items(self) -> Iterable[tuple[str, str]]: ...


def request_headers(record: NewRecord, message_id: str, content_type: str) -> list[tuple[str, str]]:
    """The headers of the request for a record. Raises RecordTooLargeError."""
    found = [("idempotency-key", message_id), ("webhook-id", message_id)]
    found.append((HEADER_COUNT, str(len(record.headers))))
    own_type = ""
    if len(record.headers) > _MOST_HEADERS:
        raise RecordTooLargeError(
            f"a record has {len(record.headers)} headers, and a request carries at most {_MOST_HEADERS}: send fewer"
        )
    for name, value in record.headers:
        if name.lower() == "content-type" and value and _VALUE.fullmatch(value):
            own_type = value.decode()
        elif name not in _NEVER_SENT and _NAME.fullmatch(name) and value and _VALUE.fullmatch(value):
            found.append((name, value.decode()))
        exact = urllib.parse.quote(name, safe=_SAFE)
        found.append((HEADER, exact if value is None else f"{exact}={urllib.parse.quote(value, safe=_SAFE)}"))
    found.append(("content-type", own_type or content_type))
    if record.key is not None:
        found.append((KEY, urllib.parse.quote(record.key, safe=_SAFE)))
    if record.timestamp_ms is not None:
        found.append((TIMESTAMP, str(record.timestamp_ms)))
    if record.value is None:
        found.append((NULL, "true"))
    for name, text in found:
        if len(name) + len(text) > _LONGEST_HEADER_BYTES:
            raise RecordTooLargeError(
                f"a record's key or header takes {len(text):,} bytes in a request, and at most "
                f"{_LONGEST_HEADER_BYTES:,} are allowed: send a shorter one ({name})"
            )
    return found


def message_id(record: NewRecord) -> str:
    """The id that the record's own headers have, or a new one."""
    return own_id(record.headers) or new_id()


def new_id() -> str:
    return uuid.uuid4().hex


class RecordReader:
    """Takes the parts of records from requests, as the settings say."""

    def __init__(self, settings: HttpSettings) -> None:
        names = [name.strip().lower() for name in settings.headers.split(",") if name.strip()]
        self._is_selected = re.compile("|".join(map(fnmatch.translate, names)) or r"(?!)").match
        self._key = None if settings.key is None else extractor(settings.key)
        self._id = None if settings.idempotency_key is None else extractor(settings.idempotency_key)
        kind, _, name = (settings.idempotency_key or "").partition(":")
        self._id_headers = {*ID_HEADERS, name.strip().lower()} if kind == "header" else set(ID_HEADERS)

    def headers(self, given: RequestHeaders) -> Headers:
        """The headers of the record: exactly those of a record that Penstock sent, else those that are selected."""
        if given.getall(HEADER_COUNT, []):
            return tuple(_header(text) for text in given.getall(HEADER, []))
        found = ((name.lower(), value) for name, value in given.items())
        return tuple(
            (name, _bytes(value))
            for name, value in found
            if (name in self._id_headers or self._is_selected(name)) and name not in _NEVER_STORED
        )

    def key(self, given: RequestHeaders, body: bytes) -> bytes | None:
        if self._key is None:
            texts = given.getall(KEY, [])
            return urllib.parse.unquote_to_bytes(texts[0]) if texts else None
        return self._key(lambda name: _bytes(given.get(name, "")), body)

    def request_id(self, given: RequestHeaders, body: bytes) -> bytes | None:
        """The idempotency key of a request: the same in every request that brings the same record. None without a
        key."""
        if self._id is not None:
            return self._id(lambda name: _bytes(given.get(name, "")), body)
        found = next(filter(None, (given.get(name, "") for name in ID_HEADERS)), "")
        return _bytes(found) or None

    def record_id(self, record: Record) -> bytes | None:
        """The idempotency key of a record that was stored."""
        if self._id is not None:
            given = {name.lower(): value or b"" for name, value in record.headers}
            return self._id(lambda name: given.get(name, b""), record.value or b"")
        return own_id(record.headers).encode() or None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def timestamp_ms(given: RequestHeaders, now_ms: int) -> int:
    text = given.get(TIMESTAMP, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else now_ms


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    return urllib.parse.unquote(name), urllib.parse.unquote_to_bytes(value) if equals else None


Extractor = Callable[[Callable[[str], bytes], bytes], bytes | None]


def extractor(text: str) -> Extractor:
    """The function that finds what `header:NAME` or `json:/POINTER` names, given the headers by name and the body."""
    kind, _, what = text.partition(":")
    if kind == "header":
        name = what.strip().lower()
        return lambda header, body: header(name) or None
    steps = [step.replace("~1", "/").replace("~0", "~") for step in what.split("/")[1:]]
    return lambda header, body: _at(steps, body)


def _at(steps: list[str], body: bytes) -> bytes | None:
    """The value at a JSON pointer (RFC 6901): text as it is, anything else as JSON. None if there is none."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    for step in steps:
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.isascii() and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else msgspec.json.encode(found)
