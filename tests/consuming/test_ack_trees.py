"""Ack trees: a record that forks into tasks is finished when all of them are."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import Context, Retry
from penstock.consuming.stages import Acknowledger, StageContext, Stages, task_of
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import HandlerError
from penstock.model import CheckpointKey, DeadLetterFilter, Record
from penstock.streams.memory import MemoryStream
from penstock.testing import VirtualClock
from tests.seeds import seed_of

Fill = Callable[..., None]


@pytest.mark.parametrize("round_number", range(30))
def test_a_tree_of_any_shape_is_finished_exactly_when_its_last_task_ends(round_number: int) -> None:
    chance = random.Random(seed_of() + round_number)
    acknowledger = Acknowledger(VirtualClock(), seed=round_number)
    settled: list[BaseException | None] = []
    tree, own = acknowledger.add_tree(settled.append, 60)
    open_tasks = [own]
    forks_left = chance.randrange(200)
    while open_tasks:
        assert settled == []
        task = open_tasks.pop(chance.randrange(len(open_tasks)))
        for _ in range(min(forks_left, chance.randrange(3))):
            forks_left -= 1
            forked = acknowledger.fork(tree)
            assert forked is not None
            open_tasks.append(forked)
        acknowledger.done(tree, task)
    assert settled == [None]
    assert len(acknowledger) == 0


def test_the_memory_of_a_tree_does_not_grow_with_its_tasks() -> None:
    acknowledger = Acknowledger(VirtualClock(), seed=1)
    tree, _ = acknowledger.add_tree(lambda error: None, 60)
    before = sys.getsizeof(acknowledger._trees[tree].open) + sys.getsizeof(acknowledger._trees)
    for _ in range(10_000):
        acknowledger.fork(tree)
    after = sys.getsizeof(acknowledger._trees[tree].open) + sys.getsizeof(acknowledger._trees)
    assert after - before <= 16


def test_one_failure_fails_the_tree_once_and_what_comes_later_is_counted() -> None:
    acknowledger = Acknowledger(VirtualClock())
    settled: list[BaseException | None] = []
    tree, _ = acknowledger.add_tree(settled.append, 60)
    one, two = acknowledger.fork(tree), acknowledger.fork(tree)
    assert one is not None
    assert two is not None
    failure = ValueError()
    acknowledger.fail(tree, failure)
    acknowledger.fail(tree, ValueError())
    acknowledger.done(tree, two)
    assert settled == [failure]
    assert acknowledger.late == 2
    assert acknowledger.fork(tree) is None


def test_a_tree_that_takes_too_long_fails() -> None:
    clock = VirtualClock()
    acknowledger = Acknowledger(clock)
    settled: list[BaseException | None] = []
    acknowledger.add_tree(settled.append, 5)
    assert acknowledger.expire() == 0
    clock.advance(6)
    assert acknowledger.expire() == 1
    assert isinstance(settled[0], TimeoutError)


def test_a_record_is_finished_when_every_branch_has_finished_or_left_early(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("transactions", 40)
    stored: Counter[int] = Counter()
    lock = threading.Lock()
    app = App(streams, group="fraud", checkpoints=store)

    @app.handle("transactions", end="latest")
    def transaction(value: int, ctx: Context) -> None:
        for analyser in ("geo", "amount"):
            ctx.emit(analyser, value)

    @app.stage("geo", workers=2)
    def geo(value: int, ctx: StageContext) -> None:
        ctx.emit("store", value)

    @app.stage("amount")
    def amount(value: int, ctx: StageContext) -> None:
        if value % 2:
            return  # leaves early
        ctx.emit("store", value)

    @app.stage("store", workers=2)
    def save(value: int) -> None:
        with lock:
            stored[value] += 1

    app.run()
    assert stored == Counter({value: 1 if value % 2 else 2 for value in range(40)})
    checkpoint = store.load(CheckpointKey("fraud", "transactions", 0))
    assert checkpoint is not None
    assert (checkpoint.start, checkpoint.delivered) == (40, 40)


def test_a_branch_that_fails_replays_its_record_and_only_that(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("transactions", 10)
    roots: Counter[int] = Counter()
    tried: Counter[int] = Counter()
    app = App(streams, group="fraud", checkpoints=store)

    @app.handle("transactions", end="latest", retry=Retry(3, first_delay_s=0))
    def transaction(value: int, ctx: Context) -> None:
        roots[value] += 1
        ctx.emit("analyse", value)

    @app.stage("analyse", retry=Retry(2, first_delay_s=0))
    def analyse(value: int) -> None:
        tried[value] += 1
        if value == 7 or (value == 3 and tried[value] <= 2):
            raise ConnectionError("away")

    app.run()
    assert roots == Counter({**dict.fromkeys(range(10), 1), 3: 2, 7: 3})
    assert tried[7] == 6
    (letter,) = open_dead_letters("transactions.dlq", streams).browse(DeadLetterFilter())
    assert letter.record.value == b"7"
    assert letter.error == "StageError: stage 'analyse': ConnectionError: away"


def test_a_branch_through_a_topic_of_the_app_holds_its_record_open(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("searches", 5)
    fill("clicks", [])
    streams.create_topic("clicks")
    gate = threading.Event()
    seen: list[bytes] = []
    app = App(streams, group="joins", checkpoints=store)

    @app.handle("searches", end="latest")
    def search(value: bytes, ctx: Context) -> None:
        ctx.emit("clicks", value)
        if value == b"4":
            gate.set()

    @app.handle("clicks")
    def click(record: Record) -> None:
        assert gate.wait(30)
        assert task_of(record) is not None
        seen.append(record.value or b"")

    watcher = threading.Thread(target=lambda: stop_when_searches_are_done(app, store))
    watcher.start()
    app.run()
    watcher.join()
    assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4"]


def stop_when_searches_are_done(app: App, store: MemoryCheckpoints) -> None:
    finished = threading.Event()
    while not finished.wait(0.02):
        checkpoint = store.load(CheckpointKey("joins", "searches", 0))
        if checkpoint is not None and checkpoint.start == 5:
            break
    app.stop()


def test_a_task_that_another_process_did_is_acknowledged_through_the_acks_topic(streams: MemoryStream) -> None:
    from penstock.serde import Topic

    clock = VirtualClock()
    topic: Topic[bytes] = Topic("clicks")
    streams.create_topic("clicks")
    here, there = (Stages([], [topic], streams, clock) for _ in range(2))
    settled = threading.Event()
    tree, own = here.acknowledger.add_tree(lambda error: settled.set(), 60)
    root = Record("searches", 0, 0, None, b"")
    here.emit(tree, root, topic, b"v")
    here.acknowledger.done(tree, own)
    (child,) = streams.open_topic("clicks").read(0, 0, 1, 1)
    assert not settled.is_set()
    there.finished(child, None)
    assert settled.wait(30)
    here.stop(5)
    there.stop(5)


def test_a_stage_that_is_not_there_is_named_with_those_that_are(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("transactions", 1)
    app = App(streams, group="fraud", checkpoints=store)
    app.stage("geo")(lambda value: None)
    app.handle("transactions", end="latest", retry=Retry(1))(lambda value, ctx: ctx.emit("gee", value))
    with pytest.raises(HandlerError, match="has no stage or handled topic 'gee'; it has geo, transactions"):
        app.run()
    with pytest.raises(HandlerError, match="already"):
        app.stage("geo")(lambda value: None)
