"""JSON and MessagePack: every kind of class there and back, and never anything but a value or a SerdeError."""

from __future__ import annotations

import datetime
import decimal
import math
import pickle
import uuid
from typing import Annotated, Any, Literal, NewType

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SerdeError
from penstock.serde import JsonSerde, MsgpackSerde
from tests.serde.values import (
    ORDER,
    PAYMENT,
    Created,
    Line,
    Order,
    Parcel,
    Payment,
    Person,
    Point,
    Removed,
    Sensor,
    Size,
)

CustomerId = NewType("CustomerId", str)
VALUES: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (Payment, PAYMENT),
    (Parcel, Parcel(1.5)),
    (Sensor, Sensor(place="roof", celsius=-3.5)),
    (Point, Point(1, -2)),
    (list[Line], [Line("tea", 1)]),
    (dict[str, Order], {"a": ORDER}),
    (Created | Removed, Removed("x", "wrong")),
    (int | str | None, "x"),
    (Size, Size.LARGE),
    (CustomerId, CustomerId("ada")),
    (Annotated[int, msgspec.Meta(ge=0)], 3),
    (Literal["a", "b"], "b"),
    (bool, False),
    (float, 1.5),
    (datetime.date, datetime.date(2026, 11, 15)),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (uuid.UUID, uuid.UUID(int=5)),
    (dict, {"any": [1, "x", None]}),
    (list, [1, {"a": 2}]),
    (None, {"free": [1.5, "form"]}),
]
MODELS: list[tuple[Any, Any]] = [
    (Person, Person(fullName="Ada", age=36)),
    (list[Person], [Person(fullName="Ada")]),
    (Person | None, Person(fullName="Bob")),
]


@pytest.mark.parametrize("serde", [JsonSerde, MsgpackSerde])
@pytest.mark.parametrize(("form", "value"), VALUES, ids=lambda each: str(each)[:40])
def test_a_value_comes_back_as_it_was_sent(serde: Any, form: Any, value: Any) -> None:
    one = serde(form)
    data = one.encode(value, "t")
    assert one.decode(data, "t") == value
    assert one.decoder("t")(data) == value
    assert one.encode(None, "t") is None
    assert one.decode(None, "t") is None


@pytest.mark.parametrize("serde", [JsonSerde(Order), JsonSerde(list[Person]), MsgpackSerde(Payment, verify=False)])
def test_a_serde_goes_to_other_processes(serde: Any) -> None:
    again = pickle.loads(pickle.dumps(serde))
    assert (repr(again), again.made_with) == (repr(serde), serde.made_with)


@pytest.mark.parametrize(("form", "value"), MODELS, ids=lambda each: str(each)[:40])
def test_pydantic_models_come_back_as_they_were_sent(form: Any, value: Any) -> None:
    serde = JsonSerde(form)
    assert serde.decode(serde.encode(value, "t"), "t") == value


def test_a_model_is_written_with_the_names_it_reads() -> None:
    assert JsonSerde(Person).encode(Person(fullName="Ada", age=36), "t") == b'{"fullName":"Ada","age":36}'
    with pytest.raises(SerdeError, match=r"topic 't': 2 bytes are not Person in JSON: fullName: Field required"):
        JsonSerde(Person).decode(b"{}", "t")


def test_a_model_that_was_not_validated_is_not_sent() -> None:
    with (
        pytest.raises(SerdeError, match=r"this Person can be written as JSON, but cannot be read .*: age: Input"),
        pytest.warns(UserWarning, match="serializer warnings"),
    ):
        JsonSerde(Person).encode(Person.model_construct(name="Ada", age="old"), "t")


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (float, math.nan),
        (float, "1.5"),
        (int, 1.5),
        (int, True),
        (datetime.datetime, "2026-11-15T08:00:00Z"),
        (Size, "large"),
        (list[int], (1, 2)),
        (list[int], ["1"]),
        (dict[str, int], {"a": "1"}),
        (Created | Removed, Line("x", 1)),
        (Sensor, {"place": "roof"}),
        (Annotated[int, msgspec.Meta(ge=0)], -1),
        (Literal["a"], "b"),
        (Person, {"fullName": "Ada"}),
    ],
)
def test_what_is_of_another_type_is_refused(form: Any, value: Any) -> None:
    with pytest.raises(SerdeError, match="topic 't'"):
        JsonSerde(form).encode(value, "t")


def test_without_verifying_only_the_class_is_looked_at() -> None:
    assert JsonSerde(Line, verify=False).encode(Line("tea", "two"), "t") == b'{"item":"tea","cups":"two"}'  # type: ignore[arg-type]
    with pytest.raises(SerdeError, match="carries Line"):
        JsonSerde(Line, verify=False).encode({}, "t")


class Fussy(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    size: Size

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shout(self) -> str:
        return self.size.upper()


def test_computed_fields_do_not_keep_a_strict_model_from_being_read() -> None:
    serde = JsonSerde(Fussy)
    assert serde.decode(serde.encode(Fussy(size=Size.LARGE), "t"), "t") == Fussy(size=Size.LARGE)


@settings(deadline=None)
@given(data=st.binary(max_size=200), number=st.integers(0, len(VALUES) + len(MODELS) - 1))
def test_any_bytes_are_a_value_or_a_serde_error(data: bytes, number: int) -> None:
    form, _ = (VALUES + MODELS)[number]
    kinds = [JsonSerde] if number >= len(VALUES) else [JsonSerde, MsgpackSerde]
    for kind in kinds:
        serde = kind(form)
        try:
            value = serde.decode(data, "t")
        except SerdeError:
            continue
        assert value is None or serde.encode(value, "t") is not None


@settings(deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e9, 1e9) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=10,
    )
)  # fmt: skip
def test_whatever_json_can_express_comes_back(value: Any) -> None:
    for serde in (JsonSerde(), MsgpackSerde()):
        assert serde.decode(serde.encode(value, "t"), "t") == value
