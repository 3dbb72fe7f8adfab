"""Partitions that replace others are begun once those are finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import pytest

from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming.lease_groups.group import LeaseGroupFeed
from penstock.model import Change, Checkpoint, CheckpointKey, Lease, Pointer, Position
from penstock.model.clock import SystemClock
from penstock.streams.reading import RoundRobinFeed
from tests.consuming.counting_stream import CountingStream

PARENTS = {1: [0], 2: [0], 3: [1, 2]}


class SplitStream(CountingStream):
    """`abc.Resharding`: partition 0 was split into 1 and 2, which were merged into 3."""

    def parents(self, partition: int) -> Sequence[int]:
        return PARENTS.get(partition, [])


class Listener:
    """Begins everything at its start."""

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        self.leases.update({partition: lease for partition, lease in partitions.items() if lease is not None})
        return dict.fromkeys(partitions, 0)

    def revoked(self, partitions: Sequence[int]) -> None: ...

    def lost(self, partitions: Sequence[int]) -> None: ...


@pytest.fixture
def stream() -> SplitStream:
    return SplitStream("orders", partitions=4, count=50)


def group(stream: SplitStream, store: MemoryCheckpoints, listener: Listener, start: Position) -> LeaseGroupFeed:
    return LeaseGroupFeed(stream, store, "billing", listener, member="a", ttl_s=0.5, clock=SystemClock(), start=start)


def poll_until_assigned(feed: LeaseGroupFeed, listener: Listener, wanted: set[int], attempts: int = 200) -> None:
    for _ in range(attempts):
        feed.poll(100, 0.05)
        assert listener.leases.keys() <= wanted, f"{sorted(listener.leases)} were begun, and only {wanted} may be"
        if listener.leases.keys() == wanted:
            return
    raise AssertionError(f"{wanted} were not begun")


def finish(store: MemoryCheckpoints, listener: Listener, partition: int) -> None:
    store.save(listener.leases[partition], CheckpointKey("billing", "orders", partition), Change(Checkpoint(50, 50)))


def test_a_group_begins_a_partition_when_it_has_finished_those_that_it_replaced(stream: SplitStream) -> None:
    store, listener = MemoryCheckpoints(), Listener()
    with closing(group(stream, store, listener, Position.EARLIEST)) as feed:
        poll_until_assigned(feed, listener, {0})
        finish(store, listener, 0)
        poll_until_assigned(feed, listener, {0, 1, 2})
        finish(store, listener, 1)
        feed.poll(100, 1.0)
        assert listener.leases.keys() == {0, 1, 2}
        finish(store, listener, 2)
        poll_until_assigned(feed, listener, {0, 1, 2, 3})


def test_a_group_that_begins_at_the_end_has_nothing_to_finish(stream: SplitStream) -> None:
    listener = Listener()
    with closing(group(stream, MemoryCheckpoints(), listener, Position.LATEST)) as feed:
        poll_until_assigned(feed, listener, {0, 1, 2, 3})


def read_order(feed: RoundRobinFeed) -> Iterator[int]:
    while batches := feed.poll(20, 0.0):
        yield from (batch.partition for batch in batches)


def test_a_reader_takes_replaced_partitions_first(stream: SplitStream) -> None:
    with closing(RoundRobinFeed(stream)) as feed:
        for partition in (3, 2, 1, 0):
            feed.add(partition, 0)
        order = list(read_order(feed))
    assert order[:3] == [0, 0, 0]
    assert sorted(order[3:9]) == [1, 1, 1, 2, 2, 2]
    assert order[9:] == [3, 3, 3]


def test_a_reader_of_one_partition_does_not_wait_for_others(stream: SplitStream) -> None:
    with closing(RoundRobinFeed(stream)) as feed:
        feed.add(3, 0)
        assert list(read_order(feed)) == [3, 3, 3]
