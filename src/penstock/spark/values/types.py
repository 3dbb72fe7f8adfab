"""The columns of a topic in Spark, by its type, its Avro schema or its Protobuf message."""

from __future__ import annotations

from typing import Any

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from penstock.serde import Topic
from penstock.serde.forms import VALUE, Form, RecordForm, TopicForm, topic_form

__all__ = ["VALUE", "TopicForm", "column_of", "columns_of", "fields_of", "topic_form"]


def column_of(form: Form) -> DataType:
    """The type of a form in Spark."""
    column: DataType = from_arrow_type(form.column, prefer_timestamp_ntz=True)
    return column


def fields_of(shape: TopicForm) -> StructType:
    """The columns of a topic with this form."""
    if isinstance(shape.form, RecordForm):
        return StructType([StructField(field.name, column_of(field.form)) for field in shape.form.fields])
    return StructType([StructField(VALUE, column_of(shape.form))])


def columns_of(topic: Topic[Any]) -> StructType:
    """The columns of a topic's values: one for each field of its type, or `value` if it has no fields.

    All are nullable: a record without a value, which deletes its key in a compacted topic, has null in all of them.
    Raises ConfigError for a type without columns: a union of records, Any, a recursive type.
    """
    return fields_of(topic_form(topic))
