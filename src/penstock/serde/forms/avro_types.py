"""The form of an Avro schema, for topics whose values are dicts."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Final

from penstock.serde.forms import scalars
from penstock.serde.forms.form import ArrayForm, Field, Form, MapForm, RecordForm, no_column

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
