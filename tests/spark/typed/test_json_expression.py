"""JSON read without Python: nothing is read otherwise than the library reads it."""

from __future__ import annotations

import datetime
import enum
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SerdeError
from penstock.serde import MsgpackSerde, Topic
from penstock.spark.values.decoding import decode_expression
from penstock.spark.values.types import columns_of
from tests.spark.typed.test_decoding import GOOD, ODD
from tests.spark.typed.values import Line, Payment, Person


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Order:
    id: int
    customer: str
    amount: float
    at: datetime.datetime
    lines: list[Line]
    paid: bool = False
    size: Size = Size.SMALL
    note: str | None = "none"
    best: Line | None = None
    days: list[datetime.date] = field(default_factory=list)
    how: Literal["card", "cash"] = "card"


ORDERS = Topic("orders", Order)
MORE = [
    GOOD + b',"seal":"x"}',
    GOOD[:-1] + b"}}",
    GOOD.replace(b'"lines"', b'"days":["2026-01-31","0001-01-01"],"how":"cash","lines"'),
    GOOD.replace(b'"lines"', b'"days":["2026-02-30"],"lines"'),
    GOOD.replace(b'"lines"', b'"days":[null],"lines"'),
    GOOD.replace(b'"lines"', b'"days":null,"lines"'),
    GOOD.replace(b'"lines"', b'"how":"credit","lines"'),
    GOOD.replace(b'"lines"', b'"best":{"item":"x","cups":1},"note":null,"lines"'),
    GOOD.replace(b'"lines"', b'"best":{"item":"x","cups":1.5},"lines"'),
    GOOD.replace(b"1.5", b"123456789012345678901234567890.5"),
    GOOD.replace(b"1.5", b"0.1"),
    GOOD.replace(b"1.5", b"2e-308"),
    GOOD.replace(b"08:00:00Z", b"08:00:00.5-11:30"),
]
REFUSED_ONLY_HERE = {
    GOOD.replace(b'"id":1', b'"id":1.0'),
    GOOD.replace(b'"id":1', b'"id":1,"id":2'),
    GOOD.replace(b"08:00:00Z", b"08:00:00.123456789Z"),
}
"""The library takes them."""


def expected_row(order: Order) -> dict[str, Any]:
    return {**asdict(order), "size": str(order.size), "at": order.at.astimezone(datetime.UTC)}


def test_every_oddity_is_read_as_the_library_reads_it_or_refused(spark: SparkSession) -> None:
    rows: list[bytes | None] = [*dict.fromkeys([*ODD, *MORE]), None]
    frame = spark.createDataFrame([(index, data) for index, data in enumerate(rows)], "n int, value binary")
    fields, is_bad = decode_expression(ORDERS, F.col("value"))
    assert frame.select(fields.alias("fields")).schema["fields"].dataType == columns_of(ORDERS)
    micros = F.unix_micros("fields.at").alias("micros")
    found = {
        row["n"]: row
        for row in frame.select("n", fields.alias("fields"), is_bad.alias("is_bad")).select("*", micros).collect()
    }
    for index, data in enumerate(rows):
        row = found[index]
        try:
            order = ORDERS.decode(data)
        except SerdeError:
            assert row["is_bad"], data
            assert row["fields"] is None, data
            continue
        if data in REFUSED_ONLY_HERE:
            assert row["is_bad"], data
        elif order is None and data is None:
            assert (row["is_bad"], row["fields"]) == (False, None)
        elif order is not None:
            assert not row["is_bad"], data
            fields_found = row["fields"].asDict(recursive=True)
            fields_found["at"] = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
                microseconds=row["micros"]
            )
            assert fields_found == expected_row(order), data


def test_it_runs_without_python(spark: SparkSession) -> None:
    fields, is_bad = decode_expression(ORDERS, F.col("value"))
    frame = spark.createDataFrame([(GOOD,)], "value binary").select(fields.alias("f"), is_bad.alias("b"))
    assert "Python" not in frame._jdf.queryExecution().executedPlan().toString()


@dataclass
class Positive:
    amount: Annotated[int, msgspec.Meta(gt=0)]


@dataclass
class Ruled:
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("negative")


@attrs.define
class Crate:
    weight: int


@dataclass
class Tagged:
    tags: dict[str, int]


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (Topic("t", Positive), r"Positive\.amount has constraints"),
        (Topic("t", Ruled), "Ruled has its own validation"),
        (Topic("t", Crate), "Crate has its own validation"),
        (Topic("t", Tagged), r"Tagged\.tags is a Dict"),
        (Topic("t", Person), "pydantic"),
        (Topic("t", Payment), r"Payment\.payment_id is a UUID"),
        (Topic("t", Line, serde=MsgpackSerde(Line)), "not JSON of a type"),
        (Topic("t", int), "has no fields"),
        (Topic("t"), "not JSON of a type"),
    ],
)
def test_what_takes_python_is_refused_by_name(topic: Topic[Any], message: str, spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=message):
        decode_expression(topic, F.lit(None))
