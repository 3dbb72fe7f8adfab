"""A table that people can sort, which draws only the rows in view, and is sent again only when something changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nicegui import ui
from nicegui.events import GenericEventArguments

from penstock.console.visible import is_hiding, visible

Row = dict[str, Any]
Tone = Literal["plain", "good", "warn", "bad", "info"]

ROW_HEIGHT_PX: Final = 40

# One template for every cell. All that comes from a row is interpolated as text, or is an address that `texts.path_to`
# made. `v-html` has no place here.
_CELL: Final = """
<q-td :props="props" :class="['cell', 'cell-' + props.col.kind, props.col.phone ? '' : 'not-phone']">
  <span v-if="props.col.kind === 'badge' && props.value != null && props.value !== ''"
    :class="['badge', 'tone-' + (props.row[props.col.name + '_tone'] || 'plain')]"
    >{{ props.row[props.col.name + '_text'] ?? props.value }}</span>
  <a v-else-if="props.row[props.col.name + '_href']" class="link" :href="props.row[props.col.name + '_href']"
    >{{ props.row[props.col.name + '_text'] ?? props.value }}</a>
  <span v-else-if="props.col.kind === 'time'"><span class="not-phone"
    >{{ String(props.row[props.col.name + '_text'] ?? '').split(' ')[0] }}&nbsp;</span
    >{{ String(props.row[props.col.name + '_text'] ?? '–').split(' ').slice(-1)[0] }}</span>
  <span v-else :class="'tone-text-' + (props.row[props.col.name + '_tone'] || 'plain')"
    :title="props.col.kind === 'mono' || props.col.kind === 'wide'
      ? String(props.row[props.col.name + '_text'] ?? props.value ?? '') : undefined"
    >{{ props.row[props.col.name + '_text'] ?? props.value ?? '–' }}</span>
</q-td>
"""
_HEAD: Final = """
<q-th :props="props" :class="props.col.phone ? '' : 'not-phone'">{{ props.col.label }}</q-th>
"""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. A row is sorted by `row[name]`; it shows `row[name + "_text"]` instead where there is one, leads to
    `row[name + "_href"]`, and is coloured by the tone in `row[name + "_tone"]`."""

    name: str
    label: str
    kind: Literal["text", "number", "time", "mono", "wide", "sentence", "badge"] = "text"
    """number: to the right, in figures of one width; mono: cut to one line; wide: the same, and takes the room that is
    left; sentence: takes it too, and wraps; time: a text of `time_text`, without its date at phone width."""
    is_sortable: bool = True
    on_phone: bool = True
    """Whether there is room for it at phone width."""


class Table:
    """A table on a page. `show` gives it new rows, and sends them only when they differ."""

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Row],
        *,
        key: str = "id",
        height: str | None = None,
        sort_by: str | None = None,
        is_descending: bool = False,
        is_selectable: bool = False,
        on_click: Callable[[Row], Any] | None = None,
    ) -> None:
        """`key`: the column that tells rows apart. `height`: any CSS length, inside which the table scrolls and draws
        only what is in view: needed from some hundred rows on. `on_click` is given the row, of which only `key` must
        be believed: it comes back from the browser."""
        self._key = key
        self._texts = [field for column in columns for field in (column.name, f"{column.name}_text")]
        self._rows = [legible(row, self._texts) for row in rows]
        self.element = ui.table(
            columns=[_described(each) for each in columns],
            rows=self._rows,
            row_key=key,
            selection="multiple" if is_selectable else None,
            pagination={"rowsPerPage": 0, "sortBy": sort_by, "descending": is_descending},
        )
        self.element.props("flat hide-bottom binary-state-sort").classes("table")
        if height is not None:
            sizes = f"virtual-scroll-item-size={ROW_HEIGHT_PX} virtual-scroll-sticky-size-start={ROW_HEIGHT_PX}"
            self.element.props(f"virtual-scroll {sizes}").style(f"max-height: {height}")
        self.element.add_slot("body-cell", _CELL)
        self.element.add_slot("header-cell", _HEAD)
        if on_click is not None:
            self.element.classes("table-clickable")
            self.element.on("row-click", lambda event: on_click(self._clicked(event)), [[], [key]])

    def show(self, rows: Sequence[Row]) -> None:
        fresh = [legible(row, self._texts) for row in rows]
        if fresh != self._rows:
            self._rows = fresh
            self.element.rows = fresh

    def filter(self, text: str) -> None:
        """Show only rows in which a cell holds this text."""
        self.element.filter = text

    @property
    def rows(self) -> list[Row]:
        return list(self._rows)

    @property
    def selected(self) -> list[Any]:
        """The keys of the rows that are ticked."""
        return [row[self._key] for row in self.element.selected]

    def select_none(self) -> None:
        self.element.selected = []

    def _clicked(self, event: GenericEventArguments) -> Row:
        key = event.args[1].get(self._key)
        return next((row for row in self._rows if row[self._key] == key), {self._key: key})


def legible(row: Row, fields: Sequence[str]) -> Row:
    """The row with what is hidden in its texts visible. What it is known and sorted by stays as it is."""
    shown = {
        field.removesuffix("_text") + "_text": visible(text)
        for field in fields
        if isinstance(text := row.get(field), str) and is_hiding(text)
    }
    return {**row, **shown} if shown else row


def table(columns: Sequence[Column], rows: Sequence[Row], **options: Any) -> Table:
    """A table, drawn where this is called; see `Table` for the options."""
    return Table(columns, rows, **options)


def _described(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "label": column.label,
        "field": column.name,
        "align": "right" if column.kind == "number" else "left",
        "sortable": column.is_sortable,
        "kind": column.kind,
        "phone": column.on_phone,
    }
