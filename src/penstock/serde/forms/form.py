"""The forms of values in columns: scalars, arrays, maps and records of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from penstock.errors import ConfigError

_ABSENT: Final = object()


class Form(Protocol):
    """The column of one type. None is null in every form."""

    @property
    def column(self) -> pa.DataType:
        """The Arrow type. Every part of it may be null, except for the keys of maps."""

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The values as a column. Raises an exception of any class if a value does not fit: an integer beyond 64 bits,
        a time without a zone."""

    def value(self, cell: Any) -> Any:
        """The value to construct the type from, for a cell of `pyarrow.Array.to_pylist`."""


@dataclass(frozen=True, slots=True)
class ScalarForm:
    """A scalar. `into` converts values to an array if Arrow cannot, or is slow."""

    column: pa.DataType
    into: Callable[[Sequence[Any]], pa.Array] | None = None
    back: Callable[[Any], Any] | None = None

    def array(self, values: Sequence[Any]) -> pa.Array:
        if self.into is not None:
            return self.into(values)
        return pa.array(values, self.column)

    def value(self, cell: Any) -> Any:
        return cell if cell is None or self.back is None else self.back(cell)


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """Lists, sets and tuples of any length."""

    items: Form

    @property
    def column(self) -> pa.ListType:
        return pa.list_(pa.field("element", self.items.column))

    def array(self, values: Sequence[Any]) -> pa.Array:
        flat = self.items.array(list(itertools.chain.from_iterable(value for value in values if value)))
        return pa.ListArray.from_arrays(_offsets(values), flat, self.column, mask=_mask(values))

    def value(self, cell: Any) -> Any:
        return None if cell is None else [self.items.value(each) for each in cell]


@dataclass(frozen=True, slots=True)
class MapForm:
    """Dicts whose keys are scalars."""

    keys: Form
    items: Form

    @property
    def column(self) -> pa.MapType:
        return pa.map_(pa.field("key", self.keys.column, nullable=False), pa.field("value", self.items.column))

    def array(self, values: Sequence[Any]) -> pa.Array:
        full = [value for value in values if value]
        keys = self.keys.array(list(itertools.chain.from_iterable(full)))
        items = self.items.array(list(itertools.chain.from_iterable(value.values() for value in full)))
        return pa.MapArray.from_arrays(_offsets(values), keys, items, self.column, mask=_mask(values))

    def value(self, cell: Any) -> Any:
        return None if cell is None else {self.keys.value(key): self.items.value(item) for key, item in cell}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record."""

    name: str
    """The name of the column, and of the field in Python."""
    written: str
    """Its encoded name, from which the value is constructed."""
    form: Form
    get: Callable[[Any], Any]
    """Gets the field of a value."""
    optional: bool
    """Whether None is one of its values."""
    may_be_absent: bool
    """Whether it has a default, or is not required."""
    null_is_absent: bool = False
    """Whether null in its column means absent, as None is not one of its values."""


@dataclass(frozen=True, slots=True)
class RecordForm:
    """A class with fields, or a dict with known keys."""

    label: str
    """The name of the type, for messages."""
    fields: tuple[Field, ...]
    as_sequence: bool = False
    """Whether values are constructed from fields in order, not by name."""

    @property
    def column(self) -> pa.StructType:
        return pa.struct([pa.field(field.name, field.form.column) for field in self.fields])

    def array(self, values: Sequence[Any]) -> pa.Array:
        mask = _mask(values)
        children = self.children(values, has_nulls=mask is not None)
        if not children:
            mask = mask if mask is not None else pa.array([False] * len(values), pa.bool_())
        return pa.StructArray.from_arrays(children, type=self.column, mask=mask)

    def children(self, values: Sequence[Any], *, has_nulls: bool) -> list[pa.Array]:
        """An array for each field."""
        return [field.form.array(_cells(values, field.get, has_nulls)) for field in self.fields]

    def value(self, cell: Any) -> Any:
        if cell is None:
            return None
        if self.as_sequence:
            return [field.form.value(cell[field.name]) for field in self.fields if field.name in cell]
        return {
            field.written: field.form.value(part)
            for field in self.fields
            if (part := cell.get(field.name, _ABSENT)) is not _ABSENT and not (part is None and field.null_is_absent)
        }


def _cells(values: Sequence[Any], get: Callable[[Any], Any], has_nulls: bool) -> list[Any]:
    if has_nulls:
        return [None if value is None else get(value) for value in values]
    return list(map(get, values))


def _mask(values: Iterable[Any]) -> pa.Array | None:
    """Which values are null; None if none is."""
    nulls = [value is None for value in values]
    return pa.array(nulls, pa.bool_()) if True in nulls else None


def _offsets(values: Sequence[Any]) -> pa.Array:
    lengths = (len(value) if value else 0 for value in values)
    return pa.array(itertools.accumulate(lengths, initial=0), pa.int32())


def no_column(path: str, why: str) -> ConfigError:
    return ConfigError(f"{path} has no column: {why}. Read the topic by its name, and parse values yourself")
