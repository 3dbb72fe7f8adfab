"""What the records of a keyed topic do to its table: set the row of a key, delete it, or truncate.

The one decoder of changes, for values that are the rows themselves, for the flat form of change data capture, and for
Debezium's envelope.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from penstock.errors import SerdeError
from penstock.serde import Topic
from penstock.serde.plain import PlainSerde
from penstock.serde.types import is_protobuf

TRUNCATE_KEY: Final = b'{"__op":"t"}'
"""The key of a truncate, which deletes all earlier rows of its partition. A compacted topic refuses records without a
key."""
TRUNCATED: Final = "t"
DELETED: Final = "d"
ADDED_FIELDS: Final = ("__op", "__ts_ms", "__lsn", "__sequence", "__pos")
"""What the flat form adds to a row."""


class ChangeFormat(StrEnum):
    """What the values of a topic are."""

    PLAIN = "plain"
    """The row; no value deletes it."""
    FLAT = "flat"
    """The row with `__op` and the position, as `penstock cdc --format flat` writes it."""
    DEBEZIUM = "debezium"
    """Debezium's envelope, with or without its schema."""


class Outcome(StrEnum):
    """What a record does to the table. `Decoded` has the rest."""

    SET = "set"
    DELETE = "delete"
    TRUNCATE = "truncate"
    NOTHING = "nothing"


class _Operation(msgspec.Struct):
    """What tells a truncate from a row, in both forms of change data capture, with or without a schema."""

    op: str | None = None
    flat_op: str | None = msgspec.field(default=None, name="__op")
    payload: _Operation | None = None


class _Envelope(msgspec.Struct):
    op: str | None = None
    after: msgspec.Raw = msgspec.Raw()
    payload: _Envelope | None = None


_operation: Final = msgspec.json.Decoder(_Operation).decode
_envelope: Final = msgspec.json.Decoder(_Envelope).decode


def is_truncate(key: bytes | None, value: bytes | None) -> bool:
    """Whether the record deletes all earlier rows of its partition.

    Debezium itself sends truncates without a key.
    """
    if value is None or (key is not None and key != TRUNCATE_KEY):
        return False
    try:
        found = _operation(value)
    except msgspec.DecodeError:
        return False
    found = found.payload or found
    return TRUNCATED in (found.op, found.flat_op)


class ChangeDecoder:
    """Decodes the keys and values of one topic."""

    def __init__(self, topic: Topic[Any], format: ChangeFormat) -> None:
        self._topic = topic
        self._format = format
        self._is_untyped = isinstance(topic.serde, PlainSerde)
        self.is_bytes = self._is_untyped and format is ChangeFormat.PLAIN
        """Whether rows are bytes: the topic was given by its name."""

    def outcome(self, key: bytes | None, value: bytes | None) -> tuple[Outcome, bytes | None]:
        """What the record does, and the bytes of the row that it sets. Raises SerdeError for a broken envelope."""
        if key is None or key == TRUNCATE_KEY:
            if is_truncate(key, value):
                return Outcome.TRUNCATE, None
            if key is None:
                return Outcome.NOTHING, None
        if value is None:
            return Outcome.DELETE, None
        return (Outcome.SET, value) if self._format is not ChangeFormat.DEBEZIUM else self._inside(value)

    def _inside(self, value: bytes) -> tuple[Outcome, bytes | None]:
        try:
            found = _envelope(value)
        except msgspec.DecodeError as error:
            raise SerdeError(
                f"topic {self._topic.name!r}: a value is not Debezium's envelope in JSON ({error}): pass the format in "
                f"which the topic was written, one of {', '.join(ChangeFormat)}"
            ) from error
        found = found.payload or found
        if found.op is None:
            raise SerdeError(
                f"topic {self._topic.name!r}: a value has no `op`, so it is not Debezium's envelope: pass the format "
                f"in which the topic was written, one of {', '.join(ChangeFormat)}"
            )
        after = bytes(found.after)
        if found.op == DELETED:
            return Outcome.DELETE, None
        if after in (b"", b"null"):
            return Outcome.NOTHING, None  # a message or a heartbeat
        return Outcome.SET, after

    def row(self, data: bytes) -> Any:
        """The row of these bytes. Raises SerdeError."""
        if self._format is ChangeFormat.PLAIN:
            return self._topic.decode(data)
        if not self._is_untyped:
            return self._without_about(self._topic.decode(data))
        try:
            return self._without_about(msgspec.json.decode(data))
        except msgspec.DecodeError as error:
            raise SerdeError(f"topic {self._topic.name!r}: a row is not JSON: {error}") from error

    def _without_about(self, row: Any) -> Any:
        if self._format is ChangeFormat.FLAT and type(row) is dict:
            for name in ADDED_FIELDS:
                row.pop(name, None)
        return row

    def key(self, data: bytes) -> Hashable:
        """The key that programs use: text if the bytes are UTF-8; in the forms of change data capture, the value of the
        primary key, a tuple if it has several columns. A topic with a `key_serde` decodes it. Raises SerdeError."""
        if self._format is not ChangeFormat.PLAIN and isinstance(self._topic.key_serde, PlainSerde):
            return self._primary_key(data)
        key = self._topic.decode_key(data)
        if type(key) is bytes:
            try:
                return key.decode()
            except UnicodeDecodeError:
                return key
        try:
            hash(key)
        except TypeError as error:
            raise SerdeError(
                f"topic {self._topic.name!r}: a {type(key).__name__} cannot be the key of a table: give the topic a "
                "key_serde whose values are hashable, such as text, numbers or a frozen dataclass"
            ) from error
        return key  # type: ignore[no-any-return]  # hashable, as was checked

    def _primary_key(self, data: bytes) -> Hashable:
        try:
            columns = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise SerdeError(f"topic {self._topic.name!r}: a key is not JSON: {error}") from error
        if isinstance(columns, dict) and isinstance(columns.get("payload"), dict) and "schema" in columns:
            columns = columns["payload"]
        if not isinstance(columns, dict) or not columns:
            return _hashable(columns)
        values = tuple(map(_hashable, columns.values()))
        return values[0] if len(values) == 1 else values

    def stored_key(self, key: Hashable) -> bytes:
        """Bytes that identify a key of `key` on disk. Raises SerdeError for what cannot be a key of this topic."""
        if self._format is not ChangeFormat.PLAIN and isinstance(self._topic.key_serde, PlainSerde):
            return msgspec.json.encode(key)
        if type(key) is str and isinstance(self._topic.key_serde, PlainSerde):
            return key.encode()
        encoded = self._topic.key_serde.encode(key, self._topic.name)
        return b"" if encoded is None else encoded

    def loaded_key(self, stored: bytes) -> Hashable:
        """The key of `stored_key`."""
        if self._format is not ChangeFormat.PLAIN and isinstance(self._topic.key_serde, PlainSerde):
            return _hashable(msgspec.json.decode(stored))
        return self.key(stored)

    def keys_of_text(self, text: str) -> list[Any]:
        """The keys that this text may mean, likeliest first: itself, and what it is as JSON or to the topic's serde."""
        found: list[Any] = []
        if isinstance(self._topic.key_serde, PlainSerde):
            found.append(text)
            if self._format is not ChangeFormat.PLAIN:
                with contextlib.suppress(msgspec.DecodeError):
                    found.append(_hashable(msgspec.json.decode(text)))
        else:
            with contextlib.suppress(SerdeError):
                found.append(self.key(text.encode()))
        return found


def _hashable(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((name, _hashable(each)) for name, each in value.items())
    return value  # type: ignore[no-any-return]  # any other value of JSON


Extract = Callable[[Any], Any]


def field_of(name: str) -> Extract:
    """A function that returns a field of a row, an item of a mapping or else an attribute; None where it is absent."""

    def extract(row: Any) -> Any:
        return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)

    return extract


def plain_value(value: Any) -> Any:
    """What msgspec does not encode by itself: pydantic models, Protobuf messages, and otherwise text."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if is_protobuf(type(value)):
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value, preserving_proto_field_name=True)
    if isinstance(value, memoryview):
        return base64.b64encode(value).decode()
    return str(value)
