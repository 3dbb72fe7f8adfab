"""Schemas as a registry knows them."""

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
    """A schema that another one uses, by the name it uses, and where it is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """The text of a schema. That of Protobuf may be a serialised file descriptor in base64 instead of `.proto`."""

    text: str
    kind: SchemaKind = SchemaKind.AVRO
    references: tuple[Reference, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """As it stands in a request: what is usual is left out, as the oldest registries know Avro only."""
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
    """A schema in its place: version `version` of a subject, and `id` in the whole registry."""

    subject: str
    version: int
    id: int
    schema: Schema

    @classmethod
    def from_wire(cls, wire: dict[str, Any], schema: Schema | None = None) -> RegisteredSchema:
        return cls(wire["subject"], int(wire["version"]), int(wire["id"]), schema or Schema.from_wire(wire))
