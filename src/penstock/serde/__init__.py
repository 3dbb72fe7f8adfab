"""Between values and bytes: what a topic carries, and how it stands on the wire.

A `Topic` names a stream and says what its records are. Values come in and go out as the type it was given; the bytes
between are made by a serde, which is chosen from the type or named. With a schema registry, the bytes also say which
schema they were written with. What has no form in bytes, and bytes that are no such value, are a SerdeError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.serde.avro import AvroSerde
from penstock.serde.bytes_and_text import BytesSerde, TextSerde
from penstock.serde.json import JsonSerde
from penstock.serde.msgpack import MsgpackSerde
from penstock.serde.plain import PlainSerde
from penstock.serde.protobuf import ProtobufSerde
from penstock.serde.registry.schema import Reference, RegisteredSchema, Schema
from penstock.serde.topic import Topic, new_record, topic_of

if TYPE_CHECKING:
    from penstock.serde.registry.client import SchemaRegistry

__all__ = [
    "AvroSerde",
    "BytesSerde",
    "JsonSerde",
    "MsgpackSerde",
    "PlainSerde",
    "ProtobufSerde",
    "Reference",
    "RegisteredSchema",
    "Schema",
    "SchemaRegistry",
    "TextSerde",
    "Topic",
    "new_record",
    "topic_of",
]


def __getattr__(name: str) -> object:
    """Load the client of registries when it is asked for: it brings all of HTTP with it."""
    if name != "SchemaRegistry":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.serde.registry.client import SchemaRegistry

    return SchemaRegistry
