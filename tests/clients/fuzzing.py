"""Requests of every API and version that the broker accepts, valid ones and broken ones, from a seed.

A request is made from kio's schemas as a list of tokens, so that it can be broken where it hurts: counts, lengths,
nulls, tags, and the bytes in between.
"""

from __future__ import annotations

import dataclasses
import random
import struct
import typing
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema

from penstock.broker.versions import FLEXIBLE_HEADERS, PRODUCE, SUPPORTED
from penstock.broker.wire.primitives import uvarint
from penstock.broker.wire.shapes import FIXED, Shape, shape_of
from tests.clients.batches import batch

EVERY_VERSION: Final = [
    (api_key, version) for api_key, (low, high) in sorted(SUPPORTED.items()) for version in range(low, high + 1)
]
FIRST_PRODUCE_SCHEMA: Final = 3
"""Older versions of Produce are the same but for a first field that they lack. kio does not have them."""

_LAYOUTS: Final = FIXED | {"timedelta_i32": FIXED["int32"], "timedelta_i64": FIXED["int64"]}
_NO_ID: Final = uuid.UUID(int=0)
_LONG_VARINTS: Final = (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\xff" * 10)


class Token(NamedTuple):
    """A piece of a request: `size` is a count or a length, and how it is written."""

    data: bytes
    size: typing.Literal["", "uvarint", "int16", "int32"] = ""


@dataclasses.dataclass(frozen=True)
class Things:
    """What requests are about: names that exist, and ids."""

    topics: Sequence[str] = ("orders",)
    topic_ids: Sequence[uuid.UUID] = (uuid.UUID(int=7),)
    groups: Sequence[str] = ("readers", "writers")
    transactional_ids: Sequence[str] = ("transfer",)


class Requests:
    """Makes requests. The same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.things = Things()
        self._batch = batch([b"one", b"two", b"three"])

    def next_frame(self) -> bytes:
        """A request, more often broken than not, without the length in front."""
        if self.chance.random() < 0.03:
            return self.chance.randbytes(self.chance.randrange(8, 200))
        api_key, version = self.chance.choice(EVERY_VERSION)
        tokens = [*self.header(api_key, version), *self.body(api_key, version)]
        if self.chance.random() < 0.25:
            return joined(tokens)
        return self.broken(tokens)

    def header(self, api_key: int, version: int) -> list[Token]:
        tokens = [Token(struct.pack(">hhi", api_key, version, self.chance.randrange(1 << 31))), *self._text(4, False)]
        return [*tokens, self._tags()] if version >= FLEXIBLE_HEADERS[api_key] else tokens

    def body(self, api_key: int, version: int) -> list[Token]:
        if api_key == PRODUCE and version < FIRST_PRODUCE_SCHEMA:
            schema = load_request_schema(PRODUCE, FIRST_PRODUCE_SCHEMA)
            return self.structure(schema, leave_out="transactional_id")
        return self.structure(load_request_schema(api_key, version))

    def structure(self, schema: Any, leave_out: str = "", entries: int | None = None) -> list[Token]:
        """A structure of a schema. With `entries`, its own arrays have so many, and further arrays one each."""
        flexible = bool(schema.__flexible__)
        tokens: list[Token] = []
        for field, shape in _fields(schema):
            if field.name != leave_out and "tag" not in field.metadata:
                tokens += self._field(field, shape, flexible, entries)
        return [*tokens, self._tags()] if flexible else tokens

    def _field(self, field: dataclasses.Field[Any], shape: Shape, flexible: bool, entries: int | None) -> list[Token]:
        one = self._one(field, shape, flexible, None if entries is None else 1)
        if not shape.is_array:
            return [Token(b"\x01"), *one()] if shape.schema and shape.optional else one()
        count = self.chance.choice((0, 1, 1, 1, 2, 3)) if entries is None else entries
        return [_size(count, flexible, "int32"), *(token for _ in range(count) for token in one())]

    def _one(
        self, field: dataclasses.Field[Any], shape: Shape, flexible: bool, entries: int | None
    ) -> Callable[[], list[Token]]:
        schema = shape.schema
        if schema is not None:
            return lambda: self.structure(schema, entries=entries)
        kind, name = field.metadata["kafka_type"], field.name
        if kind in _LAYOUTS:
            return lambda: [Token(_LAYOUTS[kind].pack(self._number(name, kind)))]
        if kind == "uuid":
            return lambda: [Token(self.chance.choice((*self.things.topic_ids, _NO_ID)).bytes)]
        if kind == "string":
            return lambda: self._text(name, flexible)
        return lambda: self._data(kind, flexible)

    def _number(self, name: str, kind: str) -> Any:
        if kind == "bool":
            return self.chance.random() < 0.5
        if kind == "float64":
            return self.chance.random()
        bits = 8 * _LAYOUTS[kind].size
        if self.chance.random() < 0.03:
            return self.chance.choice((-(1 << (bits - 1)), (1 << (bits - 1)) - 1))
        if kind.startswith("timedelta") or "timeout" in name:
            return self.chance.choice((-1, 0, 1, 20, 50))
        return self.chance.choice((-2, -1, -1, 0, 0, 0, 1, 1, 2, 3, 5, 100))

    def _text(self, name: str | int, flexible: bool) -> list[Token]:
        word = str(name)
        if "group" in word:
            text = self.chance.choice(self.things.groups)
        elif "transactional" in word:
            text = self.chance.choice(self.things.transactional_ids)
        elif self.chance.random() < 0.02:
            text = self.chance.choice(("", "ü" * 20, "x" * 300, "\x1b[31m\n", "x" * 0x7FFF))
        else:
            text = self.chance.choice((*self.things.topics, "range", "consumer", "1", "nobody"))
        data = text.encode()
        return [_size(len(data), flexible, "int16"), Token(data)]

    def _data(self, kind: str, flexible: bool) -> list[Token]:
        data = self._batch if kind == "records" else b"\0\0\0\0\0\1\0\1t\0\0\0\0"
        if self.chance.random() < 0.3:
            data = _damaged(bytearray(data), self.chance)
        return [_size(len(data), flexible, "int32"), Token(data)]

    def _tags(self) -> Token:
        if self.chance.random() < 0.98:
            return Token(b"\0")
        return Token(b"\x01" + uvarint(self.chance.randrange(1000)) + b"\x03abc")

    # Breaking.

    def broken(self, tokens: list[Token]) -> bytes:
        kind = self.chance.randrange(8)
        if kind <= 2:
            places = [place for place, token in enumerate(tokens) if token.size]
            for place in self.chance.sample(places, min(len(places), self.chance.choice((1, 1, 1, 2)))):
                tokens[place] = Token(self.chance.choice(lies_about(tokens[place])))
            return joined(tokens)
        frame = bytearray(joined(tokens))
        if kind == 3:
            del frame[self.chance.randrange(8, len(frame) + 1) :]
        elif kind == 4:
            place = self.chance.randrange(8, len(frame) + 1)
            frame[place:place] = self.chance.randbytes(self.chance.randrange(1, 9))
        elif kind == 5:
            frame[:4] = struct.pack(">hh", self.chance.choice((-1, 4, 52, 68, 999)), self.chance.randrange(-1, 30))
        elif kind == 6:
            frame += self.chance.choice(_LONG_VARINTS) + self.chance.randbytes(self.chance.randrange(20))
        else:
            frame[8:] = _damaged(frame[8:], self.chance)
        return bytes(frame)


def joined(tokens: Sequence[Token]) -> bytes:
    return b"".join(token.data for token in tokens)


def lies_about(token: Token) -> list[bytes]:
    """What can stand in the place of a count or length: null, one off, negative, and as large as can be."""
    if token.size == "uvarint":
        said = token.data[0]
        return [b"\0", uvarint(said + 1), uvarint(max(said - 1, 0)), b"\xff\x7f", *_LONG_VARINTS]
    layout = _LAYOUTS[token.size]
    most = (1 << (8 * layout.size - 1)) - 1
    (said,) = layout.unpack(token.data)
    return [
        layout.pack(number) for number in (-1, -2, -most - 1, min(said + 1, most), max(said - 1, -1), most // 2, most)
    ]


def _size(size: int, flexible: bool, layout: typing.Literal["int16", "int32"]) -> Token:
    return Token(uvarint(size + 1), "uvarint") if flexible else Token(_LAYOUTS[layout].pack(size), layout)


def _damaged(data: bytearray, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 8)) if data else 0):
        data[chance.randrange(len(data))] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(data)


@cache
def _fields(schema: Any) -> list[tuple[dataclasses.Field[Any], Shape]]:
    hints = typing.get_type_hints(schema)
    return [(field, shape_of(hints[field.name])) for field in dataclasses.fields(schema)]
