"""Typed JSON: dataclasses, attrs classes, msgspec structs, pydantic models, TypedDicts, NamedTuples, plain values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import ConfigError
from penstock.serde.plain import check_numbers, encode_json
from penstock.serde.registry.framing import Framing, SubjectName
from penstock.serde.registry.schema import Schema, SchemaKind
from penstock.serde.typed import Decode, Encode, TypedSerde, check_expressible
from penstock.serde.types import is_anything, is_pydantic, name_of

if TYPE_CHECKING:
    from penstock.serde.registry.client import SchemaRegistry


_MAYBE_NO_NUMBER: Final = (b"null", b"NaN", b"Infinity")
"""What pydantic may write for NaN and infinity."""


class JsonSerde(TypedSerde):
    """Values of a type as JSON; without a type, any JSON value.

    With a registry, the JSON Schema of the type is registered, and its id precedes each value. `subject` names the
    subject: "topic" (`orders-value`), "record" (the name of the type), "topic-record", or a function. With
    `register=False`, the schema must be registered already. `for_keys` says that these are keys.
    """

    FORMAT = "JSON"

    def __init__(
        self,
        type: Any = None,
        *,
        verify: bool = True,
        registry: SchemaRegistry | None = None,
        subject: str | SubjectName = "topic",
        register: bool = True,
        for_keys: bool = False,
    ) -> None:
        options: dict[str, Any] = {"registry": registry, "subject": subject, "register": register, "for_keys": for_keys}
        self.made_with = ((type,), {"verify": verify, **options})
        framing = None
        if registry is not None:
            if is_anything(type):
                raise ConfigError("JSON with a schema registry needs a type, whose schema is registered")
            framing = Framing(self.schema, json_schema(type).get("title") or name_of(type), **options)
        encode, decode = _functions(type)
        super().__init__(type, encode, decode, verify=verify, framing=framing)

    def schema(self) -> Schema:
        """The JSON Schema of the type."""
        return Schema(json.dumps(json_schema(self.type)), SchemaKind.JSON)


def json_schema(form: Any) -> dict[str, Any]:
    """The JSON Schema of a type, with its name as the title."""
    if is_pydantic(form):
        import pydantic

        schema: dict[str, Any] = pydantic.TypeAdapter(form).json_schema(by_alias=True)
    else:
        schema = msgspec.json.schema(form)
    definition = schema.get("$ref", "").rpartition("/")[2]
    title = schema.get("$defs", {}).get(definition, schema).get("title")
    return {**schema, "title": title} if title else schema


def _functions(form: Any) -> tuple[Encode, Decode]:
    if is_anything(form):
        return encode_json, msgspec.json.Decoder().decode
    if is_pydantic(form):
        return _pydantic_functions(form)
    check_expressible(form, "read from JSON")
    return encode_json, msgspec.json.Decoder(form).decode


def _pydantic_functions(form: Any) -> tuple[Encode, Decode]:
    import pydantic

    if not hasattr(pydantic, "TypeAdapter"):
        raise ConfigError(f"pydantic {pydantic.VERSION} is too old: use pydantic 2")
    adapter = pydantic.TypeAdapter(form)

    def encode(value: Any) -> bytes:
        # By alias and without computed fields, so that the model can read what it wrote.
        data = adapter.dump_json(value, by_alias=True, round_trip=True)
        if any(word in data for word in _MAYBE_NO_NUMBER):
            try:
                written = msgspec.json.decode(data)
            except msgspec.DecodeError:  # ser_json_inf_nan="constants" writes invalid JSON
                written = None
            check_numbers(adapter.dump_python(value, by_alias=True, round_trip=True), written)
        return data

    return encode, adapter.validate_json
