"""How records become Kinesis records, which have a partition key of text, and data, and nothing else.

- A key of printable text is the partition key. Another key is `~b64~` and its base64; one too long for that is `~md5~`
  and its digest, and itself in an envelope. No key is `~none~` and a random number.
- A value is the data, as it is. A record with headers, without a value, or with a long key has an envelope around it:
  a mark that UTF-8 text cannot begin with, and MessagePack of key, headers and value.
- The timestamp is the time of arrival that Kinesis notes; one set by the producer is not kept.

Records of other programs have their partition key as key, and their data as value.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import random
from typing import Any, Final

import msgspec

from penstock.model import Headers, NewRecord

ENVELOPE: Final = b"\xf5penstock\x01"
ESCAPE: Final = "~"
NO_KEY: Final = "~none~"
BASE64_KEY: Final = "~b64~"
HASHED_KEY: Final = "~md5~"
LONGEST_PARTITION_KEY: Final = 256

Envelope = tuple[bytes | None, list[tuple[str, bytes | None]], bytes | None]
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Envelope)


def partition_key(key: bytes | None) -> str:
    if key is None:
        return f"{NO_KEY}{random.getrandbits(64):x}"
    text = _plain(key)
    if text is None:
        text = BASE64_KEY + base64.b64encode(key).decode()
        if len(text) > LONGEST_PARTITION_KEY:
            text = HASHED_KEY + hashlib.md5(key, usedforsecurity=False).hexdigest()
    return text


def encode(record: NewRecord) -> tuple[str, bytes]:
    """The partition key and the data."""
    name, value = partition_key(record.key), record.value
    is_hashed = name.startswith(HASHED_KEY)
    if value is not None and not record.headers and not is_hashed and not value.startswith(ENVELOPE):
        return name, value
    key = record.key if is_hashed else None
    return name, ENVELOPE + _encoder.encode((key, record.headers, value))


def decode(name: str, data: bytes) -> tuple[bytes | None, bytes | None, Headers]:
    """The key, the value and the headers. What only looks like ours is taken as it is."""
    headers: Headers = ()
    value: bytes | None = data
    long_key: bytes | None = None
    if data.startswith(ENVELOPE):
        try:
            long_key, pairs, value = _decoder.decode(data[len(ENVELOPE) :])
            headers = tuple(pairs)
        except msgspec.MsgspecError:
            value = data
    if not name.startswith(ESCAPE):
        return name.encode(), value, headers
    return _escaped_key(name, long_key), value, headers


def _escaped_key(name: str, long_key: bytes | None) -> bytes | None:
    if name.startswith(NO_KEY):
        return None
    if name.startswith(HASHED_KEY) and long_key is not None:
        return long_key
    if name.startswith(BASE64_KEY):
        try:
            return base64.b64decode(name[len(BASE64_KEY) :], validate=True)
        except binascii.Error:
            pass  # somebody else's partition key
    return name.encode()


def _plain(key: bytes) -> str | None:
    """The key as a partition key, if it can be one as it is."""
    if not 1 <= len(key) <= LONGEST_PARTITION_KEY:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and not text.startswith(ESCAPE) else None


def arrival_ms(fields: dict[str, Any]) -> int | None:
    """The time at which a record arrived, in milliseconds."""
    arrived = fields.get("ApproximateArrivalTimestamp")
    return None if arrived is None else round(arrived.timestamp() * 1000)
