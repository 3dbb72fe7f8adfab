"""Encodes rows of a typed JSON topic in the JVM, for types that need no Python: many times faster, with equal values.

What the library would refuse (null for a field that cannot be None, NaN, a value that is not one of the choices) fails
the batch here too, with the row; with `search`, such rows are reported and left out.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Final

import msgspec
from msgspec import inspect
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.serde import Topic
from penstock.serde.types import name_of
from penstock.spark.errors.origins import CARRIED
from penstock.spark.errors.row_checks import RowRule, checked
from penstock.spark.values.columns import WRITTEN
from penstock.spark.values.json_text import json_object
from penstock.spark.values.plain_json import LISTS, RECORDS, Record, choices_of, parts_of, plain_record_of
from penstock.spark.values.types import VALUE

_UNFIT: Final = "check its nulls, numbers, times and choices"
_KEYLESS: Final = "a row has null in every field, which is a record without a value, and no key"
_FIRST_MICROS: Final = -62_135_596_800_000_000
_LAST_MICROS: Final = 253_402_300_799_999_999
"""The range of datetime."""


def is_refused_row(error: PySparkException) -> bool:
    """Whether the error is that of a row which cannot be encoded."""
    return error.getCondition() == "USER_RAISED_EXCEPTION" and any(each in str(error) for each in (_UNFIT, _KEYLESS))


def encoded_in_jvm(shaped: DataFrame, topic: Topic[Any], *, search: bool = False) -> DataFrame | None:
    """Rows with a struct `value` and the other columns of WRITTEN as rows of WRITTEN; None if that needs Python.

    Fields of the struct that have defaults may be missing. With `search`, there may be the column `CARRIED`.
    """
    try:
        info = plain_record_of(topic)
    except ConfigError:
        return None
    if _has_absent_fields(info):
        return None
    row, key = shaped[VALUE], shaped["key"]
    present = shaped.select(VALUE + ".*").columns
    text = json_object(_parts(row, info, present))
    wrong = _wrong_fields(row, info, present)
    unfit = f"topic {topic.name!r}: a row is not a {name_of(topic.type)}: {_UNFIT}"
    keyless = f"topic {topic.name!r}: {_KEYLESS}"
    is_absent = F.lit(False)
    if any(not parts_of(field.type)[1] for field in info.fields):
        is_absent = reduce(lambda all_null, name: all_null & row[name].isNull(), present, F.lit(True))
    if search:
        found = {unfit: is_absent | ~wrong, keyless: ~is_absent | key.isNotNull()}
        rule = f"encoder of topic {topic.name}"
        rules = [RowRule(rule, error, SchemaMismatchError.__name__) for error in found]
        origin = shaped[CARRIED] if CARRIED in shaped.columns else F.lit(None).cast("string")
        shaped = checked(shaped, rules, list(found.values()), origin=origin, row=text)
        row, key = shaped[VALUE], shaped["key"]
        value = F.when(~is_absent, text)
    else:
        value = F.when(wrong, F.raise_error(F.concat(F.lit(f"{unfit}: "), text))).otherwise(text)
        absent = F.when(key.isNull(), F.raise_error(F.lit(keyless))).otherwise(F.lit(None))
        value = F.when(is_absent, absent).otherwise(value)
    return shaped.withColumn(VALUE, value.cast("binary")).select(*WRITTEN.names)


def _has_absent_fields(info: inspect.Type) -> bool:
    """Whether there is a field that is omitted rather than null."""
    inner, _ = parts_of(info)
    if isinstance(inner, LISTS):
        return _has_absent_fields(inner.item_type)
    if not isinstance(inner, RECORDS):
        return False
    return any(
        (not field.required and field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT)
        or _has_absent_fields(field.type)
        for field in inner.fields
    )


def _parts(row: Column, info: Record, present: list[str] | None = None) -> list[Column]:
    return [
        _part(row[field.name], field.type).alias(field.encode_name)
        for field in info.fields
        if present is None or field.name in present
    ]


def _part(column: Column, info: inspect.Type) -> Column:
    inner, _ = parts_of(info)
    if isinstance(inner, RECORDS):
        return F.when(column.isNotNull(), F.struct(*_parts(column, inner)))
    if isinstance(inner, LISTS):
        item_type = inner.item_type
        return F.transform(column, lambda item: _part(item, item_type))
    return column


def _wrong_fields(row: Column, info: Record, present: list[str] | None = None) -> Column:
    wrongs = [_wrong(row[field.name], field.type) for field in info.fields if present is None or field.name in present]
    return reduce(or_, wrongs, F.lit(False))


def _wrong(column: Column, info: inspect.Type) -> Column:
    """Whether the library would refuse the value. Never null."""
    inner, optional = parts_of(info)
    choices = choices_of(inner)
    if isinstance(inner, RECORDS):
        wrong = _wrong_fields(column, inner)
    elif isinstance(inner, LISTS):
        item_type = inner.item_type
        wrong = F.exists(column, lambda item: _wrong(item, item_type))
    elif choices is not None:
        wrong = ~column.isin(choices)
    elif isinstance(inner, inspect.FloatType):
        wrong = F.isnan(column) | (F.abs(column) == float("inf"))
    elif isinstance(inner, inspect.DateTimeType):
        wrong = ~F.unix_micros(column).between(_FIRST_MICROS, _LAST_MICROS)
    elif isinstance(inner, inspect.DateType):
        wrong = ~F.year(column).between(1, 9999)
    else:
        wrong = F.lit(False)
    return F.when(column.isNull(), F.lit(not optional)).otherwise(wrong)
