"""A log as a queue: consumers of one group share a partition record by record."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from penstock.abc import Feature, Outcome
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming.queue.claim_checkpoint import ClaimCheckpoint
from penstock.consuming.queue.claims import ClaimTable
from penstock.consuming.queue.delivery import QueueDelivery
from penstock.consuming.queue.stream_queue import StreamQueue
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    FencedError,
    OffsetOutOfRangeError,
    StaleDeliveryError,
    StoreUnavailableError,
)
from penstock.model import Change, Checkpoint, CheckpointKey, Lease, NewRecord, Position, Status
from penstock.model.clock import SystemClock
from penstock.testing import FaultyStore, MemoryStream, VirtualClock
from tests.consuming.eventually import wait_until
from tests.consuming.test_lease_groups import Private, Running
from tests.seeds import seed_of

VISIBILITY_S = 30.0
SLOW_S = 0.05
KEY = CheckpointKey("workers", "jobs", 0)

Consumer = Callable[..., StreamQueue]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def streams(clock: VirtualClock) -> MemoryStream:
    return MemoryStream(clock=clock)


@pytest.fixture
def store() -> MemoryCheckpoints:
    return MemoryCheckpoints()


@pytest.fixture
def consumer(streams: MemoryStream, store: MemoryCheckpoints, clock: VirtualClock) -> Iterator[Consumer]:
    with ExitStack() as closing:

        def start(name: str = "w", group: str = "workers", **options: object) -> StreamQueue:
            stream = streams.open_topic("jobs")
            queue = StreamQueue(
                stream,
                store,
                group,
                member=name,
                clock=clock,
                visibility_s=VISIBILITY_S,
                **options,  # type: ignore[arg-type]
            )
            closing.callback(queue.close)
            return queue

        yield start


def send(streams: MemoryStream, *values: str, partition: int | None = None) -> None:
    for value in values:
        streams.send("jobs", value.encode(), partition=partition)


def values(deliveries: Sequence[QueueDelivery]) -> list[str]:
    return [(delivery.record.value or b"").decode() for delivery in deliveries]


def one(queue: StreamQueue) -> QueueDelivery:
    (delivery,) = queue.receive(1, 0.0)
    return delivery


def checkpoint(store: MemoryCheckpoints) -> Checkpoint:
    found = store.load(KEY)
    assert found is not None
    return found


def test_a_crash_reorders_what_is_load_balanced(streams: MemoryStream, consumer: Consumer, clock: VirtualClock) -> None:
    """Two consumers are balanced on one partition. Consumer 2 crashes while it handles m3, as consumer 1 handles m4.
    What was not settled is handed out again: consumer 1 handles m4, m3, m5."""
    send(streams, "m1", "m2", "m3", "m4", "m5")
    consumer_1, consumer_2 = consumer("1"), consumer("2")
    handled_by_1: list[str] = []
    for queue in (consumer_1, consumer_2):
        queue.settle(one(queue), Outcome.DONE)
    assert values([one(consumer_2)]) == ["m3"]  # and that was the last that anybody heard of it
    m4 = one(consumer_1)
    clock.advance(VISIBILITY_S)
    consumer_1.settle(m4, Outcome.DONE)
    handled_by_1 += values([m4])
    for _ in range(2):
        delivery = one(consumer_1)
        handled_by_1 += values([delivery])
        consumer_1.settle(delivery, Outcome.DONE)
    assert handled_by_1 == ["m4", "m3", "m5"]
    assert consumer_1.receive(1, 0.0) == []


def test_more_consumers_than_partitions_work_at_the_same_time(store: MemoryCheckpoints) -> None:
    """Eight consumers on one partition each have a record in hand before any of them goes on."""
    streams = MemoryStream()
    send(streams, *map(str, range(80)))
    together = threading.Barrier(8, timeout=20)
    handled: list[list[str]] = [[] for _ in range(8)]

    def work(number: int) -> None:
        queue = StreamQueue(streams.open_topic("jobs"), store, "workers", member=f"w{number}", clock=SystemClock())
        for _ in range(10):
            (delivery,) = queue.receive(1, 20.0)
            together.wait()
            handled[number] += values([delivery])
            queue.settle(delivery, Outcome.DONE)
        queue.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(value) for values in handled for value in values) == list(range(80))
    assert all(len(values) == 10 for values in handled)
    assert checkpoint(store) == Checkpoint(80, 80, processed=80, delivered=80, saved_ms=checkpoint(store).saved_ms)


class SlowStore(MemoryCheckpoints):
    """Takes its time for claims and saves, as a store in Kafka does, and counts the turns that were in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.ruined = 0

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        threading.Event().wait(SLOW_S)
        claimed = super().claim(group, name, owner, seen)
        self.ruined += claimed is None
        return claimed

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        threading.Event().wait(SLOW_S)
        try:
            super().save(lease, key, change)
        except FencedError:
            self.ruined += 1
            raise


def test_in_a_slow_store_members_let_each_other_finish_their_turns() -> None:
    store, turns = SlowStore(), 6
    members = [
        ClaimCheckpoint(store, KEY, f"w{number}", SystemClock(), random.Random(number), lambda: 0)
        for number in range(3)
    ]
    threads = [
        threading.Thread(target=lambda member=member: [member.change(ClaimTable.begin) for _ in range(turns)])
        for member in members
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    print(f"{store.ruined} of {turns * len(members) + store.ruined} turns were in vain")
    assert store.ruined <= turns * len(members)


def test_what_is_not_settled_in_time_goes_to_another_and_the_late_settle_is_refused(
    streams: MemoryStream, consumer: Consumer, clock: VirtualClock
) -> None:
    send(streams, "a", "b")
    slow, quick = consumer("slow"), consumer("quick")
    late = slow.receive(2, 0.0)
    assert values(late) == ["a", "b"]
    assert quick.receive(2, 0.0) == []
    clock.advance(VISIBILITY_S - 0.1)
    assert quick.receive(2, 0.0) == []
    slow.settle(late[1], Outcome.DONE)
    clock.advance(0.2)
    again = quick.receive(2, 0.0)
    assert (values(again), again[0].attempt) == (["a"], 2)
    with pytest.raises(StaleDeliveryError, match="jobs-0 at offset 0"):
        slow.settle(late[0], Outcome.DONE)
    assert slow.extend([late[0]]) == [late[0]]
    quick.settle(again[0], Outcome.DONE)
    with pytest.raises(StaleDeliveryError):
        quick.settle(again[0], Outcome.DONE)


def test_settling_late_is_fine_as_long_as_nobody_else_has_it(
    streams: MemoryStream, consumer: Consumer, clock: VirtualClock
) -> None:
    send(streams, "a")
    queue = consumer()
    delivery = one(queue)
    clock.advance(10 * VISIBILITY_S)
    queue.settle(delivery, Outcome.DONE)
    assert consumer("other").receive(1, 0.0) == []


def test_a_delivery_that_is_extended_stays_and_its_neighbours_do_not(
    streams: MemoryStream, consumer: Consumer, clock: VirtualClock
) -> None:
    send(streams, "a", "b", "c")
    worker, other = consumer("worker"), consumer("other")
    deliveries = worker.receive(3, 0.0)
    assert other.receive(1, 0.0) == []
    clock.advance(VISIBILITY_S * 0.7)
    assert worker.extend([deliveries[1]]) == []
    assert other.receive(1, 0.0) == []
    clock.advance(VISIBILITY_S * 0.7)
    assert sorted(values(other.receive(9, 0.0))) == ["a", "c"]
    worker.settle(deliveries[1], Outcome.DONE)
    assert worker.settle_all([deliveries[0], deliveries[2]]) == [deliveries[2], deliveries[0]]


def test_deliveries_that_are_extended_together_cost_one_change_and_can_be_settled_one_by_one(
    streams: MemoryStream, store: MemoryCheckpoints, consumer: Consumer, clock: VirtualClock
) -> None:
    send(streams, *"abcde")
    worker, other = consumer("worker"), consumer("other")
    deliveries = worker.receive(5, 0.0)
    worker.settle(deliveries[2], Outcome.DONE)
    assert other.receive(1, 0.0) == []
    for _ in range(3):
        clock.advance(VISIBILITY_S * 0.7)
        assert worker.extend([deliveries[index] for index in (4, 0, 3, 1)]) == []
        assert other.receive(5, 0.0) == []
    assert len(checkpoint(store).claims) == 2, "one for a and b, one for d and e"
    assert worker.extend([deliveries[0], deliveries[2]]) == [deliveries[2]], "c was settled"
    for index in (3, 0, 4):
        worker.settle(deliveries[index], Outcome.DONE)
    clock.advance(2 * VISIBILITY_S)
    assert values(other.receive(5, 0.0)) == ["b"]


def test_what_is_released_comes_again_and_is_not_counted(
    streams: MemoryStream, store: MemoryCheckpoints, consumer: Consumer
) -> None:
    send(streams, "a", "b", "c")
    first, second = consumer("1"), consumer("2")
    assert first.settle_all(first.receive(3, 0.0), Outcome.RELEASE) == []
    again = second.receive(3, 0.0)
    assert [(value, each.attempt) for value, each in zip(values(again), again, strict=True)] == [
        ("a", 1),
        ("b", 1),
        ("c", 1),
    ]
    second.settle_all(again)
    second.close()
    assert checkpoint(store).failing == ()
    assert [line.status for line in store.history(KEY, 0)] == [Status.SUCCEEDED]


def test_a_failure_is_tried_again_by_anybody_and_counted(
    streams: MemoryStream, store: MemoryCheckpoints, consumer: Consumer
) -> None:
    send(streams, "a", "b")
    first, second = consumer("1"), consumer("2")
    first.settle_all([one(first)], Outcome.RETRY, reason="no answer")
    (failing,) = checkpoint(store).failing
    assert (failing.pointer, failing.attempts, failing.error) == (0, 1, "no answer")
    again = one(second)
    assert (values([again]), again.attempt) == (["a"], 2)
    second.settle(again, Outcome.DONE)
    assert checkpoint(store).failing == ()
    first.close()
    second.close()
    lines = [(line.status, line.attempt, line.error) for line in store.history(KEY, 0)]
    assert lines == [(Status.FAILED, 1, "no answer"), (Status.SUCCEEDED, 2, "")]


def test_a_delay_lets_others_pass(streams: MemoryStream, consumer: Consumer, clock: VirtualClock) -> None:
    send(streams, "a", "b")
    queue, other = consumer(), consumer("other")
    queue.settle(one(queue), Outcome.RETRY, delay_s=5.0)
    assert values([one(queue)]) == ["b"]
    assert other.receive(1, 0.0) == []
    clock.advance(4.9)
    assert queue.receive(1, 0.0) == []
    clock.advance(0.2)
    again = one(queue)
    assert (values([again]), again.attempt) == (["a"], 2)
    queue.settle(again, Outcome.DONE)


def test_what_is_rejected_never_comes_again(
    streams: MemoryStream, store: MemoryCheckpoints, consumer: Consumer, clock: VirtualClock
) -> None:
    send(streams, "poison", "b")
    queue = consumer()
    queue.settle_all([one(queue)], Outcome.REJECT, reason="ValueError")
    assert values([one(queue)]) == ["b"]
    queue.close()
    assert [line.status for line in store.history(KEY, 0)] == [Status.EXHAUSTED]
    assert (checkpoint(store).processed, checkpoint(store).delivered) == (2, 0)


def test_the_checkpoint_moves_over_what_is_finished_without_a_gap(
    streams: MemoryStream, store: MemoryCheckpoints, consumer: Consumer
) -> None:
    send(streams, *map(str, range(10)))
    queue = consumer()
    deliveries = queue.receive(10, 0.0)
    for index in (1, 2, 5, 9):
        queue.settle(deliveries[index], Outcome.DONE)
    assert (checkpoint(store).start, checkpoint(store).finished) == (0, ((1, 3), (5, 6), (9, 10)))
    queue.settle(deliveries[0], Outcome.DONE)
    assert (checkpoint(store).start, checkpoint(store).finished) == (3, ((5, 6), (9, 10)))
    queue.settle_all([deliveries[index] for index in (3, 4, 6, 7, 8)])
    assert (checkpoint(store).start, checkpoint(store).next, checkpoint(store).claims) == (10, 10, ())


def test_every_group_gets_every_record_and_its_members_divide_them(streams: MemoryStream, consumer: Consumer) -> None:
    streams.create_topic("jobs", 2)
    for number in range(40):
        send(streams, str(number), partition=number % 2)
    queues = [(group, consumer(name, group)) for group in ("billing", "search") for name in ("1", "2", "3")]
    got: Counter[tuple[str, str]] = Counter()
    for _ in range(10):
        for group, queue in queues:
            deliveries = queue.receive(3, 0.0)
            got.update((group, value) for value in values(deliveries))
            queue.settle_all(deliveries)
    assert got == Counter({(group, str(number)): 1 for group in ("billing", "search") for number in range(40)})


def test_who_closes_hands_back_at_once(streams: MemoryStream, store: MemoryCheckpoints, consumer: Consumer) -> None:
    send(streams, "a", "b", "c")
    leaver, heir = consumer("leaver"), consumer("heir")
    deliveries = leaver.receive(3, 0.0)
    leaver.settle(deliveries[1], Outcome.DONE)
    leaver.close()
    leaver.close()
    again = heir.receive(3, 0.0)
    assert (sorted(values(again)), {each.attempt for each in again}) == (["a", "c"], {2})
    for call in (lambda: leaver.receive(1, 0.0), lambda: leaver.settle(deliveries[0], Outcome.DONE)):
        with pytest.raises(ConnectionClosedError):
            call()


def test_a_group_begins_where_it_is_told_to(streams: MemoryStream, consumer: Consumer) -> None:
    send(streams, "old", "older")
    queue = consumer(start=Position.LATEST)
    assert queue.receive(5, 0.0) == []
    queue.send([NewRecord("jobs", b"new")])
    assert values(queue.receive(5, 0.0)) == ["new"]


def test_gaps_in_the_partition_are_finished_with_the_records_around_them(
    streams: MemoryStream, store: MemoryCheckpoints, consumer: Consumer, clock: VirtualClock
) -> None:
    send(streams, "a")
    streams.skip("jobs", 0, 5)
    send(streams, "b")
    streams.skip("jobs", 0, 3)
    queue, other = consumer(), consumer("other")
    deliveries = queue.receive(10, 0.0)
    other.receive(1, 0.0)
    clock.advance(VISIBILITY_S)
    again = [*other.receive(1, 0.0), *other.receive(1, 0.0)]
    assert values(again) == values(deliveries) == ["a", "b"]
    other.settle_all(again)
    assert other.receive(1, 0.0) == []
    assert checkpoint(store).start == checkpoint(store).next == 10
    assert checkpoint(store).claims == ()


def test_records_that_expired_are_an_error_until_they_are_given_up(streams: MemoryStream, consumer: Consumer) -> None:
    send(streams, *map(str, range(10)))
    queue = consumer()
    queue.settle_all(queue.receive(2, 0.0))
    streams.expire("jobs", 0, 6)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError):
            drain(queue)
    queue.skip_to(0, 6)
    assert [value for value in drain(queue) if int(value) >= 6] == ["6", "7", "8", "9"]


def drain(queue: StreamQueue) -> list[str]:
    came: list[str] = []
    while deliveries := queue.receive(10, 0.0):
        came += values(deliveries)
        queue.settle_all(deliveries)
    return came


def test_a_claim_of_which_nobody_heard_is_taken_back_at_once(streams: MemoryStream, store: MemoryCheckpoints) -> None:
    streams.create_topic("jobs")
    faulty = FaultyStore(store)
    queue = StreamQueue(streams.open_topic("jobs"), faulty, "workers", member="w", clock=VirtualClock())
    assert queue.receive(1, 0.0) == []
    send(streams, "a", "b")
    faulty.faults.fail("save", StoreUnavailableError("timeout"), after=True)
    with pytest.raises(StoreUnavailableError):
        queue.receive(1, 0.0)
    assert checkpoint(store).next == 1, "it was claimed"
    assert sorted(values([one(queue), one(queue)])) == ["a", "b"]
    queue.close()


def test_a_settle_of_which_nobody_heard_can_be_repeated(streams: MemoryStream, store: MemoryCheckpoints) -> None:
    send(streams, "a")
    faulty = FaultyStore(store)
    queue = StreamQueue(streams.open_topic("jobs"), faulty, "workers", member="w", clock=VirtualClock())
    delivery = one(queue)
    faulty.faults.fail("save", StoreUnavailableError("timeout"), after=True)
    with pytest.raises(StoreUnavailableError):
        queue.settle(delivery, Outcome.DONE)
    queue.settle(delivery, Outcome.DONE)
    assert checkpoint(store).start == 1
    queue.close()


def test_with_a_store_that_fails_now_and_then_nothing_is_lost(store: MemoryCheckpoints) -> None:
    streams = MemoryStream(partitions=2)
    seed = seed_of()
    send(streams, *map(str, range(300)))
    finished: Counter[str] = Counter()
    count = threading.Lock()

    def work(number: int) -> None:
        faulty = FaultyStore(store)
        faulty.faults.fail_randomly(0.1, StoreUnavailableError("away"), seed=seed + number)
        stream = streams.open_topic("jobs")
        queue = StreamQueue(stream, faulty, "workers", member=f"w{number}", visibility_s=0.5, clock=SystemClock())
        in_hand: list[QueueDelivery] = []
        while len(finished) < 300:
            try:
                in_hand += queue.receive(7, 0.05)
                while in_hand:
                    settle_until_it_counts(queue, in_hand[-1], finished, count)
                    in_hand.pop()
            except StoreUnavailableError:
                continue
        faulty.faults.heal()
        queue.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), f"{len(finished)} of 300"
    assert set(finished) == set(map(str, range(300)))
    keys = [CheckpointKey("workers", "jobs", partition) for partition in (0, 1)]
    ends = [store.load(key) for key in keys]
    assert sum(end.start for end in ends if end) == 300


def settle_until_it_counts(
    queue: StreamQueue, delivery: QueueDelivery, finished: Counter[str], count: threading.Lock, attempts: int = 50
) -> None:
    for _ in range(attempts):
        try:
            queue.settle(delivery, Outcome.DONE)
        except StoreUnavailableError:
            continue
        except StaleDeliveryError:
            return
        with count:
            finished.update(values([delivery]))
        return
    raise AssertionError("one in ten calls fails, and this one always did")


def test_a_partition_that_somebody_owns_as_a_whole_is_left_alone(store: MemoryCheckpoints) -> None:
    streams = MemoryStream()
    send(streams, "a")
    owner = Running(streams.open_topic("jobs"), store, "owner")  # type: ignore[arg-type]
    wait_until(lambda: len(owner.leases) == 1)
    queue = StreamQueue(streams.open_topic("jobs"), store, "billing", member="w", clock=SystemClock())
    try:
        assert queue.receive(1, 0.5) == []
        assert owner.feed.holds(0)
        owner.end()
        assert values(queue.receive(1, 20.0)) == ["a"]
    finally:
        owner.end()
        queue.close()


def test_a_topic_that_is_not_there_yet_is_waited_for(store: MemoryCheckpoints) -> None:
    streams = MemoryStream()
    queue = StreamQueue(streams.open_topic("jobs"), store, "workers", member="w", clock=SystemClock())
    try:
        assert queue.receive(1, 0.0) == []
        send(streams, "first")
        assert values(queue.receive(1, 20.0)) == ["first"]
    finally:
        queue.close()


def test_what_it_can_do_follows_from_its_parts(consumer: Consumer) -> None:
    features = consumer().features
    assert {Feature.REDELIVERY, Feature.DELAYED_REDELIVERY, Feature.KEYS, Feature.HEADERS} <= features
    assert Feature.DURABLE not in features


@pytest.mark.parametrize("options", [{"store": Private()}, {"group": ""}, {"member": ""}, {"visibility_s": 0.0}])
def test_what_cannot_work_is_refused(streams: MemoryStream, options: dict[str, object]) -> None:
    given = {"store": MemoryCheckpoints(), "group": "g", "member": "m", "visibility_s": 1.0, **options}
    with pytest.raises(ConfigError):
        StreamQueue(streams.open_topic("jobs"), clock=SystemClock(), **given)  # type: ignore[arg-type]


def test_a_delay_for_what_is_not_tried_again_is_refused(streams: MemoryStream, consumer: Consumer) -> None:
    send(streams, "a")
    queue = consumer()
    delivery = one(queue)
    with pytest.raises(ConfigError):
        queue.settle(delivery, Outcome.DONE, delay_s=1.0)
    with pytest.raises(ConfigError):
        queue.settle(delivery, Outcome.RETRY, delay_s=-1.0)
    with pytest.raises(TypeError):
        queue.settle(object(), Outcome.DONE)  # type: ignore[arg-type]
