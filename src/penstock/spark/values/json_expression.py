"""From JSON to typed columns by Spark's own expressions, for real-time mode, which runs no Python.

`from_json` would convert numbers to text, missing fields to null, and ignore what follows the value. So the value is
parsed as a variant, and the type of every field is checked before it is used. The result is what the library would
decode, except that a few forms are refused: duplicate names in an object, integers written as 1.0, seconds with more
than six decimals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import inspect
from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.serde import Topic
from penstock.spark.values.plain_json import LISTS, RECORDS, Record, choices_of, default_of, parts_of, plain_record_of
from penstock.spark.values.types import columns_of

_MOMENT: Final = r"^(?!0000)\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?([Zz]|[+-]\d{2}:\d{2})$"
_DATE: Final = r"^(?!0000)\d{4}-\d{2}-\d{2}$"
_SPARK: Final[dict[type[inspect.Type], tuple[str, str]]] = {
    inspect.BoolType: ("boolean", r"^BOOLEAN$"),
    inspect.IntType: ("bigint", r"^BIGINT$"),
    inspect.FloatType: ("double", r"^(BIGINT|DOUBLE|DECIMAL.*)$"),
    inspect.StrType: ("string", r"^STRING$"),
}


@dataclass(frozen=True, slots=True)
class _Reading:
    column: Column
    good: Column
    """Whether it has the expected type; null if it is missing."""


def decode_expression(topic: Topic[Any], value_column: Column) -> tuple[Column, Column]:
    """The fields of a topic as one struct, and whether the bytes are not such a value.

    The struct is null then, and for a record without a value. Raises ConfigError, with the field, for topics that need
    Python: serdes other than JSON, pydantic and attrs classes, those with a `__post_init__`, types with constraints,
    dicts, decimals, bytes, UUIDs.
    """
    record = plain_record_of(topic)
    text = value_column.cast("string")
    # The parser stops at the end of the value. The hash after it proves that the value was complete.
    seal = F.sha2(value_column, 256)
    parsed = F.try_parse_json(F.concat(F.lit('{"value":'), text, F.lit(',"seal":"'), seal, F.lit('"}')))
    is_whole = F.is_valid_utf8(text) & (F.try_variant_get(parsed, "$.seal", "string") == seal)
    reading = _record(record, F.try_variant_get(parsed, "$.value", "variant"))
    is_good = F.coalesce(is_whole & reading.good, F.lit(False))
    is_bad = value_column.isNotNull() & ~is_good
    return F.when(is_good, reading.column).cast(columns_of(topic)), is_bad


def _record(info: Record, variant: Column) -> _Reading:
    parts = [(field.name, _field(field, variant)) for field in info.fields]
    good = F.schema_of_variant(variant).startswith("OBJECT")
    for _, part in parts:
        good = good & F.coalesce(part.good, F.lit(False))
    return _Reading(F.struct(*(part.column.alias(name) for name, part in parts)), good)


def _field(field: inspect.Field, record: Column) -> _Reading:
    variant = F.try_variant_get(record, f"$['{field.encode_name}']", "variant")
    inner, optional = parts_of(field.type)
    reading = _value(inner, variant)
    default = default_of(field)
    good, column = reading.good, reading.column
    if optional:
        is_null = F.schema_of_variant(variant) == "VOID"
        good, column = is_null | good, F.when(~is_null, column)
    if default is not msgspec.NODEFAULT:
        good = variant.isNull() | good
        missing = F.array() if default == [] else F.lit(default)
        column = (
            F.when(variant.isNotNull(), column)
            if default is None
            else F.when(variant.isNull(), missing).otherwise(column)
        )
    return _Reading(column, good)


def _value(info: inspect.Type, variant: Column) -> _Reading:
    kind = F.schema_of_variant(variant)
    if isinstance(info, RECORDS):
        return _record(info, variant)
    if isinstance(info, LISTS):
        items = F.try_variant_get(variant, "$", "array<variant>")
        item_type = info.item_type
        good = kind.startswith("ARRAY") & F.forall(
            items, lambda item: F.coalesce(_value(item_type, item).good, F.lit(False))
        )
        return _Reading(F.transform(items, lambda item: _value(item_type, item).column), good)
    choices = choices_of(info)
    if choices is not None:
        name, pattern = _SPARK[inspect.StrType if isinstance(choices[0], str) else inspect.IntType]
        column = F.try_variant_get(variant, "$", name)
        return _Reading(column, kind.rlike(pattern) & column.isin(choices))
    if isinstance(info, inspect.DateTimeType | inspect.DateType):
        text = F.try_variant_get(variant, "$", "string")
        pattern, name = (_MOMENT, "timestamp") if isinstance(info, inspect.DateTimeType) else (_DATE, "date")
        column = text.try_cast(name)
        return _Reading(column, (kind == "STRING") & text.rlike(pattern) & column.isNotNull())
    name, pattern = _SPARK[type(info)]
    column = F.try_variant_get(variant, "$", name)
    good = kind.rlike(pattern) & column.isNotNull()
    if name == "double":
        good = good & (F.abs(column) < float("inf"))
    return _Reading(column, good)
