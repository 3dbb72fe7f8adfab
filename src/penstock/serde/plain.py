"""Bytes and text as they are, and the default encoding, which sends everything else as JSON."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping

import msgspec

from penstock.errors import ConfigError, SerdeError
from penstock.model import Headers
from penstock.serde.made_again import MadeAgain

NewHeaders = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]] | None
"""Headers as users pass them."""


class _UndecodedSerde(MadeAgain):
    """Returns the bytes of a value as they are."""

    def decode(self, data: bytes | None, topic: str) -> bytes | None:
        return data

    def decoder(self, topic: str) -> Callable[[bytes], bytes]:
        return as_it_is


class PlainSerde(_UndecodedSerde):
    """For topics without a type: writes bytes and text as they are, anything else as JSON; reads bytes."""

    def encode(self, value: object, topic: str) -> bytes | None:
        return encode_as_json_unless_text(value, f"topic {topic!r}: a value")


class BytesSerde(_UndecodedSerde):
    """Bytes as they are. Bytearrays and memoryviews are copied."""

    def encode(self, value: object, topic: str) -> bytes | None:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise SerdeError(
            f"topic {topic!r} carries bytes, and was given a value of type {type(value).__name__}: "
            f"pass bytes, or say what the topic carries: Topic({topic!r}, {type(value).__name__})"
        )


class TextSerde(MadeAgain):
    """Text as UTF-8."""

    carries = "text in UTF-8"

    def encode(self, value: object, topic: str) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise SerdeError(
                f"topic {topic!r} carries text (str), and was given a value of type {type(value).__name__}"
            )
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise SerdeError(f"topic {topic!r}: the text cannot be written as UTF-8: {error}") from error

    def decode(self, data: bytes | None, topic: str) -> str | None:
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise SerdeError(f"topic {topic!r}: {len(data)} bytes are not text in UTF-8: {error}") from error

    def decoder(self, topic: str) -> Callable[[bytes], str]:
        return bytes.decode


def as_it_is(data: bytes) -> bytes:
    return data


def encode_as_json_unless_text(value: object, what: str) -> bytes | None:
    """Encode a key or a value. None stays None, which differs from empty."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        return value.encode() if isinstance(value, str) else encode_json(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise SerdeError(
            f"{what} of type {type(value).__name__} cannot be sent: {error}. "
            "Pass bytes, text, or a value that JSON can express"
        ) from error


def encode_json(value: object) -> bytes:
    """Encode a value as JSON. Raises ValueError for NaN and infinity, which msgspec would write as null."""
    data = msgspec.json.encode(value)
    if b"null" in data:
        check_numbers(msgspec.to_builtins(value))
    return data


def check_numbers(plain: object, written: object = None) -> None:
    """Raise ValueError for the first NaN or infinity, unless it is `written` as text."""
    found = _not_a_number(plain, written, "$")
    if found is not None:
        raise ValueError(
            f"{found} is not a JSON number: send None instead, omit it, or give the topic a serde "
            "that supports it, such as serde='msgpack'"
        )


def _not_a_number(plain: object, written: object, place: str) -> str | None:
    if isinstance(plain, float):
        return None if math.isfinite(plain) or isinstance(written, str) else f"{place} is {plain}, which"
    if isinstance(plain, dict):
        inside = written if isinstance(written, dict) else {}
        parts = ((each, inside.get(str(name)), f"{place}.{name}") for name, each in plain.items())
    elif isinstance(plain, list | tuple | set | frozenset):
        items = written if isinstance(written, list) else ()
        pairs = itertools.zip_longest(plain, items[: len(plain)])
        parts = ((each, other, f"{place}[{number}]") for number, (each, other) in enumerate(pairs))
    else:
        return None
    return next((found for part in parts if (found := _not_a_number(*part)) is not None), None)


def encode_headers(headers: NewHeaders) -> Headers:
    """Headers from a mapping or from pairs, in which a name may occur more than once."""
    if not headers:
        return ()
    try:
        pairs = [(name, value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the headers {headers!r} are not pairs of a name and a value: pass {{'name': 'value'}}, or a list of pairs"
        ) from error
    encoded = []
    for name, value in pairs:
        if not isinstance(name, str):
            raise ConfigError(f"the header name {name!r} must be text")
        if not isinstance(value, str | bytes | None):
            raise ConfigError(f"the header {name!r} has a value of type {type(value).__name__}: pass bytes or text")
        try:
            if not name.isascii():
                name.encode()
            encoded.append((name, value.encode() if isinstance(value, str) else value))
        except UnicodeEncodeError as error:
            raise ConfigError(f"the header {name!r} cannot be sent: {error}") from error
    return tuple(encoded)
