"""The topics: their sizes and rates, and creating one."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from penstock.console.web import parts, tables, texts
from penstock.console.web.absence import Listing
from penstock.console.web.background import in_background
from penstock.console.web.frame import Console, frame, live, person
from penstock.console.web.parts import Chosen
from penstock.observe.facts import Snapshot, TopicFacts

MOST_PARTITIONS: Final = 10_000
_COLUMNS: Final = (
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


class _Topics:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._service = console.service

    def draw(self) -> None:
        parts.title("Topics")
        chosen = Chosen("/topics")
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
        self._listing = Listing(self._console, _COLUMNS, nothing, height="calc(100vh - 12.5rem)", sort_by="name")
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
