"""AMQP 1.0's binary form of values, as far as messages need it.

Decoding gives the Python value that means the same: symbols are text, timestamps are milliseconds, decimals are their
bytes. Encoding chooses the shortest form of what our own messages contain.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
_SHORT: Final = 255


class Described(NamedTuple):
    """A value with a descriptor, which says what it means."""

    descriptor: Any
    value: Any


class Span(NamedTuple):
    """Where an entry of a map stands."""

    key: Any
    start: int
    value_at: int
    end: int


def encoded_text(text: str) -> bytes:
    data = text.encode()
    if len(data) <= _SHORT:
        return b"\xa1%c%b" % (len(data), data)
    return b"\xb1%b%b" % (len(data).to_bytes(4), data)


def encoded_symbol(text: str) -> bytes:
    return b"\xa3%c%b" % (len(text), text.encode("ascii"))


def encoded_binary(data: bytes) -> bytes:
    if len(data) <= _SHORT:
        return b"\xa0%c%b" % (len(data), data)
    return b"\xb0%b%b" % (len(data).to_bytes(4), data)


def encoded_long(number: int) -> bytes:
    return b"\x81%b" % number.to_bytes(8, signed=True)


def encoded_uint(number: int) -> bytes:
    return b"\x70%b" % number.to_bytes(4)


def encoded_ubyte(number: int) -> bytes:
    return b"\x50%c" % number


def encoded_timestamp(time_ms: int) -> bytes:
    return b"\x83%b" % time_ms.to_bytes(8, signed=True)


def encoded_list(items: Iterable[bytes]) -> bytes:
    return _compound(0xC0, 0xD0, list(items))


def encoded_map(keys_and_values: Iterable[bytes]) -> bytes:
    return _compound(0xC1, 0xD1, list(keys_and_values))


def _compound(short: int, long: int, items: list[bytes]) -> bytes:
    body = b"".join(items)
    if len(body) < _SHORT and len(items) <= _SHORT:
        return b"%c%c%c%b" % (short, len(body) + 1, len(items), body)
    return b"%c%b%b%b" % (long, (len(body) + 4).to_bytes(4), len(items).to_bytes(4), body)


def decoded(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at this place, and where the next one does. ValueError if there is none."""
    try:
        return _decoded(data, at)
    except (IndexError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"no AMQP value: {error}") from error


def map_spans(data: bytes, at: int) -> list[Span]:
    """The entries of the map that begins at this place."""
    count, at, _ = _compound_head(data, at + 1, data[at] >= 0xD0)
    spans = []
    for _ in range(count // 2):
        key, value_at = decoded(data, at)
        _, end = decoded(data, value_at)
        spans.append(Span(key, at, value_at, end))
        at = end
    return spans


def _decoded(data: bytes, at: int) -> tuple[Any, int]:
    code = data[at]
    at += 1
    if code in _CONSTANT:
        return _CONSTANT[code], at
    if code in _FIXED:
        form, size = _FIXED[code]
        return form(data, at), at + size
    if code in _VARIABLE:
        if code >= 0xB0:
            size, at = int.from_bytes(_checked(data, at, 4)), at + 4
        else:
            size, at = data[at], at + 1
        return _VARIABLE[code](_checked(data, at, size)), at + size
    if code in (0xC0, 0xD0, 0xC1, 0xD1):
        return _decoded_compound(data, at, code)
    if code in (0xE0, 0xF0):
        return _decoded_array(data, at, code == 0xF0)
    if code == 0x00:
        descriptor, at = _decoded(data, at)
        value, at = _decoded(data, at)
        return Described(descriptor, value), at
    raise ValueError(f"no AMQP type has the code {code:#x}")


def _checked(data: bytes, at: int, size: int) -> bytes:
    found = data[at : at + size]
    if len(found) != size:
        raise ValueError(f"{size} bytes were announced at {at}, and {len(found)} are there")
    return found


def _compound_head(data: bytes, at: int, is_long: bool) -> tuple[int, int, int]:
    """How many items a list, map or array has, where they begin and where they end."""
    if is_long:
        size, count = struct.unpack_from(">II", data, at)
        items_at, end = at + 8, at + 4 + size
    else:
        count, items_at, end = data[at + 1], at + 2, at + 1 + data[at]
    if end > len(data) or count > len(data):
        raise ValueError(f"{count} items were announced at {at}, up to byte {end} of {len(data)}")
    return count, items_at, end


def _decoded_compound(data: bytes, at: int, code: int) -> tuple[Any, int]:
    count, at, end = _compound_head(data, at, code >= 0xD0)
    items = []
    for _ in range(count):
        item, at = _decoded(data, at)
        items.append(item)
    if code in (0xC0, 0xD0):
        return items, end
    return {_hashable(items[index]): items[index + 1] for index in range(0, count - 1, 2)}, end


def _decoded_array(data: bytes, at: int, is_long: bool) -> tuple[list[Any], int]:
    """All items have the type that is given once: as if its code stood before each."""
    count, at, end = _compound_head(data, at, is_long)
    code_at = at
    if data[at] == 0x00:
        _, code_at = _decoded(data, at + 1)
    code, at = data[code_at : code_at + 1], code_at + 1
    rest = data[at:end]
    items, place = [], 0
    for _ in range(count):
        item, next_place = _decoded(code + rest[place:], 0)
        items.append(item)
        place += next_place - 1
    return items, end


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key


def _number(form: str) -> tuple[Callable[[bytes, int], Any], int]:
    unpack = struct.Struct(form)
    return lambda data, at: unpack.unpack_from(data, at)[0], unpack.size


def _raw(size: int) -> tuple[Callable[[bytes, int], Any], int]:
    return lambda data, at: _checked(data, at, size), size


_CONSTANT: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}
_FIXED: Final[dict[int, tuple[Callable[[bytes, int], Any], int]]] = {
    0x50: _number(">B"),
    0x51: _number(">b"),
    0x52: _number(">B"),
    0x53: _number(">B"),
    0x54: _number(">b"),
    0x55: _number(">b"),
    0x56: _number(">?"),
    0x60: _number(">H"),
    0x61: _number(">h"),
    0x70: _number(">I"),
    0x71: _number(">i"),
    0x72: _number(">f"),
    0x73: (lambda data, at: chr(int.from_bytes(_checked(data, at, 4))), 4),
    0x74: _raw(4),
    0x80: _number(">Q"),
    0x81: _number(">q"),
    0x82: _number(">d"),
    0x83: _number(">q"),
    0x84: _raw(8),
    0x94: _raw(16),
    0x98: (lambda data, at: uuid.UUID(bytes=_checked(data, at, 16)), 16),
}
"""By the code of a type: how to read it, and how many bytes it takes."""
_VARIABLE: Final[dict[int, Callable[[bytes], Any]]] = {
    0xA0: bytes,
    0xB0: bytes,
    0xA1: lambda data: data.decode(),
    0xB1: lambda data: data.decode(),
    0xA3: lambda data: data.decode("ascii"),
    0xB3: lambda data: data.decode("ascii"),
}
