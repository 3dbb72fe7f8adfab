"""Confluent's message indexes, which say which message of a `.proto` file a value is.

The indexes are the path from the file to the message: [1, 0] is the first message inside the second one of the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

_LONGEST_PATH: Final = 64
"""Deeper nesting than any real file: such bytes are invalid."""
_LONGEST_VARINT_BYTES: Final = 5
_NOISE: Final = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)
_STEP: Final = re.compile(r"\bpackage\s+([\w.]+)\s*;|\bmessage\s+(\w+)\s*\{|([{}])")


def indexes_of(descriptor: Any) -> tuple[int, ...]:
    """The path from the file to a message, given its descriptor."""
    path: list[int] = []
    while descriptor is not None:
        parent = descriptor.containing_type
        siblings = descriptor.file.message_types_by_name.values() if parent is None else parent.nested_types
        path.append([sibling.full_name for sibling in siblings].index(descriptor.full_name))
        descriptor = parent
    return tuple(reversed(path))


def encode_indexes(path: Sequence[int]) -> bytes:
    """Encode a count and the indexes, each as a zigzag varint; the usual case, the first message, is a single zero."""
    if tuple(path) == (0,):
        return b"\0"
    return b"".join(_encode_varint(number) for number in (len(path), *path))


def decode_indexes(data: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """The indexes at `start`, and where they end. Raises ValueError if they are invalid."""
    count, position = _decode_varint(data, start)
    if count == 0:
        return (0,), position
    if not 0 < count <= _LONGEST_PATH:
        raise ValueError(f"{count} is not a valid number of message indexes")
    path = []
    for _ in range(count):
        index, position = _decode_varint(data, position)
        if index < 0:
            raise ValueError(f"{index} is not a message index")
        path.append(index)
    return tuple(path), position


def name_in_file(file: Any, path: Sequence[int]) -> str | None:
    """The full name of the message at `path` in a FileDescriptorProto; None if there is no such message."""
    names = [file.package] if file.package else []
    messages = file.message_type
    for index in path:
        if index >= len(messages):
            return None
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def name_in_text(text: str, path: Sequence[int]) -> str | None:
    """The same for the text of a `.proto` file."""
    package = ""
    names: dict[tuple[int, ...], str] = {}
    inside: list[tuple[int, ...] | None] = [()]
    """For each open brace, its message; None for enums, options and the like."""
    children: dict[tuple[int, ...], int] = {}
    for step in _STEP.finditer(_NOISE.sub(" ", text)):
        named_package, message, brace = step.groups()
        if named_package and len(inside) == 1:
            package = named_package
        elif message:
            parent = inside[-1]
            here = None
            if parent is not None:
                here = (*parent, children.get(parent, 0))
                children[parent] = here[-1] + 1
                names[here] = f"{names[parent]}.{message}" if parent else message
            inside.append(here)
        elif brace == "{":
            inside.append(None)
        elif brace == "}" and len(inside) > 1:
            inside.pop()
    found = names.get(tuple(path))
    return f"{package}.{found}" if found and package else found


def _encode_varint(number: int) -> bytes:
    number <<= 1  # zigzag of a number that is never negative
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _decode_varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(_LONGEST_VARINT_BYTES):
        if position >= len(data):
            raise ValueError("the message indexes are cut off")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << (7 * shift)
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise ValueError("a message index is too long")
