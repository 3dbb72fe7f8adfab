"""NaN and the infinities have no place in JSON: they are refused, with the place where they stand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
import pytest

import penstock
from penstock.errors import SerdeError
from penstock.serde import JsonSerde, new_record


@dataclass
class Point:
    x: float | None
    others: list[Any]


@attrs.define
class Measured:
    points: dict[str, Point]


class Struct(msgspec.Struct, rename="camel"):
    some_value: float | None


class Pair(NamedTuple):
    first: float | None
    second: float | None


class Typed(TypedDict):
    value: float | None


class Model(pydantic.BaseModel):
    value: float | None
    inside: list[float | None] = []


class Constants(Model):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")


class Strings(Model):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")


NAN, INFINITY = math.nan, math.inf
LOST = [
    (None, NAN, r"\$ is nan"),
    (None, {"a": [1.0, None, {"b": -INFINITY}]}, r"\$\.a\[2\]\.b is -inf"),
    (Point, Point(NAN, []), r"\$\.x is nan"),
    (Point, Point(None, [{"deep": (1, INFINITY)}]), r"\$\.others\[0\]\.deep\[1\] is inf"),
    (Measured, Measured({"a": Point(NAN, [])}), r"\$\.points\.a\.x is nan"),
    (Struct, Struct(NAN), r"\$\.someValue is nan"),
    (Pair, Pair(1.0, NAN), r"\$\[1\] is nan"),
    (Typed, {"value": NAN}, r"\$\.value is nan"),
    (list[float | None], [None, NAN], r"\$\[1\] is nan"),
    (Model, Model(value=NAN), r"\$\.value is nan"),
    (Model, Model(value=None, inside=[1.0, INFINITY]), r"\$\.inside\[1\] is inf"),
    (Constants, Constants(value=NAN), r"\$\.value is nan"),
]


@pytest.mark.parametrize(("form", "value", "place"), LOST, ids=str)
def test_a_number_that_json_does_not_have_is_refused_with_its_place(form: Any, value: Any, place: str) -> None:
    with pytest.raises(SerdeError, match=place) as caught:
        penstock.Topic("points", form).new_record(value)
    assert "send None" in str(caught.value)
    assert "msgpack" in str(caught.value)


@pytest.mark.parametrize("value", [NAN, {"a": NAN}, [INFINITY], Point(NAN, [])])
def test_neither_values_nor_keys_of_a_topic_by_name_lose_a_number(value: object) -> None:
    with pytest.raises(SerdeError, match="is not a JSON number"):
        new_record("points", value)
    with pytest.raises(SerdeError, match="is not a JSON number"):
        new_record("points", "good", key=value)


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (None, {"a": None, "b": "NaN", "c": [1.5, "null"]}),
        (Point, Point(None, ["null", None, 1e308])),
        (Model, Model(value=None)),
    ],
)
def test_none_and_words_that_look_like_it_are_written(form: Any, value: Any) -> None:
    topic: penstock.Topic[Any] = penstock.Topic("points", form)
    assert topic.decode(topic.new_record(value).value) == value


def test_a_pydantic_model_that_writes_them_as_text_keeps_them() -> None:
    topic = penstock.Topic("points", Strings)
    read = topic.decode(topic.new_record(Strings(value=NAN, inside=[None, INFINITY])).value)
    assert read is not None
    assert read.value is not None
    assert math.isnan(read.value)
    assert read.inside == [None, INFINITY]


def test_msgpack_has_these_numbers() -> None:
    topic = penstock.Topic("points", Struct, serde="msgpack")
    read = topic.decode(topic.new_record(Struct(NAN)).value)
    assert read is not None
    assert read.some_value is not None
    assert math.isnan(read.some_value)


def test_a_serde_with_a_type_but_without_a_topic_refuses_them_too() -> None:
    with pytest.raises(SerdeError, match=r"\$\.x is nan"):
        JsonSerde(Point).encode(Point(NAN, []), "points")
