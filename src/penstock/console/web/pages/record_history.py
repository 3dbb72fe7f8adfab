"""What happened to a record: every attempt, by whom, with what outcome, found by topic, partition and pointer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nicegui import ui

from penstock.console.views import ConsumerDetail
from penstock.console.web import parts
from penstock.errors import PenstockError
from penstock.model import Happening, Status

if TYPE_CHECKING:
    from penstock.console.service import Service

_NEWEST: Final = 200
_TONES: Final[dict[Status, parts.Tone]] = {
    Status.SUCCEEDED: "good",
    Status.FAILED: "warn",
    Status.EXHAUSTED: "bad",
    Status.IGNORED: "plain",
}


class RecordHistory:
    """The search on a consumer's page, and what it finds."""

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
        self._pointer.set_value("" if pointer is None else str(pointer))
        await self._look_up()

    async def _look_up(self) -> None:
        text = str(self._pointer.value or "").strip().replace(",", "")
        if text and not text.isdecimal():
            self._pointer.error = "A pointer is a number: the record's offset."
            return
        self._pointer.error = None
        if not self._topic.value or self._partition.value is None:
            return
        topic, partition = str(self._topic.value), int(self._partition.value)
        pointer = int(text) if text else None
        try:
            lines = await parts.in_background(
                self._service.history_of, self.detail.facts.group, topic, partition, pointer, limit=_NEWEST
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
                draw_timeline(lines)

    def _nothing(self, topic: str, partition: int, pointer: int | None) -> str:
        if pointer is None:
            return f"Nothing is known of {topic}-{partition}: it has not been read, or its history was cleaned."
        places = {(each.topic, each.partition): each.checkpoint for each in self.detail.partitions}
        known = places.get((topic, partition))
        if known is None:
            return f"This group has no checkpoint in {topic}-{partition}."
        if pointer >= known.next:
            return f"Record {pointer} has not been read yet: the group goes on at {known.next}."
        if pointer < known.start:
            return f"Record {pointer} is finished. What happened to it is not kept any more."
        return f"Record {pointer} has been read, and no attempt at it has ended yet."


def draw_timeline(lines: Sequence[Happening]) -> None:
    """Lines of a history, newest first."""
    for line in sorted(lines, key=lambda each: -each.ended_ms):
        with ui.element("div").classes(f"happening happening-{_TONES.get(line.status, 'plain')}"):
            with ui.element("div").classes("happening-head"):
                parts.badge(str(line.status), _TONES.get(line.status, "plain"))
                parts.label(_records(line)).classes("happening-what")
                parts.label(f"attempt {line.attempt}").classes("about")
                parts.label(f"{parts.time_text(line.ended_ms)} UTC").classes("about")
                parts.label(f"took {parts.duration_text(max(0, line.ended_ms - line.begun_ms) / 1000)}").classes(
                    "about"
                )
            if line.error:
                parts.label(line.error).classes("happening-error")
            parts.label(" · ".join(each for each in (line.handler, line.owner) if each)).classes("about")


def _records(line: Happening) -> str:
    if line.end - line.first <= 1:
        return f"record {line.first}"
    return f"records {line.first} to {line.end - 1}"
