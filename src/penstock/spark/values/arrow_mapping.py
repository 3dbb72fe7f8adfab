"""`mapInArrow` for frames with headers.

Spark limits the bytes that it sends to Python at once, and computes the size of every column for each row. For a column
of lists that takes about 9 us per row, even if all of it is null: several times as long as everything else. So headers
are sent as text, and converted to lists before the function sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypedDict

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.spark.values.columns import HEADERS, arrow_type_of

Batches = Iterator[pa.RecordBatch]

_LIST: Final = arrow_type_of(HEADERS)


class _Header(TypedDict):
    """A header in the text form in which Spark sends it."""

    key: str | None
    value: bytes | None


_text: Final = msgspec.json.Decoder(list[_Header | None])


def map_in_arrow(frame: DataFrame, function: Callable[[Batches], Batches], schema: StructType | str) -> DataFrame:
    """`frame.mapInArrow(function, schema)`, faster for columns with the headers of records."""
    names = [field.name for field in frame.schema if field.dataType.simpleString() == HEADERS.simpleString()]
    if not names:
        return frame.mapInArrow(function, schema)
    texts = {name: F.to_json(frame[f"`{name}`"], {"ignoreNullFields": "false"}) for name in names}
    return frame.withColumns(texts).mapInArrow(_WithHeaders(function, names), schema)


class _WithHeaders:
    """Calls a function of batches after converting the text columns back to lists."""

    def __init__(self, function: Callable[[Batches], Batches], names: list[str]) -> None:
        self._function = function
        self._names = names
        self.__name__ = getattr(function, "__name__", type(function).__name__)  # what Spark shows in its plans

    def __call__(self, batches: Batches) -> Batches:
        return self._function(map(self._restored, batches))

    def _restored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self._names:
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, pa.field(name, _LIST), _headers_of(batch.column(at)))
        return batch


def _headers_of(texts: pa.StringArray) -> Any:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), _LIST)
    return pa.array([None if text is None else _text.decode(text) for text in texts.to_pylist()], _LIST)
