"""The types of topics whose values have a schema in a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import ConfigError, RegistryError
from penstock.serde import AvroSerde, JsonSerde, Topic
from penstock.serde.forms import topic_form
from penstock.serde.registry.client import SchemaRegistry
from penstock.serde.registry.schema import Schema, SchemaKind

_PLAIN: Final[Mapping[str, Any]] = {"string": str, "integer": int, "number": float, "boolean": bool}
_MOST_STEPS: Final = 20
"""References that lead to references."""


class RegisteredType(NamedTuple):
    """What a registry says about the values of a topic."""

    topic: Topic[Any] | None
    """None: its fields are not columns."""
    note: str = ""
    """Why not all fields of its schema are columns."""


def registered_type(registry: SchemaRegistry, name: str) -> RegisteredType:
    """The topic with the newest schema of its values, if the registry has one. RegistryError if it cannot be asked."""
    try:
        schema = registry.latest(f"{name}-value").schema
    except RegistryError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return RegisteredType(None)
        raise
    try:
        match schema.kind:
            case SchemaKind.AVRO:
                given = AvroReferences(registry, schema).resolved() if schema.references else json.loads(schema.text)
                topic: Topic[Any] = Topic(name, serde=AvroSerde(given, registry=registry))
                topic_form(topic)
                return RegisteredType(topic)
            case SchemaKind.JSON:
                form, left_out = JsonSchemaType(json.loads(schema.text)).derived()
                typed: Topic[Any] = Topic(name, form, serde=JsonSerde(form, registry=registry, register=False))
                note = (
                    f"no columns for {', '.join(left_out)}, whose types or names have no counterpart"
                    if left_out
                    else ""
                )
                return RegisteredType(typed, note)
            case SchemaKind.PROTOBUF:
                why = "columns of Protobuf need the message class: pass types=[penstock.Topic(NAME, Message)] (--types)"
                return RegisteredType(None, why)
    except (ConfigError, ValueError, TypeError, KeyError, RecursionError) as error:
        return RegisteredType(None, f"its schema in the registry has no columns: {error}")


class AvroReferences:
    """An Avro schema with the definitions of the types that it refers to in other subjects."""

    def __init__(self, registry: SchemaRegistry, schema: Schema) -> None:
        self._schema = schema
        self._definitions: dict[str, Any] = {}
        self._defined: set[str] = set()
        self._load(registry, schema)

    def _load(self, registry: SchemaRegistry, schema: Schema) -> None:
        for reference in schema.references:
            if reference.name not in self._definitions:
                referred = registry.version(reference.subject, reference.version).schema
                self._definitions[reference.name] = json.loads(referred.text)
                self._load(registry, referred)

    def resolved(self) -> Any:
        """The schema, in which each type is defined where it is first mentioned."""
        return self._of(json.loads(self._schema.text), "")

    def _of(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, list):
            return [self._of(each, namespace) for each in schema]
        if isinstance(schema, str):
            return self._mentioned(schema, namespace)
        made = dict(schema)
        if "name" in schema:
            full = schema["name"]
            if "." not in full:
                space = schema.get("namespace", namespace)
                full = f"{space}.{full}" if space else full
            self._defined.add(full)
            namespace = full.rpartition(".")[0]
        for part in ("items", "values"):
            if part in schema:
                made[part] = self._of(schema[part], namespace)
        if "fields" in schema:
            made["fields"] = [{**field, "type": self._of(field["type"], namespace)} for field in schema["fields"]]
        elif "type" in schema and "name" not in schema:
            made["type"] = self._of(schema["type"], namespace)
        return made

    def _mentioned(self, name: str, namespace: str) -> Any:
        """A name, or the definition of a type at its first mention."""
        for full in (f"{namespace}.{name}" if namespace and "." not in name else name, name):
            if full in self._defined:
                return full
            if full in self._definitions:
                definition = self._definitions[full]
                space, _, own = full.rpartition(".")
                return self._of({**definition, "name": own, "namespace": space}, space)
        return name


class JsonSchemaType:
    """A type whose fields are the properties of a JSON Schema that can be columns."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._left_out: list[str] = []
        self._inside: list[int] = []
        """The objects that enclose the current place, to detect recursion."""

    def derived(self) -> tuple[Any, list[str]]:
        """The type, and the properties that it does not have. ValueError if the values are not objects, or none of
        their properties can be a column."""
        found = self._of(self._schema, "")
        if found is None or not isinstance(found, type) or not issubclass(found, msgspec.Struct):
            raise ValueError("its values are not objects with properties")
        return found, self._left_out

    def _of(self, schema: Any, path: str) -> Any:
        """The type of a place in the schema; None: it has none."""
        schema = self._resolved(schema)
        if not isinstance(schema, dict) or id(schema) in self._inside:
            return None
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                parts = [each for each in schema[choice] if self._resolved(each) != {"type": "null"}]
                return self._of(parts[0], path) if len(parts) == 1 else None
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = [each for each in kind if each != "null"]
            kind = kinds[0] if len(kinds) == 1 else "number" if set(kinds) == {"integer", "number"} else None
        if isinstance(kind, str) and kind in _PLAIN:
            return _PLAIN[kind]
        if kind == "array":
            item = self._of(schema.get("items"), f"{path}[]")
            return None if item is None else list[item | None]  # type: ignore[valid-type]
        if kind == "object" or "properties" in schema:
            return self._struct(schema, path)
        return None

    def _struct(self, schema: dict[str, Any], path: str) -> Any:
        fields: list[tuple[str, Any, Any]] = []
        self._inside.append(id(schema))
        for name, part in (schema.get("properties") or {}).items():
            inner = self._of(part, f"{path}{name}.")
            if inner is None or not name.isidentifier() or name.startswith("__"):  # the type needs names of attributes
                self._left_out.append(f"{path}{name}")
            else:
                fields.append((name, inner | None, None))
        self._inside.pop()
        return msgspec.defstruct(str(schema.get("title") or "Value"), fields) if fields else None

    def _resolved(self, schema: Any) -> Any:
        """What a reference inside the schema leads to; None for other references."""
        for _ in range(_MOST_STEPS):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            head, *steps = str(schema["$ref"]).split("/")
            if head != "#":
                return None
            schema = self._schema
            for step in steps:
                schema = schema.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(schema, dict) else None
        return None
