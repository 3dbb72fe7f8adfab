"""Avro: schemas from types, values there and back, schemas that change, and nothing half-decoded."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import pickle
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import SchemaRegistry
from penstock.errors import ConfigError, RegistryError, SerdeError
from penstock.serde import AvroSerde, JsonSerde, Reference, Schema, Topic
from penstock.serde.avro import avro_schema_of
from tests.serde.registry_server import Registry
from tests.serde.values import ORDER, PAYMENT, Created, Order, Parcel, Payment, Person, Point, Removed, Sensor, Tree

NOON = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)
SCHEMA = {
    "type": "record",
    "name": "shop.Purchase",
    "fields": [{"name": "customer", "type": "string"}, {"name": "cups", "type": "int"}],
}


@dataclass
class Everything:
    flag: bool
    number: int
    part: float
    text: str
    raw: bytes
    moment: datetime.datetime
    day: datetime.date
    hour: datetime.time
    id: uuid.UUID
    price: decimal.Decimal
    names: set[str]
    counts: dict[str, int]
    choice: Literal["a", "b"]
    either: int | str | None = None
    many: list[str] = field(default_factory=list)


EVERYTHING = Everything(
    True, -(2**62), 1.5, "grüße", b"\0\xff", NOON, NOON.date(), datetime.time(8, 30), uuid.UUID(int=7),
    decimal.Decimal("1.10"), {"a", "b"}, {"x": 1}, "b", "text", ["m"],
)  # fmt: skip


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (Order, ORDER),
        (Payment, PAYMENT),
        (Parcel, Parcel(1.5, "ada")),
        (Sensor, {"place": "roof", "celsius": 1.5}),
        (Everything, EVERYTHING),
        (Tree, Tree("root", [Tree("leaf"), Tree("leaf", [Tree("deep")])])),
        (Created | Removed, Removed("x", "wrong")),
        (Created | Removed, Created("x")),
        (list[Order], [ORDER, ORDER]),
        (dict[str, int], {"a": 1}),
        (int, 5),
    ],
)
def test_a_value_comes_back_as_it_was_sent(form: Any, value: Any) -> None:
    serde = AvroSerde(form)
    data = serde.encode(value, "t")
    assert serde.decode(data, "t") == value
    assert pickle.loads(pickle.dumps(serde)).decode(data, "t") == value
    assert serde.encode(None, "t") is None
    assert serde.decode(None, "t") is None


def test_the_schema_of_a_class_has_its_defaults_so_that_it_can_evolve() -> None:
    assert avro_schema_of(Order) == {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "customer", "type": "string"},
            {
                "name": "lines",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Line",
                        "fields": [{"name": "item", "type": "string"}, {"name": "cups", "type": "long"}],
                    },
                },
                "default": [],
            },
            {
                "name": "size",
                "type": {"type": "enum", "name": "Size", "symbols": ["small", "large"]},
                "default": "small",
            },
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }


def test_a_topic_derives_its_schema_or_is_given_one() -> None:
    derived = Topic("orders", Order, serde="avro")
    assert derived.decode(derived.new_record(ORDER).value) == ORDER
    given = Topic("purchases", serde=AvroSerde(json.dumps(SCHEMA)))
    assert given.decode(given.new_record({"customer": "ada", "cups": 2}).value) == {"customer": "ada", "cups": 2}


def test_a_schema_and_a_type_go_together() -> None:
    class Purchase(pydantic.BaseModel):
        customer: str
        cups: int

    @dataclass
    class Plain:
        customer: str
        cups: int

    data = AvroSerde(SCHEMA, Purchase).encode(Purchase(customer="ada", cups=2), "t")
    assert data == AvroSerde(SCHEMA).encode({"customer": "ada", "cups": 2}, "t")
    assert AvroSerde(SCHEMA, Purchase).decode(data, "t") == Purchase(customer="ada", cups=2)
    assert AvroSerde(SCHEMA, Plain).decode(data, "t") == Plain("ada", 2)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"customer": "ada"}, "cannot be written as Avro shop.Purchase: .*cups"),
        ({"customer": "ada", "cups": "two"}, "cups"),
        ({"customer": "ada", "cups": 1.5}, "cups"),
        ({"customer": "ada", "cups": 2**40}, "cups"),
        ({"customer": "ada", "cups": None}, "cups"),
        ({"customer": b"ada", "cups": 1}, "customer"),
        ({"customer": 5, "cups": 1}, "customer"),
        ([], "type list cannot be written as Avro shop.Purchase"),
        ("ada", "type str cannot be written"),
    ],
)
def test_a_value_that_does_not_fit_its_schema_is_refused(value: Any, complaint: str) -> None:
    with pytest.raises(SerdeError, match=rf"topic 't': .*{complaint}"):
        AvroSerde(SCHEMA).encode(value, "t")


def test_a_class_is_checked_before_its_fields() -> None:
    with pytest.raises(SerdeError, match="topic 't' carries Order, and was given a value of type dict"):
        AvroSerde(Order).encode({"customer": "ada"}, "t")
    with pytest.raises(
        SerdeError, match=r"topic 't': a value of type Order cannot be written as Avro Order: .*customer"
    ):
        AvroSerde(Order).encode(Order(5), "t")  # type: ignore[arg-type]


def test_a_time_without_a_zone_is_refused_and_not_taken_for_this_machines() -> None:
    naive = msgspec.structs.replace(PAYMENT, at=datetime.datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(SerdeError, match="has no time zone"):
        AvroSerde(Payment).encode(naive, "t")
    with pytest.raises(SerdeError, match="has no time zone"):
        AvroSerde(list[Payment]).encode([PAYMENT, naive], "t")


def test_bytes_that_are_no_such_value_are_refused_whole() -> None:
    serde = AvroSerde(SCHEMA)
    data = serde.encode({"customer": "ada", "cups": 2}, "t")
    assert data is not None
    for cut in range(len(data)):
        with pytest.raises(SerdeError, match=rf"topic 't': {cut} bytes are not Avro shop.Purchase"):
            serde.decode(data[:cut], "t")
    with pytest.raises(SerdeError, match="1 bytes are left over"):
        serde.decode(data + b"\0", "t")


@settings(deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_serde_error(data: bytes) -> None:
    serde = AvroSerde(Order)
    try:
        value = serde.decode(data, "t")
    except SerdeError:
        return
    assert isinstance(value, Order)


@dataclass
class OrderV1:
    customer: str
    cups: int
    gone: str = ""


@dataclass
class OrderV2:
    customer: str
    cups: float
    note: str | None = None
    tags: list[str] = field(default_factory=list)


OrderV1.__name__ = OrderV2.__name__ = "Order"


def test_a_value_is_read_into_the_readers_schema(registry: SchemaRegistry) -> None:
    """A field that was added has its default, one that was removed is skipped, and an int is promoted to a double."""
    old = Topic("orders", OrderV1, serde=AvroSerde(OrderV1, registry=registry))
    new = Topic("orders", OrderV2, serde=AvroSerde(OrderV2, registry=registry))
    written_by_old = old.new_record(OrderV1("ada", 2, "x")).value
    written_by_new = new.new_record(OrderV2("bob", 3.0, "n", ["t"])).value
    assert registry.versions("orders-value") == [1, 2]
    assert new.decode(written_by_old) == OrderV2("ada", 2.0, None, [])
    assert new.decode(written_by_new) == OrderV2("bob", 3.0, "n", ["t"])
    with pytest.raises(SerdeError, match=r"topic 'orders': .* bytes are not Avro Order"):
        old.decode(written_by_new)  # a double is no long


def test_schemas_may_refer_to_others(registry: SchemaRegistry, server: Registry) -> None:
    """Another producer wrote with a schema that only names a part of it, which is registered on its own."""
    inner = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
    outer = {"type": "record", "name": "shop.Bill", "fields": [{"name": "price", "type": "shop.Money"}]}
    whole = {**outer, "fields": [{"name": "price", "type": inner}]}
    registry.register("money", Schema(json.dumps(inner)))
    with pytest.raises(RegistryError, match="refused with 422: Invalid schema"):
        registry.register("bills-value", Schema(json.dumps(outer)))
    referring = Schema(json.dumps(outer), references=(Reference("shop.Money", "money", 1),))
    number = registry.register("bills-value", referring)
    payload = AvroSerde(whole).encode({"price": {"cents": 5}}, "bills")
    assert payload is not None
    reader = AvroSerde(whole, registry=SchemaRegistry(server.url))
    assert reader.decode(b"\0" + number.to_bytes(4) + payload, "bills") == {"price": {"cents": 5}}


class Untold(TypedDict, total=False):
    maybe: str


class Numbers(enum.Enum):
    ONE = 1
    HALF = 0.5


@dataclass
class Odd:
    numbers: Numbers


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (Point, "Point has no Avro schema: NamedTuple"),
        (tuple[int, str], "has no counterpart in Avro"),
        (dict[int, str], "has no counterpart in Avro"),
        (Untold, "Untold.maybe may be missing, which Avro cannot express"),
        (Odd, "Odd has no Avro schema: Enums must contain either all str or all int values"),
        (Person, r"Person is a pydantic model: pass its schema, AvroSerde\(schema, Person\)"),
        (complex, "has no counterpart in Avro"),
        ({"type": "recrod"}, "this is not an Avro schema"),
        ("{", "this is not an Avro schema"),
        (5, "5 has no Avro schema|has no Avro schema"),
        (None, "Avro needs a schema"),
    ],
)
def test_what_has_no_schema_is_refused_by_name(schema: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        AvroSerde(schema)


def test_annotations_that_cannot_be_found_are_told() -> None:
    class Hidden(msgspec.Struct):
        x: int

    @dataclass
    class Local:
        hidden: Hidden

    for make in (AvroSerde, JsonSerde):
        with pytest.raises(
            ConfigError, match="its annotations say Hidden, which was not found: define it at module level"
        ):
            make(Local)


def test_two_classes_of_one_name_cannot_be_in_one_schema() -> None:
    first, second = msgspec.defstruct("Same", [("x", int)]), msgspec.defstruct("Same", [("x", str)])
    both = msgspec.defstruct("Both", [("a", first), ("b", second)])
    with pytest.raises(ConfigError, match="two classes are called Same"):
        AvroSerde(both)
