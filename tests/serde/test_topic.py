"""Topics: what they make of values, and what they refuse."""

from __future__ import annotations

import copy
import datetime
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import ConfigError, InvalidTopicError, PenstockError, SerdeError
from penstock.model import NewRecord
from penstock.serde import AvroSerde, BytesSerde, JsonSerde, MsgpackSerde, PlainSerde, TextSerde, Topic, topic_of
from tests.serde.values import ORDER, Order, Person, Point, Tree

NOON_MS = 1_794_744_000_000
orders = Topic("orders", Order, key=lambda order: order.customer)


def test_a_value_becomes_a_record_with_the_key_that_the_topic_makes() -> None:
    record = orders.new_record(ORDER)
    assert record == NewRecord(
        "orders", b'{"customer":"ada","lines":[{"item":"tea","cups":2}],"size":"large","note":null}', b"ada"
    )
    assert orders.decode(record.value) == ORDER
    assert orders.decoder(record.value or b"") == ORDER
    assert orders.decode_key(record.key) == b"ada"


def test_everything_else_of_a_record_can_be_given() -> None:
    noon = datetime.datetime.fromtimestamp(NOON_MS / 1000, datetime.UTC)
    record = orders.new_record(ORDER, "bob", {"trace": "1", "none": None}, noon, 3)
    assert record == NewRecord(
        "orders", record.value, b"bob", (("trace", b"1"), ("none", None)), NOON_MS, 3
    )  # fmt: skip
    assert orders.new_record(ORDER, timestamp=NOON_MS).timestamp_ms == NOON_MS


def test_a_record_without_a_value_decodes_to_none_and_needs_its_key_given() -> None:
    assert orders.new_record(None, key="ada") == NewRecord("orders", None, b"ada")
    assert orders.decode(None) is None
    assert orders.decode_key(None) is None
    with pytest.raises(SerdeError, match="topic 'orders': a record without a value needs a key"):
        orders.new_record(None)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"customer": "ada"}, "topic 'orders' carries Order, and was given a value of type dict"),
        (b"{}", "topic 'orders' carries Order, and was given a value of type bytes"),
        (Person(fullName="ada"), "topic 'orders' carries Order, and was given a value of type Person"),
        (Order(5), "this Order can be written as JSON, but cannot be read as Order: Expected `str`, got `int`"),  # type: ignore[arg-type]
        (Order("\ud800"), "a value of type Order cannot be written as JSON: .*surrogates not allowed"),
        (Order("x", [object()]), "cannot be written as JSON: Encoding objects of type object is unsupported"),  # type: ignore[list-item]
    ],
)
def test_a_value_that_the_topic_does_not_carry_is_refused_before_anything_is_sent(value: Any, complaint: str) -> None:
    with pytest.raises(SerdeError, match=complaint):
        orders.new_record(value)


def test_a_key_function_that_fails_or_gives_none_is_named() -> None:
    with pytest.raises(SerdeError, match=r"topic 't': the key function failed .*: KeyError: 'id'"):
        Topic("t", dict, key=lambda value: value["id"]).new_record({})
    with pytest.raises(SerdeError, match="topic 't': the key function returned None for this dict"):
        Topic("t", dict, key=lambda value: value.get("id")).new_record({})
    assert Topic("t", dict, key=lambda value: value["id"]).new_record({}, key=b"k").key == b"k"


def test_keys_go_as_they_are_unless_the_topic_says_how() -> None:
    assert Topic("t", str).new_record("v", key={"a": 1}).key == b'{"a":1}'
    typed = Topic("t", str, key=len, key_serde=int)
    assert typed.new_record("four").key == b"4"
    assert typed.decode_key(b"4") == 4
    with pytest.raises(SerdeError, match="the key: topic 't' carries int, and was given a value of type str"):
        typed.new_record("v", key="text")
    with pytest.raises(SerdeError, match="topic 't': 1 bytes are not key, int in JSON"):
        typed.decode_key(b"x")
    with pytest.raises(SerdeError, match="topic 't': a key of type object cannot be sent"):
        Topic("t", str).new_record("v", key=object())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": bytes}, BytesSerde),
        ({}, BytesSerde),
        ({"type": str}, TextSerde),
        ({"type": None}, JsonSerde),
        ({"type": Any}, JsonSerde),
        ({"type": dict[str, int] | list[int]}, JsonSerde),
        ({"type": Order, "serde": "msgpack"}, MsgpackSerde),
        ({"serde": "json"}, JsonSerde),
        ({"serde": "plain"}, PlainSerde),
        ({"type": Order, "serde": JsonSerde(Order)}, JsonSerde),
    ],
)
def test_the_serde_follows_from_the_type_unless_it_is_named(given: dict[str, Any], expected: type) -> None:
    assert type(Topic("t", **given).serde) is expected


def test_bytes_and_text_go_as_they_are() -> None:
    raw, text = Topic("t"), Topic("t", str)
    assert raw.new_record(bytearray(b"ab")).value == b"ab"  # type: ignore[arg-type]
    assert raw.decode(b"\xff") == b"\xff"
    assert text.decode(text.new_record("grüße").value) == "grüße"
    with pytest.raises(
        SerdeError, match=r"topic 't' carries bytes, and was given a value of type str: .*Topic\('t', str\)"
    ):
        raw.new_record("text")  # type: ignore[arg-type]
    with pytest.raises(SerdeError, match=r"topic 't' carries text .str., and was given a value of type bytes"):
        text.new_record(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(SerdeError, match="topic 't': 1 bytes are not text in UTF-8"):
        text.decode(b"\xff")
    with pytest.raises(SerdeError, match="cannot be written as UTF-8"):
        text.new_record("\ud800")


def test_a_name_alone_is_a_topic_that_takes_anything_and_gives_bytes() -> None:
    plain = topic_of("t")
    assert [plain.new_record(value).value for value in (b"a", "b", {"c": 1}, None)] == [b"a", b"b", b'{"c":1}', None]
    assert plain.decode(b"a") == b"a"
    assert topic_of(orders) is orders
    with pytest.raises(SerdeError, match="topic 't': a value of type object cannot be sent"):
        plain.new_record(object())


def test_topics_never_change_and_are_equal_when_what_they_were_given_is() -> None:
    assert Topic("t", Order) == Topic("t", Order)
    assert Topic("t", Order) != Topic("t", Person)
    assert Topic("t") != topic_of("t")
    assert topic_of("t") == topic_of("t")
    assert {Topic("t", Order): 1}[Topic("t", Order)] == 1
    assert hash(Topic("t", Order)) == hash(Topic("t", bytes))
    assert Topic("t") != "t"
    assert Topic("t", serde=AvroSerde("string")) == Topic("t", serde=AvroSerde("string"))
    assert Topic("t", serde=AvroSerde("string")) != Topic("t", serde=AvroSerde("long"))
    assert Topic("t", Order, serde=JsonSerde(Order, verify=False)) != Topic("t", Order)
    assert (repr(orders), str(orders)) == ("Topic('orders', Order)", "orders")
    with pytest.raises(AttributeError, match="is immutable"):
        orders.name = "other"
    with pytest.raises(AttributeError, match="is immutable"):
        del orders.name


@pytest.mark.parametrize(
    "topic",
    [
        Topic("t", Order, key=str, partitions=3),
        Topic("t", Order, serde="msgpack", key_serde="json"),
        Topic("t", str),
        topic_of("t"),
    ],
)
def test_topics_go_to_other_processes(topic: Topic[Any]) -> None:
    again = pickle.loads(pickle.dumps(topic))
    assert again == topic
    assert again.partitions == topic.partitions
    assert copy.deepcopy(topic) == topic


class Backwards:
    """A serde of a user's."""

    def encode(self, value: str, topic: str) -> bytes | None:
        return value[::-1].encode()

    def decode(self, data: bytes | None, topic: str) -> str | None:
        return None if data is None else data.decode("ascii")[::-1]


def test_a_serde_of_ones_own_is_an_object_with_two_methods() -> None:
    topic = Topic("t", str, serde=Backwards())
    assert topic.new_record("abc").value == b"cba"
    assert topic.decode(b"cba") == "abc"
    with pytest.raises(SerdeError, match=r"topic 't': 1 bytes are not str of <.*Backwards.*: 'ascii' codec"):
        topic.decode(b"\xff")


@dataclass
class Unreadable:
    what: complex


@dataclass
class WithModel:
    person: Person


@pytest.mark.parametrize(
    ("make", "error", "complaint"),
    [
        (lambda: Topic(""), InvalidTopicError, "is not a topic name"),
        (lambda: Topic(5), InvalidTopicError, "5 is not a topic name"),  # type: ignore[call-overload]
        (lambda: Topic("t", partitions=0), ConfigError, "topic 't': partitions=0 must be an integer >= 1"),
        (lambda: Topic("t", partitions="3"), ConfigError, "partitions='3' must be an integer >= 1"),  # type: ignore[call-overload]
        (lambda: Topic("t", partitions=True), ConfigError, "partitions=True must be an integer >= 1"),
        (lambda: Topic("t", Order, key="customer"), ConfigError, "the key 'customer' must be a function"),  # type: ignore[call-overload]
        (lambda: Topic("t", "json"), ConfigError, "the type is the text 'json': did you mean serde='json'"),
        (lambda: Topic("t", "Order"), ConfigError, "the type is the text 'Order': pass the type itself"),
        (
            lambda: Topic("t", Order, serde="jason"),
            ConfigError,
            "topic 't': there is no serde 'jason': use one of bytes,",
        ),
        (lambda: Topic("t", Order, serde=JsonSerde), ConfigError, r"the serde JsonSerde is a class: pass an instance"),
        (lambda: Topic("t", Order, serde=5), ConfigError, "topic 't': 5 is not a serde"),
        (lambda: Topic("t", Order, serde="text"), ConfigError, r"TextSerde\(\) carries str, not Order"),
        (lambda: Topic("t", Order, serde="protobuf"), ConfigError, "Order is not a Protobuf message class"),
        (lambda: Topic("t", Person, serde="msgpack"), ConfigError, "Person is a pydantic model"),
        (lambda: Topic("t", serde="avro"), ConfigError, "topic 't': Avro needs a schema"),
        (lambda: Topic("t", complex), ConfigError, "topic 't': complex cannot be read from JSON"),
        (lambda: Topic("t", Unreadable), ConfigError, "Unreadable contains complex, which cannot be read from JSON"),
        (
            lambda: Topic("t", WithModel),
            ConfigError,
            "contains Person, which .* is a pydantic model inside another class",
        ),
        (lambda: Topic("t", Order, key_serde="jason"), ConfigError, "topic 't', its keys: there is no serde 'jason'"),
        (lambda: Topic("t", Order, colour="red"), TypeError, "colour"),  # type: ignore[call-overload]
        (lambda: orders.new_record(ORDER, partition=-1), ConfigError, "-1 is not a partition"),
        (lambda: orders.new_record(ORDER, partition=True), ConfigError, "True is not a partition"),
        (lambda: orders.new_record(ORDER, timestamp=0), ConfigError, "must be after 1970"),
        (lambda: orders.new_record(ORDER, timestamp=datetime.datetime(2026, 1, 1)), ConfigError, "has no time zone"),  # noqa: DTZ001
        (lambda: orders.new_record(ORDER, headers={"a": 1}), ConfigError, "header 'a' has a value of type int"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused_by_name(make: Any, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        make()


def test_recursive_types_and_tuples_are_carried() -> None:
    tree = Tree("root", [Tree("leaf")])
    topic = Topic("trees", Tree)
    assert topic.decode(topic.new_record(tree).value) == tree
    points = Topic("points", Point)
    assert points.decode(points.new_record(Point(1, 2)).value) == Point(1, 2)


def test_bytes_that_nest_without_end_are_an_error_and_not_the_end() -> None:
    with pytest.raises(PenstockError, match="recursion"):
        Topic("t", None).decode(b"[" * 100_000)
