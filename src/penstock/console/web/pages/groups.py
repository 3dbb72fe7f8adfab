"""The groups: what they read, their lag, and when they will lose records.

Of one group: its members, its offsets in every partition, its lag over time, the forecast, and resetting it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from nicegui import ui

from penstock.console.views import GroupDetail
from penstock.console.web import charts, parts, tables, texts
from penstock.console.web.absence import Listing, loaded
from penstock.console.web.background import from_disk, in_background
from penstock.console.web.frame import Console, frame, live, person
from penstock.console.web.pages.group_words import (
    forecast,
    incoming_per_s,
    kept_text,
    lag_tone,
    loss_tone,
    lost_text,
    not_counted_text,
    nothing_read,
    spark,
    state_tone,
)
from penstock.console.web.parts import PageChoices
from penstock.errors import PenstockError
from penstock.model.pointer_forms import PREFIX, PointerText
from penstock.observe.facts import GroupFacts, ReaderFacts, Snapshot
from penstock.observe.group_moves import Move

TREND_S: Final = 3_600
_TREND_POINTS: Final = 60
_TRENDS: Final = 200
"""For how many groups a trend is drawn: those furthest behind. Each is one query of the history."""
_TRENDS_EVERY_S: Final = 15.0

_ALL, _BEHIND, _IN_DANGER = "All", "Behind", "In danger"
_CHOICES: Final = [_ALL, _BEHIND, _IN_DANGER]
_COLUMNS: Final = (
    tables.Column("name", "Group", "mono"),
    tables.Column("state", "State", "badge", on_phone=False),
    tables.Column("members", "Members", "number", on_phone=False),
    tables.Column("lag", "Lag", "number"),
    tables.Column("lag_s", "Lag, time", "number", text=texts.duration_text),
    tables.Column("loss", "Loss in", "number"),
    tables.Column("drain", "Drained in", "number", on_phone=False, text=texts.duration_text),
    tables.Column("rate", "Reads", "number", on_phone=False, text=texts.rate_text),
    tables.Column("trend", "Last hour", is_sortable=False, on_phone=False),
)


def register(console: Console) -> None:
    @ui.page("/groups")
    async def groups_page() -> None:
        with frame(console, "Groups", "groups"):
            parts.title("Groups", "Who reads which topics, how far behind, and when retention will overtake them.")
            await _Groups(console).draw()

    @ui.page("/groups/{name:path}")
    async def group_page(name: str) -> None:
        with frame(console, name, "groups"):
            command = f"penstock groups --url {console.service.url}"
            detail = await loaded(name, "This group cannot be shown.", lambda: console.service.group(name), command)
            if detail is not None:
                await _Group(console, detail).draw()


class _Groups:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._service = console.service
        self._trends: Mapping[str, str] = {}
        self._trends_at_s = 0.0

    async def draw(self) -> None:
        chosen = PageChoices("/groups")
        with parts.toolbar():
            text = parts.filter_field(chosen)
            which = chosen.asked("show", _ALL, _CHOICES)
            self._which = ui.toggle(_CHOICES, value=which).props("no-caps dense flat").classes("choices")
            self._count = ui.label().classes("about")
        self._not_counted = ui.label(
            "Pointers of this stream do not count records, so the lag of a group that is behind is known in time only."
        ).classes("about")
        nothing = ("There are no groups yet.", *nothing_read(self._service.snapshot(), self._service.url))
        height = "calc(100vh - 12.5rem)"
        self._listing = Listing(
            self._console, _COLUMNS, nothing, key="name", height=height, sort_by="lag", is_descending=True
        )
        self._listing.table.draw_sparks("trend")
        parts.filtering(text, self._listing.table, chosen)
        self._which.on_value_change(lambda event: chosen.keep(show="" if event.value == _ALL else event.value))
        self._which.on_value_change(self._show)
        await self._update()
        live(self._update)

    async def _update(self) -> None:
        if time.monotonic() - self._trends_at_s >= _TRENDS_EVERY_S:
            self._trends_at_s = time.monotonic()
            self._trends = await from_disk(self._find_trends) or {}
        self._show()

    def _show(self) -> None:
        snapshot = self._service.snapshot()
        rows = [
            row_of(group, self._trends.get(group.name, ""))
            for group in snapshot.groups.values()
            if _is_wanted(group, str(self._which.value))
        ]
        self._listing.show(rows, is_empty=not snapshot.groups)
        self._not_counted.set_visibility(any(group.lag is None for group in snapshot.groups.values()))
        self._count.set_text(_counted(len(rows), snapshot))

    def _find_trends(self) -> dict[str, str]:
        since_ms = int((time.time() - TREND_S) * 1000)
        groups = sorted(self._service.snapshot().groups.values(), key=furthest_behind)
        return {
            group.name: spark(
                self._service.series(
                    "group", group.name, "lag" if group.is_counted else "lag_s", since_ms, _TREND_POINTS
                )
            )
            for group in groups[:_TRENDS]
        }


def furthest_behind(group: GroupFacts) -> tuple[float, float]:
    """A key that sorts groups: by records, and by time where those are not counted."""
    return -(group.lag or 0), -(group.lag_s or 0.0)


def lag_text(group: GroupFacts) -> str:
    text = texts.number_text(group.lag)
    if group.unread is None:
        text += " + partitions not read yet"
    elif group.unread:
        text += f" + {texts.number_text(group.unread)} not read yet"
    return text + (" ↑" if group.is_growing else "")


def row_of(group: GroupFacts, trend: str = "") -> tables.Row:
    return {
        "name": group.name,
        "name_href": texts.path_to("groups", group.name),
        "state": group.state,
        "state_tone": state_tone(group.state),
        "members": group.members,
        "lag": group.lag,
        "lag_text": lag_text(group),
        "lag_s": group.lag_s,
        "lag_s_tone": lag_tone(group.lag_s),
        "trend": trend,
        "rate": group.rate_per_s,
        "drain": group.time_to_drain_s,
        "loss": group.time_to_loss_s,
        "loss_text": "lost some" if group.lost else texts.duration_text(group.time_to_loss_s),
        "loss_tone": "bad" if group.lost else loss_tone(group.time_to_loss_s),
    }


def _is_wanted(group: GroupFacts, which: str) -> bool:
    if which == _BEHIND:
        return group.is_behind or group.unread != 0
    return which != _IN_DANGER or group.lost > 0 or group.time_to_loss_s is not None


def _counted(shown: int, snapshot: Snapshot) -> str:
    everyone = texts.count_text(len(snapshot.groups), "group")
    return everyone if shown == len(snapshot.groups) else f"{shown} of {everyone}"


_EARLIEST, _LATEST, _TIME, _AGE, _POINTER, _SHIFT = "earliest", "latest", "time", "age", "pointer", "shift"
WHERE_TO: Final = {
    _EARLIEST: "Earliest: read everything again",
    _LATEST: "Latest: skip what waits",
    _TIME: "A time",
    _AGE: "An age: this long ago",
    _POINTER: "A pointer",
    _SHIFT: "Shift: a number of records back or forward",
}
_HINTS: Final = {
    _TIME: "UTC; the first record from then on",
    _AGE: "such as 30s, 15m, 2h, 7d",
    _POINTER: "an offset, for every partition that is ticked",
    _SHIFT: "such as -100 or +100",
}
_ALL_TOPICS: Final = "All topics"
_MOVE_COLUMNS: Final = (
    tables.Column("topic", "Topic", "mono"),
    tables.Column("partition", "Partition", "number"),
    tables.Column("committed", "Is at", "number", on_phone=False),
    tables.Column("to", "Moves to", "number"),
    tables.Column("by", "By records", "number"),
    tables.Column("note", "Note", "text", on_phone=False),
)


def position_text(choice: str, value: str) -> str:
    """The target position for the service. Empty when a value is missing."""
    value = (value or "").strip()
    if choice in (_EARLIEST, _LATEST):
        return choice
    if not value:
        return ""
    if choice == _TIME:
        return f"{value}+00:00"
    if choice == _AGE:
        return f"-{value.removeprefix('-')}"
    if choice == _SHIFT and value[0] not in "+-":
        return f"+{value}"
    if choice == _POINTER and not value.isdecimal():
        return f"{PREFIX}{value.removeprefix(PREFIX)}"
    return value


class ResetDialog:
    def __init__(self, console: Console, group: GroupFacts) -> None:
        self._console = console
        self._service = console.service
        self._group = group
        self._moves: Sequence[Move] = ()

    async def open(self) -> None:
        with parts.drawn_dialog(f"Reset offsets of {self._group.name}", "dialog-wide") as dialog:
            parts.label(f"Moves its {kept_text(self._group)}").classes("about")
            self._draw_choice()
            self._problem = parts.Problem()
            self._table = tables.Table(_MOVE_COLUMNS, (), height="40vh", is_selectable=True, sort_by="topic")
            self._table.element.set_visibility(False)
            self._table.element.on_select(lambda _: self._count())
            self._summary = ui.label().classes("about")
            with parts.dialog_buttons(dialog):
                parts.button("Dry run", self._plan, kind="plain")
                self._go = parts.button("Move", lambda: self._move(dialog), kind="danger")
        self._forget()
        self._warn_of_members()
        await parts.until_closed(dialog)

    def _draw_choice(self) -> None:
        topics = sorted({reader.topic for reader in self._group.readers})
        with parts.toolbar():
            choices = {each: text for each, text in WHERE_TO.items() if each != _SHIFT or self._group.is_counted}
            self._choice = parts.field(ui.select(choices, value=_EARLIEST, label="Move to"), width="17rem")
            self._value = parts.field(ui.input("Where"), width="15rem")
            self._topic = parts.field(ui.select([_ALL_TOPICS, *topics], value=_ALL_TOPICS, label="In"), width="14rem")
        for element in (self._choice, self._value, self._topic):
            element.on_value_change(self._forget)
        self._choice.on_value_change(self._ask_for_value)
        self._value.on("keydown.enter", self._plan)
        self._ask_for_value()

    def _ask_for_value(self) -> None:
        choice = str(self._choice.value)
        self._value.set_visibility(choice in _HINTS)
        self._value.set_value("")
        self._value.props(f"type={'datetime-local' if choice == _TIME else 'text'} step=1")
        self._value.props["hint"] = _HINTS.get(choice, "")
        self._value.props["label"] = {_TIME: "Time", _AGE: "Age", _POINTER: "Pointer", _SHIFT: "Records"}.get(
            choice, ""
        )

    def _warn_of_members(self) -> None:
        if self._group.members:
            self._refuse(
                f"Group {self._group.name} has {texts.count_text(self._group.members, 'member')} that read now: stop "
                "them first, or they would commit over it."
            )

    def _forget(self) -> None:
        self._moves = ()
        self._table.show(())
        self._table.element.set_visibility(False)
        self._summary.set_text("A dry run shows what would move. Nothing is changed by it.")
        self._go.disable()
        self._problem.show("")

    def _refuse(self, text: str) -> None:
        self._problem.show(text)
        self._go.disable()

    async def _plan(self) -> None:
        self._forget()
        to = position_text(str(self._choice.value), str(self._value.value or ""))
        if not to:
            self._value.error = f"Say where to: {_HINTS[str(self._choice.value)]}"
            return
        self._value.error = None
        try:
            self._moves = await in_background(self._service.plan_reset, self._group.name, to, topics=self._topics())
        except PenstockError as error:
            self._refuse(str(error))
            return
        self._to = to
        rows = [_row(move, self._service.pointer_text) for move in self._moves]
        self._table.show(rows)
        self._table.element.selected = [row for row, move in zip(rows, self._moves, strict=True) if move.is_change]
        self._table.element.set_visibility(True)
        self._count()

    def _count(self) -> None:
        ticked = self._ticked()
        back = -sum(move.by for move in ticked if move.by is not None and move.by < 0)
        on = sum(move.by for move in ticked if move.by is not None and move.by > 0)
        told = [f"{texts.count_text(len(ticked), 'partition')} would move"]
        if back:
            told.append(f"{texts.count_text(back, 'record')} are read again")
        if on:
            told.append(f"{texts.count_text(on, 'record')} are skipped")
        self._summary.set_text(
            "; ".join(told) + ("." if not self._service.read_only else ". This console is read-only.")
        )
        self._go.set_text(f"Move {texts.count_text(len(ticked), 'partition')}")
        self._go.set_enabled(bool(ticked) and not self._service.read_only)

    async def _move(self, dialog: ui.dialog) -> None:
        by_topic: dict[str, list[int]] = {}
        for move in self._ticked():
            by_topic.setdefault(move.topic, []).append(move.partition)
        done: list[str] = []
        try:
            for topic, partitions in by_topic.items():
                moved = await in_background(
                    self._service.reset,
                    person(self._console),
                    self._group.name,
                    self._to,
                    topics=(topic,),
                    partitions=tuple(partitions),
                )
                done.append(str(moved) if len(by_topic) == 1 else f"{topic}: {moved}")
        except PenstockError as error:
            self._refuse(" ".join([str(error), *done]))
            return
        parts.say(" ".join(done), "good")
        dialog.close()

    def _topics(self) -> tuple[str, ...]:
        return () if self._topic.value == _ALL_TOPICS else (str(self._topic.value),)

    def _ticked(self) -> list[Move]:
        keys = set(self._table.selected)
        return [move for move in self._moves if _key(move) in keys]


def _key(move: Move) -> str:
    return f"{move.topic}-{move.partition}"


def _row(move: Move, pointer_text: PointerText) -> tables.Row:
    return {
        "id": _key(move),
        "topic": move.topic,
        "partition": move.partition,
        **tables.pointer_cells("committed", move.committed, pointer_text),
        **tables.pointer_cells("to", move.to, pointer_text),
        "by": move.by,
        "by_text": _by_text(move),
        "by_tone": "warn" if move.committed not in (None, move.to) else "plain",
        "note": move.note,
    }


def _by_text(move: Move) -> str:
    if move.committed is None:
        return "from the start"
    if move.to == move.committed:
        return "stays"
    if move.by is None:  # pointers do not count records
        return "back" if move.to < move.committed else "forward"
    return f"{move.by:+,}"


_PLOTS: Final[tuple[tuple[str, str, charts.Unit], ...]] = (
    ("lag", "Lag in records", ""),
    ("lag_s", "Lag in seconds", "s"),
)
_MEMBERS_EVERY_S: Final = 10.0

_PARTITIONS: Final = (
    tables.Column("topic", "Topic", "mono"),
    tables.Column("partition", "Partition", "number"),
    tables.Column("committed", "Committed", "number", on_phone=False),
    tables.Column("end", "End", "number", on_phone=False),
    tables.Column("lag", "Lag", "number"),
    tables.Column("lag_s", "Lag, time", "number", text=texts.duration_text),
    tables.Column("loss", "Loss in", "number"),
    tables.Column("member", "Member", "mono", on_phone=False),
)
_MEMBERS: Final = (
    tables.Column("client", "Client", "mono"),
    tables.Column("host", "Host", "mono", on_phone=False),
    tables.Column("count", "Partitions", "number"),
    tables.Column("partitions", "Assignment", "wide"),
)


class _Group:
    def __init__(self, console: Console, detail: GroupDetail) -> None:
        self._console = console
        self._service = console.service
        self._detail = detail
        self._facts = detail.facts
        self._asked_at_s = time.monotonic()

    async def draw(self) -> None:
        self._draw_head()
        self._sentence = ui.label().classes("forecast")
        with parts.stats():
            self._lag = parts.Stat("Lag")
            self._lag_s = parts.Stat("Lag, time")
            self._rate = parts.Stat("Reads")
            self._coming = parts.Stat("Comes in")
            self._drain = parts.Stat("Drained in")
            self._loss = parts.Stat("Loss in")
        with parts.panel("Trend"):
            plots = _PLOTS if self._facts.is_counted else _PLOTS[1:]
            self._plots = charts.Plots(plots, ["lag"], self._lines, height_px=200)
        with parts.panel("Partitions"):
            self._partitions = tables.Table(_PARTITIONS, (), height="60vh", sort_by="lag", is_descending=True)
        with parts.panel("Members"):
            self._members = tables.Table(_MEMBERS, ())
            self._nobody = parts.label("").classes("about")
        self._show()
        await self._plots.draw()
        live(self._update)

    def _draw_head(self) -> None:
        assignor = f"; assignor {self._detail.assignor}" if self._detail.assignor else ""
        parts.title(self._facts.name, f"Continues at its {kept_text(self._facts)}{assignor}")
        with parts.toolbar():
            self._state = parts.badge("")
            if self._facts.is_library:
                ui.link("Its checkpoints", texts.path_to("consumers", self._facts.name)).classes("link")
            ui.element("span").classes("spread")
            reset = parts.button("Reset offsets", self._reset, icon="restore")
            delete = parts.button("Delete group", self._delete, kind="danger", icon="delete")
        if self._service.read_only:
            reset.props["title"] = "A dry run only: this console was started with --read-only."
            parts.forbid(delete)

    async def _update(self) -> None:
        fresh = self._service.snapshot().groups.get(self._facts.name)
        is_changed = fresh is not None and (fresh.members, fresh.state) != (self._facts.members, self._facts.state)
        if is_changed or time.monotonic() - self._asked_at_s >= _MEMBERS_EVERY_S:
            self._asked_at_s = time.monotonic()
            try:
                self._detail = await in_background(self._service.group, self._facts.name)
            except PenstockError as error:
                self._sentence.set_text(str(error))
                return
        self._facts = fresh or self._detail.facts
        self._show()
        await self._plots.update()

    def _show(self) -> None:
        facts = self._facts
        coming = incoming_per_s(facts, self._service.snapshot())
        members = texts.count_text(facts.members, "member") if facts.members else "no members"
        self._state.set_text(f"{facts.state}, {members}")
        self._state.classes(replace=f"badge tone-{state_tone(facts.state)}")
        text, tone = forecast(facts, coming)
        self._sentence.set_text(text)
        self._sentence.classes(replace=f"forecast tone-{tone}")
        unread = f", and {texts.number_text(facts.unread)} not read yet" if facts.unread else ""
        growing = ", growing" if facts.is_growing else ""
        self._lag.show(texts.number_text(facts.lag), note=not_counted_text(facts) or f"records{unread}{growing}")
        self._lag_s.show(texts.duration_text(facts.lag_s), note="the oldest unread", tone=lag_tone(facts.lag_s))
        self._rate.show(texts.rate_text(facts.rate_per_s))
        self._coming.show(texts.rate_text(coming))
        self._drain.show(
            texts.duration_text(facts.time_to_drain_s), note="" if facts.time_to_drain_s else _no_drain(facts)
        )
        self._loss.show(
            texts.duration_text(facts.time_to_loss_s),
            note=f"{lost_text(facts)} lost" if facts.lost else "by retention",
            tone="bad" if facts.lost else loss_tone(facts.time_to_loss_s),
        )
        self._partitions.show([_reader_row(each, self._service.pointer_text) for each in facts.readers])
        self._members.show(
            [
                {
                    "id": member.id,
                    "client": member.client_id,
                    "host": member.host,
                    "count": len(member.assignment),
                    "partitions": _listed(member.assignment),
                }
                for member in self._detail.members
            ]
        )
        self._members.element.set_visibility(bool(self._detail.members))
        self._nobody.set_visibility(not self._detail.members)
        self._nobody.set_text(
            f"{texts.count_text(facts.members, 'member')}; the leases that they hold are with its checkpoints."
            if facts.members
            else "It has no members, so nothing is read."
        )

    def _lines(self, metric: str, since_ms: int) -> list[charts.Line]:
        return [charts.Line("lag", self._service.series("group", self._facts.name, metric, since_ms))]

    async def _reset(self) -> None:
        await ResetDialog(self._console, self._facts).open()
        await self._update()

    async def _delete(self) -> None:
        name = self._facts.name
        text = (
            f"The {kept_text(self._facts)} of {name} are deleted. A consumer that uses this name again starts where "
            "its own settings say: at the earliest record, or after the latest."
        )
        if not await parts.ask("Delete this group?", text, confirm_word=name, action="Delete", is_dangerous=True):
            return
        async with parts.saying_errors():
            where = await in_background(self._service.delete_group, person(self._console), name)
            parts.say(f"Group {name} is deleted: {where}.", "good")
            ui.navigate.to("/groups")


def _reader_row(reader: ReaderFacts, pointer_text: PointerText) -> tables.Row:
    unread = "not read yet" if reader.unread is None else f"{texts.number_text(reader.unread)} not read yet"
    return {
        "id": f"{reader.topic}-{reader.partition}",
        "topic": reader.topic,
        "topic_href": texts.path_to("topics", reader.topic),
        "partition": reader.partition,
        **tables.pointer_cells("committed", reader.committed, pointer_text),
        **tables.pointer_cells("end", reader.end, pointer_text),
        "lag": reader.lag,
        "lag_text": unread if reader.committed is None else texts.number_text(reader.lag),
        "lag_s": reader.lag_s,
        "lag_s_tone": lag_tone(reader.lag_s),
        "loss": reader.time_to_loss_s,
        "loss_text": f"{lost_text(reader)} lost"
        if reader.lost and not reader.is_counted
        else f"{texts.number_text(reader.lost)} lost"
        if reader.lost
        else texts.duration_text(reader.time_to_loss_s),
        "loss_tone": "bad" if reader.lost else loss_tone(reader.time_to_loss_s),
        "member": reader.member,
    }


def _no_drain(facts: GroupFacts) -> str:
    if not facts.is_behind:
        return "nothing to drain"
    return "never at this rate" if facts.is_growing else ""


def _listed(partitions: tuple[tuple[str, int], ...]) -> str:
    """orders 0 1 2, events 4: topics with their partitions."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(str(partition))
    return ", ".join(f"{topic} {' '.join(numbers)}" for topic, numbers in by_topic.items())
