"""Where there is nothing to read before a handler has ended, its end is heard at once, not when the poll has waited."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import Context
from penstock.consuming.loop.suspects import SUSPICIOUS_RESTARTS
from penstock.model import Change, Checkpoint, CheckpointKey
from penstock.streams.memory import MemoryStream

WAIT_S: Final = 60.0
"""What a poll waits in these tests, unless it is woken."""


@pytest.fixture(autouse=True)
def _within_one_poll(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("penstock.consuming.loop.loop._WAIT_S", WAIT_S)
    begun_s = time.monotonic()
    yield
    assert time.monotonic() - begun_s < WAIT_S, "it has waited for records where there were none to come"


@pytest.mark.parametrize(("order", "workers"), [("partition", 1), ("key", 3), ("none", 3)])
def test_a_run_that_ends_by_itself_ends_with_its_last_record(
    order: str, workers: int, fill: Callable[..., None], consume: Callable[..., Any]
) -> None:
    fill("orders", 20, keys=5)
    seen: list[bytes] = []
    consume(seen.append, order=order, workers=workers)
    assert len(seen) == 20


def test_so_it_is_where_the_last_records_have_tasks(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Callable[..., None]
) -> None:
    fill("orders", 5)
    app = App(streams, group="group", checkpoints=store)
    done: list[bytes] = []

    @app.handle("orders", end="latest")
    def fork(value: bytes, ctx: Context) -> None:
        ctx.emit("note", value)

    @app.stage("note")
    def note(value: bytes) -> None:
        done.append(value)

    app.run()
    assert len(done) == 5


def test_records_that_may_have_killed_others_follow_one_another(
    store: MemoryCheckpoints, fill: Callable[..., None], consume: Callable[..., Any]
) -> None:
    fill("orders", 20)
    key = CheckpointKey("group", "orders", 0)
    lease = store.claim("group", key.lease_name, "died", None)
    assert lease is not None
    store.save(lease, key, Change(Checkpoint(0, 20, restarts=SUSPICIOUS_RESTARTS)))
    store.release(lease)
    seen: list[bytes] = []
    consume(seen.append)
    assert len(seen) == 20
