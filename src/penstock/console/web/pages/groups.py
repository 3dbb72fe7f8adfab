"""The groups: who reads, how far behind they are, and when that will hurt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from nicegui import ui

from penstock.console.web import parts
from penstock.console.web.absence import Nothing
from penstock.console.web.chosen import Chosen
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages.group_words import lag_tone, loss_tone, spark, state_tone
from penstock.console.web.pages.looks import draw_sparks, wear_details
from penstock.observe.facts import GroupFacts, Snapshot

TREND_S: Final = 3_600
_TREND_POINTS: Final = 60
_TRENDS: Final = 200
"""For how many groups a trend is drawn: those furthest behind. Each is one question to the history."""
_TRENDS_EVERY_S: Final = 15.0

_ALL, _BEHIND, _IN_DANGER = "All", "Behind", "In danger"
_CHOICES: Final = [_ALL, _BEHIND, _IN_DANGER]
_COLUMNS: Final = (
    parts.Column("name", "Group", "mono"),
    parts.Column("state", "State", "badge", on_phone=False),
    parts.Column("members", "Members", "number", on_phone=False),
    parts.Column("lag", "Lag", "number"),
    parts.Column("lag_s", "Lag, time", "number"),
    parts.Column("loss", "Loss in", "number"),
    parts.Column("drain", "Drained in", "number", on_phone=False),
    parts.Column("rate", "Reads", "number", on_phone=False),
    parts.Column("trend", "Last hour", is_sortable=False, on_phone=False),
)


def register(console: Console) -> None:
    @ui.page("/groups")
    async def groups_page() -> None:
        wear_details()
        with frame(console, "Groups", "groups"):
            parts.title("Groups", "Who reads which topics, how far behind, and when retention will overtake them.")
            await _Groups(console).draw()


class _Groups:
    """The table of groups of one open page."""

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
        with parts.panel() as self._empty:
            self._nothing = Nothing(
                self._console,
                "There are no groups yet.",
                "A group is there from the first time somebody reads with it.",
                f"penstock consume TOPIC --group NAME --url {self._service.url}",
            )
        with parts.panel() as self._panel:
            self._table = parts.table(
                _COLUMNS, (), key="name", height="calc(100vh - 12.5rem)", sort_by="lag", is_descending=True
            )
            draw_sparks(self._table, "trend")
        parts.filtering(text, self._table, chosen)
        self._which.on_value_change(lambda event: chosen.keep(show="" if event.value == _ALL else event.value))
        self._which.on_value_change(self._show)
        await self._update()
        live(self._update)

    async def _update(self) -> None:
        if time.monotonic() - self._trends_at_s >= _TRENDS_EVERY_S:
            self._trends_at_s = time.monotonic()
            self._trends = await parts.in_background(self._find_trends) or {}
        self._show()

    def _show(self) -> None:
        snapshot = self._service.snapshot()
        rows = [
            row_of(group, self._trends.get(group.name, ""))
            for group in snapshot.groups.values()
            if _is_wanted(group, str(self._which.value))
        ]
        self._table.show(rows)
        self._panel.set_visibility(bool(snapshot.groups))
        self._empty.set_visibility(not snapshot.groups)
        self._nothing.show(not snapshot.groups)
        self._count.set_text(_counted(len(rows), snapshot))

    def _find_trends(self) -> dict[str, str]:
        since_ms = int((time.time() - TREND_S) * 1000)
        groups = sorted(self._service.snapshot().groups.values(), key=lambda group: -group.lag)
        return {
            group.name: spark(self._service.series("group", group.name, "lag", since_ms, _TREND_POINTS))
            for group in groups[:_TRENDS]
        }


def row_of(group: GroupFacts, trend: str = "") -> parts.Row:
    """A group as a row of the table."""
    return {
        "name": group.name,
        "name_href": parts.path_to("groups", group.name),
        "state": group.state,
        "state_tone": state_tone(group.state),
        "members": group.members,
        "lag": group.lag,
        "lag_text": parts.number_text(group.lag) + (" ↑" if group.is_growing else ""),
        "lag_s": group.lag_s,
        "lag_s_text": parts.duration_text(group.lag_s),
        "lag_s_tone": lag_tone(group.lag_s),
        "trend": trend,
        "rate": group.rate_per_s,
        "rate_text": parts.rate_text(group.rate_per_s),
        "drain": group.time_to_drain_s,
        "drain_text": parts.duration_text(group.time_to_drain_s),
        "loss": group.time_to_loss_s,
        "loss_text": "lost some" if group.lost else parts.duration_text(group.time_to_loss_s),
        "loss_tone": "bad" if group.lost else loss_tone(group.time_to_loss_s),
    }


def _is_wanted(group: GroupFacts, which: str) -> bool:
    if which == _BEHIND:
        return group.lag > 0
    return which != _IN_DANGER or group.lost > 0 or group.time_to_loss_s is not None


def _counted(shown: int, snapshot: Snapshot) -> str:
    everyone = parts.count_text(len(snapshot.groups), "group")
    return everyone if shown == len(snapshot.groups) else f"{shown} of {everyone}"
