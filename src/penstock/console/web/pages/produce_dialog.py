"""Writing a record by hand, empty or like another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from penstock.console.web import parts
from penstock.console.web.frame import Console, person
from penstock.errors import ConfigError
from penstock.observe.facts import TopicFacts

_ANY: Final = -1
_ENCODINGS: Final = {"text": "text", "json": "JSON, checked", "hex": "hex", "base64": "base64"}


@dataclass(frozen=True, slots=True)
class Draft:
    """What the dialog begins with."""

    key: str = ""
    value: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def draw_produce(console: Console, topic: TopicFacts, draft: Draft, *, on_done: Callable[[], Awaitable[None]]) -> None:
    """Open the dialog; `on_done` is called when a record was written."""
    choices = {_ANY: "by its key", **{each.partition: str(each.partition) for each in topic.partitions}}
    with parts.opened_dialog(f"Produce to {topic.name}") as dialog:
        key = parts.field(ui.input("Key (none: empty)", value=draft.key))
        value = parts.field(ui.textarea("Value", value=draft.value)).props("autofocus rows=5")
        is_tombstone = ui.checkbox("No value: delete the key where the topic is compacted").props("dense")
        headers = parts.field(
            ui.textarea(
                "Headers, one NAME: VALUE a line", value="\n".join(f"{name}: {text}" for name, text in draft.headers)
            )
        ).props("rows=2")
        with parts.toolbar():
            encoding = parts.field(ui.select(_ENCODINGS, label="Written as", value="text"), width="10rem")
            partition = parts.field(ui.select(choices, label="Partition", value=_ANY), width="9rem")

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
