"""Zigzag variable-length integers, as record batches use them."""

from __future__ import annotations

from penstock.errors import CorruptBatchError

_MAX_SHIFT = 63


def read_varint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The number at `position`, and the position after it."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > _MAX_SHIFT:
            raise CorruptBatchError("a number is longer than ten bytes")


def write_varint(target: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        target.append(value & 0x7F | 0x80)
        value >>= 7
    target.append(value)
