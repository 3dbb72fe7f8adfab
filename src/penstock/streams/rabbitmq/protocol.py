"""Frames of RabbitMQ's stream protocol: what is sent, and what comes back.

A frame is its length in 4 bytes, then the key of its command and its version in 2 bytes each. Numbers are big-endian;
texts begin with their length in 2 bytes, byte strings and arrays in 4. Answers begin with the correlation id of their
request in 4 bytes and a response code in 2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import cramjam

from penstock.errors import BrokerUnavailableError, StreamError

ANSWER: Final = 0x8000
"""The bit that is set in the key of an answer."""
VERSION: Final = 1


class Command(IntEnum):
    """Keys of commands."""

    DECLARE_PUBLISHER = 1
    PUBLISH = 2
    PUBLISH_CONFIRM = 3
    PUBLISH_ERROR = 4
    DELETE_PUBLISHER = 6
    SUBSCRIBE = 7
    DELIVER = 8
    CREDIT = 9
    UNSUBSCRIBE = 12
    CREATE = 13
    DELETE = 14
    METADATA = 15
    METADATA_UPDATE = 16
    PEER_PROPERTIES = 17
    SASL_HANDSHAKE = 18
    SASL_AUTHENTICATE = 19
    TUNE = 20
    OPEN = 21
    CLOSE = 22
    HEARTBEAT = 23
    PARTITIONS = 25
    STREAM_STATS = 28
    CREATE_SUPER_STREAM = 29
    DELETE_SUPER_STREAM = 30


class Code(IntEnum):
    """Response codes that mean something to us."""

    OK = 1
    STREAM_DOES_NOT_EXIST = 2
    STREAM_ALREADY_EXISTS = 5
    STREAM_NOT_AVAILABLE = 6
    AUTHENTICATION_FAILURE = 8
    AUTHENTICATION_FAILURE_LOOPBACK = 11
    VIRTUAL_HOST_ACCESS_FAILURE = 12
    FRAME_TOO_LARGE = 14
    INTERNAL_ERROR = 15
    ACCESS_REFUSED = 16
    PRECONDITION_FAILED = 17
    PUBLISHER_DOES_NOT_EXIST = 18


_MEANINGS: Final = {
    2: "the stream does not exist",
    3: "the subscription exists already",
    4: "the subscription does not exist",
    5: "the stream exists already",
    6: "the stream is not available",
    7: "the login mechanism is not supported",
    8: "wrong user or password",
    9: "the login failed",
    11: "this user may log in from the machine of the server only",
    12: "no access to the virtual host",
    13: "the command is not known",
    14: "the frame is too large",
    15: "an internal error of the server",
    16: "access refused",
    17: "precondition failed",
    18: "the publisher does not exist",
}


class RequestRefusedError(StreamError):
    """RabbitMQ refused a request."""

    def __init__(self, where: str, what: str, code: int) -> None:
        super().__init__(f"{where} refused {what}: {meaning(code)}")
        self.code = code


class FrameError(BrokerUnavailableError):
    """Bytes that are not of the stream protocol, or damaged."""


def meaning(code: int) -> str:
    return _MEANINGS.get(code, f"response code {code}")


class OffsetKind(IntEnum):
    """Where a subscription starts."""

    FIRST = 1
    LAST = 2
    """With the last chunk."""
    NEXT = 3
    OFFSET = 4
    TIMESTAMP = 5


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Where a subscription starts: `value` is an offset or a time in ms, if the kind needs one."""

    kind: OffsetKind
    value: int = 0

    def encoded(self) -> bytes:
        if self.kind is OffsetKind.OFFSET:
            return struct.pack(">HQ", self.kind, self.value)
        if self.kind is OffsetKind.TIMESTAMP:
            return struct.pack(">Hq", self.kind, self.value)
        return struct.pack(">H", self.kind)


def frame(command: Command, *parts: bytes) -> bytes:
    payload = b"".join(parts)
    return struct.pack(">IHH", len(payload) + 4, command, VERSION) + payload


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def texts(values: Sequence[str]) -> bytes:
    return struct.pack(">I", len(values)) + b"".join(map(text, values))


def properties(values: Mapping[str, str]) -> bytes:
    return struct.pack(">I", len(values)) + b"".join(text(name) + text(value) for name, value in values.items())


def publish_frame(publisher: int, messages: Sequence[tuple[int, bytes]]) -> bytes:
    """A frame with messages and their publishing ids."""
    pack = _MESSAGE_HEAD.pack
    body = b"".join([part for id, data in messages for part in (pack(id, len(data)), data)])
    head = struct.pack(">IHHBI", len(body) + 9, Command.PUBLISH, VERSION, publisher, len(messages))
    return head + body


_MESSAGE_HEAD: Final = struct.Struct(">QI")
MESSAGE_OVERHEAD: Final = _MESSAGE_HEAD.size
PUBLISH_OVERHEAD: Final = 13
"""What a frame takes that publishes messages, beside them."""


class Reply:
    """Reads an answer from its start to its end."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def number(self, form: str) -> int:
        """The next number, in a form of `struct`."""
        packed = struct.Struct(f">{form}")
        try:
            value: int = packed.unpack_from(self._payload, self._at)[0]
        except struct.error as error:
            raise FrameError(f"an answer of RabbitMQ ends too early: {error}") from error
        self._at += packed.size
        return value

    def text(self) -> str:
        length = self.number("h")
        if length < 0:
            return ""
        start = self._at
        self._at += length
        return self._payload[start : self._at].decode(errors="replace")

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.number("I"))]

    def properties(self) -> dict[str, str]:
        return {self.text(): self.text() for _ in range(self.number("I"))}


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """Some consecutive messages of a stream, which the server stored together."""

    first: int
    """The offset of its first message."""
    count: int
    time_ms: int
    """When the server stored it."""
    entries: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.first + self.count

    def messages(self) -> list[bytes]:
        """All messages, in order."""
        if self.entries != self.count or (self.data and self.data[0] & _BATCHED):
            return self._unpacked()
        data, at = self.data, 0
        found = []
        for _ in range(self.entries):
            start = at + 4
            at = start + int.from_bytes(data[at:start])
            found.append(data[start:at])
        self._check_length(at, len(found))
        return found

    def _unpacked(self) -> list[bytes]:
        """Like `messages`, also from batches that were compressed together."""
        data, at = self.data, 0
        found: list[bytes] = []
        for _ in range(self.entries):
            if data[at] & _BATCHED:
                kind = data[at] >> 4 & 0x07
                count, _, length = struct.unpack_from(">HII", data, at + 1)
                at += 11 + length
                found += _split(_decompressed(kind, data[at - length : at]), count)
            else:
                length = int.from_bytes(data[at : at + 4])
                at += 4 + length
                found.append(data[at - length : at])
        self._check_length(at, len(found))
        return found

    def _check_length(self, end: int, found: int) -> None:
        if end != len(self.data) or found != self.count:
            raise FrameError(f"the chunk at offset {self.first} is damaged: {found} of {self.count} messages in it")


_BATCHED: Final = 0x80
_CHUNK_HEAD: Final = struct.Struct(">bbHIqQQiIII")
_USER_CHUNK: Final = 0
_CODECS: Final[Mapping[int, Any]] = {1: cramjam.gzip, 2: cramjam.snappy, 3: cramjam.lz4, 4: cramjam.zstd}


def read_chunk(payload: bytes, at: int) -> StoredChunk | None:
    """The chunk in the payload of a `DELIVER` frame; None if it holds no messages but RabbitMQ's own notes."""
    try:
        magic, kind, entries, count, time_ms, _, first, crc, length, _, _ = _CHUNK_HEAD.unpack_from(payload, at)
    except struct.error as error:
        raise FrameError(f"a chunk of RabbitMQ ends too early: {error}") from error
    if magic & 0xF0 != 0x50:
        raise FrameError(f"RabbitMQ sent a chunk of an unknown kind: {magic & 0xFF:#x}")
    if kind != _USER_CHUNK:
        return None
    start = at + _CHUNK_HEAD.size
    data = payload[start : start + length]
    if len(data) != length or zlib.crc32(data) != crc & 0xFFFFFFFF:
        raise FrameError(f"the chunk at offset {first} was damaged on its way: its checksum is wrong")
    return StoredChunk(first, count, time_ms, entries, data)


def _split(data: bytes, count: int) -> Iterable[bytes]:
    at = 0
    for _ in range(count):
        length = int.from_bytes(data[at : at + 4])
        at += 4 + length
        yield data[at - length : at]


def _decompressed(kind: int, data: bytes) -> bytes:
    if kind == 0:
        return data
    codec = _CODECS.get(kind)
    if codec is None:
        raise StreamError(f"messages are compressed with codec {kind} of RabbitMQ's stream protocol, which is unknown")
    return bytes(codec.decompress(data))
