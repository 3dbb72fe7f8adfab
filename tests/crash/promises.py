"""What producers were promised, held against what is read in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tests.clients.confluent import Received
from tests.crash.load import KeyedProducer


def check_dense(stored: Sequence[Received], starts: dict[int, int] | None = None) -> None:
    """Every offset from the partition's start to its end is there, once. Not so where there are markers."""
    by_partition: defaultdict[int, list[int]] = defaultdict(list)
    for record in stored:
        by_partition[record.partition].append(record.offset)
    for partition, offsets in by_partition.items():
        start = (starts or {}).get(partition, 0)
        assert offsets == list(range(start, start + len(offsets))), f"partition {partition} has gaps"


def check_exactly_once(producer: KeyedProducer, stored: Sequence[Received]) -> None:
    """All that was sent was acknowledged, and all of it is stored once, in the order of its key, where it was said."""
    assert not producer.refused, f"{producer}: {len(producer.refused)} refused: {next(iter(producer.refused.items()))}"
    assert len(producer.acknowledged) == producer.sent
    own = own_records(producer, stored)
    numbers = [number for number, _ in own]
    assert len(set(numbers)) == len(numbers), f"{producer}: {len(numbers) - len(set(numbers))} records are repeated"
    missing = set(range(producer.sent)) - set(numbers)
    assert not missing, f"{producer}: {len(missing)} acknowledged records are lost: {sorted(missing)[:10]}"
    check_places(producer, own)
    check_order_of_keys(producer, numbers)


def check_at_least_once(producer: KeyedProducer, stored: Sequence[Received]) -> None:
    """All that was acknowledged is stored where it was said; the first of each number is in the order of its key."""
    own = own_records(producer, stored)
    missing = set(producer.acknowledged) - {number for number, _ in own}
    assert not missing, f"{producer}: {len(missing)} acknowledged records are lost: {sorted(missing)[:10]}"
    check_places(producer, own)
    check_order_of_keys(producer, list(dict.fromkeys(number for number, _ in own)))


def check_places(producer: KeyedProducer, own: Sequence[tuple[int, Received]]) -> None:
    places: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for number, record in own:
        places[number].add((record.partition, record.offset))
    for number, (partition, offset) in producer.acknowledged.items():
        if offset is not None:
            assert (partition, offset) in places[number], f"{producer}: record {number} is not where it was said"


def check_order_of_keys(producer: KeyedProducer, numbers: Sequence[int]) -> None:
    last: dict[bytes, int] = {}
    for number in numbers:
        key = producer.key(number)
        assert last.get(key, -1) < number, f"{producer}: key {key!r} has {number} behind {last[key]}"
        last[key] = number


def own_records(producer: KeyedProducer, stored: Sequence[Received]) -> list[tuple[int, Received]]:
    """The producer's records with their numbers, byte for byte as they were sent."""
    own: list[tuple[int, Received]] = []
    prefix = f"{producer.name}:".encode()
    for record in stored:
        value = record.value or b""
        if value.startswith(prefix):
            number = int(value[len(prefix) :].partition(b":")[0])
            assert (record.key, value) == (producer.key(number), producer.value(number)), (
                "a record is not what was sent"
            )
            own.append((number, record))
    return own
