"""The output formats of `penstock consume`: for people, for programs, or the bytes alone."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.cli.output import plain_json, time_text
from penstock.model import Record
from penstock.model.pointer_forms import PointerText, pointer_value
from penstock.model.text import printable

Format = Callable[[Record, PointerText], bytes]
"""The second argument gives a pointer as people know it."""


def as_text(record: Record, pointer_text: PointerText = str) -> bytes:
    """Partition, offset, time, key and value, with control characters escaped."""
    key = "-" if record.key is None else printable_bytes(record.key)
    value = "(no value)" if record.value is None else printable_bytes(record.value)
    place = f"{record.partition}:{pointer_text(record.offset)}"
    headers = "".join(
        f"  {printable_bytes(name.encode())}={'(no value)' if content is None else printable_bytes(content)}"
        for name, content in record.headers
    )
    return f"{place:<10} {time_text(record.timestamp_ms)}  {key}  {value}{headers}\n".encode()


def as_json(record: Record, pointer_text: PointerText = str) -> bytes:
    """One object per line, as `penstock produce --json` reads it. What is not text is in base64."""
    fields: dict[str, object] = {"topic": record.topic, "partition": record.partition}
    pointer = pointer_value(record.offset, pointer_text)
    fields["offset" if isinstance(pointer, int) else "pointer"] = pointer
    if record.timestamp_ms is not None:
        fields["timestamp"] = record.timestamp_ms
    for name, content in (("key", record.key), ("value", record.value)):
        readable = _text(content)
        if isinstance(readable, bytes):
            fields[f"{name}_base64"] = base64.b64encode(readable).decode()
        else:
            fields[name] = readable
    if record.headers:
        fields["headers"] = [(name, _header(content)) for name, content in record.headers]
    return plain_json(msgspec.json.encode(fields).decode()).encode() + b"\n"


def as_raw(record: Record, pointer_text: PointerText = str) -> bytes:
    """The bytes of the value and a newline."""
    return (record.value or b"") + b"\n"


FORMATS: Final[dict[str, Format]] = {"text": as_text, "json": as_json, "raw": as_raw}


def printable_bytes(content: bytes) -> str:
    """The bytes as text; what is not text, or would move the cursor, is escaped."""
    text = content.decode("utf-8", errors="backslashreplace")
    return printable(text)


def _text(content: bytes | None) -> str | bytes | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _header(content: bytes | None) -> object:
    text = _text(content)
    return {"base64": base64.b64encode(text).decode()} if isinstance(text, bytes) else text
