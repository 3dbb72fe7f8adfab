"""The overview: what flows, what is behind and what failed, live."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from penstock.console.web import charts, parts, tables, texts
from penstock.console.web.absence import Listing
from penstock.console.web.background import from_disk
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages.groups import row_of as group_row
from penstock.console.web.pages.pipelines import state_of
from penstock.console.web.pages.topics import row_of as topic_row
from penstock.observe.alerts.rules import AlertState
from penstock.observe.facts import CaptureFacts, GroupFacts, PipelineFacts, Snapshot, total
from penstock.streams.url import without_password

WORRYING_LAG_S = 60.0
"""A group is behind when a record has been waiting for longer than this, or when its lag grows."""
WORRYING_LOSS_S: Final = 6 * 3600.0
"""A capture whose database removes changes before then is shown in red."""
MOST = 6
"""How many of each kind are shown; the linked pages show all."""


@dataclass(frozen=True, slots=True)
class Figure:
    value: str
    note: str = ""
    tone: tables.Tone = "plain"


def figures(snapshot: Snapshot, alerts: Sequence[AlertState], *, is_known: bool = True) -> dict[str, Figure]:
    """The figures at the top, by name. While nothing is known of the stream, they are not shown as zero."""
    topics = [topic for topic in snapshot.topics.values() if not topic.is_internal]
    behind = [group for group in snapshot.groups.values() if is_behind(group)]
    lag = total(group.lag for group in snapshot.groups.values())
    oldest_s = max((group.lag_s for group in snapshot.groups.values() if group.lag_s is not None), default=None)
    waiting = sum(letters.waiting for letters in snapshot.letters.values())
    firing = [alert for alert in alerts if alert.is_firing]
    sizes = [topic.size_bytes for topic in topics]
    size = None if None in sizes else sum(each for each in sizes if each is not None)
    found = {
        "in": Figure(texts.rate_text(_total([topic.rate_per_s for topic in topics])), "appended"),
        "out": Figure(
            texts.rate_text(_total([group.rate_per_s for group in snapshot.groups.values()])), "by all groups"
        ),
        "lag": Figure(
            texts.short_text(lag) if lag is not None else texts.duration_text(oldest_s),
            _lag_note(snapshot, lag, oldest_s),
            "warn" if behind else "plain",
        ),
        "letters": Figure(texts.short_text(waiting), "waiting", "warn" if waiting else "plain"),
        "alerts": Figure(str(len(firing)), "firing", "bad" if firing else "plain"),
        "topics": Figure(
            texts.number_text(len(topics)),
            f"{texts.short_text(total(each.records for each in topics))}, {texts.size_text(size)}",
        ),
    }
    if not is_known:
        found |= dict.fromkeys(("in", "out", "lag", "topics"), Figure(texts.NOTHING, "not known yet"))
        if not waiting:
            found["letters"] = Figure(texts.NOTHING, "not known yet")
    return found


def _lag_note(snapshot: Snapshot, lag: int | None, oldest_s: float | None) -> str:
    if lag is None:
        return "the oldest unread; records are not counted"
    return f"oldest {texts.duration_text(oldest_s)}" if oldest_s else "nothing waits" if snapshot.groups else ""


def is_behind(group: GroupFacts) -> bool:
    return group.is_behind and (group.is_growing or group.lost > 0 or (group.lag_s or 0) >= WORRYING_LAG_S)


def groups_behind(snapshot: Snapshot) -> list[tables.Row]:
    """Groups that are behind; those that lose records soonest first."""
    behind = sorted(
        (group for group in snapshot.groups.values() if is_behind(group)),
        key=lambda group: (group.time_to_loss_s or float("inf"), -(group.lag_s or 0), -(group.lag or 0), group.name),
    )
    return [_group_row(group) for group in behind[:MOST]]


def busiest_topics(snapshot: Snapshot) -> list[tables.Row]:
    topics = [topic for topic in snapshot.topics.values() if not topic.is_internal]
    busy = sorted(topics, key=lambda topic: (-(topic.rate_per_s or 0), -(topic.records or 0), topic.name))
    return [topic_row(topic) for topic in busy[:MOST]]


def firing_alerts(alerts: Sequence[AlertState], now_ms: int) -> list[tables.Row]:
    firing = sorted((alert for alert in alerts if alert.is_firing), key=lambda alert: alert.order)
    return [
        {
            "id": f"{alert.rule}\0{alert.subject}",
            "severity": alert.severity.value,
            "severity_tone": "bad" if alert.severity == "critical" else "warn",
            "text": alert.text,
            "since": alert.since_ms,
            "since_text": texts.ago_text(alert.since_ms, now_ms),
        }
        for alert in firing[:MOST]
    ]


def dead_letter_rows(snapshot: Snapshot) -> list[tables.Row]:
    places = sorted(snapshot.letters.values(), key=lambda each: (-each.waiting, each.spec))
    return [
        {
            "id": without_password(each.spec),
            "spec": without_password(each.spec),
            "spec_href": texts.path_to("letters", without_password(each.spec)),
            "waiting": each.waiting,
            "waiting_text": texts.number_text(each.waiting)
            if each.is_exact
            else f"up to {texts.number_text(each.waiting)}",
            "waiting_tone": "warn" if each.waiting else "plain",
        }
        for each in places[:MOST]
    ]


def pipelines(snapshot: Snapshot) -> list[tables.Row]:
    known = sorted(snapshot.pipelines.values(), key=lambda each: (each.is_running, each.name))
    return [_pipeline_row(each) for each in known[:MOST]]


def captures(snapshot: Snapshot) -> list[tables.Row]:
    """Those that lose changes soonest first."""
    known = sorted(
        snapshot.captures.values(),
        key=lambda each: (
            not each.is_lost,
            float("inf") if each.time_to_loss_s is None else each.time_to_loss_s,
            _CAPTURE_TONES.get(each.phase, "plain") == "good",
            each.name,
        ),
    )
    return [_capture_row(each) for each in known[:MOST]]


def _group_row(group: GroupFacts) -> tables.Row:
    lag_text = texts.short_text(group.lag) + (" ↑" if group.is_growing else "")
    return {**group_row(group), "id": group.name, "lag_text": lag_text, "lag_s_tone": "warn"}


def _pipeline_row(pipeline: PipelineFacts) -> tables.Row:
    state, tone = state_of(pipeline)
    return {
        "id": pipeline.name,
        "name": pipeline.name,
        "name_href": texts.path_to("pipelines", pipeline.name),
        "state": state,
        "state_tone": tone,
        "rows": sum(query.rows_per_s for query in pipeline.queries),
        "lag": pipeline.lag,
    }


def _capture_row(capture: CaptureFacts) -> tables.Row:
    loss = "lost" if capture.is_lost else texts.duration_text(capture.time_to_loss_s)
    is_near = capture.is_lost or (capture.time_to_loss_s is not None and capture.time_to_loss_s < WORRYING_LOSS_S)
    return {
        "id": capture.name,
        "name": capture.name,
        "state": capture.phase,
        "state_tone": _CAPTURE_TONES.get(capture.phase, "plain"),
        "behind": capture.behind_bytes,
        "behind_text": texts.size_text(capture.behind_bytes),
        "loss": 0 if capture.is_lost else capture.time_to_loss_s,
        "loss_text": loss,
        "loss_tone": "bad" if is_near else "plain",
    }


def _total(rates: Sequence[float | None]) -> float | None:
    """The sum of the measured rates; None if nothing has been measured."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


SPAN_S: Final = 3600
PLOTS_EVERY_S: Final = 10.0
_WHAT_IS_BEHIND: Final = (
    f"A group is behind when a record has waited for {texts.duration_text(WORRYING_LAG_S)}, or its lag grows."
)
_FIGURES: Final = (
    ("in", "In", "/topics"),
    ("out", "Read", "/groups"),
    ("lag", "Lag", "/groups"),
    ("letters", "Dead letters", "/letters"),
    ("alerts", "Alerts", "/alerts"),
    ("topics", "Topics, records", "/topics"),
)
_GROUPS: Final = (
    tables.Column("name", "Group", "mono"),
    tables.Column("lag", "Lag", "number"),
    tables.Column("lag_s", "Lag, time", "number", text=texts.duration_text),
    tables.Column("drain", "Drained in", "number", on_phone=False, text=texts.duration_text),
    tables.Column("loss", "Loss in", "number"),
)
_TOPICS: Final = (
    tables.Column("name", "Topic", "mono"),
    tables.Column("rate", "In", "number", text=texts.rate_text),
    tables.Column("records", "Records", "number", text=texts.short_text),
)
_ALERTS: Final = (
    tables.Column("severity", "Severity", "badge"),
    tables.Column("text", "What is wrong", "sentence"),
    tables.Column("since", "Since", "number"),
)
_LETTERS: Final = (tables.Column("spec", "Place", "mono"), tables.Column("waiting", "Waiting", "number"))
_PIPELINES: Final = (
    tables.Column("name", "Pipeline", "mono"),
    tables.Column("state", "State", "badge"),
    tables.Column("rows", "Rows", "number", text=texts.rate_text),
    tables.Column("lag", "Lag", "number", text=texts.short_text),
)


_CAPTURES: Final = (
    tables.Column("name", "Capture", "mono"),
    tables.Column("state", "State", "badge"),
    tables.Column("behind", "Behind", "number"),
    tables.Column("loss", "Loss in", "number"),
)
_CAPTURE_TONES: Final[dict[str, tables.Tone]] = {
    "streaming": "good",
    "snapshot": "good",
    "waiting": "warn",
    "dead": "bad",
    "failed": "bad",
}


def register(console: Console) -> None:
    @ui.page("/")
    async def overview_page() -> None:
        with frame(console, "Overview", "overview"):
            await _Overview(console).draw()


class _Overview:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._service = console.service
        self._plotted_s = 0.0

    async def draw(self) -> None:
        url = self._service.url
        with parts.stats():
            self._figures = {name: parts.Stat(label, texts.NOTHING, href=href) for name, label, href in _FIGURES}
        with ui.element("div").classes("columns"):
            with parts.panel("Records a second", "last hour"):
                self._flow = charts.LineChart(
                    (charts.Line("In", ()), charts.Line("Read", ())), unit="/s", span_s=SPAN_S
                )
            self._lag_metric = "lag" if self._service.snapshot().is_counted else "lag_s"
            what = "records that groups have not read" if self._lag_metric == "lag" else "wait of the oldest record"
            with parts.panel("Lag", f"{what}, last hour"):
                self._lag = charts.LineChart(
                    (charts.Line("Lag", ()),), unit="" if self._lag_metric == "lag" else "s", span_s=SPAN_S
                )
        with ui.element("div").classes("columns"):
            self._groups = Listing(
                self._console,
                _GROUPS,
                ("No group is behind.", _WHAT_IS_BEHIND, ""),
                title="Groups that are behind",
            )
            self._alerts = Listing(
                self._console,
                _ALERTS,
                ("No alert fires.", "Rules are defined on the Alerts page.", ""),
                title="Alerts that fire",
                needs_stream=False,
            )
        with ui.element("div").classes("columns"):
            self._topics = Listing(
                self._console,
                _TOPICS,
                (
                    "There are no topics yet.",
                    "Send the first record:",
                    f"echo hello | penstock produce hello --url {url}",
                ),
                title="Busiest topics",
            )
            self._pipelines = Listing(
                self._console,
                _PIPELINES,
                (
                    "No pipeline is known.",
                    "Tell the console where pipelines keep their checkpoints:",
                    f"penstock console --url {url} --pipelines DIR",
                ),
                title="Pipelines",
            )
            self._captures = Listing(
                self._console,
                _CAPTURES,
                (
                    "No database is captured.",
                    "Capture tables, and every change to them, into topics:",
                    f"penstock cdc SOURCE_URL {url} --tables TABLE",
                ),
                title="Captures of databases",
            )
            self._letters = Listing(
                self._console,
                _LETTERS,
                (
                    "No dead letters are known.",
                    "Topics that end in .dlq are found automatically. Name other stores:",
                    f"penstock console --url {url} --dead-letters SPEC",
                ),
                title="Dead letters",
            )
        await self._update()
        live(self._update)

    async def _update(self) -> None:
        snapshot, alerts = self._service.snapshot(), self._service.alerts()
        for name, figure in figures(snapshot, alerts, is_known=self._service.is_known).items():
            self._figures[name].show(figure.value, note=figure.note, tone=figure.tone)
        self._groups.show(groups_behind(snapshot))
        self._alerts.show(firing_alerts(alerts, int(time.time() * 1000)))
        self._topics.show(busiest_topics(snapshot))
        self._pipelines.show(pipelines(snapshot))
        self._captures.show(captures(snapshot))
        self._letters.show(dead_letter_rows(snapshot))
        if time.monotonic() - self._plotted_s >= PLOTS_EVERY_S:
            self._plotted_s = time.monotonic()
            appended, read, lag = await from_disk(self._series)
            self._flow.show((charts.Line("In", appended), charts.Line("Read", read)))
            self._lag.show((charts.Line("Lag", lag),))

    def _series(self) -> tuple[charts.Points, charts.Points, charts.Points]:
        since_ms = int((time.time() - SPAN_S) * 1000)
        return (
            self._service.series("system", "", "rate_per_s", since_ms),
            self._service.series("system", "", "read_per_s", since_ms),
            self._service.series("system", "", self._lag_metric, since_ms),
        )
