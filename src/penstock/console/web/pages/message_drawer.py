"""One message, whole: key, value, headers, and what can be done with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import ui

from penstock.console.views import Decode, MessageDetail, Shown
from penstock.console.web import parts
from penstock.console.web.chosen import Chosen
from penstock.console.web.frame import Console, person
from penstock.console.web.pages.produce_dialog import LARGEST_DRAFT_BYTES, draft_of, draw_produce
from penstock.observe.facts import TopicFacts


class MessageDrawer:
    """The drawer at the right of a topic's page; it is drawn when a message is first looked at."""

    def __init__(
        self, console: Console, topic: TopicFacts, chosen: Chosen, *, on_change: Callable[[], Awaitable[None]]
    ) -> None:
        self._console = console
        self._chosen = chosen
        self._service = console.service
        self._topic = topic
        self._on_change = on_change
        self._decode: Decode = "auto"
        with ui.dialog().props('position=right maximized aria-label="Message"') as self._dialog:
            self._card = ui.card().classes("drawer")
        self._dialog.on("hide", lambda: chosen.keep(message=""))

    async def show(self, partition: int, pointer: int, decode: Decode) -> None:
        """Open it at one message."""
        self._decode = decode
        async with parts.saying_errors():
            detail = await parts.in_background(self._service.message, self._topic.name, partition, pointer, decode)
            self._card.clear()
            with self._card:
                self._draw(detail)
            self._dialog.open()
            self._chosen.keep(message=f"{partition}:{pointer}")

    def _draw(self, detail: MessageDetail) -> None:
        row = detail.row
        with ui.element("div").classes("drawer-head"):
            parts.heading("h1", f"{row.partition} : {row.pointer}")
            ui.element("span").classes("spread")
            self._draw_steps(detail)
            parts.button("", self._dialog.close, kind="quiet", icon="close").props('aria-label="Close"')
        parts.facts(
            (
                ("Topic", row.topic),
                ("Time", f"{parts.time_text(row.timestamp_ms)} UTC, {parts.ago_text(row.timestamp_ms)}"),
                ("Size", parts.size_text(row.size_bytes)),
            )
        )
        with parts.toolbar():
            address = f"{parts.path_to('download', row.topic)}/{row.partition}/{row.pointer}"
            for which, shown in (("value", row.value), ("key", row.key)):
                if shown.size_bytes:
                    with ui.element("a").classes("button button-link").props(f'href="{address}/{which}" download'):
                        parts.label(f"Download {which}")
            if not self._service.read_only:
                parts.button("Replay", lambda: self._replay(row.partition, row.pointer))
                copy = parts.button("Produce one like it", lambda: self._copy(row.partition, row.pointer))
                if max(row.key.size_bytes, row.value.size_bytes) > LARGEST_DRAFT_BYTES:
                    parts.forbid(copy, "It is too large to be written by hand: replay it instead.")
        _draw_block("Key", row.key)
        _draw_block("Value", row.value)
        if row.headers:
            parts.heading("h3", parts.count_text(row.header_count, "header"))
            with ui.element("dl").classes("facts mono"):
                for name, value in row.headers:
                    with ui.element("dt"):
                        parts.label(name)
                    with ui.element("dd"):
                        parts.shown(value)
            if row.header_count > len(row.headers):
                parts.label(f"and {parts.count_text(row.header_count - len(row.headers), 'more header')}").classes(
                    "about"
                )

    def _draw_steps(self, detail: MessageDetail) -> None:
        partition, pointer = detail.row.partition, int(detail.row.pointer)
        before = parts.button(
            "", lambda: self.show(partition, pointer - 1, self._decode), kind="quiet", icon="arrow_back"
        )
        before.props('aria-label="The message before"').set_enabled(pointer > int(detail.start))
        behind = parts.button(
            "", lambda: self.show(partition, pointer + 1, self._decode), kind="quiet", icon="arrow_forward"
        )
        behind.props('aria-label="The next message"').set_enabled(pointer + 1 < int(detail.end))

    def _replay(self, partition: int, pointer: int) -> None:
        with parts.opened_dialog("Replay this message") as dialog:
            parts.label(
                "It is appended once more, byte for byte: everybody who reads that topic gets it again."
            ).classes("dialog-text")
            to = parts.field(ui.input("To the topic", value=self._topic.name)).props("autofocus")

            async def replay() -> None:
                async with parts.saying_errors():
                    wanted = (to.value or "").strip() or None
                    written, at = await parts.in_background(
                        self._service.replay, person(self._console), self._topic.name, partition, pointer, wanted
                    )
                    await self._on_change()
                    parts.say(f"Replayed to partition {written} at pointer {at}.", "good")
                    dialog.close()

            with ui.element("div").classes("dialog-buttons"):
                parts.button("Cancel", dialog.close, kind="quiet")
                parts.button("Replay", replay, kind="primary")

    async def _copy(self, partition: int, pointer: int) -> None:
        async with parts.saying_errors():
            record = await parts.in_background(self._service.record, self._topic.name, partition, pointer)
            self._dialog.close()
            draw_produce(self._console, self._topic, draft_of(record), on_done=self._on_change)


def _draw_block(name: str, what: Shown) -> None:
    with ui.element("div").classes("copyable"):
        with ui.element("div").classes("copyable-head"):
            parts.heading("h3", name)
            parts.badge(f"{what.form}, {parts.size_text(what.size_bytes)}" if what.form != "null" else "null")
            ui.element("span").classes("spread")
            if what.form not in ("null", "empty"):
                with ui.element("button").classes("button button-quiet copy").props('type="button" data-copy'):
                    parts.label("Copy")
        parts.shown(what, is_block=True)
