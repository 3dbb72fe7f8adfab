"""Handlers called by a consumer: order, retries, dead letters, restarts, and what is saved."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import CircuitBreaker, Context, Retry
from penstock.consuming.handler_consumer import HandlerConsumer
from penstock.consuming.options import OrderChoice
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import OffsetOutOfRangeError, Reject, UnknownTopicError
from penstock.model import CheckpointKey, DeadLetterFilter, NewRecord, Record, Status
from penstock.streams.memory import MemoryStream

Fill = Callable[..., None]
Consume = Callable[..., App]
AT_ONCE = Retry(3, first_delay_s=0.0)


def letters_of(streams: MemoryStream, topic: str = "orders.dlq") -> list[Any]:
    return list(open_dead_letters(topic, streams).browse(DeadLetterFilter(), limit=10_000))


@pytest.mark.parametrize(("order", "workers"), [("partition", 1), ("partition", 3), ("key", 4), ("none", 4)])
def test_every_record_is_handled_once_in_the_order_that_was_asked_for(
    order: str, workers: int, fill: Fill, consume: Consume
) -> None:
    fill("orders", 500, keys=7)
    seen: defaultdict[bytes, list[int]] = defaultdict(list)
    lock = threading.Lock()

    def handle(record: Record) -> None:
        assert record.value is not None
        with lock:
            seen[record.key or b""].append(int(record.value))

    consume(handle, order=order, workers=workers)
    assert sorted(value for values in seen.values() for value in values) == list(range(500))
    if order != "none":
        assert all(values == sorted(values) for values in seen.values())


@pytest.mark.parametrize("commit_interval_s", [0.5, 0], ids=["saved now and then", "each saved"])
@pytest.mark.parametrize("kind", ["threads", "async"])
def test_with_order_by_key_no_record_begins_before_the_one_before_it_of_its_key_has_ended(
    kind: str, commit_interval_s: float, streams: MemoryStream, consume: Consume
) -> None:
    """The first record of key "slow" ends when all of the other keys have: so the second one had every chance."""
    keys = [b"slow", b"slow", *[b"quick-%d" % number for number in range(20)], b"slow"]
    records = [NewRecord("orders", str(number).encode(), key) for number, key in enumerate(keys)]
    streams.open_topic("orders").append(records)
    in_hand: Counter[bytes] = Counter()
    seen: defaultdict[bytes, list[int]] = defaultdict(list)
    overlaps: list[bytes] = []
    others_done = threading.Semaphore(0)

    def begin(record: Record) -> bytes:
        assert record.key is not None
        assert record.value is not None
        if in_hand[record.key]:
            overlaps.append(record.value)
        in_hand[record.key] += 1
        seen[record.key].append(int(record.value))
        return record.key

    def end(key: bytes) -> None:
        in_hand[key] -= 1
        if key != b"slow":
            others_done.release()

    def handle(record: Record) -> None:
        key = begin(record)
        if record.value == b"0":
            for _ in range(20):
                assert others_done.acquire(timeout=20)
        end(key)

    async def handle_async(record: Record) -> None:
        key = begin(record)
        if record.value == b"0":
            for _ in range(20):
                assert await asyncio.to_thread(others_done.acquire, timeout=20)
        end(key)

    handler = handle if kind == "threads" else handle_async
    consume(handler, order="key", workers=3, commit_interval_s=commit_interval_s)
    assert not overlaps
    assert seen[b"slow"] == [0, 1, 22]
    assert sum(map(len, seen.values())) == len(keys)


def test_async_handlers_are_under_way_together(fill: Fill, consume: Consume) -> None:
    fill("orders", 64)
    under_way, most = 0, 0

    async def handle(value: bytes) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):  # let the others have their turn
            await asyncio.sleep(0)
        under_way -= 1

    consume(handle, order="none", workers=8)
    assert 1 < most <= 8


def test_a_failed_record_is_tried_again_and_only_that(fill: Fill, consume: Consume) -> None:
    fill("orders", 10)
    calls: Counter[bytes] = Counter()

    def handle(value: bytes, ctx: Context) -> None:
        calls[value] += 1
        assert ctx.attempt == calls[value]
        if value == b"4" and calls[value] < 3:
            raise ValueError("not yet")

    app = consume(handle, retry=AT_ONCE)
    assert calls == Counter({**{str(number).encode(): 1 for number in range(10)}, b"4": 3})
    history = app.consumers[0].history(0, 4)
    assert [(line.status, line.attempt) for line in history] == [
        (Status.FAILED, 1),
        (Status.FAILED, 2),
        (Status.SUCCEEDED, 3),
    ]
    assert history[0].error == "ValueError: not yet"


@pytest.mark.parametrize("order", ["partition", "key", "none"])
def test_an_exhausted_record_becomes_a_dead_letter_with_all_that_is_known(
    order: str, streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", 10, keys=3)

    def handle(value: bytes) -> None:
        if value == b"4":
            raise ValueError("never")

    consume(handle, retry=AT_ONCE, order=order)
    (letter,) = letters_of(streams)
    assert (letter.record.value, letter.record.offset, letter.attempts) == (b"4", 4, 3)
    assert (letter.error, letter.error_kind, letter.group) == ("ValueError: never", "ValueError", "group")
    assert "raise ValueError" in letter.traceback
    assert letter.handler_version


def test_a_rejected_record_is_not_tried_again(streams: MemoryStream, fill: Fill, consume: Consume) -> None:
    fill("orders", 3)
    calls: Counter[bytes] = Counter()

    def handle(value: bytes) -> None:
        calls[value] += 1
        if value == b"1":
            raise Reject("no such customer")

    consume(handle)
    assert calls[b"1"] == 1
    (letter,) = letters_of(streams)
    assert letter.error == "Reject: no such customer"


def test_an_undecodable_record_goes_to_the_dead_letters_with_its_raw_bytes(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", [b'{"n": 1}', b"\xff not json", b'{"n": 2}'])
    seen: list[int] = []

    def handle(value: dict[str, int]) -> None:
        seen.append(value["n"])

    consume(handle)
    assert seen == [1, 2]
    (letter,) = letters_of(streams)
    assert letter.record.value == b"\xff not json"
    assert letter.error_kind == "SerdeError"


def test_the_policy_of_an_error_is_that_of_its_most_specific_class() -> None:
    retry = Retry(5, on={OSError: Retry(2), ConnectionError: Retry(9)})
    assert retry.policy_for(ConnectionResetError()).attempts == 9
    assert retry.policy_for(FileNotFoundError()).attempts == 2
    assert retry.policy_for(ValueError()).attempts == 5


def test_without_dead_letters_an_exhausted_record_stops_the_app_and_is_not_lost(fill: Fill, consume: Consume) -> None:
    fill("orders", 5)

    def fail(value: bytes) -> None:
        if value == b"2":
            raise ValueError("never")

    with pytest.raises(Exception, match="no dead letters"):
        consume(fail, retry=AT_ONCE, dead_letters=False)
    seen: list[bytes] = []
    consume(seen.append)
    assert seen[0] == b"2"


def test_a_slow_record_blocks_only_its_own_key(fill: Fill, consume: Consume) -> None:
    fill("orders", 40, keys=4)
    others_done = threading.Event()
    done: list[bytes] = []

    def handle(record: Record) -> None:
        assert record.value is not None
        if record.value == b"0":
            assert others_done.wait(30), "the other keys did not get on"
        done.append(record.value)
        if sum(int(value) % 4 != 0 for value in done) == 30:
            others_done.set()

    consume(handle, order="key", workers=2)
    assert len(done) == 40


def test_a_failing_record_does_not_block_others_where_order_allows(fill: Fill, consume: Consume) -> None:
    fill("orders", 20)
    order: list[bytes] = []
    failed = False

    def handle(value: bytes) -> None:
        nonlocal failed
        if value == b"0" and not failed:
            failed = True
            raise ValueError
        order.append(value)

    consume(handle, order="none", retry=Retry(5, first_delay_s=0.05, jitter=0))
    assert len(order) == 20
    assert order[-1] == b"0"


def test_the_circuit_breaker_keeps_a_run_of_failures_out_of_the_dead_letters(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", 50)
    down_for = 30
    seen: set[bytes] = set()

    def handle(value: bytes) -> None:
        nonlocal down_for
        if down_for:
            down_for -= 1
            raise ConnectionError("the database is away")
        seen.add(value)

    consume(handle, retry=Retry(1), breaker=CircuitBreaker(after=3, pause_s=0.005, max_pause_s=0.01))
    letters = letters_of(streams)
    assert len(letters) <= 2
    assert len(seen) + len(letters) == 50


def test_a_restart_goes_on_behind_what_is_finished(fill: Fill, consume: Consume) -> None:
    fill("orders", 5)
    seen: list[bytes] = []
    consume(seen.append)
    fill("orders", [b"new"])
    consume(seen.append)
    assert seen == [b"0", b"1", b"2", b"3", b"4", b"new"]


def test_a_restart_repeats_nothing_that_finished_beyond_a_stuck_record(
    fill: Fill, streams: MemoryStream, store: MemoryCheckpoints
) -> None:
    fill("orders", 100)
    seen: list[bytes] = []
    app = App(streams, group="group", checkpoints=store)

    @app.handle("orders", order="none", workers=2, retry=Retry(100, first_delay_s=60))
    def handle(value: bytes) -> None:
        if value == b"7":
            if len(seen) >= 90:
                app.stop()
            raise ValueError("stuck")
        seen.append(value)
        if len(seen) == 99:
            app.stop()

    app.run()
    checkpoint = store.load(CheckpointKey("group", "orders", 0))
    assert checkpoint is not None
    assert (checkpoint.start, checkpoint.next, checkpoint.finished) == (7, 100, ((8, 100),))
    again: list[bytes] = []
    second = App(streams, group="group", checkpoints=store)
    second.handle("orders", end="latest", order="none")(again.append)
    second.run()
    assert again == [b"7"]


def test_at_most_once_never_calls_a_handler_twice(streams: MemoryStream, fill: Fill, consume: Consume) -> None:
    fill("orders", 10)
    calls: Counter[bytes] = Counter()

    def handle(value: bytes) -> None:
        calls[value] += 1
        if value == b"3":
            raise ValueError

    consume(handle, guarantee="at-most-once")
    consume(handle, guarantee="at-most-once")
    assert set(calls.values()) == {1}
    assert len(letters_of(streams)) == 1


def test_state_is_kept_by_key_and_survives_a_restart(fill: Fill, consume: Consume) -> None:
    totals: dict[bytes, int] = {}

    def count(record: Record, ctx: Context) -> None:
        ctx.state["seen"] = ctx.state.get("seen", 0) + 1
        totals[record.key or b""] = ctx.state["seen"]

    fill("orders", 20, keys=2)
    consume(count, order="key", workers=2)
    fill("orders", 20, keys=2)
    consume(count, order="key", workers=2)
    assert totals == {b"0": 20, b"1": 20}


def test_state_of_a_failed_attempt_is_forgotten(fill: Fill, consume: Consume) -> None:
    fill("orders", 5, keys=1)
    failed = False
    last = 0

    def count(value: bytes, ctx: Context) -> None:
        nonlocal failed, last
        ctx.state["seen"] = last = ctx.state.get("seen", 0) + 1
        if value == b"2" and not failed:
            failed = True
            raise ValueError

    consume(count, retry=AT_ONCE)
    assert last == 5


def test_results_go_to_the_topic_that_is_declared_for_them(streams: MemoryStream, fill: Fill, consume: Consume) -> None:
    fill("orders", 10)

    def double(value: int) -> int:
        return value * 2

    consume(double, to="doubled")
    records = streams.open_topic("doubled").read(0, 0, 100, 1)
    assert [record.value for record in records] == [str(number * 2).encode() for number in range(10)]


def test_a_batch_handler_gets_lists_and_a_poisoned_one_is_found(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", 25)
    seen: list[bytes] = []
    sizes: list[int] = []

    def handle(values: list[bytes]) -> None:
        if b"13" in values:
            raise ValueError("one of them is bad")
        sizes.append(len(values))
        seen.extend(values)

    consume(handle, batch=10, retry=Retry(2, first_delay_s=0))
    assert sorted(map(int, seen)) == [number for number in range(25) if number != 13]
    assert max(sizes) == 10
    (letter,) = letters_of(streams)
    assert letter.record.value == b"13"


def test_duplicates_under_one_idempotency_key_are_handled_once(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", [b"a", b"b", b"a", b"c", b"a", b"b"])
    seen: list[bytes] = []

    def handle(record: Record, ctx: Context) -> None:
        assert ctx.idempotency_key == (record.value or b"").decode()
        seen.append(record.value or b"")

    def id_of(record: Record) -> str:
        return (record.value or b"").decode()

    consume(handle, guarantee="exactly-once", idempotency_key=id_of, order="none", workers=3)
    fill("orders", [b"c", b"d"])
    consume(handle, guarantee="exactly-once", idempotency_key=id_of, order="none", workers=3)
    assert sorted(seen) == [b"a", b"b", b"c", b"d"]


def test_records_deleted_before_they_were_read_stop_the_consumer_by_default(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", 5)
    seen: list[bytes] = []
    consume(seen.append)
    fill("orders", 10)
    streams.expire("orders", 0, 9)
    with pytest.raises(OffsetOutOfRangeError, match="deleted by retention"):
        consume(seen.append)
    consume(seen.append, on_expired="earliest")
    assert len(seen) == 5 + 6


def test_a_run_that_ends_by_itself_does_not_wait_for_a_missing_topic(consume: Consume) -> None:
    with pytest.raises(UnknownTopicError, match="nowhere"):
        consume(lambda value: None, topic="nowhere")


def test_a_record_that_hangs_is_given_to_another_worker(fill: Fill, consume: Consume) -> None:
    fill("orders", 10)
    free = threading.Event()
    calls: Counter[bytes] = Counter()

    def handle(value: bytes) -> None:
        calls[value] += 1
        if value == b"3" and calls[value] == 1:
            free.wait(30)

    consume(handle, order="none", workers=2, visibility_s=0.1, retry=Retry(5, first_delay_s=0), drain_s=0.1)
    free.set()
    assert calls[b"3"] == 2
    assert len(calls) == 10


def test_a_range_is_replayed_by_a_second_group_into_another_place(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    from penstock.model import Position

    fill("orders", 20)
    consume(lambda value: None)
    replayed: list[bytes] = []
    consume(replayed.append, group="replay", start=Position.at_pointer(5), end=Position.at_pointer(12))
    assert replayed == [str(number).encode() for number in range(5, 12)]


def test_a_consumer_can_be_moved_while_it_runs(streams: MemoryStream, fill: Fill, store: MemoryCheckpoints) -> None:
    fill("orders", 10)
    seen: list[bytes] = []
    app = App(streams, group="group", checkpoints=store)

    @app.handle("orders")
    def handle(value: bytes) -> None:
        seen.append(value)
        if value == b"9" and len(seen) == 10:
            consumer = app.consumers[0]
            assert isinstance(consumer, HandlerConsumer)
            consumer.seek(0, 7)
        elif value == b"9":
            app.stop()

    app.run()
    assert seen[10:] == [b"7", b"8", b"9"]


@pytest.mark.parametrize("order", ["none", "key", "partition"])
def test_outputs_that_cannot_be_sent_fail_their_record_alone(
    streams: MemoryStream, fill: Fill, consume: Consume, order: OrderChoice
) -> None:
    fill("orders", 30)

    def handle(value: bytes) -> NewRecord:
        return NewRecord("out", value, partition=99 if value == b"1" else 0)

    consume(handle, retry=Retry(2, first_delay_s=0), order=order)
    (letter,) = letters_of(streams)
    assert letter.record.value == b"1"
    sent = {record.value for record in streams.open_topic("out").read(0, 0, 1000, 1)}
    assert sent == {str(number).encode() for number in range(30)} - {b"1"}


def test_a_run_to_the_end_waits_for_the_partition_of_a_member_that_died(
    store: MemoryCheckpoints, consume: Consume
) -> None:
    streams = MemoryStream(partitions=2)
    for number in range(10):
        record = NewRecord("orders", str(number).encode(), partition=number % 2)
        streams.open_topic("orders").append([record])[0].result(10)
    name = CheckpointKey("group", "orders", 0).lease_name
    assert store.claim("group", name, "somebody who died", None) is not None
    seen: list[bytes] = []
    app = App(streams, group="group", checkpoints=store)
    app.handle("orders", end="latest", session_timeout_s=0.3)(seen.append)
    app.run()
    assert sorted(seen) == [str(number).encode() for number in range(10)]
