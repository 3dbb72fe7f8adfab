"""MySQL's packed DECIMAL: groups of nine digits in four bytes each, with smaller groups at both ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_SIZES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""The bytes of a group of that many digits."""


def decimal_reader(precision: int, scale: int) -> tuple[Callable[[bytes, int], str], int]:
    """A function that reads the text of such a number at an index, and how many bytes it takes."""
    whole = precision - scale
    before = [each for each in (whole % 9, *[9] * (whole // 9)) if each]
    after = [each for each in (*[9] * (scale // 9), scale % 9) if each]
    groups = [(digits, _SIZES[digits]) for digits in (*before, *after)]
    size = sum(width for _, width in groups)
    count = len(before)

    def read(data: bytes, at: int) -> str:
        number = int.from_bytes(data[at : at + size], "big")
        is_negative = not data[at] & 0x80
        number ^= 1 << 8 * size - 1
        if is_negative:
            number ^= (1 << 8 * size) - 1
        raw = number.to_bytes(size, "big")
        place = 0
        parts: list[str] = []
        for digits, width in groups:
            parts.append(f"{int.from_bytes(raw[place : place + width], 'big'):0{digits}d}")
            place += width
        text = "".join(parts[:count]).lstrip("0") or "0"
        if scale:
            text += "." + "".join(parts[count:])
        return f"-{text}" if is_negative else text

    return read, size
