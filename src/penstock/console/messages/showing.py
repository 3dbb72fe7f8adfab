"""Showing bytes to people: detecting their format, and never failing on any input.

Everything in a topic can be shown: JSON, text, numbers, msgpack, Avro with a registry, and else a hex dump. Hostile
bytes (JSON nested a million deep, half a character, direction marks) come out as text that is bounded, valid and
harmless.
"""

from __future__ import annotations

import base64
import re
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.console.views import Decode, Shown
from penstock.console.visible import hidden_share, utf8_beginning, visible
from penstock.errors import ConfigError, MissingExtraError, PenstockError, RegistryError, SerdeError
from penstock.model.retry import Retry
from penstock.serde.avro import AvroSerde
from penstock.serde.registry.client import SchemaRegistry
from penstock.serde.registry.framing import HEAD_BYTES
from penstock.serde.registry.schema import SchemaKind

_LARGEST_ID: Final = 50_000_000
"""Bytes that would name a higher schema id most likely are something else that begins with a zero."""
_PATIENCE_S: Final = 2.0
_BELIEVED_AWAY_S: Final = 30.0
"""How long a registry that could not be reached is not asked again."""
_MOST_SERDES: Final = 1_000


def framed_schema(data: bytes) -> int | None:
    """The schema id that these bytes start with; None when they do not look framed."""
    if len(data) <= HEAD_BYTES or data[0] != 0:
        return None
    id = int.from_bytes(data[1:HEAD_BYTES])
    return id if 1 <= id <= _LARGEST_ID else None


class Schemas:
    """Decodes framed values with a registry's schemas. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._registry = SchemaRegistry(url, timeout_s=_PATIENCE_S, retry=Retry(1))
        self._lock = threading.Lock()
        self._serdes: dict[int, Any] = {}
        self._away_until_s = 0.0
        self._problem = ""

    def decode(self, data: bytes, topic: str) -> tuple[Any, str]:
        """The value, and its format: avro or json. Raises SerdeError with the reason when there is none."""
        id = framed_schema(data)
        if id is None:
            raise SerdeError("it does not begin with a zero byte and a schema id")
        schema = self._schema(id)
        if schema.kind is SchemaKind.JSON:
            return data[HEAD_BYTES:], "json"
        if schema.kind is not SchemaKind.AVRO:
            raise SerdeError(f"schema {id} is {schema.kind.value.lower()}, which the console does not decode")
        try:
            return self._serde(id, schema.text).decode(data, topic), "avro"
        except SerdeError:
            raise
        except (PenstockError, MissingExtraError) as error:
            raise SerdeError(f"schema {id}: {error}") from error

    def _schema(self, id: int) -> Any:
        if time.monotonic() < self._away_until_s:
            raise SerdeError(self._problem)
        try:
            return self._registry.schema(id)
        except RegistryError as error:
            if error.status is None or error.status >= 500:
                self._problem = f"the schema registry does not answer: {error}"
                self._away_until_s = time.monotonic() + _BELIEVED_AWAY_S
            raise SerdeError(f"schema {id}: {error}") from error

    def _serde(self, id: int, text: str) -> Any:
        with self._lock:
            serde = self._serdes.get(id)
        if serde is None:
            serde = AvroSerde(text, registry=self._registry, register=False)
            with self._lock:
                if len(self._serdes) >= _MOST_SERDES:
                    self._serdes.clear()
                self._serdes[id] = serde
        return serde


ROW_CHARACTERS: Final = 2_048
WHOLE_CHARACTERS: Final = 1_048_576

_GUESSED_BYTES: Final = 64 * 1024
"""In a list, a larger value is not parsed as a whole: its format is detected from its beginning."""
_MOST_HIDDEN: Final = 0.1
"""Text with a larger share of invisible characters is treated as bytes."""
_JSON_BEGINS: Final = re.compile(rb'[ \t\r\n]*(?:[{\["]|-?[0-9]|true|false|null)')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MSGPACK_CONTAINERS: Final = frozenset({*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF})
_BINARY_NUMBERS: Final = {1: ">b", 2: ">h", 4: ">i", 8: ">q"}
_FRACTIONS: Final = {4: ">f", 8: ">d"}
_DUMP_BYTES: Final = 16

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)
"""What decoders raise for bytes of another format."""


@dataclass(frozen=True, slots=True)
class Showing:
    """How to show bytes: in which format, how much of them, and whether in a list or on their own."""

    decode: Decode = "auto"
    characters: int = ROW_CHARACTERS
    is_pretty: bool = False
    schemas: Schemas | None = None
    topic: str = ""

    def __post_init__(self) -> None:
        if self.decode not in _FORMS:
            raise ConfigError(f"{self.decode!r} is not a format: use {', '.join(_FORMS)}")

    def show(self, data: bytes | None) -> Shown:
        if data is None:
            return Shown("null", "null", is_cut=False, size_bytes=0)
        if not data:
            return Shown("", "empty", is_cut=False, size_bytes=0)
        return _FORMS[self.decode](self, data)

    def shown(self, text: str, form: str, data: bytes, *, is_cut: bool = False, note: str | None = None) -> Shown:
        """Text of a format, cut to size, with hidden characters made visible."""
        is_cut = is_cut or len(text) > self.characters
        return Shown(visible(text[: self.characters]), form, is_cut, len(data), note)

    @property
    def parsed_bytes(self) -> int:
        """The largest value that is parsed as a whole."""
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
    """Maps and arrays only: nearly any byte is a number in msgpack."""
    if data[0] not in _MSGPACK_CONTAINERS or not 2 <= len(data) <= showing.parsed_bytes:
        return None
    try:
        return showing.shown(_value_text(showing, msgspec.msgpack.decode(data)), "msgpack", data)
    except UNDECODABLE:
        return None


def _framed(showing: Showing, data: bytes, schema: int) -> Shown:
    if showing.schemas is None:
        note = f"written with schema {schema} of a registry: start the console with --registry to decode it"
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
        return _json(showing, data) or _hex(showing, data, note="not JSON")
    try:
        return showing.shown(_json_text(showing, data), "json", data)
    except UNDECODABLE as error:
        return _hex(showing, data, note=f"not JSON: {_first_line(error)}")


def _forced_text(showing: Showing, data: bytes) -> Shown:
    most = 4 * showing.characters
    text = utf8_beginning(data, most)
    note = None
    if text is None:
        text, note = data[:most].decode(errors="replace"), "not UTF-8: bad bytes are shown as \ufffd"
    return showing.shown(text, "text", data, is_cut=len(data) > most, note=note)


def _forced_number(showing: Showing, data: bytes) -> Shown:
    text = utf8_beginning(data, 4 * showing.characters)
    if text is not None and _NUMBER.fullmatch(text.strip()):
        return showing.shown(text.strip(), "number", data, is_cut=len(data) > 4 * showing.characters)
    if len(data) in _BINARY_NUMBERS:
        return showing.shown(_binary_number(data), "number", data)
    return _hex(showing, data, note="not a number: neither digits nor 1, 2, 4 or 8 bytes")


def _forced_base64(showing: Showing, data: bytes) -> Shown:
    return showing.shown(base64.b64encode(data[: showing.characters]).decode(), "base64", data)


def _forced_msgpack(showing: Showing, data: bytes) -> Shown:
    try:
        return showing.shown(_value_text(showing, msgspec.msgpack.decode(data)), "msgpack", data)
    except UNDECODABLE as error:
        return _hex(showing, data, note=f"not msgpack: {_first_line(error)}")


def _forced_avro(showing: Showing, data: bytes) -> Shown:
    schema = framed_schema(data)
    if schema is None:
        return _hex(showing, data, note="no schema: it does not begin with a zero byte and a schema id")
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
    """JSON reformatted, with its numbers and names as they were written."""
    return msgspec.json.format(data, indent=2 if showing.is_pretty else -1).decode()


def _value_text(showing: Showing, value: Any) -> str:
    """A decoded value as JSON; what JSON cannot express, such as bytes, as Python writes it."""
    return _json_text(showing, msgspec.json.encode(_plain(value, 100)))


def _plain(value: Any, depth: int) -> Any:
    """The value with only JSON types. Nesting is limited, as encoders are limited only by the stack."""
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
    """A number as Java's serialisers write it, and as a float where it might be one."""
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
