"""Pointers as people and programs see them: in the system's own form if it has one, such as Redis' `MS-SEQ`.

`penstock.streams.capability.pointer_text_of` tells the form of a stream. Every tool that shows or reads a pointer uses
these functions.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Final

from penstock.model.position import Position
from penstock.model.record import Pointer, Record

PointerText = Callable[[Pointer], str]
"""Returns a pointer as people know it."""

PREFIX: Final = "offset:"
"""Marks a text as a pointer where it might be a time, too."""
LARGEST_NUMBER: Final = 2**53
"""JSON numbers up to this are read exactly by every program."""


def pointer_value(pointer: Pointer, pointer_text: PointerText = str) -> int | str:
    """A pointer for JSON: text in the system's own form, or if it is larger than JSON's numbers; else a number."""
    text = pointer_text(pointer)
    return pointer if text == str(pointer) and pointer <= LARGEST_NUMBER else text


def place_text(record: Record, pointer_text: PointerText) -> str:
    """Where a record is, for messages: `orders-2 at offset 42`, or `orders-2 at 1526919030474-55`."""
    text = pointer_text(record.offset)
    return str(record.place) if text == str(record.offset) else f"{record.topic}-{record.partition} at {text}"


def is_named_pointer(text: str) -> bool:
    """Whether it is `offset:` and a pointer in a form that only its stream can read."""
    return text.startswith(PREFIX) and not text.removeprefix(PREFIX).isdecimal()


def parse_position(text: str, now: datetime.datetime, parse_pointer: Callable[[str], Pointer]) -> Position:
    """Parse a position, or `offset:` and a pointer in the form of a stream. Raises ConfigError."""
    text = text.strip()
    if is_named_pointer(text):
        return Position.at_pointer(parse_pointer(text.removeprefix(PREFIX)))
    return Position.parse(text, now)
