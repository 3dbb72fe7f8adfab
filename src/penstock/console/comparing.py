"""What distinguishes two dead letters: field by field, and inside of their values where they are JSON."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from penstock.console.showing import UNDECODABLE, Showing
from penstock.console.views import Difference
from penstock.model import DeadLetter

_MOST: Final = 500
_DEEPEST: Final = 20
_LONGEST_TEXT: Final = 2_000


def differences(left: DeadLetter, right: DeadLetter) -> list[Difference]:
    """Where the two differ, in the order in which people look. No more than some hundreds are given."""
    ours, theirs = _fields(left), _fields(right)
    paths = [*ours, *(path for path in theirs if path not in ours)]
    found = [Difference(path, ours.get(path), theirs.get(path)) for path in paths if ours.get(path) != theirs.get(path)]
    return found[:_MOST]


def _fields(letter: DeadLetter) -> dict[str, str]:
    record = letter.record
    fields = {
        "error": letter.error,
        "error kind": letter.error_kind,
        "attempts": str(letter.attempts),
        "group": letter.group,
        "topic": record.topic,
        "partition": str(record.partition),
        "pointer": record.pointer,
        "timestamp": "" if record.timestamp is None else record.timestamp.isoformat(),
        "handler": letter.handler,
        "handler version": letter.handler_version,
        "state": letter.state.value,
        "redrives": str(letter.redrives),
    }
    _add_data(fields, "key", record.key)
    for name, content in record.headers:
        fields[f"header.{name}"] = Showing().show(content).text
    _add_data(fields, "value", record.value)
    return {name: text[:_LONGEST_TEXT] for name, text in fields.items()}


def _add_data(fields: dict[str, str], name: str, data: bytes | None) -> None:
    if data is not None:
        try:
            decoded = msgspec.json.decode(data)
        except UNDECODABLE:
            decoded = None
        if isinstance(decoded, dict | list):
            _add_parts(fields, name, decoded, _DEEPEST)
            return
    fields[name] = Showing().show(data).text


def _add_parts(fields: dict[str, str], path: str, value: Any, depth: int) -> None:
    """Each leaf with the path to it, as filters write paths."""
    if len(fields) > 10 * _MOST:
        return
    if isinstance(value, dict) and value and depth:
        for name, part in value.items():
            step = f".{name}" if name.replace("-", "_").isidentifier() else f"[{json.dumps(name)}]"
            _add_parts(fields, path + step, part, depth - 1)
    elif isinstance(value, list) and value and depth:
        for place, part in enumerate(value):
            _add_parts(fields, f"{path}[{place}]", part, depth - 1)
    else:
        try:
            fields[path] = json.dumps(value, ensure_ascii=False)[:_LONGEST_TEXT]
        except RecursionError:
            fields[path] = "nested too deeply to be shown"
