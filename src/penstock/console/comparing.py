"""The differences of two dead letters: field by field, and inside their values where they are JSON.

Everything is compared. A long text is shown from where it begins to differ, and marked as cut.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from penstock.console.messages.showing import UNDECODABLE
from penstock.console.views import Difference
from penstock.console.visible import utf8_beginning
from penstock.model import DeadLetter
from penstock.model.pointer_forms import PointerText

MOST: Final = 500
_DEEPEST: Final = 20
_LONGEST_TEXT: Final = 2_000
_BEFORE: Final = 60
"""This many characters are shown before the first difference."""
_DUMPED_BYTES: Final = 64


def differences(left: DeadLetter, right: DeadLetter, pointer_text: PointerText = str) -> list[Difference]:
    """Where the two differ, in the order in which people look. At most `MOST` are returned."""
    ours, theirs = _fields(left, pointer_text), _fields(right, pointer_text)
    paths = [*ours, *(path for path in theirs if path not in ours)]
    differing = [path for path in paths if path not in ours or path not in theirs or ours[path] != theirs[path]]
    return [_difference(path, ours.get(path), theirs.get(path)) for path in differing[:MOST]]


def _difference(path: str, left: str | bytes | None, right: str | bytes | None) -> Difference:
    """Text as it is, and other bytes as hex: both from a little before the first difference."""
    if left is None or right is None:
        return Difference(path, _shown(left), _shown(right))
    if isinstance(left, bytes) or isinstance(right, bytes):
        left, right = _as_bytes(left), _as_bytes(right)
        at = _first_difference(left, right) if max(len(left), len(right)) > _DUMPED_BYTES else 0
        return Difference(path, _dumped(left, at), _dumped(right, at))
    at = 0
    if max(len(left), len(right)) > _LONGEST_TEXT:
        at = max(0, _first_difference(left, right) - _BEFORE)
    return Difference(path, _cut(left, at), _cut(right, at))


def _first_difference(left: str | bytes, right: str | bytes) -> int:
    """The length of the common prefix, by bisection: values may have millions of bytes."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shown(content: str | bytes | None) -> str | None:
    if content is None:
        return None
    return _dumped(content, 0) if isinstance(content, bytes) else _cut(content, 0)


def _cut(text: str, at: int) -> str:
    piece = text[at : at + _LONGEST_TEXT]
    if len(piece) == len(text):
        return text
    begun = f"… (from character {at + 1:,}) " if at else ""
    ended = f" … ({len(text):,} characters in all)" if at + _LONGEST_TEXT < len(text) else ""
    return f"{begun}{piece}{ended}"


def _dumped(data: bytes, at: int) -> str:
    piece = data[at : at + _DUMPED_BYTES]
    if len(piece) == len(data):
        return piece.hex(" ")
    begun = f"… (from byte {at:,}) " if at else ""
    return f"{begun}{piece.hex(' ')} … ({len(data):,} bytes in all)"


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _fields(letter: DeadLetter, pointer_text: PointerText) -> dict[str, str | bytes]:
    record = letter.record
    fields: dict[str, str | bytes] = {
        "error": letter.error,
        "error kind": letter.error_kind,
        "attempts": str(letter.attempts),
        "group": letter.group,
        "topic": record.topic,
        "partition": str(record.partition),
        "pointer": pointer_text(record.offset),
        "timestamp": "" if record.timestamp is None else record.timestamp.isoformat(),
        "handler": letter.handler,
        "handler version": letter.handler_version,
        "state": letter.state.value,
        "redrives": str(letter.redrives),
    }
    _add_data(fields, "key", record.key)
    for name, content in record.headers:
        path = f"header.{name}"
        while path in fields:  # a name may occur twice
            path += "'"
        fields[path] = _content(content)
    _add_data(fields, "value", record.value)
    return fields


def _content(data: bytes | None) -> str | bytes:
    if data is None:
        return "null"
    text = utf8_beginning(data, len(data))
    return data if text is None else text


def _add_data(fields: dict[str, str | bytes], name: str, data: bytes | None) -> None:
    if data is not None:
        try:
            decoded = msgspec.json.decode(data)
        except UNDECODABLE:
            decoded = None
        if isinstance(decoded, dict | list):
            _add_parts(fields, name, decoded, _DEEPEST)
            return
    fields[name] = _content(data)


def _add_parts(fields: dict[str, str | bytes], path: str, value: Any, depth: int) -> None:
    """Each leaf with its path, as filters write paths; what is deeper, or too much, as one text."""
    is_room = depth > 0 and len(fields) <= 10 * MOST
    if isinstance(value, dict) and value and is_room:
        for name, part in value.items():
            step = f".{name}" if name.replace("-", "_").isidentifier() else f"[{json.dumps(name)}]"
            _add_parts(fields, path + step, part, depth - 1)
    elif isinstance(value, list) and value and is_room:
        for place, part in enumerate(value):
            _add_parts(fields, f"{path}[{place}]", part, depth - 1)
    else:
        try:
            fields[path] = json.dumps(value, ensure_ascii=False)
        except RecursionError:
            fields[path] = "nested too deeply to be shown"
