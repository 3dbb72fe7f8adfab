"""The messages of a topic: from any position, searched, filtered, decoded, or live."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import replace
from typing import Final, get_args

from nicegui import app, background_tasks, ui
from nicegui.events import GenericEventArguments
from starlette.responses import Response

from penstock.console.messages.tailing import Tail
from penstock.console.views import Decode, MessagePage, MessageQuery, MessageRow, Shown
from penstock.console.visible import visible
from penstock.console.web import parts, tables, texts
from penstock.console.web.background import in_background
from penstock.console.web.files import as_file, no_file
from penstock.console.web.frame import Console, live
from penstock.console.web.pages.message_drawer import MessageDrawer
from penstock.console.web.parts import PageChoices
from penstock.errors import FilterError, PenstockError
from penstock.model.pointer_forms import PREFIX, PointerText
from penstock.observe.facts import TopicFacts

LIMITS: Final = (100, 500, 1_000)
KEPT_LIVE: Final = 300
"""How many of the newest messages are kept on the page while it follows."""
FOLLOW_EVERY_S: Final = 0.5
FOLLOW_WAIT_S: Final = 1.0
CELL_LENGTH: Final = 240
"""How many characters a row of the table shows; the drawer shows all."""
_ALL: Final = -1
_PLACE: Final = re.compile(r"(\d{1,9}):(\d{1,60})", re.ASCII)
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
    tables.Column("time", "Time (UTC)", "time", text=texts.time_text),
    tables.Column("partition", "Partition", "number", on_phone=False),
    tables.Column("pointer", "Pointer", "number", on_phone=False),
    tables.Column("key", "Key", "mono"),
    tables.Column("value", "Value", "wide"),
    tables.Column("size", "Size", "number", on_phone=False, text=texts.size_text),
)
_EXPRESSION_HINT: Final = 'Filter, such as value.amount > 100 and key contains "de-"'


def register(console: Console) -> None:
    @app.get("/download/{topic}/{partition}/{pointer}/{which}")
    async def download(topic: str, partition: int, pointer: int, which: str) -> Response:
        """The bytes of a key or value, always as a download."""
        try:
            record = await in_background(console.service.record, topic, partition, pointer)
        except PenstockError as error:
            return no_file(error)
        return as_file(record, which)


class MessagesTab:
    def __init__(self, console: Console, topic: TopicFacts, chosen: PageChoices) -> None:
        self._service = console.service
        self._topic = topic
        self._chosen = chosen
        self._rows: deque[MessageRow] = deque(maxlen=max(LIMITS))
        self._is_newest_first = True
        self._page: MessagePage | None = None
        self._asked = 0
        self._following: asyncio.Task[None] | None = None
        self._visible = asyncio.Event()
        self._visible.set()
        self._has_failed = False
        self._drawer = MessageDrawer(console, topic, chosen, on_change=self.look)

    async def draw(self) -> None:
        self._draw_controls()
        with parts.panel():
            with ui.element("div") as self._nothing:
                parts.empty(
                    "No messages here.",
                    "Look from an earlier position, or send one:",
                    f"echo hello | penstock produce {self._topic.name} --url {self._service.url}",
                )
            self._nothing.set_visibility(False)  # not known yet
            self._failure = parts.Problem()
            self._table = tables.Table(_COLUMNS, (), height="calc(100vh - 24rem)", on_click=self._open)
            self._table.element.style("min-height: 240px")
            with parts.toolbar():
                self._older = parts.button("Older", self._look_older, icon="chevron_left")
                self._newer = parts.button("Newer", self._look_newer, icon="chevron_right")
                self._note = ui.label().classes("about")
        ui.on("penstock-visible", self._seen)
        ui.context.client.on_delete(self._stop)
        self._take_from_address()
        self._show_where()
        await self.look()
        for control in (self._position, self._partition, self._limit, self._decode):
            control.on_value_change(self._changed)
        live(self._try_again)
        if is_place := _PLACE.fullmatch(self._chosen.asked("message")):
            partition, pointer = int(is_place[1]), int(is_place[2])
            ui.timer(0, lambda: self._drawer.show(partition, pointer, self._decode.value), once=True)

    def _take_from_address(self) -> None:
        asked = self._chosen.asked
        self._position.value = asked("from", _NEWEST, _POSITIONS)
        self._where.value = asked("where")
        self._limit.value = int(asked("show", str(LIMITS[0]), {str(each) for each in LIMITS}))
        self._decode.value = asked("decode", "auto", get_args(Decode))
        self._search.value, self._expression.value = asked("search"), asked("filter")
        if asked("partition").isdecimal():
            self._partition.value = min(int(asked("partition")), len(self._topic.partitions) - 1)
        if asked("pointer").isdecimal():
            pointer = self._service.pointer_text(int(asked("pointer")))
            self._position.value, self._where.value = _POINTER, pointer

    def _choices(self) -> dict[str, str]:
        """The current choices, as the address keeps them."""
        position, is_placed = str(self._position.value), self._position.value in (_TIME, _POINTER)
        return {
            "from": "" if position == _NEWEST else position,
            "where": str(self._where.value or "") if is_placed else "",
            "pointer": "",
            "partition": "" if self._partition.value == _ALL else str(self._partition.value),
            "show": "" if self._limit.value == LIMITS[0] else str(self._limit.value),
            "decode": "" if self._decode.value == "auto" else str(self._decode.value),
            "search": str(self._search.value or ""),
            "filter": str(self._expression.value or ""),
        }

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
            self._look_button = parts.button("Look", self.look, icon="search")
            self._follow_button = parts.button("Follow", self._follow_or_pause, icon="play_arrow")

    def _query(self, cursor: str | None = None) -> MessageQuery:
        position, limit = str(self._position.value), int(self._limit.value)
        if position == _NEWEST:
            text = f"latest-{limit}"
        elif position in (_TIME, _POINTER):
            text = (self._where.value or "").strip() or "earliest"
            if position == _POINTER and text != "earliest" and not text.isdecimal():
                text = f"{PREFIX}{text.removeprefix(PREFIX)}"
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
        """Search again, from the chosen position."""
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
        self._asked += 1
        asked, choices = self._asked, self._choices()
        self._look_button.props("loading")
        try:
            page = await in_background(self._service.messages, query)
        except FilterError as error:
            self._show_mistake(str(error))
            return
        except PenstockError as error:
            self._fail(str(error))
            return
        finally:
            if asked == self._asked:
                self._look_button.props(remove="loading")
        if asked != self._asked:
            return  # another request was made meanwhile, and its result is on its way
        self._fail("")
        self._chosen.keep(**choices)
        self._page = page
        self._is_newest_first = is_newest_first
        self._rows.clear()
        self._rows.extend(reversed(page.rows) if is_newest_first else page.rows)
        self._show()
        self._older.set_enabled(page.before is not None)
        self._newer.set_enabled(page.cursor is not None)
        self._note.set_text(_told(page, query))

    def _show(self) -> None:
        self._table.show([row_of(each, self._service.pointer_text) for each in self._rows])
        self._table.element.set_visibility(bool(self._rows))
        self._nothing.set_visibility(not self._rows)

    def _fail(self, text: str) -> None:
        """Show why nothing could be read, if so: earlier messages stay."""
        self._has_failed = bool(text)
        self._failure.show(visible(texts.sentence(text)))
        self._table.element.set_visibility(bool(self._rows))
        self._nothing.set_visibility(not self._rows and not self._has_failed)

    async def _try_again(self) -> None:
        """Try again when the stream is back."""
        if self._has_failed and self._service.outage() is None:
            await self.look()

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

    async def _open(self, row: tables.Row) -> None:
        partition, _, pointer = str(row["id"]).partition(":")
        if partition.isdigit() and pointer.isdigit():
            await self._drawer.show(int(partition), int(pointer), self._decode.value)

    async def _follow_or_pause(self) -> None:
        if self._following is not None:
            self._stop()
            return
        self._show_mistake("")
        try:
            tail = await in_background(self._service.tail, replace(self._query(), position="latest"))
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
        """Show new messages while the page is visible; a hidden tab pauses and then continues."""
        try:
            while True:
                await self._visible.wait()
                rows = await in_background(tail.poll, FOLLOW_WAIT_S)
                if rows:
                    fresh = [*reversed(rows), *self._rows][:KEPT_LIVE]
                    self._rows.clear()
                    self._rows.extend(fresh)
                    with self._table.element:
                        self._show()
                # Redraw the page only a few times a second.
                await asyncio.sleep(FOLLOW_EVERY_S)
        except PenstockError as error:
            with self._table.element:
                parts.say(str(error), "bad")
                self._stop()
        finally:
            await asyncio.shield(in_background(tail.close))

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


def row_of(message: MessageRow, pointer_text: PointerText = str) -> tables.Row:
    return {
        "id": f"{message.partition}:{message.pointer}",
        "time": message.timestamp_ms,
        "partition": message.partition,
        **tables.pointer_cells("pointer", message.pointer, pointer_text),
        "key": _cell(message.key),
        "value": _cell(message.value),
        "size": message.size_bytes,
    }


def _cell(what: Shown) -> str | None:
    if what.form == "null":
        return None
    return what.text if len(what.text) <= CELL_LENGTH and not what.is_cut else f"{what.text[:CELL_LENGTH]} …"


def _told(page: MessagePage, query: MessageQuery) -> str:
    found = texts.count_text(len(page.rows), "message")
    is_choosy = query.search or query.expression
    told = f"{found} found among {texts.number_text(page.scanned)}." if is_choosy else f"{found}."
    return told if page.note is None else f"{told} {texts.sentence(page.note)}"
