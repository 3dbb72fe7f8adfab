"""Lag by group and topic, as `penstock lag` shows it: from several snapshots, or from one and a history."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.observe import forecast
from penstock.observe.facts import GroupFacts, ReaderFacts, Snapshot, TopicFacts, total
from penstock.observe.history.history import History
from penstock.observe.place import HISTORY_FILE, state_folder
from penstock.streams.url import log_folder


@dataclass(frozen=True, slots=True)
class LagRow:
    group: str
    topic: str
    state: str
    members: int
    lag: int | None
    """None if it is unknown: the reader is behind, and the stream does not count records."""
    lag_s: float | None
    rate_per_s: float | None
    """Records read a second; None without two looks, and where it is unknown."""
    time_to_drain_s: float | None
    """None: it does not catch up, or it is unknown yet."""
    is_growing: bool
    time_to_loss_s: float | None
    """None: never, at the recent rates."""
    lost: int
    """Where records are not counted, 1 stands for at least one."""
    unread: int | None = 0
    """Records in partitions in which it has committed nothing. They are not part of `lag`. None: unknown."""
    is_counted: bool = True
    """Whether the stream counts records."""


@dataclass(frozen=True, slots=True)
class CaptureRow:
    """A capture of a database, as `penstock lag` shows it. `CaptureFacts` explains the fields."""

    capture: str
    source: str
    phase: str
    behind_bytes: int | None
    room_bytes: int | None
    time_to_loss_s: float | None
    is_lost: bool
    error: str | None


def capture_rows(snapshot: Snapshot) -> list[CaptureRow]:
    return [
        CaptureRow(
            each.name,
            each.source,
            each.phase,
            each.behind_bytes,
            each.room_bytes,
            each.time_to_loss_s,
            each.is_lost,
            each.error,
        )
        for each in snapshot.captures.values()
    ]


def lag_rows(snapshots: Sequence[Snapshot], groups: Collection[str] = (), topics: Collection[str] = ()) -> list[LagRow]:
    """A row for each group and topic of the last snapshot, with rates from all snapshots; optionally only some."""
    return [
        _row(snapshots, group, topic)
        for name, group in sorted(snapshots[-1].groups.items())
        if not groups or name in groups
        for topic in sorted({each.topic for each in group.readers})
        if not topics or topic in topics
    ]


def _row(snapshots: Sequence[Snapshot], group: GroupFacts, topic: str) -> LagRow:
    readers = _readers(group, topic)
    is_counted = all(each.is_counted for each in readers)
    committed: list[forecast.Sample] = []
    lags: list[forecast.Sample] = []
    ends: list[forecast.Sample] = []
    for snapshot in snapshots:
        before = snapshot.groups.get(group.name)
        known = [each for each in _readers(before, topic) if each.committed is not None] if before is not None else []
        if len(known) == sum(each.committed is not None for each in readers):
            committed.append((snapshot.at_ms, sum(each.committed or 0 for each in known)))
            lags.append((snapshot.at_ms, _behind(known, is_counted=is_counted)))
            ends.append((snapshot.at_ms, sum(each.end for each in known)))
    if group.members == 0 and any(value != committed[0][1] for _, value in committed):
        committed, lags = committed[-1:], lags[-1:]  # it was reset
    lag = _behind(readers, is_counted=is_counted)
    rate = forecast.rate_per_s(committed) if is_counted else None
    trend = forecast.trend_per_s(lags[len(lags) - len(forecast.steady(committed)) :])
    append_rate = forecast.rate_per_s(ends) if is_counted else forecast.time_appended_per_s(ends)
    drain_s, is_growing = forecast.time_to_drain_s(lag, trend), forecast.is_growing(lag, trend, append_rate)
    is_only_topic = len(group.readers) == len(readers)  # then the group's rates are those of this topic
    if is_only_topic and len(snapshots) == 1:
        rate, drain_s, is_growing = group.rate_per_s, group.time_to_drain_s, group.is_growing
    elif is_only_topic and not is_counted:
        rate = group.rate_per_s
    return LagRow(
        group.name,
        topic,
        group.state,
        group.members,
        total(each.lag for each in readers if each.committed is not None),
        max((each.lag_s for each in readers if each.lag_s is not None), default=None),
        rate,
        drain_s,
        is_growing,
        forecast.soonest_s(each.time_to_loss_s for each in readers),
        sum(each.lost for each in readers),
        total(each.unread for each in readers),
        is_counted,
    )


def _behind(readers: Sequence[ReaderFacts], *, is_counted: bool) -> float:
    """How far they are behind: in records, or in seconds where those are not counted."""
    if is_counted:
        return sum(each.lag or 0 for each in readers)
    return max((each.lag_s for each in readers if each.lag_s is not None), default=0.0)


def _readers(group: GroupFacts, topic: str) -> list[ReaderFacts]:
    return [each for each in group.readers if each.topic == topic]


RECENT_MS: Final = 120_000
"""Older samples say nothing about the present rate."""


def history_beside(url: str) -> Path | None:
    """The history that a console keeps beside the log, if there is one."""
    folder = state_folder(url) if log_folder(url) is not None else None
    path = None if folder is None else folder / HISTORY_FILE
    return path if path is not None and path.is_file() else None


def recalled(snapshot: Snapshot, history: History) -> Snapshot | None:
    """The snapshot with rates from the history; None unless it has those of every group.

    A history keeps the sum over all topics of a group, so it does not help with a group that reads several.
    """
    groups = {}
    for name, group in snapshot.groups.items():
        found = _recent_group(group, snapshot, history)
        if found is None:
            return None
        groups[name] = found
    return dataclasses.replace(snapshot, groups=groups)


def _recent_group(group: GroupFacts, snapshot: Snapshot, history: History) -> GroupFacts | None:
    topics = {each.topic for each in group.readers}
    if len(topics) > 1 or group.lag is None:
        return None
    lag = _recent(history, "group", group.name, "lag", snapshot)
    lag_s = _recent(history, "group", group.name, "lag_s", snapshot)
    rate = _recent(history, "group", group.name, "rate_per_s", snapshot)
    if not rate or len(lag) < 2:
        return None
    trend = forecast.trend_per_s(lag)
    ageing = 1.0 if group.members == 0 else forecast.trend_per_s(lag_s)
    coming = _recent(history, "topic", next(iter(topics), ""), "rate_per_s", snapshot)
    readers = tuple(_recent_reader(each, ageing, snapshot.topics.get(each.topic)) for each in group.readers)
    return dataclasses.replace(
        group,
        readers=readers,
        rate_per_s=rate[-1][1],
        time_to_drain_s=forecast.time_to_drain_s(group.lag, trend),
        is_growing=forecast.is_growing(group.lag, trend, coming[-1][1] if coming else None),
    )


def _recent_reader(reader: ReaderFacts, ageing: float | None, topic: TopicFacts | None) -> ReaderFacts:
    """With the time to loss of its next record, if it ages as the group's oldest does."""
    if reader.time_to_loss_s is not None or not reader.lag or topic is None or topic.is_compacted:
        return reader
    loss_s = forecast.loss_by_age_s(reader.lag_s, ageing, topic.retention_ms)
    return dataclasses.replace(reader, time_to_loss_s=loss_s)


def _recent(history: History, kind: str, name: str, metric: str, snapshot: Snapshot) -> list[forecast.Sample]:
    points = history.series(kind, name, metric, snapshot.at_ms - RECENT_MS)
    is_fresh = bool(points) and snapshot.at_ms - points[-1][0] <= RECENT_MS // 2
    return list(points) if is_fresh else []
