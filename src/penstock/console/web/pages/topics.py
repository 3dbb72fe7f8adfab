"""The topics: their sizes and rates, and creating one. Of one topic: messages, partitions, settings, and groups."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from penstock.abc import Feature
from penstock.console.views import TopicDetail
from penstock.console.web import charts, parts, tables, texts
from penstock.console.web.absence import Listing, loaded
from penstock.console.web.background import from_disk, in_background
from penstock.console.web.frame import Console, frame, live, person
from penstock.console.web.pages.group_words import nothing_read
from penstock.console.web.pages.message_drawer import Draft, draw_produce
from penstock.console.web.pages.messages import MessagesTab
from penstock.console.web.parts import PageChoices
from penstock.observe.facts import GroupFacts, Snapshot, TopicFacts, total

MOST_PARTITIONS: Final = 10_000
_TOPIC_COLUMNS: Final = (
    tables.Column("name", "Topic", "mono"),
    tables.Column("partitions", "Partitions", "number", on_phone=False),
    tables.Column("rate", "In", "number", text=texts.rate_text),
    tables.Column("records", "Records", "number", text=texts.number_text),
    tables.Column("size", "Size", "number", text=texts.size_text),
    tables.Column("retention", "Keeps", "number", on_phone=False),
    tables.Column("readers", "Groups", "number", on_phone=False),
)
_NO_CHOICE: Final = "the broker's default"
_RETENTIONS: Final = {
    "": _NO_CHOICE,
    "3600000": "1 hour",
    "86400000": "1 day",
    "604800000": "7 days",
    "2592000000": "30 days",
    "-1": "for ever",
}


def register(console: Console) -> None:
    @ui.page("/topics")
    def topics_page() -> None:
        with frame(console, "Topics", "topics"):
            _Topics(console).draw()

    @ui.page("/topics/{name}")
    async def topic_page(name: str) -> None:
        with frame(console, name, "topics"):
            detail = await loaded(name, "This topic cannot be shown.", lambda: console.service.topic(name))
            if detail is not None:
                await _Topic(console, name, detail).draw()


class _Topics:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._service = console.service

    def draw(self) -> None:
        parts.title("Topics")
        chosen = PageChoices("/topics")
        with parts.toolbar():
            text = parts.filter_field(chosen)
            self._internal = ui.checkbox("Internal", value=bool(chosen.asked("internal"))).props("dense")
            self._count = ui.label().classes("about")
            ui.element("span").classes("spread")
            if not self._service.read_only:
                parts.button("New topic", self._create, kind="primary", icon="add")
        nothing = (
            "There are no topics yet.",
            "A topic is created by the first record that is sent to it, here, or with:",
            f"penstock topics create orders --partitions 3 --url {self._service.url}",
        )
        self._listing = Listing(self._console, _TOPIC_COLUMNS, nothing, height="calc(100vh - 12.5rem)", sort_by="name")
        parts.filtering(text, self._listing.table, chosen)
        self._internal.on_value_change(lambda event: chosen.keep(internal="1" if event.value else ""))
        self._internal.on_value_change(lambda event: self._show())
        self._show()
        live(self._show)

    def _show(self) -> None:
        snapshot = self._service.snapshot()
        rows = rows_of(snapshot, with_internal=bool(self._internal.value))
        self._listing.show(rows)
        self._count.set_text(texts.count_text(len(rows), "topic"))

    async def _create(self) -> None:
        with parts.opened_dialog("New topic") as dialog:
            name = parts.field(ui.input("Name")).props("autofocus maxlength=249")
            partitions = parts.field(ui.number("Partitions", value=1, min=1, max=MOST_PARTITIONS, precision=0))
            retention = parts.field(ui.select(_RETENTIONS, label="Keep records", value=""))
            compacted = ui.checkbox("Keep the newest record of every key (compact)").props("dense")

            async def create() -> None:
                config = {"retention.ms": str(retention.value)} if retention.value else {}
                if compacted.value:
                    config["cleanup.policy"] = "compact"
                async with parts.saying_errors():
                    by, wanted = person(self._console), (name.value or "").strip()
                    await in_background(self._service.create_topic, by, wanted, int(partitions.value or 1), config)
                    ui.navigate.to(texts.path_to("topics", wanted))

            with parts.dialog_buttons(dialog):
                parts.button("Create", create, kind="primary")
            name.on("keydown.enter", create)


def rows_of(snapshot: Snapshot, *, with_internal: bool = False) -> list[tables.Row]:
    """The topics as rows of the table, with the number of groups that read each."""
    readers: dict[str, int] = {}
    for group in snapshot.groups.values():
        for topic in {reader.topic for reader in group.readers}:
            readers[topic] = readers.get(topic, 0) + 1
    return [
        row_of(topic, readers.get(topic.name, 0))
        for topic in snapshot.topics.values()
        if with_internal or not topic.is_internal
    ]


def keeps_text(topic: TopicFacts) -> str:
    if not topic.is_retention_known:
        return texts.NOTHING
    if topic.is_compacted:
        return "newest of a key"
    kept = [] if topic.retention_ms is None else [texts.duration_text(topic.retention_ms / 1000)]
    if topic.retention_bytes is not None:
        kept.append(f"{texts.size_text(topic.retention_bytes)} a partition")
    return " or ".join(kept) or "everything"


def row_of(topic: TopicFacts, readers: int = 0) -> tables.Row:
    return {
        "id": topic.name,
        "name": topic.name,
        "name_href": texts.path_to("topics", topic.name),
        "partitions": len(topic.partitions),
        "rate": topic.rate_per_s,
        "records": topic.records,
        "size": topic.size_bytes,
        "retention": topic.retention_ms,
        "retention_text": keeps_text(topic),
        "readers": readers,
    }


_SETTING_COLUMNS: Final = (
    tables.Column("name", "Setting", "mono"),
    tables.Column("value", "Value", "mono"),
    tables.Column("whose", "From", "badge"),
)


class TopicSettings:
    def __init__(self, console: Console, detail: TopicDetail) -> None:
        self._console = console
        self._service = console.service
        self._name = detail.facts.name
        self._detail = detail

    def draw(self) -> None:
        is_fixed = self._service.read_only
        if not self._detail.has_settings:
            with parts.panel():
                parts.label(
                    f"{self._service.url} does not tell the settings of its topics, and does not change them: it has "
                    f"no {Feature.ADMIN}."
                ).classes("about")
            return
        with parts.toolbar():
            about = "This console is read-only." if is_fixed else "Click a setting to change it. Its own come first."
            parts.label(about).classes("about")
            ui.element("span").classes("spread")
            if not is_fixed:
                parts.button("Add partitions", self._add_partitions)
        with parts.panel():
            self._table = tables.Table(
                _SETTING_COLUMNS, self._rows(), key="name", on_click=None if is_fixed else self._change, height="70vh"
            )

    def _rows(self) -> list[tables.Row]:
        ordered = sorted(self._detail.config, key=lambda each: (each.is_default, each.name))
        return [
            {
                "name": each.name,
                "value": each.value,
                "whose": "broker" if each.is_default else "topic",
                "whose_tone": "plain" if each.is_default else "info",
            }
            for each in ordered
        ]

    async def _refresh(self) -> None:
        self._detail = await in_background(self._service.topic, self._name)
        self._table.show(self._rows())

    def _change(self, row: tables.Row) -> None:
        found = next((each for each in self._detail.config if each.name == row["name"]), None)
        if found is None:
            return
        with parts.opened_dialog(found.name) as dialog:
            value = parts.field(ui.input("Value", value=found.value or "")).props("autofocus")

            async def change(to: str | None) -> None:
                async with parts.saying_errors():
                    await in_background(self._service.alter_topic, person(self._console), self._name, {found.name: to})
                    await self._refresh()
                    dialog.close()
                    parts.say(f"{found.name} was changed.", "good")

            async def set_value() -> None:
                await change((value.value or "").strip())

            async def take_default() -> None:
                await change(None)

            with parts.dialog_buttons(dialog):
                if not found.is_default:
                    parts.button("Use the broker's default", take_default)
                parts.button("Set", set_value, kind="primary")
            value.on("keydown.enter", set_value)

    def _add_partitions(self) -> None:
        now = len(self._detail.facts.partitions)
        with parts.opened_dialog("Add partitions") as dialog:
            ui.label(
                "Partitions cannot be removed. Records of a key may go to another partition from then on, so let "
                "consumers that depend on the order of keys catch up first."
            ).classes("dialog-text")
            wanted = parts.field(ui.number("Partitions in all", value=now + 1, min=now + 1, max=10_000, precision=0))

            async def add() -> None:
                async with parts.saying_errors():
                    by, count = person(self._console), int(wanted.value or 0)
                    await in_background(self._service.alter_topic, by, self._name, {}, count)
                    await self._refresh()
                    dialog.close()
                    parts.say(f"{self._name} has {count} partitions now.", "good")

            with parts.dialog_buttons(dialog):
                parts.button("Add", add, kind="primary")


SPAN_S: Final = 3600
PLOTS_EVERY_S: Final = 10.0
MOST_BARS: Final = 200
_FIRST_TAB: Final = "messages"
_TABS: Final = {_FIRST_TAB: "Messages", "partitions": "Partitions", "config": "Config", "groups": "Groups"}
_PARTITIONS: Final = (
    tables.Column("partition", "Partition", "number"),
    tables.Column("start", "Start", "number"),
    tables.Column("end", "End", "number"),
    tables.Column("records", "Records", "number", text=texts.number_text),
    tables.Column("size", "Size", "number", text=texts.size_text),
)
_GROUPS: Final = (
    tables.Column("name", "Group", "mono"),
    tables.Column("state", "State", "badge"),
    tables.Column("lag", "Lag here", "number", text=texts.number_text),
    tables.Column("lag_s", "Lag, time", "number", text=texts.duration_text),
    tables.Column("members", "Members", "number", on_phone=False),
)


class _Topic:
    def __init__(self, console: Console, name: str, detail: TopicDetail) -> None:
        self._console = console
        self._service = console.service
        self._name = name
        self._detail = detail
        self._plotted_s = 0.0

    async def draw(self) -> None:
        chosen = PageChoices(texts.path_to("topics", self._name))
        with parts.toolbar():
            parts.title(self._name)
            if self._detail.facts.is_internal:
                parts.badge("internal")
            ui.element("span").classes("spread")
            if not self._service.read_only:
                parts.button("Produce", self._produce, kind="primary", icon="send")
                parts.button("Delete", self._delete, kind="danger")
        with parts.stats():
            self._rate = parts.Stat("In", texts.NOTHING)
            self._records = parts.Stat("Records", texts.NOTHING)
            self._size = parts.Stat("Size", texts.NOTHING)
            self._lag = parts.Stat("Groups", texts.NOTHING)
        with ui.tabs().props("dense no-caps align=left inline-label").classes("tabs") as tabs:
            for tab, label in _TABS.items():
                ui.tab(tab, label)
        panels = ui.tab_panels(tabs, value=chosen.asked("tab", _FIRST_TAB, _TABS), animated=False)
        panels.on_value_change(lambda event: chosen.keep(tab="" if event.value == _FIRST_TAB else str(event.value)))
        with panels.props("keep-alive").style("width: 100%"):
            with ui.tab_panel("messages"), ui.element("div").classes("tab-body"):
                self._messages = MessagesTab(self._console, self._detail.facts, chosen)
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
                self._flow = charts.LineChart((charts.Line("In", ()),), unit="/s", span_s=SPAN_S)
            with parts.panel("Held", "by partition"):
                self._bars = charts.BarChart((), (), unit="" if self._detail.facts.size_bytes is None else "bytes")
        with parts.panel():
            self._partitions = tables.Table(_PARTITIONS, (), height="60vh", sort_by="partition")

    def _draw_groups(self) -> None:
        hint = nothing_read(self._service.snapshot(), self._service.url, self._name)
        nothing = ("No group reads this topic.", *hint)
        self._groups = Listing(self._console, _GROUPS, nothing, sort_by="lag", is_descending=True)

    async def _update(self) -> None:
        snapshot = self._service.snapshot()
        topic = snapshot.topics.get(self._name, self._detail.facts)
        readers = [
            group for group in snapshot.groups.values() if any(reader.topic == self._name for reader in group.readers)
        ]
        lag = total(_lag_in(group, self._name) for group in readers)
        self._rate.show(texts.rate_text(topic.rate_per_s), note="appended")
        self._records.show(
            texts.short_text(topic.records), note=f"in {texts.count_text(len(topic.partitions), 'partition')}"
        )
        keeps = f"keeps {keeps_text(topic)}" if topic.is_retention_known else "retention is not known"
        self._size.show(texts.size_text(topic.size_bytes), note=keeps)
        self._lag.show(str(len(readers)), note=f"lag {texts.short_text(lag)}" if readers else "nobody reads it")
        self._show_partitions(topic)
        self._groups.show([_group_row(group, self._name) for group in readers])
        if time.monotonic() - self._plotted_s >= PLOTS_EVERY_S:
            self._plotted_s = time.monotonic()
            since_ms = int((time.time() - SPAN_S) * 1000)
            points = await from_disk(self._service.series, "topic", self._name, "rate_per_s", since_ms)
            self._flow.show((charts.Line("In", points),))

    def _show_partitions(self, topic: TopicFacts) -> None:
        shown = topic.partitions[:MOST_BARS]
        by_size = topic.size_bytes is not None
        self._bars.show(
            [str(each.partition) for each in shown],
            [each.size_bytes or 0 if by_size else each.records or 0 for each in shown],
        )
        self._partitions.show(
            [
                {
                    "id": each.partition,
                    "partition": each.partition,
                    **tables.pointer_cells("start", each.start, self._service.pointer_text),
                    **tables.pointer_cells("end", each.end, self._service.pointer_text),
                    "records": each.records,
                    "size": each.size_bytes,
                }
                for each in topic.partitions
            ]
        )

    async def _produce(self) -> None:
        draw_produce(self._console, self._detail.facts, Draft(), on_done=self._messages.look)

    async def _delete(self) -> None:
        is_sure = await parts.ask(
            f"Delete topic {self._name}?",
            "All of its records are deleted for good."
            if self._detail.facts.records is None
            else f"Its {texts.number_text(self._detail.facts.records)} records are deleted for good.",
            confirm_word=self._name,
            action="Delete",
            is_dangerous=True,
        )
        if is_sure:
            async with parts.saying_errors():
                await in_background(self._service.delete_topic, person(self._console), self._name)
                ui.navigate.to("/topics")


def _lag_in(group: GroupFacts, topic: str) -> int | None:
    return total(each.lag for each in group.readers if each.topic == topic and each.committed is not None)


def _group_row(group: GroupFacts, topic: str) -> tables.Row:
    waits_s = max(
        (each.lag_s for each in group.readers if each.topic == topic and each.lag_s is not None), default=None
    )
    lag = _lag_in(group, topic)
    return {
        "id": group.name,
        "name": group.name,
        "name_href": texts.path_to("groups", group.name),
        "state": group.state,
        "state_tone": "good" if group.state == "stable" else "plain",
        "lag": lag,
        "lag_s": waits_s,
        "members": group.members,
    }
