"""Cells and styles that only the pages of groups, consumers and letters have, beside the ones that all share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from nicegui import ui

from penstock.console.web.assets import address_of_asset
from penstock.console.web.parts import Table
from penstock.errors import PenstockError

# What comes from a row is bound as the attribute of a drawing, which takes numbers and nothing else.
_SPARK_CELL: Final = """
<q-td :props="props" :class="props.col.phone ? '' : 'not-phone'">
  <svg v-if="props.value" class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
    <polyline :points="props.value" />
  </svg>
  <span v-else>–</span>
</q-td>
"""
_WINDOW_CELL: Final = """
<q-td :props="props" class="window-cell">
  <svg v-if="props.value" class="window" viewBox="0 0 600 18" preserveAspectRatio="none" aria-hidden="true">
    <rect class="window-open" x="0" y="0" width="600" height="18" />
    <rect v-for="strip in props.value" :class="'window-' + strip[0]" :x="strip[1]" y="0" :width="strip[2]"
      height="18" />
  </svg>
  <span v-else class="about">all finished</span>
</q-td>
"""


def wear_details() -> None:
    """Give the page the styles of what is drawn here."""
    ui.add_head_html(f'<link rel="stylesheet" href="{address_of_asset("details.css")}">')


class Trouble:
    """Why a page could not be brought up to date: a line that comes and goes. A notice would come again and again."""

    def __init__(self) -> None:
        self._label = ui.label().classes("notice-inline tone-bad").props('role="alert"')
        self._label.set_visibility(False)

    @contextmanager
    def told(self) -> Iterator[None]:
        """What the user can solve is shown, and what was shown before is taken away when nothing is wrong."""
        try:
            yield
        except PenstockError as error:
            self._label.set_text(str(error))
            self._label.set_visibility(True)
        else:
            self._label.set_visibility(False)


async def until_closed(dialog: ui.dialog) -> Any:
    """Open a dialog, and give what was submitted in it; None when it was closed. Where its page was left meanwhile,
    whoever waits is cancelled: there is nothing left to show anything on."""
    result = await dialog
    if dialog.is_deleted:
        raise asyncio.CancelledError
    dialog.delete()
    return result


def draw_sparks(table: Table, column: str) -> None:
    """Show this column, which holds what `group_words.spark` gives, as a small plot."""
    table.element.add_slot(f"body-cell-{column}", _SPARK_CELL)


def draw_windows(table: Table, column: str) -> None:
    """Show this column, which holds lists of kind, left and width, as the picture of a window."""
    table.element.add_slot(f"body-cell-{column}", _WINDOW_CELL)
