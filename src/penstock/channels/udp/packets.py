"""The packets: a header with a checksum, then records, a part of a record, or what a receiver asks for.

Numbers are big-endian. With a secret, a packet ends with an HMAC of all before it.

    0  magic "PSTK"           16  number of the packet, from 0        48  payload
    4  version                24  number of its first record, from 0
    5  kind and flags         32  sent at, milliseconds since 1970
    6  how many records       40  age of the session, milliseconds
    8  session                44  CRC-32 of the rest, without the HMAC

A session is a random number that a sender chooses when it starts. Records are numbered besides packets, so that a
receiver knows how many records were in packets that it never saw.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.model import Headers, NewRecord

VERSION: Final = 1
DATA: Final = 1
"""Records, as one MessagePack array."""
FRAGMENT: Final = 2
"""A part of the MessagePack array of a single record. BEGIN is set on the first part; the last one counts the record.
All have the number of that record."""
HEARTBEAT: Final = 3
"""Has the numbers of the packet and the record to come next."""
REQUEST: Final = 4
"""From a receiver to a sender, with the sender's session: a cookie, then ranges of packets."""
CHALLENGE: Final = 5
"""From a sender to a receiver whose request had no valid cookie: the cookie of its address."""
GONE: Final = 6
"""From a sender to a receiver: packets before this one, the number of which it has, are no longer held."""

BEGIN: Final = 0x40
SIGNED: Final = 0x80
_KIND: Final = 0x0F
_MAGIC: Final = b"PSTK"
_HEADER: Final = struct.Struct(">4sBBHQQQQII")
_BEFORE_CHECKSUM: Final = _HEADER.size - 4
_CHECKSUM: Final = struct.Struct(">I")
_TAG_BYTES: Final = 16
COOKIE_BYTES: Final = 16
NO_COOKIE: Final = bytes(COOKIE_BYTES)
_RANGE: Final = struct.Struct(">QI")
MOST_RANGES: Final = 64
_OLDEST_AGE_MS: Final = 0xFFFFFFFF
MOST_RECORDS: Final = 0xFFFF
"""In one packet."""
_RECORD_OVERHEAD_BYTES: Final = 1 + 5 + 5 + 9 + 5
"""The largest that MessagePack needs for a record beside its value, key and headers."""
_HEADER_OVERHEAD_BYTES: Final = 1 + 5 + 5
ARRAY_OVERHEAD_BYTES: Final = 5

RecordFields = tuple[bytes | None, bytes | None, int | None, Headers]
"""Value, key, timestamp (None: when the packet was sent) and headers."""
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[RecordFields])


class Packet(NamedTuple):
    kind: int
    begins: bool
    """Whether a fragment is the first of its record."""
    records: int
    """How many; of a fragment, 1 if it is the last."""
    session: int
    number: int
    record: int
    """The number of the first record."""
    sent_ms: int
    age_ms: int
    payload: bytes


class ForeignPacketError(Exception):
    """The datagram is not a packet of this protocol, is damaged, or was not made with the same secret."""


class PacketCodec:
    """Encodes and decodes packets."""

    def __init__(self, secrets: Sequence[bytes] = ()) -> None:
        """Packets are signed with the first secret, and accepted with any of them."""
        self._secrets = tuple(secrets)
        self._flag = SIGNED if secrets else 0
        self.overhead_bytes = _HEADER.size + (_TAG_BYTES if secrets else 0)

    def encode(
        self,
        kind: int,
        session: int,
        number: int,
        record: int,
        *,
        count: int = 0,
        begins: bool = False,
        sent_ms: int = 0,
        age_ms: int = 0,
        payload: bytes = b"",
    ) -> bytes:
        kind |= self._flag | (BEGIN if begins else 0)
        age_ms = min(age_ms, _OLDEST_AGE_MS)
        head = _HEADER.pack(_MAGIC, VERSION, kind, count, session, number, record, sent_ms, age_ms, 0)
        head = head[:_BEFORE_CHECKSUM]
        packet = b"".join((head, _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head))), payload))
        return packet + _tag(self._secrets[0], packet) if self._secrets else packet

    def decode(self, data: bytes) -> Packet:
        """The packet in a datagram. ForeignPacketError for a datagram that is not of this protocol, version or
        secret."""
        if len(data) < self.overhead_bytes or not data.startswith(_MAGIC):
            raise ForeignPacketError("it is not a packet of this protocol")
        _, version, kind, count, session, number, record, sent_ms, age_ms, checksum = _HEADER.unpack_from(data)
        if version != VERSION:
            raise ForeignPacketError(f"it has version {version} of the protocol, and this is version {VERSION}")
        if kind & SIGNED != self._flag:
            raise ForeignPacketError(
                "it has no signature, and this channel has a secret"
                if self._flag
                else "it is signed, and this channel has no secret"
            )
        payload = data[_HEADER.size :]
        if self._secrets:
            signed, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
            if not any(hmac.compare_digest(_tag(secret, signed), tag) for secret in self._secrets):
                raise ForeignPacketError("its signature is wrong: it was made with another secret")
            payload = payload[:-_TAG_BYTES]
        if zlib.crc32(payload, zlib.crc32(data[:_BEFORE_CHECKSUM])) != checksum:
            raise ForeignPacketError("its checksum is wrong")
        return Packet(kind & _KIND, bool(kind & BEGIN), count, session, number, record, sent_ms, age_ms, payload)


def _tag(secret: bytes, data: bytes) -> bytes:
    return hmac.digest(secret, data, "sha256")[:_TAG_BYTES]


def encode_records(records: Sequence[NewRecord]) -> bytes:
    return _encoder.encode([(each.value, each.key, each.timestamp_ms, each.headers) for each in records])


def decode_records(payload: bytes) -> list[RecordFields]:
    """The records in the payload of a packet. ForeignPacketError if it has none."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise ForeignPacketError(f"its records cannot be decoded: {error}") from error


def largest_size(record: NewRecord) -> int:
    """The most bytes of a payload that a record takes."""
    size = _RECORD_OVERHEAD_BYTES
    if record.value is not None:
        size += len(record.value)
    if record.key is not None:
        size += len(record.key)
    for name, content in record.headers:
        size += _HEADER_OVERHEAD_BYTES + len(name.encode()) + len(content or b"")
    return size


def encode_request(cookie: bytes, ranges: Sequence[tuple[int, int]]) -> bytes:
    """The payload of a request. `ranges` are pairs of a first packet and a number of packets."""
    return cookie + b"".join(_RANGE.pack(first, count) for first, count in ranges[:MOST_RANGES])


def decode_request(payload: bytes) -> tuple[bytes, Iterator[Any]]:
    """The cookie and the ranges of a request. ForeignPacketError for anything else."""
    body = payload[COOKIE_BYTES:]
    if not body or len(body) % _RANGE.size or len(body) > MOST_RANGES * _RANGE.size:
        raise ForeignPacketError("its request cannot be decoded")
    return payload[:COOKIE_BYTES], _RANGE.iter_unpack(body)


def cookie_of(address: Sequence[Any], key: bytes) -> bytes:
    """The cookie that a receiver at this address must send. Only one that gets packets at the address can know it."""
    return hashlib.blake2b(repr(tuple(address)).encode(), key=key, digest_size=COOKIE_BYTES).digest()
