"""What the overview says, worked out from a snapshot. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.console.web import parts
from penstock.console.web.pages.group_words import loss_tone
from penstock.observe.alerts.states import AlertState
from penstock.observe.facts import GroupFacts, PipelineFacts, Snapshot, TopicFacts
from penstock.streams.url import without_password

WORRYING_LAG_S = 60.0
"""A group is behind when a record has been waiting for it for longer than this, or when its lag grows."""
MOST = 6
"""So many of each kind are shown; the pages behind have all."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure at the top."""

    value: str
    note: str = ""
    tone: parts.Tone = "plain"


def figures(snapshot: Snapshot, alerts: Sequence[AlertState], *, is_known: bool = True) -> dict[str, Figure]:
    """The figures at the top, by name. While nothing is known of the stream, nothing is not zero."""
    topics = [topic for topic in snapshot.topics.values() if not topic.is_internal]
    behind = [group for group in snapshot.groups.values() if is_behind(group)]
    lag = sum(group.lag for group in snapshot.groups.values())
    oldest_s = max((group.lag_s for group in snapshot.groups.values() if group.lag_s is not None), default=None)
    waiting = sum(letters.waiting for letters in snapshot.letters.values())
    firing = [alert for alert in alerts if alert.is_firing]
    sizes = [topic.size_bytes for topic in topics]
    size = None if None in sizes else sum(each for each in sizes if each is not None)
    found = {
        "in": Figure(parts.rate_text(_total([topic.rate_per_s for topic in topics])), "appended"),
        "out": Figure(
            parts.rate_text(_total([group.rate_per_s for group in snapshot.groups.values()])), "by all groups"
        ),
        "lag": Figure(
            parts.short_text(lag),
            f"oldest {parts.duration_text(oldest_s)}" if oldest_s else "nothing waits" if snapshot.groups else "",
            "warn" if behind else "plain",
        ),
        "letters": Figure(parts.short_text(waiting), "waiting", "warn" if waiting else "plain"),
        "alerts": Figure(str(len(firing)), "firing", "bad" if firing else "plain"),
        "topics": Figure(
            parts.number_text(len(topics)),
            f"{parts.short_text(sum(each.records for each in topics))}, {parts.size_text(size)}",
        ),
    }
    if not is_known:
        found |= dict.fromkeys(("in", "out", "lag", "topics"), Figure(parts.NOTHING, "not known yet"))
        if not waiting:
            found["letters"] = Figure(parts.NOTHING, "not known yet")
    return found


def is_behind(group: GroupFacts) -> bool:
    return group.lag > 0 and (group.is_growing or group.lost > 0 or (group.lag_s or 0) >= WORRYING_LAG_S)


def groups_behind(snapshot: Snapshot) -> list[parts.Row]:
    """Those that are behind, the ones that will lose records first."""
    behind = sorted(
        (group for group in snapshot.groups.values() if is_behind(group)),
        key=lambda group: (group.time_to_loss_s or float("inf"), -(group.lag_s or 0), -group.lag, group.name),
    )
    return [_group_row(group) for group in behind[:MOST]]


def busiest_topics(snapshot: Snapshot) -> list[parts.Row]:
    topics = [topic for topic in snapshot.topics.values() if not topic.is_internal]
    busy = sorted(topics, key=lambda topic: (-(topic.rate_per_s or 0), -topic.records, topic.name))
    return [_topic_row(topic) for topic in busy[:MOST]]


def firing_alerts(alerts: Sequence[AlertState], now_ms: int) -> list[parts.Row]:
    firing = sorted((alert for alert in alerts if alert.is_firing), key=lambda alert: alert.order)
    return [
        {
            "id": f"{alert.rule}\0{alert.subject}",
            "severity": alert.severity.value,
            "severity_tone": "bad" if alert.severity == "critical" else "warn",
            "text": alert.text,
            "since": alert.since_ms,
            "since_text": parts.ago_text(alert.since_ms, now_ms),
        }
        for alert in firing[:MOST]
    ]


def letter_places(snapshot: Snapshot) -> list[parts.Row]:
    places = sorted(snapshot.letters.values(), key=lambda each: (-each.waiting, each.spec))
    return [
        {
            "id": without_password(each.spec),
            "spec": without_password(each.spec),
            "spec_href": parts.path_to("letters", without_password(each.spec)),
            "waiting": each.waiting,
            "waiting_text": parts.number_text(each.waiting)
            if each.is_exact
            else f"up to {parts.number_text(each.waiting)}",
            "waiting_tone": "warn" if each.waiting else "plain",
        }
        for each in places[:MOST]
    ]


def pipelines(snapshot: Snapshot) -> list[parts.Row]:
    known = sorted(snapshot.pipelines.values(), key=lambda each: (each.is_running, each.name))
    return [_pipeline_row(each) for each in known[:MOST]]


def _group_row(group: GroupFacts) -> parts.Row:
    return {
        "id": group.name,
        "name": group.name,
        "name_href": parts.path_to("groups", group.name),
        "lag": group.lag,
        "lag_text": parts.short_text(group.lag) + (" ↑" if group.is_growing else ""),
        "lag_s": group.lag_s,
        "lag_s_text": parts.duration_text(group.lag_s),
        "lag_s_tone": "warn",
        "drain": group.time_to_drain_s,
        "drain_text": parts.duration_text(group.time_to_drain_s),
        "loss": group.time_to_loss_s,
        "loss_text": "lost some" if group.lost else parts.duration_text(group.time_to_loss_s),
        "loss_tone": "bad" if group.lost else loss_tone(group.time_to_loss_s),
    }


def _topic_row(topic: TopicFacts) -> parts.Row:
    return {
        "id": topic.name,
        "name": topic.name,
        "name_href": parts.path_to("topics", topic.name),
        "rate": topic.rate_per_s,
        "rate_text": parts.rate_text(topic.rate_per_s),
        "records": topic.records,
        "records_text": parts.short_text(topic.records),
    }


def _pipeline_row(pipeline: PipelineFacts) -> parts.Row:
    has_error = any(query.error for query in pipeline.queries)
    return {
        "id": pipeline.name,
        "name": pipeline.name,
        "name_href": parts.path_to("pipelines", pipeline.name),
        "state": "failing" if has_error else "running" if pipeline.is_running else "stopped",
        "state_tone": "bad" if has_error else "good" if pipeline.is_running else "plain",
        "rows": sum(query.rows_per_s for query in pipeline.queries),
        "rows_text": parts.rate_text(sum(query.rows_per_s for query in pipeline.queries)),
        "lag": pipeline.lag,
        "lag_text": parts.short_text(pipeline.lag),
    }


def _total(rates: Sequence[float | None]) -> float | None:
    """None while nothing has been measured."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
