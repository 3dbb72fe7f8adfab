"""Handlers whose group divides the records one by one, as a queue does."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import Context, Retry
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import ConfigError, GuaranteeError
from penstock.model import CheckpointKey, DeadLetterFilter
from penstock.streams.memory import MemoryStream

Fill = Callable[..., None]
SHARED: dict[str, Any] = {"order": "none", "shared": True}


def run_until(apps: list[App], done: threading.Event) -> None:
    threads = [app.start() for app in apps]
    assert done.wait(30), "not everything was handled within 30 s"
    for app in apps:
        app.stop()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_more_members_than_partitions_work_at_the_same_time_and_each_record_is_handled_once(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 30)
    together = threading.Barrier(3)
    done = threading.Event()
    seen: Counter[bytes] = Counter()
    apps = []
    for _ in range(3):
        app = App(streams, group="g", checkpoints=store)
        apps.append(app)

        @app.handle("orders", in_flight=1, **SHARED)  # so that the first three records go to three members
        def handle(value: bytes) -> None:
            if int(value) < 3:
                together.wait(30)  # passes only if all three have one of the first records in hand
            seen[value] += 1
            if len(seen) == 30:
                done.set()

    run_until(apps, done)
    assert seen == Counter(str(number).encode() for number in range(30))


def test_groups_each_get_every_record_and_members_of_one_divide_them(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 40)
    done = threading.Event()
    seen: Counter[tuple[str, bytes]] = Counter()
    lock = threading.Lock()
    apps = []
    for group in ("mail", "mail", "stock", "stock"):
        app = App(streams, group=group, checkpoints=store)
        apps.append(app)

        @app.handle("orders", workers=2, **SHARED)
        def handle(value: bytes, ctx: Context) -> None:
            with lock:
                seen[ctx.group, value] += 1
                if len(seen) == 80:
                    done.set()

    run_until(apps, done)
    assert set(seen.values()) == {1}


def test_failures_are_tried_again_and_end_with_the_dead_letters_and_the_checkpoint_moves_on(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 10)
    done = threading.Event()
    attempts: Counter[bytes] = Counter()
    app = App(streams, group="g", checkpoints=store)

    @app.handle("orders", retry=Retry(3, first_delay_s=0), **SHARED)
    async def handle(value: bytes, ctx: Context) -> None:
        attempts[value] += 1
        assert ctx.attempt == attempts[value]
        if value == b"4" or (value == b"6" and attempts[value] == 1):
            raise ValueError("no")

    def watch() -> None:
        looked = threading.Event()
        while not looked.wait(0.02):
            checkpoint = store.load(CheckpointKey("g", "orders", 0))
            if checkpoint is not None and checkpoint.start == 10:
                done.set()
                return

    threading.Thread(target=watch, daemon=True).start()
    run_until([app], done)
    assert (attempts[b"4"], attempts[b"6"], attempts[b"5"]) == (3, 2, 1)
    (letter,) = open_dead_letters("orders.dlq", streams).browse(DeadLetterFilter())
    assert (letter.record.value, letter.attempts) == (b"4", 3)


def test_a_record_whose_handler_hangs_comes_to_another_member(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 3)
    done, free = threading.Event(), threading.Event()
    calls: Counter[bytes] = Counter()
    apps = []
    for _ in range(2):
        app = App(streams, group="g", checkpoints=store)
        apps.append(app)

        @app.handle("orders", visibility_s=0.3, drain_s=5, **SHARED)
        def handle(value: bytes) -> None:
            calls[value] += 1
            if value == b"1" and calls[value] == 1:
                assert free.wait(30)
            elif value == b"1":
                free.set()
                done.set()

    run_until(apps, done)
    assert calls[b"1"] == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"shared": True, "order": "partition"}, ConfigError),
        ({"shared": True, "order": "key"}, ConfigError),
        ({**SHARED, "guarantee": "at-most-once"}, GuaranteeError),
        ({**SHARED, "end": "latest"}, ConfigError),
        ({**SHARED, "batch": 10}, ConfigError),
        ({**SHARED, "idempotency_key": "key"}, ConfigError),
        ({**SHARED, "session_timeout_s": 3}, ConfigError),
    ],
)
def test_what_does_not_go_with_sharing_is_refused(
    streams: MemoryStream, options: dict[str, Any], error: type[Exception]
) -> None:
    app = App(streams, group="g")
    with pytest.raises(error, match="shared=True"):
        app.handle("orders", **options)


def test_a_run_that_ends_by_itself_does_not_go_with_sharing(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 1)
    app = App(streams, group="g", checkpoints=store)
    app.handle("orders", shared=True)(lambda value: None)
    with pytest.raises(ConfigError, match="has no end"):
        app.run(end="latest")
