"""Showing bytes to people: finding out what they look like, and never failing on what they are.

Whatever stands in a topic is shown: JSON, text, numbers, msgpack, Avro with a registry, and else a hex dump. Bytes that
pretend to be something (JSON nested a million deep, half a character, marks that turn text around) come out as text
that is bounded, valid and harmless to look at.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.console.schemas import Schemas, framed_schema
from penstock.console.views import Decode, Shown
from penstock.console.visible import hidden_share, utf8_beginning, visible
from penstock.errors import ConfigError, SerdeError

ROW_CHARACTERS: Final = 2_048
WHOLE_CHARACTERS: Final = 1_048_576

_GUESSED_BYTES: Final = 64 * 1024
"""In a list, a larger value is not parsed as a whole: what it is, is told from its beginning."""
_MOST_HIDDEN: Final = 0.1
"""Text of which more than this cannot be seen is taken for bytes."""
_JSON_BEGINS: Final = re.compile(rb'[ \t\r\n]*(?:[{\["]|-?[0-9]|true|false|null)')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MSGPACK_CONTAINERS: Final = frozenset({*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF})
_BINARY_NUMBERS: Final = {1: ">b", 2: ">h", 4: ">i", 8: ">q"}
_FRACTIONS: Final = {4: ">f", 8: ">d"}
_DUMP_BYTES: Final = 16

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)
"""What decoders raise about bytes that are not theirs."""


@dataclass(frozen=True, slots=True)
class Showing:
    """How bytes are to be shown: in which form, how much of them, and whether for reading in a list or on their own."""

    decode: Decode = "auto"
    characters: int = ROW_CHARACTERS
    is_pretty: bool = False
    schemas: Schemas | None = None
    topic: str = ""

    def __post_init__(self) -> None:
        if self.decode not in _FORMS:
            raise ConfigError(f"{self.decode!r} is no form to show bytes in: use {', '.join(_FORMS)}")

    def show(self, data: bytes | None) -> Shown:
        if data is None:
            return Shown("null", "null", is_cut=False, size_bytes=0)
        if not data:
            return Shown("", "empty", is_cut=False, size_bytes=0)
        return _FORMS[self.decode](self, data)

    def shown(self, text: str, form: str, data: bytes, *, is_cut: bool = False, note: str | None = None) -> Shown:
        """Text of a form, cut to size and made visible."""
        is_cut = is_cut or len(text) > self.characters
        return Shown(visible(text[: self.characters]), form, is_cut, len(data), note)

    @property
    def parsed_bytes(self) -> int:
        """How large a value may be to be parsed as a whole."""
        return 64 * WHOLE_CHARACTERS if self.is_pretty else _GUESSED_BYTES


def _auto(showing: Showing, data: bytes) -> Shown:
    schema = framed_schema(data)
    if schema is not None:
        return _framed(showing, data, schema)
    return _json(showing, data) or _text(showing, data) or _msgpack(showing, data) or _hex(showing, data)


def _json(showing: Showing, data: bytes) -> Shown | None:
    if not _JSON_BEGINS.match(data):
        return None
    if len(data) > showing.parsed_bytes:
        text = utf8_beginning(data, 4 * showing.characters)
        is_container = data.lstrip()[:1] in (b"{", b"[")
        return showing.shown(text, "json", data, is_cut=True) if text is not None and is_container else None
    try:
        text = msgspec.json.format(data, indent=2 if showing.is_pretty else -1).decode()
    except UNDECODABLE:
        return None
    if text in ("true", "false"):
        return showing.shown(text, "boolean", data)
    return showing.shown(text, "number" if _NUMBER.fullmatch(text) else "json", data)


def _text(showing: Showing, data: bytes) -> Shown | None:
    text = utf8_beginning(data, 4 * showing.characters)
    if text is None or hidden_share(text) > _MOST_HIDDEN:
        return None
    return showing.shown(text, "text", data, is_cut=len(data) > 4 * showing.characters)


def _msgpack(showing: Showing, data: bytes) -> Shown | None:
    """Maps and arrays only: nearly any byte is some number in msgpack."""
    if data[0] not in _MSGPACK_CONTAINERS or not 2 <= len(data) <= showing.parsed_bytes:
        return None
    try:
        return showing.shown(_value_text(showing, msgspec.msgpack.decode(data)), "msgpack", data)
    except UNDECODABLE:
        return None


def _framed(showing: Showing, data: bytes, schema: int) -> Shown:
    if showing.schemas is None:
        note = f"written with schema {schema} of a registry: name the registry to see it decoded"
        return _hex(showing, data, form="registry", note=note)
    try:
        value, form = showing.schemas.decode(data, showing.topic)
        text = _json_text(showing, value) if form == "json" else _value_text(showing, value)
        return showing.shown(text, form, data, note=f"schema {schema}")
    except (SerdeError, *UNDECODABLE) as error:
        return _hex(showing, data, form="registry", note=f"schema {schema}: {_first_line(error)}")


def _hex(showing: Showing, data: bytes, form: str = "hex", note: str | None = None) -> Shown:
    if note is None and len(data) in _BINARY_NUMBERS:
        note = f"as a number {_binary_number(data)}"
    if showing.is_pretty:
        lines = showing.characters // 80 + 1
        text = "\n".join(_dump_line(data, at) for at in range(0, min(len(data), lines * _DUMP_BYTES), _DUMP_BYTES))
        return showing.shown(text, form, data, is_cut=len(data) > lines * _DUMP_BYTES, note=note)
    head = data[: min(len(data), 64)]
    return showing.shown(f"{head.hex(' ')}  {_printable(head)}", form, data, is_cut=len(head) < len(data), note=note)


def _forced_json(showing: Showing, data: bytes) -> Shown:
    if len(data) > showing.parsed_bytes:
        return _json(showing, data) or _hex(showing, data, note="no JSON")
    try:
        return showing.shown(_json_text(showing, data), "json", data)
    except UNDECODABLE as error:
        return _hex(showing, data, note=f"no JSON: {_first_line(error)}")


def _forced_text(showing: Showing, data: bytes) -> Shown:
    most = 4 * showing.characters
    text = utf8_beginning(data, most)
    note = None
    if text is None:
        text, note = data[:most].decode(errors="replace"), "no UTF-8: what is not is shown as \ufffd"
    return showing.shown(text, "text", data, is_cut=len(data) > most, note=note)


def _forced_number(showing: Showing, data: bytes) -> Shown:
    text = utf8_beginning(data, 4 * showing.characters)
    if text is not None and _NUMBER.fullmatch(text.strip()):
        return showing.shown(text.strip(), "number", data, is_cut=len(data) > 4 * showing.characters)
    if len(data) in _BINARY_NUMBERS:
        return showing.shown(_binary_number(data), "number", data)
    return _hex(showing, data, note="no number: neither digits nor 1, 2, 4 or 8 bytes")


def _forced_base64(showing: Showing, data: bytes) -> Shown:
    return showing.shown(base64.b64encode(data[: showing.characters]).decode(), "base64", data)


def _forced_msgpack(showing: Showing, data: bytes) -> Shown:
    try:
        return showing.shown(_value_text(showing, msgspec.msgpack.decode(data)), "msgpack", data)
    except UNDECODABLE as error:
        return _hex(showing, data, note=f"no msgpack: {_first_line(error)}")


def _forced_avro(showing: Showing, data: bytes) -> Shown:
    schema = framed_schema(data)
    if schema is None:
        return _hex(showing, data, note="no schema is named: it does not begin with a zero and a schema's number")
    return _framed(showing, data, schema)


_FORMS: Final[dict[str, Callable[[Showing, bytes], Shown]]] = {
    "auto": _auto,
    "json": _forced_json,
    "text": _forced_text,
    "number": _forced_number,
    "hex": _hex,
    "base64": _forced_base64,
    "msgpack": _forced_msgpack,
    "avro": _forced_avro,
}


def _json_text(showing: Showing, data: bytes) -> str:
    """JSON laid out anew, with its numbers and names as they were written."""
    return msgspec.json.format(data, indent=2 if showing.is_pretty else -1).decode()


def _value_text(showing: Showing, value: Any) -> str:
    """A decoded value as JSON; what JSON has no word for, such as bytes, as Python writes it."""
    return _json_text(showing, msgspec.json.encode(_plain(value, 100)))


def _plain(value: Any, depth: int) -> Any:
    """The value with only what JSON has. Nesting has a bound, as encoders' own is the size of the stack."""
    if depth == 0:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        return {
            name if isinstance(name, str) else str(_plain(name, depth - 1)): _plain(part, depth - 1)
            for name, part in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part, depth - 1) for part in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)


def _binary_number(data: bytes) -> str:
    """A number as Java's serialisers write it, and as a fraction where it might be one."""
    number = str(struct.unpack(_BINARY_NUMBERS[len(data)], data)[0])
    if len(data) in _FRACTIONS:
        fraction = struct.unpack(_FRACTIONS[len(data)], data)[0]
        if fraction == fraction and 1e-9 <= abs(fraction) <= 1e15:
            return f"{number} (as a fraction {fraction:g})"
    return number


def _dump_line(data: bytes, at: int) -> str:
    piece = data[at : at + _DUMP_BYTES]
    return f"{at:08x}  {piece.hex(' '):<{3 * _DUMP_BYTES - 1}}  {_printable(piece)}"


def _printable(data: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in data)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]
