"""The serdes of what is bytes already, or nearly."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import SerdeError
from penstock.serde.made_again import MadeAgain
from penstock.serde.plain import as_it_is


class BytesSerde(MadeAgain):
    """Bytes as they are. Bytearrays and memoryviews are copied when they are sent."""

    def encode(self, value: object, topic: str) -> bytes | None:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise SerdeError(
            f"topic {topic!r} carries bytes, and was given a value of type {type(value).__name__}: "
            f"give bytes, or say what the topic carries: Topic({topic!r}, {type(value).__name__})"
        )

    def decode(self, data: bytes | None, topic: str) -> bytes | None:
        return data

    def decoder(self, topic: str) -> Callable[[bytes], bytes]:
        return as_it_is

    def __repr__(self) -> str:
        return "BytesSerde()"


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
            raise SerdeError(f"topic {topic!r}: {len(data)} bytes are no text in UTF-8: {error}") from error

    def decoder(self, topic: str) -> Callable[[bytes], str]:
        return bytes.decode

    def __repr__(self) -> str:
        return "TextSerde()"
