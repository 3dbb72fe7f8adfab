"""Redrive: send given-up records again, unchanged, once the cause of their failure is fixed.

One page of letters at a time: take them, append their records, wait until the stream has acknowledged them, settle
them. A redrive that is killed in between leaves letters taken; the next redrive takes them again and gives the records
the same ids, so a record that was appended twice is handled once.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from penstock import abc
from penstock.abc import Clock, Feature
from penstock.dead_letters.headers import redrive_headers
from penstock.dead_letters.holding import DEAD_AFTER_S, Hold, hold_of
from penstock.errors import ConfigError, DeliveryError, RecordTooLargeError, StreamError
from penstock.model import DeadLetter, DeadLetterFilter, LetterState, NewRecord, Receipt
from penstock.model.clock import SystemClock
from penstock.model.letter import is_of_query
from penstock.queues.opening import queue_name

_ROUNDING: Final = 1e-6


class TokenBucket:
    """Allows `rate_per_s` operations per second, evenly. Unused ones are saved up, at most `burst`."""

    def __init__(self, rate_per_s: float, clock: Clock, burst: float = 1.0) -> None:
        if not 0 < rate_per_s < float("inf"):
            raise ConfigError(f"rate_per_s={rate_per_s} must be positive; omit it for no limit")
        self._rate_per_s = rate_per_s
        self._clock = clock
        self._burst = max(1.0, burst)
        self._tokens = self._burst
        self._counted_s = clock.monotonic_s()

    def acquire(self) -> None:
        """Wait until the next operation is allowed."""
        while (missing := 1.0 - self._count()) > _ROUNDING:
            self._clock.sleep(missing / self._rate_per_s)
        self._tokens -= 1.0

    def _count(self) -> float:
        now_s = self._clock.monotonic_s()
        self._tokens = min(self._burst, self._tokens + (now_s - self._counted_s) * self._rate_per_s)
        self._counted_s = now_s
        return self._tokens


PAGE_LETTERS: Final = 200
ACKNOWLEDGED_WITHIN_S: Final = 60.0
FAILURES_KEPT: Final = 100
_WATCHED_S: Final = 1.5 * DEAD_AFTER_S
"""Long enough to see whether the redrive that holds the backend is alive."""

_NO_TOPIC: Final = (
    "it is a row of a pipeline's query, which no topic holds: name the topic that it is to go to (penstock dlq redrive "
    "--to TOPIC)"
)

Timestamps = Literal["original", "now"]


@dataclass(frozen=True, slots=True)
class RedriveReport:
    """The result of a redrive."""

    redriven: int = 0
    """Letters whose records the stream has acknowledged."""
    failed: int = 0
    """Letters whose records the stream refused or did not acknowledge in time: they are waiting again."""
    gone: int = 0
    """Letters that another process had settled before they could be taken."""
    failures: tuple[tuple[str, str], ...] = ()
    """The ids of the first letters that failed, with the errors."""
    interrupted: bool = False
    """It was stopped by Ctrl-C. Letters that were not sent are waiting."""
    gave_up: bool = False
    """It stopped because a whole page failed. Letters that were not sent are waiting."""


def redrive(
    letters: abc.DeadLetters,
    stream: abc.Stream | abc.Queue,
    which: DeadLetterFilter,
    *,
    clock: Clock | None = None,
    to: str | None = None,
    rate_per_s: float | None = None,
    limit: int | None = None,
    taker: str | None = None,
    timestamps: Timestamps = "original",
    on_progress: Callable[[RedriveReport], object] | None = None,
    hold: Hold | None = None,
) -> RedriveReport:
    """Send the records of the matching letters again, in the order in which they were given up.

    A record is appended to the topic `to`, or else to its own topic and, where partitions can be chosen, its own
    partition; with its key, value and headers unchanged, and headers that name the group to handle it and this redrive
    (see `headers`). It keeps its timestamp, unless `timestamps` is "now": use that when letters are older than the
    topic's retention, or they may expire before they are read. Letters that fail again meanwhile are left for the next
    redrive. In place of a stream, pass the queue that the records came from, or another one.

    At most `limit` letters, and `rate_per_s` letters per second. Ctrl-C ends it in order: it waits for what was sent,
    and the report says how far it came. `on_progress` is called after each page.

    One redrive of a backend runs at a time: while another one does, in any process, RedriveRunningError names its
    holder. Pass `hold` if the caller already holds the backend (`holding.hold_of`) and releases it later.
    """
    clock = clock or SystemClock()
    if limit is not None and limit < 0:
        raise ConfigError(f"limit={limit} must be an integer >= 0")
    if timestamps not in ("original", "now"):
        raise ConfigError(f"timestamps={timestamps!r} must be 'original' or 'now'")
    if isinstance(stream, abc.Queue):
        if to is not None:
            raise ConfigError(f"to={to!r} is for streams: pass the queue itself in place of a stream")
        stream = _QueueTarget(stream)
        to = stream.topic
    if Feature.HEADERS not in stream.features:
        raise ConfigError(f"{stream.url} cannot take redriven records: it has no {Feature.HEADERS}, which mark them")
    run = _Run(letters, stream, to, TokenBucket(rate_per_s, clock) if rate_per_s is not None else None, timestamps)
    run.taker = taker or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    redrivable = _redrivable(which)
    held = hold
    # About a second's worth: a letter is not taken for longer than it takes to send it.
    page_letters = PAGE_LETTERS if rate_per_s is None else max(1, min(PAGE_LETTERS, int(rate_per_s)))
    try:
        held = held or hold_of(letters, run.taker, _WATCHED_S, clock)
        run.drive(redrivable, page_letters, limit, held, on_progress)
    except KeyboardInterrupt:
        run.report = replace(run.report, interrupted=True)
    finally:
        run.close()
        if hold is None and held is not None:
            held.release()
    return run.report


def redriven_record(
    letter: DeadLetter, to: str | None = None, partition: int | None = None, timestamps: Timestamps = "original"
) -> NewRecord:
    """The record that the next redrive of this letter appends."""
    original = letter.record
    is_elsewhere = to is not None and to != original.topic
    # In its own topic it is for the group that gave it up; elsewhere for every reader.
    headers = redrive_headers(original.headers, letter.id, letter.redrives + 1, None if is_elsewhere else letter.group)
    has_time = timestamps == "original" and original.timestamp_ms is not None and original.timestamp_ms > 0
    return NewRecord(
        to or original.topic,
        original.value,
        original.key,
        headers,
        original.timestamp_ms if has_time else None,
        partition,
    )


class _QueueTarget:
    """A queue as a stream with one topic, to send to."""

    def __init__(self, queue: abc.Queue) -> None:
        self._queue = queue
        self.topic = queue_name(queue)
        self.url = f"queue {queue.name!r}"
        self.features = queue.features

    def open_topic(self, topic: str) -> abc.TopicStream:
        return self  # type: ignore[return-value]  # nothing is read from it

    def topics(self) -> Sequence[str]:
        return (self.topic,)

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        raise ConfigError(f"{self.url} has no topics")

    def partitions(self) -> Sequence[int]:
        return (0,)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        try:
            self._queue.send(records)
        except (StreamError, RecordTooLargeError) as error:  # of this record; that the queue is away ends the redrive
            raise DeliveryError(str(error)) from error
        receipts = [Receipt(record.topic) for record in records]
        for receipt in receipts:
            receipt.settle(0, -1, None)
        return receipts

    def close(self) -> None:
        """Leave the queue open: it is the caller's."""


@dataclass(slots=True)
class _Page:
    """Letters that are redriven together, and their outcome so far."""

    ids: Sequence[str]
    sent: list[tuple[str, Receipt]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    gone: int = 0


class _Run:
    """One redrive."""

    taker: str

    def __init__(
        self,
        letters: abc.DeadLetters,
        stream: abc.Stream,
        to: str | None,
        bucket: TokenBucket | None,
        timestamps: Timestamps,
    ) -> None:
        self.report = RedriveReport()
        self._letters = letters
        self._stream = stream
        self._to = to
        self._bucket = bucket
        self._timestamps = timestamps
        self._opened: dict[str, tuple[abc.TopicStream, frozenset[int]]] = {}

    def drive(
        self,
        which: DeadLetterFilter,
        page_letters: int,
        limit: int | None,
        hold: Hold,
        on_progress: Callable[[RedriveReport], object] | None,
    ) -> None:
        last: str | None = None
        while True:
            hold.check()
            wanted = page_letters if limit is None else min(page_letters, limit - self.report.redriven)
            page = self._letters.browse(which, wanted, last) if wanted > 0 else ()
            if not page:
                return
            rows = [letter for letter in page if self._to is None and is_of_query(letter.record.topic)]
            self._count([], [(letter.id, _NO_TOPIC) for letter in rows])
            before = self.report
            self._redrive_page([letter.id for letter in page if letter not in rows])
            last = page[-1].id
            if on_progress is not None:
                on_progress(self.report)
            if self.report.failed > before.failed and self.report.redriven == before.redriven:
                self.report = replace(self.report, gave_up=True)
                return

    def close(self) -> None:
        for topic_stream, _ in self._opened.values():
            topic_stream.close()

    def _redrive_page(self, ids: Sequence[str]) -> None:
        page = _Page(ids)
        try:
            taken = {letter.id: letter for letter in self._letters.take(ids, self.taker)}
            page.gone = len(ids) - len(taken)
            for id in ids:
                if id in taken:
                    self._send(taken[id], page)
        finally:
            try:
                self._settle(page)
            except (KeyboardInterrupt, SystemExit):
                self._settle(page)  # the first Ctrl-C finishes this; only a second one interrupts it
                raise

    def _send(self, letter: DeadLetter, page: _Page) -> None:
        if self._bucket is not None:
            self._bucket.acquire()
        topic_stream, partitions = self._open_topic(self._to or letter.record.topic)
        is_home = topic_stream.topic == letter.record.topic and letter.record.partition in partitions
        record = redriven_record(letter, self._to, letter.record.partition if is_home else None, self._timestamps)
        try:
            (receipt,) = topic_stream.append([record])
        except DeliveryError as error:
            page.refused.append((letter.id, str(error)))
        else:
            page.sent.append((letter.id, receipt))

    def _settle(self, page: _Page) -> None:
        """Settle acknowledged letters and return the others of the page. Repeating it is harmless."""
        redriven, failures = [], list(page.refused)
        for id, receipt in page.sent:
            try:
                receipt.result(ACKNOWLEDGED_WITHIN_S)
            except (DeliveryError, TimeoutError) as error:
                failures.append((id, str(error)))
            else:
                redriven.append(id)
        if redriven:
            self._letters.settle(redriven, self.taker, redriven=True)
        back = set(page.ids).difference(redriven)
        if back:
            self._letters.settle(back, self.taker, redriven=False)
        self._count(redriven, failures, page.gone)

    def _count(self, redriven: Sequence[str], failures: Sequence[tuple[str, str]], gone: int = 0) -> None:
        before = self.report
        self.report = replace(
            before,
            redriven=before.redriven + len(redriven),
            failed=before.failed + len(failures),
            gone=before.gone + gone,
            failures=(*before.failures, *failures)[:FAILURES_KEPT],
        )

    def _open_topic(self, topic: str) -> tuple[abc.TopicStream, frozenset[int]]:
        """A topic and the partitions that records may be sent to. UnknownTopicError when it does not exist."""
        if topic not in self._opened:
            topic_stream = self._stream.open_topic(topic)
            partitions = topic_stream.partitions()
            can_choose = Feature.CHOSEN_PARTITION in topic_stream.features
            self._opened[topic] = topic_stream, frozenset(partitions if can_choose else ())
        return self._opened[topic]


def _redrivable(which: DeadLetterFilter) -> DeadLetterFilter:
    open_states = frozenset({LetterState.WAITING, LetterState.TAKEN})
    states = which.states & open_states if which.states else open_states
    if not states:
        raise ConfigError("only letters that are waiting, or taken by a redrive that died, can be redriven")
    return replace(which, states=states)
