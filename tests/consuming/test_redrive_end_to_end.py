"""Dead letters sent again, through a consumer: handled once, by the group that gave them up, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.app import App
from penstock.consuming import Retry
from penstock.dead_letters.opening import open_dead_letters
from penstock.dead_letters.redriving import redrive
from penstock.errors import ConfigError, Reject
from penstock.model import DeadLetterFilter, LetterState, NewRecord, Record, Status
from penstock.model.clock import SystemClock
from penstock.queues import MemoryQueue
from penstock.streams.memory import MemoryStream
from tests.consuming.eventually import wait_until

Fill = Callable[..., None]
Consume = Callable[..., App]
EVERY_STATE = DeadLetterFilter(states=frozenset(LetterState))


def test_a_redriven_record_is_handled_by_its_group_alone(streams: MemoryStream, fill: Fill, consume: Consume) -> None:
    fill("orders", 5)
    mended = False
    seen: list[bytes] = []
    others: list[bytes] = []

    def handle(value: bytes) -> None:
        if value == b"3" and not mended:
            raise ValueError("not yet")
        seen.append(value)

    consume(handle, retry=Retry(1))
    consume(others.append, group="others")
    letters = open_dead_letters("orders.dlq", streams)
    mended = True
    assert redrive(letters, streams, DeadLetterFilter(), clock=SystemClock()).redriven == 1
    consume(handle, retry=Retry(1))
    app = consume(others.append, group="others")
    assert seen == [b"0", b"1", b"2", b"4", b"3"]
    assert others == [b"0", b"1", b"2", b"3", b"4"]
    assert [line.status for line in app.consumers[0].history(0, 5)] == [Status.IGNORED]
    (letter,) = letters.browse(EVERY_STATE)
    assert letter.state is LetterState.REDRIVEN


def test_a_record_redriven_twice_is_handled_once(streams: MemoryStream, fill: Fill, consume: Consume) -> None:
    fill("orders", 2)
    seen: list[bytes] = []

    def fail(value: bytes) -> None:
        raise ValueError

    consume(fail, retry=Retry(1))
    letters = open_dead_letters("orders.dlq", streams)
    redrive(letters, streams, DeadLetterFilter(), clock=SystemClock())
    first_copies = streams.open_topic("orders").read(0, 2, 10, 1)
    from penstock.model import NewRecord

    for record in first_copies:  # what a redrive that was killed before it could settle leaves behind: a second copy
        copy = NewRecord("orders", record.value, record.key, record.headers, partition=record.partition)
        streams.open_topic("orders").append([copy])[0].result(5)
    consume(seen.append, order="none", workers=2)
    assert sorted(seen) == [b"0", b"1"]
    consume(seen.append)
    assert sorted(seen) == [b"0", b"1"]


def test_a_redriven_record_that_fails_again_is_the_same_letter_and_can_be_redriven_again(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", 1)
    attempts = 0

    def fail_twice(value: bytes) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ValueError(f"attempt {attempts}")

    letters = open_dead_letters("orders.dlq", streams)
    for _ in range(3):
        consume(fail_twice, retry=Retry(1))
        redrive(letters, streams, DeadLetterFilter(), clock=SystemClock())
    assert attempts == 3
    (letter,) = letters.browse(EVERY_STATE)
    assert (letter.error, letter.redrives, letter.state) == ("ValueError: attempt 2", 2, LetterState.REDRIVEN)


def test_letters_of_a_queue_are_sent_back_to_it_and_handled_by_its_group_alone(tmp_path: Path) -> None:
    queue = MemoryQueue(name="jobs")
    queue.send([NewRecord("jobs", b"job", b"key", (("h", b"1"),))])
    letters = open_dead_letters(f"sqlite:{tmp_path / 'letters.db'}")
    is_mended = False
    seen: list[Record] = []

    def handle(record: Record) -> None:
        if not is_mended:
            raise Reject("not yet")
        seen.append(record)

    def run_until_empty(group: str) -> App:
        app = App(group=group)
        app.handle(queue, dead_letters=letters)(handle)
        thread = app.start()
        wait_until(lambda: not len(queue))
        app.stop()
        thread.join(20)
        assert not thread.is_alive()
        return app

    run_until_empty("mail")
    is_mended = True
    assert redrive(letters, queue, DeadLetterFilter()).redriven == 1
    run_until_empty("mail")
    assert [(each.value, each.key, each.headers[0]) for each in seen] == [(b"job", b"key", ("h", b"1"))]
    queue.send([NewRecord("jobs", each.value, each.key, each.headers) for each in seen])
    assert run_until_empty("other").consumers[0].counts.ignored == 1, "it is marked for the group that gave it up"
    with pytest.raises(ConfigError, match="pass the queue itself"):
        redrive(letters, queue, DeadLetterFilter(), to="elsewhere")
    letters.close()
