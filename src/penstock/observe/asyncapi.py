"""An AsyncAPI document of an app: its topics as channels, its handlers as operations, the types as JSON schemas.

Input: handlers with their groups. Output: a document of version 3.0.0 for code generators, catalogues and documentation
tools.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from penstock.consuming.handlers import Handler
from penstock.errors import ConfigError
from penstock.serde import AvroSerde, BytesSerde, JsonSerde, MsgpackSerde, PlainSerde, ProtobufSerde, TextSerde, Topic
from penstock.serde.types import is_anything, is_pydantic
from penstock.streams.topic_patterns import TopicPattern
from penstock.streams.url import kafka_url

VERSION: Final = "3.0.0"
_AVRO: Final = "application/vnd.apache.avro+json;version=1.9.0"
_CONTENT_TYPES: Final = (
    (JsonSerde, "application/json"),
    (MsgpackSerde, "application/msgpack"),
    (TextSerde, "text/plain"),
    (AvroSerde, "application/vnd.apache.avro"),
    (ProtobufSerde, "application/protobuf"),
    (BytesSerde, "application/octet-stream"),
    (PlainSerde, "application/octet-stream"),
)

Document = dict[str, Any]


def document(
    title: str, version: str, url: str, handlers: Iterable[tuple[Handler, str, TopicPattern | None]]
) -> Document:
    """The document for handlers, each with its group and its pattern if it has one, on the stream at a URL."""
    schemas: Document = {}
    channels: Document = {}
    messages: Document = {}
    operations: Document = {}
    for handler, group, pattern in handlers:
        for action, topic in (("receive", handler.topic), ("send", handler.to)):
            if topic is None:
                continue
            if topic.name not in channels:
                channels[topic.name] = _channel(topic, pattern if action == "receive" else None)
                messages[topic.name] = _message(topic, schemas)
            name = _free(operations, f"{handler.name.rpartition('.')[2].strip('<>')}-{action}-{topic.name}")
            operations[name] = _operation(action, topic, group)
    made: Document = {
        "asyncapi": VERSION,
        "info": {"title": title, "version": version},
        "servers": _servers(url),
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": schemas},
    }
    return {name: part for name, part in made.items() if part}


def _servers(url: str) -> Document:
    """The brokers; nothing for a log in a folder, whose broker has another address each time."""
    where = kafka_url(url)
    if where is None:
        return {}
    hosts = where.bootstrap.split(",")
    return {f"broker-{number}": {"host": host, "protocol": "kafka"} for number, host in enumerate(hosts, 1)}


def _channel(topic: Topic[Any], pattern: TopicPattern | None) -> Document:
    """A topic. For a pattern the address is null, which AsyncAPI defines as not known before the program runs."""
    kafka: Document = {"topic": topic.name}
    if topic.partitions is not None:
        kafka["partitions"] = topic.partitions
    message = {"$ref": f"#/components/messages/{topic.name}"}
    if pattern is not None:
        what = f"All topics whose whole name matches {str(pattern)!r}."
        return {"address": None, "description": what, "messages": {topic.name: message}}
    return {"address": topic.name, "messages": {topic.name: message}, "bindings": {"kafka": kafka}}


def _operation(action: str, topic: Topic[Any], group: str) -> Document:
    made: Document = {
        "action": action,
        "channel": {"$ref": f"#/channels/{topic.name}"},
        "messages": [{"$ref": f"#/channels/{topic.name}/messages/{topic.name}"}],
    }
    if action == "receive":
        made["bindings"] = {"kafka": {"groupId": {"type": "string", "const": group}}}
    return made


def _message(topic: Topic[Any], schemas: Document) -> Document:
    made: Document = {"name": topic.name}
    for kind, content_type in _CONTENT_TYPES:
        if isinstance(topic.serde, kind):
            made["contentType"] = content_type
    if isinstance(topic.serde, AvroSerde):
        schema = msgspec.json.decode(topic.serde.schema().text)
        made["payload"] = {"schemaFormat": _AVRO, "schema": schema}
    elif isinstance(topic.serde, TextSerde):
        made["payload"] = {"type": "string"}
    elif isinstance(topic.serde, JsonSerde | MsgpackSerde):
        made["payload"] = _payload(topic, schemas)
    return made


def _payload(topic: Topic[Any], schemas: Document) -> Document:
    """The schema of a type. Referenced types go into `schemas`, under their own name if it is free."""
    if is_anything(topic.type) or topic.type is bytes:
        return {}
    for prefix in ("", f"{topic.name}."):
        schema, parts = _schema_of(topic, f"#/components/schemas/{prefix}{{name}}")
        if all(schemas.get(prefix + name, part) == part for name, part in parts.items()):
            break
    schemas.update((prefix + name, part) for name, part in parts.items())
    return schema


def _schema_of(topic: Topic[Any], references: str) -> tuple[Document, Document]:
    try:
        if is_pydantic(topic.type):
            adapter = sys.modules["pydantic"].TypeAdapter(topic.type)
            template = references.replace("{name}", "{model}")
            schema: Document = adapter.json_schema(by_alias=True, ref_template=template)
            return schema, schema.pop("$defs", {})
        (schema,), parts = msgspec.json.schema_components([topic.type], ref_template=references)
    except Exception as error:
        raise ConfigError(f"topic {topic.name!r}: its type has no JSON schema: {error}") from error
    return schema, parts


def _free(taken: Document, name: str) -> str:
    """The name, with a number appended if it is taken."""
    number = 1
    while (candidate := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return candidate
