"""Between values and bytes: topics and serdes.

A `Topic` has a name and the type of its values. A serde, chosen from the type or named, turns values into bytes and
back. With a schema registry, the bytes also name the schema they were written with. A value that cannot be encoded, and
bytes that cannot be decoded, raise SerdeError.
"""

from __future__ import annotations

from penstock.serde.avro import AvroSerde as AvroSerde
from penstock.serde.json import JsonSerde as JsonSerde
from penstock.serde.msgpack import MsgpackSerde as MsgpackSerde
from penstock.serde.plain import BytesSerde as BytesSerde
from penstock.serde.plain import PlainSerde as PlainSerde
from penstock.serde.plain import TextSerde as TextSerde
from penstock.serde.protobuf import ProtobufSerde as ProtobufSerde
from penstock.serde.registry.schema import Reference as Reference
from penstock.serde.registry.schema import RegisteredSchema as RegisteredSchema
from penstock.serde.registry.schema import Schema as Schema
from penstock.serde.topic import SendOptions as SendOptions
from penstock.serde.topic import Topic as Topic
from penstock.serde.topic import new_record as new_record
from penstock.serde.topic import topic_of as topic_of
