"""The form of a topic's values, by its type, its Avro schema or its Protobuf message."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.errors import ConfigError, SerdeError
from penstock.serde import AvroSerde, BytesSerde, JsonSerde, PlainSerde, ProtobufSerde, TextSerde, Topic
from penstock.serde.forms.avro_types import form_of_avro
from penstock.serde.forms.form import Form, RecordForm
from penstock.serde.forms.protobuf_types import form_of_protobuf
from penstock.serde.forms.python_types import form_of_type
from penstock.serde.forms.scalars import BYTES, TEXT
from penstock.serde.typed import TypedSerde
from penstock.serde.types import is_anything, is_protobuf

VALUE: Final = "value"
"""The column of a topic whose values have no fields."""


@dataclass(frozen=True, slots=True)
class TopicForm:
    """The values of a topic."""

    form: Form
    """The form of a whole value."""
    type: Any
    """The Python type of the values; None if unknown."""
    is_json_text: bool = False
    """Whether values are any JSON, which becomes text."""

    @property
    def fields(self) -> list[pa.Field]:
        """One column for each field of the type, or `value` if it has no fields."""
        if isinstance(self.form, RecordForm):
            return list(self.form.column)
        return [pa.field(VALUE, self.form.column)]

    def arrays(self, values: Sequence[Any]) -> list[pa.Array]:
        """The values as these columns. Raises an exception of any class if one does not fit."""
        if isinstance(self.form, RecordForm):
            return self.form.children(values, has_nulls=any(value is None for value in values))
        return [self.form.array(values)]


def topic_form(topic: Topic[Any]) -> TopicForm:
    """The values of the topic. Raises ConfigError for a type without columns: a union of records, a recursive type."""
    serde = topic.serde
    try:
        if isinstance(serde, BytesSerde | PlainSerde):
            return TopicForm(BYTES, bytes)
        if isinstance(serde, TextSerde):
            return TopicForm(TEXT, str)
        if isinstance(serde, ProtobufSerde):
            return TopicForm(form_of_protobuf(serde.type.DESCRIPTOR), serde.type)
        if isinstance(serde, AvroSerde) and is_anything(serde.type):
            return TopicForm(form_of_avro(json.loads(serde.schema().text))[0], None)
        form = serde.type if isinstance(serde, TypedSerde | AvroSerde) else topic.type
        if is_anything(form):
            return _untyped(topic)
        if form is bytes:
            return TopicForm(BYTES, bytes)
        if is_protobuf(form):
            return TopicForm(form_of_protobuf(form.DESCRIPTOR), form)
        return TopicForm(form_of_type(form)[0], form)
    except ConfigError as error:
        raise ConfigError(f"topic {topic.name!r}: {error}") from error


def _untyped(topic: Topic[Any]) -> TopicForm:
    if isinstance(topic.serde, JsonSerde):
        return TopicForm(TEXT, None, is_json_text=True)
    raise ConfigError(
        f"its values are anything that {topic.serde!r} can express, which is not a column: give it a type, "
        f"Topic({topic.name!r}, SomeType, serde=...)"
    )


def misfits(values: Sequence[Any], build: Callable[[Sequence[Any]], object]) -> dict[int, Exception]:
    """The values that cannot be built alone, with their errors. Found by bisection, as there are usually few."""
    found: dict[int, Exception] = {}
    spans = [(0, len(values))]
    while spans:
        low, high = spans.pop()
        try:
            build(values[low:high])
        except Exception as error:
            if high - low == 1:
                found[low] = error
            else:
                middle = (low + high) // 2
                spans += [(middle, high), (low, middle)]
    return found


def decoded(
    topic: Topic[Any], data: Sequence[bytes | None], decode: Callable[[bytes], Any]
) -> tuple[list[Any], dict[int, SerdeError]]:
    """The values that `decode`, the topic's decoder, makes of these bytes, and the error of each undecodable one, by
    its index. Errors that are not about the bytes are raised, such as an unreachable schema registry."""
    try:
        return list(map(decode, data)), {}  # type: ignore[arg-type]  # None fails, and is handled one by one
    except Exception:  # it occurs again there
        return _decoded_one_by_one(topic, data, decode)


def _decoded_one_by_one(
    topic: Topic[Any], data: Sequence[bytes | None], decode: Callable[[bytes], Any]
) -> tuple[list[Any], dict[int, SerdeError]]:
    values: list[Any] = []
    errors: dict[int, SerdeError] = {}
    for index, each in enumerate(data):
        try:
            values.append(None if each is None else decode(each))
        except Exception as bare:
            values.append(None)
            errors[index] = _refusal(topic, each, bare)
    return values, errors


def _refusal(topic: Topic[Any], data: bytes | None, bare: Exception) -> SerdeError:
    """The library's error for undecodable bytes. Raises `bare` if the bytes may be good."""
    try:
        topic.decode(data)
    except SerdeError as error:
        return error
    raise bare
