"""The messages of a topic: from any position, searched, filtered, decoded, or as they come."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, get_args

from nicegui import app, background_tasks, ui
from nicegui.events import GenericEventArguments
from starlette.responses import Response

from penstock.console.views import Decode, MessagePage, MessageQuery, MessageRow
from penstock.console.web import parts
from penstock.console.web.frame import Console
from penstock.console.web.pages.message_drawer import MessageDrawer
from penstock.errors import FilterError, PenstockError
from penstock.observe.facts import TopicFacts

if TYPE_CHECKING:
    from penstock.console.tailing import Tail

LIMITS: Final = (100, 500, 1_000)
KEPT_LIVE: Final = 300
"""So many of the newest are kept on the page while it follows."""
FOLLOW_EVERY_S: Final = 0.5
FOLLOW_WAIT_S: Final = 1.0
CELL_LENGTH: Final = 240
"""A row of the table shows so many characters; the drawer shows all."""
_ALL: Final = -1
_NEWEST, _OLDEST, _TIME, _POINTER = "newest", "oldest", "time", "pointer"
_POSITIONS: Final = {
    _NEWEST: "Newest",
    _OLDEST: "Oldest",
    "-15m": "15 minutes ago",
    "-1h": "1 hour ago",
    "-1d": "1 day ago",
    _TIME: "At a time…",
    _POINTER: "At a pointer…",
}
_COLUMNS: Final = (
    parts.Column("time", "Time (UTC)", "time"),
    parts.Column("partition", "Partition", "number", on_phone=False),
    parts.Column("pointer", "Pointer", "number", on_phone=False),
    parts.Column("key", "Key", "mono"),
    parts.Column("value", "Value", "wide"),
    parts.Column("size", "Size", "number", on_phone=False),
)
_EXPRESSION_HINT: Final = 'Filter, such as value.amount > 100 and key contains "de-"'


def register(console: Console) -> None:
    @app.get("/download/{topic}/{partition}/{pointer}/{which}")
    async def download(topic: str, partition: int, pointer: int, which: str) -> Response:
        """The bytes of a key or value as they are: always as a file to keep, never as something to show."""
        try:
            key, value = await parts.in_background(console.service.raw, topic, partition, pointer)
        except PenstockError as error:
            return Response(f"{error}\n", status_code=404, media_type="text/plain; charset=utf-8")
        name = "".join(each if each.isalnum() or each in "._-" else "_" for each in topic)[:100]
        return Response(
            (key if which == "key" else value) or b"",
            media_type="application/octet-stream",
            headers={
                "content-disposition": f'attachment; filename="{name}-{partition}-{pointer}.{which[:8]}"',
                "content-security-policy": "sandbox; default-src 'none'",
            },
        )


class Messages:
    """The tab with the messages of one open page."""

    def __init__(self, console: Console, topic: TopicFacts) -> None:
        self._service = console.service
        self._topic = topic
        self._rows: deque[MessageRow] = deque(maxlen=max(LIMITS))
        self._is_newest_first = True
        self._page: MessagePage | None = None
        self._following: asyncio.Task[None] | None = None
        self._visible = asyncio.Event()
        self._visible.set()
        self._drawer = MessageDrawer(console, topic, on_change=self.look)

    async def draw(self, asked: dict[str, str]) -> None:
        self._draw_controls()
        with parts.panel():
            with ui.element("div") as self._nothing:
                self._why_nothing = parts.empty(
                    "No messages here.",
                    "Look from an earlier position, or send one:",
                    f"echo hello | penstock produce {self._topic.name} --url {self._service.url}",
                )
            self._table = parts.table(_COLUMNS, (), height="calc(100vh - 24rem)", on_click=self._open)
            self._table.element.style("min-height: 240px")
            with parts.toolbar():
                self._older = parts.button("Older", self._look_older, icon="chevron_left")
                self._newer = parts.button("Newer", self._look_newer, icon="chevron_right")
                self._note = ui.label().classes("about")
        ui.on("penstock-visible", self._seen)
        ui.context.client.on_delete(self._stop)
        if asked.get("partition", "").isdigit():
            self._partition.value = min(int(asked["partition"]), len(self._topic.partitions) - 1)
        if asked.get("pointer", "").isdigit():
            self._position.value, self._where.value = _POINTER, asked["pointer"]
        self._show_where()
        await self.look()
        for control in (self._position, self._partition, self._limit, self._decode):
            control.on_value_change(self._changed)

    def _draw_controls(self) -> None:
        with parts.toolbar():
            self._position = parts.field(ui.select(_POSITIONS, label="From", value=_NEWEST), width="10rem")
            self._where = parts.field(ui.input("Where"), width="13rem").on("keydown.enter", self.look)
            choices = {_ALL: "all", **{each.partition: str(each.partition) for each in self._topic.partitions}}
            self._partition = parts.field(ui.select(choices, label="Partition", value=_ALL), width="7.5rem")
            self._limit = parts.field(ui.select(list(LIMITS), label="Show", value=LIMITS[0]), width="6.5rem")
            self._decode = parts.field(ui.select(list(get_args(Decode)), label="Decode", value="auto"), width="7.5rem")
        with parts.toolbar():
            self._search = parts.field(ui.input("Search in key, value and headers"), width="17rem")
            self._search.props("clearable").on("keydown.enter", self.look)
            self._expression = parts.field(ui.input(_EXPRESSION_HINT), width="24rem")
            self._expression.props("clearable").on("keydown.enter", self.look)
            parts.button("Look", self.look, icon="search")
            self._follow_button = parts.button("Follow", self._follow_or_pause, icon="play_arrow")

    def _query(self, cursor: str | None = None) -> MessageQuery:
        position, limit = str(self._position.value), int(self._limit.value)
        if position == _NEWEST:
            text = f"latest-{limit}"
        elif position in (_TIME, _POINTER):
            text = (self._where.value or "").strip() or "earliest"
        else:
            text = "earliest" if position == _OLDEST else position
        return MessageQuery(
            topic=self._topic.name,
            position=text,
            partition=None if self._partition.value == _ALL else int(self._partition.value),
            limit=limit,
            search=self._search.value or "",
            expression=self._expression.value or "",
            decode=self._decode.value,
            cursor=cursor,
        )

    async def look(self) -> None:
        """Ask anew, from the position that is chosen."""
        self._stop()
        await self._ask(self._query(), is_newest_first=self._position.value == _NEWEST)

    async def _look_older(self) -> None:
        if self._page is not None and self._page.before is not None:
            await self._ask(self._query(self._page.before), is_newest_first=self._is_newest_first)

    async def _look_newer(self) -> None:
        if self._page is not None and self._page.cursor is not None:
            await self._ask(self._query(self._page.cursor), is_newest_first=self._is_newest_first)

    async def _ask(self, query: MessageQuery, *, is_newest_first: bool) -> None:
        self._show_mistake("")
        try:
            page = await parts.in_background(self._service.messages, query)
        except FilterError as error:
            self._show_mistake(str(error))
            return
        except PenstockError as error:
            parts.say(str(error), "bad")
            return
        self._page = page
        self._is_newest_first = is_newest_first
        self._rows.clear()
        self._rows.extend(reversed(page.rows) if is_newest_first else page.rows)
        self._show()
        self._older.set_enabled(page.before is not None)
        self._newer.set_enabled(page.cursor is not None)
        self._note.set_text(page.note or _told(page, query))

    def _show(self) -> None:
        self._table.show([row_of(each) for each in self._rows])
        self._table.element.set_visibility(bool(self._rows))
        self._nothing.set_visibility(not self._rows)

    def _show_mistake(self, text: str) -> None:
        self._expression.error = text or None

    def _show_where(self) -> None:
        self._where.set_visibility(self._position.value in (_TIME, _POINTER))
        self._where.props["label"] = "2026-01-31 08:00, or -15m" if self._position.value == _TIME else "Pointer"

    async def _changed(self) -> None:
        self._show_where()
        is_open = self._position.value in (_TIME, _POINTER) and not (self._where.value or "").strip()
        if not is_open:
            await self.look()

    async def _open(self, row: parts.Row) -> None:
        partition, _, pointer = str(row["id"]).partition(":")
        if partition.isdigit() and pointer.isdigit():
            await self._drawer.show(int(partition), int(pointer), self._decode.value)

    async def _follow_or_pause(self) -> None:
        if self._following is not None:
            self._stop()
            return
        self._show_mistake("")
        try:
            tail = await parts.in_background(self._service.tail, replace(self._query(), position="latest"))
        except FilterError as error:
            self._show_mistake(str(error))
        except PenstockError as error:
            parts.say(str(error), "bad")
        else:
            self._is_newest_first = True
            self._follow_button.props("icon=pause").set_text("Pause")
            self._note.set_text("Following: new messages come in at the top.")
            self._following = background_tasks.create(self._follow(tail), name="follow a topic")

    async def _follow(self, tail: Tail) -> None:
        """Show what comes while somebody looks; a hidden tab is skipped over, and goes on where it was."""
        try:
            while True:
                await self._visible.wait()
                rows = await parts.in_background(tail.poll, FOLLOW_WAIT_S)
                if rows:
                    fresh = [*reversed(rows), *self._rows][:KEPT_LIVE]
                    self._rows.clear()
                    self._rows.extend(fresh)
                    with self._table.element:
                        self._show()
                # However much comes, the page is drawn a few times in a second only.
                await asyncio.sleep(FOLLOW_EVERY_S)
        except PenstockError as error:
            with self._table.element:
                parts.say(str(error), "bad")
        finally:
            await asyncio.shield(parts.in_background(tail.close))

    def _stop(self) -> None:
        if self._following is None:
            return
        self._following.cancel()
        self._following = None
        if not self._follow_button.client.is_deleted:
            self._follow_button.props("icon=play_arrow").set_text("Follow")
            self._note.set_text("Paused.")

    def _seen(self, event: GenericEventArguments) -> None:
        if event.args:
            self._visible.set()
        else:
            self._visible.clear()


def row_of(message: MessageRow) -> parts.Row:
    """A message as a row of the table."""
    return {
        "id": f"{message.partition}:{message.pointer}",
        "time": message.timestamp_ms,
        "time_text": parts.time_text(message.timestamp_ms),
        "partition": message.partition,
        "pointer": int(message.pointer),
        "pointer_text": parts.number_text(int(message.pointer)),
        "key": message.key.text[:CELL_LENGTH] if message.key.form != "null" else None,
        "value": message.value.text[:CELL_LENGTH] if message.value.form != "null" else None,
        "size": message.size_bytes,
        "size_text": parts.size_text(message.size_bytes),
    }


def _told(page: MessagePage, query: MessageQuery) -> str:
    found = parts.count_text(len(page.rows), "message")
    if query.search or query.expression:
        return f"{found} found among {parts.number_text(page.scanned)}."
    return f"{found}."
