"""Classes of every kind that a topic may carry."""

from __future__ import annotations

import datetime
import enum
import uuid
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Line:
    item: str
    cups: int


@dataclass
class Order:
    customer: str
    lines: list[Line] = field(default_factory=list)
    size: Size = Size.SMALL
    note: str | None = None


class Payment(msgspec.Struct, frozen=True):
    id: uuid.UUID
    at: datetime.datetime
    amount: float
    raw: bytes = b""


@attrs.define
class Parcel:
    weight_kg: float
    to: str = "nobody"


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    age: int = 0

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def is_adult(self) -> bool:
        return self.age >= 18


class Sensor(TypedDict):
    place: str
    celsius: float


class Point(NamedTuple):
    x: int
    y: int


class Created(msgspec.Struct, tag=True):
    name: str


class Removed(msgspec.Struct, tag=True):
    name: str
    why: Literal["old", "wrong"] = "old"


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


ORDER = Order("ada", [Line("tea", 2)], Size.LARGE)
PAYMENT = Payment(uuid.UUID(int=7), datetime.datetime(2026, 11, 15, 8, tzinfo=datetime.UTC), 9.5, b"\x00\xff")
