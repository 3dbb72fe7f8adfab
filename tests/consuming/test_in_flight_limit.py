"""How many records are in flight where the members of a group divide single records."""

from __future__ import annotations

import threading

from penstock.app import App
from penstock.consuming.counts import Counts
from penstock.consuming.loop.reading import InFlightLimit
from penstock.model import NewRecord
from penstock.testing import MemoryStream, VirtualClock
from tests.consuming.eventually import wait_until


def handled_in(limit: InFlightLimit, counts: Counts, clock: VirtualClock, records: int, seconds: float) -> int:
    counts.succeeded += records
    clock.advance(seconds)
    limit.update()
    return limit.now


def test_fast_handlers_get_what_they_handle_in_a_tenth_of_a_second() -> None:
    counts, clock = Counts(), VirtualClock()
    limit = InFlightLimit(20, 500, counts, clock)
    assert limit.now == 20
    assert handled_in(limit, counts, clock, 1_000, 0.5) == 200
    assert handled_in(limit, counts, clock, 100_000, 1.0) == 500
    assert handled_in(limit, counts, clock, 3, 1.0) == 20


def test_a_limit_below_the_least_is_kept() -> None:
    counts, clock = Counts(), VirtualClock()
    limit = InFlightLimit(20, 3, counts, clock)
    assert limit.now == 3
    assert handled_in(limit, counts, clock, 100_000, 1.0) == 3


def test_a_member_with_slow_handlers_leaves_records_to_others(streams: MemoryStream) -> None:
    streams.open_topic("jobs").append([NewRecord("jobs", b"%d" % number) for number in range(100)])
    app = App(streams, group="workers")
    go_on = threading.Event()

    @app.handle("jobs", shared=True, workers=1)
    def work(value: bytes) -> None:
        go_on.wait(20)

    thread = app.start()
    try:
        wait_until(lambda: bool(app.consumers) and app.consumers[0].counts.assigned == 1)
        wait_until(lambda: app.consumers[0].store.checkpoints("workers") != {})  # type: ignore[union-attr]
        wait_until(lambda: next(iter(app.consumers[0].store.checkpoints("workers").values())).next == 20)  # type: ignore[union-attr]
    finally:
        go_on.set()
        app.stop()
        thread.join(20)


def test_records_whose_reports_are_processed_together_are_each_handled_and_settled_once(streams: MemoryStream) -> None:
    count = 2_000
    streams.open_topic("jobs").append([NewRecord("jobs", b"%d" % number) for number in range(count)])
    app = App(streams, group="workers")
    handled: list[bytes] = []

    @app.handle("jobs", shared=True, workers=4, retry=3)
    def work(value: bytes) -> None:
        handled.append(value)
        if int(value) % 100 == 7 and handled.count(value) == 1:
            raise ValueError(value)

    thread = app.start()
    try:
        wait_until(lambda: len(set(handled)) == count and len(handled) == count + count // 100)
        consumer = app.consumers[0]
        wait_until(lambda: consumer.counts.succeeded == count)
        assert consumer.counts.failed == count // 100
        wait_until(
            lambda: all(each.start == count for each in consumer.store.checkpoints("workers").values())  # type: ignore[union-attr]
        )
    finally:
        app.stop()
        thread.join(20)
