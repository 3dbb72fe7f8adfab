"""Avro values by fastavro, with a schema given or derived from a type, and optionally a schema registry."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import ConfigError, MissingExtraError, SerdeError
from penstock.serde.avro_schema import AvroSchema, avro_schema_of
from penstock.serde.registry.framing import HEAD_BYTES, Framing, SubjectName, schema_id
from penstock.serde.registry.schema import Schema
from penstock.serde.typed import Decode, TypedSerde
from penstock.serde.types import is_anything, is_pydantic

if TYPE_CHECKING:
    from penstock.serde.registry.client import SchemaRegistry

_AVRO_KNOWS: Final = (bytes, bytearray, datetime.datetime, datetime.date, datetime.time, uuid.UUID)
"""Types that fastavro handles itself."""


class AvroSerde(TypedSerde):
    """Values as Avro: `AvroSerde(Order)` derives the schema, `AvroSerde(schema)` carries dicts, `AvroSerde(schema,
    Order)` uses both.

    Without a registry, readers need the writer's schema. With one, each value names the schema it was written with, and
    is resolved to this one by Avro's rules: added fields get their defaults, removed fields are skipped. `subject`,
    `register` and `for_keys` are as for `JsonSerde`.
    """

    def __init__(
        self,
        schema: Any,
        type: Any = None,
        *,
        registry: SchemaRegistry | None = None,
        subject: str | SubjectName = "topic",
        register: bool = True,
        for_keys: bool = False,
    ) -> None:
        options: dict[str, Any] = {"registry": registry, "subject": subject, "register": register, "for_keys": for_keys}
        self.made_with = ((schema, type), options)
        self._avro = _fastavro()
        form, described = _schema_and_type(schema, type)
        self._text = json.dumps(described)
        try:
            self._parsed = self._avro.parse_schema(described)
        except Exception as error:
            raise ConfigError(f"this is not an Avro schema: {error}") from error
        self.name: str = self._parsed.get("name", "") if isinstance(self._parsed, dict) else ""
        self._has_times = '"timestamp-' in self._text
        self._writers: dict[int, Any] = {}
        framing = Framing(self.schema, self.name or None, **options) if registry is not None else None
        super().__init__(form, self._write, self._read, framing=framing)
        self.FORMAT = self.carries = f"Avro {self.name}".rstrip()

    def schema(self) -> Schema:
        return Schema(self._text)

    def decoder(self, topic: str) -> Decode:
        if self._framing is None:
            return self._read

        def decode(data: bytes) -> Any:
            return self._read(data, HEAD_BYTES, self._writer(schema_id(data, topic), topic))

        return decode

    def _write(self, value: Any) -> bytes:
        plain = self._to_plain(value)
        if self._has_times:
            _refuse_times_without_zone(plain)
        # The writer itself would truncate 1.5 to 1, and write numbers that readers reject.
        self._avro.validation.validate(plain, self._parsed)
        out = io.BytesIO()
        self._avro.schemaless_writer(out, self._parsed, plain)
        return out.getvalue()

    def _read(self, data: bytes, start: int = 0, writer: Any = None) -> Any:
        """Decode a value that was written with the schema `writer`; None: with this one."""
        source = io.BytesIO(data)
        source.seek(start)
        plain = self._avro.schemaless_reader(source, writer or self._parsed, self._parsed if writer else None)
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes are left over")
        return self._from_plain(plain)

    def _to_plain(self, value: Any) -> Any:
        if is_anything(self.type):
            return value
        if is_pydantic(self.type):
            return value.model_dump(by_alias=True, round_trip=True)
        return msgspec.to_builtins(value, builtin_types=_AVRO_KNOWS)

    def _from_plain(self, plain: Any) -> Any:
        if is_anything(self.type):
            return plain
        if is_pydantic(self.type):
            return self.type.model_validate(plain)
        return msgspec.convert(plain, self.type, builtin_types=_AVRO_KNOWS)

    def _writer(self, id: int, topic: str) -> Any:
        """The parsed schema that a value was written with; cached, because it never changes."""
        writer = self._writers.get(id)
        if writer is None:
            assert self._framing is not None
            schema = self._framing.schema_of(id, topic)
            named: dict[str, Any] = {}
            try:
                self._add_references(schema, named)
                writer = self._avro.parse_schema(json.loads(schema.text), named_schemas=named)
            except (ValueError, KeyError, self._avro.schema.SchemaParseException) as error:
                raise SerdeError(f"topic {topic!r}: schema {id}, which a value names, is not Avro: {error}") from error
            self._writers[id] = writer
        return writer

    def _add_references(self, schema: Schema, named: dict[str, Any]) -> None:
        assert self._framing is not None
        for reference in schema.references:
            if reference.name not in named:
                referred = self._framing.registry.version(reference.subject, reference.version).schema
                self._add_references(referred, named)
                self._avro.parse_schema(json.loads(referred.text), named_schemas=named)

    def __repr__(self) -> str:
        return f"AvroSerde({self.name or self._text})"


def _schema_and_type(schema: Any, form: Any) -> tuple[Any, AvroSchema]:
    """The type of the values, None for fastavro's own, and the schema as JSON."""
    if isinstance(schema, str):
        try:
            return form, json.loads(schema)
        except ValueError:
            return form, schema  # the name of a primitive type
    if isinstance(schema, dict | list):
        return form, schema
    if form is not None:
        raise ConfigError(f"AvroSerde was given {schema!r} as schema: pass JSON text, a dict, or a type alone")
    if is_anything(schema) or schema is bytes:
        raise ConfigError("Avro needs a schema: use AvroSerde(schema), or a type to derive it from")
    return schema, avro_schema_of(schema)


def _refuse_times_without_zone(plain: Any) -> None:
    """Avro's timestamps are instants; a time without a zone would silently be taken as local time."""
    if isinstance(plain, datetime.datetime):
        if plain.tzinfo is None:
            raise ValueError(f"the time {plain.isoformat()} has no time zone: add one, such as tzinfo=datetime.UTC")
    elif isinstance(plain, dict):
        for part in plain.values():
            _refuse_times_without_zone(part)
    elif isinstance(plain, list | tuple):
        for part in plain:
            _refuse_times_without_zone(part)


def _fastavro() -> ModuleType:
    try:
        import fastavro
        import fastavro.schema
        import fastavro.validation
    except ImportError as error:
        raise MissingExtraError("Avro", "avro") from error
    return fastavro
