"""Handlers in processes."""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.app import App
from penstock.consuming import Retry
from penstock.dead_letters.opening import open_dead_letters
from penstock.model import DeadLetterFilter
from penstock.streams.memory import MemoryStream
from tests.consuming import busy_handlers

Fill = Callable[..., None]
Consume = Callable[..., App]


def results(streams: MemoryStream) -> list[bytes | None]:
    return list(streams.open_topic("out").read(0, 0, 1000, 1).values())


def test_handlers_run_in_other_processes_and_give_back_results(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", 40)
    consume(busy_handlers.pid_of, processes=True, workers=2, order="none", to="out")
    found = results(streams)
    assert len(found) == 40
    assert str(os.getpid()).encode() not in found


def test_a_record_that_kills_its_process_is_found_and_given_up_and_the_others_are_handled(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", 8)
    consume(busy_handlers.dies_at_3, processes=True, to="out", retry=Retry(2, first_delay_s=0))
    assert results(streams) == [b"0", b"1", b"2", b"4", b"5", b"6", b"7"]
    (letter,) = open_dead_letters("orders.dlq", streams).browse(DeadLetterFilter())
    assert letter.error == "WorkerDiedError: the process that handled the record ended with signal 9"


def test_errors_come_back_with_the_traceback_of_the_other_process(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", 5)
    consume(busy_handlers.fails_at_3, processes=True, to="out", retry=Retry(1))
    (letter,) = open_dead_letters("orders.dlq", streams).browse(DeadLetterFilter())
    assert letter.error == "LookupError: 'in another process'" or letter.error == "LookupError: in another process"
    assert "busy_handlers.py" in letter.traceback
    assert results(streams) == [b"0", b"1", b"2", b"4"]
