"""One group: its members, where it stands in every partition, how its lag came about and what becomes of it."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from penstock.console.views import GroupDetail
from penstock.console.web import parts
from penstock.console.web.absence import draw_failure
from penstock.console.web.frame import Console, frame, live, person
from penstock.console.web.pages.group_reset import ResetDialog
from penstock.console.web.pages.group_words import forecast, incoming_per_s, lag_tone, loss_tone, state_tone
from penstock.console.web.pages.looks import wear_details
from penstock.errors import PenstockError
from penstock.observe.facts import GroupFacts, ReaderFacts

RANGES_S: Final = {"15 min": 900, "1 h": 3_600, "6 h": 21_600, "24 h": 86_400, "7 d": 604_800}
PLOTS_EVERY_S: Final = 10.0
_MEMBERS_EVERY_S: Final = 10.0

_PARTITIONS: Final = (
    parts.Column("topic", "Topic", "mono"),
    parts.Column("partition", "Partition", "number"),
    parts.Column("committed", "Committed", "number", on_phone=False),
    parts.Column("end", "End", "number", on_phone=False),
    parts.Column("lag", "Lag", "number"),
    parts.Column("lag_s", "Lag, time", "number"),
    parts.Column("loss", "Loss in", "number"),
    parts.Column("member", "Member", "mono", on_phone=False),
)
_MEMBERS: Final = (
    parts.Column("client", "Client", "mono"),
    parts.Column("host", "Host", "mono", on_phone=False),
    parts.Column("count", "Partitions", "number"),
    parts.Column("partitions", "Assignment", "wide"),
)


def register(console: Console) -> None:
    @ui.page("/groups/{name:path}")
    async def group_page(name: str) -> None:
        wear_details()
        with frame(console, name, "groups"):
            try:
                detail = await parts.in_background(console.service.group, name)
            except PenstockError as error:
                command = f"penstock groups --url {console.service.url}"
                draw_failure(name, "This group cannot be shown.", error, lambda: console.service.group(name), command)
                return
            await _Group(console, detail).draw()


class _Group:
    """The page of one group."""

    def __init__(self, console: Console, detail: GroupDetail) -> None:
        self._console = console
        self._service = console.service
        self._detail = detail
        self._facts = detail.facts
        self._asked_at_s = time.monotonic()
        self._charts: dict[str, parts.LineChart] = {}
        self._fed_at_s = 0.0

    async def draw(self) -> None:
        self._draw_head()
        self._sentence = ui.label().classes("forecast")
        with parts.stats():
            self._lag = parts.stat("Lag", "")
            self._lag_s = parts.stat("Lag, time", "")
            self._rate = parts.stat("Reads", "")
            self._coming = parts.stat("Comes in", "")
            self._drain = parts.stat("Drained in", "")
            self._loss = parts.stat("Loss in", "")
        with parts.panel("Trend"):
            self._range = ui.toggle(list(RANGES_S), value="1 h").props("no-caps dense flat").classes("choices")
            self._range.on_value_change(self._draw_charts)
            self._plots = ui.element("div").classes("plots")
        with parts.panel("Partitions"):
            self._partitions = parts.table(_PARTITIONS, (), height="60vh", sort_by="lag", is_descending=True)
        with parts.panel("Members"):
            self._members = parts.table(_MEMBERS, ())
            self._nobody = parts.label("It has no members: nobody reads.").classes("about")
        self._show()
        await self._draw_charts()
        live(self._update)

    def _draw_head(self) -> None:
        parts.title(self._facts.name, f"Assignor: {self._detail.assignor}" if self._detail.assignor else "")
        with parts.toolbar():
            self._state = parts.badge("")
            if self._facts.is_library:
                ui.link("Its checkpoints", parts.path_to("consumers", self._facts.name)).classes("link")
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
                self._detail = await parts.in_background(self._service.group, self._facts.name)
            except PenstockError as error:
                self._sentence.set_text(str(error))
                return
        self._facts = fresh or self._detail.facts
        self._show()
        if time.monotonic() - self._fed_at_s >= PLOTS_EVERY_S:
            await self._feed_charts()

    def _show(self) -> None:
        facts = self._facts
        coming = incoming_per_s(facts, self._service.snapshot())
        members = parts.count_text(facts.members, "member") if facts.members else "no members"
        self._state.set_text(f"{facts.state}, {members}")
        self._state.classes(replace=f"badge tone-{state_tone(facts.state)}")
        text, tone = forecast(facts, coming)
        self._sentence.set_text(text)
        self._sentence.classes(replace=f"forecast tone-{tone}")
        self._lag.show(parts.number_text(facts.lag), note="records" + (", growing" if facts.is_growing else ""))
        self._lag_s.show(parts.duration_text(facts.lag_s), note="the oldest unread", tone=lag_tone(facts.lag_s))
        self._rate.show(parts.rate_text(facts.rate_per_s))
        self._coming.show(parts.rate_text(coming))
        self._drain.show(
            parts.duration_text(facts.time_to_drain_s), note="" if facts.time_to_drain_s else _no_drain(facts)
        )
        self._loss.show(
            parts.duration_text(facts.time_to_loss_s),
            note=f"{parts.count_text(facts.lost, 'record')} lost" if facts.lost else "by retention",
            tone="bad" if facts.lost else loss_tone(facts.time_to_loss_s),
        )
        self._partitions.show([_reader_row(each) for each in facts.readers])
        self._members.show(
            [
                {
                    "id": member.id,
                    "client": member.client_id,
                    "host": member.host,
                    "count": len(member.partitions),
                    "partitions": _listed(member.partitions),
                }
                for member in self._detail.members
            ]
        )
        self._members.element.set_visibility(bool(self._detail.members))
        self._nobody.set_visibility(not self._detail.members)

    async def _draw_charts(self) -> None:
        self._plots.clear()
        span_s = RANGES_S[str(self._range.value)]
        with self._plots:
            for metric, label, unit in (("lag", "Lag in records", ""), ("lag_s", "Lag in seconds", "s")):
                with ui.element("div").classes("plot"):
                    parts.label(label).classes("about")
                    self._charts[metric] = parts.line_chart(
                        [parts.Line(label, ())], unit="s" if unit else "", height_px=200, span_s=span_s
                    )
        await self._feed_charts()

    async def _feed_charts(self) -> None:
        self._fed_at_s = time.monotonic()
        since_ms = int((time.time() - RANGES_S[str(self._range.value)]) * 1000)
        for metric, chart in list(self._charts.items()):
            points = await parts.in_background(self._service.series, "group", self._facts.name, metric, since_ms)
            chart.show([parts.Line("lag", points or ())])

    async def _reset(self) -> None:
        await ResetDialog(self._console, self._facts).open()
        await self._update()

    async def _delete(self) -> None:
        name = self._facts.name
        text = (
            f"What {name} has committed is forgotten. Whoever reads with this name next begins where its own setting "
            "says: at the earliest record, or behind the latest."
        )
        if not await parts.ask("Delete this group?", text, confirm_word=name, action="Delete", is_dangerous=True):
            return
        async with parts.saying_errors():
            await parts.in_background(self._service.delete_group, person(self._console), name)
            parts.say(f"Group {name} is deleted.", "good")
            ui.navigate.to("/groups")


def _reader_row(reader: ReaderFacts) -> parts.Row:
    return {
        "id": f"{reader.topic}-{reader.partition}",
        "topic": reader.topic,
        "topic_href": parts.path_to("topics", reader.topic),
        "partition": reader.partition,
        "committed": reader.committed,
        "committed_text": parts.number_text(reader.committed),
        "end": reader.end,
        "end_text": parts.number_text(reader.end),
        "lag": reader.lag,
        "lag_text": parts.number_text(reader.lag),
        "lag_s": reader.lag_s,
        "lag_s_text": parts.duration_text(reader.lag_s),
        "lag_s_tone": lag_tone(reader.lag_s),
        "loss": reader.time_to_loss_s,
        "loss_text": f"{parts.number_text(reader.lost)} lost"
        if reader.lost
        else parts.duration_text(reader.time_to_loss_s),
        "loss_tone": "bad" if reader.lost else loss_tone(reader.time_to_loss_s),
        "member": reader.member,
    }


def _no_drain(facts: GroupFacts) -> str:
    if facts.lag == 0:
        return "nothing to drain"
    return "never, as it goes" if facts.is_growing else ""


def _listed(partitions: tuple[tuple[str, int], ...]) -> str:
    """orders 0 1 2, events 4: topics with their partitions."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(str(partition))
    return ", ".join(f"{topic} {' '.join(numbers)}" for topic, numbers in by_topic.items())
