"""What `penstock produce` reads: a line is a value, a key and a value, or a JSON object."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.errors import PenstockError
from penstock.model import Headers

FIELDS: Final = frozenset(
    {"key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition", "topic", "offset"}
)
"""What may stand in a JSON object. `topic` and `offset`, which `consume --format json` writes, are passed over, so that
its output can be produced again."""


class BadInputError(PenstockError):
    """A line of the input cannot be sent."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")
        self.number = number
        self.reason = reason


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A line of the input, ready to be sent."""

    number: int
    """Of the line, counted from 1."""
    length_bytes: int
    """Of the line, with its end."""
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


Parser = Callable[[int, int, bytes], InputRecord]


def read_records(lines: Iterable[bytes], parse: Parser) -> Iterator[InputRecord]:
    """The records of the lines. BadInputError for the first that is none."""
    for number, line in enumerate(lines, start=1):
        yield parse(number, len(line), line.removesuffix(b"\n"))


def parse_value(number: int, length_bytes: int, line: bytes) -> InputRecord:
    """The line is the value."""
    return InputRecord(number, length_bytes, line)


def parse_key_and_value(separator: bytes) -> Parser:
    """The line is a key, the separator, and a value, in which the separator may stand again."""

    def parse(number: int, length_bytes: int, line: bytes) -> InputRecord:
        key, found, value = line.partition(separator)
        if not found:
            raise BadInputError(number, f"the key separator {separator.decode(errors='replace')!r} is not in it")
        return InputRecord(number, length_bytes, value, key)

    return parse


def parse_json(number: int, length_bytes: int, line: bytes) -> InputRecord:
    """The line is an object with `value` and perhaps `key`, `headers`, `timestamp` and `partition`.

    Text is sent as it is, other values as JSON. What is not text comes as `value_base64` and `key_base64`.
    """
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise BadInputError(number, f"no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadInputError(number, 'not a JSON object, such as {"key": "ada", "value": "hello"}')
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        raise BadInputError(number, f"unknown field {unknown[0]!r}; known are {', '.join(sorted(FIELDS))}")
    if "value" not in fields and "value_base64" not in fields:
        raise BadInputError(number, 'no "value"; write "value": null for a record without one')
    return InputRecord(
        number,
        length_bytes,
        _bytes(number, fields, "value"),
        _bytes(number, fields, "key"),
        _headers(number, fields.get("headers")),
        _whole_number(number, fields, "timestamp", least=1),
        _whole_number(number, fields, "partition", least=0),
    )


def _bytes(number: int, fields: dict[str, Any], name: str) -> bytes | None:
    encoded = f"{name}_base64"
    if encoded in fields:
        if name in fields:
            raise BadInputError(number, f'both "{name}" and "{encoded}"')
        return _from_base64(number, encoded, fields[encoded])
    value = fields.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _from_base64(number: int, name: str, text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise BadInputError(number, f'"{name}" is not base64')


def _headers(number: int, headers: object) -> Headers:
    pairs: list[Any] = list(headers.items()) if isinstance(headers, dict) else headers  # type: ignore[assignment]
    if pairs is None:
        return ()
    if not isinstance(pairs, list):
        raise BadInputError(number, '"headers" is neither an object nor a list of [name, value]')
    found = []
    for pair in pairs:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise BadInputError(number, f"a header is not [name, value] but {msgspec.json.encode(pair).decode()}")
        found.append((pair[0], _header_value(number, pair[0], pair[1])))
    return tuple(found)


def _header_value(number: int, name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return _from_base64(number, f"headers.{name}", value["base64"])
    raise BadInputError(number, f'the header {name!r} is neither text, null nor {{"base64": "..."}}')


def _whole_number(number: int, fields: dict[str, Any], name: str, least: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInputError(
            number, f'"{name}" is {msgspec.json.encode(value).decode()}, not a whole number from {least}'
        )
    return value
