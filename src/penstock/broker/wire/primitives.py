"""The formats that the hand-written parts of the protocol need, and the limits of all requests."""

from __future__ import annotations

import struct
from typing import Final

from penstock.errors import PenstockError

MAX_ENTRIES: Final = 50_000
"""The default limit of array entries in a request, including nested arrays."""

_SHORT: Final = struct.Struct(">h")


class MalformedRequestError(PenstockError):
    """The bytes of a request are invalid. The connection must be closed."""


def read_uvarint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    byte = data[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise MalformedRequestError("a length is longer than five bytes")


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(data: bytes | bytearray | memoryview, position: int) -> int:
    """The position after a section of tagged fields, which are ignored."""
    count, position = read_uvarint(data, position)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
    if position > len(data):
        raise MalformedRequestError("a tagged field reaches past the end of the request")
    return position


def claim_entries(count: int, left_bytes: int, left_entries: int) -> int:
    """How many more array entries the request may hold after an array of `count`; each takes at least one byte.

    Raises MalformedRequestError before memory is allocated for an impossible array.
    """
    if count < 0:
        raise MalformedRequestError("an array is null, which the protocol does not allow")
    if count > left_bytes:
        raise MalformedRequestError(f"an array claims {count} entries where {left_bytes} bytes are left")
    if count > left_entries:
        raise MalformedRequestError("it holds more array entries than one request may (max.request.entries)")
    return left_entries - count


def read_name(data: memoryview, position: int, *, flexible: bool) -> tuple[bytes, int]:
    if flexible:
        size, position = read_uvarint(data, position)
        size -= 1
    else:
        (size,) = _SHORT.unpack_from(data, position)
        position += _SHORT.size
    end = position + size
    if size < 0 or end > len(data):
        raise MalformedRequestError("a topic has no name, or one that reaches past the end of the request")
    return bytes(data[position:end]), end
