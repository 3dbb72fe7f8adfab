"""A sortable table that draws only the visible rows, and is sent again only after a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nicegui import ui
from nicegui.events import GenericEventArguments

from penstock.console.visible import is_hiding, visible
from penstock.console.web import texts
from penstock.model.pointer_forms import LARGEST_NUMBER

Row = dict[str, Any]
Tone = Literal["plain", "good", "warn", "bad", "info"]

ROW_HEIGHT_PX: Final = 40

# One template for every cell. Everything from a row is interpolated as text, or is an address from `texts.path_to`.
# Never use `v-html` here.
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
# The points of a trend are bound as an attribute of a drawing, which accepts only numbers.
_SPARK_CELL: Final = """
<q-td :props="props" :class="props.col.phone ? '' : 'not-phone'">
  <svg v-if="props.value" class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
    <polyline :points="props.value" />
  </svg>
  <span v-else>–</span>
</q-td>
"""
_HEAD: Final = """
<q-th :props="props" :class="props.col.phone ? '' : 'not-phone'">{{ props.col.label }}</q-th>
"""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Rows are sorted by `row[name]`. A cell shows that value as `text` writes it, or `row[name + "_text"]`
    where there is one; it links to `row[name + "_href"]`, and is coloured by the tone in `row[name + "_tone"]`."""

    name: str
    label: str
    kind: Literal["text", "number", "time", "mono", "wide", "sentence", "badge"] = "text"
    """number: right-aligned, tabular figures; mono: cut to one line; wide: the same, and takes the remaining room;
    sentence: takes it too, and wraps; time: a text of `time_text`, without its date at phone width."""
    is_sortable: bool = True
    on_phone: bool = True
    """Whether it is shown at phone width."""
    text: Callable[[Any], str] | None = None


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
        """`key`: the column that identifies rows. `height`: any CSS length; the table scrolls inside it and draws only
        the visible rows: needed from some hundred rows on. `on_click` gets the row, of which only `key` can be
        trusted: it comes back from the browser."""
        self._key = key
        self._columns = columns
        self._texts = [field for column in columns for field in (column.name, f"{column.name}_text")]
        self._rows = self._written(rows)
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

    def draw_sparks(self, column: str) -> None:
        """Show this column, which holds the results of `group_words.spark`, as a small chart."""
        self.element.add_slot(f"body-cell-{column}", _SPARK_CELL)

    def show(self, rows: Sequence[Row]) -> None:
        fresh = self._written(rows)
        if fresh != self._rows:
            self._rows = fresh
            self.element.rows = fresh

    def filter(self, text: str) -> None:
        self.element.filter = text

    @property
    def rows(self) -> list[Row]:
        return list(self._rows)

    @property
    def selected(self) -> list[Any]:
        """The keys of the ticked rows."""
        return [row[self._key] for row in self.element.selected]

    def select_none(self) -> None:
        self.element.selected = []

    def _written(self, rows: Sequence[Row]) -> list[Row]:
        found = []
        for row in rows:
            written = {f"{each.name}_text": each.text(row.get(each.name)) for each in self._columns if each.text}
            found.append(legible({**written, **row}, self._texts))
        return found

    def _clicked(self, event: GenericEventArguments) -> Row:
        key = event.args[1].get(self._key)
        return next((row for row in self._rows if row[self._key] == key), {self._key: key})


def pointer_cells(name: str, pointer: int | None, pointer_text: Callable[[int], str]) -> Row:
    """The two fields of a cell that shows a pointer. In the system's own form it is sorted as padded text: browsers
    cannot hold larger numbers."""
    if pointer is None:
        return {name: None, f"{name}_text": texts.NOTHING}
    text = pointer_text(pointer)
    if text == str(pointer) and pointer <= LARGEST_NUMBER:
        return {name: pointer, f"{name}_text": texts.number_text(pointer)}
    return {name: f"{pointer:080d}", f"{name}_text": text}


def legible(row: Row, fields: Sequence[str]) -> Row:
    """The row with hidden characters in its texts made visible. Its key and sort values stay as they are."""
    shown = {
        field.removesuffix("_text") + "_text": visible(text)
        for field in fields
        if isinstance(text := row.get(field), str) and is_hiding(text)
    }
    return {**row, **shown} if shown else row


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
