"""One consumer of the library: its tracker in every partition, who owns what, and what happened to a record."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from penstock.console.views import ConsumerDetail, ConsumerPartition
from penstock.console.web import parts
from penstock.console.web.absence import draw_failure
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages.looks import draw_windows, wear_details
from penstock.console.web.pages.record_history import RecordHistory
from penstock.console.web.pages.windows import strips
from penstock.errors import PenstockError

_MOST_FAILING: Final = 500
_MOST_CLAIMS: Final = 500
_PARTITIONS: Final = (
    parts.Column("id", "Partition", "mono"),
    parts.Column("start", "Start", "number", on_phone=False),
    parts.Column("window", "", is_sortable=False),
    parts.Column("next", "Next", "number", on_phone=False),
    parts.Column("in_flight", "In flight", "number"),
    parts.Column("ahead", "Ahead", "number", on_phone=False),
    parts.Column("failing", "Failing", "number"),
    parts.Column("delivered", "Delivered", "number", on_phone=False),
    parts.Column("restarts", "Restarts", "number", on_phone=False),
)
_FAILING: Final = (
    parts.Column("place", "Partition", "mono", on_phone=False),
    parts.Column("pointer", "Pointer", "number"),
    parts.Column("attempts", "Attempts", "number"),
    parts.Column("last", "Last tried", on_phone=False),
    parts.Column("first", "First tried", on_phone=False),
    parts.Column("error", "Error", "wide"),
)
_CLAIMS: Final = (
    parts.Column("place", "Partition", "mono"),
    parts.Column("first", "From", "number"),
    parts.Column("end", "Up to", "number"),
    parts.Column("owner", "In hand of", "mono"),
    parts.Column("attempt", "Handed out", "number"),
    parts.Column("lasts", "Lasts", "number", on_phone=False),
)
_LEASES: Final = (
    parts.Column("name", "Lease", "mono"),
    parts.Column("owner", "Owner", "mono"),
    parts.Column("epoch", "Epoch", "number"),
    parts.Column("beat", "Beat", "number", on_phone=False),
)
_LEGEND: Final = (
    ("finished", "finished"),
    ("open", "in progress"),
    ("failing", "failing"),
    ("claimed", "in a member's hand"),
    ("waiting", "to be handed out again"),
)


def register(console: Console) -> None:
    @ui.page("/consumers/{group:path}")
    async def consumer_page(group: str) -> None:
        wear_details()
        with frame(console, group, "consumers"):
            try:
                detail = await parts.in_background(console.service.consumer, group)
            except PenstockError as error:
                draw_failure(group, "This consumer cannot be shown.", error, lambda: console.service.consumer(group))
                return
            _Consumer(console, detail).draw()


class _Consumer:
    """The page of one group of the library."""

    def __init__(self, console: Console, detail: ConsumerDetail) -> None:
        self._service = console.service
        self._detail = detail

    def draw(self) -> None:
        facts = self._detail.facts
        parts.title(facts.group, f"Checkpoints in {facts.store}")
        with parts.toolbar():
            ui.link("Its lag and offsets", parts.path_to("groups", facts.group)).classes("link")
        with parts.stats():
            self._in_flight = parts.stat("In flight", "")
            self._failing = parts.stat("Failing", "")
            self._processed = parts.stat("Processed", "")
            self._delivered = parts.stat("Delivered", "")
            self._restarts = parts.stat("Restarts", "")
            self._saved = parts.stat("Saved", "")
        with parts.panel("Tracker", "What was read, from start to next. Click a partition for its history."):
            with ui.element("div").classes("legend"):
                for kind, label in _LEGEND:
                    with ui.element("span").classes("legend-entry"):
                        ui.element("span").classes(f"swatch swatch-{kind}")
                        parts.label(label)
            self._partitions = parts.table(_PARTITIONS, (), height="60vh", on_click=self._look_at_partition)
            draw_windows(self._partitions, "window")
        with parts.panel(
            "Failing", "Records that failed and will be tried again. Click one for its history."
        ) as self._failing_panel:
            self._failing_table = parts.table(
                _FAILING, (), height="50vh", sort_by="attempts", is_descending=True, on_click=self._look_at_record
            )
        with parts.panel("Claims", "Members share the partition record by record.") as self._claims_panel:
            self._claims = parts.table(_CLAIMS, (), height="40vh")
        with parts.panel("A record's history") as self._history_panel:
            self._history = RecordHistory(self._service, self._detail)
            self._history.draw()
        with parts.panel("Leases", "Who may write: an older epoch is refused.") as self._leases_panel:
            self._leases = parts.table(_LEASES, (), key="name", height="40vh")
        self._show()
        live(self._update)

    async def _update(self) -> None:
        try:
            self._detail = await parts.in_background(self._service.consumer, self._detail.facts.group)
        except PenstockError:
            return  # the banner of the frame says that the stream is away; what was known stays
        self._history.detail = self._detail
        self._show()

    def _show(self) -> None:
        detail, facts = self._detail, self._detail.facts
        repeated = facts.processed - facts.delivered
        self._in_flight.show(parts.number_text(facts.in_flight), note="read, not finished")
        self._failing.show(
            parts.number_text(facts.failing), note="will be tried again", tone="bad" if facts.failing else "good"
        )
        self._processed.show(parts.number_text(facts.processed), note="calls of handlers")
        self._delivered.show(parts.number_text(facts.delivered), note=f"{parts.number_text(repeated)} calls failed")
        self._restarts.show(
            parts.number_text(facts.restarts), note="since it moved", tone="warn" if facts.restarts > 1 else "plain"
        )
        self._saved.show(parts.ago_text(facts.saved_ms or None), note="the last checkpoint")
        self._partitions.show([_partition_row(each) for each in detail.partitions])
        failing = [row for each in detail.partitions for row in _failing_rows(each)]
        self._failing_table.show(failing[:_MOST_FAILING])
        self._failing_panel.set_visibility(bool(failing))
        claims = [row for each in detail.partitions for row in _claim_rows(each)]
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

    async def _look_at_partition(self, row: parts.Row) -> None:
        await self._history.look_at(str(row.get("topic", "")), row.get("partition"), None)

    async def _look_at_record(self, row: parts.Row) -> None:
        await self._history.look_at(str(row.get("topic", "")), row.get("partition"), row.get("pointer"))


def _partition_row(each: ConsumerPartition) -> parts.Row:
    checkpoint = each.checkpoint
    return {
        "id": _place(each),
        "topic": each.topic,
        "partition": each.partition,
        "window": [list(strip) for strip in strips(checkpoint)] if checkpoint.next > checkpoint.start else None,
        "start": checkpoint.start,
        "start_text": parts.number_text(checkpoint.start),
        "next": checkpoint.next,
        "next_text": parts.number_text(checkpoint.next),
        "in_flight": each.in_flight,
        "in_flight_text": parts.number_text(each.in_flight),
        "ahead": each.finished_ahead,
        "ahead_text": parts.number_text(each.finished_ahead),
        "failing": len(checkpoint.failing),
        "failing_tone": "bad" if checkpoint.failing else "plain",
        "delivered": checkpoint.delivered,
        "delivered_text": f"{parts.number_text(checkpoint.delivered)} of {parts.number_text(checkpoint.processed)}",
        "restarts": checkpoint.restarts,
        "restarts_tone": "warn" if checkpoint.restarts > 1 else "plain",
    }


def _failing_rows(each: ConsumerPartition) -> list[parts.Row]:
    return [
        {
            "id": f"{_place(each)}@{failing.pointer}",
            "place": _place(each),
            "topic": each.topic,
            "partition": each.partition,
            "pointer": failing.pointer,
            "attempts": failing.attempts,
            "first": failing.first_ms,
            "first_text": parts.time_text(failing.first_ms),
            "last": failing.last_ms,
            "last_text": parts.ago_text(failing.last_ms),
            "error": failing.error,
        }
        for failing in each.checkpoint.failing
    ]


def _claim_rows(each: ConsumerPartition) -> list[parts.Row]:
    return [
        {
            "id": f"{_place(each)}@{claim.first}",
            "place": _place(each),
            "first": claim.first,
            "end": claim.end,
            "owner": claim.owner or "nobody",
            "attempt": claim.attempt,
            "lasts": claim.lasts_ms,
            "lasts_text": parts.duration_text(claim.lasts_ms / 1000),
        }
        for claim in each.checkpoint.claims
    ]


def _place(each: ConsumerPartition) -> str:
    return f"{each.topic}-{each.partition}"
