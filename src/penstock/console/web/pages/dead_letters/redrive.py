"""Redriving: sending letters again with a rate limit; and the progress of jobs, whoever started them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from nicegui import background_tasks, ui

from penstock.console.jobs import DONE, Job
from penstock.console.web import parts, texts
from penstock.console.web.background import in_background
from penstock.console.web.frame import Console, person
from penstock.errors import PenstockError
from penstock.model import DeadLetterFilter

_TELLING_S: Final = 3.0
"""After this time, the rate of a job predicts its end."""
_SHOWN_AFTER_S: Final = 300.0


class RedriveDialog:
    """Asks where to, how fast and how many, shows how many letters match, and starts."""

    def __init__(self, console: Console, spec: str, which: DeadLetterFilter) -> None:
        self._console = console
        self._service = console.service
        self._spec = spec
        self._which = which

    async def open(self) -> None:
        """Returns when the redrive has started or the dialog is closed."""
        with parts.drawn_dialog("Redrive") as dialog:
            self._told = parts.label("Counting …")
            self._where = ui.radio(
                {"home": "To the topic of each record, for the group that gave it up", "other": "To another topic"},
                value="home",
            ).props("dense")
            self._topic = parts.field(ui.select(self._topics(), label="Topic", with_input=True))
            self._topic.bind_visibility_from(self._where, "value", lambda value: value == "other")
            with parts.toolbar():
                self._rate = parts.field(ui.number("At most, letters/s", min=0.1), width="12rem").props("clearable")
                self._limit = parts.field(ui.number("At most, letters", min=1, precision=0), width="12rem").props(
                    "clearable"
                )
            self._problem = parts.Problem()
            with parts.dialog_buttons(dialog):
                self._go = parts.button("Redrive", lambda: self._begin(dialog), kind="primary")
            ui.timer(0, self._count, once=True)
        await parts.until_closed(dialog)

    def _topics(self) -> list[str]:
        return sorted(name for name, facts in self._service.snapshot().topics.items() if not facts.is_internal)

    async def _count(self) -> None:
        try:
            count = await in_background(self._service.count_letters, self._spec, self._which)
        except PenstockError as error:
            self._problem.show(str(error))
            return
        self._told.set_text(f"{texts.count_text(count, 'letter')} match, as of now." if count else "No letter matches.")
        self._go.set_enabled(count > 0)

    async def _begin(self, dialog: ui.dialog) -> None:
        to = str(self._topic.value or "") if self._where.value == "other" else None
        if to == "":
            self._topic.error = "Choose a topic."
            return
        rate, limit = self._rate.value, self._limit.value
        try:
            await in_background(
                self._service.redrive,
                person(self._console),
                self._spec,
                self._which,
                to=to,
                rate_per_s=float(rate) if rate else None,
                limit=int(limit) if limit else None,
            )
        except PenstockError as error:
            self._problem.show(str(error))
            return
        dialog.close()


class RedriveStrip:
    """The progress of one store's jobs. `on_end` is called when one has ended while the page was open."""

    def __init__(self, console: Console, spec: str, on_end: Callable[[], Awaitable[None]]) -> None:
        self._console = console
        self._service = console.service
        self._spec = spec
        self._on_end = on_end
        self._lines: dict[str, _JobLine] = {}
        self._drawn_ms = int(time.time() * 1000)
        self._element = ui.element("div").classes("redrives").props('aria-live="polite"')

    def update(self) -> None:
        present = {job.id: job for job in self._service.jobs() if job.spec == self._spec and _is_fresh(job)}
        for id in [id for id in self._lines if id not in present]:
            self._lines.pop(id).delete()
        for id, job in present.items():
            line = self._lines.get(id)
            if line is None:
                with self._element:
                    line = self._lines[id] = _JobLine(job, None if self._service.read_only else self._cancel)
                if job.begun_ms >= self._drawn_ms:  # it may have ended before it was shown
                    line.is_news = True
            if line.show(job):
                background_tasks.create(self._ended(), name="reload letters")

    async def _ended(self) -> None:
        with self._element:
            await self._on_end()

    async def _cancel(self, job: Job) -> None:
        async with parts.saying_errors():
            await in_background(self._service.cancel, person(self._console), job.id)


class _JobLine:
    def __init__(self, job: Job, cancel: Callable[[Job], Awaitable[None]] | None) -> None:
        self.is_news = not job.is_done
        """Whether its end has not been shown yet."""
        with ui.element("div").classes("redrive") as self._element:
            with ui.element("div").classes("redrive-head"):
                self._text = ui.label()
                ui.element("span").classes("spread")
                self._cancel = parts.button("Cancel", lambda: cancel(job) if cancel else None, kind="quiet")
                self._cancel.set_visibility(cancel is not None and not job.is_done)
            self._bar = ui.linear_progress(0, show_value=False, size="6px").props("rounded")
            self._failures = ui.label().classes("tone-text-bad")

    def show(self, job: Job) -> bool:
        """Show its state; returns whether it has ended since the last call."""
        report = job.report
        self._text.set_text(told(job))
        self._bar.set_value(_share(job))
        first = f": {report.failures[0][1]}" if report.failures else ""
        self._failures.set_text(
            job.error or (f"{texts.number_text(report.failed)} failed{first}" if report.failed else "")
        )
        has_ended = job.is_done and self.is_news
        if job.is_done:
            self._cancel.set_visibility(False)
            self.is_news = False
        return has_ended

    def delete(self) -> None:
        self._element.delete()


def told(job: Job) -> str:
    report = job.report
    of = "" if job.total is None else f" of {texts.number_text(job.total)}"
    done = f"{texts.number_text(job.done)}{of} {DONE[job.kind]}"
    gone = f", {texts.number_text(report.gone)} settled by others" if report.gone else ""
    whose = f"{'Redrive' if job.kind == 'redrive' else 'Discarding'} by {job.by.name} ({job.by.address})"
    if not job.is_done:
        left_s = _left_s(job, int(time.time() * 1000))
        left = "" if left_s is None else f", about {texts.duration_text(left_s)} left"
        return f"{whose}: {done}{gone}{left}"
    ending = "was cancelled" if report.interrupted else "gave up" if report.gave_up else "has ended"
    return f"{whose} {ending}: {done}{gone}, {texts.ago_text(job.ended_ms)}"


def _share(job: Job) -> float:
    if job.total is None:
        return 0.0
    return min(1.0, job.seen / job.total) if job.total else 1.0


def _left_s(job: Job, now_ms: int) -> float | None:
    """The remaining time, by its rate limit or else its speed so far; None: unknown."""
    if job.total is not None and job.rate_per_s is not None:
        return round(max(0, job.total - job.seen) / job.rate_per_s)
    past_s = (now_ms - job.begun_ms) / 1000
    if job.total is None or job.seen == 0 or past_s < _TELLING_S:
        return None
    return round(max(0, job.total - job.seen) * past_s / job.seen)


def _is_fresh(job: Job) -> bool:
    return not job.is_done or time.time() - (job.ended_ms or 0) / 1000 < _SHOWN_AFTER_S
