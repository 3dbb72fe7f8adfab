"""Rows of Python into columns: what fits is stored as it is, what does not is named."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import uuid
from typing import Any

import msgspec
import pyarrow as pa
import pydantic
import pytest

from penstock.errors import SerdeError
from penstock.lakes.fitting import converted, fit, row_of

NOON = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, pa.int64()),
        (1.5, pa.int64()),
        (1.0, pa.int64()),
        ("1", pa.int64()),
        (2**63, pa.int64()),
        (2**31, pa.int32()),
        (2**53 + 1, pa.float64()),
        (True, pa.float64()),
        (1, pa.bool_()),
        (1, pa.string()),
        (b"x", pa.string()),
        ("\ud800", pa.string()),
        (1, pa.timestamp("us", "UTC")),
        ("yesterday", pa.timestamp("us", "UTC")),
        (NOON.replace(tzinfo=None), pa.timestamp("us", "UTC")),
        (NOON, pa.timestamp("us")),
        (NOON, pa.date32()),
        ("1.234", pa.decimal128(5, 2)),
        ("x", pa.decimal128(5, 2)),
        ({"a": 1, "b": 2}, pa.struct([("a", pa.int64())])),
        ({"a": "1"}, pa.struct([("a", pa.int64())])),
        ([1], pa.struct([("a", pa.int64())])),
        ([1, "x"], pa.list_(pa.int64())),
        ("x", pa.list_(pa.string())),
    ],
)
def test_what_a_column_would_change_does_not_fit(value: Any, kind: pa.DataType) -> None:
    fitted = fit([{"x": value}, {"x": None}], pa.schema([("x", kind)]), key=(), evolve=True)
    assert fitted.table.to_pylist() == [{"x": None}]
    assert list(fitted.misfits) == [0]
    assert fitted.misfits[0].startswith(f"column 'x' is {kind}: ")


@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        (1, pa.float64(), 1.0),
        (2**63 - 1, pa.int64(), 2**63 - 1),
        ("2026-07-01T14:00:00+02:00", pa.timestamp("us", "UTC"), NOON),
        ("2026-07-01T12:00:00", pa.timestamp("us"), NOON.replace(tzinfo=None)),
        ("2026-07-01", pa.date32(), NOON.date()),
        ("1.20", pa.decimal128(5, 2), decimal.Decimal("1.20")),
        (1.5, pa.decimal128(5, 2), decimal.Decimal("1.50")),
        (uuid.UUID(int=1), pa.string(), str(uuid.UUID(int=1))),
        ({"a": None}, pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": None, "b": None}),
        ([{"at": "2026-07-01"}], pa.list_(pa.struct([("at", pa.date32())])), [{"at": NOON.date()}]),
        ([], pa.list_(pa.int64()), []),
        (b"\x00", pa.binary(), b"\x00"),
    ],
)
def test_what_has_the_same_meaning_fits(value: Any, kind: pa.DataType, stored: Any) -> None:
    fitted = fit([{"x": value}], pa.schema([("x", kind)]), key=(), evolve=False)
    assert fitted.misfits == {}
    assert fitted.table.to_pylist() == [{"x": stored}]


def test_new_columns_get_the_types_that_their_values_show() -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "at": NOON, "tags": ["a"], "where": {"lat": 1.5}, "nothing": None},
        {"id": 2, "price": decimal.Decimal("1.50"), "day": NOON.date(), "flag": True, "raw": b"x"},
    ]
    fitted = fit(rows, None, key=["id"], evolve=True)
    assert fitted.misfits == {}
    assert {field.name: str(field.type) for field in fitted.table.schema} == {
        "id": "int64",
        "at": "timestamp[us, tz=UTC]",
        "tags": "list<item: string>",
        "where": "struct<lat: double>",
        "price": "decimal128(38, 2)",
        "day": "date32[day]",
        "flag": "bool",
        "raw": "binary",
    }


def test_rows_that_show_no_type_or_two_types_are_named() -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "x": 5}, {"id": 2, "x": "five"}, {"id": 3, "y": []}, {"id": 4}]
    fitted = fit(rows, None, key=["id"], evolve=True)
    assert fitted.table.to_pylist() == [{"id": 1, "x": 5}, {"id": 4, "x": None}]
    assert fitted.misfits[1] == "column 'x' is int64: str 'five' does not fit"
    assert "show no type: declare it with schema=" in fitted.misfits[2]


def test_names_that_a_table_cannot_have_are_named() -> None:
    known = pa.schema([("id", pa.int64())])
    rows: list[dict[str, Any]] = [{"ID": 1}, {"a b": 1}, {"": 1}, {"a.b": 1}, {"x": {"y;": 1}}, {"id": 5, "n": 2**63}]
    fitted = fit([*rows, {"id": 6, "n": 1}], known, key=(), evolve=True)
    assert fitted.table.to_pylist() == [{"id": 6, "n": 1}]
    assert fitted.misfits[0] == "column 'ID' is new: it differs from 'id' only in case"
    assert list(fitted.misfits) == [0, 1, 2, 3, 4, 5]


def test_a_row_without_its_key_or_with_an_unknown_column_does_not_fit() -> None:
    known = pa.schema([pa.field("id", pa.int64()), pa.field("must", pa.int64(), nullable=False)])
    rows: list[dict[str, Any]] = [
        {"must": 1},
        {"id": 2},
        {"id": 3, "must": 3, "more": 1},
        {"id": 4, "must": 4, "more": None},
    ]
    fitted = fit(rows, known, key=["id"], evolve=False)
    assert fitted.table.to_pylist() == [{"id": 4, "must": 4}]
    assert fitted.misfits == {
        0: "the row has no 'id', a part of the key",
        1: "column 'must' is int64: it must not be null",
        2: "the table has no column 'more', and evolve is off",
    }


def test_rows_come_from_objects_and_from_json() -> None:
    class Order(msgspec.Struct):
        id: int
        at: datetime.datetime

    @dataclasses.dataclass
    class Line:
        id: int

    class Model(pydantic.BaseModel):
        id: int

    assert row_of(Order(1, NOON)) == {"id": 1, "at": NOON}
    assert row_of(Line(2)) == {"id": 2}
    assert row_of(Model(id=3)) == {"id": 3}
    assert row_of(b'{"id": 4}') == {"id": 4}
    for wrong in (b"[1]", b"{", 5, None):
        with pytest.raises(SerdeError, match="rows="):
            row_of(wrong)


def test_keys_are_read_from_text() -> None:
    assert converted("7", pa.int64()) == 7
    assert converted("1.5", pa.float64()) == 1.5
    assert converted("true", pa.bool_()) is True
    assert converted(5, pa.string()) == "5"
    assert converted("2026-07-01", pa.date32()) == NOON.date()
    with pytest.raises(ValueError, match="invalid literal"):
        converted("x", pa.int64())
