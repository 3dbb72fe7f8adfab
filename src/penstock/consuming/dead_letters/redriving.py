"""Redrive: sending again what was given up, as it was, once what was wrong is put right.

For a page of letters at a time: take them, append their records, wait until the stream has acknowledged them, settle
them. Whoever is killed in between leaves letters that are taken; the next redrive takes them again and gives the
records the same ids, so a record that was appended twice is handled once.
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
from penstock.consuming.dead_letters.headers import redrive_headers
from penstock.consuming.dead_letters.holding import DEAD_AFTER_S, Hold, hold_of
from penstock.consuming.dead_letters.rate import TokenBucket
from penstock.errors import ConfigError, DeliveryError
from penstock.model import DeadLetter, LetterFilter, LetterState, NewRecord, Receipt
from penstock.model.clock import SystemClock

PAGE_LETTERS: Final = 200
ACKNOWLEDGED_WITHIN_S: Final = 60.0
FAILURES_KEPT: Final = 100
_WATCHED_S: Final = 1.5 * DEAD_AFTER_S
"""Long enough to see whether a redrive that has the place still lives."""

Timestamps = Literal["original", "now"]


@dataclass(frozen=True, slots=True)
class RedriveReport:
    """What a redrive has done."""

    redriven: int = 0
    """Letters whose records the stream has acknowledged."""
    failed: int = 0
    """Letters whose records the stream refused, or did not acknowledge in time: they are waiting again."""
    gone: int = 0
    """Letters that others had dealt with by the time they were to be taken."""
    failures: tuple[tuple[str, str], ...] = ()
    """The ids of the first letters that failed, and why."""
    interrupted: bool = False
    """It was stopped by Ctrl-C. What was not sent is waiting."""
    gave_up: bool = False
    """It stopped because nothing of a whole page came through. What was not sent is waiting."""


def redrive(
    letters: abc.DeadLetters,
    streams: abc.Streams,
    which: LetterFilter,
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
    """Send the records of the letters that match again, in the order in which they were given up.

    A record is appended to its own topic and, where partitions can be chosen, to its own partition, or else to the
    topic `to`; with its key, value and headers as they were, and headers that tell who is to handle it and that it is
    this redrive (see `headers`). It keeps its timestamp, unless `timestamps` is "now": take that when letters are older
    than the topic keeps records, or it may expire before it is read. Letters that fail again meanwhile are left for
    the next redrive.

    At most `limit` letters and `rate_per_s` letters in a second. Ctrl-C ends it in good order: what is under way is
    waited for, and the report says how far it came. `on_progress` is called after each page.

    One redrive of a place runs at a time: while another does, in whatever process, RedriveRunningError tells whose it
    is. `hold` is for who holds the place already (`holding.hold_of`), and lets go of it later.
    """
    clock = clock or SystemClock()
    if limit is not None and limit < 0:
        raise ConfigError(f"a limit is a number of letters, and {limit} is not")
    if timestamps not in ("original", "now"):
        raise ConfigError(f"timestamps are 'original' or 'now', not {timestamps!r}")
    if Feature.HEADERS not in streams.features:
        raise ConfigError(f"{streams.url} cannot take redriven records: it has no {Feature.HEADERS}, which tell them")
    run = _Run(letters, streams, to, TokenBucket(rate_per_s, clock) if rate_per_s is not None else None, timestamps)
    run.taker = taker or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    redrivable = _redrivable(which)
    held = hold
    # About a second's worth: a letter is not held for longer than it takes to send it.
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
    # In its own topic it is for the group that gave it up. Elsewhere it is for whoever reads there.
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


@dataclass(slots=True)
class _Page:
    """Letters that are redriven together, and what has become of them so far."""

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
        streams: abc.Streams,
        to: str | None,
        bucket: TokenBucket | None,
        timestamps: Timestamps,
    ) -> None:
        self.report = RedriveReport()
        self._letters = letters
        self._streams = streams
        self._to = to
        self._bucket = bucket
        self._timestamps = timestamps
        self._opened: dict[str, tuple[abc.Stream, frozenset[int]]] = {}

    def drive(
        self,
        which: LetterFilter,
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
            before = self.report
            self._redrive_page([letter.id for letter in page])
            last = page[-1].id
            if on_progress is not None:
                on_progress(self.report)
            if self.report.failed > before.failed and self.report.redriven == before.redriven:
                self.report = replace(self.report, gave_up=True)
                return

    def close(self) -> None:
        for stream, _ in self._opened.values():
            stream.close()

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
                self._settle(page)  # who is told to stop finishes this first; only who is told again does not
                raise

    def _send(self, letter: DeadLetter, page: _Page) -> None:
        if self._bucket is not None:
            self._bucket.acquire()
        stream, partitions = self._stream(self._to or letter.record.topic)
        is_home = stream.topic == letter.record.topic and letter.record.partition in partitions
        record = redriven_record(letter, self._to, letter.record.partition if is_home else None, self._timestamps)
        try:
            (receipt,) = stream.append([record])
        except DeliveryError as error:
            page.refused.append((letter.id, str(error)))
        else:
            page.sent.append((letter.id, receipt))

    def _settle(self, page: _Page) -> None:
        """Settle what was acknowledged, and give back all else of the page that is ours. Doing it again is harmless."""
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
        before = self.report
        self.report = replace(
            before,
            redriven=before.redriven + len(redriven),
            failed=before.failed + len(failures),
            gone=before.gone + page.gone,
            failures=(*before.failures, *failures)[:FAILURES_KEPT],
        )

    def _stream(self, topic: str) -> tuple[abc.Stream, frozenset[int]]:
        """A topic and the partitions that a record may be given to there. UnknownTopicError when there is none."""
        if topic not in self._opened:
            stream = self._streams.stream(topic)
            partitions = stream.partitions()
            can_choose = Feature.CHOSEN_PARTITION in stream.features
            self._opened[topic] = stream, frozenset(partitions if can_choose else ())
        return self._opened[topic]


def _redrivable(which: LetterFilter) -> LetterFilter:
    open_states = frozenset({LetterState.WAITING, LetterState.TAKEN})
    states = which.states & open_states if which.states else open_states
    if not states:
        raise ConfigError("only letters that are waiting, or were taken by a redrive that died, can be redriven")
    return replace(which, states=states)
