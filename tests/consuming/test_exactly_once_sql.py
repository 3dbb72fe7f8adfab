"""Exactly once by the effect and the checkpoint in one SQL transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.app import App
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.consuming import Context, Retry
from penstock.errors import GuaranteeError
from penstock.model import CheckpointKey
from penstock.streams.memory import MemoryStream

Fill = Callable[..., None]
Consume = Callable[..., App]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE effects (value TEXT)")
    return path


def effects(path: Path) -> Counter[str]:
    with sqlite3.connect(path) as db:
        return Counter(value for (value,) in db.execute("SELECT value FROM effects"))


def insert(value: bytes, ctx: Context) -> None:
    with ctx.transaction() as db:
        db.execute("INSERT INTO effects VALUES (?)", (value.decode(),))


@pytest.mark.parametrize(("order", "workers"), [("partition", 1), ("key", 3), ("none", 3)])
def test_every_effect_happens_once(order: str, workers: int, database: Path, fill: Fill, consume: Consume) -> None:
    fill("orders", 300, keys=5)
    consume(insert, checkpoints=f"sqlite:{database}", guarantee="exactly-once", order=order, workers=workers)
    consume(insert, checkpoints=f"sqlite:{database}", guarantee="exactly-once", order=order, workers=workers)
    assert effects(database) == Counter({str(number): 1 for number in range(300)})


def test_the_effect_of_a_failed_attempt_is_undone_and_others_stay(database: Path, fill: Fill, consume: Consume) -> None:
    fill("orders", 50)
    calls: Counter[bytes] = Counter()

    def handle(value: bytes, ctx: Context) -> None:
        insert(value, ctx)
        calls[value] += 1
        if value == b"20" and calls[value] < 3:
            raise ValueError("after its effect")

    consume(
        handle, checkpoints=f"sqlite:{database}", guarantee="exactly-once", retry=Retry(5, first_delay_s=0), workers=1
    )
    assert effects(database) == Counter({str(number): 1 for number in range(50)})


def test_a_handler_that_survives_an_error_in_its_transaction_keeps_only_what_came_after(
    database: Path, fill: Fill, consume: Consume
) -> None:
    fill("orders", 10)

    def handle(value: bytes, ctx: Context) -> None:
        try:
            with ctx.transaction() as db:
                db.execute("INSERT INTO effects VALUES ('wrong')")
                if value == b"5":
                    raise KeyError
        except KeyError:
            pass
        with ctx.transaction() as db:
            db.execute("UPDATE effects SET value = ? WHERE value = 'wrong'", (value.decode(),))

    consume(handle, checkpoints=f"sqlite:{database}", guarantee="exactly-once")
    assert effects(database) == Counter({str(number): 1 for number in range(10) if number != 5})


def test_a_batch_handler_has_one_transaction(database: Path, fill: Fill, consume: Consume) -> None:
    fill("orders", 95)

    def handle(values: list[bytes], ctx: Context) -> None:
        with ctx.transaction() as db:
            db.executemany("INSERT INTO effects VALUES (?)", [(value.decode(),) for value in values])

    consume(handle, batch=30, checkpoints=f"sqlite:{database}", guarantee="exactly-once")
    assert effects(database) == Counter({str(number): 1 for number in range(95)})


def test_an_owner_that_was_fenced_leaves_no_effect(database: Path, fill: Fill, streams: MemoryStream) -> None:
    fill("orders", 10)
    store, other = SqliteCheckpoints(database), SqliteCheckpoints(database)
    app = App(streams, group="group", checkpoints=store)

    def claim_for_somebody_else() -> None:
        name = CheckpointKey("group", "orders", 0).lease_name
        seen = next(lease for lease in other.leases("group") if lease.name == name)
        assert other.claim("group", name, "somebody else", seen) is not None
        app.stop()

    @app.handle("orders", guarantee="exactly-once", chunk=1)
    def handle(value: bytes, ctx: Context) -> None:
        if value == b"4" and not claimed:
            claimed.append(True)
            threading.Thread(target=claim_for_somebody_else).start()
            raise ValueError("tried again once somebody else has the partition")
        insert(value, ctx)

    claimed: list[bool] = []
    app.run()
    found = effects(database)
    checkpoint = other.load(CheckpointKey("group", "orders", 0))
    assert checkpoint is not None
    assert found == Counter({str(number): 1 for number in range(checkpoint.start)})
    store.close()
    other.close()


def test_what_cannot_be_exactly_once_is_refused_and_says_what_is_missing(
    streams: MemoryStream, fill: Fill, consume: Consume, database: Path
) -> None:
    fill("orders", 1)
    with pytest.raises(GuaranteeError, match="exactly-once needs one of"):
        consume(lambda value: None, guarantee="exactly-once", checkpoints=f"file:{database.parent / 'files'}")
    with pytest.raises(GuaranteeError, match="take a Context"):
        consume(lambda value: None, guarantee="exactly-once", checkpoints=f"sqlite:{database}")
    with pytest.raises(GuaranteeError, match="transactions"):
        consume(lambda value: None, guarantee="exactly-once", to="out", checkpoints=f"sqlite:{database}")
