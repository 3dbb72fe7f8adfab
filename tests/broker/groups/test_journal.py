"""Memory follows the log: in its order, never ahead of it, whatever happens to those who asked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import pytest

from penstock.broker.groups.journal import Journal
from penstock.errors import StorageError
from tests.broker.groups.doubles import MemoryTopic, in_a_loop, settle

RECORD = [(b"key", b"value")]


class ReversedTopic(MemoryTopic):
    """Appends reach the log in order but return in the opposite one, all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[asyncio.Future[None]] = []
        self.failing: set[int] = set()

    async def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
    ) -> None:
        number = len(self.waiting)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        await future
        if number in self.failing:
            raise StorageError(f"append {number}")

    async def finish(self) -> None:
        await settle()
        for future in reversed(self.waiting):
            future.set_result(None)
            await settle()


def noting(notes: list[str], text: str) -> Callable[[], None]:
    return lambda: notes.append(text)


@in_a_loop
async def test_changes_take_effect_in_the_order_in_which_they_were_written() -> None:
    topic = ReversedTopic()
    journal, notes = Journal(topic), list[str]()
    writes = [journal.write(0, RECORD, apply=noting(notes, str(number))) for number in range(5)]
    await settle()
    assert notes == []
    await topic.finish()
    assert notes == ["0", "1", "2", "3", "4"]
    assert all(write.done() for write in writes)
    assert journal.busy_partitions() == []


@in_a_loop
async def test_a_write_that_fails_takes_no_effect_and_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    topic = ReversedTopic()
    topic.failing = {1}
    journal, notes = Journal(topic), list[str]()
    writes = [
        journal.write(0, RECORD, apply=noting(notes, str(number)), fail=lambda error: notes.append(f"failed: {error}"))
        for number in range(3)
    ]
    with caplog.at_level(logging.WARNING):
        await topic.finish()
    assert notes == ["0", "failed: append 1", "2"]
    assert isinstance(writes[1].exception(), StorageError)
    assert "append 1" in caplog.text


@in_a_loop
async def test_partitions_do_not_wait_for_each_other() -> None:
    topic = ReversedTopic()
    journal, notes = Journal(topic), list[str]()
    journal.write(0, RECORD, apply=noting(notes, "slow"))
    journal.write(1, RECORD, apply=noting(notes, "fast"))
    await settle()
    topic.waiting[1].set_result(None)
    await settle()
    assert notes == ["fast"]
    assert journal.busy_partitions() == [0]
    topic.waiting[0].set_result(None)
    await journal.close()
    assert notes == ["fast", "slow"]


@in_a_loop
async def test_what_waits_for_a_write_comes_behind_it_and_before_the_next() -> None:
    topic = ReversedTopic()
    journal, notes = Journal(topic), list[str]()
    journal.after_writes(0, noting(notes, "at once"))
    journal.write(0, RECORD, apply=noting(notes, "first"))
    journal.after_writes(0, noting(notes, "between"))
    journal.write(0, RECORD, apply=noting(notes, "second"))
    waiting = asyncio.ensure_future(journal.settled(0))
    await topic.finish()
    assert waiting.done()
    assert notes == ["at once", "first", "between", "second"]


@in_a_loop
async def test_a_cancelled_request_does_not_cancel_its_write() -> None:
    topic = ReversedTopic()
    journal, notes = Journal(topic), list[str]()

    async def request() -> None:
        await asyncio.shield(journal.write(0, RECORD, apply=noting(notes, "applied")))

    task = asyncio.ensure_future(request())
    await settle()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await topic.finish()
    assert notes == ["applied"]


@in_a_loop
async def test_a_change_may_write_again() -> None:
    topic = MemoryTopic()
    journal, notes = Journal(topic), list[str]()

    def again() -> None:
        notes.append("first")
        journal.write(0, RECORD, apply=noting(notes, "second"))

    journal.write(0, RECORD, apply=again)
    await journal.close()
    assert notes == ["first", "second"]
    assert len(topic.batches) == 2


@in_a_loop
async def test_a_defect_in_one_change_is_reported_and_does_not_stop_the_next(caplog: pytest.LogCaptureFixture) -> None:
    journal, notes = Journal(MemoryTopic()), list[str]()

    def defect() -> None:
        raise ZeroDivisionError

    broken = journal.write(0, RECORD, apply=defect)
    journal.write(0, RECORD, apply=noting(notes, "next"))
    await journal.close()
    assert notes == ["next"]
    assert isinstance(broken.exception(), ZeroDivisionError)
    assert "could not be applied" in caplog.text
