"""Values to bytes, the plain way: bytes and text as they are, everything else as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from penstock.errors import ConfigError, SerdeError
from penstock.model import Headers
from penstock.serde.made_again import MadeAgain

NewHeaders = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]] | None
"""Headers as a user gives them."""


class PlainSerde(MadeAgain):
    """For topics that are known by name alone: sends bytes and text as they are, anything else as JSON; reads bytes."""

    def encode(self, value: object, topic: str) -> bytes | None:
        return encode_as_json_unless_text(value, f"topic {topic!r}: a value")

    def decode(self, data: bytes | None, topic: str) -> bytes | None:
        return data

    def decoder(self, topic: str) -> Callable[[bytes], bytes]:
        return as_it_is

    def __repr__(self) -> str:
        return "PlainSerde()"


def as_it_is(data: bytes) -> bytes:
    return data


def encode_as_json_unless_text(value: object, what: str) -> bytes | None:
    """The bytes of a key or a value. None stays None, which is not the same as empty."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise SerdeError(
            f"{what} of type {type(value).__name__} cannot be sent: {error}. "
            "Give bytes, text, or something that JSON can express"
        ) from error


def encode_headers(headers: NewHeaders) -> Headers:
    """Headers from a mapping or from pairs, which may name one header more than once."""
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    encoded = []
    for name, value in pairs:
        if not isinstance(name, str):
            raise ConfigError(f"the header name {name!r} is not text")
        if not isinstance(value, str | bytes | None):
            raise ConfigError(f"the header {name!r} has a value of type {type(value).__name__}: give bytes or text")
        try:
            if not name.isascii():
                name.encode()
            encoded.append((name, value.encode() if isinstance(value, str) else value))
        except UnicodeEncodeError as error:
            raise ConfigError(f"the header {name!r} cannot be sent: {error}") from error
    return tuple(encoded)
