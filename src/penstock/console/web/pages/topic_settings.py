"""The settings of a topic, and changing them."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from penstock.console.views import TopicDetail
from penstock.console.web import parts
from penstock.console.web.frame import Console, person

_COLUMNS: Final = (
    parts.Column("name", "Setting", "mono"),
    parts.Column("value", "Value", "mono"),
    parts.Column("whose", "From", "badge"),
)


class TopicSettings:
    """The tab with the settings of one open page."""

    def __init__(self, console: Console, detail: TopicDetail) -> None:
        self._console = console
        self._service = console.service
        self._name = detail.facts.name
        self._detail = detail

    def draw(self) -> None:
        is_fixed = self._service.read_only
        with parts.toolbar():
            about = "This console only looks." if is_fixed else "Click a setting to change it. Its own come first."
            parts.label(about).classes("about")
            ui.element("span").classes("spread")
            if not is_fixed:
                parts.button("Add partitions", self._add_partitions)
        with parts.panel():
            self._table = parts.table(
                _COLUMNS, self._rows(), key="name", on_click=None if is_fixed else self._change, height="70vh"
            )

    def _rows(self) -> list[parts.Row]:
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
        self._detail = await parts.in_background(self._service.topic, self._name)
        self._table.show(self._rows())

    def _change(self, row: parts.Row) -> None:
        found = next((each for each in self._detail.config if each.name == row["name"]), None)
        if found is None:
            return
        with parts.opened_dialog(found.name) as dialog:
            value = parts.field(ui.input("Value", value=found.value or "")).props("autofocus")

            async def change(to: str | None) -> None:
                async with parts.saying_errors():
                    await parts.in_background(
                        self._service.alter_topic, person(self._console), self._name, {found.name: to}
                    )
                    await self._refresh()
                    dialog.close()
                    parts.say(f"{found.name} was changed.", "good")

            async def set_value() -> None:
                await change((value.value or "").strip())

            async def take_default() -> None:
                await change(None)

            with ui.element("div").classes("dialog-buttons"):
                parts.button("Cancel", dialog.close, kind="quiet")
                if not found.is_default:
                    parts.button("Take the broker's", take_default)
                parts.button("Set", set_value, kind="primary")
            value.on("keydown.enter", set_value)

    def _add_partitions(self) -> None:
        now = len(self._detail.facts.partitions)
        with parts.opened_dialog("Add partitions") as dialog:
            ui.label(
                "There is no way back to fewer. Records of a key may come to another partition from then on, so what "
                "is read in the order of keys should be read to its end first."
            ).classes("dialog-text")
            wanted = parts.field(ui.number("Partitions in all", value=now + 1, min=now + 1, max=10_000, precision=0))

            async def add() -> None:
                async with parts.saying_errors():
                    by, count = person(self._console), int(wanted.value or 0)
                    await parts.in_background(self._service.alter_topic, by, self._name, {}, count)
                    await self._refresh()
                    dialog.close()
                    parts.say(f"{self._name} has {count} partitions now.", "good")

            with ui.element("div").classes("dialog-buttons"):
                parts.button("Cancel", dialog.close, kind="quiet")
                parts.button("Add", add, kind="primary")
