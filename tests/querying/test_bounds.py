"""Bounds of filters: a wrong one must only ever read more, never less."""

from __future__ import annotations

import datetime

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.querying.bounds import bounds_of
from penstock.querying.database import TopicDatabase

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("value", pa.string()),
    ]
)
NAMES = {"partition": "partition", "offset": "offset", "timestamp": "timestamp"}
BEGIN = datetime.datetime(2023, 11, 14, 22, 0, tzinfo=datetime.UTC)

numbers = st.integers(-3, 160)
moments = st.integers(-10, 400).map(lambda minute: f"'{BEGIN + datetime.timedelta(minutes=minute)}'::timestamptz")
operators = st.sampled_from(["<", "<=", "=", "<>", ">", ">="])
comparisons = st.one_of(
    st.builds("partition {} {}".format, operators, st.integers(-1, 3)),
    st.builds('"offset" {} {}'.format, operators, numbers),
    st.builds('{} {} "offset"'.format, numbers, operators),
    st.builds('"offset" + {} {} {}'.format, numbers, operators, numbers),
    st.builds('"offset" between {} and {}'.format, numbers, numbers),
    st.builds('"offset" in ({}, {}, {})'.format, numbers, numbers, numbers),
    st.builds('"offset" % 7 = {}'.format, st.integers(0, 7)),
    st.builds("timestamp {} {}".format, operators, moments),
    st.builds("timestamp - interval 3 minutes {} {}".format, operators, moments),
    st.builds("date_trunc('hour', timestamp) {} {}".format, operators, moments),
    st.builds("timestamp between {} and {}".format, moments, moments),
    st.sampled_from(["timestamp is null", "timestamp is not null", "key = 'k3'", "value like '%c1%'", "true", "null"]),
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not ({})".format, inner),
        st.builds("case when {} then {} else {} end".format, inner, inner, inner),
    ),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(condition=conditions)
def test_a_filter_finds_what_reading_everything_finds(
    typed: TopicDatabase, everything: pa.Table, condition: str
) -> None:
    query = 'select partition, "offset" from {} where ' + condition + " order by all"
    with duckdb.connect() as plain:
        plain.execute("set TimeZone = 'UTC'")
        plain.register("everything", everything)
        expected = plain.sql(query.format("everything")).to_arrow_table()
    assert typed.query(query.format("orders")).equals(expected)


def test_without_a_filter_everything_is_read() -> None:
    assert bounds_of(None, {0: (3, 9), 1: (4, 4)}, SCHEMA, NAMES).offsets == {0: (3, 9)}


def test_each_partition_has_its_own_bounds() -> None:
    field = pc.field
    chosen = ((field("partition") == 0) & (field("offset") > 50)) | ((field("partition") == 1) & (field("offset") < 10))
    found = bounds_of(chosen, {0: (0, 100), 1: (0, 100), 2: (0, 100)}, SCHEMA, NAMES)
    assert found.offsets == {0: (50, 100), 1: (0, 10)}


def test_records_without_a_time_are_not_lost() -> None:
    moment = pa.scalar(10**15, pa.timestamp("us", "UTC"))
    field = pc.field("timestamp")
    assert bounds_of(field >= moment, {0: (0, 9)}, SCHEMA, NAMES).since_ms == 10**12
    assert bounds_of((field >= moment) | field.is_null(), {0: (0, 9)}, SCHEMA, NAMES).since_ms is None


def test_a_filter_of_a_value_says_nothing_about_places() -> None:
    found = bounds_of(pc.field("value") == "offset", {0: (2, 9)}, SCHEMA, NAMES)
    assert (found.offsets, found.since_ms) == ({0: (2, 9)}, None)
