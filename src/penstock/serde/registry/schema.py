"""Schemas of a registry."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class SchemaKind(StrEnum):
    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one imports: the name it uses, and where it is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """The text of a schema. For Protobuf it may be a serialized file descriptor in base64 instead of `.proto` text."""

    text: str
    kind: SchemaKind = SchemaKind.AVRO
    references: tuple[Reference, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """The fields of a request. Defaults are omitted, because the oldest registries know only Avro."""
        wire: dict[str, Any] = {"schema": self.text}
        if self.kind is not SchemaKind.AVRO:
            wire["schemaType"] = self.kind.value
        if self.references:
            wire["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version} for each in self.references
            ]
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Schema:
        references = tuple(
            Reference(each["name"], each["subject"], int(each["version"])) for each in wire.get("references") or ()
        )
        return cls(wire["schema"], SchemaKind(wire.get("schemaType") or SchemaKind.AVRO), references)


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A registered schema: version `version` of a subject, with an `id` unique in the registry."""

    subject: str
    version: int
    id: int
    schema: Schema

    @classmethod
    def from_wire(cls, wire: dict[str, Any], schema: Schema | None = None) -> RegisteredSchema:
        return cls(wire["subject"], int(wire["version"]), int(wire["id"]), schema or Schema.from_wire(wire))
