"""How `penstock dlq` writes a dead letter: a line of a table, everything about it, or JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.cli.output import count_text, time_text
from penstock.cli.record_formats import as_json, printable
from penstock.model import DeadLetter

COLUMNS: Final = ("id", "state", "group", "record", "given up", "attempts", "redrives", "error")
NUMBERS: Final = ("attempts", "redrives")
_ERROR_LENGTH: Final = 100


def as_row(letter: DeadLetter) -> tuple[object, ...]:
    """The values for COLUMNS."""
    record = letter.record
    return (
        letter.id,
        letter.state,
        letter.group,
        f"{record.topic}-{record.partition}:{record.offset}",
        time_text(letter.last_ms),
        letter.attempts,
        letter.redrives,
        _short(letter.error),
    )


def as_text(letter: DeadLetter) -> str:
    """Everything about a letter, for people. Nothing in it can make a terminal do things."""
    record = letter.record
    lines = [
        f"letter     {letter.id}",
        f"state      {letter.state}, redriven {count_text(letter.redrives, 'time')}",
        f"group      {_plain(letter.group)}",
        f"handler    {_plain(letter.handler)} {_plain(letter.handler_version)}".rstrip(),
        f"attempts   {letter.attempts}, from {time_text(letter.first_ms)} to {time_text(letter.last_ms)}",
        "",
        f"record     {record.place}",
        f"timestamp  {time_text(record.timestamp_ms)}",
        f"key        {_content(record.key)}",
        f"value      {_content(record.value)}",
    ]
    lines += [f"header     {_plain(name)}={_content(content)}" for name, content in record.headers]
    lines += ["", f"error      {_plain(letter.error)}"]
    if letter.traceback:
        lines += ["", *map(_plain, letter.traceback.rstrip("\n").split("\n"))]
    return "\n".join(lines)


def as_object(letter: DeadLetter, *, with_traceback: bool) -> dict[str, Any]:
    """A letter as JSON has it: the record as `penstock consume --format json` writes it, and what is told of it."""
    told: dict[str, Any] = {
        "id": letter.id,
        "state": letter.state.value,
        "group": letter.group,
        "error_kind": letter.error_kind,
        "error": letter.error,
        "attempts": letter.attempts,
        "redrives": letter.redrives,
        "first_ms": letter.first_ms,
        "last_ms": letter.last_ms,
        "handler": letter.handler,
        "handler_version": letter.handler_version,
        "record": msgspec.json.decode(as_json(letter.record)),
    }
    if with_traceback:
        told["traceback"] = letter.traceback
    return told


def _short(text: str) -> str:
    line = _plain(text.partition("\n")[0])
    return line if len(line) <= _ERROR_LENGTH else line[: _ERROR_LENGTH - 1] + "…"


def _plain(text: str) -> str:
    return printable(text.encode("utf-8", "backslashreplace"))


def _content(content: bytes | None) -> str:
    return "(none)" if content is None else printable(content)
