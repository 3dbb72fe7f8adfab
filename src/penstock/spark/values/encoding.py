"""From the rows of a frame to records with the columns of WRITTEN.

For a topic given by name, a frame with a `value` is written as records; any other frame as one JSON object per row,
created in the JVM. For a typed topic, the columns are the fields of its type, and its serde writes the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, CharType, DataType, StringType, StructType, VarcharType

from penstock.dead_letters import REDRIVE_GROUP_HEADER, REDRIVE_ID_HEADER
from penstock.errors import ConfigError, SchemaMismatchError
from penstock.serde import Topic
from penstock.serde.forms import RecordForm
from penstock.serde.forms.form import Field
from penstock.spark.errors import reports
from penstock.spark.errors.origins import CARRIED, origin_column, origin_names
from penstock.spark.values.arrow_mapping import map_in_arrow
from penstock.spark.values.columns import ABOUT_A_RECORD, HEADERS, RECORD, WRITTEN, name_beside, require_columns
from penstock.spark.values.fitting import fitted, is_exactly, mismatches
from penstock.spark.values.json_text import json_object, key_of, key_of_several
from penstock.spark.values.jvm_encoding import encoded_in_jvm
from penstock.spark.values.typed_encoding import KEY, Encoder
from penstock.spark.values.types import VALUE, TopicForm, fields_of, topic_form

Key = str | Sequence[str] | Column | None

_ONE_OF_A_RECORD: Final = frozenset((*RECORD.names, *WRITTEN.names))
_TEXT_OR_BYTES: Final = (StringType, CharType, VarcharType, BinaryType)


def encode_frame(frame: DataFrame, topic: Topic[Any] | str, *, key: Key = None) -> DataFrame:
    """The rows of a frame as records for a topic, with the columns of WRITTEN.

    For a topic given by name, a frame with a `value` of text or bytes and only columns of records is written as it is,
    with its `key`, `headers` and `timestamp`. Its `partition` is used unless there is a `pointer`: then both are of the
    record that was read. Any other frame becomes one JSON object per row with all columns: timestamps as RFC 3339 in
    UTC, bytes as base64, nulls as null.

    For a Topic, the columns are the fields of its type; those with defaults may be missing. The columns about a record
    that was read (`ABOUT_A_RECORD`) may be present: its key, headers and timestamp are written again. A row with null
    in every field is a record without a value, if the type has a field that cannot be None.

    `key` is a column or its name: text and bytes are used as they are, other types as JSON; several names become a JSON
    array, as the library writes a tuple. Without it, the key is made by the Topic's key function, else it is the column
    `key`, unless that is a field.

    Raises SchemaMismatchError with all mismatches, and ConfigError for a key that does not exist.
    """
    if isinstance(topic, Topic):
        return _typed(frame, topic, key)
    if not isinstance(topic, str) or not topic:
        raise ConfigError(f"{topic!r} is not a topic: give a Topic, or the name of one")
    if is_raw(frame.schema):
        return _raw(frame, topic, key)
    return _json(frame, topic, key)


def is_raw(schema: StructType) -> bool:
    """Whether rows are records: they have a `value` of text or bytes, and only columns of records."""
    return (
        VALUE in schema.names
        and isinstance(schema[VALUE].dataType, _TEXT_OR_BYTES)
        and _ONE_OF_A_RECORD.issuperset(schema.names)
    )


def check_columns(schema: StructType, topic: Topic[Any] | str) -> None:
    """Raise SchemaMismatchError, with all mismatches, if frames of this schema cannot be written to the topic."""
    if isinstance(topic, Topic):
        _check_typed(schema, topic, topic_form(topic))
    elif is_raw(schema):
        _check_raw(schema, topic)
    else:
        _check_names(schema, topic)


def _raw(frame: DataFrame, topic: str, key: Key) -> DataFrame:
    _check_raw(frame.schema, topic)
    made = key_column(frame, key)
    if made is None and "key" in frame.columns:
        made = frame["key"].cast("binary")
    return frame.select(
        *_written(
            key=made,
            value=frame[VALUE].cast("binary"),
            headers=_headers(frame, "headers"),
            partition=None if "pointer" in frame.columns or "partition" not in frame.columns else frame["partition"],
            timestamp=frame["timestamp"] if "timestamp" in frame.columns else None,
        )
    )


def _json(frame: DataFrame, topic: str, key: Key) -> DataFrame:
    _check_names(frame.schema, topic)
    value = json_object([frame[f"`{name}`"] for name in frame.columns]).cast("binary")
    return frame.select(*_written(key=key_column(frame, key), value=value))


def _typed(frame: DataFrame, topic: Topic[Any], key: Key) -> DataFrame:
    shape = topic_form(topic)
    _check_typed(frame.schema, topic, shape)
    fields = _fields(shape)
    present = [field for field in fields if field.name in frame.columns]
    columns = [
        fitted(frame[f"`{field.name}`"], frame.schema[field.name].dataType, field.form).alias(field.name)
        for field in present
    ]
    about = {name: name_beside(fields_of(shape), name) for name in ABOUT_A_RECORD}
    made = key_column(frame, key)
    if made is None and about["key"] in frame.columns:
        made = frame[about["key"]].cast("binary")
    along = _written(
        key=made,
        value=None,
        headers=_headers(frame, about["headers"]),
        timestamp=frame[about["timestamp"]] if about["timestamp"] in frame.columns else None,
    )
    rest = [column for column, name in zip(along, WRITTEN.names, strict=True) if name not in ("key", VALUE)]
    shaping = [F.struct(*columns).alias(VALUE), along[WRITTEN.names.index("key")].alias(KEY), *rest]
    shaped = frame.select(*shaping)
    makes_key = topic.key is not None and key is None
    known = shaped
    if origin_names(frame.columns) is not None:
        known = frame.select(*shaping, origin_column(frame).alias(CARRIED))
    if not makes_key:
        search = frame.sparkSession.sparkContext.getLocalProperty(reports.SEARCHING) is not None
        in_jvm = encoded_in_jvm(known if search else shaped, topic, search=search)
        if in_jvm is not None:
            return in_jvm
    encoder = Encoder(topic, makes_key=makes_key, channel=reports.accumulator(frame.sparkSession.sparkContext))
    return map_in_arrow(known, encoder.batches, WRITTEN)


def _fields(shape: TopicForm) -> Sequence[Field]:
    if isinstance(shape.form, RecordForm):
        return shape.form.fields
    return (Field(VALUE, VALUE, shape.form, lambda value: value, True, False),)


def _written(
    *,
    key: Column | None,
    value: Column | None,
    headers: Column | None = None,
    partition: Column | None = None,
    timestamp: Column | None = None,
) -> list[Column]:
    given = {"key": key, VALUE: value, "headers": headers, "partition": partition, "timestamp": timestamp}
    return [
        (F.lit(None) if (column := given.get(field.name)) is None else column).cast(field.dataType).alias(field.name)
        for field in WRITTEN
    ]


def _headers(frame: DataFrame, name: str) -> Column | None:
    """The headers, without those of a redrive, which are for readers of the original topic."""
    if name not in frame.columns:
        return None
    return F.filter(frame[name], lambda header: ~header["key"].isin(REDRIVE_GROUP_HEADER, REDRIVE_ID_HEADER))


def key_column(frame: DataFrame, key: Key) -> Column | None:
    """The key of each row, in bytes; None without `key`."""
    if key is None:
        return None
    if isinstance(key, Column):
        return key_of(key, frame.select(key).schema.fields[0].dataType)
    names = [key] if isinstance(key, str) else list(key)
    require_columns(frame.columns, names, " for the key", at_least_one=True)
    if len(names) > 1:
        return key_of_several([frame[f"`{name}`"] for name in names])
    return key_of(frame[f"`{names[0]}`"], frame.schema[names[0]].dataType)


def _check_raw(schema: StructType, topic: str) -> None:
    wrong = list(_wrong_about(schema, {name: name for name in schema.names if name != VALUE}))
    _raise_if(wrong, topic)


def _check_names(schema: StructType, topic: str) -> None:
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    _raise_if([f"there are {schema.names.count(name)} columns {name}" for name in twice], topic)
    if not schema.names:
        raise SchemaMismatchError(f"a frame without columns cannot be written to topic {topic!r}")


def _check_typed(schema: StructType, topic: Topic[Any], shape: TopicForm) -> None:
    about = {name_beside(fields_of(shape), name): name for name in ABOUT_A_RECORD}
    fields = StructType([field for field in schema.fields if field.name not in about])
    label = shape.form.label if isinstance(shape.form, RecordForm) else f"topic {topic.name!r}"
    wrong = list(mismatches(fields, RecordForm(label, tuple(_fields(shape)))))
    wrong += _wrong_about(schema, {name: about[name] for name in schema.names if name in about})
    _raise_if(wrong, topic.name)


def _wrong_about(schema: StructType, names: dict[str, str]) -> list[str]:
    """The mismatches of the columns about a record. `names` maps their names to those in ABOUT_A_RECORD."""
    wrong = []
    for name, meant in names.items():
        found: DataType = schema[name].dataType
        if meant == "key":
            if not isinstance(found, _TEXT_OR_BYTES):
                wrong.append(f"{name} is {found.simpleString()}, but must be string or binary: cast it, or give key=")
        elif meant in ("headers", "timestamp", "partition"):
            wanted = HEADERS if meant == "headers" else RECORD[meant].dataType
            if not is_exactly(found, wanted):
                wrong.append(f"{name} is {found.simpleString()}, but must be {wanted.simpleString()}")
    return wrong


def _raise_if(wrong: Sequence[str], topic: str) -> None:
    if wrong:
        raise SchemaMismatchError(f"the frame does not fit topic {topic!r}: {'; '.join(wrong)}")
