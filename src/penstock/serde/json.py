"""JSON, typed: dataclasses, attrs classes, msgspec structs, pydantic models, TypedDicts, NamedTuples, plain values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import ConfigError
from penstock.serde.registry.framing import HEAD_BYTES, Framing, SubjectName, schema_id
from penstock.serde.registry.schema import Schema, SchemaKind
from penstock.serde.typed import Decode, Encode, TypedSerde, check_expressible
from penstock.serde.types import is_anything, is_pydantic, name_of

if TYPE_CHECKING:
    from penstock.serde.registry.client import SchemaRegistry

_ENCODER: Final = msgspec.json.Encoder()


class JsonSerde(TypedSerde):
    """Values of a type as JSON; without a type, whatever JSON can express.

    With a registry, the JSON Schema of the type is registered, and its id goes before each value. `subject` names the
    registry's subject: "topic" (`orders-value`), "record" (the name of the type), "topic-record", or a function.
    `register=False` takes only schemas that are registered already. `for_keys` says that these are keys.
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
        encode, decode = _functions(type)
        super().__init__(type, encode, decode, verify=verify)
        options = {"registry": registry, "subject": subject, "register": register, "for_keys": for_keys}
        self.made_with = ((type,), {"verify": verify, **options})
        self._framing: Framing | None = None
        if registry is not None:
            if is_anything(type):
                raise ConfigError("JSON with a schema registry needs a type, whose schema can be registered")
            record = json_schema(type).get("title") or name_of(type)
            self._framing = Framing(
                registry, self.schema, record, subject=subject, register=register, for_keys=for_keys
            )

    def schema(self) -> Schema:
        """The JSON Schema of the type."""
        return Schema(json.dumps(json_schema(self.type)), SchemaKind.JSON)

    def encode(self, value: object, topic: str) -> bytes | None:
        data = super().encode(value, topic)
        return data if self._framing is None or data is None else self._framing.head(topic) + data

    def decode(self, data: bytes | None, topic: str) -> Any:
        if self._framing is None or data is None:
            return super().decode(data, topic)
        schema_id(data, topic)
        return super().decode(data[HEAD_BYTES:], topic)

    def decoder(self, topic: str) -> Decode:
        if self._framing is None:
            return super().decoder(topic)
        bare = super().decoder(topic)

        def decode(data: bytes) -> Any:
            schema_id(data, topic)
            return bare(data[HEAD_BYTES:])

        return decode


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
        return _ENCODER.encode, msgspec.json.Decoder().decode
    if is_pydantic(form):
        return _pydantic_functions(form)
    check_expressible(form, "read from JSON")
    return _ENCODER.encode, msgspec.json.Decoder(form).decode


def _pydantic_functions(form: Any) -> tuple[Encode, Decode]:
    import pydantic

    if not hasattr(pydantic, "TypeAdapter"):
        raise ConfigError(f"pydantic {pydantic.VERSION} is too old: models of pydantic 2 can be sent")
    adapter = pydantic.TypeAdapter(form)

    def encode(value: Any) -> bytes:
        # By alias and without computed fields: only so can the model read what it has written.
        return adapter.dump_json(value, by_alias=True, round_trip=True)

    return encode, adapter.validate_json
