"""The few number formats that the hand-written parts of the protocol need."""

from __future__ import annotations

from penstock.errors import PenstockError


class MalformedRequestError(PenstockError):
    """The bytes of a request do not make sense. The connection cannot be trusted any further."""


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
    """The position behind a section of tagged fields, none of which is needed."""
    count, position = read_uvarint(data, position)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
    if position > len(data):
        raise MalformedRequestError("a tagged field reaches past the end of the request")
    return position
