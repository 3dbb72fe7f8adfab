"""Handlers of queues: what is done is settled, what failed is delivered again, and all else is as with streams."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.abc import Delivery, Features, Outcome
from penstock.app import App
from penstock.consuming import CircuitBreaker, Context, Retry
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import (
    BrokerUnavailableError,
    GuaranteeError,
    HandlerError,
    Reject,
    StoreUnavailableError,
)
from penstock.model import DeadLetter, DeadLetterFilter, NewRecord
from penstock.observe.metrics import registry
from penstock.queues import MemoryQueue, open_queue
from penstock.serde import Topic
from penstock.streams.memory import MemoryStream
from tests.consuming.eventually import wait_until
from tests.consuming.queues_to_handle import ListQueue, RecordingQueue, put, running
from tests.observe.samples import Samples

QUICK = Retry(3, first_delay_s=0.01)


@pytest.fixture
def queue() -> RecordingQueue:
    return RecordingQueue()


@dataclass
class Job:
    number: int


def test_ten_lines_by_url_are_a_program() -> None:
    jobs = open_queue("memory:ten-lines")
    put(jobs, b'{"number": 1}', b'{"number": 2}')
    app = App(group="mailer")
    seen: list[Job] = []

    @app.handle("memory:ten-lines", retry=Retry(5))
    def mail(job: Job) -> None:
        seen.append(job)
        if len(seen) == 2:
            app.stop()

    app.run()
    assert seen == [Job(1), Job(2)]
    assert isinstance(jobs, MemoryQueue)
    assert len(jobs) == 0, "everything is settled when the app has stopped"


def test_workers_handle_records_at_the_same_time_and_each_is_settled_once(queue: RecordingQueue) -> None:
    put(queue, *(b"%d" % number for number in range(50)))
    together = threading.Barrier(4)
    seen: Counter[bytes] = Counter()
    app = App(group="g")

    @app.handle(queue, workers=4)
    def handle(value: bytes) -> None:
        if int(value) < 4:
            together.wait(20)
        seen[value] += 1

    with running(app):
        wait_until(lambda: not len(queue))
    assert seen == Counter(b"%d" % number for number in range(50))
    assert Counter(outcome for _, outcome, _ in queue.settled) == {Outcome.DONE: 50}


def test_async_handlers_run_together_in_one_event_loop(queue: RecordingQueue) -> None:
    put(queue, b"1", b"2", b"3")
    app = App(group="g")
    loops: set[int] = set()
    waiting: list[asyncio.Event] = []

    @app.handle(queue, workers=3)
    async def handle(value: bytes) -> None:
        loops.add(id(asyncio.get_running_loop()))
        mine = asyncio.Event()
        waiting.append(mine)
        if len(waiting) == 3:
            for each in waiting:
                each.set()
        await asyncio.wait_for(mine.wait(), 20)

    with running(app):
        wait_until(lambda: not len(queue))
    assert len(loops) == 1


def test_a_failure_is_delivered_again_by_the_queue_after_a_backoff_that_grows(queue: RecordingQueue) -> None:
    put(queue, b"bad", b"good")
    app = App(group="g")
    attempts: list[int] = []

    @app.handle(queue, retry=Retry(4, first_delay_s=0.02, factor=2.0, jitter=0.0))
    def handle(value: bytes, ctx: Context) -> None:
        if value == b"bad":
            attempts.append(ctx.attempt)
            if ctx.attempt < 4:
                raise ValueError("not yet")

    with running(app):
        wait_until(lambda: not len(queue))
    assert attempts == [1, 2, 3, 4]
    assert [(outcome, delay_s) for value, outcome, delay_s in queue.settled if value == b"bad"] == [
        (Outcome.RETRY, 0.02),
        (Outcome.RETRY, 0.04),
        (Outcome.RETRY, 0.08),
        (Outcome.DONE, 0.0),
    ]
    (consumer,) = app.consumers
    assert (consumer.counts.succeeded, consumer.counts.failed, consumer.counts.retried) == (2, 3, 3)


def test_another_app_may_get_the_retry(queue: RecordingQueue) -> None:
    put(queue, b"job")
    failed = threading.Event()
    attempts: list[tuple[str, int]] = []
    apps = []
    for name in ("first", "second"):
        app = App(group=name)
        apps.append(app)

        @app.handle(queue.another(), retry=QUICK)
        def handle(value: bytes, ctx: Context) -> None:
            attempts.append((ctx.group, ctx.attempt))
            if ctx.group == "first":
                failed.set()
                raise ValueError("not here")

    with running(apps[0]):
        assert failed.wait(20)
        wait_until(lambda: attempts.count(("first", 1)))
        apps[0].stop()
        wait_until(lambda: not apps[0].health()[0].is_running)
    with running(apps[1]):
        wait_until(lambda: not len(queue))
    assert attempts[-1][0] == "second"
    assert attempts[-1][1] == len(attempts), "attempts are counted by the queue, whoever makes them"


def test_what_fails_for_good_is_a_dead_letter_with_its_attempts_and_the_error(
    queue: RecordingQueue, streams: MemoryStream
) -> None:
    queue.send([NewRecord("jobs", b"bad", b"key", (("h", b"1"),)), NewRecord("jobs", b"good")])
    app = App(streams, group="g")

    @app.handle(queue, retry=QUICK)
    def handle(value: bytes) -> None:
        if value == b"bad":
            raise ValueError("broken")

    with running(app):
        wait_until(lambda: not len(queue))
    (letter,) = open_dead_letters("jobs.dlq", streams).browse(DeadLetterFilter())
    assert (letter.record.value, letter.record.key, letter.record.headers) == (b"bad", b"key", (("h", b"1"),))
    assert (letter.attempts, letter.error, letter.group) == (3, "ValueError: broken", "g")
    assert "raise ValueError" in letter.traceback
    assert queue.outcomes(b"bad") == ["retry", "retry", "reject"]


def test_without_a_stream_dead_letters_go_where_the_queue_keeps_them(queue: RecordingQueue) -> None:
    put(queue, b"bad")
    app = App(group="g")

    @app.handle(queue)
    def handle(value: bytes) -> None:
        raise Reject("nonsense")

    with running(app):
        wait_until(lambda: not len(queue))
    assert [record.value for record in queue.rejected] == [b"bad"]
    assert queue.outcomes(b"bad") == ["reject"], "rejected at once"
    assert app.consumers[0].counts.exhausted == 1


def test_dead_letters_may_be_anywhere_else(queue: RecordingQueue, tmp_path: Path) -> None:
    put(queue, b"bad", b"worse")
    app = App(group="g")

    @app.handle(queue, dead_letters=f"sqlite:{tmp_path / 'letters.db'}")
    def handle(value: bytes) -> None:
        raise Reject("nonsense")

    with running(app):
        wait_until(lambda: not len(queue))
    letters = open_dead_letters(f"sqlite:{tmp_path / 'letters.db'}")
    assert {letter.record.value for letter in letters.browse(DeadLetterFilter())} == {b"bad", b"worse"}
    letters.close()


def test_dead_letters_that_cannot_be_stored_keep_the_record_and_show_in_health(queue: RecordingQueue) -> None:
    class Closed:
        features: Features = frozenset()
        is_open = False
        letters: list[DeadLetter]

        def put(self, letters: Sequence[DeadLetter]) -> None:
            if not self.is_open:
                raise StoreUnavailableError("the disk is away")
            self.letters = list(letters)

        browse = count = take = settle = discard = close = lambda self, *given: None

    put(queue, b"bad")
    app, letters = App(group="g"), Closed()

    @app.handle(queue, dead_letters=letters)  # type: ignore[arg-type]
    def handle(value: bytes) -> None:
        raise Reject("nonsense")

    with running(app):
        wait_until(lambda: [each.problems for each in app.health()] == [("the disk is away",)])
        assert len(queue) == 1
        letters.is_open = True
        wait_until(lambda: not len(queue))
    assert [letter.record.value for letter in letters.letters] == [b"bad"]


def test_without_dead_letters_the_app_stops_and_the_record_stays(queue: RecordingQueue) -> None:
    put(queue, b"bad")
    app = App(group="g")
    app.handle(queue, dead_letters=False, retry=1)(lambda value: 1 / 0)
    with pytest.raises(penstock.PenstockError, match="could not handle jobs-0 at offset 0: ZeroDivisionError"):
        app.run()
    assert len(queue) == 1
    assert queue.receive(1, 0.0), "it was returned at once"


def test_a_programming_error_stops_the_app_and_no_record_is_given_up(queue: RecordingQueue) -> None:
    put(queue, b"1")
    app = App(group="g")

    @app.handle(queue)
    def handle(value: bytes, ctx: Context) -> None:
        ctx.state["count"] = 1

    with pytest.raises(HandlerError, match=r"ctx\.state needs order"):
        app.run()
    assert (len(queue), queue.rejected) == (1, [])


def test_a_handler_slower_than_the_visibility_timeout_keeps_its_record() -> None:
    queue = RecordingQueue(visibility_timeout_s=0.6)
    put(queue, b"slow", b"waits")
    app = App(group="g")
    calls: list[bytes] = []

    @app.handle(queue)
    def handle(value: bytes) -> None:
        calls.append(value)
        if value == b"slow":
            wait_until(lambda: queue.extended[b"slow"] >= 6)  # twice the visibility timeout

    with running(app):
        wait_until(lambda: not len(queue))
        assert app.consumers[0].stale == 0  # type: ignore[union-attr]
    assert calls == [b"slow", b"waits"]
    assert queue.extended[b"waits"] >= 6, "what waits for a worker is extended, too"


def test_an_extension_that_fails_is_made_again() -> None:
    class Breaks(RecordingQueue):
        failures = 1

        def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
            if self.failures:
                self.failures -= 1
                raise OSError("the connection broke")
            return super().extend(deliveries)

    queue = Breaks(visibility_timeout_s=1.5)
    put(queue, b"slow")
    app = App(group="g")
    calls: list[bytes] = []

    @app.handle(queue)
    def handle(value: bytes) -> None:
        calls.append(value)
        wait_until(lambda: queue.extended[b"slow"] >= 3)

    with running(app):
        wait_until(lambda: not len(queue))
    assert (calls, queue.failures) == ([b"slow"], 0)


def test_a_handler_that_takes_longer_than_visibility_s_loses_its_record_to_another(queue: RecordingQueue) -> None:
    put(queue, b"hangs")
    app = App(group="g")
    free = threading.Event()
    attempts: list[int] = []

    @app.handle(queue, visibility_s=0.2, retry=QUICK)
    def handle(value: bytes, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            assert free.wait(30)

    with running(app):
        wait_until(lambda: not len(queue))
        free.set()
    assert attempts == [1, 2]
    assert queue.outcomes(b"hangs") == ["retry", "done"]


def test_a_middleware_wraps_each_call(queue: RecordingQueue) -> None:
    put(queue, b"1")
    around: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def middleware(ctx: Context) -> Iterator[None]:
        around.append(("before", ctx.attempt))
        try:
            yield
        finally:
            around.append(("after", ctx.attempt))

    app = App(group="g", middlewares=[middleware])

    @app.handle(queue, retry=QUICK)
    def handle(value: bytes, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")

    with running(app):
        wait_until(lambda: not len(queue))
    assert around == [("before", 1), ("after", 1), ("before", 2), ("after", 2)]


def test_results_go_to_a_topic_before_the_record_is_settled(queue: RecordingQueue, streams: MemoryStream) -> None:
    put(queue, b"1", b"2")
    bills = Topic("bills", partitions=3)
    app = App(streams, group="g")

    @app.handle(queue, to=bills)
    def handle(value: bytes) -> bytes:
        return b"bill " + value

    with running(app):
        wait_until(lambda: not len(queue))
    opened = streams.open_topic("bills")
    assert len(opened.partitions()) == 3, "the topic is created as declared"
    written = [record.value for partition in opened.partitions() for record in opened.read(partition, 0, 10, 0.0)]
    assert sorted(map(bytes, filter(None, written))) == [b"bill 1", b"bill 2"]


def test_results_go_to_another_queue(queue: RecordingQueue) -> None:
    put(queue, b"1", b"2")
    app = App(group="g")

    @app.handle(queue, to="memory:bills")
    def handle(value: bytes) -> bytes | None:
        return b"bill " + value if value == b"1" else None

    bills = open_queue("memory:bills")
    with running(app):
        wait_until(lambda: not len(queue))
    (delivery,) = bills.receive(5, 0.0)
    assert delivery.record.value == b"bill 1"


def test_results_of_a_topic_go_to_a_queue(streams: MemoryStream, fill: Callable[..., None]) -> None:
    fill("orders", 3)
    jobs = MemoryQueue(name="jobs")
    app = App(streams, group="g", checkpoints="memory:")
    app.handle("orders", to=jobs)(lambda value: value)
    app.run(end="latest")
    assert sorted(bytes(each.record.value or b"") for each in jobs.receive(5, 0.0)) == [b"0", b"1", b"2"]
    with pytest.raises(GuaranteeError, match="not a topic of the stream that is read"):
        app.handle("others", to=jobs, guarantee="exactly-once")


def test_records_of_a_queue_may_emit_tasks(queue: RecordingQueue) -> None:
    put(queue, b"1")
    app = App(group="g")
    checked: list[bytes] = []

    @app.handle(queue)
    def handle(value: bytes, ctx: Context) -> None:
        ctx.emit("check", value)

    @app.stage("check")
    def check(value: bytes) -> None:
        assert len(queue) == 1, "settled before its task has ended"
        checked.append(value)

    with running(app):
        wait_until(lambda: not len(queue))
    assert checked == [b"1"]


def test_the_breaker_pauses_handling_and_keeps_the_records(queue: RecordingQueue) -> None:
    put(queue, *(b"%d" % number for number in range(8)))
    app = App(group="g")
    is_broken = threading.Event()
    is_broken.set()
    seen: Counter[bytes] = Counter()

    @app.handle(queue, retry=1, breaker=CircuitBreaker(after=3, pause_s=0.1, max_pause_s=0.1))
    def handle(value: bytes) -> None:
        seen[value] += 1
        if is_broken.is_set():
            raise OSError("the database is away")

    with running(app):
        wait_until(lambda: app.health() and any("the circuit is" in each for each in app.health()[0].problems))
        assert len(queue.rejected) == 2, "those before the third in a row were given up"
        is_broken.clear()
        wait_until(lambda: not len(queue))
        wait_until(lambda: app.health()[0].is_healthy)
    assert len(queue.rejected) == 2
    assert set(seen) == {b"%d" % number for number in range(8)}


def test_stopping_lets_the_running_handler_finish_and_returns_the_rest_uncounted(queue: RecordingQueue) -> None:
    put(queue, b"1", b"2", b"3")
    app = App(group="g")
    entered, free = threading.Event(), threading.Event()

    @app.handle(queue, in_flight=3)
    def handle(value: bytes) -> None:
        entered.set()
        assert free.wait(20)

    thread = app.start()
    assert entered.wait(20)
    app.stop()
    wait_until(lambda: [each.in_flight for each in app.health()[0].partitions] == [1])  # the others are dropped
    free.set()
    thread.join(20)
    assert not thread.is_alive()
    assert queue.outcomes(b"1") == ["done"]
    left = queue.receive(5, 0.0)
    assert [(each.record.value, each.attempt) for each in left] == [(b"2", 1), (b"3", 1)]


def test_no_more_than_in_flight_records_are_held(queue: RecordingQueue) -> None:
    put(queue, *(b"%d" % number for number in range(20)))
    app = App(group="g")
    entered, free = threading.Semaphore(0), threading.Event()

    @app.handle(queue, workers=2, in_flight=3)
    def handle(value: bytes) -> None:
        entered.release()
        assert free.wait(20)

    with running(app):
        assert entered.acquire(timeout=20)
        assert entered.acquire(timeout=20)
        wait_until(lambda: app.health()[0].partitions[0].in_flight == 3)
        others = queue.another()
        assert len(others.receive(20, 0.0)) == 17
        others.close()
        free.set()
        wait_until(lambda: not len(queue))


def test_metrics_and_health_show_a_queue(queue: RecordingQueue) -> None:
    put(queue, b"good", b"bad")
    app = App(group="metered")
    entered, free = threading.Event(), threading.Event()

    @app.handle(queue, retry=QUICK)
    def handle(value: bytes) -> None:
        if value == b"bad":
            raise Reject("nonsense")
        entered.set()
        assert free.wait(20)

    labels = {"group": "metered", "topic": "jobs", "handler": handle.__qualname__}
    with running(app):
        assert entered.wait(20)
        (health,) = app.health()
        assert (health.topic, health.group, health.is_healthy, health.lag) == ("jobs", "metered", True, 2)
        assert health.partitions[0].in_flight == 2
        assert Samples(registry())("penstock_consumer_in_flight_records", **labels) == 2
        put(queue, b"good", b"good")
        assert Samples(registry())("penstock_consumer_lag_records", **labels) == 4
        assert app.health()[0].partitions[0].waiting == 2, "in_flight is 2: nothing more is received"
        free.set()
        wait_until(lambda: not len(queue))
    samples = Samples(registry())
    assert samples("penstock_consumer_records_total", **labels, outcome="succeeded") == 3
    assert samples("penstock_consumer_dead_letters_total", **labels) == 1


def test_a_queue_that_is_away_is_asked_again(queue: RecordingQueue) -> None:
    class Away(RecordingQueue):
        is_away = True

        def receive(self, limit: int, wait_s: float) -> Any:
            if self.is_away:
                raise BrokerUnavailableError("nobody answers")
            return super().receive(limit, wait_s)

    away = Away()
    put(away, b"1")
    app = App(group="g")
    app.handle(away)(lambda value: None)
    with running(app):
        wait_until(lambda: [each.problems for each in app.health()] == [("nobody answers",)])
        away.is_away = False
        wait_until(lambda: not len(away))


def test_earlier_deliveries_are_no_failed_attempts_where_the_queue_does_not_count_those() -> None:
    class Redelivered(ListQueue):
        def receive(self, limit: int, wait_s: float) -> Sequence[ListQueue.Taken]:
            return [replace(taken, attempt=7) for taken in super().receive(limit, wait_s)]

    queue = Redelivered()
    queue.send([NewRecord("list", b"1")])
    calls: list[int] = []
    app = App(group="g")

    @app.handle(queue, retry=Retry(3, first_delay_s=0.001), dead_letters=False)
    def handle(value: bytes, ctx: Context) -> None:
        calls.append(ctx.attempt)
        if len(calls) < 3:
            raise ValueError("not yet")

    with running(app):
        wait_until(lambda: queue.outcomes == [(b"1", "done")])
    assert calls == [1, 2, 3]


class Forgetful(RecordingQueue):
    """Cannot settle, the first times."""

    failures = 3
    retriable = True

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailableError("the connection broke", retriable=self.retriable)
        super().settle(delivery, outcome, delay_s)


@pytest.mark.parametrize("outcome", ["done", "reject"])
def test_a_settle_that_fails_is_tried_again_and_the_record_is_handled_once(outcome: str) -> None:
    queue = Forgetful(visibility_timeout_s=0.3)  # shorter than the attempts take: what is not settled is extended
    put(queue, b"1", b"2", b"3")
    app = App(group="g")
    handled: Counter[bytes] = Counter()

    @app.handle(queue, in_flight=2)
    def handle(value: bytes) -> None:
        handled[value] += 1
        if outcome == "reject":
            raise Reject("not today")

    with running(app):
        wait_until(lambda: not len(queue))
    assert handled == {b"1": 1, b"2": 1, b"3": 1}
    assert {(value, str(each)) for value, each, _ in queue.settled} == {(v, outcome) for v in (b"1", b"2", b"3")}


def test_while_nothing_can_be_settled_no_more_is_received_and_health_says_why() -> None:
    queue = Forgetful()
    queue.failures = 1_000_000
    put(queue, *(b"%d" % number for number in range(50)))
    app = App(group="g")
    seen: list[bytes] = []
    app.handle(queue, in_flight=4)(seen.append)
    with running(app):
        wait_until(lambda: "cannot be settled; trying again: the connection broke" in str(app.health()))
        wait_until(lambda: queue.failures < 1_000_000 - 3)
        assert len(seen) <= 8, "those that were being handled when settling failed, and no more"
        queue.failures = 0
        wait_until(lambda: not len(queue))
    assert Counter(seen) == {b"%d" % number: 1 for number in range(50)}
    assert all(not each.problems for each in app.health())


def test_a_settle_that_cannot_succeed_leaves_the_record_to_the_queue() -> None:
    queue = Forgetful(visibility_timeout_s=0.3)
    queue.failures, queue.retriable = 1, False
    put(queue, b"1")
    app = App(group="g")
    attempts: list[int] = []

    @app.handle(queue)
    def handle(value: bytes, ctx: Context) -> None:
        attempts.append(ctx.attempt)

    with running(app):
        wait_until(lambda: not len(queue))
    assert attempts == [1, 2]


def test_an_app_that_stops_while_nothing_can_be_settled_does_not_wait_for_it() -> None:
    queue = Forgetful(visibility_timeout_s=0.3)
    queue.failures = 1_000_000
    put(queue, b"1")
    app = App(group="g")
    seen: list[bytes] = []
    app.handle(queue)(seen.append)
    with running(app):
        wait_until(lambda: "trying again" in str(app.health()))
    assert seen == [b"1"]
    queue.failures = 0
    assert [each.record.value for each in queue.receive(10, 5.0)] == [b"1"], "it is delivered again"


def test_a_record_that_is_not_due_waits_in_the_queue_and_the_wait_is_not_counted(queue: RecordingQueue) -> None:
    jobs = Topic("jobs")
    queue.send([jobs.new_record(b"later", delay_s=0.5), jobs.new_record(b"now")])
    app = App(group="g")
    seen: list[tuple[bytes, int]] = []

    @app.handle(queue)
    def handle(value: bytes, ctx: Context) -> None:
        seen.append((value, ctx.attempt))

    with running(app):
        wait_until(lambda: not len(queue))
    assert seen == [(b"now", 1), (b"later", 1)]
    assert "release" in queue.outcomes(b"later")


def test_a_queue_of_ones_own_without_delays_is_retried_by_the_app_itself(streams: MemoryStream) -> None:
    queue = ListQueue()
    put(queue, b"bad", b"flaky", b"good")
    app = App(streams, group="g")
    attempts: dict[bytes, list[int]] = {}

    @app.handle(queue, workers=2, retry=QUICK)
    def handle(value: bytes, ctx: Context) -> None:
        attempts.setdefault(value, []).append(ctx.attempt)
        if value == b"bad" or (value == b"flaky" and ctx.attempt < 3):
            raise ValueError("no")

    with running(app):
        wait_until(lambda: len(queue.outcomes) == 3)
    assert attempts == {b"bad": [1, 2, 3], b"flaky": [1, 2, 3], b"good": [1]}
    assert sorted(queue.outcomes) == [(b"bad", "reject"), (b"flaky", "done"), (b"good", "done")]
    (letter,) = open_dead_letters("list.dlq", streams).browse(DeadLetterFilter())
    assert (letter.record.value, letter.attempts) == (b"bad", 3)


def test_a_delivery_that_expired_is_counted_and_its_record_comes_again() -> None:
    queue = ListQueue()
    queue.loses = {b"1"}
    put(queue, b"1")
    app = App(group="g")
    calls: list[bytes] = []
    app.handle(queue, dead_letters=False)(calls.append)
    with running(app):
        wait_until(lambda: queue.outcomes)
        assert app.consumers[0].stale == 1  # type: ignore[union-attr]
    assert calls == [b"1", b"1"]
