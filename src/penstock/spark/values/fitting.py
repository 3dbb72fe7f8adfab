"""Compares the columns of a frame with those of a type, and casts them.

Lossless conversions are implicit: to a wider number, fields of a struct in another order, missing fields that have
defaults. All other mismatches are reported together when the query is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    CharType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    VarcharType,
)

from penstock.serde.forms import ArrayForm, Form, MapForm, RecordForm
from penstock.spark.values.types import column_of

_WIDER: Final[Mapping[type[DataType], tuple[type[DataType], ...]]] = {
    IntegerType: (ByteType, ShortType),
    LongType: (ByteType, ShortType, IntegerType),
    DoubleType: (FloatType,),
    StringType: (CharType, VarcharType),
}
_DIGITS: Final[Mapping[type[DataType], int]] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}


def mismatches(found: DataType, form: Form, path: str = "") -> Iterator[str]:
    """The mismatches of a column, or of all columns of a frame; none if it fits."""
    if isinstance(form, RecordForm):
        if not isinstance(found, StructType):
            yield f"{path} is {found.simpleString()}, but must be {column_of(form).simpleString()}"
            return
        yield from _mismatches_of_fields(found, form, path)
    elif isinstance(form, ArrayForm) and isinstance(found, ArrayType):
        yield from mismatches(found.elementType, form.items, f"{path}[]")
    elif isinstance(form, MapForm) and isinstance(found, MapType):
        yield from mismatches(found.keyType, form.keys, f"{path}{{key}}")
        yield from mismatches(found.valueType, form.items, f"{path}{{}}")
    elif not _fits(found, column_of(form)):
        yield f"{path} is {found.simpleString()}, but must be {column_of(form).simpleString()}"


def _mismatches_of_fields(found: StructType, form: RecordForm, path: str) -> Iterator[str]:
    before = f"{path}." if path else ""
    for field in form.fields:
        if field.name in found.names:
            yield from mismatches(found[field.name].dataType, field.form, f"{before}{field.name}")
        elif not field.may_be_absent:
            yield f"{before}{field.name} is missing ({column_of(field.form).simpleString()})"
    known = {field.name for field in form.fields}
    for name in found.names:
        if name not in known:
            yield f"{before}{name} is not a field of {form.label}"
        elif found.names.count(name) > 1:
            yield f"there are {found.names.count(name)} columns {before}{name}"


def fitted(column: Column, found: DataType, form: Form) -> Column:
    """The column cast to the types of the form. It must have no mismatches."""
    if isinstance(form, RecordForm):
        assert isinstance(found, StructType)
        parts = [
            fitted(column[field.name], found[field.name].dataType, field.form).alias(field.name)
            for field in form.fields
            if field.name in found.names
        ]
        return F.when(column.isNotNull(), F.struct(*parts))
    if isinstance(form, ArrayForm):
        assert isinstance(found, ArrayType)
        items, item_type = form.items, found.elementType
        if is_exactly(item_type, column_of(items)):
            return column
        return F.transform(column, lambda item: fitted(item, item_type, items))
    if isinstance(form, MapForm):
        assert isinstance(found, MapType)
        if is_exactly(found, column_of(form)):
            return column
        keys, key_type, values, value_type = form.keys, found.keyType, form.items, found.valueType
        with_keys = F.transform_keys(column, lambda key, _: fitted(key, key_type, keys))
        return F.transform_values(with_keys, lambda _, value: fitted(value, value_type, values))
    return column if is_exactly(found, column_of(form)) else column.cast(column_of(form))


def is_exactly(found: DataType, wanted: DataType) -> bool:
    """Whether two types are equal, ignoring nullability."""
    return found.simpleString() == wanted.simpleString()


def _fits(found: DataType, wanted: DataType) -> bool:
    if is_exactly(found, wanted):
        return True
    if isinstance(wanted, DecimalType):
        if isinstance(found, DecimalType):
            whole = wanted.precision - wanted.scale
            return found.scale <= wanted.scale and found.precision - found.scale <= whole
        digits = _DIGITS.get(type(found))
        return digits is not None and digits <= wanted.precision - wanted.scale
    return type(found) in _WIDER.get(type(wanted), ())
