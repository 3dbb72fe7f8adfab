"""What a history knows of the last minutes, for who has looked only once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from penstock.observe import forecast
from penstock.observe.facts import GroupFacts, ReaderFacts, Snapshot, TopicFacts
from penstock.observe.history import History
from penstock.observe.place import HISTORY_FILE, state_folder
from penstock.streams.url import LogUrl, parse_url

RECENT_MS: Final = 120_000
"""What is older says nothing about the pace of now."""


def history_beside(url: str) -> Path | None:
    """The history that a console has kept beside the log, if there is one."""
    folder = state_folder(url) if isinstance(parse_url(url), LogUrl) else None
    path = None if folder is None else folder / HISTORY_FILE
    return path if path is not None and path.is_file() else None


def recalled(snapshot: Snapshot, history: History) -> Snapshot | None:
    """The snapshot with the paces that the history knows; None unless it knows those of every group.

    A history keeps the sum over all topics of a group, so it does not help with a group that reads several.
    """
    groups = {}
    for name, group in snapshot.groups.items():
        found = _group(group, snapshot, history)
        if found is None:
            return None
        groups[name] = found
    return dataclasses.replace(snapshot, groups=groups)


def _group(group: GroupFacts, snapshot: Snapshot, history: History) -> GroupFacts | None:
    topics = {each.topic for each in group.readers}
    if len(topics) > 1:
        return None
    lag = _recent(history, "group", group.name, "lag", snapshot)
    lag_s = _recent(history, "group", group.name, "lag_s", snapshot)
    rate = _recent(history, "group", group.name, "rate_per_s", snapshot)
    if not rate or len(lag) < 2:
        return None
    trend = forecast.trend_per_s(lag)
    ageing = 1.0 if group.members == 0 else forecast.trend_per_s(lag_s)
    coming = _recent(history, "topic", next(iter(topics), ""), "rate_per_s", snapshot)
    readers = tuple(_reader(each, ageing, snapshot.topics.get(each.topic)) for each in group.readers)
    return dataclasses.replace(
        group,
        readers=readers,
        rate_per_s=rate[-1][1],
        time_to_drain_s=forecast.time_to_drain_s(group.lag, trend),
        is_growing=forecast.is_growing(group.lag, trend, coming[-1][1] if coming else None),
    )


def _reader(reader: ReaderFacts, ageing: float | None, topic: TopicFacts | None) -> ReaderFacts:
    """With when its next record will be too old, if it ages as the group's oldest does."""
    if reader.time_to_loss_s is not None or not reader.lag or topic is None or topic.is_compacted:
        return reader
    loss_s = forecast.loss_by_age_s(reader.lag_s, ageing, topic.retention_ms)
    return dataclasses.replace(reader, time_to_loss_s=loss_s)


def _recent(history: History, kind: str, name: str, metric: str, snapshot: Snapshot) -> list[forecast.Sample]:
    points = history.series(kind, name, metric, snapshot.at_ms - RECENT_MS)
    is_fresh = bool(points) and snapshot.at_ms - points[-1][0] <= RECENT_MS // 2
    return list(points) if is_fresh else []
