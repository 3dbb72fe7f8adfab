"""One message: key, value, headers, and actions."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from nicegui import ui

from penstock.console.views import Decode, Encoding, MessageDetail, Shown
from penstock.console.visible import is_hiding
from penstock.console.web import parts, texts
from penstock.console.web.background import in_background
from penstock.console.web.frame import Console, person
from penstock.console.web.parts import PageChoices
from penstock.errors import ConfigError
from penstock.model import Record
from penstock.observe.facts import TopicFacts

_ANY: Final = -1
LARGEST_DRAFT_BYTES: Final = 200_000
"""Larger records do not fit into a text field."""
_ENCODINGS: Final = {"text": "text", "json": "JSON, checked", "hex": "hex", "base64": "base64"}


@dataclass(frozen=True, slots=True)
class Draft:
    key: str = ""
    value: str | None = ""
    headers: tuple[tuple[str, str], ...] = ()
    key_encoding: Encoding = "text"
    encoding: Encoding = "text"
    note: str = ""
    """What of a record could not be taken over."""


def draft_of(record: Record) -> Draft:
    """A draft of a record like this one. What is not text is written in base64."""
    key, key_encoding = _written(record.key or b"")
    value, encoding = _written(record.value or b"")
    contents = [(name, _text(content)) for name, content in record.headers]
    headers = tuple((name, text) for name, text in contents if text is not None and _fits_a_line(name, text))
    left_out = len(contents) - len(headers)
    note = f"{texts.count_text(left_out, 'header')} cannot be written here, and {_is_are(left_out)} left out."
    return Draft(
        key, None if record.value is None else value, headers, key_encoding, encoding, note if left_out else ""
    )


def _written(data: bytes) -> tuple[str, Encoding]:
    text = _text(data)
    return (base64.b64encode(data).decode(), "base64") if text is None or is_hiding(text) else (text, "text")


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def _fits_a_line(name: str, text: str) -> bool:
    """Whether a header survives being written to and read from a line of the dialog."""
    return headers_in(f"{name}: {text}") == [(name, text)] if name.strip() and ":" not in name else False


def _is_are(count: int) -> str:
    return "is" if count == 1 else "are"


def draw_produce(console: Console, topic: TopicFacts, draft: Draft, *, on_done: Callable[[], Awaitable[None]]) -> None:
    """Open the dialog; `on_done` is called when a record was written."""
    choices = {_ANY: "by its key", **{each.partition: str(each.partition) for each in topic.partitions}}
    with parts.opened_dialog(f"Produce to {topic.name}") as dialog:
        key = parts.field(ui.input("Key (none: empty)", value=draft.key))
        value = parts.field(ui.textarea("Value", value=draft.value or "")).props("autofocus rows=5")
        is_tombstone = ui.checkbox(
            "No value: delete the key where the topic is compacted", value=draft.value is None
        ).props("dense")
        headers = parts.field(
            ui.textarea(
                "Headers, one NAME: VALUE a line", value="\n".join(f"{name}: {text}" for name, text in draft.headers)
            )
        ).props("rows=2")
        with parts.toolbar():
            key_encoding = parts.field(
                ui.select(_ENCODINGS, label="Key written as", value=draft.key_encoding), width="9rem"
            )
            encoding = parts.field(ui.select(_ENCODINGS, label="Value written as", value=draft.encoding), width="9rem")
            partition = parts.field(ui.select(choices, label="Partition", value=_ANY), width="9rem")

        if draft.note:
            parts.label(draft.note).classes("about")

        async def produce() -> None:
            async with parts.saying_errors():
                written, pointer = await in_background(
                    console.service.produce,
                    person(console),
                    topic.name,
                    key.value or None,
                    None if is_tombstone.value else value.value or "",
                    headers_in(headers.value or ""),
                    None if partition.value == _ANY else int(partition.value),
                    encoding.value,
                    key_encoding.value,
                )
                await on_done()
                at = console.service.pointer_text(pointer)
                parts.say(f"Written to partition {written} at pointer {at}.", "good")
                dialog.close()

        with parts.dialog_buttons(dialog):
            parts.button("Produce", produce, kind="primary")


def headers_in(text: str) -> list[tuple[str, str]]:
    found = []
    for line in text.splitlines():
        if line.strip():
            name, separator, value = line.partition(":")
            if not separator or not name.strip():
                raise ConfigError(f"the header {line.strip()!r} is not NAME: VALUE")
            found.append((name.strip(), value.strip()))
    return found


class MessageDrawer:
    """The drawer at the right of a topic's page; it is drawn when a message is first opened."""

    def __init__(
        self, console: Console, topic: TopicFacts, chosen: PageChoices, *, on_change: Callable[[], Awaitable[None]]
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
        self._decode = decode
        async with parts.saying_errors():
            detail = await in_background(self._service.message, self._topic.name, partition, pointer, decode)
            self._card.clear()
            with self._card:
                self._draw(detail)
            self._dialog.open()
            with self._dialog:  # the clicked button may have been in the card
                self._chosen.keep(message=f"{partition}:{pointer}")

    def _draw(self, detail: MessageDetail) -> None:
        row = detail.row
        with ui.element("div").classes("drawer-head"):
            parts.heading("h1", f"{row.partition} : {self._service.pointer_text(row.pointer)}")
            ui.element("span").classes("spread")
            self._draw_steps(detail)
            parts.button("", self._dialog.close, kind="quiet", icon="close").props('aria-label="Close"')
        parts.facts(
            (
                ("Topic", row.topic),
                ("Time", f"{texts.time_text(row.timestamp_ms)} UTC, {texts.ago_text(row.timestamp_ms)}"),
                ("Size", texts.size_text(row.size_bytes)),
            )
        )
        with parts.toolbar():
            address = f"{texts.path_to('download', row.topic)}/{row.partition}/{row.pointer}"
            parts.downloads(address, row.value, row.key)
            if not self._service.read_only:
                parts.button("Replay", lambda: self._replay(row.partition, row.pointer))
                copy = parts.button("Produce one like it", lambda: self._copy(row.partition, row.pointer))
                if max(row.key.size_bytes, row.value.size_bytes) > LARGEST_DRAFT_BYTES:
                    parts.forbid(copy, "It is too large to be written by hand: replay it instead.")
        _draw_block("Key", row.key)
        _draw_block("Value", row.value)
        if row.headers:
            parts.heading("h3", texts.count_text(row.header_count, "header"))
            parts.headers(row.headers).classes("mono")
            if row.header_count > len(row.headers):
                parts.label(f"and {texts.count_text(row.header_count - len(row.headers), 'more header')}").classes(
                    "about"
                )

    def _draw_steps(self, detail: MessageDetail) -> None:
        partition, pointer = detail.row.partition, int(detail.row.pointer)
        before = parts.button("", lambda: self._step(partition, pointer, "older"), kind="quiet", icon="arrow_back")
        before.props('aria-label="The message before"').set_enabled(pointer > int(detail.start))
        behind = parts.button("", lambda: self._step(partition, pointer, "newer"), kind="quiet", icon="arrow_forward")
        behind.props('aria-label="The next message"').set_enabled(pointer + 1 < int(detail.end))

    async def _step(self, partition: int, pointer: int, way: Literal["newer", "older"]) -> None:
        if self._service.snapshot().is_counted:
            await self.show(partition, pointer + (1 if way == "newer" else -1), self._decode)
            return
        async with parts.saying_errors():
            found = await in_background(self._service.next_to, self._topic.name, partition, pointer, way)
            if found is None:
                raise ConfigError("there is no further message in this direction")
            await self.show(partition, found, self._decode)

    def _replay(self, partition: int, pointer: int) -> None:
        with parts.opened_dialog("Replay this message") as dialog:
            parts.label("It is appended once more, byte for byte: every reader of that topic gets it again.").classes(
                "dialog-text"
            )
            to = parts.field(ui.input("To the topic", value=self._topic.name)).props("autofocus")

            async def replay() -> None:
                async with parts.saying_errors():
                    wanted = (to.value or "").strip() or None
                    written, at = await in_background(
                        self._service.replay, person(self._console), self._topic.name, partition, pointer, wanted
                    )
                    await self._on_change()
                    shown = self._service.pointer_text(at)
                    parts.say(f"Replayed to partition {written} at pointer {shown}.", "good")
                    dialog.close()

            with parts.dialog_buttons(dialog):
                parts.button("Replay", replay, kind="primary")

    async def _copy(self, partition: int, pointer: int) -> None:
        async with parts.saying_errors():
            record = await in_background(self._service.record, self._topic.name, partition, pointer)
            self._dialog.close()
            draw_produce(self._console, self._topic, draft_of(record), on_done=self._on_change)


def _draw_block(name: str, what: Shown) -> None:
    with ui.element("div").classes("copyable"):
        with ui.element("div").classes("copyable-head"):
            parts.heading("h3", name)
            parts.badge(f"{what.form}, {texts.size_text(what.size_bytes)}" if what.form != "null" else "null")
            ui.element("span").classes("spread")
            if what.form not in ("null", "empty"):
                with ui.element("button").classes("button button-quiet copy").props('type="button" data-copy'):
                    parts.label("Copy")
        parts.shown(what, is_block=True)
