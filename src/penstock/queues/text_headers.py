"""Keys, headers and identities of records in systems whose headers are text."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.model import Headers

_decoder: Final = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]])


def text_of(data: bytes) -> str | None:
    """Bytes as text, if they are UTF-8 without a NUL, which some systems cannot transmit."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def plain(headers: Headers, is_allowed: Callable[[str, str], bool]) -> dict[str, str] | None:
    """The headers as they are, if every value is text, no name occurs twice, and all are allowed; else None."""
    found: dict[str, str] = {}
    for name, value in headers:
        text = None if value is None else text_of(value)
        if text is None or name in found or not is_allowed(name, text):
            return None
        found[name] = text
    return found


def packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def unpacked(text: str) -> bytes | None:
    """The bytes that `packed` encoded. None for a header of another program that has our name."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def packed_headers(headers: Headers) -> str:
    """Headers of any kind, as base64 of MessagePack."""
    return packed(msgspec.msgpack.encode(headers))


def unpacked_headers(text: str) -> Headers | None:
    """The headers that `packed_headers` encoded; None for other text."""
    data = unpacked(text)
    try:
        return None if data is None else tuple(_decoder.decode(data))
    except msgspec.MsgspecError:
        return None


def number_of(text: str | None) -> int | None:
    """The number in a header; None if it is not one."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def offset_of(unique: str | bytes) -> int:
    """A number of 63 bits made from the id of a message, the same at each delivery."""
    identity = unique.encode() if isinstance(unique, str) else unique
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest()) >> 1
