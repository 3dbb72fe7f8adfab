"""The metrics of a process: what its consumers, deadlines and producers have done, read when somebody asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

import penstock
from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming.health import Health
from penstock.errors import UnknownTopicError
from penstock.model import NewRecord
from penstock.model.observing import OBSERVED, Observed
from penstock.observe.metrics import registry
from penstock.observe.metrics.library import LIBRARY
from penstock.observe.metrics.totals import HealthChecks
from penstock.producing import Producer
from penstock.streams.memory import MemoryStream
from tests.consuming.eventually import wait_until
from tests.observe.samples import Samples, gained

RECORDS = "penstock_consumer_records_total"


@pytest.fixture
def streams() -> Iterator[MemoryStream]:
    found = MemoryStream(partitions=1)
    yield found
    found.close()


def fill(streams: MemoryStream, topic: str, count: int, keys: int | None = None) -> None:
    records = [
        NewRecord(topic, b"%d" % number, None if keys is None else b"%d" % (number % keys)) for number in range(count)
    ]
    for receipt in streams.open_topic(topic).append(records):
        receipt.result(10)


def app_of(streams: MemoryStream, group: str, **options: Any) -> App:
    return App(streams, group=group, checkpoints=MemoryCheckpoints(), **options)


def test_records_are_counted_by_their_outcome(streams: MemoryStream, tmp_path: Path) -> None:
    fill(streams, "orders", 10)
    app = app_of(streams, "outcomes")

    @app.handle("orders", end="latest", retry=penstock.Retry(3, first_delay_s=0.0), dead_letters=f"file:{tmp_path}/dlq")
    def handle(value: bytes) -> None:
        if value == b"7":
            raise ValueError("seven")

    registry()
    app.run()
    samples = Samples(registry())
    assert samples(RECORDS, group="outcomes", outcome="succeeded") == 9
    assert samples(RECORDS, group="outcomes", outcome="failed") == 3
    assert samples(RECORDS, group="outcomes", outcome="exhausted") == 1
    assert samples("penstock_consumer_retries_total", group="outcomes") == 2
    assert samples("penstock_consumer_dead_letters_total", group="outcomes") == 1
    assert samples("penstock_consumer_handler_seconds_count", group="outcomes") == 12
    assert samples("penstock_consumer_rebalances_total", group="outcomes", change="assigned") == 1
    assert samples("penstock_consumer_rebalances_total", group="outcomes", change="revoked") == 1
    assert samples("penstock_consumer_save_seconds_count", group="outcomes") >= 1


@pytest.mark.parametrize(
    "options",
    [
        {"order": "key", "workers": 3},
        {"order": "none", "workers": 3},
        {"batch": 7},
        {"guarantee": "at-most-once"},
        {"shared": True, "order": "none"},
    ],
    ids=str,
)
def test_every_way_to_handle_counts_each_record_once(streams: MemoryStream, options: dict[str, Any]) -> None:
    fill(streams, "orders", 200, keys=5)
    group = f"ways-{options}"
    app = app_of(streams, group)
    seen: list[object] = []

    def handle(value: Any) -> None:
        seen.extend(value if isinstance(value, list) else [value])

    app.handle("orders", **options)(handle)
    registry()
    running = app.start()
    wait_until(lambda: Samples(registry())(RECORDS, group=group, outcome="succeeded") == len(seen) == 200)
    app.stop()
    running.join(20)
    samples = Samples(registry())
    assert samples(RECORDS, group=group) == 200
    assert samples("penstock_consumer_handler_seconds_count", group=group) == 200


def test_an_async_handler_is_counted_as_well(streams: MemoryStream) -> None:
    fill(streams, "orders", 50)
    app = app_of(streams, "async")

    @app.handle("orders", end="latest", workers=4)
    async def handle(value: bytes) -> None: ...

    registry()
    app.run()
    samples = Samples(registry())
    assert samples(RECORDS, group="async", outcome="succeeded") == 50
    assert samples("penstock_consumer_handler_seconds_count", group="async") == 50


def test_records_handled_before_count_as_ignored(streams: MemoryStream) -> None:
    fill(streams, "orders", 10, keys=4)
    app = app_of(streams, "ignored")
    app.handle("orders", end="latest", idempotency_key="key")(lambda value: None)
    registry()
    app.run()
    samples = Samples(registry())
    assert samples(RECORDS, group="ignored", outcome="succeeded") == 4
    assert samples(RECORDS, group="ignored", outcome="ignored") == 6


def test_records_that_expired_unread_are_counted_as_lost_to_the_group(streams: MemoryStream) -> None:
    store = MemoryCheckpoints()

    def run() -> None:
        app = App(streams, group="expired", checkpoints=store)
        app.handle("orders", end="latest", on_expired="earliest")(lambda value: None)
        app.run()

    fill(streams, "orders", 4)
    registry()
    run()
    fill(streams, "orders", 10)
    streams.expire("orders", 0, before=9)
    run()
    samples = Samples(registry())
    assert samples("penstock_consumer_expired_records_total", group="expired") == 5
    assert samples(RECORDS, group="expired", outcome="succeeded") == 9


def test_a_partition_that_somebody_else_has_taken_is_counted_as_lost(streams: MemoryStream) -> None:
    fill(streams, "orders", 3)
    store = MemoryCheckpoints()
    app = App(streams, group="fenced", checkpoints=store)

    @app.handle("orders", commit_interval_s=0.0)
    def handle(value: bytes) -> None:
        (lease,) = (each for each in store.leases("fenced") if each.name.startswith("partition:"))
        if lease.owner != "somebody else":
            assert store.claim("fenced", lease.name, "somebody else", lease) is not None

    registry()
    running = app.start()
    lost = {"group": "fenced", "change": "lost"}
    wait_until(lambda: Samples(registry())("penstock_consumer_rebalances_total", **lost) >= 1)
    app.stop()
    running.join(20)
    assert not running.is_alive()


def test_what_an_app_stands_at_is_read_when_asked(streams: MemoryStream) -> None:
    fill(streams, "orders", 5)
    go_on, in_hand = threading.Event(), threading.Event()
    app = app_of(streams, "standing")

    @app.handle("orders")
    def handle(value: bytes) -> None:
        in_hand.set()
        assert go_on.wait(20)

    running = app.start()
    try:
        assert in_hand.wait(20)
        wait_until(lambda: Samples(registry())("penstock_consumer_healthy", group="standing") == 1)
        samples = Samples(registry())
        assert samples("penstock_consumer_in_flight_records", group="standing") == 5
        assert samples("penstock_consumer_lag_records", group="standing") == 5
        assert samples("penstock_consumer_partitions", group="standing") == 1
        assert samples("penstock_consumer_stalled_partitions", group="standing") == 0
        assert samples("penstock_consumer_healthy", group="standing") == 1
    finally:
        go_on.set()
        app.stop()
        running.join(20)
    assert not Samples(registry()).all("penstock_consumer_healthy", group="standing")


def test_counters_never_go_back_when_an_app_ends_and_another_begins(streams: MemoryStream) -> None:
    registry()
    for run in (1, 2):
        fill(streams, "orders", 4)
        app = App(streams, group="again", checkpoints=MemoryCheckpoints())
        app.handle("orders", end="latest")(lambda value: None)
        app.run()
        assert Samples(registry())(RECORDS, group="again", outcome="succeeded") == (4 if run == 1 else 12)


def test_a_broker_that_does_not_answer_holds_up_no_scrape() -> None:
    answer = threading.Event()

    class Hanging:
        def health(self) -> Health:
            assert answer.wait(20)
            return Health("orders", "hanging", True, (), (), 0, 0)

    asking, consumer = HealthChecks(), Hanging()
    began_s = time.monotonic()
    assert asking.ask([consumer], patience_s=0.05) == [None]
    assert asking.ask([consumer], patience_s=0.05) == [None], "it is not asked twice at a time"
    assert time.monotonic() - began_s < 10
    answer.set()
    wait_until(lambda: asking.ask([consumer], patience_s=1.0)[0] is not None)


def test_a_consumer_that_cannot_say_is_not_called_healthy() -> None:
    class Failing:
        def health(self) -> Health:
            raise penstock.StreamError("the broker is away")

    assert HealthChecks().ask([Failing()]) == [None]


def test_deadlines_tell_of_partial_results_and_of_who_made_them_so() -> None:
    """What is counted is counted for the process: the names are those of no other test."""

    def sure_of_itself(value: int) -> int:
        return value

    def out_of_order(value: int) -> int:
        raise ValueError("broken")

    labels = {"analysers": "sure_of_itself,out_of_order"}
    with penstock.within(30.0, sure_of_itself, out_of_order) as deadline:
        assert not deadline(1).complete
        samples = Samples(registry())
        assert samples("penstock_deadline_calls_total", result="partial", **labels) == 1
        assert samples("penstock_deadline_answers_total", analyser="sure_of_itself", outcome="answered", **labels) == 1
        assert samples("penstock_deadline_answers_total", analyser="out_of_order", outcome="failed", **labels) == 1
    samples = Samples(registry())
    assert samples("penstock_deadline_calls_total", result="partial", **labels) == 1, "it is closed, and still counts"
    assert not samples.all("penstock_deadline_running", **labels)


def test_an_analyser_at_work_is_seen_until_it_answers() -> None:
    release, begun = threading.Event(), threading.Event()

    def stuck(value: int) -> int:
        begun.set()
        assert release.wait(20)
        return value

    with penstock.within(30.0, stuck) as deadline:
        calling = threading.Thread(target=deadline, args=(1,))
        calling.start()
        assert begun.wait(20)
        assert Samples(registry())("penstock_deadline_running", analysers="stuck", analyser="stuck") == 1
        release.set()
        calling.join(20)
        assert Samples(registry())("penstock_deadline_calls_total", analysers="stuck", result="complete") == 1


def test_a_deadline_that_was_forgotten_leaves_its_counts_behind() -> None:
    def only(value: int) -> int:
        return value

    def use() -> None:
        deadline = penstock.within(5.0, forgotten=only)
        assert deadline(1).complete

    registry()
    use()
    assert Samples(registry())("penstock_deadline_calls_total", analysers="forgotten", result="complete") == 1


def test_a_producer_tells_what_it_sent_and_what_was_acknowledged() -> None:
    def send() -> None:
        with Producer("memory:metrics-producer") as producer:
            for number in range(20):
                producer.send("orders", b"%d" % number)
            producer.flush(20)

    sent, acknowledged = "penstock_producer_sent_records_total", "penstock_producer_acknowledged_records_total"
    assert gained(registry(), send, sent, buffer="memory") == 20
    assert gained(registry(), send, acknowledged, buffer="memory") == 20


def test_what_ends_is_told_once_and_what_is_at_work_is_listed() -> None:
    observed, part = Observed(), object()
    heard: list[object] = []
    observed.when_left(heard.append)
    observed.enter(part)
    assert observed.parts() == [part]
    observed.leave(part)
    observed.leave(part)
    assert heard == [part]
    assert observed.parts() == []
    observed.enter(part)
    observed.forked()
    assert observed.parts() == [], "a forked process does nothing of what its parent does"


def test_nothing_stays_at_work_when_an_app_cannot_be_run(streams: MemoryStream) -> None:
    before = OBSERVED.parts()
    app = app_of(streams, "broken")

    @app.handle("nowhere-to-be-found", end="latest")
    def handle(value: bytes) -> None: ...

    with pytest.raises(UnknownTopicError):
        app.run()
    assert OBSERVED.parts() == before


def test_every_metric_of_the_library_is_exported_under_the_name_that_is_documented() -> None:
    text = generate_latest(registry()).decode()
    for definition in LIBRARY:
        shown = definition.name + ("_total" if definition.kind == "counter" else "")
        assert f"# HELP {shown} " in text
        assert f"# TYPE {shown} {definition.kind}" in text
