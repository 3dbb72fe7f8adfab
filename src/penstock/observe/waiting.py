"""How long the next record of each reader has been waiting: from the history of ends, or from the record itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.observe.timeline import Timeline
from penstock.streams.kafka.groups import Place
from penstock.streams.kafka.record_times import RecordTime

Reading = Callable[[Mapping[Place, int]], Mapping[Place, RecordTime | None]]
"""Looks records up: for each partition the first one from a pointer on; None when there is none."""

READS_AT_ONCE: Final = 16
"""A look reads so many records at most. The others have their turn at the next."""
CLOSE_ENOUGH_MS: Final = 15_000
CLOSE_ENOUGH: Final = 0.1
"""What the history of ends says is taken when it is wrong by less than this part of the answer, or than those ms."""
_MOST_KNOWN: Final = 4_096


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a record has been waiting to be read."""

    lag_s: float
    age_s: float
    """By its own timestamp, which is what retention goes by; the same as `lag_s` unless its maker set another."""
    is_nothing: bool = False
    """There is nothing to read: what lies between the reader and the end are marks of transactions, or was removed by
    compaction."""


NOTHING_WAITS: Final = Wait(0.0, 0.0, is_nothing=True)


@dataclass(frozen=True, slots=True)
class Question:
    """A reader whose next record is asked about."""

    place: Place
    pointer: int
    end: int
    stands_still: bool
    """Neither the reader nor the end has moved since the last look."""


class Waiting:
    """Answers for many readers, with few reads."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Place, int], tuple[RecordTime | None, int]] = OrderedDict()
        """What was read at a pointer, and where the partition ended then."""
        self._turn = 0

    def answer(
        self, questions: Iterable[Question], timelines: Mapping[Place, Timeline], now_ms: int, read: Reading
    ) -> dict[tuple[Place, int], Wait]:
        asked = {(each.place, each.pointer): each for each in questions}
        wanted = [each for each in asked.values() if self._wants_reading(each, timelines[each.place], now_ms)]
        self._read(wanted, timelines, read)
        return {key: self._wait(each, timelines[each.place], now_ms) for key, each in asked.items()}

    def _wants_reading(self, question: Question, timeline: Timeline, now_ms: int) -> bool:
        if self._is_known(question):
            return False
        appended = timeline.appended(question.pointer)
        if question.stands_still or appended is None:
            return True
        return appended.within_ms > max(CLOSE_ENOUGH_MS, CLOSE_ENOUGH * (now_ms - appended.at_ms))

    def _is_known(self, question: Question) -> bool:
        known = self._known.get((question.place, question.pointer))
        return known is not None and (known[0] is not None or known[1] >= question.end)

    def _read(self, wanted: list[Question], timelines: Mapping[Place, Timeline], read: Reading) -> None:
        if not wanted:
            return
        first = self._turn % len(wanted)
        chosen: dict[Place, Question] = {}
        for question in [*wanted[first:], *wanted[:first]]:
            if len(chosen) == READS_AT_ONCE:
                break
            chosen.setdefault(question.place, question)
        self._turn = first + len(chosen)
        found = read({place: question.pointer for place, question in chosen.items()})
        for place, record in found.items():
            question = chosen[place]
            self._known[place, question.pointer] = (record, question.end)
            if record is not None:
                timelines[place].read(record.pointer, record.timestamp_ms)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _wait(self, question: Question, timeline: Timeline, now_ms: int) -> Wait:
        after_ms, before_ms = timeline.bounds_ms(question.pointer)
        if self._is_known(question):
            record, _ = self._known[question.place, question.pointer]
            if record is None:
                return NOTHING_WAITS
            at_ms = record.timestamp_ms
            if before_ms is not None:
                at_ms = min(at_ms, before_ms)
            if after_ms is not None and record.pointer == question.pointer:
                at_ms = max(at_ms, after_ms)
            return Wait(max(0, now_ms - at_ms) / 1000, max(0, now_ms - record.timestamp_ms) / 1000)
        appended = timeline.appended(question.pointer)
        if appended is not None:
            lag_s = max(0, now_ms - appended.at_ms) / 1000
        else:  # it was there before the first look, and was not read yet: at least so long
            lag_s = max(0, now_ms - (timeline.began_ms or now_ms)) / 1000
        return Wait(lag_s, lag_s)
