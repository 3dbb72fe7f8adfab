"""From rows whose columns are the fields of a type to records, by the topic's serde."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import SerdeError
from penstock.serde import Topic
from penstock.serde.typed import reason
from penstock.serde.types import is_anything, is_protobuf, is_pydantic, name_of
from penstock.spark.sessions.pickling import SentByValue
from penstock.spark.values.columns import WRITTEN
from penstock.spark.values.forms import RecordForm
from penstock.spark.values.forms.protobuf_types import message_of
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
    """

    def __init__(self, topic: Topic[Any], *, makes_key: bool) -> None:
        self.topic = topic
        self.makes_key = makes_key
        self._topic_form: TopicForm | None = None

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `DataFrame.mapInArrow`."""
        return map(self.encode, batches)

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._topic_form is None:
            self._topic_form = topic_form(self.topic)
        make = maker_of(self._topic_form)
        is_absent = absence_of(self._topic_form)
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        for cell, key in zip(batch.column(VALUE).to_pylist(), batch.column(KEY).to_pylist(), strict=True):
            if not is_absent(cell):
                value = self._made(make, cell)
                if self.makes_key:
                    record = self.topic.new_record(value)
                    values.append(record.value)
                    keys.append(record.key)
                    continue
                values.append(self.topic.serde.encode(value, self.topic.name))
            elif key is None:
                raise SerdeError(
                    f"topic {self.topic.name!r}: a row has null in every field, which is a record without a value, and "
                    "no key: filter such rows out, or give them a key"
                )
            else:
                values.append(None)
            keys.append(key)
        written = {KEY: pa.array(keys, pa.binary()), VALUE: pa.array(values, pa.binary())}
        columns = [written[name] if name in written else batch.column(name) for name in WRITTEN.names]
        return pa.RecordBatch.from_arrays(columns, WRITTEN.names)

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
