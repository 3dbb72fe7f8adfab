"""How `penstock consume` writes a record: for people, for programs, or the bytes alone."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.cli.output import time_text
from penstock.model import Record

Format = Callable[[Record], bytes]


def as_text(record: Record) -> bytes:
    """Where it stands, when it was sent, its key and its value. Nothing in it can make a terminal do things."""
    key = "-" if record.key is None else printable(record.key)
    value = "(no value)" if record.value is None else printable(record.value)
    place = f"{record.partition}:{record.offset}"
    headers = "".join(
        f"  {printable(name.encode())}={'(no value)' if content is None else printable(content)}"
        for name, content in record.headers
    )
    return f"{place:<10} {time_text(record.timestamp_ms)}  {key}  {value}{headers}\n".encode()


def as_json(record: Record) -> bytes:
    """One object a line, which `penstock produce --json` takes. What is no text comes in base64."""
    fields: dict[str, object] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    if record.timestamp_ms is not None:
        fields["timestamp"] = record.timestamp_ms
    for name, content in (("key", record.key), ("value", record.value)):
        text = _text(content)
        if isinstance(text, bytes):
            fields[f"{name}_base64"] = base64.b64encode(text).decode()
        else:
            fields[name] = text
    if record.headers:
        fields["headers"] = [(name, _header(content)) for name, content in record.headers]
    return msgspec.json.encode(fields) + b"\n"


def as_raw(record: Record) -> bytes:
    """The bytes of the value and the end of a line."""
    return (record.value or b"") + b"\n"


FORMATS: Final[dict[str, Format]] = {"text": as_text, "json": as_json, "raw": as_raw}


def printable(content: bytes) -> str:
    """The text of bytes; what is no text, or would move the cursor, as an escape."""
    text = content.decode("utf-8", errors="backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


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
