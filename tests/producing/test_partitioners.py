"""Which partition a record goes to."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

import penstock
from penstock.errors import ConfigError, DeliveryError
from penstock.producing.partitioners import (
    Custom,
    RoundRobin,
    Sticky,
    choose_partitioner,
    murmur2,
    partition_of_key,
)
from penstock.producing.producer import Producer
from penstock.streams.memory import MemoryStream
from tests.clients.names import fresh
from tests.seeds import seed_of


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_what_kafkas_java_client_tests_for(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFFFFFF


def test_keys_go_where_librdkafka_puts_them(url: str, stream: penstock.Connection) -> None:
    chance = random.Random(seed_of())
    keys = [chance.randbytes(chance.randrange(1, 40)) for _ in range(300)]
    ours, theirs = fresh(), fresh()
    for topic in (ours, theirs):
        stream.create_topic(topic, 7)
    with Producer(url) as left_to_librdkafka, Producer(url, partitioner="sticky") as by_ourselves:
        for key in keys:
            left_to_librdkafka.send(theirs, "x", key)
            by_ourselves.send(ours, "x", key)
        left_to_librdkafka.flush(30)
        by_ourselves.flush(30)
    expected = {record.key: record.partition for record in stream.read(theirs)}
    assert {record.key: record.partition for record in stream.read(ours)} == expected
    assert expected == {key: partition_of_key(key, 7) for key in keys}
    assert len(set(expected.values())) == 7


def test_sticky_stays_for_a_batch_and_then_moves_on() -> None:
    sticky = Sticky(seed=seed_of())
    chosen = []
    for _ in range(200):
        batch = {sticky("t", None, 4) for _ in range(10)}
        assert len(batch) == 1
        chosen.append(batch.pop())
        sticky.new_batch()
    assert all(left != right for left, right in itertools.pairwise(chosen))
    assert set(chosen) == {0, 1, 2, 3}
    assert {sticky("t", None, 1) for _ in range(5)} == {0}


def test_round_robin_spreads_evenly_and_keeps_keys_together() -> None:
    turns = RoundRobin()
    assert [turns("t", None, 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert turns("other", None, 3) == 0
    assert {turns("t", b"key", 3) for _ in range(5)} == {partition_of_key(b"key", 3)}


def test_a_function_chooses_and_what_it_gives_is_checked() -> None:
    assert Custom(lambda topic, key, count: count - 1)("t", b"k", 5) == 4
    for bad in (5, -1, True, "0", None):
        with pytest.raises(ConfigError, match="has partitions 0 to 4"):
            Custom(lambda topic, key, count, bad=bad: bad)("t", b"k", 5)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        Custom(lambda topic, key, count: 1 // 0)("t", b"k", 5)
    with pytest.raises(ConfigError, match="is not a partitioner"):
        choose_partitioner(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["memory", "kafka"])
def test_a_producer_follows_its_partitioner_and_an_explicit_partition_wins(
    kind: str, url: str, stream: penstock.Connection
) -> None:
    topic = fresh()
    streams = MemoryStream(partitions=4) if kind == "memory" else stream
    streams.create_topic(topic, 4)
    with Producer(streams, partitioner="round_robin") as producer:
        receipts = [producer.send(topic, str(number)) for number in range(8)]
        explicit = producer.send(topic, "explicit", "key", partition=2)
        assert Counter(receipt.result(20).partition for receipt in receipts) == {0: 2, 1: 2, 2: 2, 3: 2}
        assert explicit.result(20).partition == 2
    with Producer(streams, partitioner=lambda topic, key, count: 3 if key == b"good" else 99) as producer:
        good, bad = producer.send(topic, "x", "good"), producer.send(topic, "x", "bad")
        assert good.result(20).partition == 3
        with pytest.raises(DeliveryError, match="returned 99"):
            bad.result(20)
