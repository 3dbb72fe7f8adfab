"""Partitioners choose the partition of a record that does not name one.

A partitioner gets the topic, the key and the number of partitions, and returns the partition. Without one, the stream
chooses; Kafka's client uses the murmur2 hash of the key.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Protocol

from penstock.errors import ConfigError

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key, number of partitions) -> partition."""


class BatchPartitioner(Protocol):
    """A partitioner that is told when a new batch begins."""

    def __call__(self, topic: str, key: bytes | None, count: int) -> int: ...

    def new_batch(self) -> None: ...


_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash that Kafka's Java client, and so Streams, Connect and Spark, use for keys."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = (int.from_bytes(data[at : at + 4], "little") * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if length != whole:
        h ^= int.from_bytes(data[whole:], "little")
        h = (h * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_of_key(key: bytes, count: int) -> int:
    """The partition that Kafka's Java client chooses for this key."""
    return (murmur2(key) & 0x7FFFFFFF) % count


class Sticky:
    """Records without a key go to one partition per batch, which gives full batches."""

    def __init__(self, seed: int | None = None) -> None:
        self._chance = random.Random(seed)
        self._chosen: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, count: int) -> int:
        if key is not None:
            return partition_of_key(key, count)
        chosen = self._chosen.get(topic)
        if chosen is None or chosen >= count:
            before = self._before.get(topic)
            others = [partition for partition in range(count) if partition != before]
            chosen = self._chance.choice(others) if others else 0
            self._chosen[topic] = self._before[topic] = chosen
        return chosen

    def new_batch(self) -> None:
        self._chosen.clear()


class RoundRobin:
    """Records without a key go to the partitions in turn: an even spread, but small batches."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, count: int) -> int:
        if key is not None:
            return partition_of_key(key, count)
        chosen = self._next.get(topic, 0) % count
        self._next[topic] = chosen + 1
        return chosen

    def new_batch(self) -> None:
        """Nothing to do: batches make no difference."""


class Custom:
    """Wraps a user's function and checks the partition that it returns."""

    def __init__(self, function: Partitioner) -> None:
        self._function = function

    def __call__(self, topic: str, key: bytes | None, count: int) -> int:
        try:
            chosen = self._function(topic, key, count)
        except Exception as error:
            raise ConfigError(f"the partitioner failed for topic {topic!r}: {type(error).__name__}: {error}") from error
        if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen < count:
            raise ConfigError(
                f"the partitioner returned {chosen!r} for topic {topic!r}, which has partitions 0 to {count - 1}"
            )
        return chosen

    def new_batch(self) -> None:
        """Nothing to do: batches make no difference."""


def choose_partitioner(given: str | Partitioner | None) -> BatchPartitioner | None:
    """The named partitioner, or one around this function; None leaves the choice to the stream."""
    if given is None:
        return None
    if given == "sticky":
        return Sticky()
    if given == "round_robin":
        return RoundRobin()
    if isinstance(given, Sticky | RoundRobin):
        return given
    if callable(given):
        return Custom(given)
    raise ConfigError(
        f"{given!r} is not a partitioner: use 'sticky', 'round_robin', or a function of the topic, the key and the "
        "number of partitions"
    )
