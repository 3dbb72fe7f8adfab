"""The language of filters: what it can say, how it tells of mistakes, and that nothing gets through it."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.console.messages.filters import KEYWORDS, LONGEST_FILTER, Filter
from penstock.errors import FilterError
from penstock.model import Record

NOW = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)
NOW_MS = round(NOW.timestamp() * 1000)
ORDER = Record(
    "orders",
    2,
    41,
    b"ann-7",
    b'{"amount": 120.5, "paid": true, "note": null, "tags": ["new", "eu"], "customer": {"first name": "Ann"},'
    b' "items": [{"name": "pen"}], "text": "order-123"}',
    (("trace", b"x"), ("trace", b"y"), ("content-type", b"json"), ("empty", None)),
    NOW_MS - 60_000,
)


def holds(expression: str, record: Record = ORDER) -> bool:
    return Filter(expression, NOW).holds(record, 300, msgspec.json.decode)


@pytest.mark.parametrize(
    "expression",
    [
        "value.amount > 100",
        "value.amount >= 120.5 and value.amount <= 120.5",
        'key == "ann-7"',
        'key contains "ann" and key startswith "ann" and key endswith "7"',
        'header.trace == "x"',
        'header.trace == "y"',
        'header["content-type"] == "json" and header.content-type startswith "js"',
        "partition in [0, 2]",
        "partition not in [0, 1]",
        "not partition in [0, 1]",
        "pointer == 41 and offset == 41",
        "size > 299 and size < 301",
        'timestamp > "-15m" and timestamp < "2026-11-15T12:00Z"',
        f"timestamp == {NOW_MS - 60_000}",
        "value.paid",
        "value.paid == true",
        "value.note == null and value.nowhere == null",
        "value.nowhere != 5",
        "not value.note",
        'value.tags contains "eu"',
        'value.tags[0] == "new" and value.items[0].name == "pen"',
        'value.customer["first name"] == "Ann"',
        'value.customer contains "first name"',
        'value matches "order-[0-9]{3}"',
        'value.text matches "^order-\\d+$"',
        'key matches "(?i)^ANN"',
        'value contains "amount"',
        "value.amount > 1000 or value.paid and partition == 2",
        "(value.amount > 1000 or value.paid) and partition == 2",
        'key == "nobody" or (not (key == "nobody"))',
        "not not value.paid",
        "value.amount == 120.5",
        "header.empty == null",
    ],
)
def test_what_is_so_of_a_record_holds(expression: str) -> None:
    assert holds(expression)
    assert not holds(f"not ({expression})")


@pytest.mark.parametrize(
    "expression",
    [
        'value.amount > "100"',
        "value.paid == 1",
        "value.tags == 5",
        'header.nowhere == "x"',
        "value.items[7].name",
        "value.amount.deeper == 1",
        "value.amount > 1000 or value.paid and partition == 3",
        "(value.amount > 1000 or value.paid) and partition == 3",
        'timestamp > "-30s"',
        'value.text matches "^123"',
        'key contains "ANN"',
        "value.note",
    ],
)
def test_what_is_not_so_does_not_hold(expression: str) -> None:
    assert not holds(expression)


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"plain", b"[" * 100_000, b"5", b'"text"', b"null"])
def test_any_value_can_be_asked_for_a_path(value: bytes | None) -> None:
    record = Record("t", 0, 0, None, value)
    assert not holds("value.a.b[0] == 1", record)
    assert holds("value.a.b[0] == null and key == null", record)


def test_plain_values_are_compared_as_what_they_say() -> None:
    assert holds("value > 4 and value == 5 and key == 7", Record("t", 0, 0, b"7", b"5"))
    assert holds('value == "text"', Record("t", 0, 0, None, b'"text"'))
    assert holds('value == "text"', Record("t", 0, 0, None, b"text"))


@pytest.mark.parametrize(
    ("expression", "position", "says"),
    [
        ("", 0, "a field"),
        ("amount > 5", 0, "value.amount"),
        ("value.amount >> 5", 14, "a text in quotes"),
        ("value.amount = 5", 13, "write =="),
        ("value.amount > 5 && key", 17, "write and"),
        ("value.amount >", 14, "not the end"),
        ('key contains "ann', 13, "not closed"),
        ("(key", 4, "a closing bracket )"),
        ("key == 5)", 8, "the end"),
        ("partition in 5", 13, "a list"),
        ("partition in [5", 15, "a comma"),
        ("partition == true", 13, "compared with a number"),
        ('timestamp > "soon"', 12, "not a time"),
        ('timestamp > "earliest"', 12, "not a time"),
        ("header == 5", 0, "name the header"),
        ("partition.x == 5", 0, "nothing inside"),
        ("key matches 5", 12, "a pattern"),
        ('key matches "(a"', 12, "missing )"),
        ('key matches "a**"', 12, "bad repetition operator"),
        ('key matches "(?=a)"', 12, "invalid perl operator"),
        ("key > null", 6, "a number or a text"),
        ("key == ; drop", 7, "is not allowed"),
        ("__import__('os')", 0, "unknown field"),
        ("key 5", 4, "a comparison"),
        ("key not 5", 8, "in, as in"),
        ("value." + "9" * 50 + " == " + "9" * 50, 60, "too long"),
    ],
)
def test_a_mistake_is_told_with_its_place(expression: str, position: int, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        Filter(expression, NOW)
    assert caught.value.position == position
    assert says in str(caught.value)


def test_length_nesting_and_number_of_comparisons_have_limits() -> None:
    Filter("(" * 40 + "key" + ")" * 40, NOW)
    for expression, says in (
        ("(" * 900 + "key" + ")" * 900, "nested"),
        ("key or " * 250 + "key", "comparisons"),
        ("key" + " " * LONGEST_FILTER, "characters"),
    ):
        with pytest.raises(FilterError, match=says):
            Filter(expression, NOW)


def test_a_pattern_that_would_take_long_is_refused() -> None:
    with pytest.raises(FilterError, match=r"character 15: the pattern is too large: .* contains"):
        Filter('value matches "(a.{100}|b.{90}a){8}c"', NOW)


def test_what_a_pattern_has_not_looked_at_is_noted() -> None:
    filter = Filter('value matches "z" or key == "k"', NOW)
    for value, note in ((b"short", ""), (b"x" * 70_000, "first 65,536 characters")):
        assert not filter.holds(Record("t", 0, 0, None, value), 1, msgspec.json.decode)
        assert note in filter.note
        assert bool(filter.note) == bool(note)


WORDS = st.sampled_from(
    [
        *KEYWORDS,
        *("key", "value.a[0]", "value", "header.x", "timestamp", "partition", "value['"),
        *("(", ")", "[", "]", ",", "==", "!=", "<", ">", "=", "'", '"', "\\", ".", "\x00", "é", "💥"),
        *('"x"', "5", "-1.5e3", '"a*b+"', '"-1h"'),
    ]
)


@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=25).map(" ".join), st.lists(WORDS).map("".join)))
@settings(max_examples=400, deadline=None)
def test_any_text_is_understood_or_refused_as_a_filter(expression: str) -> None:
    mistake = mistake_in(expression)
    if mistake is None:
        assert isinstance(holds(expression), bool)
    else:
        assert 0 <= mistake.position <= max(len(expression), LONGEST_FILTER)


def mistake_in(expression: str) -> FilterError | None:
    try:
        Filter(expression, NOW)
    except FilterError as error:
        return error
    return None


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "contains", "startswith", "endswith"]), st.data())
@settings(max_examples=300, deadline=None)
def test_any_value_can_be_compared_with_anything(value: Any, sign: str, data: st.DataObject) -> None:
    literal = data.draw(st.sampled_from(['"a"', "5", "-0.5", '""']))
    record = Record("t", 0, 0, None, msgspec.json.encode({"a": value}))
    assert isinstance(holds(f"value.a {sign} {literal}", record), bool)
