"""The groups: what they read, their lag, and when they will lose records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from nicegui import ui

from penstock.console.web import parts, tables, texts
from penstock.console.web.absence import Listing
from penstock.console.web.background import from_disk
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages.group_words import lag_tone, loss_tone, nothing_read, spark, state_tone
from penstock.console.web.parts import Chosen
from penstock.observe.facts import GroupFacts, Snapshot

TREND_S: Final = 3_600
_TREND_POINTS: Final = 60
_TRENDS: Final = 200
"""For how many groups a trend is drawn: those furthest behind. Each is one query of the history."""
_TRENDS_EVERY_S: Final = 15.0

_ALL, _BEHIND, _IN_DANGER = "All", "Behind", "In danger"
_CHOICES: Final = [_ALL, _BEHIND, _IN_DANGER]
_COLUMNS: Final = (
    tables.Column("name", "Group", "mono"),
    tables.Column("state", "State", "badge", on_phone=False),
    tables.Column("members", "Members", "number", on_phone=False),
    tables.Column("lag", "Lag", "number"),
    tables.Column("lag_s", "Lag, time", "number", text=texts.duration_text),
    tables.Column("loss", "Loss in", "number"),
    tables.Column("drain", "Drained in", "number", on_phone=False, text=texts.duration_text),
    tables.Column("rate", "Reads", "number", on_phone=False, text=texts.rate_text),
    tables.Column("trend", "Last hour", is_sortable=False, on_phone=False),
)


def register(console: Console) -> None:
    @ui.page("/groups")
    async def groups_page() -> None:
        with frame(console, "Groups", "groups"):
            parts.title("Groups", "Who reads which topics, how far behind, and when retention will overtake them.")
            await _Groups(console).draw()


class _Groups:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._service = console.service
        self._trends: Mapping[str, str] = {}
        self._trends_at_s = 0.0

    async def draw(self) -> None:
        chosen = Chosen("/groups")
        with parts.toolbar():
            text = parts.filter_field(chosen)
            which = chosen.asked("show", _ALL, _CHOICES)
            self._which = ui.toggle(_CHOICES, value=which).props("no-caps dense flat").classes("choices")
            self._count = ui.label().classes("about")
        self._not_counted = ui.label(
            "Pointers of this stream do not count records, so the lag of a group that is behind is known in time only."
        ).classes("about")
        nothing = ("There are no groups yet.", *nothing_read(self._service.snapshot(), self._service.url))
        height = "calc(100vh - 12.5rem)"
        self._listing = Listing(
            self._console, _COLUMNS, nothing, key="name", height=height, sort_by="lag", is_descending=True
        )
        self._listing.table.draw_sparks("trend")
        parts.filtering(text, self._listing.table, chosen)
        self._which.on_value_change(lambda event: chosen.keep(show="" if event.value == _ALL else event.value))
        self._which.on_value_change(self._show)
        await self._update()
        live(self._update)

    async def _update(self) -> None:
        if time.monotonic() - self._trends_at_s >= _TRENDS_EVERY_S:
            self._trends_at_s = time.monotonic()
            self._trends = await from_disk(self._find_trends) or {}
        self._show()

    def _show(self) -> None:
        snapshot = self._service.snapshot()
        rows = [
            row_of(group, self._trends.get(group.name, ""))
            for group in snapshot.groups.values()
            if _is_wanted(group, str(self._which.value))
        ]
        self._listing.show(rows, is_empty=not snapshot.groups)
        self._not_counted.set_visibility(any(group.lag is None for group in snapshot.groups.values()))
        self._count.set_text(_counted(len(rows), snapshot))

    def _find_trends(self) -> dict[str, str]:
        since_ms = int((time.time() - TREND_S) * 1000)
        groups = sorted(self._service.snapshot().groups.values(), key=furthest_behind)
        return {
            group.name: spark(
                self._service.series(
                    "group", group.name, "lag" if group.is_counted else "lag_s", since_ms, _TREND_POINTS
                )
            )
            for group in groups[:_TRENDS]
        }


def furthest_behind(group: GroupFacts) -> tuple[float, float]:
    """A key that sorts groups: by records, and by time where those are not counted."""
    return -(group.lag or 0), -(group.lag_s or 0.0)


def lag_text(group: GroupFacts) -> str:
    text = texts.number_text(group.lag)
    if group.unread is None:
        text += " + partitions not read yet"
    elif group.unread:
        text += f" + {texts.number_text(group.unread)} not read yet"
    return text + (" ↑" if group.is_growing else "")


def row_of(group: GroupFacts, trend: str = "") -> tables.Row:
    return {
        "name": group.name,
        "name_href": texts.path_to("groups", group.name),
        "state": group.state,
        "state_tone": state_tone(group.state),
        "members": group.members,
        "lag": group.lag,
        "lag_text": lag_text(group),
        "lag_s": group.lag_s,
        "lag_s_tone": lag_tone(group.lag_s),
        "trend": trend,
        "rate": group.rate_per_s,
        "drain": group.time_to_drain_s,
        "loss": group.time_to_loss_s,
        "loss_text": "lost some" if group.lost else texts.duration_text(group.time_to_loss_s),
        "loss_tone": "bad" if group.lost else loss_tone(group.time_to_loss_s),
    }


def _is_wanted(group: GroupFacts, which: str) -> bool:
    if which == _BEHIND:
        return group.is_behind or group.unread != 0
    return which != _IN_DANGER or group.lost > 0 or group.time_to_loss_s is not None


def _counted(shown: int, snapshot: Snapshot) -> str:
    everyone = texts.count_text(len(snapshot.groups), "group")
    return everyone if shown == len(snapshot.groups) else f"{shown} of {everyone}"
