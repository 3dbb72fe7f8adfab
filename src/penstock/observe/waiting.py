"""How long the next record of each reader has been waiting: from the history of ends, or from the record itself."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.model.administration import PartitionId, RecordTime

MOST_POINTS: Final = 64
"""The most points of a partition; beyond it, every second one of the older half goes, so the past gets coarser."""


@dataclass(slots=True)
class _Point:
    """The partition ended at `end` at least from `first_ms` until `last_ms`."""

    end: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Appended:
    """When a record was appended, and the possible error."""

    at_ms: int
    within_ms: int


class Timeline:
    """The end of a partition, look by look.

    The record at pointer 1,200 was appended when the end passed 1,200. With the end at 1,000 at second 10, and at 1,500
    at second 20, the 500 records between share the ten seconds: 1,200 was appended at 10 + 10 x 200.5 / 500 = 14.01 s.
    """

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points: list[_Point] = []

    def look(self, at_ms: int, end: int) -> None:
        """The partition ends here now. An end or a time that went back starts over."""
        points = self._points
        if points and (end < points[-1].end or at_ms < points[-1].last_ms):
            points.clear()
        if points and points[-1].end == end:
            points[-1].last_ms = at_ms
            return
        points.append(_Point(end, at_ms, at_ms))
        if len(points) > MOST_POINTS:
            del points[1 : MOST_POINTS // 2 : 2]

    def read(self, pointer: int, at_ms: int) -> None:
        """The record at this pointer has this timestamp. Ignored where it contradicts a look."""
        points = self._points
        index = bisect.bisect_left(points, pointer, key=lambda point: point.end)
        if index < len(points) and points[index].end == pointer:
            return
        after = points[index] if index < len(points) else None
        before = points[index - 1] if index else None
        if (after is not None and at_ms > after.first_ms) or (before is not None and at_ms < before.last_ms):
            return
        points.insert(index, _Point(pointer, at_ms, at_ms))
        if len(points) > MOST_POINTS:
            del points[1 : MOST_POINTS // 2 : 2]

    def appended(self, pointer: int) -> Appended | None:
        """When the record at this pointer was appended; None before the timeline starts, and at its end."""
        points = self._points
        index = bisect.bisect_right(points, pointer, key=lambda point: point.end)
        if index == 0 or index == len(points):
            return None
        before, after = points[index - 1], points[index]
        gap_ms = max(0, after.first_ms - before.last_ms)
        part = (pointer - before.end + 0.5) / (after.end - before.end)
        return Appended(round(before.last_ms + gap_ms * part), gap_ms)

    def bounds_ms(self, pointer: int) -> tuple[int | None, int | None]:
        """After when, and before when, the record at this pointer was appended, as far as that was seen."""
        points = self._points
        index = bisect.bisect_right(points, pointer, key=lambda point: point.end)
        after_ms = points[index - 1].last_ms if index else None
        return after_ms, points[index].first_ms if index < len(points) else None

    @property
    def began_ms(self) -> int | None:
        """When the end of the partition was first known."""
        return self._points[0].first_ms if self._points else None


Reading = Callable[[Mapping[PartitionId, int]], Mapping[PartitionId, RecordTime | None]]
"""Looks records up: for each partition the first one from a pointer on; None when there is none."""

READS_AT_ONCE: Final = 16
"""A look reads at most this many records. The others are read at the next."""
CLOSE_ENOUGH_MS: Final = 15_000
CLOSE_ENOUGH: Final = 0.1
"""An estimate from the history of ends is used when its error is below this part of the answer, or these ms."""
_MOST_KNOWN: Final = 4_096


@dataclass(frozen=True, slots=True)
class Wait:
    lag_s: float
    age_s: float
    """By its own timestamp, which retention uses; the same as `lag_s` unless its producer set another."""
    is_nothing: bool = False
    """There is nothing to read: what lies between the reader and the end are transaction markers, or was removed by
    compaction."""
    is_after_loss: bool = False
    """Records before this one have expired unread: only where a read told so."""


NOTHING_WAITS: Final = Wait(0.0, 0.0, is_nothing=True)


@dataclass(frozen=True, slots=True)
class Question:
    """A reader whose next record is to be dated."""

    place: PartitionId
    pointer: int
    end: int
    stands_still: bool
    """Neither the reader nor the end has moved since the last look."""
    start: int = 0
    """The first pointer that can be read: a record before it, once known, has expired."""


class Waiting:
    """Answers for many readers, with few reads."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[PartitionId, int], tuple[RecordTime | None, int]] = OrderedDict()
        """What was read at a pointer, and where the partition ended then."""
        self._turn = 0

    def answer(
        self, questions: Iterable[Question], timelines: Mapping[PartitionId, Timeline], now_ms: int, read: Reading
    ) -> dict[tuple[PartitionId, int], Wait]:
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
        record, end = self._known.get((question.place, question.pointer), (None, -1))
        return end >= question.end if record is None else record.pointer >= question.start

    def _read(self, wanted: list[Question], timelines: Mapping[PartitionId, Timeline], read: Reading) -> None:
        if not wanted:
            return
        first = self._turn % len(wanted)
        chosen: dict[PartitionId, Question] = {}
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
            age_s = max(0, now_ms - record.timestamp_ms) / 1000
            return Wait(max(0, now_ms - at_ms) / 1000, age_s, is_after_loss=record.is_after_loss)
        appended = timeline.appended(question.pointer)
        if appended is not None:
            lag_s = max(0, now_ms - appended.at_ms) / 1000
        else:  # it existed before the first look, and was not read yet: at least this long
            lag_s = max(0, now_ms - (timeline.began_ms or now_ms)) / 1000
        return Wait(lag_s, lag_s)
