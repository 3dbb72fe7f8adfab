"""AMQP 1.0 values as bytes, as far as messages need them. RabbitMQ streams and AMQP 1.0 queues use it.

Decoding gives the Python value that means the same: symbols are text, timestamps are milliseconds, decimals are their
bytes. Encoding chooses the shortest form of what our own messages contain.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
_SIZED: Final = {0xA0: 1, 0xA1: 1, 0xA3: 1, 0xB0: 4, 0xB1: 4, 0xB3: 4}
"""Binary, text and symbols: how many bytes their length takes."""
_TEXTS: Final = frozenset({0xA1, 0xB1, 0xA3, 0xB3})
_FIXED: Final[dict[int, struct.Struct]] = {
    0x50: struct.Struct(">B"),
    0x51: struct.Struct(">b"),
    0x52: struct.Struct(">B"),
    0x53: struct.Struct(">B"),
    0x54: struct.Struct(">b"),
    0x55: struct.Struct(">b"),
    0x56: struct.Struct(">?"),
    0x60: struct.Struct(">H"),
    0x61: struct.Struct(">h"),
    0x70: struct.Struct(">I"),
    0x71: struct.Struct(">i"),
    0x72: struct.Struct(">f"),
    0x73: struct.Struct(">I"),
    0x74: struct.Struct(">4s"),
    0x80: struct.Struct(">Q"),
    0x81: struct.Struct(">q"),
    0x82: struct.Struct(">d"),
    0x83: struct.Struct(">q"),
    0x84: struct.Struct(">8s"),
    0x94: struct.Struct(">16s"),
    0x98: struct.Struct(">16s"),
}
_CONSTANTS: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}
_LISTS: Final = {0xC0: 1, 0xD0: 4}
_MAPS: Final = {0xC1: 1, 0xD1: 4}
_ARRAYS: Final = {0xE0: 1, 0xF0: 4}
_DESCRIBED: Final = 0x00
_DEEPEST: Final = 32


class NotAmqpError(ValueError):
    """Bytes that are not AMQP 1.0."""


class Described(NamedTuple):
    """A value with a descriptor, as the sections of a message are."""

    descriptor: Any
    value: Any


class MapEntry(NamedTuple):
    """Where an entry of a map stands."""

    key: Any
    start: int
    value_at: int
    end: int


def decode(data: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    """The value at a place, and the place after it. Text is `str`, binary is `bytes`. Raises NotAmqpError."""
    try:
        return _decode(data, data[at], at + 1, depth)
    except (IndexError, struct.error, ValueError, TypeError, OverflowError) as error:
        raise NotAmqpError(str(error)) from error


def map_entries(data: bytes, at: int) -> list[MapEntry]:
    """The entries of the map at a place. Raises NotAmqpError if there is none."""
    if at >= len(data) or data[at] not in _MAPS:
        raise NotAmqpError(f"there is no map at byte {at}")
    count, at, _ = _bounds(data, at + 1, _MAPS[data[at]])
    entries = []
    for _ in range(count // 2):
        key, value_at = decode(data, at)
        _, end = decode(data, value_at)
        entries.append(MapEntry(key, at, value_at, end))
        at = end
    return entries


def _decode(data: bytes, code: int, at: int, depth: int) -> tuple[Any, int]:
    """The value whose constructor is `code`; its content is at `at`."""
    if depth > _DEEPEST:
        raise NotAmqpError(f"values are nested deeper than {_DEEPEST}")
    if code in _SIZED:
        width = _SIZED[code]
        begin = at + width
        end = begin + int.from_bytes(data[at:begin])
        if end > len(data):
            raise NotAmqpError("a text ends too early")
        content = data[begin:end]
        return (content.decode() if code in _TEXTS else content), end
    if code in _FIXED:
        form = _FIXED[code]
        value = form.unpack_from(data, at)[0]
        if code == 0x98:
            value = uuid.UUID(bytes=value)
        elif code == 0x73:
            value = chr(value)
        return value, at + form.size
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if code in _LISTS:
        count, at, end = _bounds(data, at, _LISTS[code])
        return _several(data, at, count, end, depth), end
    if code in _MAPS:
        count, at, end = _bounds(data, at, _MAPS[code])
        parts = _several(data, at, count, end, depth)
        return {_hashable(key): value for key, value in zip(parts[::2], parts[1::2], strict=True)}, end
    if code in _ARRAYS:
        count, at, end = _bounds(data, at, _ARRAYS[code])
        if data[at] == _DESCRIBED:  # one descriptor for all
            _, at = decode(data, at + 1, depth + 1)
        element, at = data[at], at + 1
        values = []
        for _ in range(count):
            value, at = _decode(data, element, at, depth + 1)
            values.append(value)
        return values, end
    if code == _DESCRIBED:
        descriptor, at = decode(data, at, depth + 1)
        value, at = decode(data, at, depth + 1)
        return Described(descriptor, value), at
    raise NotAmqpError(f"there is no type {code:#x}")


def _bounds(data: bytes, at: int, width: int) -> tuple[int, int, int]:
    """Return how many values a compound has, where they begin, and where it ends."""
    size = int.from_bytes(data[at : at + width])
    count = int.from_bytes(data[at + width : at + 2 * width])
    end = at + width + size
    if end > len(data) or count > size:
        raise NotAmqpError("a list or map ends too early")
    return count, at + 2 * width, end


def _several(data: bytes, at: int, count: int, end: int, depth: int) -> list[Any]:
    values = []
    for _ in range(count):
        value, at = decode(data, at, depth + 1)
        values.append(value)
    if at != end:
        raise NotAmqpError("a list or map has another length than it says")
    return values


def encode_binary(value: bytes) -> bytes:
    length = len(value)
    return b"\xa0%c%b" % (length, value) if length < 256 else b"\xb0" + length.to_bytes(4) + value


def encode_text(value: str) -> bytes:
    return _text(value.encode())


def encode_text_or_binary(value: bytes) -> bytes:
    """Text if the bytes are UTF-8, so that other programs can show it. JMS has no binary properties at all."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return encode_binary(value)
    return _text(value)


def _text(value: bytes) -> bytes:
    length = len(value)
    return b"\xa1%c%b" % (length, value) if length < 256 else b"\xb1" + length.to_bytes(4) + value


def encode_symbol(value: str) -> bytes:
    return b"\xa3%c%b" % (len(value), value.encode("ascii"))


def encode_long(value: int) -> bytes:
    return b"\x81%b" % value.to_bytes(8, signed=True)


def encode_uint(value: int) -> bytes:
    return b"\x70%b" % value.to_bytes(4)


def encode_ubyte(value: int) -> bytes:
    return b"\x50%c" % value


def encode_timestamp(time_ms: int) -> bytes:
    return b"\x83%b" % time_ms.to_bytes(8, signed=True)


def encode_list(parts: Iterable[bytes]) -> bytes:
    """A list of encoded values."""
    return _compound(0xC0, 0xD0, list(parts))


def encode_map(parts: Iterable[bytes]) -> bytes:
    """A map of encoded names and values, alternating."""
    return _compound(0xC1, 0xD1, list(parts))


def _compound(short: int, long: int, parts: list[bytes]) -> bytes:
    content = b"".join(parts)
    if len(content) < 255 and len(parts) < 256:
        return b"%c%c%c%b" % (short, len(content) + 1, len(parts), content)
    return b"%c%b%b%b" % (long, (len(content) + 4).to_bytes(4), len(parts).to_bytes(4), content)


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key
