"""The columns of a topic: what its type, its Avro schema or its Protobuf message looks like in Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

from penstock.errors import ConfigError
from penstock.serde import AvroSerde, BytesSerde, JsonSerde, PlainSerde, ProtobufSerde, TextSerde, Topic
from penstock.serde.typed import TypedSerde
from penstock.serde.types import is_anything, is_protobuf
from penstock.spark.forms import Form, RecordForm
from penstock.spark.forms.avro_types import form_of_avro
from penstock.spark.forms.protobuf_types import form_of_protobuf
from penstock.spark.forms.python_types import form_of_type
from penstock.spark.forms.scalars import BYTES, TEXT

VALUE: Final = "value"
"""The column of a topic whose values have no fields."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What a topic carries, as columns."""

    form: Form
    """Of a whole value."""
    type: Any
    """The type of the values in Python; None where it says nothing about them."""
    is_text_of_json: bool = False
    """Any JSON: its text is the value in Spark."""

    @property
    def columns(self) -> StructType:
        if isinstance(self.form, RecordForm):
            return self.form.column
        return StructType([StructField(VALUE, self.form.column)])


def columns_of(topic: Topic[Any]) -> StructType:
    """The columns of a topic's values: one for each field of its type, or `value` where there are no fields.

    All may be null, as a record without a value, which in a compacted topic removes its key, has nothing in any of
    them. ConfigError, naming the field, for a type that has no columns: a union of records, Any, a type that contains
    itself.
    """
    return carried_by(topic).columns


def has_fields(topic: Topic[Any]) -> bool:
    """Whether there is anything to decode: False for topics that carry bytes as they are."""
    carried = carried_by(topic)
    return carried.type is not bytes or not isinstance(topic.serde, BytesSerde | PlainSerde)


def carried_by(topic: Topic[Any]) -> Carried:
    """What the topic carries. ConfigError as for `columns_of`."""
    serde = topic.serde
    try:
        if isinstance(serde, BytesSerde | PlainSerde):
            return Carried(BYTES, bytes)
        if isinstance(serde, TextSerde):
            return Carried(TEXT, str)
        if isinstance(serde, ProtobufSerde):
            return Carried(form_of_protobuf(serde.type.DESCRIPTOR), serde.type)
        if isinstance(serde, AvroSerde) and is_anything(serde.type):
            return Carried(form_of_avro(json.loads(serde.schema().text))[0], None)
        form = serde.type if isinstance(serde, TypedSerde | AvroSerde) else topic.type
        if is_anything(form):
            return _untyped(topic)
        if form is bytes:
            return Carried(BYTES, bytes)
        if is_protobuf(form):
            return Carried(form_of_protobuf(form.DESCRIPTOR), form)
        return Carried(form_of_type(form)[0], form)
    except ConfigError as error:
        raise ConfigError(f"topic {topic.name!r}: {error}") from error


def _untyped(topic: Topic[Any]) -> Carried:
    if isinstance(topic.serde, JsonSerde):
        return Carried(TEXT, None, is_text_of_json=True)
    raise ConfigError(
        f"its values are whatever {topic.serde!r} can express, which is no column: say what it carries, "
        f"Topic({topic.name!r}, SomeType, serde=...)"
    )
