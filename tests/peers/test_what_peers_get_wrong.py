"""What other libraries get wrong, each as a test that we do not.

The failures are described in our own words, as they were observed in those libraries or told by their documentation.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

import penstock
from penstock.app import App
from penstock.checkpoints.format import encode_checkpoint
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.consuming import CircuitBreaker, Consumer, Retry
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.errors import ConfigError, OffsetOutOfRangeError, StoreUnavailableError
from penstock.model import CheckpointKey, DeadLetterFilter, HistoryEntry, NewRecord, Position, Record, Status
from penstock.producing import Producer
from penstock.producing.spooling import Spool
from penstock.streams.memory import MemoryStream
from penstock.streams.url import LOG_CHECKPOINTS
from penstock.testing.faulty import FaultyLetters
from tests.clients.names import fresh
from tests.consuming.eventually import wait_until
from tests.peers.dying_handlers import DIES, GROUP, Notes, checkpoints, finish_some, handle, in_a_process, numbers
from tests.seeds import seed_of

QUICK: Final[dict[str, Any]] = {"session_timeout_s": 6.0, "commit_interval_s": 0.05}


def test_unistream_a_crash_inside_a_handler_neither_loses_the_record_nor_wedges_the_consumer(tmp_path: Path) -> None:
    """unistream: a record that was in progress when its process died is skipped by the next one, for ever, and what
    comes behind it waits for it."""
    assert in_a_process(handle, tmp_path, 20, 1, 7, None, {}) == DIES
    assert 7 not in Notes(tmp_path).read()
    assert in_a_process(handle, tmp_path, 20, 1, None, None, {}) == 0
    assert set(Notes(tmp_path).read()) == set(range(20))
    checkpoint = checkpoints(tmp_path).load(CheckpointKey(GROUP, "orders", 0))
    assert checkpoint is not None
    assert (checkpoint.start, checkpoint.next) == (20, 20)


def test_unistream_a_crash_between_saving_the_checkpoint_and_handling_the_batch_does_not_skip_the_batch(
    tmp_path: Path,
) -> None:
    """unistream: pointers are saved before the batch is handled, and a process that starts again takes the batch that
    they point behind for done."""
    assert in_a_process(handle, tmp_path, 20, 1, None, 1, {}) == DIES
    saved = checkpoints(tmp_path).load(CheckpointKey(GROUP, "orders", 0))
    assert saved is not None
    assert (saved.start, saved.next) == (0, 20), "the batch must have been noted, and not begun"
    assert Notes(tmp_path).read() == []
    assert in_a_process(handle, tmp_path, 20, 1, None, None, {}) == 0
    assert Notes(tmp_path).read() == list(range(20))


def test_unistream_a_rotated_and_torn_spool_is_opened_again_and_delivered(tmp_path: Path) -> None:
    """unistream: a write-ahead log that was rotated, or whose last write was cut, cannot be opened any more."""
    spool = Spool(tmp_path / "outbox", segment_bytes=500)
    for number in range(50):
        spool.put([NewRecord("orders", str(number).encode())])
    spool.close()
    segments = sorted((tmp_path / "outbox").glob("*.log"))
    assert len(segments) > 2, "it must have been rotated"
    segments[-1].write_bytes(segments[-1].read_bytes()[:-3])
    streams = MemoryStream(partitions=1)
    with Producer(streams, buffer=f"spool:{tmp_path / 'outbox'}") as producer:
        producer.send("orders", b"new")
        producer.flush(timeout_s=20)
    delivered = [record.value for record in streams.open_topic("orders").read(0, 0, 100, 0)]
    assert delivered == [*(str(number).encode() for number in range(49)), b"new"]


def test_unistream_flush_close_and_linger_are_there_and_hold() -> None:
    """unistream: nothing can be flushed or closed, and every record is a request of its own."""
    streams = MemoryStream(partitions=1)
    producer = Producer(streams, linger_ms=60_000)
    receipts = [producer.send("orders", str(number)) for number in range(10)]
    assert not any(receipt.done for receipt in receipts), "they must linger: a minute has not passed"
    producer.flush(timeout_s=20)
    assert all(receipt.done for receipt in receipts)
    last = producer.send("orders", "last")
    assert not last.done
    producer.close()
    assert last.result(0).offset == 10
    with pytest.raises(penstock.PenstockError, match="closed"):
        producer.send("orders", "too late")


def test_faststream_a_failing_record_is_not_read_again_in_a_hot_loop(
    tmp_path: Path, streams: MemoryStream, store: SqliteCheckpoints
) -> None:
    """FastStream: `nack` has the record read again at once, as often as the machine can."""
    fill(streams, 1)
    attempts_s: list[float] = []

    def fail(value: bytes) -> None:
        attempts_s.append(time.monotonic())
        raise ValueError("never")

    run(streams, store, fail, retry=Retry(4, first_delay_s=0.05, factor=2, jitter=0))
    waits_s = [later - sooner for sooner, later in itertools.pairwise(attempts_s)]
    assert len(waits_s) == 3
    assert all(wait_s >= least_s for wait_s, least_s in zip(waits_s, (0.05, 0.1, 0.2), strict=True)), waits_s


def test_faststream_the_record_behind_a_failed_one_is_not_handled_before_it(
    streams: MemoryStream, store: SqliteCheckpoints
) -> None:
    """FastStream: while a failed record is on its way back, the one behind it is handled."""
    fill(streams, 10)
    attempts: Counter[bytes] = Counter()
    done: list[bytes] = []

    def fail_at_first(value: bytes) -> None:
        attempts[value] += 1
        if value in (b"0", b"4") and attempts[value] < 3:
            raise ValueError("not yet")
        done.append(value)

    run(streams, store, fail_at_first, order="partition", workers=3, retry=Retry(5, first_delay_s=0.02))
    assert done == [str(number).encode() for number in range(10)]


@pytest.mark.parametrize("option", [{"wokers": 3}, {"max_poll_records": 10}, {"retries": 5}])
def test_faststream_options_that_are_not_honoured_are_refused(option: dict[str, Any], streams: MemoryStream) -> None:
    """FastStream: options that do nothing with the broker in use are taken without a word."""
    fill(streams, 1)
    (name,) = option
    with pytest.raises(ConfigError, match=name):
        App(streams, group="g").handle("orders", **option)
    with pytest.raises((ConfigError, TypeError), match=name):
        Consumer(streams, "orders", group="g", **option)
    with pytest.raises((ConfigError, TypeError), match=name):
        Producer(streams, **option)
    with pytest.raises((ConfigError, TypeError), match=name):
        penstock.connect("memory:", **option)


def test_faststream_an_option_that_says_nothing_with_the_others_is_refused(streams: MemoryStream) -> None:
    """FastStream: as above, for options that are known, and cannot be kept together with what else was chosen."""
    app = App(streams, group="g")
    with pytest.raises(ConfigError, match="visibility_s needs order='none'"):
        app.handle("orders", order="key", visibility_s=1)
    with pytest.raises(ConfigError, match="idempotency_key has no effect with at-most-once"):
        app.handle("orders", guarantee="at-most-once", idempotency_key="key")
    with pytest.raises(ConfigError, match="workers is an option of handlers"):
        Consumer(streams, "orders", group="g", workers=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="compression"):
        Producer(streams, compression="lz4")


def test_faust_an_exception_never_acknowledges(stream: penstock.Connection, tmp_path: Path) -> None:
    """Faust: the offset behind a record is committed when its agent has raised."""
    topic = fresh()
    stream.create_topic(topic)
    for number in range(6):
        stream.send(topic, str(number))
    stream.flush(30)
    app = App(stream, group=topic)
    failed = threading.Event()

    @app.handle(topic, retry=Retry(1000, first_delay_s=0.01, max_delay_s=0.05), **QUICK)
    def fail(value: bytes) -> None:
        if value == b"3":
            if app.consumers[0].history(0, 3):
                failed.set()  # that it has failed before is known, and saved
            raise ValueError("never")

    thread = app.start()
    assert failed.wait(30)
    app.stop()
    thread.join(30)
    assert committed(stream, topic) == 3
    seen: list[bytes] = []
    again = App(stream, group=topic)
    again.handle(topic, end="latest", **QUICK)(seen.append)
    again.run()
    assert seen == [b"3", b"4", b"5"]
    *failures, success = history(stream, topic, 3)
    assert failures
    assert {line.status for line in failures} == {Status.FAILED}
    assert (success.status, success.attempt) == (Status.SUCCEEDED, len(failures) + 1)


def test_faust_handlers_go_on_after_a_rebalance(stream: penstock.Connection) -> None:
    """Faust: agents die with an assignment that is taken from them, and do not come back with the next one."""
    topic = fresh()
    stream.create_topic(topic, partitions=4)
    seen: defaultdict[str, set[int]] = defaultdict(set)

    def member(name: str) -> App:
        app = App(stream, group=topic)
        app.handle(topic, **QUICK)(lambda record: seen[name].add(int(record.value)))
        return app

    def send(numbers: range) -> None:
        for number in numbers:
            stream.send(topic, str(number), partition=number % 4)
        stream.flush(30)

    one, two = member("one"), member("two")
    threads = [one.start()]
    send(range(40))
    wait_until(lambda: len(seen["one"]) == 40)
    threads.append(two.start())
    wait_until(lambda: [partitions_of(app) for app in (one, two)] == [2, 2])
    send(range(40, 80))
    wait_until(lambda: seen["one"] | seen["two"] == set(range(80)))
    assert seen["two"]
    one.stop()
    threads[0].join(30)
    send(range(80, 120))
    wait_until(lambda: seen["one"] | seen["two"] == set(range(120)))
    assert partitions_of(two) == 4
    two.stop()
    threads[1].join(30)
    assert not any(thread.is_alive() for thread in threads)


def test_quix_an_expired_offset_ends_the_consumer_or_is_passed_as_its_policy_says(stream: penstock.Connection) -> None:
    """Quix: a consumer whose next records were deleted stays alive, and reads nothing any more."""
    topic = fresh()
    stream.create_topic(topic)
    for number in range(20):
        stream.send(topic, str(number))
    stream.flush(30)
    first = App(stream, group=topic)
    first.handle(topic, end=Position.at_pointer(5), **QUICK)(lambda value: None)
    first.run()
    assert committed(stream, topic) == 5
    admin = AdminClient({"bootstrap.servers": stream.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 15)]).values()
    assert deleted.result(20).low_watermark == 15
    second = App(stream, group=topic)
    second.handle(topic, **QUICK)(lambda value: None)
    with pytest.raises(OffsetOutOfRangeError, match="deleted by retention"):
        second.run()
    assert not second.health()[0].is_healthy
    seen: list[bytes] = []
    third = App(stream, group=topic)
    third.handle(topic, on_expired="earliest", end="latest", **QUICK)(seen.append)
    third.run()
    assert seen == [str(number).encode() for number in range(15, 20)]
    (line,) = [line for line in history(stream, topic, 14) if line.status is Status.IGNORED]
    assert "deleted" in line.error


def test_quix_a_revoke_during_long_handlers_ends_within_its_budget_and_the_group_settles(
    stream: penstock.Connection,
) -> None:
    """Quix: a member that takes long to give its partitions back is thrown out, comes again, is asked to give back
    again, and so on, while nobody gets anything done."""
    topic = fresh()
    stream.create_topic(topic, partitions=2)
    for partition in (0, 1):
        stream.send(topic, "long", partition=partition)
    stream.flush(30)
    may_end = threading.Event()
    busy = threading.Semaphore(0)
    handled: defaultdict[str, Counter[tuple[int, bytes]]] = defaultdict(Counter)

    def member(name: str, handler: Callable[[Record], None]) -> App:
        app = App(stream, group=topic)

        @app.handle(topic, workers=2, revoke_s=0.3, drain_s=5, **QUICK)
        def note(record: Record) -> None:
            handler(record)
            handled[name][record.partition, record.value or b""] += 1

        return app

    def hang(record: Record) -> None:
        if record.value == b"long":
            busy.release()
            may_end.wait(60)

    one, two = member("one", hang), member("two", lambda record: None)
    threads = [one.start()]
    for _ in range(2):
        assert busy.acquire(timeout=30)
    began_s = time.monotonic()
    threads.append(two.start())
    wait_until(lambda: handled["two"])
    took_s = time.monotonic() - began_s
    assert took_s < 15, f"the second member had to wait {took_s:.1f} s for its share"
    assert [partitions_of(app) for app in (one, two)] == [1, 1]
    may_end.set()
    for partition in (0, 1):
        stream.send(topic, "next", partition=partition)
    stream.flush(30)
    both = {(0, b"next"), (1, b"next")}
    wait_until(lambda: both <= set(handled["one"]) | set(handled["two"]))
    assert [partitions_of(app) for app in (one, two)] == [1, 1], "it must have stayed as it was"
    for app in (one, two):
        app.stop()
    for thread in threads:
        thread.join(30)


def test_parallel_consumer_retries_end_and_there_are_dead_letters(
    streams: MemoryStream, store: SqliteCheckpoints, tmp_path: Path
) -> None:
    """parallel-consumer: a record that can never succeed is tried for ever, and there is no other place for it."""
    fill(streams, 5)
    attempts: Counter[bytes] = Counter()

    def fail(value: bytes) -> None:
        attempts[value] += 1
        if value == b"2":
            raise ValueError("never")

    letters = SqliteDeadLetters(tmp_path / "letters.db")
    run(streams, store, fail, order="none", workers=2, retry=Retry(4, first_delay_s=0), dead_letters=letters)
    assert attempts == Counter({b"0": 1, b"1": 1, b"2": 4, b"3": 1, b"4": 1})
    (letter,) = letters.browse(DeadLetterFilter())
    assert (letter.record.value, letter.attempts) == (b"2", 4)
    letters.close()


def test_parallel_consumer_a_completion_set_beyond_4_kilobytes_survives_a_kill(tmp_path: Path) -> None:
    """parallel-consumer: what is finished beyond the committed offset must fit into 4 KB of the offset's metadata; when
    it does not, it is not stored, and handled again after a restart."""
    count = 40_000
    chance = random.Random(seed_of())
    unfinished = frozenset({0, *(number for number in range(count) if chance.random() < 0.4)})
    assert in_a_process(finish_some, tmp_path, count, unfinished) == DIES
    store = checkpoints(tmp_path)
    checkpoint = store.load(CheckpointKey(GROUP, "orders", 0))
    assert checkpoint is not None
    assert len(encode_checkpoint(checkpoint)) > 4096
    again: list[int] = []
    app = App(numbers(count), group=GROUP, checkpoints=store)
    app.handle("orders", end="latest", **QUICK)(lambda value: again.append(int(value)))
    app.run()
    store.close()
    assert again == sorted(unfinished)


def test_arroyo_dead_letters_under_backpressure_drop_nothing(
    streams: MemoryStream, store: SqliteCheckpoints, tmp_path: Path
) -> None:
    """arroyo: records that may become dead letters are kept in a buffer of a fixed size; when it is too small, the
    oldest fall out of it and are gone."""
    fill(streams, 300)
    letters = FaultyLetters(SqliteDeadLetters(tmp_path / "letters.db"))
    letters.faults.fail("put", StoreUnavailableError("its disk is full"), times=2)
    letters.faults.delay("put", 0.002, times=None)

    def fail(value: bytes) -> None:
        raise ValueError("never")

    run(
        streams,
        store,
        fail,
        order="none",
        workers=2,
        in_flight=16,
        retry=Retry(1),
        breaker=CircuitBreaker(after=0),
        dead_letters=letters,
    )
    found = letters.browse(DeadLetterFilter(), limit=1000)
    assert sorted(int(letter.record.value or b"") for letter in found) == list(range(300))
    letters.close()


@pytest.mark.parametrize("dies_at", [None, 15])
def test_a_balanced_queue_reorders_after_a_failure_and_order_by_key_does_not(
    dies_at: int | None, tmp_path: Path
) -> None:
    """Consumers balanced on one queue: one of them fails while it handles m3, the other handles m4, then m3, then m5.
    With order by key, what belongs together is handled in its order, whoever fails and whoever handles it."""
    keys, count = 3, 60
    options: dict[str, Any] = {
        "order": "key",
        "workers": 2,
        "retry": Retry(5, first_delay_s=0.01),
        "commit_interval_s": 0.01,
    }
    if dies_at is None:
        app = App(numbers(count, keys), group=GROUP, checkpoints=checkpoints(tmp_path))
        failures: Counter[int] = Counter()

        @app.handle("orders", end="latest", **options)
        def fail_now_and_then(value: int) -> None:
            failures[value] += 1
            if value % 5 == 0 and failures[value] < 3:
                raise ValueError("not yet")
            Notes(tmp_path).add(value)

        app.run()
    else:
        assert in_a_process(handle, tmp_path, count, keys, dies_at, None, options) == DIES
        assert in_a_process(handle, tmp_path, count, keys, None, None, options) == 0
    done = Notes(tmp_path).read()
    for key in range(keys):
        of_key = [number for number in dict.fromkeys(done) if number % keys == key]
        assert of_key == list(range(key, count, keys))


def test_nobody_else_can_say_what_happened_to_a_record_of_an_earlier_batch(
    streams: MemoryStream, store: SqliteCheckpoints, tmp_path: Path
) -> None:
    """None of them keeps a history that can be asked for a record of a batch that is long finished."""
    fill(streams, 2_000)
    attempts: Counter[bytes] = Counter()

    def fail_once(value: bytes) -> None:
        attempts[value] += 1
        if value == b"700" and attempts[value] == 1:
            raise ValueError("not yet")

    run(streams, store, fail_once, in_flight=100, chunk=10, retry=Retry(3, first_delay_s=0))
    store.close()
    again = SqliteCheckpoints(tmp_path / "checkpoints.db")
    lines = again.history(CheckpointKey(GROUP, "orders", 0), 700)
    assert [(line.status, line.attempt, line.error) for line in lines] == [
        (Status.FAILED, 1, "ValueError: not yet"),
        (Status.SUCCEEDED, 2, ""),
    ]
    again.close()


@pytest.fixture
def streams() -> MemoryStream:
    return MemoryStream(partitions=1)


@pytest.fixture
def store(tmp_path: Path) -> SqliteCheckpoints:
    return checkpoints(tmp_path)


def fill(streams: MemoryStream, count: int) -> None:
    streams.open_topic("orders").append([NewRecord("orders", str(number).encode()) for number in range(count)])


def run(streams: MemoryStream, store: SqliteCheckpoints, handler: Callable[..., Any], **options: Any) -> None:
    app = App(streams, group=GROUP, checkpoints=store)
    app.handle("orders", end="latest", **options)(handler)
    app.run()


def partitions_of(app: App) -> int:
    return sum(len(health.partitions) for health in app.health())


def history(stream: penstock.Connection, group: str, pointer: int) -> Sequence[HistoryEntry]:
    """What happened to a record, for a group that is named like its topic, as anybody can look it up."""
    store = SqliteCheckpoints(Path(stream.url.removeprefix("log:")) / LOG_CHECKPOINTS)
    try:
        return store.history(CheckpointKey(group, group, 0), pointer)
    finally:
        store.close()


def committed(stream: penstock.Connection, group: str) -> int:
    """The offset that the broker shows for a group that is named like its topic."""
    admin = AdminClient({"bootstrap.servers": stream.bootstrap})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(group, 0)])
    (answer,) = admin.list_consumer_group_offsets([asked]).values()
    (place,) = answer.result(20).topic_partitions
    return int(place.offset)
