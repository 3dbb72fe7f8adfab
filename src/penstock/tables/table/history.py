"""The rows as they were: read again up to a pointer of each partition, if the topic still has what that takes."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Mapping
from typing import Final

from penstock.abc import Feature, HasAdmin, Stream, TopicStream
from penstock.errors import BrokerUnavailableError, ConfigError, HistoryLostError, OffsetOutOfRangeError
from penstock.model import Batch, Pointer, Position
from penstock.model.clock import SystemClock
from penstock.model.times import milliseconds
from penstock.streams.capability import capability
from penstock.tables.table.following import feed_of, milliseconds_in, settings_of
from penstock.tables.table.rows import MemoryRows

When = datetime.datetime | int | Mapping[int, Pointer]
"""A time, as a datetime or in milliseconds since 1970, or a pointer for each partition."""

_AT_ONCE: Final = 5_000
_SLICE_S: Final = 0.2
_MARGIN_MS: Final = 10_000
"""How far the clocks of this machine and of the broker may be apart."""


def read_as_of(stream: Stream, topic: str, rows: MemoryRows, when: When, timeout_s: float) -> None:
    """Fill empty rows with those of a moment: all records before the pointers, or up to the time, inclusive.

    Raises HistoryLostError if the topic no longer has records that this takes.
    """
    with contextlib.closing(stream.open_topic(topic)) as opened:
        partitions = opened.partitions()
        if isinstance(when, Mapping):
            pointers = _checked(topic, when, partitions)
        else:
            time_ms = milliseconds(when, "the time")
            if Feature.TIMES not in opened.features:
                raise ConfigError(f"{topic!r} has no {Feature.TIMES}: pass a pointer for each partition")
            pointers = {each: opened.locate(each, Position.at_time(time_ms + 1)) for each in partitions}
        spans = {partition: opened.span(partition) for partition in partitions}
        for partition, pointer in pointers.items():
            start, end = spans[partition]
            if pointer > end:
                raise ConfigError(f"{topic}-{partition} ends at {end}: it has no pointer {pointer} yet")
            if pointer < start:
                raise HistoryLostError(f"{topic}-{partition}: the records before pointer {pointer} have expired")
        read = {partition: (spans[partition][0], pointer) for partition, pointer in pointers.items()}
        has_gaps = _read(opened, rows, read, timeout_s)
        for partition, pointer in pointers.items():
            if pointer < spans[partition][1]:
                _check_compaction(stream, opened, partition, pointer, has_gaps[partition])


def _checked(topic: str, given: Mapping[int, Pointer], partitions: object) -> dict[int, Pointer]:
    there = set(partitions)  # type: ignore[call-overload]  # a sequence of integers
    if set(given) != there:
        raise ConfigError(
            f"topic {topic!r} has the partitions {sorted(there)}: pass a pointer for each, not for {sorted(given)}"
        )
    for partition, pointer in given.items():
        if isinstance(pointer, bool) or not isinstance(pointer, int) or pointer < 0:
            raise ConfigError(f"partition {partition}: {pointer!r} is not a pointer")
    return dict(given)


def _read(
    opened: TopicStream, rows: MemoryRows, ranges: Mapping[int, tuple[Pointer, Pointer]], timeout_s: float
) -> dict[int, bool]:
    """Read these ranges into the rows, and return whether pointers are missing in them."""
    deadline_s = time.monotonic() + timeout_s
    next = {partition: start for partition, (start, _) in ranges.items()}
    seen = dict(next)
    has_gaps = dict.fromkeys(ranges, False)
    with contextlib.closing(feed_of(opened)) as feed:
        for partition, (start, end) in ranges.items():
            if start < end:
                feed.add(partition, start)
        while any(next[partition] < end for partition, (_, end) in ranges.items()):
            try:
                batches = feed.poll(_AT_ONCE, _SLICE_S)
            except OffsetOutOfRangeError as error:
                raise HistoryLostError(f"records of {opened.topic!r} expired while they were read: {error}") from error
            for batch in batches:
                partition, end = batch.partition, ranges[batch.partition][1]
                rows.apply_until(batch, end)
                next[partition] = batch.next
                seen[partition], gap = _gap(batch, seen[partition], end)
                has_gaps[partition] = has_gaps[partition] or gap
                if batch.next >= end:
                    feed.remove(partition)
            if time.monotonic() > deadline_s:
                raise BrokerUnavailableError(
                    f"topic {opened.topic!r} was not read up to the moment within {timeout_s:g} s: pass a longer "
                    "timeout_s, or check that the stream can be reached"
                )
    return {each: has_gaps[each] or seen[each] < end for each, (_, end) in ranges.items()}


def _gap(batch: Batch, expected: Pointer, end: Pointer) -> tuple[Pointer, bool]:
    """The pointer that should come next, and whether one before it is missing."""
    has_gap = False
    for pointer in batch.pointers():
        if pointer >= end:
            break
        has_gap = has_gap or pointer != expected
        expected = pointer + 1
    return expected, has_gap


def _check_compaction(stream: Stream, opened: TopicStream, partition: int, pointer: Pointer, has_gaps: bool) -> None:
    """Raise HistoryLostError if a later record may have made compaction remove one before the pointer.

    That is impossible if no pointer is missing, if the topic is not compacted, or if everything from the pointer on is
    too young for compaction. Missing pointers may also be the ends of transactions: they cannot be told apart.
    """
    if not has_gaps or Feature.OFFSETS not in opened.features:
        return
    if capability(stream, HasAdmin) is not None:
        settings = settings_of(stream, opened.topic)
        policy = settings.get("cleanup.policy")
        if policy is not None and "compact" not in policy:
            return
        lag_ms = milliseconds_in(settings, "min.compaction.lag.ms") or 0
        first = next(iter(opened.read(partition, pointer, 1, 1.0)), None)
        now_ms = SystemClock().wall_ms()
        if first is not None and (first.timestamp_ms or 0) > now_ms - lag_ms + min(_MARGIN_MS, lag_ms):
            return
    raise HistoryLostError(
        f"{opened.topic}-{partition}: compaction may have removed records before pointer {pointer} that were replaced "
        "after it. It keeps what is needed for as long as the topic's min.compaction.lag.ms says: raise that, for what "
        "comes from now on"
    )
