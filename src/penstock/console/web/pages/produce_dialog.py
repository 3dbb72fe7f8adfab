"""Writing a record by hand, empty or like another one."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from penstock.console.views import Encoding
from penstock.console.visible import is_hiding
from penstock.console.web import parts
from penstock.console.web.frame import Console, person
from penstock.errors import ConfigError
from penstock.model import Record
from penstock.observe.facts import TopicFacts

_ANY: Final = -1
LARGEST_DRAFT_BYTES: Final = 200_000
"""What is larger is not for a text field."""
_ENCODINGS: Final = {"text": "text", "json": "JSON, checked", "hex": "hex", "base64": "base64"}


@dataclass(frozen=True, slots=True)
class Draft:
    """What the dialog begins with."""

    key: str = ""
    value: str | None = ""
    headers: tuple[tuple[str, str], ...] = ()
    key_encoding: Encoding = "text"
    encoding: Encoding = "text"
    note: str = ""
    """What of a record could not be taken over."""


def draft_of(record: Record) -> Draft:
    """A draft of a record like this one. What is no text is written in base64, so that it stays what it is."""
    key, key_encoding = _written(record.key or b"")
    value, encoding = _written(record.value or b"")
    texts = [(name, _text(content)) for name, content in record.headers]
    headers = tuple((name, text) for name, text in texts if text is not None and _fits_a_line(name, text))
    left_out = len(texts) - len(headers)
    note = f"{parts.count_text(left_out, 'header')} cannot be written here, and {_is_are(left_out)} left out."
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
    """Whether a header is the same once it was written as a line of the dialog, and read from it."""
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
                written, pointer = await parts.in_background(
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
                parts.say(f"Written to partition {written} at pointer {pointer}.", "good")
                dialog.close()

        with ui.element("div").classes("dialog-buttons"):
            parts.button("Cancel", dialog.close, kind="quiet")
            parts.button("Produce", produce, kind="primary")


def headers_in(text: str) -> list[tuple[str, str]]:
    """Headers as they were written, one to a line."""
    found = []
    for line in text.splitlines():
        if line.strip():
            name, separator, value = line.partition(":")
            if not separator or not name.strip():
                raise ConfigError(f"the header {line.strip()!r} is not NAME: VALUE")
            found.append((name.strip(), value.strip()))
    return found
