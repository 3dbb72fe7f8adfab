"""Dead letters: pages of them, one of them whole, what distinguishes two; redriving and discarding.

Only places that the console was told of, or that it has found in the stream, can be looked into: the name of a place
comes from the address of a web page, and must not open any file of the machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from penstock.abc import Clock, DeadLetters
from penstock.console.comparing import differences
from penstock.console.jobs import Job, JobClock, Work
from penstock.console.link import Link
from penstock.console.showing import WHOLE_CHARACTERS, Showing
from penstock.console.views import Difference, LetterDetail, LetterErrors, LetterPage, LetterRow
from penstock.consuming.dead_letters.holding import hold_of
from penstock.consuming.dead_letters.opening import names_a_topic, open_dead_letters, path_of
from penstock.consuming.dead_letters.redriving import RedriveReport, redrive
from penstock.errors import BrokerUnavailableError, ConfigError, PenstockError, StoreUnavailableError
from penstock.model import DeadLetter, Happening, LetterFilter, LetterState
from penstock.observe.facts import LetterFacts, Snapshot
from penstock.streams import Connection

MOST_ROWS: Final = 1_000
MOST_DISCARDED: Final = 10_000
COUNTED_LETTERS: Final = 20_000
COUNTED_S: Final = 1.0
FIRST_READ_S: Final = 5.0
"""How long somebody waits for a topic of letters to be read for the first time."""
_COUNTED_AT_ONCE: Final = 500
_ANY_STATE: Final = frozenset(LetterState)
_OPEN: Final = frozenset({LetterState.WAITING, LetterState.TAKEN})


class Letters:
    """What the console does with dead letters. Any thread may use it."""

    def __init__(
        self,
        link: Link,
        specs: Sequence[str],
        snapshot: Callable[[], Snapshot],
        look_now: Callable[[], Snapshot],
        clock: Clock,
    ) -> None:
        self._link = link
        self._specs = tuple(specs)
        self._snapshot = snapshot
        self._look_now = look_now
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[str, _Place] = {}

    def places(self) -> list[LetterFacts]:
        """The places, those where most waits first."""
        known = dict(self._snapshot().letters)
        for spec in self._specs:
            known.setdefault(spec, LetterFacts(spec, 0, is_exact=False))
        return sorted(known.values(), key=lambda each: (-each.waiting, each.spec))

    def page(self, spec: str, which: LetterFilter, limit: int, after: str | None) -> LetterPage:
        if not 1 <= limit <= MOST_ROWS:
            raise ConfigError(f"a page has 1 to {MOST_ROWS:,} letters, not {limit:,}")
        found = self._opened(spec).browse(which, limit + 1, after)
        rows = tuple(_row(letter, Showing()) for letter in found[:limit])
        return LetterPage(rows, rows[-1].id if len(found) > limit else None)

    def detail(self, spec: str, id: str, happenings: Callable[[DeadLetter], Sequence[Happening]]) -> LetterDetail:
        letter = self.letter(spec, id)
        showing = Showing(characters=WHOLE_CHARACTERS, is_pretty=True, topic=letter.record.topic)
        return LetterDetail(
            _row(letter, showing),
            tuple((name, showing.show(content)) for name, content in letter.record.headers),
            letter.traceback,
            letter.handler_version,
            tuple(happenings(letter)),
        )

    def letter(self, spec: str, id: str) -> DeadLetter:
        for letter in self._opened(spec).browse(LetterFilter(ids=frozenset({id}), states=_ANY_STATE), 1):
            return letter
        raise ConfigError(f"there is no dead letter {id!r} in {spec}")

    def errors(self, spec: str) -> LetterErrors:
        """The kinds of error of what waits, counted as far as that is quickly done."""
        opened = self._opened(spec)
        counts: Counter[str] = Counter()
        after: str | None = None
        until_s = time.monotonic() + COUNTED_S
        while counts.total() < COUNTED_LETTERS and time.monotonic() < until_s:
            page = opened.browse(LetterFilter(), _COUNTED_AT_ONCE, after)
            counts.update(letter.error_kind for letter in page)
            if len(page) < _COUNTED_AT_ONCE:
                return LetterErrors(tuple(counts.most_common()), is_complete=True, counted=counts.total())
            after = page[-1].id
        return LetterErrors(tuple(counts.most_common()), is_complete=False, counted=counts.total())

    def count(self, spec: str, which: LetterFilter) -> int:
        """How many of these can be redriven."""
        opened, redrivable = self._opened(spec), _redrivable(which)
        return opened.count(redrivable) if redrivable.states else 0

    def compare(self, spec: str, left: str, right: str) -> list[Difference]:
        return differences(self.letter(spec, left), self.letter(spec, right))

    def redriving(self, job: Job, which: LetterFilter) -> Work:
        """The work of a job that redrives these, which holds their place, so that nobody else's redrive runs there.

        Refused here, and not in the job, is what can be refused at once."""
        redrivable = _redrivable(which)
        if not redrivable.states:
            raise ConfigError("only letters that are waiting, or were taken by a redrive that died, can be redriven")
        letters = self._opened(job.spec)
        connection = self._link.connection()
        if job.to is not None:
            self._link.topics().partitions_of(job.to)  # there is such a topic
        clock = JobClock(self._clock, job)
        holder = f"{job.by.name} ({job.by.address}) in the console on {socket.gethostname()}, process {os.getpid()}"
        hold = hold_of(letters, holder, 0.0, clock)

        def progress(report: RedriveReport) -> None:
            job.report = report
            job.check()

        def work(job: Job) -> RedriveReport:
            with contextlib.ExitStack() as stack:
                stack.callback(hold.release)
                job.check()
                total = letters.count(redrivable)
                job.total = total if job.limit is None else min(total, job.limit)
                return redrive(
                    letters,
                    connection,
                    redrivable,
                    clock=clock,
                    to=job.to,
                    rate_per_s=job.rate_per_s,
                    limit=job.limit,
                    taker=f"console:{job.by.name}:{job.id}",
                    on_progress=progress,
                    hold=hold,
                )

        return work

    def discarding(self, job: Job, which: LetterFilter, reason: str) -> Work:
        """The work of a job that marks all of these as not needed."""
        _check_reason(reason)
        open_ones = _redrivable(which)
        if not open_ones.states:
            raise ConfigError("only letters that are waiting can be discarded all at once: the others were dealt with")
        letters = self._opened(job.spec)

        def work(job: Job) -> RedriveReport:
            job.total = letters.count(open_ones)
            after: str | None = None
            while page := letters.browse(open_ones, MOST_ROWS, after):
                job.check()
                after = page[-1].id
                job.discarded += letters.discard([letter.id for letter in page])
            return job.report

        return work

    def discard(self, spec: str, ids: Collection[str], reason: str) -> int:
        _check_reason(reason)
        if not ids or len(ids) > MOST_DISCARDED:
            raise ConfigError(f"choose 1 to {MOST_DISCARDED:,} letters to discard, not {len(ids):,}")
        return self._opened(spec).discard(ids)

    def place_of(self, spec: str) -> str:
        """The same text for all ways to write one place."""
        path = path_of(spec)
        return spec if path is None else f"{spec.partition(':')[0].lower()}:{path.resolve()}"

    def close(self) -> None:
        with self._lock:
            places, self._places = list(self._places.values()), {}
        for place in places:
            place.letters.close()

    def _opened(self, spec: str) -> DeadLetters:
        """The letters of a known place; those in a topic over the connection that is in use."""
        if spec not in self._specs and spec not in self._snapshot().letters:
            self._refuse_unknown(spec)
        connection = None
        if names_a_topic(spec):
            connection = self._link.connection()
            self._link.topics().partitions_of(spec)  # looking must not make the topic
        path = path_of(spec)
        if path is not None and not path.exists():
            raise ConfigError(f"there are no dead letters at {path} yet")
        with self._lock:
            place = self._places.get(spec)
            if place is None or place.connection is not connection:
                place = self._places[spec] = _Place(spec, open_dead_letters(spec, connection), connection)
        place.wait_until_read(FIRST_READ_S)
        return place.letters

    def _refuse_unknown(self, spec: str) -> None:
        """Say that there is no such place, unless there is one after all: nobody has looked yet, or in vain."""
        snapshot = self._snapshot()
        if names_a_topic(spec) and snapshot.problem is not None:
            snapshot = self._look_now()
            if spec in snapshot.letters:
                return
            if snapshot.problem is not None:
                raise BrokerUnavailableError(f"whether {spec!r} is a topic of letters is not known: {snapshot.problem}")
        known = ", ".join(each.spec for each in self.places()) or "none"
        raise ConfigError(f"{spec!r} is no place of dead letters that this console knows; there are: {known}")


class _Place:
    """An opened place. One in a topic is read from its start to its end before anything can be said of it, which takes
    long where a million letters are: that is done once, aside, and whoever asks meanwhile is told so."""

    def __init__(self, spec: str, letters: DeadLetters, connection: Connection | None) -> None:
        self.letters = letters
        self.connection = connection
        self._spec = spec
        self._is_read = threading.Event()
        self._error: PenstockError | None = None
        if connection is None:
            self._is_read.set()
        else:
            self._begin()

    def wait_until_read(self, timeout_s: float) -> None:
        """Return when it can be asked. StoreUnavailableError when it cannot yet."""
        if not self._is_read.wait(timeout_s):
            raise StoreUnavailableError(
                f"the dead letters in topic {self._spec!r} are being read for the first time, as there are many: "
                "look again in a moment"
            )
        error, self._error = self._error, None
        if error is not None:
            self._is_read.clear()
            self._begin()  # for who asks next
            raise error

    def _begin(self) -> None:
        threading.Thread(target=self._read, name=f"letters-{self._spec}", daemon=True).start()

    def _read(self) -> None:
        try:
            self.letters.browse(LetterFilter(), 1)
        except PenstockError as error:
            self._error = error
        finally:
            self._is_read.set()


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise ConfigError("say why these letters are not needed: the reason is kept in the audit log")


def _redrivable(which: LetterFilter) -> LetterFilter:
    """These, as far as they wait; of no state, if none of them do."""
    return replace(which, states=which.states & _OPEN if which.states else _OPEN)


def _row(letter: DeadLetter, showing: Showing) -> LetterRow:
    record = letter.record
    return LetterRow(
        letter.id,
        letter.group,
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        showing.show(record.key),
        showing.show(record.value),
        letter.error,
        letter.error_kind,
        letter.attempts,
        letter.first_ms,
        letter.last_ms,
        letter.state,
        letter.redrives,
        letter.handler,
    )
