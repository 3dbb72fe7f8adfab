"""Protobuf: messages there and back, and with a registry, which message of which file they are."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import SchemaRegistry
from penstock.errors import ConfigError, SerdeError
from penstock.serde import ProtobufSerde, Schema, Topic
from penstock.serde.protobuf import decode_indexes, encode_indexes, indexes_of, name_in_text
from penstock.serde.registry.schema import SchemaKind
from tests.serde.conftest import PROTOS
from tests.serde.registry_server import Registry
from tests.serde.values import Order

TEXT = (PROTOS / "shop.proto").read_text("utf-8")


def purchase(shop: ModuleType) -> Any:
    value = shop.Purchase(customer="ada", kind=1, message="hi", lines=[shop.Purchase.Line(item="tea", cups=2)])
    value.price.cents = 950
    return value


def test_a_message_comes_back_as_it_was_sent(shop: ModuleType) -> None:
    topic = Topic("purchases", shop.Purchase, key=lambda value: value.customer)
    assert isinstance(topic.serde, ProtobufSerde)
    record = topic.new_record(purchase(shop))
    assert record.key == b"ada"
    assert topic.decode(record.value) == purchase(shop)
    assert topic.decode(b"") == shop.Purchase()
    assert topic.decode(None) is None


def test_another_message_is_refused(shop: ModuleType) -> None:
    serde = ProtobufSerde(shop.Purchase)
    with pytest.raises(SerdeError, match=r"topic 't' carries shop.Purchase, and was given a value of type Refund"):
        serde.encode(shop.Refund(), "t")
    with pytest.raises(ConfigError, match="Order is not a Protobuf message class"):
        ProtobufSerde(Order)
    with pytest.raises(SerdeError, match=r"topic 't': 3 bytes are not shop.Purchase in Protobuf"):
        serde.decode(b"\xff\xff\xff", "t")


def test_a_value_says_which_message_of_which_file_it_is(
    shop: ModuleType, registry: SchemaRegistry, server: Registry
) -> None:
    topic = Topic("purchases", shop.Purchase, serde=ProtobufSerde(shop.Purchase, registry=registry))
    data = topic.new_record(purchase(shop)).value
    assert data is not None
    assert data[:6] == b"\0\0\0\0\2\0", "the id of the file, and the first message in it"
    assert topic.decode(data) == purchase(shop)
    assert set(server.subjects) == {"money.proto", "purchases-value"}
    assert server.schemas[1]["references"] == [{"name": "money.proto", "subject": "money.proto", "version": 1}]


def test_a_nested_message_has_a_longer_way(shop: ModuleType, registry: SchemaRegistry) -> None:
    serde = ProtobufSerde(shop.Purchase.Line, registry=registry)
    data = serde.encode(shop.Purchase.Line(item="tea"), "lines")
    assert data is not None
    assert data[5:8] == b"\x04\0\0"
    assert serde.decode(data, "lines") == shop.Purchase.Line(item="tea")


def test_a_message_of_another_name_is_refused_and_not_misread(shop: ModuleType, registry: SchemaRegistry) -> None:
    refund = ProtobufSerde(shop.Refund, registry=registry).encode(shop.Refund(customer="ada"), "t")
    assert shop.Purchase.FromString(shop.Refund(customer="ada").SerializeToString()).customer == "ada"
    with pytest.raises(SerdeError, match=r"carries shop.Purchase, and a value is the message shop.Refund of schema 2"):
        ProtobufSerde(shop.Purchase, registry=registry).decode(refund, "t")
    with pytest.raises(SerdeError, match="a value is no message of schema 2"):
        ProtobufSerde(shop.Purchase, registry=registry).decode(b"\0\0\0\0\2\x02\x10", "t")
    with pytest.raises(SerdeError, match="the message indexes are cut off"):
        ProtobufSerde(shop.Purchase, registry=registry).decode(b"\0\0\0\0\2\x04", "t")


def test_schemas_in_the_text_of_proto_files_are_understood(shop: ModuleType, registry: SchemaRegistry) -> None:
    """Other clients register the text, and registries give it back so."""
    number = registry.register("t-value", Schema(TEXT, SchemaKind.PROTOBUF))
    head = b"\0" + number.to_bytes(4)
    payload = purchase(shop).SerializeToString()
    assert ProtobufSerde(shop.Purchase, registry=registry).decode(head + b"\0" + payload, "t") == purchase(shop)
    with pytest.raises(SerdeError, match=r"a value is the message shop\.Purchase\.Line of schema"):
        ProtobufSerde(shop.Purchase, registry=registry).decode(head + b"\x04\0\0" + payload, "t")


def test_names_are_found_in_text_past_comments_enums_and_strings(shop: ModuleType) -> None:
    for message in (shop.Purchase, shop.Purchase.Line, shop.Refund):
        assert name_in_text(TEXT, indexes_of(message.DESCRIPTOR)) == message.DESCRIPTOR.full_name
    assert name_in_text(TEXT, (2,)) is None
    assert name_in_text('message A { option (x) = "}"; enum E { a = 0; } message B {} } message C {}', (0, 0)) == "A.B"
    assert name_in_text("/* message Z {} */ message A {} } } message C {}", (1,)) == "C"


@settings(deadline=None)
@given(path=st.lists(st.integers(0, 2**30), min_size=1, max_size=20))
def test_indexes_come_back(path: list[int]) -> None:
    data = b"head" + encode_indexes(path)
    assert decode_indexes(data + b"tail", 4) == (tuple(path), len(data))


@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=12))
def test_any_bytes_are_indexes_or_a_value_error(data: bytes) -> None:
    try:
        path, end = decode_indexes(data, 0)
    except ValueError:
        return
    assert path
    assert 0 < end <= len(data)
