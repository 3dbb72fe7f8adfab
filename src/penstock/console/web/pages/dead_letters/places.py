"""Dead letters: the stores with failed records. In one store: find letters, see why they failed, redrive or discard."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from nicegui import app, ui
from starlette.responses import Response

from penstock.console.jobs import DONE, Job
from penstock.console.views import LetterErrors, LetterPage, LetterRow
from penstock.console.visible import visible
from penstock.console.web import parts, tables, texts
from penstock.console.web.absence import Listing, draw_failure
from penstock.console.web.background import from_disk, in_background
from penstock.console.web.files import as_file, no_file
from penstock.console.web.frame import Console, frame, live, person
from penstock.console.web.pages.dead_letters.comparison import STATE_TONES, place_text, show_comparison, show_letter
from penstock.console.web.pages.dead_letters.redrive import RedriveDialog, RedriveStrip
from penstock.console.web.pages.group_words import spark
from penstock.console.web.parts import PageChoices
from penstock.errors import PenstockError
from penstock.model import DeadLetterFilter, LetterState
from penstock.observe.facts import LetterFacts
from penstock.streams.url import without_password

TREND_S: Final = 86_400
_TREND_POINTS: Final = 60
_STORE_COLUMNS: Final = (
    tables.Column("spec", "Place", "mono"),
    tables.Column("waiting", "Waiting", "number"),
    tables.Column("trend", "Last day", is_sortable=False),
    tables.Column("job", "Running", "text", on_phone=False),
)


def register(console: Console) -> None:
    @ui.page("/letters")
    async def letters_page() -> None:
        with frame(console, "Dead letters", "letters"):
            parts.title("Dead letters", "Records that were given up, to be looked at, redriven or discarded.")
            trouble = parts.Problem()
            nothing = (
                "There are no dead-letter stores yet.",
                "One is created when a handler gives up its first record. Name stores outside the stream:",
                f"penstock console --url {console.service.url} --dead-letters sqlite:./letters.db",
            )
            height = "calc(100vh - 12rem)"
            listing = Listing(
                console, _STORE_COLUMNS, nothing, key="spec", height=height, sort_by="waiting", is_descending=True
            )
            listing.table.draw_sparks("trend")

            def found() -> list[tables.Row]:
                since_ms = int((time.time() - TREND_S) * 1000)
                running = {job.spec: job for job in console.service.jobs() if not job.is_done}
                rows = []
                for place in console.service.dead_letter_stores():
                    past = console.service.series("letters", place.spec, "waiting", since_ms, _TREND_POINTS)
                    rows.append(_store_row(place, spark(past), running.get(place.spec)))
                return rows

            async def update() -> None:
                with trouble.told():
                    listing.show(await from_disk(found))

            await update()
            live(update)

    @ui.page("/letters/{place:path}")
    async def place_page(place: str, letter: str = "") -> None:
        with frame(console, place, "letters"):
            spec = spec_of(place, await from_disk(console.service.dead_letter_stores))
            page = _StorePage(console, spec)
            try:
                await page.draw()
            except PenstockError as error:
                page.clear()
                draw_failure(place, "There is nothing to show here.", error, page.ask)
                return
        if letter:
            ui.timer(0, lambda: page.open_letter(letter), once=True)

    @app.get("/download-letter/{place:path}/{id}/{which}")
    async def download(place: str, id: str, which: str) -> Response:
        try:
            spec = spec_of(place, await from_disk(console.service.dead_letter_stores))
            return as_file(await in_background(console.service.letter_record, spec, id), which)
        except PenstockError as error:
            return no_file(error)


def place_name(spec: str) -> str:
    """The name of a store in pages and addresses: without a password that its URL may contain."""
    return without_password(spec)


def spec_of(name: str, places: Sequence[LetterFacts]) -> str:
    return next((each.spec for each in places if name in (each.spec, place_name(each.spec))), name)


def waiting_text(facts: LetterFacts) -> str:
    """How many wait; an estimate is marked as an upper bound."""
    return texts.number_text(facts.waiting) if facts.is_exact else f"≤ {texts.number_text(facts.waiting)}"


def _store_row(facts: LetterFacts, trend: str, job: Job | None) -> tables.Row:
    return {
        "spec": place_name(facts.spec),
        "spec_href": texts.path_to("letters", place_name(facts.spec)),
        "waiting": facts.waiting,
        "waiting_text": waiting_text(facts),
        "waiting_tone": "bad" if facts.waiting else "good",
        "trend": trend,
        "job": None if job is None else f"by {job.by.name}: {texts.number_text(job.done)} {DONE[job.kind]}",
    }


_ANY: Final = ""
_ANY_TIME: Final = "Any time"
_OPEN: Final = "Waiting"
SINCE_S: Final = {_ANY_TIME: 0, "15 min": 900, "1 h": 3_600, "24 h": 86_400, "7 d": 604_800}
STATES: Final = {
    _OPEN: frozenset({LetterState.WAITING, LetterState.TAKEN}),
    "Redriven": frozenset({LetterState.REDRIVEN}),
    "Discarded": frozenset({LetterState.DISCARDED}),
    "All": frozenset(LetterState),
}


class Filters:
    """The fields, drawn side by side. `on_change` is called after a change."""

    def __init__(self, chosen: PageChoices, on_change: Callable[[], Any]) -> None:
        asked = chosen.asked
        kind = asked("error")
        with parts.toolbar():
            state = ui.select(list(STATES), value=asked("state", _OPEN, STATES), label="State")
            self._state = parts.field(state, width="9rem")
            kinds = {_ANY: "Any error"} | ({kind: visible(kind)} if kind else {})
            self._kind = parts.field(ui.select(kinds, value=kind or _ANY, label="Error"), width="12rem")
            self._text = self._field("Error holds", asked("holds"), "11rem")
            self._group = self._field("Group", asked("group"), "8.5rem")
            self._topic = self._field("Topic", asked("topic"), "8.5rem")
            since = ui.select(list(SINCE_S), value=asked("since", _ANY_TIME, SINCE_S), label="Given up")
            self._since = parts.field(since, width="9rem")

        def changed() -> Any:
            chosen.keep(
                state="" if self._state.value == _OPEN else str(self._state.value),
                error=str(self._kind.value),
                holds=self._written(self._text) or "",
                group=self._written(self._group) or "",
                topic=self._written(self._topic) or "",
                since="" if self._since.value == _ANY_TIME else str(self._since.value),
            )
            return on_change()

        for element in (self._state, self._kind, self._text, self._group, self._topic, self._since):
            element.on_value_change(lambda _: changed())

    def now(self) -> DeadLetterFilter:
        ago_s = SINCE_S[str(self._since.value)]
        return DeadLetterFilter(
            group=self._written(self._group),
            topic=self._written(self._topic),
            error_kind=str(self._kind.value) or None,
            error_contains=self._written(self._text),
            since_ms=int((time.time() - ago_s) * 1000) if ago_s else None,
            states=STATES[str(self._state.value)],
        )

    @property
    def is_open_only(self) -> bool:
        """Whether only letters are shown that can be redriven."""
        return bool(self._state.value == _OPEN)

    def know_kinds(self, kinds: Sequence[str]) -> None:
        chosen = str(self._kind.value)
        options = {_ANY: "Any error", **{kind: visible(kind) for kind in kinds}}
        if chosen:
            options.setdefault(chosen, visible(chosen))
        self._kind.set_options(options, value=chosen)

    def choose_kind(self, kind: str) -> None:
        """Filter by this kind of error; a second call with the same kind removes the filter."""
        self._kind.set_value(_ANY if self._kind.value == kind else kind)

    @staticmethod
    def _field(label: str, text: str, width: str) -> ui.input:
        return parts.field(ui.input(label, value=text), width=width).props("clearable debounce=400")

    @staticmethod
    def _written(element: ui.input) -> str | None:
        return str(element.value or "").strip() or None


PAGE: Final = 100
_MOST_ROWS: Final = 5_000
_KINDS_SHOWN: Final = 8
_LETTER_COLUMNS: Final = (
    tables.Column("last", "Given up", on_phone=False, text=texts.ago_text),
    tables.Column("kind", "Kind", "badge"),
    tables.Column("error", "Error", "wide"),
    tables.Column("place", "Record", "mono", on_phone=False),
    tables.Column("key", "Key", "mono", on_phone=False),
    tables.Column("group", "Group", "mono", on_phone=False),
    tables.Column("state", "State", "badge", on_phone=False),
)


class _StorePage:
    def __init__(self, console: Console, spec: str) -> None:
        self._console = console
        self._service = console.service
        self._spec = spec
        self._rows: list[LetterRow] = []
        self._after: str | None = None
        self._asked = 0
        self._has_failed = False
        self._chosen = PageChoices(texts.path_to("letters", place_name(spec)))

    def ask(self) -> LetterPage:
        """Any page of letters, to see whether the store answers."""
        return self._service.letters(self._spec, DeadLetterFilter(), 1)

    async def draw(self) -> None:
        """Draw the letters of this place, and keep them up to date. PenstockError if they cannot be read."""
        with ui.element("div").style("display: contents") as self._body:
            self._draw()
            await self._load(is_first=True)
        self._update()
        live(self._update, every_s=1.5)
        live(self._try_again)
        ui.timer(0, self._show_errors, once=True)  # it may take a second: do not hold the page back

    def clear(self) -> None:
        self._body.delete()

    def _draw(self) -> None:
        parts.title(place_name(self._spec), "Dead letters")
        with ui.element("div").classes("letters-head"):
            with parts.stats():
                self._waiting = parts.Stat("Waiting")
            with parts.panel("Why", "Click a kind to see only its letters.") as self._why:
                self._bars = ui.element("div").classes("bars")
        self._strip = RedriveStrip(self._console, self._spec, on_end=self._reload)
        self._filters = Filters(self._chosen, self._look)
        with parts.toolbar():
            self._redrive = parts.button("Redrive", self._open_redrive, kind="primary", icon="replay")
            self._discard = parts.button("Discard", self._open_discard, kind="danger", icon="delete_sweep")
            self._compare = parts.button("Compare", self._open_comparison, icon="compare_arrows")
            parts.button("Reload", self._reload, kind="quiet", icon="refresh")
            self._count = ui.label().classes("about")
        with parts.panel() as self._panel:
            self._table = tables.Table(_LETTER_COLUMNS, (), height="65vh", is_selectable=True, on_click=self._clicked)
            self._table.element.on_select(lambda _: self._offer())
            self._more = parts.button("Load more", self._load_more).classes("to-the-left")
        with parts.panel() as self._nothing:
            parts.empty("No letter matches.", "Change the filter to see other letters.")
        self._why.set_visibility(False)
        self._nothing.set_visibility(False)  # not known yet

    def _update(self) -> None:
        facts = self._service.snapshot().letters.get(self._spec)
        self._waiting.show(
            "–" if facts is None else waiting_text(facts),
            tone="bad" if facts is not None and facts.waiting else "plain",
        )
        self._strip.update()

    async def _reload(self) -> None:
        await self._look()
        await self._show_errors()

    async def _look(self) -> None:
        async with parts.saying_errors():
            self._has_failed = True
            await self._load(is_first=True)
            self._has_failed = False

    async def _try_again(self) -> None:
        """Try again when the stream is back."""
        if self._has_failed and self._service.outage() is None:
            await self._reload()

    async def _load_more(self) -> None:
        async with parts.saying_errors():
            await self._load(is_first=False)

    async def _load(self, *, is_first: bool) -> None:
        self._asked += 1
        asked = self._asked
        self._count.set_text("Looking …")
        try:
            page = await in_background(
                self._service.letters, self._spec, self._filters.now(), PAGE, None if is_first else self._after
            )
        except PenstockError:
            self._offer()
            raise
        if asked != self._asked:
            return  # the filter was changed meanwhile, and its result is on its way
        self._take(page, is_first=is_first)

    def _take(self, page: LetterPage, *, is_first: bool) -> None:
        if is_first:
            self._table.select_none()
        self._rows = [*([] if is_first else self._rows), *page.rows][-_MOST_ROWS:]
        self._after = page.after
        self._table.show([_letter_row(each) for each in self._rows])
        self._panel.set_visibility(bool(self._rows))
        self._nothing.set_visibility(not self._rows)
        self._more.set_visibility(self._after is not None)
        self._offer()

    def _offer(self) -> None:
        """Update the buttons to the ticked letters."""
        ticked = len(self._table.selected)
        more = " or more" if self._after is not None else ""
        self._count.set_text(
            f"{texts.count_text(ticked, 'letter')} ticked"
            if ticked
            else f"{texts.count_text(len(self._rows), 'letter')}{more}; tick some, or take all that match"
        )
        self._redrive.set_text(f"Redrive {ticked}" if ticked else "Redrive all that match")
        self._discard.set_text(f"Discard {ticked}" if ticked else "Discard all that match")
        may_act = not self._service.read_only and bool(self._rows) and self._filters.is_open_only
        for action in (self._redrive, self._discard):
            action.set_enabled(may_act)
            action.props["title"] = self._why_not()
        self._compare.set_enabled(ticked == 2)
        self._compare.props["title"] = "" if ticked == 2 else "Tick two letters to compare them."

    def _why_not(self) -> str:
        """Why letters cannot be redriven or discarded; empty if they can."""
        if self._service.read_only:
            return parts.READ_ONLY
        return "" if self._filters.is_open_only else "Only letters that wait can be redriven or discarded."

    async def _show_errors(self) -> None:
        try:
            errors = await in_background(self._service.letter_errors, self._spec)
        except PenstockError:
            return  # the error was shown with the letters themselves
        self._filters.know_kinds([kind for kind, _ in errors.counts])
        self._why.set_visibility(bool(errors.counts))
        self._bars.clear()
        with self._bars:
            self._draw_bars(errors)

    def _draw_bars(self, errors: LetterErrors) -> None:
        highest = max((count for _, count in errors.counts), default=1)
        for kind, count in errors.counts[:_KINDS_SHOWN]:
            with ui.element("button").classes("bar").props('type="button"') as bar:
                bar.on("click", lambda _, kind=kind: self._filters.choose_kind(kind))
                parts.label(kind).classes("bar-name")
                with ui.element("span").classes("bar-track"):
                    ui.element("span").classes("bar-fill").style(f"width: {count / highest * 100:.1f}%")
                parts.label(texts.number_text(count)).classes("bar-count")
        rest = errors.counts[_KINDS_SHOWN:]
        if rest:
            parts.label(f"and {texts.count_text(len(rest), 'more kind')}").classes("about")
        if not errors.is_complete:
            parts.label(f"Of the first {texts.number_text(errors.counted)} letters.").classes("about")

    async def _clicked(self, row: tables.Row) -> None:
        await self.open_letter(str(row.get("id", "")))

    async def open_letter(self, id: str) -> None:
        async with parts.saying_errors():
            detail = await in_background(self._service.letter, self._spec, id)
            self._chosen.keep(letter=id)
            download = f"{texts.path_to('download-letter', place_name(self._spec))}/{detail.row.id}"
            await show_letter(detail, download, self._service.pointer_text)
            self._chosen.keep(letter="")

    async def _open_comparison(self) -> None:
        left, right = self._table.selected
        async with parts.saying_errors():
            await show_comparison(
                await in_background(self._service.letter, self._spec, str(left)),
                await in_background(self._service.letter, self._spec, str(right)),
                await in_background(self._service.compare_letters, self._spec, str(left), str(right)),
            )

    async def _open_redrive(self) -> None:
        ticked = frozenset(map(str, self._table.selected))
        which = DeadLetterFilter(ids=ticked) if ticked else self._filters.now()
        await RedriveDialog(self._console, self._spec, which).open()
        self._strip.update()

    async def _open_discard(self) -> None:
        async with parts.saying_errors():
            ticked, which = tuple(map(str, self._table.selected)), self._filters.now()
            count = len(ticked) or await in_background(self._service.count_letters, self._spec, which)
            reason = await _ask_reason(count) if count else None
            if not reason:
                return
            by = person(self._console)
            if ticked:
                discarded = await in_background(self._service.discard, by, self._spec, ticked, reason)
                parts.say(f"{texts.count_text(discarded, 'letter')} discarded. They can still be looked at.", "good")
                await self._reload()
            else:
                await in_background(self._service.discard_matching, by, self._spec, which, reason)
                self._strip.update()


async def _ask_reason(count: int) -> str | None:
    """Ask for a reason; None: cancelled."""
    with parts.drawn_dialog(f"Discard {texts.count_text(count, 'letter')}?") as dialog:
        parts.label("They are not redriven any more, and can still be looked at. The reason goes into the audit log.")
        reason = parts.field(ui.input("Reason")).props("autofocus maxlength=500")
        with parts.dialog_buttons(dialog):
            go = parts.button("Discard", lambda: dialog.submit(True), kind="danger")
        go.disable()
        reason.on_value_change(lambda event: go.set_enabled(bool((event.value or "").strip())))
    is_confirmed = await parts.until_closed(dialog)
    text = str(reason.value or "").strip()
    return text if is_confirmed and text else None


def _letter_row(letter: LetterRow) -> tables.Row:
    return {
        "id": letter.id,
        "last": letter.last_ms,
        "kind": letter.error_kind,
        "kind_tone": "bad",
        "error": letter.error.partition("\n")[0].removeprefix(f"{letter.error_kind}: "),
        "place": place_text(letter),
        "key": letter.key.text,
        "group": letter.group,
        "state": str(letter.state),
        "state_tone": STATE_TONES[letter.state],
    }
