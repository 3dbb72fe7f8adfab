"""The state of a group, in words and colours. Pure functions of the facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.console.web.tables import Tone
from penstock.console.web.texts import count_text, duration_text, number_text, rate_text
from penstock.observe.facts import GroupFacts, ReaderFacts, Snapshot

LOSS_IS_NEAR_S: Final = 3_600.0
LOSS_IS_IN_SIGHT_S: Final = 6 * 3_600.0
LONG_BEHIND_S: Final = 300.0
_SPARK_WIDTH: Final = 100
_SPARK_HEIGHT: Final = 24


def state_tone(state: str) -> Tone:
    return {"stable": "good", "empty": "plain", "dead": "bad"}.get(state, "warn")  # type: ignore[return-value]


def loss_tone(time_to_loss_s: float | None) -> Tone:
    """How soon retention overtakes a reader."""
    if time_to_loss_s is None or time_to_loss_s > LOSS_IS_IN_SIGHT_S:
        return "plain"
    return "bad" if time_to_loss_s <= LOSS_IS_NEAR_S else "warn"


def lag_tone(lag_s: float | None) -> Tone:
    return "warn" if lag_s is not None and lag_s >= LONG_BEHIND_S else "plain"


def kept_text(group: GroupFacts) -> str:
    """Where the group's progress is kept, which is what a reset moves."""
    return f"checkpoints in {', '.join(group.stores)}" if group.stores else "offsets that Kafka keeps"


def nothing_read(snapshot: Snapshot, url: str, topic: str = "TOPIC") -> tuple[str, str]:
    """The explanation of how a group appears on this stream, with a command for it."""
    if not snapshot.has_store:
        return (
            "This stream has no groups of its own, and no place for checkpoints: name the store that the app uses.",
            f"penstock console --url {url} --checkpoints sqlite:./checkpoints.db",
        )
    if not snapshot.has_groups:
        return "A group exists from the first time that an app reads with it.", "penstock init my-app"
    return (
        "A group exists from the first time that a consumer reads with it.",
        f"penstock consume {topic} --group NAME --url {url}",
    )


def incoming_per_s(group: GroupFacts, snapshot: Snapshot) -> float | None:
    """Records appended a second to the topics that the group reads; None while unknown."""
    rates = [
        topic.rate_per_s
        for name in {reader.topic for reader in group.readers}
        if (topic := snapshot.topics.get(name)) is not None
    ]
    return None if not rates or None in rates else sum(rate for rate in rates if rate is not None)


def lost_text(group: GroupFacts | ReaderFacts) -> str:
    """How many records expired before it read them: a number where records are counted."""
    return count_text(group.lost, "record") if group.is_counted else "some records"


def not_counted_text(group: GroupFacts) -> str:
    """Why its lag is not a number of records; empty where it is one."""
    return "" if group.lag is not None else "pointers of this stream do not count records"


def forecast(group: GroupFacts, coming_per_s: float | None) -> tuple[str, Tone]:
    """The forecast for the lag at the recent rates, as a sentence, and how bad it is."""
    loss_s = group.time_to_loss_s
    loss = f"; retention overtakes it in {duration_text(loss_s)}" if loss_s is not None else ""
    lost = f" {lost_text(group).capitalize()} expired before it read them." if group.lost else ""
    if not group.readers:
        return "It has committed nothing and reads no partition.", "plain"
    unread = sum(each.committed is None for each in group.readers)
    if unread:
        waits = "records are there"
        if group.unread is not None:
            waits = f"{count_text(group.unread, 'record')} {'is' if group.unread == 1 else 'are'} there"
        lost = f" In {count_text(unread, 'partition')} it has committed nothing yet: {waits}.{lost}"
    if not group.is_behind:
        if group.unread != 0:
            return "It has read everything where it has committed." + lost, "bad" if group.lost else "warn"
        return "It has read everything." + lost, "bad" if group.lost else "good"
    tone: Tone = "bad" if group.lost else loss_tone(loss_s)
    if not group.members:
        if coming_per_s:
            return (
                f"Nobody reads: it has no members. {rate_text(coming_per_s)} come in{loss or ': the lag grows'}.{lost}",
                ("warn" if tone == "plain" else tone),
            )
        waiting = "records wait" if group.lag is None else f"{count_text(group.lag, 'record')} wait"
        waiting = waiting if group.lag != 1 else "1 record waits"
        return f"Nobody reads: it has no members, and {waiting}{loss}.{lost}", tone
    if group.lag is None and group.lag_s is not None and (group.rate_per_s is None or coming_per_s is None):
        return f"{_behind_in_time(group, group.lag_s)}{loss}.{lost}", "warn" if group.is_growing else tone
    if group.rate_per_s is None or coming_per_s is None:
        return f"Its read rate is not known yet: that takes two looks.{lost}", tone
    rates = f"Reads {rate_text(group.rate_per_s)}, {rate_text(coming_per_s)} come in"
    if group.is_growing:
        return f"{rates}: the lag grows{loss}.{lost}", "warn" if tone == "plain" else tone
    if group.time_to_drain_s is not None:
        return f"{rates}: it will have caught up in {duration_text(group.time_to_drain_s)}{loss}.{lost}", tone
    lag = number_text(group.lag) if group.lag is not None else duration_text(group.lag_s)
    return f"{rates}: the lag of {lag} stays about as it is{loss}.{lost}", tone


def _behind_in_time(group: GroupFacts, lag_s: float) -> str:
    told = f"It is {duration_text(lag_s)} behind"
    if group.is_growing:
        return f"{told}, and falls further behind"
    if group.time_to_drain_s is not None:
        return f"{told}, and will have caught up in {duration_text(group.time_to_drain_s)}"
    return told


def spark(points: Sequence[tuple[int, float]]) -> str:
    """A trend as the points of an SVG polyline in a box of 100 by 24; empty when there is nothing to draw."""
    if len(points) < 2:
        return ""
    first_ms, last_ms = points[0][0], points[-1][0]
    highest = max(value for _, value in points) or 1.0
    across = _SPARK_WIDTH / max(1, last_ms - first_ms)
    down = (_SPARK_HEIGHT - 2) / highest
    return " ".join(
        f"{(at_ms - first_ms) * across:.1f},{_SPARK_HEIGHT - 1 - value * down:.1f}" for at_ms, value in points
    )
