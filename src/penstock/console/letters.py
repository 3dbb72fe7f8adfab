"""Dead letters: pages of them, single ones, comparing two; redriving and discarding.

Only stores that were configured, or found in the stream, can be opened: their names come from the address of a web
page, and must not open any file of the machine.
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
from penstock.console.messages.showing import WHOLE_CHARACTERS, Showing
from penstock.console.views import Difference, LetterDetail, LetterErrors, LetterPage, LetterRow
from penstock.dead_letters.holding import hold_of
from penstock.dead_letters.opening import names_a_topic, open_dead_letters, path_of
from penstock.dead_letters.redriving import RedriveReport, redrive
from penstock.errors import BrokerUnavailableError, ConfigError, PenstockError, StoreUnavailableError
from penstock.model import DeadLetter, DeadLetterFilter, HistoryEntry, LetterState
from penstock.model.letter import is_of_query
from penstock.model.pointer_forms import PointerText
from penstock.observe.facts import LetterFacts, Snapshot
from penstock.streams import Connection

MOST_ROWS: Final = 1_000
MOST_DISCARDED: Final = 10_000
COUNTED_LETTERS: Final = 20_000
COUNTED_S: Final = 1.0
FIRST_READ_S: Final = 60.0
"""How long to wait for the first read of a dead-letter topic."""
_COUNTED_AT_ONCE: Final = 500
_ANY_STATE: Final = frozenset(LetterState)
_OPEN: Final = frozenset({LetterState.WAITING, LetterState.TAKEN})


class Letters:
    """The console's operations on dead letters. Thread-safe."""

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
        self._places: dict[str, _OpenStore] = {}

    def stores(self) -> list[LetterFacts]:
        """The stores, those with most waiting letters first."""
        known = dict(self._snapshot().letters)
        for spec in self._specs:
            known.setdefault(spec, LetterFacts(spec, 0, is_exact=False))
        return sorted(known.values(), key=lambda each: (-each.waiting, each.spec))

    def page(self, spec: str, which: DeadLetterFilter, limit: int, after: str | None) -> LetterPage:
        if not 1 <= limit <= MOST_ROWS:
            raise ConfigError(f"a page has 1 to {MOST_ROWS:,} letters, not {limit:,}")
        found = self._opened(spec).browse(which, limit + 1, after)
        rows = tuple(_row(letter, Showing(), self._link.pointer_text) for letter in found[:limit])
        return LetterPage(rows, rows[-1].id if len(found) > limit else None)

    def detail(self, spec: str, id: str, history: Callable[[DeadLetter], Sequence[HistoryEntry]]) -> LetterDetail:
        letter = self.letter(spec, id)
        showing = Showing(characters=WHOLE_CHARACTERS, is_pretty=True, topic=letter.record.topic)
        return LetterDetail(
            _row(letter, showing, self._link.pointer_text),
            tuple((name, showing.show(content)) for name, content in letter.record.headers),
            letter.traceback,
            letter.handler_version,
            tuple(history(letter)),
        )

    def letter(self, spec: str, id: str) -> DeadLetter:
        for letter in self._opened(spec).browse(DeadLetterFilter(ids=frozenset({id}), states=_ANY_STATE), 1):
            return letter
        raise ConfigError(f"there is no dead letter {id!r} in {spec}")

    def errors(self, spec: str) -> LetterErrors:
        """How many waiting letters have which kind of error. Counting stops after `COUNTED_LETTERS` letters or
        `COUNTED_S`."""
        opened = self._opened(spec)
        counts: Counter[str] = Counter()
        after: str | None = None
        until_s = time.monotonic() + COUNTED_S
        while counts.total() < COUNTED_LETTERS and time.monotonic() < until_s:
            page = opened.browse(DeadLetterFilter(), _COUNTED_AT_ONCE, after)
            counts.update(letter.error_kind for letter in page)
            if len(page) < _COUNTED_AT_ONCE:
                return LetterErrors(tuple(counts.most_common()), is_complete=True, counted=counts.total())
            after = page[-1].id
        return LetterErrors(tuple(counts.most_common()), is_complete=False, counted=counts.total())

    def count(self, spec: str, which: DeadLetterFilter) -> int:
        """How many of these can be redriven."""
        opened, redrivable = self._opened(spec), _redrivable(which)
        return opened.count(redrivable) if redrivable.states else 0

    def compare(self, spec: str, left: str, right: str) -> list[Difference]:
        return differences(self.letter(spec, left), self.letter(spec, right), self._link.pointer_text)

    def redriving(self, job: Job, which: DeadLetterFilter) -> Work:
        """The work of a job that redrives these, and holds their store, so that no other redrive runs there.

        What can be refused at once is refused here, and not in the job."""
        redrivable = _redrivable(which)
        if not redrivable.states:
            raise ConfigError("only letters that wait, or were taken by a redrive that died, can be redriven")
        letters = self._opened(job.spec)
        connection = self._link.connection()
        if job.to is not None:
            self._link.topics().partitions_of(job.to)  # the topic must exist
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

    def discarding(self, job: Job, which: DeadLetterFilter, reason: str) -> Work:
        """The work of a job that marks all of these as not needed."""
        _check_reason(reason)
        open_ones = _redrivable(which)
        if not open_ones.states:
            raise ConfigError("only waiting letters can be discarded all at once: the others are settled")
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
        """The same text for all spellings of one store."""
        path = path_of(spec)
        return spec if path is None else f"{spec.partition(':')[0].lower()}:{path.resolve()}"

    def close(self) -> None:
        with self._lock:
            places, self._places = list(self._places.values()), {}
        for place in places:
            place.letters.close()

    def _opened(self, spec: str) -> DeadLetters:
        """The letters of a known store; those in a topic over the current connection."""
        if spec not in self._specs and spec not in self._snapshot().letters:
            self._refuse_unknown(spec)
        connection = None
        if names_a_topic(spec):
            connection = self._link.connection()
            self._link.topics().partitions_of(spec)  # opening must not create the topic
        path = path_of(spec)
        if path is not None and not path.exists():
            raise ConfigError(f"there are no dead letters at {path} yet")
        with self._lock:
            place = self._places.get(spec)
            if place is None or place.connection is not connection:
                place = self._places[spec] = _OpenStore(spec, open_dead_letters(spec, connection), connection)
        place.wait_until_read(FIRST_READ_S)
        return place.letters

    def _refuse_unknown(self, spec: str) -> None:
        """Raise ConfigError for an unknown store, after a new look if the last one failed or is missing."""
        snapshot = self._snapshot()
        if names_a_topic(spec) and snapshot.problem is not None:
            snapshot = self._look_now()
            if spec in snapshot.letters:
                return
            if snapshot.problem is not None:
                raise BrokerUnavailableError(f"it is unknown whether {spec!r} holds letters: {snapshot.problem}")
        known = ", ".join(each.spec for each in self.stores()) or "none"
        raise ConfigError(f"{spec!r} is not a dead-letter store that this console knows; there are: {known}")


class _OpenStore:
    """An open store. A topic is read from start to end before it can be queried, which takes long with a million
    letters: that is done once, in the background, and callers get an error meanwhile."""

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
        """Return when it can be queried. Raises StoreUnavailableError when it cannot yet."""
        if not self._is_read.wait(timeout_s):
            raise StoreUnavailableError(
                f"the dead letters in topic {self._spec!r} are being read for the first time, as there are many: "
                "try again in a moment"
            )
        error, self._error = self._error, None
        if error is not None:
            self._is_read.clear()
            self._begin()  # for the next caller
            raise error

    def _begin(self) -> None:
        threading.Thread(target=self._read, name=f"letters-{self._spec}", daemon=True).start()

    def _read(self) -> None:
        try:
            self.letters.browse(DeadLetterFilter(), 1)
        except PenstockError as error:
            self._error = error
        finally:
            self._is_read.set()


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise ConfigError("give a reason why these letters are not needed: it goes into the audit log")


def _redrivable(which: DeadLetterFilter) -> DeadLetterFilter:
    """The filter, limited to states that can be redriven; an empty set if there are none."""
    return replace(which, states=which.states & _OPEN if which.states else _OPEN)


def _row(letter: DeadLetter, showing: Showing, pointer_text: PointerText) -> LetterRow:
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
        str(record.offset) if is_of_query(record.topic) else pointer_text(record.offset),
    )
