"""Messages of a topic: pages of them from any position, and single ones, whole."""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from penstock.console import browsing
from penstock.console.cursors import Cursor
from penstock.console.lens import WHOLE_HEADERS, Lens, row_of, whole
from penstock.console.link import Link
from penstock.console.scanning import BoundedFeed, Budget, ends_of, size_of
from penstock.console.schemas import Schemas
from penstock.console.views import Decode, Isolation, MessageDetail, MessagePage, MessageQuery
from penstock.errors import BrokerUnavailableError, ConfigError, OffsetOutOfRangeError, StreamError, UnknownTopicError
from penstock.model import Pointer, Position, PositionKind, Record
from penstock.streams.kafka.topics import Offsets

MOST_ROWS: Final = 1_000
PAGE_BYTES: Final = 64 * 1024 * 1024
SCAN_RECORDS: Final = 200_000
SCAN_BYTES: Final = 256 * 1024 * 1024
SCAN_S: Final = 5.0
_ONE_RECORD_S: Final = 5.0
_NEWEST: Final = re.compile(r"latest(?:-(?P<count>\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Spans:
    """What the partitions hold."""

    starts: Offsets
    ends: Offsets

    def clamped(self, pointers: dict[int, Pointer], fallback: Offsets) -> Offsets:
        """These places, as far as they are in the topic now. Partitions that came later begin at `fallback`."""
        return {
            partition: min(max(pointers.get(partition, fallback[partition]), start), self.ends[partition])
            for partition, start in self.starts.items()
        }


class Messages:
    """Reads messages. Any thread may use it; each page has a reader of its own."""

    def __init__(self, link: Link, schemas: Schemas | None, now: Callable[[], datetime.datetime]) -> None:
        self._link = link
        self._schemas = schemas
        self._now = now

    def page(self, query: MessageQuery) -> MessagePage:
        """A page of what matches. Raises UnknownTopicError, FilterError, ConfigError and BrokerUnavailableError."""
        if not 1 <= query.limit <= MOST_ROWS:
            raise ConfigError(f"a page has 1 to {MOST_ROWS:,} messages, not {query.limit:,}")
        lens = Lens(query, self._schemas, self._now())
        spans = self._spans(query.topic, query.partition, query.isolation)
        cursor = None if query.cursor is None else Cursor.parse(query.cursor, query.topic)
        limit = query.limit
        if cursor is None and (newest := _NEWEST.fullmatch(query.position.strip().lower())):
            limit = min(limit, int(newest["count"] or limit)) or 1
            is_back, places = True, spans.ends
        elif cursor is None:
            is_back, places = False, self._located(query, spans)
        else:
            is_back = cursor.way == "older"
            places = spans.clamped(cursor.pointers, spans.starts)
        budget = Budget(SCAN_RECORDS, SCAN_BYTES if lens.is_choosy else PAGE_BYTES, SCAN_S)
        with contextlib.closing(BoundedFeed(self._link, query.topic, spans.starts, query.isolation)) as feed:
            if is_back:
                found = browsing.older(feed, spans.starts, places, limit, lens, budget)
                low, high = found.reached, places
            else:
                found = browsing.newer(feed, places, spans.ends, limit, lens, budget)
                low, high = places, found.reached
        if not found.is_complete and budget.scanned == 0:
            raise self._silent(query.topic)
        return MessagePage(
            rows=tuple(found.rows),
            cursor=_cursor(query.topic, "newer", high, any(high[each] < spans.ends[each] for each in high)),
            before=_cursor(query.topic, "older", low, any(low[each] > spans.starts[each] for each in low)),
            scanned=budget.scanned,
            is_complete=found.is_complete,
            note="; ".join(filter(None, ("" if found.is_complete else budget.note(), lens.note))) or None,
        )

    def detail(
        self, topic: str, partition: int, pointer: Pointer, decode: Decode, isolation: Isolation
    ) -> MessageDetail:
        record = self.record(topic, partition, pointer, isolation)
        spans = self._spans(topic, partition, isolation)
        row = row_of(record, size_of(record), whole(decode, self._schemas, topic), WHOLE_HEADERS)
        return MessageDetail(row, spans.starts[partition], spans.ends[partition])

    def record(self, topic: str, partition: int, pointer: Pointer, isolation: Isolation) -> Record:
        """The record at a pointer. OffsetOutOfRangeError or StreamError when there is none."""
        spans = self._spans(topic, partition, isolation)
        start, end = spans.starts[partition], spans.ends[partition]
        if not start <= pointer < end:
            raise OffsetOutOfRangeError(f"{topic}-{partition}", pointer, start, end)
        deadline_s = time.monotonic() + _ONE_RECORD_S
        with contextlib.closing(BoundedFeed(self._link, topic, [partition], isolation)) as feed:
            feed.add(partition, pointer)
            while (left_s := deadline_s - time.monotonic()) > 0:
                for batch in feed.poll(1, left_s):
                    if batch and batch.pointer(0) == pointer:
                        return batch[0]
                    if batch.next > pointer:
                        raise StreamError(
                            f"there is no record at {topic}-{partition}, {pointer}: it was compacted away, is the mark "
                            f"of a transaction, or belongs to one that was not committed. Go on at {batch.next}"
                        )
        raise self._silent(topic)

    def _spans(self, topic: str, partition: int | None, isolation: Isolation) -> _Spans:
        topics = self._link.topics()
        there = topics.partitions_of(topic)
        if partition is not None and partition not in there:
            raise UnknownTopicError(f"topic {topic!r} has no partition {partition}: it has {len(there)}")
        chosen = there if partition is None else (partition,)
        starts = topics.earliest(topic, chosen)
        ends = ends_of(topics, topic, chosen, isolation)
        return _Spans(starts, {each: max(ends[each], start) for each, start in starts.items()})

    def _located(self, query: MessageQuery, spans: _Spans) -> Offsets:
        position = Position.parse(query.position, self._now())
        if position.kind is PositionKind.TIME:
            return spans.clamped(self._link.topics().at_time(query.topic, position.time_ms, spans.starts), spans.ends)
        if position.kind is PositionKind.POINTER:
            return spans.clamped(dict.fromkeys(spans.starts, int(position.pointer)), spans.starts)
        return dict(spans.starts)

    def _silent(self, topic: str) -> BrokerUnavailableError:
        self._link.look_again()
        return BrokerUnavailableError(
            f"topic {topic!r} could not be read: the broker gave nothing for {SCAN_S:g} s; "
            "see that it runs, and look again"
        )


def _cursor(topic: str, way: Literal["newer", "older"], pointers: Offsets, is_more: bool) -> str | None:
    return Cursor(topic, way, dict(pointers)).text() if is_more else None
