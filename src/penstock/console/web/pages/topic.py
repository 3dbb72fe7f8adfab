"""One topic: its messages, partitions, settings, and who reads it."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from penstock.console.views import TopicDetail
from penstock.console.web import parts
from penstock.console.web.absence import draw_failure
from penstock.console.web.chosen import Chosen
from penstock.console.web.frame import Console, frame, live, person
from penstock.console.web.pages.messages import Messages
from penstock.console.web.pages.produce_dialog import Draft, draw_produce
from penstock.console.web.pages.topic_settings import TopicSettings
from penstock.console.web.pages.topics import keeps_text
from penstock.errors import PenstockError
from penstock.observe.facts import GroupFacts, TopicFacts

SPAN_S: Final = 3600
PLOTS_EVERY_S: Final = 10.0
MOST_BARS: Final = 200
_FIRST_TAB: Final = "messages"
_TABS: Final = {_FIRST_TAB: "Messages", "partitions": "Partitions", "config": "Config", "groups": "Groups"}
_PARTITIONS: Final = (
    parts.Column("partition", "Partition", "number"),
    parts.Column("start", "Start", "number"),
    parts.Column("end", "End", "number"),
    parts.Column("records", "Records", "number"),
    parts.Column("size", "Size", "number"),
)
_GROUPS: Final = (
    parts.Column("name", "Group", "mono"),
    parts.Column("state", "State", "badge"),
    parts.Column("lag", "Lag here", "number"),
    parts.Column("lag_s", "Lag, time", "number"),
    parts.Column("members", "Members", "number", on_phone=False),
)


def register(console: Console) -> None:
    @ui.page("/topics/{name}")
    async def topic_page(name: str) -> None:
        with frame(console, name, "topics"):
            try:
                detail = await parts.in_background(console.service.topic, name)
            except PenstockError as error:
                draw_failure(name, "This topic cannot be shown.", error, lambda: console.service.topic(name))
                return
            await _Topic(console, name, detail).draw()


class _Topic:
    """One open page of a topic."""

    def __init__(self, console: Console, name: str, detail: TopicDetail) -> None:
        self._console = console
        self._service = console.service
        self._name = name
        self._detail = detail
        self._plotted_s = 0.0

    async def draw(self) -> None:
        chosen = Chosen(parts.path_to("topics", self._name))
        with parts.toolbar():
            parts.title(self._name)
            if self._detail.facts.is_internal:
                parts.badge("internal")
            ui.element("span").classes("spread")
            if not self._service.read_only:
                parts.button("Produce", self._produce, kind="primary", icon="send")
                parts.button("Delete", self._delete, kind="danger")
        with parts.stats():
            self._rate = parts.stat("In", parts.NOTHING)
            self._records = parts.stat("Records", parts.NOTHING)
            self._size = parts.stat("Size", parts.NOTHING)
            self._lag = parts.stat("Groups", parts.NOTHING)
        with ui.tabs().props("dense no-caps align=left inline-label").classes("tabs") as tabs:
            for tab, label in _TABS.items():
                ui.tab(tab, label)
        panels = ui.tab_panels(tabs, value=chosen.asked("tab", _FIRST_TAB, _TABS), animated=False)
        panels.on_value_change(lambda event: chosen.keep(tab="" if event.value == _FIRST_TAB else str(event.value)))
        with panels.props("keep-alive").style("width: 100%"):
            with ui.tab_panel("messages"), ui.element("div").classes("tab-body"):
                self._messages = Messages(self._console, self._detail.facts, chosen)
                await self._messages.draw()
            with ui.tab_panel("partitions"), ui.element("div").classes("tab-body"):
                self._draw_partitions()
            with ui.tab_panel("config"), ui.element("div").classes("tab-body"):
                TopicSettings(self._console, self._detail).draw()
            with ui.tab_panel("groups"), ui.element("div").classes("tab-body"):
                self._draw_groups()
        await self._update()
        live(self._update)

    def _draw_partitions(self) -> None:
        with ui.element("div").classes("columns"):
            with parts.panel("Appended", "records a second, last hour"):
                self._flow = parts.line_chart((parts.Line("In", ()),), unit="/s", span_s=SPAN_S)
            with parts.panel("Held", "by partition"):
                self._bars = parts.bar_chart((), (), unit="" if self._detail.facts.size_bytes is None else "bytes")
        with parts.panel():
            self._partitions = parts.table(_PARTITIONS, (), height="60vh", sort_by="partition")

    def _draw_groups(self) -> None:
        with parts.panel():
            with ui.element("div") as self._no_groups:
                parts.empty(
                    "No group reads this topic.",
                    "Read it with one:",
                    f"penstock consume {self._name} --group my-group --url {self._service.url}",
                )
            self._groups = parts.table(_GROUPS, (), sort_by="lag", is_descending=True)

    async def _update(self) -> None:
        snapshot = self._service.snapshot()
        topic = snapshot.topics.get(self._name, self._detail.facts)
        readers = [
            group for group in snapshot.groups.values() if any(reader.topic == self._name for reader in group.readers)
        ]
        lag = sum(_lag_in(group, self._name) for group in readers)
        self._rate.show(parts.rate_text(topic.rate_per_s), note="appended")
        self._records.show(
            parts.short_text(topic.records), note=f"in {parts.count_text(len(topic.partitions), 'partition')}"
        )
        self._size.show(parts.size_text(topic.size_bytes), note=f"keeps {keeps_text(topic)}")
        self._lag.show(str(len(readers)), note=f"lag {parts.short_text(lag)}" if readers else "nobody reads it")
        self._show_partitions(topic)
        rows = [_group_row(group, self._name) for group in readers]
        self._groups.show(rows)
        self._groups.element.set_visibility(bool(rows))
        self._no_groups.set_visibility(not rows)
        if time.monotonic() - self._plotted_s >= PLOTS_EVERY_S:
            self._plotted_s = time.monotonic()
            since_ms = int((time.time() - SPAN_S) * 1000)
            points = await parts.in_background(self._service.series, "topic", self._name, "rate_per_s", since_ms)
            self._flow.show((parts.Line("In", points),))

    def _show_partitions(self, topic: TopicFacts) -> None:
        shown = topic.partitions[:MOST_BARS]
        by_size = topic.size_bytes is not None
        self._bars.show(
            [str(each.partition) for each in shown],
            [each.size_bytes or 0 if by_size else each.records for each in shown],
        )
        self._partitions.show(
            [
                {
                    "id": each.partition,
                    "partition": each.partition,
                    "start": each.start,
                    "start_text": parts.number_text(each.start),
                    "end": each.end,
                    "end_text": parts.number_text(each.end),
                    "records": each.records,
                    "records_text": parts.number_text(each.records),
                    "size": each.size_bytes,
                    "size_text": parts.size_text(each.size_bytes),
                }
                for each in topic.partitions
            ]
        )

    async def _produce(self) -> None:
        draw_produce(self._console, self._detail.facts, Draft(), on_done=self._messages.look)

    async def _delete(self) -> None:
        is_sure = await parts.ask(
            f"Delete topic {self._name}?",
            f"Its {parts.number_text(self._detail.facts.records)} records are gone for good, for everybody.",
            confirm_word=self._name,
            action="Delete",
            is_dangerous=True,
        )
        if is_sure:
            async with parts.saying_errors():
                await parts.in_background(self._service.delete_topic, person(self._console), self._name)
                ui.navigate.to("/topics")


def _lag_in(group: GroupFacts, topic: str) -> int:
    return sum(each.lag or 0 for each in group.readers if each.topic == topic)


def _group_row(group: GroupFacts, topic: str) -> parts.Row:
    waits_s = max(
        (each.lag_s for each in group.readers if each.topic == topic and each.lag_s is not None), default=None
    )
    lag = _lag_in(group, topic)
    return {
        "id": group.name,
        "name": group.name,
        "name_href": parts.path_to("groups", group.name),
        "state": group.state,
        "state_tone": "good" if group.state == "stable" else "plain",
        "lag": lag,
        "lag_text": parts.number_text(lag),
        "lag_s": waits_s,
        "lag_s_text": parts.duration_text(waits_s),
        "members": group.members,
    }
