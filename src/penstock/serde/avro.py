"""Avro, by fastavro: with a schema given or derived from a type, and with a registry that knows what others wrote."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import ConfigError, MissingExtraError, PenstockError, SerdeError
from penstock.serde.avro_schema import AvroSchema, avro_schema_of
from penstock.serde.made_again import MadeAgain
from penstock.serde.registry.framing import HEAD_BYTES, Framing, SubjectName, schema_id
from penstock.serde.registry.schema import Schema
from penstock.serde.typed import reason, undecodable
from penstock.serde.types import classes_of, is_anything, is_pydantic, name_of

if TYPE_CHECKING:
    from penstock.serde.registry.client import SchemaRegistry

_AVRO_KNOWS: Final = (bytes, bytearray, datetime.datetime, datetime.date, datetime.time, uuid.UUID)
"""What is handed to fastavro as it is, and comes from it."""


class AvroSerde(MadeAgain):
    """Values as Avro: `AvroSerde(Order)` derives the schema, `AvroSerde(schema)` carries dicts, `AvroSerde(schema,
    Order)` has both.

    Without a registry, who reads must have the schema of who wrote. With one, each value names the schema that it was
    written with, and is read into this one by Avro's rules: fields that were added have their defaults, those that were
    removed are skipped. `subject`, `register` and `for_keys` are as for `JsonSerde`.
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
        options = {"registry": registry, "subject": subject, "register": register, "for_keys": for_keys}
        self.made_with = ((schema, type), options)
        self._avro = _fastavro()
        form, described = _schema_and_type(schema, type)
        self.type = form
        self._text = json.dumps(described)
        try:
            self._parsed = self._avro.parse_schema(described)
        except Exception as error:
            raise ConfigError(f"this is no Avro schema: {error}") from error
        self.name: str = self._parsed.get("name", "") if isinstance(self._parsed, dict) else ""
        self._has_times = '"timestamp-' in self._text
        self._classes = None if is_anything(form) else classes_of(form)
        self._writers: dict[int, Any] = {}
        self._framing: Framing | None = None
        if registry is not None:
            self._framing = Framing(
                registry, self.schema, self.name or None, subject=subject, register=register, for_keys=for_keys
            )

    def schema(self) -> Schema:
        return Schema(self._text)

    def encode(self, value: object, topic: str) -> bytes | None:
        if value is None:
            return None
        if self._classes is not None and not isinstance(value, self._classes):
            raise SerdeError(
                f"topic {topic!r} carries {name_of(self.type)}, and was given a value of type {type(value).__name__}"
            )
        out = io.BytesIO()
        if self._framing is not None:
            out.write(self._framing.head(topic))
        try:
            plain = self._to_plain(value)
            if self._has_times:
                _refuse_times_without_zone(plain)
            # The writer itself would cut 1.5 to 1, and write numbers that no reader takes.
            self._avro.validation.validate(plain, self._parsed)
            self._avro.schemaless_writer(out, self._parsed, plain)
        except Exception as error:
            raise SerdeError(
                f"topic {topic!r}: a value of type {type(value).__name__} cannot be written as Avro{self._called}: "
                f"{_complaint(error)}"
            ) from error
        return out.getvalue()

    def decode(self, data: bytes | None, topic: str) -> Any:
        if data is None:
            return None
        if self._framing is None:
            start, writer = 0, self._parsed
        else:
            start, writer = HEAD_BYTES, self._writer(schema_id(data, topic), topic)
        source = io.BytesIO(data)
        source.seek(start)
        try:
            plain = self._avro.schemaless_reader(source, writer, self._parsed if writer is not self._parsed else None)
            if source.tell() != len(data):
                raise ValueError(f"{len(data) - source.tell()} bytes are left over")
            return self._from_plain(plain)
        except PenstockError:
            raise
        except Exception as error:
            raise undecodable(topic, data, f"Avro{self._called}", error) from error

    def decoder(self, topic: str) -> Callable[[bytes], Any]:
        def decode(data: bytes) -> Any:
            return self.decode(data, topic)

        return decode

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
        """The schema that a value was written with, ready to read with; kept, as it never changes."""
        writer = self._writers.get(id)
        if writer is None:
            assert self._framing is not None
            schema = self._framing.schema_of(id, topic)
            named: dict[str, Any] = {}
            try:
                self._add_references(schema, named)
                writer = self._avro.parse_schema(json.loads(schema.text), named_schemas=named)
            except (ValueError, KeyError, self._avro.schema.SchemaParseException) as error:
                raise SerdeError(f"topic {topic!r}: schema {id}, which a value names, is no Avro: {error}") from error
            self._writers[id] = writer
        return writer

    def _add_references(self, schema: Schema, named: dict[str, Any]) -> None:
        assert self._framing is not None
        for reference in schema.references:
            if reference.name not in named:
                referred = self._framing.registry.version(reference.subject, reference.version).schema
                self._add_references(referred, named)
                self._avro.parse_schema(json.loads(referred.text), named_schemas=named)

    @property
    def _called(self) -> str:
        return f" {self.name}" if self.name else ""

    def __repr__(self) -> str:
        return f"AvroSerde({self.name or self._text})"


def _schema_and_type(schema: Any, form: Any) -> tuple[Any, AvroSchema]:
    """The type of the values, None for what Avro itself gives, and the schema as JSON has it."""
    if isinstance(schema, str):
        try:
            return form, json.loads(schema)
        except ValueError:
            return form, schema  # the name of a primitive type
    if isinstance(schema, dict | list):
        return form, schema
    if form is not None:
        raise ConfigError(f"AvroSerde was given {schema!r} as schema: give JSON text, a dict, or a type alone")
    if is_anything(schema) or schema is bytes:
        raise ConfigError("Avro needs a schema: give AvroSerde(schema), or a type to derive it from")
    return schema, avro_schema_of(schema)


def _refuse_times_without_zone(plain: Any) -> None:
    """Avro's timestamps are moments; a time without a zone would silently be taken as this machine's."""
    if isinstance(plain, datetime.datetime):
        if plain.tzinfo is None:
            raise ValueError(f"the time {plain.isoformat()} has no time zone: add one, such as tzinfo=datetime.UTC")
    elif isinstance(plain, dict):
        for part in plain.values():
            _refuse_times_without_zone(part)
    elif isinstance(plain, list | tuple):
        for part in plain:
            _refuse_times_without_zone(part)


def _complaint(error: Exception) -> str:
    """What is wrong with a value, on one line."""
    errors = getattr(error, "errors", None)
    return "; ".join(map(str, errors)) if isinstance(errors, list | tuple) else reason(error)


def _fastavro() -> ModuleType:
    try:
        import fastavro
        import fastavro.schema
        import fastavro.validation
    except ImportError as error:
        raise MissingExtraError("Avro", "avro") from error
    return fastavro
