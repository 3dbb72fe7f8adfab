"""The field types of the records in Kafka's internal topics: numbers, strings and arrays, plain and compact."""

from __future__ import annotations

import struct
from typing import Final

from penstock.errors import PenstockError

LONGEST_STRING_BYTES: Final = 32_767
"""The maximum of a plain string's two-byte length."""

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


class DamagedRecordError(PenstockError):
    """The bytes of a stored record do not match its version."""


class FieldReader:
    """Reads one record from front to back. Raises DamagedRecordError for anything invalid.

    Set `flexible` for versions that use compact strings and arrays, and end each structure with tagged fields.
    """

    __slots__ = ("_data", "_position", "flexible")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.flexible = False

    def int8(self) -> int:
        return self._take(1)[0]

    def int16(self) -> int:
        return self._unpack(_SHORT)

    def int32(self) -> int:
        return self._unpack(_INT)

    def int64(self) -> int:
        return self._unpack(_LONG)

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise DamagedRecordError("a string is null where null is not allowed")
        return text

    def nullable_string(self) -> str | None:
        length = self._uvarint() - 1 if self.flexible else self.int16()
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise DamagedRecordError(f"a string is not UTF-8: {error}") from error

    def byte_string(self) -> bytes:
        length = self._uvarint() - 1 if self.flexible else self.int32()
        return self._take(length)

    def array_length(self, *, nullable: bool = False) -> int:
        """The number of entries; 0 for a null array, if that is allowed."""
        length = self._uvarint() - 1 if self.flexible else self.int32()
        if length == -1 and nullable:
            return 0
        if not 0 <= length <= len(self._data) - self._position:
            raise DamagedRecordError(f"an array claims {length} entries")
        return length

    def end_of_structure(self) -> dict[int, bytes]:
        """The tagged fields, by tag."""
        if not self.flexible:
            return {}
        return {self._uvarint(): self._take(self._uvarint()) for _ in range(self._uvarint())}

    def end(self) -> None:
        left = len(self._data) - self._position
        if left:
            raise DamagedRecordError(f"{left} bytes are left over at its end")

    def _unpack(self, layout: struct.Struct) -> int:
        return int(layout.unpack(self._take(layout.size))[0])

    def _take(self, length: int) -> bytes:
        start, end = self._position, self._position + length
        if length < 0 or end > len(self._data):
            raise DamagedRecordError(f"it ends at byte {len(self._data)}, in the middle of a field of {length} bytes")
        self._position = end
        return self._data[start:end]

    def _uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise DamagedRecordError("a variable-length number does not end")


def put_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    if len(encoded) > LONGEST_STRING_BYTES:
        raise ValueError(f"a string of {len(encoded)} bytes is too long to be stored (at most {LONGEST_STRING_BYTES})")
    return _SHORT.pack(len(encoded)) + encoded


def put_bytes(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data
