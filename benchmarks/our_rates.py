"""Our side of the benchmarks of systems: a queue or a stream written and read through Penstock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import penstock
from benchmarks.report import Report, Row
from penstock.abc import BatchSettling, Outcome, Queue
from penstock.model import Batch, NewRecord

WAIT_S: Final = 60.0
QUEUE_BAR: Final = 0.6

Rates = dict[str, list[float]]
"""Records a second of every round, by who did what: "penstock send"."""


def send_s(queue: Queue, count: int, at_once: int, value: bytes) -> float:
    """How many seconds it takes to send so many records."""
    started_s = time.perf_counter()
    for _ in range(0, count, at_once):
        queue.send([NewRecord("queue", value) for _ in range(at_once)])
    return time.perf_counter() - started_s


def receive_s(queue: Queue, count: int, at_once: int, value: bytes) -> float:
    """How many seconds it takes to receive and settle so many records."""
    assert isinstance(queue, BatchSettling)
    started_s = time.perf_counter()
    left = count
    while left:
        deliveries = queue.receive(min(left, at_once), WAIT_S)
        for delivery in deliveries:
            assert delivery.record.value == value
        queue.settle_all(deliveries, Outcome.DONE)
        left -= len(deliveries)
    return time.perf_counter() - started_s


def compare_queues(
    report: Report,
    say: Callable[[str], None],
    count: int,
    rounds: Iterable[Mapping[str, float]],
    *,
    title: Callable[[str], str],
    ours: str,
    peer: str,
    theirs: str,
) -> None:
    """Rows for sending and receiving. Each of the rounds gives the seconds that so many records took: "penstock send",
    and the same of the peer."""
    rates: Rates = {}
    for seconds in rounds:
        note(rates, {what: count / each_s for what, each_s in seconds.items()}, say)
    add_rows(
        report,
        rates,
        ("send", "receive"),
        title=title,
        ours=ours,
        peer=peer,
        theirs=theirs,
        bar=QUEUE_BAR,
        say=say,
    )


def stream_rates(
    url: str, turn: int, count: int, at_once: int, value: bytes, look_at: Callable[[Batch], int] = len
) -> dict[str, float]:
    """Records a second by `append`, `send` and `read`. `look_at` counts the records of a batch, as a reader would."""
    ours, sent = f"ours-{turn}", f"sent-{turn}"
    rates = {}
    with penstock.connect(url) as stream:
        stream.create_topic(ours, 1)
        stream.create_topic(sent, 1)
        opened = stream.open_topic(ours)
        started_s = time.perf_counter()
        for _ in range(0, count, at_once):
            receipts = opened.append([NewRecord(ours, value, b"%d" % number) for number in range(at_once)])
        receipts[-1].result(WAIT_S)
        rates["penstock append"] = count / (time.perf_counter() - started_s)
        started_s = time.perf_counter()
        for number in range(count):
            stream.send(sent, value, key=b"%d" % (number % at_once))
        stream.flush(WAIT_S)
        rates["penstock send"] = count / (time.perf_counter() - started_s)
        pointer, _ = opened.span(0)
        found = 0
        started_s = time.perf_counter()
        while found < count:
            batch = opened.read(0, pointer, at_once, 1.0)
            found += look_at(batch)
            pointer = batch.next
        rates["penstock read"] = count / (time.perf_counter() - started_s)
        opened.close()
    return rates


def note(rates: Rates, measured: Mapping[str, float], say: Callable[[str], None]) -> None:
    """Add the rates of one round."""
    for what, rate in measured.items():
        rates.setdefault(what, []).append(rate)
        say(f"  {what}: {rate:,.0f} records/s")


def add_rows(
    report: Report,
    rates: Rates,
    whats: Sequence[str],
    *,
    title: Callable[[str], str],
    ours: str,
    peer: str,
    theirs: str,
    bar: float,
    say: Callable[[str], None],
) -> None:
    """A row for each thing that was done. A peer without `send` is held against its `append`."""
    for what in whats:
        peers = rates.get(f"{peer} {what}") or rates[f"{peer} append"]
        own, other = (statistics.median(each) for each in (rates[f"penstock {what}"], peers))
        row = Row(title(what), own, ours, other, theirs, "records/s", bar)
        say("  " + row.line())
        report.rows.append(row)
