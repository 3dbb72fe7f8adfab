"""The columns of a topic in Spark, by its type, its Avro schema or its Protobuf message."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

from penstock.errors import ConfigError
from penstock.serde import AvroSerde, BytesSerde, JsonSerde, PlainSerde, ProtobufSerde, TextSerde, Topic
from penstock.serde.typed import TypedSerde
from penstock.serde.types import is_anything, is_protobuf
from penstock.spark.values.forms import Form, RecordForm
from penstock.spark.values.forms.avro_types import form_of_avro
from penstock.spark.values.forms.protobuf_types import form_of_protobuf
from penstock.spark.values.forms.python_types import form_of_type
from penstock.spark.values.forms.scalars import BYTES, TEXT

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
    """Whether values are any JSON, which is text in Spark."""

    @property
    def columns(self) -> StructType:
        if isinstance(self.form, RecordForm):
            return self.form.column
        return StructType([StructField(VALUE, self.form.column)])


def columns_of(topic: Topic[Any]) -> StructType:
    """The columns of a topic's values: one for each field of its type, or `value` if it has no fields.

    All are nullable: a record without a value, which deletes its key in a compacted topic, has null in all of them.
    Raises ConfigError for a type without columns: a union of records, Any, a recursive type.
    """
    return topic_form(topic).columns


def topic_form(topic: Topic[Any]) -> TopicForm:
    """The values of the topic. Raises ConfigError as `columns_of` does."""
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
