"""The columns of a topic: those about the record, its key and value as text or bytes, and the fields of its type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from penstock.errors import SerdeError
from penstock.querying.json_fields import JsonFields
from penstock.serde import Topic
from penstock.serde.forms import RecordForm, TopicForm, topic_form
from penstock.serde.forms.topics import decoded, misfits
from penstock.streams.record_columns import SCHEMA, SCHEMA_WITH_TEXT

Undecodable = Literal["null", "error"]

PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
ABOUT: Final = (PARTITION, OFFSET, TIMESTAMP, KEY, VALUE, HEADERS)
"""The columns about a record."""
_any_json: Final = msgspec.json.Decoder(msgspec.Raw)


@dataclass(frozen=True, slots=True)
class Texts:
    """Which of key and value are text. The others are bytes."""

    key: bool
    value: bool


def texts_of(keys: Sequence[bytes], values: Sequence[bytes]) -> Texts:
    """What a sample of a topic's records says: a column is text if at least half of its cells are UTF-8."""
    return Texts(_is_text(keys), _is_text(values))


def _is_text(cells: Sequence[bytes]) -> bool:
    return 2 * sum(map(_is_utf8, cells)) >= len(cells)


def _is_utf8(cell: bytes) -> bool:
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True


class TopicColumns:
    """The columns of one topic, and how they are made of its records.

    A cell that cannot be decoded is null and counted in `undecodable`, or a SerdeError. With `are_views`, keys and
    values are not copied. With `checks_json`, a value that is text but not JSON counts as undecodable, too, and so does
    one with a field that does not have the type it has in `json_fields`.
    """

    def __init__(
        self,
        topic: Topic[Any] | None,
        name: str,
        texts: Texts,
        *,
        has_offsets: bool,
        are_views: bool,
        checks_json: bool,
        on_undecodable: Undecodable,
        json_fields: JsonFields | None = None,
    ) -> None:
        self.undecodable = 0
        self._json_fields = json_fields
        self._name = name
        self._fails = on_undecodable == "error"
        self._topic = topic
        shape = None if topic is None else topic_form(topic)
        self._shape = None if shape is None or _is_plain(shape) else shape
        is_value_text = texts.value
        if shape is not None and self._shape is None:
            is_value_text = shape.form.column != pa.binary()
        self._checks_json = checks_json and self._shape is None
        fields: list[pa.Field] = [] if self._shape is None else self._shape.fields
        self._typed = [field.name for field in fields]
        self.names = names_beside(self._typed if shape is None or isinstance(shape.form, RecordForm) else [])
        """The names of the columns about the record."""
        source = SCHEMA if has_offsets else SCHEMA_WITH_TEXT
        text, data = (pa.string_view(), pa.binary_view()) if are_views else (pa.string(), pa.binary())
        about = {
            PARTITION: source.field("partition").type,
            OFFSET: source.field("pointer").type,
            TIMESTAMP: source.field("timestamp").type,
            KEY: text if texts.key else data,
            VALUE: text if is_value_text else data,
            HEADERS: source.field("headers").type,
        }
        known = {self.names[name]: kind for name, kind in about.items() if self.names[name] not in self._typed}
        self.schema = pa.schema([*(pa.field(name, kind) for name, kind in known.items()), *fields])
        self._sources = {self.names[name]: name for name in ABOUT if self.names[name] in known}

    def needs(self, columns: Sequence[str]) -> list[str]:
        """The columns about the record that these columns are made of."""
        found = [self._sources[column] for column in columns if column in self._sources]
        if VALUE not in found and any(column in self._typed for column in columns):
            found.append(VALUE)
        if self._fails:  # the error says which record it is about
            found += (name for name in (PARTITION, OFFSET) if name not in found and name in self._sources.values())
        return found

    def batch(self, given: Mapping[str, Any], columns: Sequence[str]) -> pa.RecordBatch:
        """These columns of some records, of which `given` has the columns that they need."""
        made: dict[str, Any] = {}
        if any(column in self._typed for column in columns):
            made = dict(zip(self._typed, self._decoded(given), strict=True))
        for column in columns:
            if column in self._sources:
                made[column] = self._about(column, given)
        kinds = pa.schema([self.schema.field(column) for column in columns])
        return pa.RecordBatch.from_arrays([made[column] for column in columns], schema=kinds)

    def _about(self, column: str, given: Mapping[str, Any]) -> Any:
        source, kind = self._sources[column], self.schema.field(column).type
        cells = given[source]
        if source not in (KEY, VALUE):
            return cells
        if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
            return cells if cells.type == kind else cells.cast(kind)
        return self._text(cells, kind, given, source)

    def _text(self, cells: Any, kind: pa.DataType, given: Mapping[str, Any], source: str) -> Any:
        if not (self._checks_json and source == VALUE):
            try:
                return _as_text(cells, kind)
            except pa.ArrowInvalid:
                pass  # it is found below, cell by cell
        found: list[str | None] = []
        for row, cell in enumerate(cells.to_pylist()):
            try:
                if cell is not None and self._checks_json and source == VALUE:
                    self._check_json(given, row, cell)
                found.append(None if cell is None else cell.decode())
            except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
                found.append(None)
                self._refuse(given, row, f"its {source} cannot be decoded: {error}")
        return pa.array(found, kind)

    def _check_json(self, given: Mapping[str, Any], row: int, cell: bytes) -> None:
        """Raises MsgspecError if a cell is not JSON."""
        if self._json_fields is None:
            _any_json.decode(cell)
            return
        for name in self._json_fields.misfits(cell):
            self._refuse(given, row, f"its field {name!r} is not {self._json_fields.kinds[name]}")

    def _decoded(self, given: Mapping[str, Any]) -> list[Any]:
        assert self._topic is not None
        assert self._shape is not None
        values, errors = decoded(self._topic, given[VALUE].to_pylist(), self._topic.decoder)
        wrong: dict[int, Exception] = {**errors}
        try:
            columns = self._shape.arrays(values)
        except Exception:
            unfit = misfits(values, self._shape.arrays)
            if not unfit:
                raise
            wrong |= unfit
            values = [None if row in unfit else value for row, value in enumerate(values)]
            columns = self._shape.arrays(values)
        for row, error in wrong.items():
            self._refuse(given, row, str(error))
        return columns

    def _refuse(self, given: Mapping[str, Any], row: int, why: str) -> None:
        if self._fails:
            place = ", ".join(f"{name} {given[name][row].as_py()}" for name in (PARTITION, OFFSET) if name in given)
            raise SerdeError(f"topic {self._name!r}{place and ', '}{place}: {why}")
        self.undecodable += 1


def names_beside(fields: Sequence[str]) -> dict[str, str]:
    """The names of the columns about the record beside these fields. SQL ignores case."""
    taken = {field.lower() for field in fields}
    return {name: f"record_{name}" if name in taken else name for name in ABOUT}


def _is_plain(shape: TopicForm) -> bool:
    """Whether values are text or bytes as they are."""
    return shape.is_json_text or (shape.form.column in (pa.string(), pa.binary()) and shape.type in (str, bytes))


def _as_text(cells: Any, kind: pa.DataType) -> Any:
    """Raises ArrowInvalid for bytes that are not UTF-8."""
    if pa.types.is_string_view(kind) and pa.types.is_binary_view(cells.type):
        text = pa.Array.from_buffers(kind, len(cells), cells.buffers(), offset=cells.offset)
        text.validate(full=True)
        return text
    data = cells if pa.types.is_binary(cells.type) else cells.cast(pa.binary())
    return data.cast(pa.string()).cast(kind)
