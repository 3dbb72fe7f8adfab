"""Values to bytes, the plain way: bytes and text as they are, everything else as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.errors import ConfigError
from penstock.model import Headers


def encode_as_json_unless_text(value: object, what: str) -> bytes | None:
    """The bytes of a key or a value. None stays None, which is not the same as empty."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        return msgspec.json.encode(value)
    except (TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{what} of type {type(value).__name__} cannot be sent: {error}. "
            "Give bytes, text, or something that JSON can express"
        ) from error


def encode_headers(
    headers: Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]] | None,
) -> Headers:
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
        encoded.append((name, value.encode() if isinstance(value, str) else value))
    return tuple(encoded)
