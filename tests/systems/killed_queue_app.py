"""An app on a queue whose process is killed, and whose handler fails: no record is lost."""

from __future__ import annotations

import functools
from contextlib import closing
from pathlib import Path
from typing import Final

import penstock as ps
from penstock.abc import Outcome
from penstock.dead_letters.opening import open_dead_letters
from penstock.model import DeadLetterFilter, NewRecord
from penstock.queues import open_queue
from tests.consuming.eventually import wait_until
from tests.forking import FORKING

COUNT: Final = 200
BAD: Final = 13
"""The number of the record that the handler rejects. It fails once for each tenth."""
WAIT_S: Final = 60.0


def check_every_record_is_handled(queue_url: str, folder: Path, visibility_s: float = 0.0) -> None:
    """Kill an app twice and let a third one finish: all records are handled, but the bad one, which is a dead letter.

    `visibility_s` is the time after which the queue delivers again what a killed process had, where there is one.
    """
    seen = folder / "seen.txt"
    letters = f"sqlite:{folder / 'letters.db'}"
    queue = open_queue(queue_url)
    queue.send([NewRecord("queue", b"%d" % number) for number in range(COUNT)])
    for most in (40, 80):
        process = FORKING.Process(target=_work, args=(queue_url, seen, letters))
        process.start()
        wait_until(functools.partial(_has_handled, seen, most), WAIT_S)
        process.kill()
        process.join()
    process = FORKING.Process(target=_work, args=(queue_url, seen, letters))
    process.start()
    try:
        wait_until(functools.partial(_has_handled, seen, COUNT - 1), WAIT_S)
    finally:
        process.terminate()
        process.join()
    assert set(_handled(seen)) == set(range(COUNT)) - {BAD}, "every record but the bad one is handled"
    while deliveries := queue.receive(COUNT, visibility_s + 0.5):  # ends: what is settled does not come again
        assert visibility_s, f"nothing is left in the queue, and yet {deliveries} came"
        for delivery in deliveries:
            assert int(delivery.record.value or b"") in _handled(seen), "only what was handled just before a kill"
            queue.settle(delivery, Outcome.DONE)
    queue.close()
    with closing(open_dead_letters(letters)) as dead:
        assert [letter.record.value for letter in dead.browse(DeadLetterFilter())] == [b"%d" % BAD]


def _work(queue_url: str, seen: Path, letters: str) -> None:
    app = ps.App(group="workers")
    failed: set[int] = set()

    @app.handle(queue_url, retry=ps.Retry(6, first_delay_s=0.01), dead_letters=letters, workers=4)
    def work(value: bytes) -> None:
        number = int(value)
        if number == BAD:
            raise ps.Reject("unlucky")
        if number % 10 == 0 and number not in failed:
            failed.add(number)
            raise RuntimeError("fails once")
        with seen.open("a") as file:
            file.write(f"{number}\n")

    app.run()


def _has_handled(seen: Path, count: int) -> bool:
    return len(set(_handled(seen))) >= count


def _handled(seen: Path) -> list[int]:
    return [int(line) for line in seen.read_text().splitlines()] if seen.exists() else []
