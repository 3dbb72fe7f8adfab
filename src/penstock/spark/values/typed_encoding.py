"""From rows whose columns are the fields of a type to records, by the topic's serde."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.accumulators import Accumulator

from penstock.errors import SerdeError
from penstock.serde import Topic
from penstock.serde.forms import RecordForm
from penstock.serde.forms.protobuf_types import message_of
from penstock.serde.typed import reason
from penstock.serde.types import is_anything, is_protobuf, is_pydantic, name_of
from penstock.spark.errors.origins import CARRIED
from penstock.spark.errors.reports import Reporter
from penstock.spark.sessions.pickling import SentByValue
from penstock.spark.values.columns import WRITTEN
from penstock.spark.values.types import VALUE, TopicForm, topic_form

KEY: Final = "key"
_AS_THEY_ARE: Final = (
    bytes,
    bytearray,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    decimal.Decimal,
)


class Encoder(SentByValue):
    """Rows with a struct `value` of the topic's fields, and a `key`, as rows of WRITTEN.

    With `makes_key`, the topic's key function makes the key, except for records without a value, whose rows need one.

    In a query of a pipeline, a row that cannot be encoded is left out and reported, with the text of the column
    `CARRIED` if there is one. Elsewhere its error is raised.
    """

    def __init__(self, topic: Topic[Any], *, makes_key: bool, channel: Accumulator[Any] | None = None) -> None:
        self.topic = topic
        self.makes_key = makes_key
        self._channel = channel
        self._topic_form: TopicForm | None = None

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `DataFrame.mapInArrow`."""
        reporter = Reporter.of_task(f"encoder of topic {self.topic.name}", self._channel)
        return (self.encode(batch, reporter) for batch in batches)

    def encode(self, batch: pa.RecordBatch, reporter: Reporter | None = None) -> pa.RecordBatch:
        if self._topic_form is None:
            self._topic_form = topic_form(self.topic)
        make = maker_of(self._topic_form)
        is_absent = absence_of(self._topic_form)
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        failed: list[int] = []
        for index, (cell, given) in enumerate(
            zip(batch.column(VALUE).to_pylist(), batch.column(KEY).to_pylist(), strict=True)
        ):
            try:
                key, value = self._key_and_value(cell, given, make, is_absent)
            except Exception as error:
                if reporter is None or not reporter.is_collecting:
                    raise
                origin = batch.column(CARRIED)[index].as_py() if CARRIED in batch.schema.names else None
                reporter.failed(error, origin, json.dumps(cell, default=str))
                failed.append(index)
                continue
            keys.append(key)
            values.append(value)
        if reporter is not None:
            reporter.count.seen += batch.num_rows
        if failed:
            there = set(failed)
            batch = batch.filter(pa.array([index not in there for index in range(batch.num_rows)], pa.bool_()))
        written = {KEY: pa.array(keys, pa.binary()), VALUE: pa.array(values, pa.binary())}
        columns = [written[name] if name in written else batch.column(name) for name in WRITTEN.names]
        return pa.RecordBatch.from_arrays(columns, WRITTEN.names)

    def _key_and_value(
        self, cell: Any, key: bytes | None, make: Callable[[Any], Any], is_absent: Callable[[Any], bool]
    ) -> tuple[bytes | None, bytes | None]:
        if not is_absent(cell):
            value = self._made(make, cell)
            if self.makes_key:
                record = self.topic.new_record(value)
                return record.key, record.value
            return key, self.topic.serde.encode(value, self.topic.name)
        if key is None:
            raise SerdeError(
                f"topic {self.topic.name!r}: a row has null in every field, which is a record without a value, and "
                "no key: filter such rows out, or give them a key"
            )
        return key, None

    def _made(self, make: Callable[[Any], Any], cell: Any) -> Any:
        try:
            return make(cell)
        except Exception as error:
            raise SerdeError(
                f"topic {self.topic.name!r}: a row is not a {name_of(self.topic.type)}: {reason(error)}"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_topic_form": None}


def maker_of(shape: TopicForm) -> Callable[[Any], Any]:
    """A function that makes a value from a row, which is a dict of columns."""
    form, kind = shape.form, shape.type
    if not isinstance(form, RecordForm):

        def whole(row: dict[str, Any]) -> Any:
            return form.value(row[VALUE])

        if shape.is_json_text:
            return lambda row: msgspec.json.decode(row[VALUE])
        inner: Callable[[Any], Any] = whole
    else:
        inner = form.value
    if is_anything(kind):
        return inner
    if is_protobuf(kind):
        return lambda row: message_of(kind, inner(row))
    if is_pydantic(kind):
        import pydantic

        validate = pydantic.TypeAdapter(kind).validate_python
        return lambda row: validate(inner(row))
    return lambda row: msgspec.convert(inner(row), kind, builtin_types=_AS_THEY_ARE)


def absence_of(shape: TopicForm) -> Callable[[dict[str, Any]], bool]:
    """A function that tells whether a row is a record without a value: all fields are null, and one cannot be None."""
    form = shape.form
    if isinstance(form, RecordForm) and all(field.optional or field.null_is_absent for field in form.fields):
        return lambda row: False
    return lambda row: all(part is None for part in row.values())
