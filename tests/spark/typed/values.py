"""Types of every kind that has columns, and strategies that make values of them."""

from __future__ import annotations

import datetime
import enum
import typing
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
from hypothesis import strategies as st


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    item: str
    cups: int


@dataclass
class Order:
    id: int
    customer: str
    amount: float
    at: datetime.datetime
    lines: list[Line]
    paid: bool = False
    size: Size = Size.SMALL
    note: str | None = None
    best: Line | None = None
    tags: dict[str, int] = field(default_factory=dict)


class Payment(msgspec.Struct, frozen=True, rename="camel"):
    payment_id: uuid.UUID
    paid_at: datetime.datetime
    total: Decimal
    level: Level
    how: Literal["card", "cash"]
    raw_bytes: bytes = b""
    left_out: int | msgspec.UnsetType = msgspec.UNSET


@attrs.define
class Parcel:
    weight_kg: float
    sizes: set[int]
    pair: tuple[int, str]
    day: datetime.date
    at: datetime.time
    took: datetime.timedelta = datetime.timedelta(0)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    age: int = 0
    friends: list[Friend] = []


class Friend(pydantic.BaseModel):
    name: str
    since: pydantic.AwareDatetime | None = None


class Sensor(TypedDict):
    place: str
    celsius: float
    note: typing.NotRequired[str]


class Point(NamedTuple):
    x: int
    y: float
    label: str | None = None


INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
MOMENTS = st.datetimes(
    datetime.datetime(1, 1, 3),  # noqa: DTZ001  # the zone comes next
    datetime.datetime(9999, 12, 29),  # noqa: DTZ001
    timezones=st.sampled_from([datetime.UTC, datetime.timezone(datetime.timedelta(hours=5, minutes=30))]),
)
DECIMALS = st.decimals(-(10**19), 10**19, allow_nan=False, places=18)

LINES = st.builds(Line, TEXTS, INTEGERS)
ORDERS = st.builds(
    Order,
    INTEGERS,
    TEXTS,
    FLOATS,
    MOMENTS,
    st.lists(LINES, max_size=3),
    st.booleans(),
    st.sampled_from(Size),
    st.none() | TEXTS,
    st.none() | LINES,
    st.dictionaries(TEXTS, INTEGERS, max_size=3),
)
PAYMENTS = st.builds(
    Payment,
    st.uuids(),
    MOMENTS,
    DECIMALS,
    st.sampled_from(Level),
    st.sampled_from(["card", "cash"]),
    st.binary(max_size=8),
    INTEGERS | st.just(msgspec.UNSET),
)
PARCELS = st.builds(
    Parcel,
    FLOATS,
    st.sets(INTEGERS, max_size=3),
    st.tuples(INTEGERS, TEXTS),
    st.dates(),
    st.times(),
    st.timedeltas(datetime.timedelta(days=-99_999), datetime.timedelta(days=99_999)),
)
PEOPLE = st.builds(
    Person,
    fullName=TEXTS,
    age=INTEGERS,
    friends=st.lists(st.builds(Friend, name=TEXTS, since=st.none() | MOMENTS), max_size=2),
)
SENSORS: Any = st.fixed_dictionaries({"place": TEXTS, "celsius": FLOATS}, optional={"note": TEXTS})
POINTS = st.builds(Point, INTEGERS, FLOATS, st.none() | TEXTS)

KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "dataclass": (Order, ORDERS),
    "struct": (Payment, PAYMENTS),
    "attrs": (Parcel, PARCELS),
    "pydantic": (Person, PEOPLE),
    "typed_dict": (Sensor, SENSORS),
    "named_tuple": (Point, POINTS),
}
