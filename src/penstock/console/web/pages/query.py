"""SQL over topics: a query, and its rows."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from penstock.console.queries import MOST_ROWS
from penstock.console.views import QueryAnswer
from penstock.console.visible import visible
from penstock.console.web import parts, tables, texts
from penstock.console.web.background import in_background
from penstock.console.web.frame import Console, frame
from penstock.console.web.parts import PageChoices
from penstock.errors import PenstockError

_EXAMPLE: Final = 'select partition, count(*) from "TOPIC" where timestamp > now() - interval 1 hour group by 1'


def register(console: Console) -> None:
    @ui.page("/query")
    def query_page() -> None:
        with frame(console, "SQL", "query"):
            parts.title("SQL", "Topics are tables. Queries only read.")
            _QueryPage(console).draw()


class _QueryPage:
    def __init__(self, console: Console) -> None:
        self._query = console.service.open_query()
        self._chosen = PageChoices("/query")

    def draw(self) -> None:
        ui.context.client.on_delete(self._query.close)
        with parts.panel():
            self._text = parts.field(ui.textarea("Query", value=self._chosen.asked("q")), width="100%")
            self._text.props("autogrow spellcheck=false").on("keydown.ctrl.enter", self._run)
            self._text.props["placeholder"] = _EXAMPLE
            with parts.toolbar():
                self._run_button = parts.button("Run", self._run, kind="primary", icon="play_arrow")
                self._cancel_button = parts.button("Cancel", self._query.cancel, icon="stop")
                self._cancel_button.disable()
                self._note = ui.label("show tables lists the topics; Ctrl+Enter runs.").classes("about")
            self._failure = parts.Problem()
            self._warning = parts.Problem("warn")
        self._result = ui.element("div")

    async def _run(self) -> None:
        text = str(self._text.value or "")
        self._chosen.keep(q=text)
        self._failure.show("")
        self._warning.show("")
        self._run_button.disable()
        self._cancel_button.enable()
        try:
            answer = await in_background(self._query.run, text)
        except PenstockError as error:
            self._result.clear()
            self._failure.show(visible(texts.sentence(str(error))))
        else:
            self._show(answer)
        finally:
            self._run_button.enable()
            self._cancel_button.disable()

    def _show(self, answer: QueryAnswer) -> None:
        rows = texts.count_text(len(answer.rows), "row")
        more = f", the first {MOST_ROWS:,}" if answer.is_cut else ""
        read = texts.count_text(answer.records_read, "record")
        cached = f" and {answer.records_cached:,} in cached segments" if answer.records_cached else ""
        self._note.set_text(f"{rows}{more}; {read} read{cached} in {answer.took_s:.2f} s.")
        self._warning.show(texts.sentence("; ".join(answer.warnings)) if answer.warnings else "")
        self._result.clear()
        with self._result, parts.panel():
            if answer.rows:
                tables.Table(columns_of(answer), rows_of(answer), height="calc(100vh - 26rem)")
            else:
                parts.empty("No rows.", "The query is valid, and nothing matches it.")


def columns_of(answer: QueryAnswer) -> list[tables.Column]:
    """Columns by their place: their names come from the query, and may be anything."""
    return [
        tables.Column(f"c{index}", visible(name), "number" if index in answer.numbers else "mono", on_phone=index < 4)
        for index, name in enumerate(answer.columns)
    ]


def rows_of(answer: QueryAnswer) -> list[tables.Row]:
    found = []
    for number, cells in enumerate(answer.rows):
        row: tables.Row = {"id": number}
        for index, cell in enumerate(cells):
            row[f"c{index}"] = _sortable(cell) if index in answer.numbers else cell
            row[f"c{index}_text"] = texts.NOTHING if cell is None else cell
        found.append(row)
    return found


def _sortable(cell: str | None) -> float | None:
    try:
        return None if cell is None else float(cell)
    except ValueError:  # not a number, or infinite
        return None
