"""The columns of a topic, whatever its type is written in."""

from __future__ import annotations

import datetime
import typing
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.serde import AvroSerde, Topic
from penstock.spark.values.types import columns_of
from tests.spark.typed.proto import visit_class
from tests.spark.typed.values import Line, Order, Parcel, Payment, Person, Point, Sensor


def columns(form: Any, **options: Any) -> str:
    found = columns_of(Topic("t", form, **options))
    assert isinstance(found, StructType)
    return found.simpleString().removeprefix("struct<").removesuffix(">")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            Order,
            "id:bigint,customer:string,amount:double,at:timestamp,lines:array<struct<item:string,cups:bigint>>,"
            "paid:boolean,size:string,note:string,best:struct<item:string,cups:bigint>,tags:map<string,bigint>",
        ),
        (
            Payment,
            "payment_id:string,paid_at:timestamp,total:decimal(38,18),level:bigint,how:string,raw_bytes:binary,"
            "left_out:bigint",
        ),
        (
            Parcel,
            "weight_kg:double,sizes:array<bigint>,pair:struct<_1:bigint,_2:string>,day:date,at:string,"
            "took:interval day to second",
        ),
        (Person, "name:string,age:bigint,friends:array<struct<name:string,since:timestamp>>"),
        (Sensor, "place:string,celsius:double,note:string"),
        (Point, "x:bigint,y:double,label:string"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_each_field_of_a_class_is_a_column(form: Any, expected: str) -> None:
    assert columns(form) == expected


def test_values_without_fields_are_one_column() -> None:
    assert columns(bytes) == "value:binary"
    assert columns(str) == "value:string"
    assert columns(None) == "value:string"
    assert columns(int) == "value:bigint"
    assert columns(list[float]) == "value:array<double>"


def test_a_time_that_has_no_zone_by_its_type_is_a_time_without_one() -> None:
    class Local(msgspec.Struct):
        at: Annotated[datetime.datetime, msgspec.Meta(tz=False)]

    assert columns(Local) == "at:timestamp_ntz"


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Trade",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
        {"name": "other", "type": ["null", "Side"], "default": None},
        {"name": "parts", "type": {"type": "array", "items": {"type": "map", "values": "float"}}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "where", "type": {"type": "record", "name": "Where", "fields": [{"name": "x", "type": "double"}]}},
        {"name": "home", "type": ["null", "shop.Where"], "default": None},
    ],
}


def test_an_avro_schema_has_columns_without_any_class() -> None:
    assert columns(bytes, serde=AvroSerde(AVRO)) == (
        "id:int,price:decimal(9,2),at:timestamp,side:string,other:string,parts:array<map<string,float>>,hash:binary,"
        "where:struct<x:double>,home:struct<x:double>"
    )
    assert columns(Line, serde="avro") == "item:string,cups:bigint"


def test_a_protobuf_message_has_columns() -> None:
    assert columns(visit_class()) == (
        "page:string,kind:string,at:timestamp,took:interval day to second,big:decimal(20,0),seen:boolean,"
        "maybe:bigint,wrapped:string,tags:array<string>,counts:map<string,bigint>,from:struct<host:string,port:int>"
    )


@dataclass
class Node:
    value: int
    next: Node | None = None


@dataclass
class Bag:
    inside: dict[str, list[Any]]


@dataclass
class Either:
    one: int | str


@dataclass
class Keyed:
    by: dict[tuple[int, int], str]


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (Node, r"Node\.next has no column: Node is recursive"),
        (Bag, r"Bag\.inside\{\}\[\] has no column: it may be anything"),
        (Either, r"Either\.one has no column: it may be of several types"),
        (Keyed, r"Keyed\.by has no column"),
        (typing.Union[Payment, Point], "has no columns: it may be of several types"),  # noqa: UP007
    ],
)
def test_what_has_no_column_is_named(form: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        columns_of(Topic("t", form))


def test_an_avro_union_of_records_is_named() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "either", "type": ["int", "string"]}]}
    with pytest.raises(ConfigError, match=r"R\.either has no column: it may be of several types"):
        columns_of(Topic("t", serde=AvroSerde(schema)))
