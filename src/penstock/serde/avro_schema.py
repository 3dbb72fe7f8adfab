"""Deriving Avro schemas from Python types, with defaults, so that schemas can evolve."""

from __future__ import annotations

import enum
import re
from typing import Any, Final

import msgspec
from msgspec import inspect

from penstock.errors import ConfigError
from penstock.serde.typed import why_untold
from penstock.serde.types import is_pydantic, name_of

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
        raise ConfigError(f"{name_of(form)} has no Avro schema: {why_untold(error)}") from error


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
