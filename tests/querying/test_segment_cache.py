"""Closed segments as Parquet files: they hold what the segments hold, and are never used for anything else."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.abc import Transactional
from penstock.errors import ConfigError, QueryError, QueryStoppedError
from penstock.querying.database import QueryResult
from penstock.querying.topic_table import TopicSource
from penstock.streams.capability import capability
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.querying.orders import Order
from tests.seeds import seed_of

PLENTY = 1 << 30
RECORDS = 6_000
KEYS = 50
SMALLEST = str(1 << 20)
"""The smallest segments that a broker allows."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    return tmp_path / "sql"


def files(folder: Path) -> set[Path]:
    return set(folder.iterdir())


def small_segments(stream: penstock.Connection, **config: str) -> str:
    topic = fresh()
    stream.create_topic(topic, 2, config={"segment.bytes": SMALLEST, **config})
    return topic


def filled(stream: penstock.Connection, **config: str) -> penstock.Topic[Order]:
    topic = penstock.Topic(small_segments(stream, **config), Order)
    chance = random.Random(seed_of())
    for number in range(RECORDS):
        order, headers = Order(f"c{chance.randrange(9)}", number), {"filler": chance.randbytes(1_000)}
        stream.send(topic, order, f"k{chance.randrange(KEYS)}", headers=headers)
    stream.flush(30)
    return topic


def same(url: str, topic: penstock.Topic[Any], query: str, *, types: bool = True) -> QueryResult:
    """The answer with the cache, which must be the one without it."""
    given = [topic] if types else []
    with penstock.sql(url, types=given) as plain, penstock.sql(url, types=given, cache_bytes=PLENTY) as cached:
        result = cached.run(query.format(topic.name))
        assert result.table.equals(plain.query(query.format(topic.name)))
        return result


@pytest.mark.parametrize("types", [True, False], ids=["typed", "JSON"])
def test_answers_are_the_same_and_later_queries_decode_only_what_is_new(
    stream: penstock.Connection, url: str, folder: Path, types: bool
) -> None:
    topic = filled(stream)
    first = same(url, topic, 'from "{}" order by partition, "offset"', types=types)
    assert first.table.num_rows == RECORDS
    assert first.records_cached > RECORDS / 2
    made = files(folder)
    again = same(
        url, topic, 'select customer, sum(cents)::bigint as cents from "{}" group by 1 order by 1', types=types
    )
    assert again.records_read + again.records_cached == RECORDS
    assert again.records_read < RECORDS / 2
    assert files(folder) == made
    stream.send(topic, Order("new", 1)).result(30)
    assert same(url, topic, "select cents from \"{}\" where customer = 'new'", types=types).table.num_rows == 1
    for query in (
        'select count(*) from "{}" where "offset" between 100 and 300 and partition = 1',
        'select count(*) from "{}" where timestamp > now() - interval 1 hour',
        "select key, cents from latest('{}') order by key",
        'select headers, value from "{}" where cents = 77',
        'select count(*) from "{}" where customer is null',
    ):
        same(url, topic, query, types=types)


def test_deleted_and_compacted_records_are_not_seen_though_files_hold_them(
    stream: penstock.Connection, url: str, folder: Path
) -> None:
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1"}
    topic = filled(stream, **{"cleanup.policy": "delete"})
    assert same(url, topic, 'select count(*) as n from "{}"').table.to_pylist() == [{"n": RECORDS}]
    stream.admin().delete_before(topic.name, {0: 500})
    left = same(url, topic, 'select count(*) as n from "{}"').table.to_pylist()[0]["n"]
    assert left < RECORDS
    assert same(url, topic, 'select min("offset") as o from "{}" where partition = 0').table.to_pylist() == [{"o": 500}]
    stream.admin().change_config(topic.name, compacted)

    with penstock.sql(url) as plain:
        count = f'select count(*) as n from "{topic.name}"'
        eventually("one record of each key is left", lambda: plain.query(count)["n"][0].as_py() <= KEYS)
    assert left > KEYS
    assert same(url, topic, 'from "{}" order by partition, "offset"').table.num_rows <= KEYS
    same(url, topic, "select key, value from latest('{}') order by key")


def test_a_topic_that_was_made_again_and_a_type_that_changed_have_files_of_their_own(
    stream: penstock.Connection, url: str, folder: Path
) -> None:
    @dataclass
    class Wider:
        customer: str
        cents: float
        extra: str = "none"

    topic = filled(stream)
    same(url, topic, 'from "{}" order by partition, "offset"')
    wider = penstock.Topic(topic.name, Wider)
    result = same(url, wider, 'select distinct extra, typeof(cents) as t from "{}"')
    assert result.table.to_pylist() == [{"extra": "none", "t": "DOUBLE"}]
    stream.delete_topic(topic.name)
    eventually("the topic is gone", lambda: topic.name not in stream.topics())
    stream.create_topic(topic.name, 2, config={"segment.bytes": SMALLEST})
    stream.send(topic, Order("only", 1)).result(30)
    assert same(url, topic, 'select customer from "{}"').table.to_pylist() == [{"customer": "only"}]


def test_aborted_transactions_are_not_in_the_files(stream: penstock.Connection, url: str, folder: Path) -> None:
    topic = penstock.Topic(small_segments(stream), Order)
    transactional = capability(stream, Transactional)
    assert transactional is not None
    producer = transactional.transactional(topic.name, timeout_s=30, transaction_timeout_s=60)
    chance = random.Random(seed_of())
    for number in range(60):
        producer.begin()
        for _ in range(3):
            producer.produce(
                topic.name,
                msgspec.json.encode({"customer": chance.randbytes(5_000).hex(), "cents": number}),
                partition=0,
            )
        if number % 3 == 0:
            producer.close()
            producer = transactional.transactional(topic.name, timeout_s=30, transaction_timeout_s=60)
        else:
            producer.commit()
    producer.close()
    result = same(url, topic, 'select cents, count(*) as n from "{}" group by 1 order by 1')
    assert result.table["cents"].to_pylist() == [number for number in range(60) if number % 3]
    assert result.records_cached


def test_what_cannot_be_decoded_is_counted_from_the_files_too(
    stream: penstock.Connection, url: str, folder: Path
) -> None:
    topic = filled(stream)
    with penstock.sql(url, types=[penstock.Topic(topic.name, int)], cache_bytes=PLENTY) as database:
        for _ in range(2):
            result = database.run(f'select count(value) as n from "{topic.name}"')
            assert result.table.to_pylist() == [{"n": 0}]
            assert result.undecodable[topic.name] >= result.records_cached > 0


def test_files_beyond_the_limit_are_removed_oldest_first(stream: penstock.Connection, url: str, folder: Path) -> None:
    first, second = filled(stream), filled(stream)
    same(url, first, 'select count(*) from "{}"')
    made = files(folder)
    with penstock.sql(url, types=[second], cache_bytes=1) as database:
        assert database.run(f'select count(*) from "{second.name}"').records_cached
    assert not made & files(folder), "what is in use stays, and nothing else"
    with pytest.raises(ConfigError, match="cache_bytes=0 must be positive"):
        penstock.sql(url, cache_bytes=0)


def test_a_file_that_another_process_removes_meanwhile_costs_nothing(
    stream: penstock.Connection, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(stream)
    skip_to: Callable[..., None] = TopicSource.skip_to

    def removed(source: TopicSource, offsets: dict[int, int]) -> None:
        skip_to(source, offsets)
        for file in files(folder):
            file.unlink()

    monkeypatch.setattr(TopicSource, "skip_to", removed)
    result = same(url, topic, 'select count(*) as n from "{}"')
    assert result.table.to_pylist() == [{"n": RECORDS}]
    assert result.records_read == RECORDS


def test_queries_reach_no_other_file_and_a_cancelled_one_leaves_no_part_of_one(
    stream: penstock.Connection, url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(stream)
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with penstock.sql(url, types=[topic], cache_bytes=PLENTY) as database:
        with pytest.raises(QueryError):
            database.query(f"from read_csv('{tmp_path / 'secret.csv'}')")
        read = TopicSource.read

        def cancelling(source: TopicSource, *given: Any) -> Any:
            for number, each in enumerate(read(source, *given)):
                if number == 0:
                    database.cancel()
                yield each

        monkeypatch.setattr(TopicSource, "read", cancelling)
        with pytest.raises(QueryStoppedError):
            database.query(f'from "{topic.name}"')
        monkeypatch.undo()
    assert not list(folder.glob("*.tmp"))


def test_types_that_parquet_does_not_keep_are_read_from_the_segments(
    stream: penstock.Connection, url: str, folder: Path
) -> None:
    @dataclass
    class Timed:
        took: datetime.timedelta

    topic = penstock.Topic(small_segments(stream), Timed)
    for number in range(RECORDS):
        stream.send(topic, Timed(datetime.timedelta(seconds=number)), headers={"filler": b"x" * 1_000})
    stream.flush(30)
    assert not same(url, topic, 'select max(took) as took from "{}"').records_cached


def test_fields_of_json_are_columns_of_the_files(stream: penstock.Connection, url: str, folder: Path) -> None:
    topic = small_segments(stream)
    chance = random.Random(seed_of())
    for number in range(RECORDS):
        value = {
            "n": number,
            "ratio": number / 4,
            "name": f"c{chance.randrange(9)}",
            "even": number % 2 == 0,
            "part": {"a": [number, None]},
            "rare": None if number % 3 else number,
            'quo"ted': 1,
        }
        stream.send(topic, value if number % 7 else [1], f"k{number % KEYS}", headers={"filler": b"x" * 1_000})
    stream.flush(30)
    untyped = penstock.Topic(topic)
    same(url, untyped, 'from "{}" order by partition, "offset"', types=False)
    kinds = pq.read_schema(next(iter(files(folder))))
    assert [str(kinds.field(name).type) for name in ("n", "ratio", "name", "even", "part", "rare", 'quo"ted')] == [
        *("int64", "double", "string", "bool", "string", "int64", "int64"),
    ]
    for query in (
        'select n, ratio, name, even, part, rare, "quo""ted", value from "{}" order by partition, "offset"',
        'select name, sum(n)::bigint as n, count(rare) as rare from "{}" group by 1 order by 1',
        "select part->>'a' as a from \"{}\" where n = 77",
        'select typeof(part) as t, count(*) as n from "{}" group by 1',
        "select key, n from latest('{}') order by key",
    ):
        same(url, untyped, query, types=False)
    with penstock.sql(url, cache_bytes=PLENTY) as cached:
        plan = cached.query(f'explain select sum(n) from "{topic}"').to_pylist()
    assert "READ_PARQUET" in str(plan)


def test_files_keep_their_fields_when_a_later_sample_has_others(
    stream: penstock.Connection, url: str, folder: Path
) -> None:
    topic = small_segments(stream)
    untyped = penstock.Topic(topic)

    def send(numbers: range, **more: Any) -> None:
        for number in numbers:
            stream.send(topic, {"n": number, **more}, partition=0, headers={"filler": b"x" * 1_000})
        stream.flush(30)

    send(range(2_500))
    same(url, untyped, 'select sum(n)::bigint as n from "{}"', types=False)
    first = files(folder)
    assert first
    send(range(2_500, 5_000), city="Oslo")
    result = same(url, untyped, 'select city, sum(n)::bigint as n from "{}" group by 1 order by 1', types=False)
    assert result.table.to_pylist() == [
        {"city": "Oslo", "n": sum(range(2_500, 5_000))},
        {"city": None, "n": sum(range(2_500))},
    ]
    assert first < files(folder)
    same(url, untyped, 'select n, city from "{}" order by n', types=False)


@pytest.mark.parametrize("odd", [b'{"n": "many"}', b"{", b'{"n": 1.5}'], ids=["text", "cut", "fraction"])
def test_a_segment_with_a_value_that_does_not_fit_is_kept_as_text(
    stream: penstock.Connection, url: str, folder: Path, odd: bytes
) -> None:
    topic = small_segments(stream)
    for number in range(4_000):
        value = odd if number == 500 else msgspec.json.encode({"n": number})
        stream.send(topic, value, partition=0, headers={"filler": b"x" * 1_000})
    stream.flush(30)
    untyped = penstock.Topic(topic)
    result = same(url, untyped, 'select count(*) as n, count(value) as v from "{}"', types=False)
    assert (result.table.to_pylist(), result.warnings) == ([{"n": 4_000, "v": 4_000}], [])
    assert {"n" in pq.read_schema(file).names for file in files(folder)} == {True, False}
    result = same(url, untyped, 'select sum(n)::bigint as n from "{}"', types=False)
    assert result.table.to_pylist() == [{"n": sum(range(4_000)) - 500}]
    assert len(result.warnings) == 1
