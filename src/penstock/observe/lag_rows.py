"""Lag by group and topic, from several snapshots: what `penstock lag` tells. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.observe import forecast
from penstock.observe.facts import GroupFacts, ReaderFacts, Snapshot


@dataclass(frozen=True, slots=True)
class LagRow:
    """How a group gets on with one topic."""

    group: str
    topic: str
    state: str
    members: int
    lag: int
    lag_s: float | None
    rate_per_s: float | None
    """Records read in a second; None without two looks."""
    time_to_drain_s: float | None
    """None: it does not catch up, or nobody knows yet."""
    is_growing: bool
    time_to_loss_s: float | None
    """None: never, as things stand."""
    lost: int


def lag_rows(snapshots: Sequence[Snapshot], groups: Collection[str] = (), topics: Collection[str] = ()) -> list[LagRow]:
    """A row for each group and topic of the last snapshot, with paces from all of them; some, if they are named."""
    return [
        _row(snapshots, group, topic)
        for name, group in sorted(snapshots[-1].groups.items())
        if not groups or name in groups
        for topic in sorted({each.topic for each in group.readers})
        if not topics or topic in topics
    ]


def _row(snapshots: Sequence[Snapshot], group: GroupFacts, topic: str) -> LagRow:
    readers = _readers(group, topic)
    committed: list[forecast.Sample] = []
    lags: list[forecast.Sample] = []
    ends: list[forecast.Sample] = []
    for snapshot in snapshots:
        before = snapshot.groups.get(group.name)
        known = [each for each in _readers(before, topic) if each.committed is not None] if before is not None else []
        if len(known) == sum(each.committed is not None for each in readers):
            committed.append((snapshot.at_ms, sum(each.committed or 0 for each in known)))
            lags.append((snapshot.at_ms, sum(each.lag or 0 for each in known)))
            ends.append((snapshot.at_ms, sum(each.end for each in known)))
    if group.members == 0 and any(value != committed[0][1] for _, value in committed):
        committed, lags = committed[-1:], lags[-1:]  # somebody has moved it
    lag = sum(each.lag or 0 for each in readers)
    rate = forecast.rate_per_s(committed)
    trend = forecast.trend_per_s(lags[len(lags) - len(forecast.steady(committed)) :])
    drain_s, is_growing = (
        forecast.time_to_drain_s(lag, trend),
        forecast.is_growing(lag, trend, forecast.rate_per_s(ends)),
    )
    if len(snapshots) == 1 and len(group.readers) == len(readers):  # then the group's paces are those of this topic
        rate, drain_s, is_growing = group.rate_per_s, group.time_to_drain_s, group.is_growing
    return LagRow(
        group.name,
        topic,
        group.state,
        group.members,
        lag,
        max((each.lag_s for each in readers if each.lag_s is not None), default=None),
        rate,
        drain_s,
        is_growing,
        forecast.soonest_s(each.time_to_loss_s for each in readers),
        sum(each.lost for each in readers),
    )


def _readers(group: GroupFacts, topic: str) -> list[ReaderFacts]:
    return [each for each in group.readers if each.topic == topic]
