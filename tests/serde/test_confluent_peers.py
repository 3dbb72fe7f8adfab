"""What Confluent's own Python client writes, we read, and the other way round, over the same registry."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from penstock import SchemaRegistry
from penstock.serde import AvroSerde, JsonSerde, ProtobufSerde, Schema
from penstock.serde.json import json_schema
from tests.serde.registry_server import Registry
from tests.serde.values import Line

pytest.importorskip("httpx2", reason="confluent-kafka[schemaregistry] is not installed")

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

VALUE = SerializationContext("t", MessageField.VALUE)
LINE = Line("tea", 2)
PLAIN = {"item": "tea", "cups": 2}


@pytest.fixture
def client(server: Registry) -> Any:
    return SchemaRegistryClient({"url": server.url})


def test_the_client_finds_what_we_registered(client: Any, registry: SchemaRegistry) -> None:
    text = json.dumps({"type": "record", "name": "R", "fields": []})
    number = registry.register("s", Schema(text))
    assert client.get_latest_version("s").schema_id == number
    assert json.loads(client.get_schema(number).schema_str) == json.loads(text)
    assert client.get_subjects() == ["s"]


def test_avro_is_written_alike(client: Any, registry: SchemaRegistry) -> None:
    ours = AvroSerde(Line, registry=registry)
    theirs = AvroSerializer(client, ours.schema().text)
    data = ours.encode(LINE, "t")
    assert theirs(PLAIN, VALUE) == data
    assert AvroDeserializer(client)(data, VALUE) == PLAIN
    assert AvroSerde(Line, registry=registry).decode(theirs(PLAIN, VALUE), "t") == LINE


def test_json_is_read_by_either(client: Any, registry: SchemaRegistry) -> None:
    pytest.importorskip("jsonschema", reason="jsonschema, which Confluent's JSON serialisers need, is not installed")
    ours = JsonSerde(Line, registry=registry)
    text = json.dumps(json_schema(Line))
    theirs = JSONSerializer(text, client)(PLAIN, VALUE)
    data = ours.encode(LINE, "t")
    assert data is not None
    assert theirs is not None
    assert theirs[:5] == data[:5]
    assert ours.decode(theirs, "t") == LINE
    assert JSONDeserializer(text, schema_registry_client=client)(data, VALUE) == PLAIN


@pytest.mark.parametrize("path", ["Purchase", "Purchase.Line", "Refund"])
def test_protobuf_is_written_alike(client: Any, registry: SchemaRegistry, shop: ModuleType, path: str) -> None:
    message: Any = shop
    for name in path.split("."):
        message = getattr(message, name)
    value = message()
    value.ParseFromString(b"\x0a\x03ada")
    ours = ProtobufSerde(message, registry=registry)
    data = ours.encode(value, "t")
    theirs = ProtobufSerializer(message, client, {"use.deprecated.format": False})(value, VALUE)
    assert theirs == data
    assert ours.decode(theirs, "t") == value
    assert ProtobufDeserializer(message, {"use.deprecated.format": False}, client)(data, VALUE) == value
