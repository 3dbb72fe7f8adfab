"""From the bytes of records to typed columns.

Every value is read by the serde of its topic, as the library reads it, and many values become one Arrow array at once:
what the library accepts and refuses is what Spark does. Reading JSON by columns (pyarrow.json) was measured: somewhat
faster for plain dataclasses, not for slotted ones, and its ideas of numbers, times and missing fields are others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from penstock.consuming.dead_letters import REDRIVE_GROUP_HEADER, redrive_of
from penstock.consuming.dead_letters.opening import names_a_topic, path_of
from penstock.errors import ConfigError, SerdeError
from penstock.serde import Topic
from penstock.spark.arrow_mapping import map_in_arrow
from penstock.spark.columns import ABOUT_A_RECORD, RECORD, name_beside
from penstock.spark.forms import RecordForm
from penstock.spark.forms.form import arrow_type_of
from penstock.spark.json_expression import decode_expression
from penstock.spark.pickling import SentByValue
from penstock.spark.types import Carried, carried_by
from penstock.spark.undecodable import Letters, Reader, put_undecodable, record_of
from penstock.streams.options import ConnectOptions
from penstock.streams.url import LogUrl, MemoryUrl, parse_url
from penstock.streams.url_settings import client_with, resolved

__all__ = ["Decoder", "decode_expression", "decode_stream"]

Values = Sequence[Any]

_ARROW_OF_RECORD: Final = {field.name: arrow_type_of(field.dataType) for field in RECORD}


class Decoder(SentByValue):
    """Records as typed columns: one for each field of the topic's type, then what is known about the record.

    A record without a value has null in all fields. One whose bytes are no value of the topic, or whose value has no
    place in a column (a whole number beyond 64 bits), goes to the dead letters and is left out. `dead_letters` says
    where: a topic, "sqlite:PATH", "file:PATH" or "postgresql://..."; True is the topic `<name>.dlq`. With None or False
    there are none, and such a record fails the task. `group` and `version` name who gave up, in the letter; the
    letter's id is made from the group and the record's place. `client` are options of `connect`.

    A record that was redriven for another group is left out, as in every consumer: it has been read here before.

    It may be pickled, also where the topic's type is of the main program, and holds nothing open.
    """

    def __init__(
        self,
        topic: Topic[Any],
        *,
        url: str,
        dead_letters: str | bool | None = True,
        group: str,
        version: str = "",
        client: ConnectOptions | None = None,
    ) -> None:
        if dead_letters is True:
            dead_letters = f"{topic.name}.dlq"
        self.topic = topic
        self.url = resolved(_absolute_url(url), {})[0]
        self.dead_letters = _checked_letters(dead_letters or None, topic, url)
        self.group = group
        self.version = version
        self.client: ConnectOptions = client_with(url, client)
        self._counter: tuple[Any, ...] | None = None
        self._carried: Carried | None = None
        self._schema: StructType | None = None
        carried_by(topic)

    @property
    def schema(self) -> StructType:
        """What comes out."""
        if self._schema is None:
            fields = self._form.columns
            about = (StructField(name_beside(fields, name), RECORD[name].dataType) for name in ABOUT_A_RECORD)
            self._schema = StructType([*fields.fields, *about])
        return self._schema

    @property
    def _form(self) -> Carried:
        if self._carried is None:
            self._carried = carried_by(self.topic)
        return self._carried

    def counting(self, accumulator: Accumulator[int]) -> Decoder:
        """The same, counting what goes to the dead letters: `SparkContext.accumulator(0)`. Its value in the driver
        grows when a task ends; rows that are read again, by a retry or another action, are counted again."""
        other = copy.copy(self)
        # A worker keeps a decoder for many tasks, and reports what was added to accumulators made for the task at hand.
        made: Any = accumulator.__reduce__()
        other._counter = made
        return other

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the columns of RECORD as rows with the columns of `schema`."""
        batch = self._without_those_for_others(batch)
        values, errors = self._values(batch.column("value").to_pylist())
        if errors:
            batch, values = self._leave_out(batch, values, errors)
        try:
            columns = self._columns(values)
        except Exception:
            misfits = _misfits(values, self._columns)
            if not misfits:
                raise
            batch, values = self._leave_out(batch, values, {at: self._no_place(why) for at, why in misfits.items()})
            columns = self._columns(values)
        about = (_as(batch.column(name), _ARROW_OF_RECORD[name]) for name in ABOUT_A_RECORD)
        return pa.RecordBatch.from_arrays([*columns, *about], self.schema.names)

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `DataFrame.mapInArrow`."""
        return map(self.decode, batches)

    def _values(self, data: Sequence[bytes | None]) -> tuple[list[Any], dict[int, Exception]]:
        """What the bytes are, and why those that are nothing are not."""
        decode = self._decoder()
        try:
            return list(map(decode, data)), {}  # type: ignore[arg-type]  # None is no bytes, and goes one by one
        except Exception:  # whatever it was, it is found again there
            return self._values_one_by_one(data, decode)

    def _values_one_by_one(
        self, data: Sequence[bytes | None], decode: Callable[[bytes], Any]
    ) -> tuple[list[Any], dict[int, Exception]]:
        values: list[Any] = []
        errors: dict[int, Exception] = {}
        for index, each in enumerate(data):
            try:
                values.append(None if each is None else decode(each))
            except Exception as bare:
                values.append(None)
                errors[index] = self._refusal(each, bare)
        return values, errors

    def _refusal(self, data: bytes | None, bare: Exception) -> SerdeError:
        """Why bytes are no value, as the library says it. What is not about the bytes, such as a schema registry that
        cannot be reached, is raised: they may be good."""
        try:
            self.topic.decode(data)
        except SerdeError as error:
            return error
        raise bare

    def _decoder(self) -> Callable[[bytes], Any]:
        decode = self.topic.decoder
        if not self._form.is_text_of_json:
            return decode

        def text(data: bytes) -> str:
            decode(data)
            return data.decode()

        return text

    def _columns(self, values: Values) -> list[pa.Array]:
        form = self._form.form
        if isinstance(form, RecordForm):
            return form.children(values, has_nulls=any(value is None for value in values))
        return [form.array(values)]

    def _leave_out(
        self, batch: pa.RecordBatch, values: Values, errors: Mapping[int, Exception]
    ) -> tuple[pa.RecordBatch, list[Any]]:
        """The rest, once those rows are with the dead letters."""
        rows = batch.take(pa.array(list(errors), pa.int32()))
        if self.dead_letters is None:
            place = record_of(rows.slice(0, 1).to_pylist()[0]).place
            why = next(iter(errors.values()))
            raise SerdeError(
                f"{place} cannot be read, and there are no dead letters for it to go to: {why}. Give dead_letters"
            ) from why
        put_undecodable(
            rows,
            list(errors.values()),
            letters=Letters(self.url, self.dead_letters, self.client),
            group=self.group,
            reader=Reader(f"columns of {self.topic.name}", self.version),
        )
        if self._counter is not None:
            make, arguments = self._counter
            make(*arguments).add(len(errors))
        kept = [index not in errors for index in range(batch.num_rows)]
        return batch.filter(pa.array(kept, pa.bool_())), [
            value for value, keep in zip(values, kept, strict=True) if keep
        ]

    def _no_place(self, why: Exception) -> SerdeError:
        return SerdeError(f"topic {self.topic.name!r}: the value is good, but has no place in its columns: {why}")

    def _without_those_for_others(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.column("headers").flatten().field("key")
        if len(names) == 0 or not pc.any(pc.equal(names, REDRIVE_GROUP_HEADER)).as_py():
            return batch
        kept = []
        for row in batch.to_pylist():
            redrive = redrive_of(record_of(row))
            kept.append(redrive is None or redrive.is_for(self.group))
        return batch.filter(pa.array(kept, pa.bool_()))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_carried": None, "_schema": None}

    def __repr__(self) -> str:
        return f"Decoder({self.topic!r}, url={self.url!r}, dead_letters={self.dead_letters!r}, group={self.group!r})"


def decode_stream(frame: DataFrame, decoder: Decoder) -> DataFrame:
    """A frame with the columns of RECORD, streaming or not, as typed columns."""
    missing = [name for name in RECORD.names if name not in frame.columns]
    if missing:
        raise ConfigError(f"these are no records: there is no column {', '.join(missing)}")
    return map_in_arrow(frame.select(*RECORD.names), decoder.batches, decoder.schema)


def _misfits(values: Values, build: Callable[[Values], object]) -> dict[int, Exception]:
    """Which values cannot be built alone, and why: by halves, as there are few of them as a rule."""
    found: dict[int, Exception] = {}
    spans = [(0, len(values))]
    while spans:
        low, high = spans.pop()
        try:
            build(values[low:high])
        except Exception as error:
            if high - low == 1:
                found[low] = error
            else:
                middle = (low + high) // 2
                spans += [(middle, high), (low, middle)]
    return found


def _as(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The column in the type that Spark wants, whatever kind of text or bytes a reader gives. The zone in which a
    moment is shown is nothing to it."""
    if column.type == wanted or (pa.types.is_timestamp(wanted) and column.type.unit == wanted.unit):
        return column
    return column.cast(wanted)


def _absolute_url(url: str) -> str:
    """Executors may have another working folder."""
    found = parse_url(url)
    return f"log:{found.folder.absolute()}" if isinstance(found, LogUrl) else url


def _checked_letters(spec: str | bool | None, topic: Topic[Any], url: str) -> str | None:
    if spec is None:
        return None
    if not isinstance(spec, str):
        raise ConfigError(
            f"topic {topic.name!r}: dead_letters is {spec!r}: in Spark it is a name that every task can open, such as "
            f"{topic.name}.dlq or postgresql://..."
        )
    if spec == topic.name:
        raise ConfigError(
            f"topic {topic.name!r}: its dead letters would go to the topic itself, and come back for ever: give them a "
            f"place of their own, such as {topic.name}.dlq"
        )
    if names_a_topic(spec):
        if isinstance(parse_url(url), MemoryUrl):
            raise ConfigError(f"{url} is in the memory of one process, and no task could write dead letters to it")
        return spec
    path = path_of(spec)
    if path is None:
        return spec
    return f"{spec.partition(':')[0]}:{Path(path).absolute()}"
