"""The consumers of the library: groups with checkpoints, which say more than an offset.

Of one of them: its tracker in every partition, owners, and the history of a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from nicegui import ui

from penstock.console.service import Service
from penstock.console.views import ConsumerDetail, ConsumerFacts, ConsumerPartition
from penstock.console.web import parts, tables, texts
from penstock.console.web.absence import Listing, loaded
from penstock.console.web.background import in_background
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.parts import PageChoices
from penstock.errors import PenstockError
from penstock.model import Checkpoint, HistoryEntry, Status
from penstock.model.pointer_forms import PointerText

EVERY_S: Final = 5.0
_COLUMNS: Final = (
    tables.Column("group", "Group", "mono"),
    tables.Column("topics", "Topics", "mono", on_phone=False),
    tables.Column("partitions", "Partitions", "number", on_phone=False),
    tables.Column("in_flight", "In flight", "number", text=texts.number_text),
    tables.Column("failing", "Failing", "number", text=texts.number_text),
    tables.Column("processed", "Processed", "number", on_phone=False, text=texts.number_text),
    tables.Column("delivered", "Delivered", "number", on_phone=False, text=texts.number_text),
    tables.Column("restarts", "Restarts", "number", on_phone=False),
    tables.Column("saved", "Saved"),
)


def register(console: Console) -> None:
    @ui.page("/consumers")
    async def consumers_page() -> None:
        with frame(console, "Consumers", "consumers"):
            parts.title(
                "Consumers", "Groups of the library: what is in flight, failing, and how often handlers were called."
            )
            chosen = PageChoices("/consumers")
            with parts.toolbar():
                text = parts.filter_field(chosen)
            trouble = parts.Problem()
            nothing = (
                "No consumer of the library has saved a checkpoint here.",
                "One appears with the first app that handles records, and stays when that stops.",
                "penstock init my-app",
            )
            height = "calc(100vh - 12.5rem)"
            listing = Listing(
                console, _COLUMNS, nothing, key="group", height=height, sort_by="failing", is_descending=True
            )
            parts.filtering(text, listing.table, chosen)

            async def update() -> None:
                with trouble.told():
                    listing.show([_row(each) for each in await in_background(console.service.consumers)])

            await update()
            live(update, every_s=EVERY_S)

    @ui.page("/consumers/{group:path}")
    async def consumer_page(group: str) -> None:
        with frame(console, group, "consumers"):
            detail = await loaded(group, "This consumer cannot be shown.", lambda: console.service.consumer(group))
            if detail is not None:
                _Consumer(console, detail).draw()


def _row(facts: ConsumerFacts) -> tables.Row:
    return {
        "group": facts.group,
        "group_href": texts.path_to("consumers", facts.group),
        "topics": ", ".join(facts.topics),
        "partitions": facts.partitions,
        "in_flight": facts.in_flight,
        "failing": facts.failing,
        "failing_tone": "bad" if facts.failing else "plain",
        "processed": facts.processed,
        "delivered": facts.delivered,
        "restarts": facts.restarts,
        "restarts_tone": "warn" if facts.restarts > 1 else "plain",
        "saved": facts.saved_ms,
        "saved_text": texts.ago_text(facts.saved_ms or None),
    }


_NEWEST_LINES: Final = 200
_STATUS_TONES: Final[dict[Status, tables.Tone]] = {
    Status.SUCCEEDED: "good",
    Status.FAILED: "warn",
    Status.EXHAUSTED: "bad",
    Status.IGNORED: "plain",
}


class RecordHistory:
    def __init__(self, service: Service, detail: ConsumerDetail) -> None:
        self._service = service
        self.detail = detail

    def draw(self) -> None:
        if not self.detail.has_history:
            parts.label("The store of this group's checkpoints keeps no history.").classes("about")
            return
        places = self.detail.partitions
        topics = sorted({each.topic for each in places})
        with parts.toolbar():
            self._topic = parts.field(
                ui.select(topics, value=topics[0] if topics else None, label="Topic"), width="14rem"
            )
            self._partition = parts.field(ui.number("Partition", value=0, min=0, precision=0), width="7rem")
            self._pointer = parts.field(ui.input("Pointer"), width="11rem").props("clearable")
            self._pointer.props["hint"] = "empty: the whole partition"
            parts.button("Look up", self._look_up, icon="search")
        self._pointer.on("keydown.enter", self._look_up)
        self._found = ui.element("div").classes("timeline").props('aria-live="polite"')

    async def look_at(self, topic: str, partition: int | None, pointer: int | None) -> None:
        """Fill the search in, and look it up."""
        if not self.detail.has_history or partition is None:
            return
        self._topic.set_value(topic)
        self._partition.set_value(partition)
        self._pointer.set_value("" if pointer is None else self._service.pointer_text(pointer))
        await self._look_up()

    async def _look_up(self) -> None:
        text = str(self._pointer.value or "").strip().replace(",", "")
        try:
            pointer = await in_background(self._service.parse_pointer, text) if text else None
        except PenstockError as error:
            self._pointer.error = texts.sentence(str(error))
            return
        self._pointer.error = None
        if not self._topic.value or self._partition.value is None:
            return
        topic, partition = str(self._topic.value), int(self._partition.value)
        try:
            lines = await in_background(
                self._service.history_of, self.detail.facts.group, topic, partition, pointer, limit=_NEWEST_LINES
            )
        except PenstockError as error:
            lines = None
            problem = str(error)
        self._found.clear()
        with self._found:
            if lines is None:
                parts.label(problem).classes("notice-inline tone-bad")
            elif not lines:
                parts.label(self._nothing(topic, partition, pointer)).classes("about")
            else:
                draw_timeline(lines, self._service.pointer_text)

    def _nothing(self, topic: str, partition: int, pointer: int | None) -> str:
        if pointer is None:
            return f"Nothing is known of {topic}-{partition}: it has not been read, or its history was cleaned."
        places = {(each.topic, each.partition): each.checkpoint for each in self.detail.partitions}
        known = places.get((topic, partition))
        if known is None:
            return f"This group has no checkpoint in {topic}-{partition}."
        at, following = self._service.pointer_text(pointer), self._service.pointer_text(known.next)
        if pointer >= known.next:
            return f"Record {at} has not been read yet: the group continues at {following}."
        if pointer < known.start:
            return f"Record {at} is finished. Its history is no longer kept."
        return f"Record {at} has been read, and no attempt at it has ended yet."


def draw_timeline(lines: Sequence[HistoryEntry], pointer_text: PointerText) -> None:
    for line in sorted(lines, key=lambda each: -each.ended_ms):
        with ui.element("div").classes(f"happening happening-{_STATUS_TONES.get(line.status, 'plain')}"):
            with ui.element("div").classes("happening-head"):
                parts.badge(str(line.status), _STATUS_TONES.get(line.status, "plain"))
                parts.label(_records(line, pointer_text)).classes("happening-what")
                parts.label(f"attempt {line.attempt}").classes("about")
                parts.label(f"{texts.time_text(line.ended_ms)} UTC").classes("about")
                parts.label(f"took {texts.duration_text(max(0, line.ended_ms - line.begun_ms) / 1000)}").classes(
                    "about"
                )
            if line.error:
                parts.label(line.error).classes("happening-error")
            parts.label(" · ".join(each for each in (line.handler, line.owner) if each)).classes("about")


def _records(line: HistoryEntry, pointer_text: PointerText) -> str:
    if line.end - line.first <= 1:
        return f"record {pointer_text(line.first)}"
    return f"records {pointer_text(line.first)} to {pointer_text(line.end - 1)}"


COLUMNS: Final = 600
NARROWEST_FAILING: Final = 4
_NARROWEST: Final = 0.5

Strip = tuple[str, float, float]
"""Similar columns: finished, failing, claimed or waiting; where they start, and how many. The rest is in progress."""


def strips(checkpoint: Checkpoint) -> list[Strip]:
    """The strips of a checkpoint in drawing order: later ones cover earlier ones. Runs within one column are merged."""
    start, width = checkpoint.start, checkpoint.next - checkpoint.start
    if width <= 0:
        return []
    scale = COLUMNS / width
    claimed = [(each.first, each.end) for each in checkpoint.claims if each.owner]
    waiting = [(each.first, each.end) for each in checkpoint.claims if not each.owner]
    drawn = [
        (kind, round(left, 1), round(right - left, 1))
        for kind, runs in (("claimed", claimed), ("waiting", waiting), ("finished", checkpoint.finished))
        for left, right in _merged(((first - start) * scale, (end - start) * scale) for first, end in runs)
    ]
    spots: dict[int, Strip] = {}
    for failing in checkpoint.failing:
        wide = max(NARROWEST_FAILING, scale)
        left = min(max(0.0, (failing.pointer - start) * scale), COLUMNS - wide)
        spots.setdefault(int(left / NARROWEST_FAILING), ("failing", round(left, 1), round(wide, 1)))
    return drawn + list(spots.values())


def _merged(spans: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Ascending spans; those less than half a column apart are merged, and none is narrower than that."""
    last: tuple[float, float] | None = None
    for left, right in spans:
        left = min(max(0.0, left), COLUMNS - _NARROWEST)
        right = min(float(COLUMNS), max(right, left + _NARROWEST))
        if last is not None and left - last[1] < _NARROWEST:
            last = last[0], max(last[1], right)
            continue
        if last is not None:
            yield last
        last = left, right
    if last is not None:
        yield last


_MOST_FAILING: Final = 500
_MOST_CLAIMS: Final = 500
_PARTITIONS: Final = (
    tables.Column("id", "Partition", "mono"),
    tables.Column("start", "Start", "number", on_phone=False),
    tables.Column("window", "", is_sortable=False),
    tables.Column("next", "Next", "number", on_phone=False),
    tables.Column("in_flight", "In flight", "number", text=texts.number_text),
    tables.Column("ahead", "Ahead", "number", on_phone=False, text=texts.number_text),
    tables.Column("failing", "Failing", "number"),
    tables.Column("delivered", "Delivered", "number", on_phone=False),
    tables.Column("restarts", "Restarts", "number", on_phone=False),
)
_FAILING: Final = (
    tables.Column("place", "Partition", "mono", on_phone=False),
    tables.Column("pointer", "Pointer", "number"),
    tables.Column("attempts", "Attempts", "number"),
    tables.Column("last", "Last tried", on_phone=False, text=texts.ago_text),
    tables.Column("first", "First tried", on_phone=False, text=texts.time_text),
    tables.Column("error", "Error", "wide"),
)
_CLAIMS: Final = (
    tables.Column("place", "Partition", "mono"),
    tables.Column("first", "From", "number"),
    tables.Column("end", "Up to", "number"),
    tables.Column("owner", "Claimed by", "mono"),
    tables.Column("attempt", "Handed out", "number"),
    tables.Column("lasts", "Lasts", "number", on_phone=False),
)
_LEASES: Final = (
    tables.Column("name", "Lease", "mono"),
    tables.Column("owner", "Owner", "mono"),
    tables.Column("epoch", "Epoch", "number"),
    tables.Column("beat", "Beat", "number", on_phone=False),
)
_WINDOW_CELL: Final = """
<q-td :props="props" class="window-cell">
  <svg v-if="props.value" class="window" viewBox="0 0 600 18" preserveAspectRatio="none" aria-hidden="true">
    <rect class="window-open" x="0" y="0" width="600" height="18" />
    <rect v-for="strip in props.value" :class="'window-' + strip[0]" :x="strip[1]" y="0" :width="strip[2]"
      height="18" />
  </svg>
  <span v-else class="about">all finished</span>
</q-td>
"""
_LEGEND: Final = (
    ("finished", "finished"),
    ("open", "in progress"),
    ("failing", "failing"),
    ("claimed", "claimed by a member"),
    ("waiting", "waiting for redelivery"),
)


class _Consumer:
    def __init__(self, console: Console, detail: ConsumerDetail) -> None:
        self._service = console.service
        self._detail = detail

    def draw(self) -> None:
        facts = self._detail.facts
        parts.title(facts.group, f"Checkpoints in {facts.store}")
        with parts.toolbar():
            ui.link("Its lag and offsets", texts.path_to("groups", facts.group)).classes("link")
        with parts.stats():
            self._in_flight = parts.Stat("In flight")
            self._failing = parts.Stat("Failing")
            self._processed = parts.Stat("Processed")
            self._delivered = parts.Stat("Delivered")
            self._restarts = parts.Stat("Restarts")
            self._saved = parts.Stat("Saved")
        with parts.panel("Tracker", "What was read, from start to next. Click a partition for its history."):
            with ui.element("div").classes("legend"):
                for kind, label in _LEGEND:
                    with ui.element("span").classes("legend-entry"):
                        ui.element("span").classes(f"swatch swatch-{kind}")
                        parts.label(label)
            self._partitions = tables.Table(_PARTITIONS, (), height="60vh", on_click=self._look_at_partition)
            self._partitions.element.add_slot("body-cell-window", _WINDOW_CELL)
        with parts.panel(
            "Failing", "Records that failed and will be tried again. Click one for its history."
        ) as self._failing_panel:
            self._failing_table = tables.Table(
                _FAILING, (), height="50vh", sort_by="attempts", is_descending=True, on_click=self._look_at_record
            )
        with parts.panel("Claims", "Members share the partition record by record.") as self._claims_panel:
            self._claims = tables.Table(_CLAIMS, (), height="40vh")
        with parts.panel("A record's history") as self._history_panel:
            self._history = RecordHistory(self._service, self._detail)
            self._history.draw()
        with parts.panel("Leases", "Who may write: an older epoch is refused.") as self._leases_panel:
            self._leases = tables.Table(_LEASES, (), key="name", height="40vh")
        self._show()
        live(self._update)

    async def _update(self) -> None:
        try:
            self._detail = await in_background(self._service.consumer, self._detail.facts.group)
        except PenstockError:
            return  # the banner of the frame says that the stream is away; the known facts stay
        self._history.detail = self._detail
        self._show()

    def _show(self) -> None:
        detail, facts = self._detail, self._detail.facts
        repeated = facts.processed - facts.delivered
        self._in_flight.show(texts.number_text(facts.in_flight), note="read, not finished")
        self._failing.show(
            texts.number_text(facts.failing), note="will be tried again", tone="bad" if facts.failing else "good"
        )
        self._processed.show(texts.number_text(facts.processed), note="calls of handlers")
        self._delivered.show(texts.number_text(facts.delivered), note=f"{texts.number_text(repeated)} calls failed")
        self._restarts.show(
            texts.number_text(facts.restarts), note="since it moved", tone="warn" if facts.restarts > 1 else "plain"
        )
        self._saved.show(texts.ago_text(facts.saved_ms or None), note="the last checkpoint")
        pointer_text = self._service.pointer_text
        self._partitions.show([_partition_row(each, pointer_text) for each in detail.partitions])
        failing = [row for each in detail.partitions for row in _failing_rows(each, pointer_text)]
        self._failing_table.show(failing[:_MOST_FAILING])
        self._failing_panel.set_visibility(bool(failing))
        claims = [row for each in detail.partitions for row in _claim_rows(each, pointer_text)]
        self._claims.show(claims[:_MOST_CLAIMS])
        self._claims_panel.set_visibility(bool(claims))
        leases = [*(each.lease for each in detail.partitions if each.lease is not None), *detail.leases]
        self._leases.show(
            [
                {"name": each.name, "owner": each.owner or "nobody", "epoch": each.epoch, "beat": each.beat}
                for each in leases
            ]
        )
        self._leases_panel.set_visibility(bool(leases))

    async def _look_at_partition(self, row: tables.Row) -> None:
        await self._history.look_at(str(row.get("topic", "")), row.get("partition"), None)

    async def _look_at_record(self, row: tables.Row) -> None:
        pointer = row.get("pointer")
        at = None if pointer is None else int(pointer)
        await self._history.look_at(str(row.get("topic", "")), row.get("partition"), at)


def _partition_row(each: ConsumerPartition, pointer_text: PointerText) -> tables.Row:
    checkpoint = each.checkpoint
    return {
        "id": _place(each),
        "topic": each.topic,
        "partition": each.partition,
        "window": [list(strip) for strip in strips(checkpoint)] if checkpoint.next > checkpoint.start else None,
        **tables.pointer_cells("start", checkpoint.start, pointer_text),
        **tables.pointer_cells("next", checkpoint.next, pointer_text),
        "in_flight": each.in_flight,
        "ahead": each.finished_ahead,
        "failing": len(checkpoint.failing),
        "failing_tone": "bad" if checkpoint.failing else "plain",
        "delivered": checkpoint.delivered,
        "delivered_text": f"{texts.number_text(checkpoint.delivered)} of {texts.number_text(checkpoint.processed)}",
        "restarts": checkpoint.restarts,
        "restarts_tone": "warn" if checkpoint.restarts > 1 else "plain",
    }


def _failing_rows(each: ConsumerPartition, pointer_text: PointerText) -> list[tables.Row]:
    return [
        {
            "id": f"{_place(each)}@{failing.pointer}",
            "place": _place(each),
            "topic": each.topic,
            "partition": each.partition,
            **tables.pointer_cells("pointer", failing.pointer, pointer_text),
            "attempts": failing.attempts,
            "first": failing.first_ms,
            "last": failing.last_ms,
            "error": failing.error,
        }
        for failing in each.checkpoint.failing
    ]


def _claim_rows(each: ConsumerPartition, pointer_text: PointerText) -> list[tables.Row]:
    return [
        {
            "id": f"{_place(each)}@{claim.first}",
            "place": _place(each),
            **tables.pointer_cells("first", claim.first, pointer_text),
            **tables.pointer_cells("end", claim.end, pointer_text),
            "owner": claim.owner or "nobody",
            "attempt": claim.attempt,
            "lasts": claim.lasts_ms,
            "lasts_text": texts.duration_text(claim.lasts_ms / 1000),
        }
        for claim in each.checkpoint.claims
    ]


def _place(each: ConsumerPartition) -> str:
    return f"{each.topic}-{each.partition}"
