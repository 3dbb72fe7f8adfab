"""Dead letters sent again, through a consumer: handled once, by the group that gave them up, whatever happens."""

from __future__ import annotations

from collections.abc import Callable

from penstock.app import App
from penstock.consuming import Retry
from penstock.consuming.dead_letters.opening import open_dead_letters
from penstock.consuming.dead_letters.redriving import redrive
from penstock.model import LetterFilter, LetterState, Status
from penstock.model.clock import SystemClock
from penstock.streams.memory import MemoryStreams

Fill = Callable[..., None]
Consume = Callable[..., App]
EVERY_STATE = LetterFilter(states=frozenset(LetterState))


def test_a_redriven_record_is_handled_by_its_group_alone(streams: MemoryStreams, fill: Fill, consume: Consume) -> None:
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
    assert redrive(letters, streams, LetterFilter(), clock=SystemClock()).redriven == 1
    consume(handle, retry=Retry(1))
    app = consume(others.append, group="others")
    assert seen == [b"0", b"1", b"2", b"4", b"3"]
    assert others == [b"0", b"1", b"2", b"3", b"4"]
    assert [line.status for line in app.consumers[0].history(0, 5)] == [Status.IGNORED]
    (letter,) = letters.browse(EVERY_STATE)
    assert letter.state is LetterState.REDRIVEN


def test_a_record_redriven_twice_is_handled_once(streams: MemoryStreams, fill: Fill, consume: Consume) -> None:
    fill("orders", 2)
    seen: list[bytes] = []

    def fail(value: bytes) -> None:
        raise ValueError

    consume(fail, retry=Retry(1))
    letters = open_dead_letters("orders.dlq", streams)
    redrive(letters, streams, LetterFilter(), clock=SystemClock())
    first_copies = streams.stream("orders").read(0, 2, 10, 1)
    from penstock.model import NewRecord

    for record in first_copies:  # what a redrive that was killed before it could settle leaves behind: a second copy
        copy = NewRecord("orders", record.value, record.key, record.headers, partition=record.partition)
        streams.stream("orders").append([copy])[0].result(5)
    consume(seen.append, order="none", workers=2)
    assert sorted(seen) == [b"0", b"1"]
    consume(seen.append)
    assert sorted(seen) == [b"0", b"1"]


def test_a_redriven_record_that_fails_again_is_the_same_letter_and_can_be_redriven_again(
    streams: MemoryStreams, fill: Fill, consume: Consume
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
        redrive(letters, streams, LetterFilter(), clock=SystemClock())
    assert attempts == 3
    (letter,) = letters.browse(EVERY_STATE)
    assert (letter.error, letter.redrives, letter.state) == ("ValueError: attempt 2", 2, LetterState.REDRIVEN)
