"""The form of a Protobuf message, and the conversion of a row to a message."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.model.times import EPOCH
from penstock.serde.forms import scalars
from penstock.serde.forms.form import ArrayForm, Field, Form, MapForm, RecordForm, ScalarForm, no_column

# The numbers of FieldDescriptorProto.Type, which are part of the format.
_SCALARS: Final[Mapping[int, ScalarForm]] = {
    1: scalars.FLOAT,
    2: scalars.SHORT_FLOAT,
    3: scalars.INTEGER,
    4: scalars.UNSIGNED,
    5: scalars.SHORT_INTEGER,
    6: scalars.UNSIGNED,
    7: scalars.INTEGER,
    8: scalars.BOOLEAN,
    9: scalars.TEXT,
    12: scalars.BYTES,
    13: scalars.INTEGER,
    15: scalars.SHORT_INTEGER,
    16: scalars.INTEGER,
    17: scalars.SHORT_INTEGER,
    18: scalars.INTEGER,
}
_ENUM: Final = 14
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_SHAPELESS: Final = frozenset(f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue"))
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"


def form_of_protobuf(descriptor: Any) -> RecordForm:
    """The form of a message. Raises ConfigError for a field without a column."""
    return _record(descriptor, ())


def message_of(form: type[Any], value: Mapping[str, Any]) -> Any:
    """A message from the result of `RecordForm.value`."""
    message = form()
    _fill(message, value)
    return message


def _record(descriptor: Any, inside: tuple[str, ...]) -> RecordForm:
    if descriptor.full_name in inside:
        raise no_column(descriptor.full_name, "it is recursive")
    inside = (*inside, descriptor.full_name)
    fields = (
        Field(field.name, field.name, _place(field, inside), _getter(field), field.has_presence, True, True)
        for field in descriptor.fields
    )
    return RecordForm(descriptor.full_name, tuple(fields))


def _place(field: Any, inside: tuple[str, ...]) -> Form:
    if _is_map(field):
        keys, items = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return MapForm(_single(keys, inside), _single(items, inside))
    single = _single(field, inside)
    return ArrayForm(single) if _is_repeated(field) else single


def _single(field: Any, inside: tuple[str, ...]) -> Form:
    if field.type in _SCALARS:
        return _SCALARS[field.type]
    if field.type == _ENUM:
        return _enum(field.enum_type)
    name = field.message_type.full_name
    if name in _SHAPELESS:
        raise no_column(f"{inside[-1]}.{field.name}", f"a {name} may be anything, and a column has a type")
    if name == _TIMESTAMP:
        return ScalarForm(scalars.TIMESTAMP_TZ.column, _moments)
    if name == _DURATION:
        return ScalarForm(scalars.TIMESPAN.column, _timespans)
    if name in _WRAPPERS:
        return _wrapped(_single(field.message_type.fields_by_name["value"], inside))
    return _record(field.message_type, inside)


def _enum(descriptor: Any) -> ScalarForm:
    """Text: the name of the number, or the number if it has no name in this version of the file."""
    names = {value.number: value.name for value in descriptor.values}
    numbers: dict[str, int] = {value.name: value.number for value in descriptor.values}

    def into(values: Sequence[Any]) -> pa.Array:
        return pa.array([None if value is None else names.get(value, str(value)) for value in values], pa.string())

    def back(name: str) -> int:
        if name in numbers:
            return numbers[name]
        try:
            return int(name)
        except ValueError:
            raise ValueError(f"{descriptor.full_name} has no value {name!r}") from None

    return ScalarForm(pa.string(), into, back)


def _wrapped(inner: Form) -> ScalarForm:
    """A scalar in a wrapper message, so that it can be absent."""
    assert isinstance(inner, ScalarForm)

    def into(values: Sequence[Any]) -> pa.Array:
        return inner.array([None if value is None else value.value for value in values])

    return ScalarForm(inner.column, into, inner.back)


def _moments(values: Sequence[Any]) -> pa.Array:
    since = [None if value is None else value.seconds * 1_000_000 + value.nanos // 1000 for value in values]
    return pa.array(since, pa.int64()).cast(pa.timestamp("us", "UTC"))


def _timespans(values: Sequence[Any]) -> pa.Array:
    spans = [
        None if value is None else value.seconds * 1_000_000 + _towards_zero(value.nanos, 1000) for value in values
    ]
    return pa.array(spans, pa.int64()).cast(pa.duration("us"))


def _towards_zero(number: int, unit: int) -> int:
    return number // unit if number >= 0 else -(-number // unit)


def _getter(field: Any) -> Callable[[Any], Any]:
    name = field.name
    if not field.has_presence:
        return operator.attrgetter(name)

    def get(message: Any) -> Any:
        return getattr(message, name) if message.HasField(name) else None

    return get


def _fill(message: Any, value: Mapping[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        part = value.get(field.name)
        if part is None:
            continue
        if _is_map(field):
            target = getattr(message, field.name)
            of_messages = field.message_type.fields_by_name["value"].message_type is not None
            for key, item in part.items():
                if of_messages:
                    _set_message(target[key], item)
                else:
                    target[key] = item
        elif _is_repeated(field):
            target = getattr(message, field.name)
            for item in part:
                if field.message_type is None:
                    target.append(item)
                else:
                    _set_message(target.add(), item)
        elif field.message_type is None:
            setattr(message, field.name, part)
        else:
            target = getattr(message, field.name)
            target.SetInParent()
            _set_message(target, part)


def _set_message(target: Any, value: Any) -> None:
    name = target.DESCRIPTOR.full_name
    if name in (_TIMESTAMP, _DURATION):
        span = value - EPOCH if name == _TIMESTAMP else value
        micros = span // datetime.timedelta(microseconds=1)
        # Nanoseconds of a timestamp are positive; those of a duration have the sign of its seconds.
        seconds = micros // 1_000_000 if name == _TIMESTAMP else _towards_zero(micros, 1_000_000)
        target.seconds, target.nanos = seconds, (micros - seconds * 1_000_000) * 1000
    elif name in _WRAPPERS:
        target.value = value
    else:
        _fill(target, value)


def _is_repeated(field: Any) -> bool:
    """Newer versions of protobuf have the property `is_repeated`."""
    known = getattr(field, "is_repeated", None)
    return field.label == field.LABEL_REPEATED if known is None else bool(known)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
