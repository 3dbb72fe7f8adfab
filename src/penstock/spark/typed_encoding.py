"""Rows whose columns are the fields of a type, as records, by the topic's own serde."""

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
from penstock.spark.columns import WRITTEN
from penstock.spark.forms import RecordForm
from penstock.spark.forms.protobuf_types import message_of
from penstock.spark.pickling import SentByValue
from penstock.spark.types import VALUE, Carried, carried_by

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
    """Rows of a struct `value` with the fields of the topic's type, and a `key`, as rows of WRITTEN.

    `makes_key`: the topic's key function makes the key, except for records without a value, which must bring theirs.
    """

    def __init__(self, topic: Topic[Any], *, makes_key: bool) -> None:
        self.topic = topic
        self.makes_key = makes_key
        self._carried: Carried | None = None

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `DataFrame.mapInArrow`."""
        return map(self.encode, batches)

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._carried is None:
            self._carried = carried_by(self.topic)
        make = maker_of(self._carried)
        is_absent = absence_of(self._carried)
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
                    "no key: it would mean nothing. Leave such rows out, or give them a key"
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
                f"topic {self.topic.name!r}: a row is no {name_of(self.topic.type)}: {reason(error)}"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_carried": None}


def maker_of(carried: Carried) -> Callable[[Any], Any]:
    """What makes a value from a row: from the dict of its columns."""
    form, kind = carried.form, carried.type
    if not isinstance(form, RecordForm):

        def whole(row: dict[str, Any]) -> Any:
            return form.value(row[VALUE])

        if carried.is_text_of_json:
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


def absence_of(carried: Carried) -> Callable[[dict[str, Any]], bool]:
    """Whether a row stands for a record without a value: every field is null, and they cannot all be."""
    form = carried.form
    if isinstance(form, RecordForm) and all(field.optional or field.null_is_absent for field in form.fields):
        return lambda row: False
    return lambda row: all(part is None for part in row.values())
