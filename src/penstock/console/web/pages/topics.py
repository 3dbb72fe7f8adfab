"""The topics: which there are, how large and how busy they are, and making one."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from penstock.console.web import parts
from penstock.console.web.absence import Nothing
from penstock.console.web.chosen import Chosen
from penstock.console.web.frame import Console, frame, live, person
from penstock.observe.facts import Snapshot, TopicFacts

MOST_PARTITIONS: Final = 10_000
_COLUMNS: Final = (
    parts.Column("name", "Topic", "mono"),
    parts.Column("partitions", "Partitions", "number", on_phone=False),
    parts.Column("rate", "In", "number"),
    parts.Column("records", "Records", "number"),
    parts.Column("size", "Size", "number"),
    parts.Column("retention", "Keeps", "number", on_phone=False),
    parts.Column("readers", "Groups", "number", on_phone=False),
)
_NO_CHOICE: Final = "as the broker has it"
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
    """The table of topics of one open page."""

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
        with parts.panel() as self._panel:
            self._table = parts.table(_COLUMNS, (), height="calc(100vh - 12.5rem)", sort_by="name")
        with parts.panel() as self._empty:
            self._nothing = Nothing(
                self._console,
                "There are no topics yet.",
                "A topic is made when the first record is sent to it, or here, or with:",
                f"penstock topics create orders --partitions 3 --url {self._service.url}",
            )
        parts.filtering(text, self._table, chosen)
        self._internal.on_value_change(lambda event: chosen.keep(internal="1" if event.value else ""))
        self._internal.on_value_change(lambda event: self._show())
        self._show()
        live(self._show)

    def _show(self) -> None:
        snapshot = self._service.snapshot()
        rows = rows_of(snapshot, with_internal=bool(self._internal.value))
        self._table.show(rows)
        self._panel.set_visibility(bool(rows))
        self._empty.set_visibility(not rows)
        self._nothing.show(not rows)
        self._count.set_text(parts.count_text(len(rows), "topic"))

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
                    await parts.in_background(
                        self._service.create_topic, by, wanted, int(partitions.value or 1), config
                    )
                    ui.navigate.to(parts.path_to("topics", wanted))

            with ui.element("div").classes("dialog-buttons"):
                parts.button("Cancel", dialog.close, kind="quiet")
                parts.button("Create", create, kind="primary")
            name.on("keydown.enter", create)


def rows_of(snapshot: Snapshot, *, with_internal: bool = False) -> list[parts.Row]:
    """The topics as rows of the table, with how many groups read each."""
    readers: dict[str, int] = {}
    for group in snapshot.groups.values():
        for topic in {reader.topic for reader in group.readers}:
            readers[topic] = readers.get(topic, 0) + 1
    return [
        _row_of(topic, readers.get(topic.name, 0))
        for topic in snapshot.topics.values()
        if with_internal or not topic.is_internal
    ]


def keeps_text(topic: TopicFacts) -> str:
    """How long a topic keeps records, in a few words."""
    if topic.is_compacted:
        return "newest of a key"
    kept = [] if topic.retention_ms is None else [parts.duration_text(topic.retention_ms / 1000)]
    if topic.retention_bytes is not None:
        kept.append(f"{parts.size_text(topic.retention_bytes)} a partition")
    return " or ".join(kept) or "everything"


def _row_of(topic: TopicFacts, readers: int) -> parts.Row:
    return {
        "id": topic.name,
        "name": topic.name,
        "name_href": parts.path_to("topics", topic.name),
        "partitions": len(topic.partitions),
        "rate": topic.rate_per_s,
        "rate_text": parts.rate_text(topic.rate_per_s),
        "records": topic.records,
        "records_text": parts.number_text(topic.records),
        "size": topic.size_bytes,
        "size_text": parts.size_text(topic.size_bytes),
        "retention": topic.retention_ms,
        "retention_text": keeps_text(topic),
        "readers": readers,
    }
