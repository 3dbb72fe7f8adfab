"""Typed topics in real-time mode: their JSON becomes columns inside the JVM, and what does not fit is not lost.

Real-time mode runs no Python, so here it is Spark's own `from_json` that reads the values. It is a little more generous
than the library (a text field takes a number as its text). What it cannot read is left out of the results, and goes to
the dead letters by a query of its own, `undecodable`, which runs in batches beside the one in real time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from penstock.consuming.dead_letters import REDRIVE_GROUP_HEADER
from penstock.errors import ConfigError, SerdeError
from penstock.serde import JsonSerde, Topic
from penstock.spark.arrow_mapping import map_in_arrow
from penstock.spark.columns import ABOUT_A_RECORD, RECORD, name_beside
from penstock.spark.decoding import Decoder
from penstock.spark.forms import RecordForm, scalars
from penstock.spark.forms.form import ArrayForm, Field, Form
from penstock.spark.types import carried_by
from penstock.spark.undecodable import Letters, Reader, put_undecodable

_CORRUPT: Final = "_penstock_corrupt"
_PARSED: Final = "_penstock_parsed"
_SCALARS: Final = (scalars.BOOLEAN, scalars.INTEGER, scalars.FLOAT, scalars.TEXT, scalars.MOMENT)
_OF_LETTERS: Final = "pointer bigint"
_PLACE: Final = ("partition", "pointer")


def why_not_in_jvm(topic: Topic[Any]) -> str | None:
    """Why the values of a topic cannot be read without Python; None when they can."""
    serde = topic.serde
    if type(serde) is not JsonSerde or serde.made_with[1]["registry"] is not None:
        return f"topic {topic.name!r} is written by {serde!r}, and not as plain JSON"
    form = carried_by(topic).form
    if not isinstance(form, RecordForm) or form.as_sequence:
        return f"the values of topic {topic.name!r} have no fields by name"
    defaults = _defaults(topic)
    for field in form.fields:
        if not _is_simple(field.form):
            return f"field {field.name!r} of topic {topic.name!r} is neither plain nor a list of what is"
        if field.may_be_absent and defaults.get(field.name, msgspec.NODEFAULT) is not None:
            return f"field {field.name!r} of topic {topic.name!r} has a default that Spark does not know"
    return None


def decoded_in_jvm(records: DataFrame, decoder: Decoder) -> DataFrame:
    """Rows with the columns of RECORD as rows with the columns of the decoder, by Spark's own functions.

    What cannot be read is left out: write what `undecodable` gives in a query beside. ConfigError where Python is
    needed to read the topic.
    """
    parsed, fields = _parsed(records, decoder.topic)
    schema = StructType([StructField(field.name, field.form.column) for field in fields])
    about = (F.col(name).alias(name_beside(schema, name)) for name in ABOUT_A_RECORD)
    good = parsed.where(~_is_bad(fields)).where(_is_for(decoder.group))
    return good.select(*(F.col(f"{_PARSED}.`{field.written}`").alias(field.name) for field in fields), *about)


def undecodable(records: DataFrame, decoder: Decoder) -> DataFrame:
    """What `decoded_in_jvm` leaves out: a frame that puts it with the dead letters when it is run, in batches.

    Its rows are the pointers of the letters. A batch that is done again puts the same letters again, each once.
    """
    if decoder.dead_letters is None:
        raise ConfigError(f"topic {decoder.topic.name!r}: what cannot be decoded needs dead letters to go to")
    parsed, fields = _parsed(records, decoder.topic)
    bad = parsed.where(_is_bad(fields)).where(_is_for(decoder.group)).select(*RECORD.names)
    return map_in_arrow(bad, _Burial(decoder).batches, _OF_LETTERS)


class _Burial:
    """Puts records that Spark could not read with the dead letters, in the words of the library where it has some."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if len(batch):
                self._bury_rest(batch, self._decoder.decode(batch))
            yield pa.RecordBatch.from_arrays([batch.column("pointer")], ["pointer"])

    def _bury_rest(self, batch: pa.RecordBatch, decoded: pa.RecordBatch) -> None:
        """The decoder has put those that it cannot read either. Others it can, and Spark could not."""
        names = [name if name in decoded.schema.names else f"record_{name}" for name in _PLACE]
        read = set(zip(*(decoded.column(name).to_pylist() for name in names), strict=True))
        kept = [place in read for place in zip(*(batch.column(name).to_pylist() for name in _PLACE), strict=True)]
        rest = batch.filter(pa.array(kept, pa.bool_()))
        if not len(rest):
            return
        decoder = self._decoder
        assert decoder.dead_letters is not None
        why = (
            f"topic {decoder.topic.name!r}: the value is good, but cannot be read by Spark's from_json, as in real time"
        )
        put_undecodable(
            rest,
            [SerdeError(why)] * len(rest),
            letters=Letters(decoder.url, decoder.dead_letters, decoder.client),
            group=decoder.group,
            reader=Reader(f"columns of {decoder.topic.name}", decoder.version),
        )


def _parsed(records: DataFrame, topic: Topic[Any]) -> tuple[DataFrame, Sequence[Field]]:
    reason = why_not_in_jvm(topic)
    if reason is not None:
        raise ConfigError(
            f"real-time mode runs no Python: {reason}. Read the topic by its name, and take it apart yourself"
        )
    form = carried_by(topic).form
    assert isinstance(form, RecordForm)
    schema = StructType([StructField(field.written, field.form.column) for field in form.fields])
    with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    value = F.from_json(F.col("value").cast("string"), with_corrupt, {"columnNameOfCorruptRecord": _CORRUPT})
    return records.withColumn(_PARSED, value), form.fields


def _is_bad(fields: Sequence[Field]) -> Column:
    """Whether a record has a value that is not one of the topic's."""
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
    """The defaults of the fields of a topic's type."""
    found = msgspec.inspect.type_info(carried_by(topic).type)
    return {field.name: field.default for field in getattr(found, "fields", ())}
