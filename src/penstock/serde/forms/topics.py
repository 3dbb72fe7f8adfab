"""The form of a topic's values, by its type, its Avro schema or its Protobuf message."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.errors import ConfigError, SerdeError
from penstock.serde import AvroSerde, BytesSerde, JsonSerde, PlainSerde, ProtobufSerde, TextSerde, Topic
from penstock.serde.forms import scalars
from penstock.serde.forms.form import ArrayForm, Field, Form, MapForm, RecordForm, no_column
from penstock.serde.forms.protobuf_types import form_of_protobuf
from penstock.serde.forms.python_types import form_of_type
from penstock.serde.forms.scalars import BYTES, TEXT
from penstock.serde.typed import TypedSerde
from penstock.serde.types import is_anything, is_protobuf

_PRIMITIVES: Final[Mapping[str, Form]] = {
    "boolean": scalars.BOOLEAN,
    "int": scalars.SHORT_INTEGER,
    "long": scalars.INTEGER,
    "float": scalars.SHORT_FLOAT,
    "double": scalars.FLOAT,
    "string": scalars.TEXT,
    "bytes": scalars.BYTES,
}
_LOGICAL: Final[Mapping[tuple[str, str], Form]] = {
    ("int", "date"): scalars.DATE,
    ("int", "time-millis"): scalars.TIME,
    ("long", "time-micros"): scalars.TIME,
    ("long", "timestamp-millis"): scalars.TIMESTAMP_TZ,
    ("long", "timestamp-micros"): scalars.TIMESTAMP_TZ,
    ("long", "local-timestamp-millis"): scalars.TIMESTAMP,
    ("long", "local-timestamp-micros"): scalars.TIMESTAMP,
    ("string", "uuid"): scalars.UUID,
}


def form_of_avro(schema: Any) -> tuple[Form, bool]:
    """The form of a schema, parsed from JSON, and whether null is one of its values."""
    return _Deriving().place(schema, "", "its values")


class _Deriving:
    """One derivation: the named types so far, and those that enclose the current one."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._inside: list[str] = []

    def place(self, schema: Any, namespace: str, path: str) -> tuple[Form, bool]:
        if not isinstance(schema, list):
            if schema == "null" or (isinstance(schema, dict) and schema.get("type") == "null"):
                raise no_column(path, "it is always null")
            return self._form(schema, namespace, path), False
        parts = [part for part in schema if part != "null"]
        if len(parts) != 1:
            raise no_column(path, "it may be of several types, and a column has one")
        inner, _ = self.place(parts[0], namespace, path)
        return inner, len(parts) < len(schema)

    def _form(self, schema: Any, namespace: str, path: str) -> Form:
        if isinstance(schema, str):
            return self._mentioned(schema, namespace, path)
        kind = schema.get("type")
        if isinstance(kind, dict | list):
            return self.place(kind, namespace, path)[0]
        logical = _LOGICAL.get((kind, schema.get("logicalType", "")))
        if logical is not None:
            return logical
        if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
            return self._decimal(schema, namespace, path)
        match kind:
            case "array":
                return ArrayForm(self.place(schema["items"], namespace, f"{path}[]")[0])
            case "map":
                return MapForm(scalars.TEXT, self.place(schema["values"], namespace, f"{path}{{}}")[0])
            case "enum":
                self._define(schema, namespace)
                return scalars.TEXT
            case "fixed":
                self._define(schema, namespace)
                return scalars.BYTES
            case "record" | "error":
                return self._record(schema, namespace, path)
            case _:
                return self._mentioned(str(kind), namespace, path)

    def _mentioned(self, name: str, namespace: str, path: str) -> Form:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        full = _full_name(name, namespace)
        if full in self._inside:
            raise no_column(path, f"{full} is recursive")
        if full not in self._named:
            raise no_column(path, f"its schema mentions {full}, which is not defined there")
        schema, defined_in = self._named[full]
        return self._form(schema, defined_in, path)

    def _record(self, schema: dict[str, Any], namespace: str, path: str) -> RecordForm:
        name = self._define(schema, namespace)
        inner = name.rpartition(".")[0]
        self._inside.append(name)
        fields = []
        for field in schema["fields"]:
            form, optional = self.place(field["type"], inner, f"{name}.{field['name']}")
            get = operator.itemgetter(field["name"])
            fields.append(Field(field["name"], field["name"], form, get, optional, "default" in field))
        self._inside.pop()
        return RecordForm(name, tuple(fields))

    def _define(self, schema: dict[str, Any], namespace: str) -> str:
        name = _full_name(schema["name"], schema.get("namespace", namespace))
        self._named[name] = (schema, namespace)
        return name

    def _decimal(self, schema: dict[str, Any], namespace: str, path: str) -> Form:
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > 38:
            raise no_column(path, f"it has {precision} digits, and decimals have at most 38")
        if schema["type"] == "fixed":
            self._define(schema, namespace)
        return scalars.decimal_of(precision, scale)


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


VALUE: Final = "value"
"""The column of a topic whose values have no fields."""


@dataclass(frozen=True, slots=True)
class TopicForm:
    """The values of a topic."""

    form: Form
    """The form of a whole value."""
    type: Any
    """The Python type of the values; None if unknown."""
    is_json_text: bool = False
    """Whether values are any JSON, which becomes text."""

    @property
    def fields(self) -> list[pa.Field]:
        """One column for each field of the type, or `value` if it has no fields."""
        if isinstance(self.form, RecordForm):
            return list(self.form.column)
        return [pa.field(VALUE, self.form.column)]

    def arrays(self, values: Sequence[Any]) -> list[pa.Array]:
        """The values as these columns. Raises an exception of any class if one does not fit."""
        if isinstance(self.form, RecordForm):
            return self.form.children(values, has_nulls=any(value is None for value in values))
        return [self.form.array(values)]


def topic_form(topic: Topic[Any]) -> TopicForm:
    """The values of the topic. Raises ConfigError for a type without columns: a union of records, a recursive type."""
    serde = topic.serde
    try:
        if isinstance(serde, BytesSerde | PlainSerde):
            return TopicForm(BYTES, bytes)
        if isinstance(serde, TextSerde):
            return TopicForm(TEXT, str)
        if isinstance(serde, ProtobufSerde):
            return TopicForm(form_of_protobuf(serde.type.DESCRIPTOR), serde.type)
        if isinstance(serde, AvroSerde) and is_anything(serde.type):
            return TopicForm(form_of_avro(json.loads(serde.schema().text))[0], None)
        form = serde.type if isinstance(serde, TypedSerde | AvroSerde) else topic.type
        if is_anything(form):
            return _untyped(topic)
        if form is bytes:
            return TopicForm(BYTES, bytes)
        if is_protobuf(form):
            return TopicForm(form_of_protobuf(form.DESCRIPTOR), form)
        return TopicForm(form_of_type(form)[0], form)
    except ConfigError as error:
        raise ConfigError(f"topic {topic.name!r}: {error}") from error


def _untyped(topic: Topic[Any]) -> TopicForm:
    if isinstance(topic.serde, JsonSerde):
        return TopicForm(TEXT, None, is_json_text=True)
    raise ConfigError(
        f"its values are anything that {topic.serde!r} can express, which is not a column: give it a type, "
        f"Topic({topic.name!r}, SomeType, serde=...)"
    )


def misfits(values: Sequence[Any], build: Callable[[Sequence[Any]], object]) -> dict[int, Exception]:
    """The values that cannot be built alone, with their errors. Found by bisection, as there are usually few."""
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


def decoded(
    topic: Topic[Any], data: Sequence[bytes | None], decode: Callable[[bytes], Any]
) -> tuple[list[Any], dict[int, SerdeError]]:
    """The values that `decode`, the topic's decoder, makes of these bytes, and the error of each undecodable one, by
    its index. Errors that are not about the bytes are raised, such as an unreachable schema registry."""
    try:
        return list(map(decode, data)), {}  # type: ignore[arg-type]  # None fails, and is handled one by one
    except Exception:  # it occurs again there
        return _decoded_one_by_one(topic, data, decode)


def _decoded_one_by_one(
    topic: Topic[Any], data: Sequence[bytes | None], decode: Callable[[bytes], Any]
) -> tuple[list[Any], dict[int, SerdeError]]:
    values: list[Any] = []
    errors: dict[int, SerdeError] = {}
    for index, each in enumerate(data):
        try:
            values.append(None if each is None else decode(each))
        except Exception as bare:
            values.append(None)
            errors[index] = _refusal(topic, each, bare)
    return values, errors


def _refusal(topic: Topic[Any], data: bytes | None, bare: Exception) -> SerdeError:
    """The library's error for undecodable bytes. Raises `bare` if the bytes may be good."""
    try:
        topic.decode(data)
    except SerdeError as error:
        return error
    raise bare
