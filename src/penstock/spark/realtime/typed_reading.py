"""Typed topics in real-time mode: JSON is decoded in the JVM, and records that do not fit go to dead letters.

Real-time mode runs no Python, so Spark's own `from_json` decodes the values. It accepts slightly more than the Python
decoder (a number in a text field). Records that it cannot decode are omitted from the results; a second query,
`undecodable`, runs in batches and sends them to the dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from penstock.dead_letters import REDRIVE_GROUP_HEADER
from penstock.errors import ConfigError, SerdeError
from penstock.serde import JsonSerde, Topic
from penstock.serde.forms import RecordForm, scalars
from penstock.serde.forms.form import ArrayForm, Field, Form
from penstock.spark.values.arrow_mapping import map_in_arrow
from penstock.spark.values.columns import ABOUT_A_RECORD, RECORD, name_beside
from penstock.spark.values.decoding import Decoder
from penstock.spark.values.types import column_of, topic_form
from penstock.spark.values.undecodable import Reader, put_undecodable

_CORRUPT: Final = "_penstock_corrupt"
_PARSED: Final = "_penstock_parsed"
_SCALARS: Final = (scalars.BOOLEAN, scalars.INTEGER, scalars.FLOAT, scalars.TEXT, scalars.TIMESTAMP_TZ)
_OF_LETTERS: Final = "pointer bigint"
_PLACE: Final = ("partition", "pointer")


def why_not_in_jvm(topic: Topic[Any]) -> str | None:
    """Why the values of a topic cannot be decoded without Python; None if they can."""
    serde = topic.serde
    if type(serde) is not JsonSerde or serde.made_with[1]["registry"] is not None:
        return f"topic {topic.name!r} is written by {serde!r}, not as plain JSON"
    form = topic_form(topic).form
    if not isinstance(form, RecordForm) or form.as_sequence:
        return f"the values of topic {topic.name!r} have no fields by name"
    defaults = _defaults(topic)
    for field in form.fields:
        if not _is_simple(field.form):
            return f"field {field.name!r} of topic {topic.name!r} is neither a scalar nor a list of scalars"
        if field.may_be_absent and defaults.get(field.name, msgspec.NODEFAULT) is not None:
            return f"field {field.name!r} of topic {topic.name!r} has a default that Spark cannot apply"
    return None


def decoded_in_jvm(records: DataFrame, decoder: Decoder) -> DataFrame:
    """Decode rows of RECORD to the columns of the decoder by Spark's own functions.

    Records that cannot be decoded are omitted: write the result of `undecodable` in a second query. Raises ConfigError
    if decoding the topic needs Python.
    """
    parsed, fields = _parsed(records, decoder.topic)
    schema = StructType([StructField(field.name, column_of(field.form)) for field in fields])
    about = (F.col(name).alias(name_beside(schema, name)) for name in ABOUT_A_RECORD)
    good = parsed.where(~_is_bad(fields)).where(_is_for(decoder.group))
    return good.select(*(F.col(f"{_PARSED}.`{field.written}`").alias(field.name) for field in fields), *about)


def undecodable(records: DataFrame, decoder: Decoder) -> DataFrame:
    """A frame that sends the records that `decoded_in_jvm` omits to the dead letters when it runs, in batches.

    Its rows are the pointers of the letters. A repeated batch does not duplicate letters.
    """
    if decoder.dead_letters is None:
        raise ConfigError(
            f"topic {decoder.topic.name!r}: in real-time mode, a separate query finds records that cannot be decoded, "
            "so they cannot fail this one: set dead_letters, or omit real_time"
        )
    parsed, fields = _parsed(records, decoder.topic)
    bad = parsed.where(_is_bad(fields)).where(_is_for(decoder.group)).select(*RECORD.names)
    return map_in_arrow(bad, _UndecodableWriter(decoder).batches, _OF_LETTERS)


class _UndecodableWriter:
    """Sends records that Spark could not decode to the dead letters, with the Python decoder's error if it has one."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if len(batch):
                self._put_rest(batch, self._decoder.decode(batch))
            yield pa.RecordBatch.from_arrays([batch.column("pointer")], ["pointer"])

    def _put_rest(self, batch: pa.RecordBatch, decoded: pa.RecordBatch) -> None:
        """Send the records that the Python decoder can decode, but Spark cannot: the decoder has sent the others."""
        names = [name if name in decoded.schema.names else f"record_{name}" for name in _PLACE]
        read = set(zip(*(decoded.column(name).to_pylist() for name in names), strict=True))
        kept = [place in read for place in zip(*(batch.column(name).to_pylist() for name in _PLACE), strict=True)]
        rest = batch.filter(pa.array(kept, pa.bool_()))
        if not len(rest):
            return
        decoder = self._decoder
        assert decoder.letters is not None
        why = (
            f"topic {decoder.topic.name!r}: the value is valid, but Spark's from_json, which real-time mode uses, "
            "cannot decode it"
        )
        put_undecodable(
            rest,
            [SerdeError(why)] * len(rest),
            letters=decoder.letters,
            group=decoder.group,
            reader=Reader(f"columns of {decoder.topic.name}", decoder.version),
        )


def _parsed(records: DataFrame, topic: Topic[Any]) -> tuple[DataFrame, Sequence[Field]]:
    reason = why_not_in_jvm(topic)
    if reason is not None:
        raise ConfigError(
            f"real-time mode runs no Python: {reason}. Read the topic by its name, and parse the values yourself"
        )
    form = topic_form(topic).form
    assert isinstance(form, RecordForm)
    schema = StructType([StructField(field.written, column_of(field.form)) for field in form.fields])
    with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    value = F.from_json(F.col("value").cast("string"), with_corrupt, {"columnNameOfCorruptRecord": _CORRUPT})
    return records.withColumn(_PARSED, value), form.fields


def _is_bad(fields: Sequence[Field]) -> Column:
    wrong = F.col(_PARSED).isNull() | F.col(f"{_PARSED}.{_CORRUPT}").isNotNull()
    for field in fields:
        if not field.optional and not field.may_be_absent:
            wrong = wrong | F.col(f"{_PARSED}.`{field.written}`").isNull()
    return F.col("value").isNotNull() & wrong


def _is_for(group: str) -> Column:
    """Whether a record was redriven for this group, or not at all."""
    named: Callable[[Column], Column] = lambda header: header["key"] == REDRIVE_GROUP_HEADER  # noqa: E731
    last = F.try_element_at(F.filter("headers", named), F.lit(-1))["value"]
    return F.coalesce(last == F.lit(group.encode()), F.lit(True))


def _is_simple(form: Form) -> bool:
    return form in _SCALARS or (isinstance(form, ArrayForm) and form.items in _SCALARS)


def _defaults(topic: Topic[Any]) -> dict[str, Any]:
    found = msgspec.inspect.type_info(topic_form(topic).type)
    return {field.name: field.default for field in getattr(found, "fields", ())}
