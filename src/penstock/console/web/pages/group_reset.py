"""Moving a group elsewhere: choose where to, see what would move by how much, choose partitions, confirm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nicegui import ui

from penstock.console.web import parts
from penstock.console.web.frame import Console, person
from penstock.console.web.pages.looks import until_closed
from penstock.errors import PenstockError
from penstock.observe.facts import GroupFacts

if TYPE_CHECKING:
    from penstock.streams.kafka.moves import Move

_EARLIEST, _LATEST, _TIME, _AGE, _POINTER, _SHIFT = "earliest", "latest", "time", "age", "pointer", "shift"
WHERE_TO: Final = {
    _EARLIEST: "Earliest: read everything again",
    _LATEST: "Latest: skip what waits",
    _TIME: "A time",
    _AGE: "An age: so long ago",
    _POINTER: "A pointer",
    _SHIFT: "Shift: so many records back or on",
}
_HINTS: Final = {
    _TIME: "UTC; the first record from then on",
    _AGE: "such as 30s, 15m, 2h, 7d",
    _POINTER: "an offset, for every partition that is ticked",
    _SHIFT: "such as -100 or +100",
}
_ALL_TOPICS: Final = "All topics"
_COLUMNS: Final = (
    parts.Column("topic", "Topic", "mono"),
    parts.Column("partition", "Partition", "number"),
    parts.Column("committed", "Is at", "number", on_phone=False),
    parts.Column("to", "Moves to", "number"),
    parts.Column("by", "By records", "number"),
    parts.Column("note", "Note", "text", on_phone=False),
)


def position_text(choice: str, value: str) -> str:
    """What the service takes as the place to move to. Empty when something has still to be written."""
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
    return value


class ResetDialog:
    """The dialog, for one group, opened once."""

    def __init__(self, console: Console, group: GroupFacts) -> None:
        self._console = console
        self._service = console.service
        self._group = group
        self._moves: Sequence[Move] = ()

    async def open(self) -> None:
        """Ends when the dialog is closed, whatever was done in it."""
        with ui.dialog() as dialog, ui.card().classes("dialog dialog-wide"):
            parts.heading("h2", f"Reset offsets of {self._group.name}")
            self._draw_choice()
            self._problem = ui.label().classes("notice-inline tone-bad").props('role="alert"')
            self._problem.set_visibility(False)
            self._table = parts.table(_COLUMNS, (), height="40vh", is_selectable=True, sort_by="topic")
            self._table.element.set_visibility(False)
            self._table.element.on_select(lambda _: self._count())
            self._summary = ui.label().classes("about")
            with ui.element("div").classes("dialog-buttons"):
                parts.button("Cancel", dialog.close, kind="quiet")
                parts.button("Dry run", self._plan, kind="plain")
                self._go = parts.button("Move", lambda: self._move(dialog), kind="danger")
        self._forget()
        self._warn_of_members()
        await until_closed(dialog)

    def _draw_choice(self) -> None:
        topics = sorted({reader.topic for reader in self._group.readers})
        with parts.toolbar():
            self._choice = parts.field(ui.select(WHERE_TO, value=_EARLIEST, label="Move to"), width="17rem")
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
                f"Group {self._group.name} has {parts.count_text(self._group.members, 'member')} that read now: stop "
                "them first, or they would commit over it."
            )

    def _forget(self) -> None:
        """What was planned does not count any more."""
        self._moves = ()
        self._table.show(())
        self._table.element.set_visibility(False)
        self._summary.set_text("A dry run shows what would move. Nothing is changed by it.")
        self._go.disable()
        self._problem.set_visibility(False)

    def _refuse(self, text: str) -> None:
        self._problem.set_text(text)
        self._problem.set_visibility(True)
        self._go.disable()

    async def _plan(self) -> None:
        self._forget()
        to = position_text(str(self._choice.value), str(self._value.value or ""))
        if not to:
            self._value.error = f"Say where to: {_HINTS[str(self._choice.value)]}"
            return
        self._value.error = None
        try:
            self._moves = await parts.in_background(
                self._service.plan_reset, self._group.name, to, topics=self._topics()
            )
        except PenstockError as error:
            self._refuse(str(error))
            return
        self._to = to
        rows = [_row(move) for move in self._moves]
        self._table.show(rows)
        self._table.element.selected = [row for row in rows if row["by"] != 0]
        self._table.element.set_visibility(True)
        self._count()

    def _count(self) -> None:
        ticked = self._ticked()
        back = -sum(move.by for move in ticked if move.by is not None and move.by < 0)
        on = sum(move.by for move in ticked if move.by is not None and move.by > 0)
        told = [f"{parts.count_text(len(ticked), 'partition')} would move"]
        if back:
            told.append(f"{parts.count_text(back, 'record')} are read again")
        if on:
            told.append(f"{parts.count_text(on, 'record')} are skipped")
        self._summary.set_text(
            "; ".join(told) + ("." if not self._service.read_only else ". This console is read-only.")
        )
        self._go.set_text(f"Move {parts.count_text(len(ticked), 'partition')}")
        self._go.set_enabled(bool(ticked) and not self._service.read_only)

    async def _move(self, dialog: ui.dialog) -> None:
        by_topic: dict[str, list[int]] = {}
        for move in self._ticked():
            by_topic.setdefault(move.topic, []).append(move.partition)
        moved = 0
        try:
            for topic, partitions in by_topic.items():
                moves = await parts.in_background(
                    self._service.reset,
                    person(self._console),
                    self._group.name,
                    self._to,
                    topics=(topic,),
                    partitions=tuple(partitions),
                )
                moved += len(moves)
        except PenstockError as error:
            done = f" {parts.count_text(moved, 'partition')} had moved before." if moved else ""
            self._refuse(str(error) + done)
            return
        parts.say(f"{parts.count_text(moved, 'partition')} of {self._group.name} moved.", "good")
        dialog.close()

    def _topics(self) -> tuple[str, ...]:
        return () if self._topic.value == _ALL_TOPICS else (str(self._topic.value),)

    def _ticked(self) -> list[Move]:
        keys = set(self._table.selected)
        return [move for move in self._moves if _key(move) in keys]


def _key(move: Move) -> str:
    return f"{move.topic}-{move.partition}"


def _row(move: Move) -> parts.Row:
    by = "from the start" if move.by is None else f"{move.by:+,}" if move.by else "stays"
    return {
        "id": _key(move),
        "topic": move.topic,
        "partition": move.partition,
        "committed": move.committed,
        "committed_text": parts.number_text(move.committed),
        "to": move.to,
        "to_text": parts.number_text(move.to),
        "by": move.by,
        "by_text": by,
        "by_tone": "warn" if move.by else "plain",
        "note": move.note,
    }
