"""Pages of messages of a topic from any position, and single messages."""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from penstock.console.link import Link
from penstock.console.messages import browsing
from penstock.console.messages.browsing import Budget, bounded_feed, size_of
from penstock.console.messages.showing import Schemas
from penstock.console.messages.view_settings import WHOLE_HEADERS, ViewSettings, row_of, whole
from penstock.console.views import Decode, MessageDetail, MessagePage, MessageQuery
from penstock.errors import BrokerUnavailableError, ConfigError, OffsetOutOfRangeError, StreamError, UnknownTopicError
from penstock.model import Pointer, PositionKind, Record
from penstock.model.administration import Offsets
from penstock.model.pointer_forms import parse_position

_LONGEST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a topic, and the direction of reading."""

    topic: str
    way: Literal["newer", "older"]
    pointers: dict[int, Pointer]
    """Of each partition: from here on, or up to before here."""

    def text(self) -> str:
        wire = msgspec.json.encode([self.topic, self.way, {str(p): str(each) for p, each in self.pointers.items()}])
        return base64.urlsafe_b64encode(wire).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str, topic: str) -> Cursor:
        """The cursor in a URL. ConfigError for a damaged cursor, or one of another topic."""
        try:
            if len(text) > _LONGEST:
                raise ValueError("it is too long")
            wire = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            its_topic, way, pointers = msgspec.json.decode(
                wire, type=tuple[str, Literal["newer", "older"], dict[str, str]]
            )
            found = {int(partition): int(pointer) for partition, pointer in pointers.items()}
        except (ValueError, binascii.Error, msgspec.MsgspecError, UnicodeEncodeError):
            raise ConfigError("this cursor is not valid: start again from a position") from None
        if its_topic != topic or any(partition < 0 or pointer < 0 for partition, pointer in found.items()):
            raise ConfigError(f"this cursor is not of topic {topic!r}: start again from a position")
        return cls(its_topic, way, found)


MOST_ROWS: Final = 1_000
PAGE_BYTES: Final = 64 * 1024 * 1024
SCAN_RECORDS: Final = 200_000
SCAN_BYTES: Final = 256 * 1024 * 1024
SCAN_S: Final = 5.0
SILENT_S: Final = 60.0
"""How long to wait for the first record."""
_NEWEST: Final = re.compile(r"latest(?:-(?P<count>\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Spans:
    starts: Offsets
    ends: Offsets

    def clamped(self, pointers: dict[int, Pointer], fallback: Offsets) -> Offsets:
        """These offsets, clamped to the topic's current ones. Partitions added since start at `fallback`."""
        return {
            partition: min(max(pointers.get(partition, fallback[partition]), start), self.ends[partition])
            for partition, start in self.starts.items()
        }


class MessageReader:
    """Reads messages. Thread-safe; each page has its own reader."""

    def __init__(self, link: Link, schemas: Schemas | None, now: Callable[[], datetime.datetime]) -> None:
        self._link = link
        self._schemas = schemas
        self._now = now

    def page(self, query: MessageQuery) -> MessagePage:
        """A page of matching messages. Raises UnknownTopicError, FilterError, ConfigError and
        BrokerUnavailableError."""
        if not 1 <= query.limit <= MOST_ROWS:
            raise ConfigError(f"a page has 1 to {MOST_ROWS:,} messages, not {query.limit:,}")
        view = ViewSettings(query, self._schemas, self._now())
        spans = self._spans(query.topic, query.partition)
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
        budget = Budget(SCAN_RECORDS, SCAN_BYTES if view.is_choosy else PAGE_BYTES, SCAN_S, SILENT_S)
        with contextlib.closing(bounded_feed(self._link, query.topic, spans.starts)) as feed:
            scan = browsing.Scan(feed, view, budget)
            if is_back:
                found = browsing.older(scan, spans.starts, places, limit, is_counted=self._link.is_counted)
                low, high = found.reached, places
            else:
                found = browsing.newer(scan, places, spans.ends, limit)
                low, high = places, found.reached
        if not found.is_complete and budget.scanned == 0:
            raise self._silent(query.topic)
        return MessagePage(
            rows=tuple(found.rows),
            cursor=_cursor(query.topic, "newer", high, any(high[each] < spans.ends[each] for each in high)),
            before=_cursor(query.topic, "older", low, any(low[each] > spans.starts[each] for each in low)),
            scanned=budget.scanned,
            is_complete=found.is_complete,
            note="; ".join(filter(None, ("" if found.is_complete else budget.note(), view.note))) or None,
        )

    def detail(self, topic: str, partition: int, pointer: Pointer, decode: Decode) -> MessageDetail:
        record = self.record(topic, partition, pointer)
        spans = self._spans(topic, partition)
        row = row_of(record, size_of(record), whole(decode, self._schemas, topic), WHOLE_HEADERS)
        return MessageDetail(row, spans.starts[partition], spans.ends[partition])

    def record(self, topic: str, partition: int, pointer: Pointer) -> Record:
        """The record at an offset. Raises OffsetOutOfRangeError or StreamError when there is none."""
        spans = self._spans(topic, partition)
        start, end = spans.starts[partition], spans.ends[partition]
        text = self._link.pointer_text
        if not start <= pointer < end:
            if text(pointer) == str(pointer):
                raise OffsetOutOfRangeError(f"{topic}-{partition}", pointer, start, end)
            raise StreamError(
                f"there is no record at {topic}-{partition}, {text(pointer)}: it holds {text(start)} up to, not "
                f"including, {text(end)}"
            )
        deadline_s = time.monotonic() + SILENT_S
        with contextlib.closing(bounded_feed(self._link, topic, [partition])) as feed:
            feed.add(partition, pointer)
            while (left_s := deadline_s - time.monotonic()) > 0:
                for batch in feed.poll(1, left_s):
                    if batch and batch.pointer(0) == pointer:
                        return batch[0]
                    if batch.next > pointer:
                        raise StreamError(
                            f"there is no record at {topic}-{partition}, {text(pointer)}: it was compacted away, is a "
                            f"transaction marker, or belongs to an aborted transaction. Continue at {text(batch.next)}"
                        )
        raise self._silent(topic)

    def next_to(self, topic: str, partition: int, pointer: Pointer, way: Literal["newer", "older"]) -> Pointer | None:
        """The pointer of the record after this one, or before it; None when there is none."""
        at = pointer + 1 if way == "newer" else pointer
        cursor = Cursor(topic, way, {partition: at}).text()
        rows = self.page(MessageQuery(topic, partition=partition, limit=1, cursor=cursor)).rows
        return rows[0].pointer if rows else None

    def _spans(self, topic: str, partition: int | None) -> _Spans:
        topics = self._link.topics()
        there = topics.partitions_of(topic)
        if partition is not None and partition not in there:
            raise UnknownTopicError(f"topic {topic!r} has no partition {partition}: it has {len(there)}")
        chosen = there if partition is None else (partition,)
        starts = topics.earliest(topic, chosen)
        ends = topics.latest(topic, chosen)
        return _Spans(starts, {each: max(ends[each], start) for each, start in starts.items()})

    def _located(self, query: MessageQuery, spans: _Spans) -> Offsets:
        position = parse_position(query.position, self._now(), self._link.connection().parse_pointer)
        if position.kind is PositionKind.TIME:
            return spans.clamped(self._link.topics().at_time(query.topic, position.time_ms, spans.starts), spans.ends)
        if position.kind is PositionKind.POINTER:
            return spans.clamped(dict.fromkeys(spans.starts, int(position.pointer)), spans.starts)
        return dict(spans.starts)

    def _silent(self, topic: str) -> BrokerUnavailableError:
        self._link.look_again()
        return BrokerUnavailableError(
            f"topic {topic!r} could not be read: the broker gave nothing for {SILENT_S:g} s; "
            "check that it runs, and try again"
        )


def _cursor(topic: str, way: Literal["newer", "older"], pointers: Offsets, is_more: bool) -> str | None:
    return Cursor(topic, way, dict(pointers)).text() if is_more else None
