"""From the bytes of records to typed columns.

The serde of the topic decodes each value, so that Spark accepts and refuses what the library does, and many values
become one Arrow array. Parsing JSON by columns (pyarrow.json) was measured: it is somewhat faster for plain dataclasses
only, and treats numbers, times and missing fields differently.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from penstock.dead_letters import REDRIVE_GROUP_HEADER, redrive_of
from penstock.dead_letters.opening import names_a_topic, path_of
from penstock.errors import ConfigError, SerdeError
from penstock.serde import Topic
from penstock.serde.forms.topics import decoded, misfits
from penstock.spark.sessions.pickling import SentByValue
from penstock.spark.values.columns import (
    ABOUT_A_RECORD,
    RECORD,
    arrow_type_of,
    name_beside,
    record_schema,
    stream_has_offsets,
)
from penstock.spark.values.json_expression import decode_expression
from penstock.spark.values.types import TopicForm, fields_of, topic_form
from penstock.spark.values.undecodable import Letters, Reader, put_undecodable, record_of
from penstock.streams.options import ConnectOptions
from penstock.streams.topic_patterns import TopicPattern
from penstock.streams.url import is_memory, log_folder, without_password
from penstock.streams.url_settings import client_with, resolved

__all__ = ["Decoder", "decode_expression"]

Values = Sequence[Any]

_ARROW_OF_RECORD: Final = {field.name: arrow_type_of(field.dataType) for field in RECORD}
_ARROW_WITH_TEXT: Final = {**_ARROW_OF_RECORD, "pointer": pa.string()}
"""For streams whose pointers are not offsets."""


class Decoder(SentByValue):
    """Decodes records to typed columns: one for each field of the topic's type, then those about the record.

    A record without a value has null in all fields. A record that cannot be decoded, or whose value does not fit a
    column (an integer beyond 64 bits), goes to the dead letters and is omitted. `dead_letters` is a topic,
    "sqlite:PATH", "file:PATH" or "postgresql://..."; True is the topic `<name>.dlq`. With None or False, such a record
    fails the task. `group` and `version` identify the reader in the letter; the letter's id is made from the group and
    the position of the record. `client` has options of `connect`.

    Records that were redriven for another group are omitted, as in every consumer.

    It can be pickled, even if the topic's type is in the main program, and holds nothing open.
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
        has_offsets: bool | None = None,
    ) -> None:
        """`has_offsets`: whether the pointers of the records are offsets; None: as on the stream at `url`."""
        self.topic = topic
        self.url = resolved(_absolute_url(url), {})[0]
        self.dead_letters = _checked_letters(letters_of(topic.name, dead_letters), topic, url)
        self._is_default_letters = dead_letters is True
        self.group = group
        self.version = version
        self.client: ConnectOptions = client_with(url, client)
        self._has_offsets = stream_has_offsets(self.url, self.client) if has_offsets is None else has_offsets
        self._topic_form: TopicForm | None = None
        self._schema: StructType | None = None
        topic_form(topic)

    @property
    def schema(self) -> StructType:
        """The columns after decoding."""
        if self._schema is None:
            fields = fields_of(self._form)
            record = record_schema(has_offsets=self._has_offsets)
            about = (StructField(name_beside(fields, name), record[name].dataType) for name in ABOUT_A_RECORD)
            self._schema = StructType([*fields.fields, *about])
        return self._schema

    @property
    def letters(self) -> Letters | None:
        """The location of its dead letters, if it has any."""
        return None if self.dead_letters is None else Letters(self.url, self.dead_letters, self.client)

    @property
    def _form(self) -> TopicForm:
        if self._topic_form is None:
            self._topic_form = topic_form(self.topic)
        return self._topic_form

    def of_topic(self, topic: Topic[Any]) -> Decoder:
        """The same for another topic of the same type."""
        other = copy.copy(self)
        other.topic, other._topic_form = topic, None
        if self._is_default_letters:
            other.dead_letters = _checked_letters(letters_of(topic.name, True), topic, self.url)
        return other

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the columns of RECORD as rows with the columns of `schema`."""
        batch = self._without_other_groups(batch)
        values, errors = decoded(self.topic, batch.column("value").to_pylist(), self._decoder())
        if errors:
            batch, values = self._leave_out(batch, values, errors)
        try:
            columns = self._columns(values)
        except Exception:
            wrong = misfits(values, self._columns)
            if not wrong:
                raise
            batch, values = self._leave_out(batch, values, {at: self._misfit(why) for at, why in wrong.items()})
            columns = self._columns(values)
        types = _ARROW_OF_RECORD if self._has_offsets else _ARROW_WITH_TEXT
        about = (_as(batch.column(name), types[name]) for name in ABOUT_A_RECORD)
        return pa.RecordBatch.from_arrays([*columns, *about], self.schema.names)

    def _decoder(self) -> Callable[[bytes], Any]:
        decode = self.topic.decoder
        if not self._form.is_json_text:
            return decode

        def text(data: bytes) -> str:
            decode(data)
            return data.decode()

        return text

    def _columns(self, values: Values) -> list[pa.Array]:
        return self._form.arrays(values)

    def _leave_out(
        self, batch: pa.RecordBatch, values: Values, errors: Mapping[int, Exception]
    ) -> tuple[pa.RecordBatch, list[Any]]:
        """Store the rows with errors in the dead letters, and return the other rows and values."""
        rows = batch.take(pa.array(list(errors), pa.int32()))
        if self.letters is None:
            place = record_of(rows.slice(0, 1).to_pylist()[0]).place
            why = next(iter(errors.values()))
            raise SerdeError(
                f"{place} cannot be decoded, and there are no dead letters: {why}. Set dead_letters"
            ) from why
        put_undecodable(
            rows,
            list(errors.values()),
            letters=self.letters,
            group=self.group,
            reader=Reader(f"columns of {self.topic.name}", self.version),
        )
        kept = [index not in errors for index in range(batch.num_rows)]
        return batch.filter(pa.array(kept, pa.bool_())), [
            value for value, keep in zip(values, kept, strict=True) if keep
        ]

    def _misfit(self, why: Exception) -> SerdeError:
        return SerdeError(f"topic {self.topic.name!r}: the value is valid, but does not fit its columns: {why}")

    def _without_other_groups(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.column("headers").flatten().field("key")
        if len(names) == 0 or not pc.any(pc.equal(names, REDRIVE_GROUP_HEADER)).as_py():
            return batch
        kept = []
        for row in batch.to_pylist():
            redrive = redrive_of(record_of(row))
            kept.append(redrive is None or redrive.is_for(self.group))
        return batch.filter(pa.array(kept, pa.bool_()))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_topic_form": None, "_schema": None}

    def __repr__(self) -> str:
        letters = None if self.letters is None else str(self.letters)
        return (
            f"Decoder({self.topic!r}, url={without_password(self.url)!r}, dead_letters={letters!r}, "
            f"group={self.group!r})"
        )


class TopicDecoders(SentByValue):
    """Records of several topics as the same typed columns, each by the decoder of its topic."""

    def __init__(self, first: Decoder, decoders: Mapping[str, Decoder], pattern: TopicPattern | None = None) -> None:
        """`decoders` are by the names of their topics. Those of a pattern are made from `first` when needed."""
        self._first = first
        self._decoders = dict(decoders)
        self._pattern = pattern

    @property
    def schema(self) -> StructType:
        return self._first.schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Implement `Decoder.decode`."""
        topics = batch.column("topic")
        names = pc.unique(topics).to_pylist()
        if len(names) < 2:
            return (self._of(names[0]) if names else self._first).decode(batch)
        parts = [self._of(name).decode(batch.filter(pc.equal(topics, name))) for name in names]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]

    def _of(self, topic: str) -> Decoder:
        if topic not in self._decoders:
            assert self._pattern is not None, "the source reads the topics that it was given"
            self._decoders[topic] = self._first.of_topic(self._pattern.topic(topic))
        return self._decoders[topic]


def letters_of(topic: str, dead_letters: str | bool | None) -> str | None:
    """Where the dead letters of a topic go: True is the topic `<name>.dlq`, False and None are nowhere."""
    return f"{topic}.dlq" if dead_letters is True else dead_letters or None


def _as(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The column in the type that Spark expects. Ignores the display time zone."""
    if column.type == wanted or (pa.types.is_timestamp(wanted) and column.type.unit == wanted.unit):
        return column
    return column.cast(wanted)


def _absolute_url(url: str) -> str:
    """Executors may have another working folder."""
    folder = log_folder(url)
    return f"log:{folder.absolute()}" if folder is not None else url


def _checked_letters(spec: str | bool | None, topic: Topic[Any], url: str) -> str | None:
    if spec is None:
        return None
    if not isinstance(spec, str):
        raise ConfigError(
            f"topic {topic.name!r}: dead_letters={spec!r} must be a name in Spark, as every task opens it: such as "
            f"{topic.name}.dlq or postgresql://..."
        )
    if spec == topic.name:
        raise ConfigError(
            f"topic {topic.name!r}: its dead letters would go to the topic itself, and be read again for ever: use "
            f"another one, such as {topic.name}.dlq"
        )
    if names_a_topic(spec):
        if is_memory(url):
            raise ConfigError(f"{url} exists only in this process, so tasks cannot write dead letters to it")
        return spec
    path = path_of(spec)
    if path is None:
        return spec
    return f"{spec.partition(':')[0]}:{Path(path).absolute()}"
