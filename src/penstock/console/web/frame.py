"""What surrounds every page: the header, the navigation, the search, the theme, and current problems."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from penstock.console.service import Outage, Service
from penstock.console.views import Person
from penstock.console.web import parts, texts
from penstock.console.web.access import Access
from penstock.console.web.assets import THEMES, address_of_asset, theme_of
from penstock.console.web.background import waits_of
from penstock.console.web.security import SESSION, SESSION_ID
from penstock.errors import PenstockError, SignInError
from penstock.observe.facts import Snapshot
from penstock.observe.watching import FIRST_LOOK

EVERY_S: Final = 3.0
SLOW_S: Final = 5.0
"""A stream counts as slow when a look at it takes longer."""


@dataclass(frozen=True, slots=True)
class Console:
    service: Service
    access: Access


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    path: str
    label: str
    icon: str
    keys: str


ENTRIES: Final = (
    Entry("overview", "/", "Overview", "space_dashboard", "g o"),
    Entry("topics", "/topics", "Topics", "view_stream", "g t"),
    Entry("query", "/query", "SQL", "terminal", "g q"),
    Entry("groups", "/groups", "Groups", "group_work", "g g"),
    Entry("consumers", "/consumers", "Consumers", "fact_check", "g c"),
    Entry("letters", "/letters", "Dead letters", "mark_email_unread", "g d"),
    Entry("pipelines", "/pipelines", "Pipelines", "account_tree", "g p"),
    Entry("programs", "/programs", "Programs", "dns", "g r"),
    Entry("alerts", "/alerts", "Alerts", "notifications", "g a"),
    Entry("audit", "/audit", "Audit", "history", "g u"),
)
ON_PHONE: Final = ("overview", "topics", "groups", "letters", "alerts")
"""The entries of the bar at the bottom; the others are behind its last button."""


def person(console: Console) -> Person:
    """The acting person, for the audit log. Raises `SignInError` when the session has ended meanwhile: an open page
    must not act for a user who has signed out."""
    scope = ui.context.client.request.scope
    id = scope.get(SESSION_ID)
    session = console.access.session(id) if id is not None or not console.access.needs_login else scope.get(SESSION)
    if session is None:
        raise SignInError("you have been signed out; reload the page to sign in")
    return Person(name=session.name, address=ui.context.client.ip)


@contextmanager
def frame(console: Console, title: str, active: str) -> Iterator[None]:
    """Draw the frame of a page around the block. `active` is the name of an entry."""
    theme = theme_of(ui.context.client.request)
    ui.context.client.on_exception(_tell_failure)
    ui.page_title(f"{title} · Penstock")
    if active not in ("", "overview", "topics"):
        ui.add_head_html(f'<link rel="stylesheet" href="{address_of_asset("details.css")}">')
    dark = ui.dark_mode(theme.is_dark)
    ui.on("penstock-theme", lambda event: dark.set_value(THEMES.get(str(event.args), theme).is_dark))
    with ui.element("header").classes("top"):
        _draw_header(console, theme.name)
    with ui.element("nav").classes("side").props('aria-label="pages"'):
        _draw_navigation(active)
    with ui.element("div").classes("page"):
        _draw_problem(console)
        waits_of(ui.context.client).draw()
        yield
    with ui.element("nav").classes("bottom").props('aria-label="pages"'):
        _draw_bottom(active)


def _tell_failure(error: Exception) -> None:
    """Report an unexpected error, which is also in the log with its traceback."""
    known = isinstance(error, PenstockError)
    parts.say(str(error) if known else f"Something went wrong: {type(error).__name__}. See the console's log.", "bad")


def live(update: Callable[[], None] | Callable[[], Awaitable[None]], *, every_s: float = EVERY_S) -> ui.timer:
    """Call `update` repeatedly while the page is visible: a hidden tab asks for nothing, and is updated at once when it
    is shown again."""
    timer = ui.timer(every_s, update, immediate=False)

    def seen(event: GenericEventArguments) -> None:
        timer.active = bool(event.args)
        if timer.active:
            ui.timer(0, update, once=True)

    ui.on("penstock-visible", seen)
    return timer


def _draw_header(console: Console, theme: str) -> None:
    with ui.element("a").classes("brand").props('href="/" aria-label="Penstock, overview"'):
        ui.element("span").classes("brand-mark")
        ui.label("Penstock").classes("brand-name")
    with ui.element("div").classes("stream"):
        dot = ui.element("span").classes("dot")
        ui.label(console.service.url).classes("stream-url").props["title"] = console.service.url
    if console.service.read_only:
        parts.badge("Read-only", "info").props["title"] = parts.READ_ONLY
    ui.element("span").classes("spread")
    with ui.element("button").classes("find").props('type="button" data-find aria-label="Search"'):
        ui.icon("search")
        ui.label("Search topics, groups, pages").classes("find-hint")
        with ui.element("kbd"):
            ui.label("/")
    with ui.element("button").classes("icon-button").props(f'type="button" data-theme-now="{theme}"') as switch:
        switch.props('aria-label="Theme: as the system, light, dark" title="Theme: as the system, light, dark"')
        ui.icon({"light": "light_mode", "dark": "dark_mode"}.get(theme, "contrast"))
    with ui.element("button").classes("icon-button not-phone").props('type="button" data-help aria-label="Keys"'):
        ui.icon("keyboard")
    if console.access.needs_login:
        with (
            ui.element("form").props('method="post" action="/logout"').classes("sign-out"),
            ui.element("button").classes("icon-button").props('type="submit" aria-label="Sign out" title="Sign out"'),
        ):
            ui.icon("logout")
    _follow_health(console, dot)


def _follow_health(console: Console, dot: ui.element) -> None:
    tone = ""

    def show() -> None:
        nonlocal tone
        snapshot = console.service.snapshot()
        fresh = health_of(snapshot)
        if fresh != tone:
            dot.classes(remove=f"dot-{tone}", add=f"dot-{fresh}")
            dot.props["title"] = _HEALTH[fresh]
            tone = fresh

    show()
    live(show)


_HEALTH: Final = {
    "good": "Answers",
    "slow": "Answers slowly",
    "bad": "The stream does not answer",
    "wait": "Has not answered yet",
}


def health_of(snapshot: Snapshot) -> str:
    """good, slow or bad; wait before the first look has ended."""
    if snapshot.problem is None:
        return "slow" if snapshot.took_s > SLOW_S else "good"
    return "wait" if snapshot.problem == FIRST_LOOK else "bad"


def _draw_problem(console: Console) -> None:
    """The banner that says that the stream is away, since when, and how old the shown facts are."""
    with ui.element("div").classes("problem").props('role="alert"') as banner:
        ui.icon("cloud_off")
        with ui.element("div"):
            what = ui.label().classes("problem-text")
            since = ui.label().classes("about")
    slow = ui.label().classes("notice-inline tone-warn").props('role="status"')

    def show() -> None:
        now_ms = int(time.time() * 1000)
        text = slow_text(console.service.snapshot(), now_ms)
        slow.set_visibility(bool(text))
        slow.set_text(text)
        outage, problem = console.service.outage(), console.service.snapshot().problem
        banner.set_visibility(outage is not None and problem is not None)
        if outage is not None and problem is not None:
            what.set_text(texts.sentence(problem))
            since.set_text(outage_text(outage, now_ms))

    show()
    live(show)


def slow_text(snapshot: Snapshot, now_ms: int) -> str:
    if snapshot.problem == FIRST_LOOK:
        waited_s = (now_ms - snapshot.at_ms) / 1000
        return f"Waiting for the broker: {waited_s:.0f} s. Nothing is known yet." if waited_s > EVERY_S else ""
    if health_of(snapshot) != "slow":
        return ""
    took = texts.duration_text(snapshot.took_s)
    return f"The broker answers slowly: looking at everything took {took}. What you see may be as old as that."


def outage_text(outage: Outage, now_ms: int) -> str:
    away = f"Away since {texts.time_text(outage.since_ms)[:-4]} UTC, {texts.ago_text(outage.since_ms, now_ms)}."
    if outage.known_ms is None:
        return f"{away} Nothing was known before. The console keeps asking."
    known = f"What you see was last known at {texts.time_text(outage.known_ms)[:-4]} UTC."
    return f"{away} {known} The console keeps asking."


def _draw_entry(entry: Entry, active: str) -> ui.element:
    with ui.element("a").classes("nav-entry").props(f'href="{entry.path}"') as link:
        link.classes("is-active" if entry.name == active else "")
        ui.icon(entry.icon)
        ui.label(entry.label)
    return link


def _draw_navigation(active: str) -> None:
    for entry in ENTRIES:
        link = _draw_entry(entry, active).props(f'data-keys="{entry.keys}"')
        if entry.name == active:
            link.props('aria-current="page"')


def _draw_bottom(active: str) -> None:
    with ui.element("div").classes("more").props('data-more-list role="menu"'):
        for entry in ENTRIES:
            if entry.name not in ON_PHONE:
                _draw_entry(entry, active)
    for entry in ENTRIES:
        if entry.name in ON_PHONE:
            _draw_entry(entry, active)
    with ui.element("button").classes("nav-entry").props('type="button" data-more aria-label="More pages"') as more:
        more.classes("is-active" if active not in ON_PHONE else "")
        ui.icon("more_horiz")
        ui.label("More")
