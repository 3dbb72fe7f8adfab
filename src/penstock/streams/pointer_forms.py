"""Pointers as people and programs see them: in the system's own form if it has one, such as Redis' `MS-SEQ`.

Every tool that shows or reads a pointer uses this module.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Final

from penstock.abc import NamesPointers, Stream
from penstock.errors import PenstockError
from penstock.model import Pointer, Position, Record
from penstock.streams.capability import capability
from penstock.streams.connecting import open_backend
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES, is_memory

PointerText = Callable[[Pointer], str]
"""Returns a pointer as people know it."""

PREFIX: Final = "offset:"
"""Marks a text as a pointer where it might be a time, too."""
LARGEST_NUMBER: Final = 2**53
"""JSON numbers up to this are read exactly by every program."""


def pointer_text_of(stream: Stream | None) -> PointerText:
    """How the pointers of a stream are written. It can be used after the stream is closed."""
    named = None if stream is None else capability(stream, NamesPointers)
    return str if named is None else named.pointer_text


def pointer_text_at(url: str) -> PointerText:
    """How the pointers of the stream at this URL are written, without connecting to it."""
    if scheme_of(url) in KAFKA_SCHEMES or is_memory(url):
        return str
    try:
        backend = open_backend(url, {})
    except PenstockError:
        return str
    try:
        return pointer_text_of(backend)
    finally:
        backend.close()


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
