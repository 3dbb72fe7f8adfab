"""Avro values by fastavro, with a schema given or derived from a type, and optionally a schema registry."""

from __future__ import annotations

import datetime
import enum
import io
import json
import re
import uuid
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import inspect

from penstock.errors import ConfigError, MissingExtraError, SerdeError
from penstock.serde.registry.framing import HEAD_BYTES, Framing, SubjectName, schema_id
from penstock.serde.registry.schema import Schema
from penstock.serde.typed import Decode, TypedSerde, unresolved_type
from penstock.serde.types import is_anything, is_pydantic, name_of

if TYPE_CHECKING:
    from penstock.serde.registry.client import SchemaRegistry


AvroSchema = dict[str, Any] | list[Any] | str

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[dict[type[inspect.Type], AvroSchema]] = {
    inspect.NoneType: "null",
    inspect.BoolType: "boolean",
    inspect.IntType: "long",
    inspect.FloatType: "double",
    inspect.StrType: "string",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    inspect.DateType: {"type": "int", "logicalType": "date"},
    inspect.TimeType: {"type": "long", "logicalType": "time-micros"},
    inspect.UUIDType: {"type": "string", "logicalType": "uuid"},
    inspect.DecimalType: "string",
    inspect.TimeDeltaType: "string",
}
_ARRAYS: Final = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)
_NO_DEFAULT: Final = object()


def avro_schema_of(form: Any) -> AvroSchema:
    """The schema of a type. Raises ConfigError that says what Avro cannot express."""
    if is_pydantic(form):
        raise ConfigError(f"{name_of(form)} is a pydantic model: pass its schema, AvroSerde(schema, {name_of(form)})")
    try:
        return _Deriving(form).schema(inspect.type_info(form))
    except (TypeError, NameError) as error:
        raise ConfigError(f"{name_of(form)} has no Avro schema: {unresolved_type(error)}") from error


class _Deriving:
    """One derivation. It tracks names, because Avro defines a name once and then refers to it."""

    def __init__(self, form: Any) -> None:
        self._form = form
        self._named: dict[str, type] = {}

    def schema(self, info: inspect.Type) -> AvroSchema:
        if type(info) in _PLAIN:
            return _PLAIN[type(info)]
        if isinstance(info, inspect.Metadata):
            return self.schema(info.type)
        if isinstance(info, _ARRAYS):
            return {"type": "array", "items": self.schema(info.item_type)}
        if isinstance(info, inspect.DictType) and isinstance(info.key_type, inspect.StrType):
            return {"type": "map", "values": self.schema(info.value_type)}
        if isinstance(info, inspect.UnionType):
            return [self.schema(part) for part in sorted(info.types, key=_null_first)]
        if isinstance(info, inspect.EnumType):
            return self._enum(info.cls)
        if isinstance(info, inspect.LiteralType):
            return self._of_values(list(info.values), "its Literal")
        if isinstance(info, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
            return self._record(info)
        raise self._impossible(f"{type(info).__name__.removesuffix('Type')} ({info}) has no counterpart in Avro")

    def _record(self, info: inspect.StructType | inspect.DataclassType | inspect.TypedDictType) -> AvroSchema:
        name = info.cls.__name__
        if not _NAME.fullmatch(name):
            name = re.sub(r"\W+", "_", name).strip("_")
        if self._is_known(name, info.cls):
            return name
        fields: list[dict[str, Any]] = []
        if isinstance(info, inspect.StructType):
            if info.array_like:
                raise self._impossible(f"{name} is array_like")
            if info.tag_field is not None:
                symbols = {"type": "enum", "name": f"{name}_{info.tag_field}", "symbols": [str(info.tag)]}
                fields.append({"name": info.tag_field, "type": symbols})
        fields.extend(self._field(name, field) for field in info.fields)
        return {"type": "record", "name": name, "fields": fields}

    def _field(self, record: str, field: inspect.Field) -> dict[str, Any]:
        if not _NAME.fullmatch(field.encode_name):
            raise self._impossible(f"the name of {record}.{field.encode_name} is not allowed in Avro")
        schema = self.schema(field.type)
        default = _default_of(field)
        if not field.required and default is _NO_DEFAULT and field.default_factory is msgspec.NODEFAULT:
            raise self._impossible(f"{record}.{field.encode_name} may be missing, which Avro cannot express")
        described: dict[str, Any] = {"name": field.encode_name, "type": schema}
        if default is not _NO_DEFAULT:
            if isinstance(schema, list) and default is not None:  # a default must have the union's first type
                described["type"] = [part for part in schema if part != "null"] + [p for p in schema if p == "null"]
            described["default"] = default
        return described

    def _enum(self, form: type[enum.Enum]) -> AvroSchema:
        values = [member.value for member in form]
        if all(isinstance(value, str) and _NAME.fullmatch(value) for value in values):
            if self._is_known(form.__name__, form):
                return form.__name__
            return {"type": "enum", "name": form.__name__, "symbols": values}
        return self._of_values(values, form.__name__)

    def _of_values(self, values: list[Any], what: str) -> AvroSchema:
        kinds = {type(value) for value in values}
        if kinds == {str}:
            return "string"
        if kinds == {int}:
            return "long"
        raise self._impossible(f"{what} has values that are neither all text nor all integers")

    def _is_known(self, name: str, form: type) -> bool:
        """Whether the name was defined before, so that a reference suffices."""
        known = name in self._named
        if self._named.setdefault(name, form) is not form:
            raise self._impossible(f"two classes are called {name}")
        return known

    def _impossible(self, why: str) -> ConfigError:
        return ConfigError(
            f"{name_of(self._form)} has no Avro schema: {why}. Pass the schema itself: AvroSerde(schema)"
        )


def _null_first(info: inspect.Type) -> bool:
    return not isinstance(info, inspect.NoneType)


def _default_of(field: inspect.Field) -> Any:
    """The default as Avro writes it, if it can be written."""
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory in (list, dict, set, frozenset, tuple):
        default = field.default_factory()
    if default is None or (isinstance(default, bool | int | float | str) and not isinstance(default, enum.Enum)):
        return default
    if isinstance(default, enum.Enum) and isinstance(default.value, str | int):
        return default.value
    if isinstance(default, bytes):
        return default.decode("iso-8859-1")
    if isinstance(default, list | set | frozenset | tuple | dict) and not default:
        return {} if isinstance(default, dict) else []
    return _NO_DEFAULT


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
