"""The run of the demo: start everything, kill three processes, wait until all is done, count."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import typer
from rich.console import Console
from rich.live import Live as LiveDisplay
from rich.progress_bar import ProgressBar
from rich.table import Table

from penstock.cli.tables import print_table
from penstock.demo.checking import Check, Outcome, checks_of, count_large, read_results
from penstock.demo.events import (
    FRAUD_GROUP,
    LARGE_PAYMENTS,
    LATE_ANSWERS,
    PAGE_EVENTS,
    PAGE_USE,
    TRANSACTIONS,
    USE_GROUP,
    USE_TABLE,
    VERDICTS,
)
from penstock.demo.live import CONSUMED, DemoEvent, Live, ProgressReader, ProgressWatcher, QueryState
from penstock.demo.page import check_folder, write_report
from penstock.demo.process_group import CONSUMERS, LOOK_AGAIN_S, Interruption, Parts, ProcessGroup, parts_for
from penstock.demo.settings import DemoSettings
from penstock.streams.url import LOG_CHECKPOINTS


class Show:
    """Plain lines: for files, pipes and CI."""

    every_s = 5.0

    def __init__(self, settings: DemoSettings, live: Live) -> None:
        self._settings = settings
        self._live = live
        self._shown_s = 0.0
        self._console_told = False
        self._session_told = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def happened(self, event: DemoEvent) -> None:
        self._print(f"{event.at_s:6.1f} s  {event.text}")

    def update(self) -> None:
        """Called often; prints when it is time."""
        live = self._live
        if live.console is not None and not self._console_told:
            self._console_told = True
            self.happened(live.happened(f"The console is at {live.console}"))
        if live.has_session and not self._session_told:
            self._session_told = True
            mode = ", with its Kafka connector and a query in real-time mode" if live.is_real_time else ""
            self.happened(live.happened(f"Spark is up{mode}."))
        if live.now_s - self._shown_s >= self.every_s:
            self._shown_s = live.now_s
            self._refresh()

    def summary(self, outcome: Outcome, file: Path) -> None:
        checks = [*outcome.checks, *outcome.figures()]
        self._print("")
        self._table(outcome, checks)
        self._print("")
        if outcome.wrong:
            self._print("NOT everything is as promised: see the lines that say WRONG.")
        else:
            self._print("Nothing was lost, and every total is what the generator counted.")
        self._print(f"The report: {file}")

    def _refresh(self) -> None:
        live = self._live
        spark = "".join(f" · {name} on Spark: {_query_text(query)}" for name, query in sorted(live.queries.items()))
        self._print(
            f"{live.now_s:6.1f} s  sent {live.sent:,} · judged {live.verdicts:,} · lag {live.lag:,} · "
            f"partial {live.partial:,} · dead letters {live.letters:,}{spark}"
        )

    def _table(self, outcome: Outcome, checks: Sequence[Check]) -> None:
        rows = [(each.name, each.value, mark_of(each), each.note) for each in checks]
        print_table(
            ["what", f"seed {outcome.settings.seed}", "", "how"], rows, numbers=[f"seed {outcome.settings.seed}"]
        )

    def _print(self, text: str) -> None:
        typer.echo(text)


class LiveShow(Show):
    """On a terminal: the same lines, and below them a table that is redrawn in place."""

    every_s = 0.25

    def __init__(self, settings: DemoSettings, live: Live) -> None:
        super().__init__(settings, live)
        self._terminal = Console(highlight=False, emoji=False, markup=False)
        self._display = LiveDisplay(console=self._terminal, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    def summary(self, outcome: Outcome, file: Path) -> None:
        self._display.stop()
        super().summary(outcome, file)

    def happened(self, event: DemoEvent) -> None:
        is_bad, is_good = event.mark.endswith("killed"), bool(event.mark)
        style = "bold red" if is_bad else "green" if is_good else ""
        self._terminal.print(f"{event.at_s:6.1f} s  {event.text}", style=style)

    def _refresh(self) -> None:
        self._display.update(self.standing(), refresh=True)

    def _print(self, text: str) -> None:
        self._terminal.print(text)

    def standing(self) -> Table:
        live = self._live
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(justify="right", style="dim")
        table.add_column(justify="right", style="bold")
        table.add_column()
        table.add_row("", "", "")
        total = self._settings.events
        table.add_row("sent", f"{live.sent:,}", ProgressBar(total=total, completed=min(live.sent, total), width=40))
        table.add_row("judged", f"{live.verdicts:,}", f"{live.partial:,} partial at the deadline of 20 ms")
        table.add_row("lag", f"{live.lag:,}", f"transactions; {live.page_lag:,} page events")
        table.add_row("dead letters", f"{live.letters:,}", "malformed rows")
        for name, consumer in sorted(live.consumers.items()):
            has = ", ".join(
                f"{topic} {' '.join(map(str, sorted(partitions)))}"
                for topic, partitions in sorted(consumer.assigned.items())
                if partitions
            )
            standing = "killed" if consumer.is_killed else has or "has no partitions"
            table.add_row(name, f"{consumer.calls:,}", standing)
        for query, state in sorted(live.queries.items()):
            table.add_row(f"Spark: {query}", f"{state.read:,}", f"{_query_text(state)}, {state.state}")
        if live.console is not None:
            table.add_row("console", "", live.console)
        return table


def _query_text(query: QueryState) -> str:
    """What it has read and written. The first batch of a driver is slow, as Spark loads a lot."""
    if query.state == "waiting":
        return f"starts again after {query.error}"
    if not query.read:
        return "its first batch is running"
    return f"{query.read:,} read, {query.written:,} written"


def show_for(settings: DemoSettings, live: Live) -> Show:
    return LiveShow(settings, live) if sys.stdout.isatty() else Show(settings, live)


def mark_of(check: Check) -> str:
    return {True: "ok", False: "WRONG", None: ""}[check.holds]


DRAIN_TIMEOUT_S: Final = 300.0
"""How long the rest may take on a very busy machine. The duration itself is not judged."""
_ASK_EVERY_S: Final = 0.25
_APPENDED: Final = {"message.timestamp.type": "LogAppendTime"}
"""Timestamps are the log's, so that one clock measures from append to result."""
_SHARES: Final = {"consumer": 0.2, "broker": 0.4, "driver": 0.55, "driver at the latest": 0.8}
"""The share of the events after which each part is killed, at the earliest."""


def run(settings: DemoSettings, *, keep: bool, began_s: float) -> list[str]:
    """Run the whole demo. Returns what was wrong, in sentences; empty when every promise was kept."""
    check_folder(settings.report)
    interruption = Interruption()
    began_ms = round((time.time() - (time.monotonic() - began_s)) * 1000)
    parts = parts_for(settings)
    live = Live(began_s)
    with interruption.heard(), contextlib.ExitStack() as stack:
        folder = stack.enter_context(_folder(keep))
        processes = ProcessGroup(folder, live, interruption)
        stack.callback(processes.end)
        show = stack.enter_context(show_for(settings, live))
        demo = DemoRun(settings, parts, live, processes, interruption, show)
        outcome = demo.run(began_ms)
        interruption.check()
        file = write_report(outcome)
        show.summary(outcome, file)
        interruption.check()
        if settings.stay:
            demo.stay()
    return outcome.wrong


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder)
        else:
            typer.echo(f"The data is in {folder}; inspect it with: penstock topics --url 'log:{folder / 'data'}'")


class DemoRun:
    def __init__(
        self,
        settings: DemoSettings,
        parts: Parts,
        live: Live,
        processes: ProcessGroup,
        interruption: Interruption,
        show: Show,
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._live = live
        self._processes = processes
        self._interruption = interruption
        self._show = show
        self._database = processes.data / LOG_CHECKPOINTS

    def run(self, began_ms: int) -> Outcome:
        settings, live, processes = self._settings, self._live, self._processes
        for sentence in self._parts.advice:
            self._say(sentence)
        self._start_log()
        with contextlib.closing(ProgressWatcher(processes.url, live)):
            self._start_parts()
            self._kill_consumer()
            self._kill_broker()
            if self._parts.spark:
                self._kill_driver()
            self._wait(lambda: live.account is not None, "the generator has sent everything")
            processes.finish("generator", DRAIN_TIMEOUT_S)
            self._drain()
        assert live.account is not None
        with contextlib.closing(ProgressReader(processes.url)) as look:
            results = read_results(look.connection, self._database)
        checks = checks_of(
            live.account, results, with_spark=self._parts.spark, with_real_time=self._parts.spark and live.is_real_time
        )
        return Outcome(
            settings=settings,
            parts=self._parts,
            account=live.account,
            results=results,
            checks=checks,
            live=live,
            began_ms=began_ms,
            before_s=None if settings.since_s is None else max(0.0, began_ms / 1000 - settings.since_s),
            took_s=live.now_s,
        )

    def stay(self) -> None:
        """Restart what has finished, and continue until interrupted."""
        processes, settings, account = self._processes, self._settings, self._live.account
        assert account is not None
        for name in CONSUMERS:
            processes.start_consumer(name)
        if self._parts.spark:
            processes.start_driver()
        first = max(account.transactions, account.malformed, account.pages)
        processes.start_generator(events=None, rate=settings.rate, seed=settings.seed + 1, first=first)
        where = f"; the console is at {self._live.console}" if self._live.console else ""
        self._say(f"It continues with new events until Ctrl-C{where}.")
        while True:
            processes.check()
            self._interruption.pause(1.0)

    def _start_log(self) -> None:
        """Start the broker, and create the topics and the table that consumers count in."""
        processes = self._processes
        processes.start_broker()
        broker = processes["broker"]
        self._say(f"The log is at 127.0.0.1:{self._live.broker_port} (process {broker.pid}), in {processes.data}.")
        with contextlib.closing(ProgressReader(processes.url)) as look:
            for topic in (TRANSACTIONS, VERDICTS, LATE_ANSWERS, PAGE_EVENTS):
                look.connection.create_topic(topic.name, topic.partitions, _APPENDED)
            look.lag(FRAUD_GROUP, TRANSACTIONS)  # creates the store before consumers start
        with contextlib.closing(sqlite3.connect(self._database)) as database, database:
            database.execute(f"CREATE TABLE {USE_TABLE} (window_s, page, seen, PRIMARY KEY (window_s, page))")

    def _start_parts(self) -> None:
        settings, processes = self._settings, self._processes
        for name in CONSUMERS:
            processes.start_consumer(name)
        processes.start_generator(events=settings.events, rate=settings.rate, seed=settings.seed, fault=settings.fault)
        pids = " and ".join(str(processes[name].pid) for name in CONSUMERS)
        self._say(
            f"Two consumers (processes {pids}) judge card transactions within 20 ms and count page events; a generator "
            f"sends {settings.events:,} events, {settings.rate:,} a second."
        )
        if self._parts.spark:
            processes.start_driver()
            self._say(f"A pipeline on Spark (process {processes['driver'].pid}) adds up page events per 10 seconds.")
        if self._parts.console:
            processes.start_console()
        self._wait(lambda: self._live.first_result_s is not None, "the first result is there")
        self._say(f"The first verdict is there {self._live.first_result_s:.1f} s after the start.", "first verdict")

    def _kill_consumer(self) -> None:
        live, name = self._live, CONSUMERS[1]
        self._wait_for_share("consumer")
        consumer = live.consumers[name]
        self._wait(
            lambda: consumer.calls > 0 or (self._is_idle() and any(consumer.assigned.values())),
            f"{name} handles records",
        )
        had = sum(map(len, consumer.assigned.values()))
        pid = self._processes.kill(name)
        live.forget_consumer(name)
        killed_s = live.now_s
        self._say(f"{name} (process {pid}) was killed with SIGKILL; it had {had} partitions.", "consumer killed")
        self._wait(lambda: live.covers(CONSUMED), f"the partitions of {name} are taken over")
        self._say(
            f"Its partitions were taken over by {CONSUMERS[0]} after {live.now_s - killed_s:.1f} s.", "taken over"
        )
        self._processes.start_consumer(name)
        self._wait(lambda: any(live.consumers[name].assigned.values()), f"{name} is back")
        self._say(f"{name} is back (process {self._processes[name].pid}), and has partitions again.")

    def _kill_broker(self) -> None:
        live = self._live
        self._wait_for_share("broker")
        pid = self._processes.kill("broker")
        killed_s = live.now_s
        self._say(f"The broker (process {pid}) was killed with SIGKILL.", "broker killed")
        self._processes.start_broker()
        self._say(
            f"It is back (process {self._processes['broker'].pid}) after {live.now_s - killed_s:.1f} s, on the same "
            "port. Producers and consumers continue by themselves.",
            "broker back",
        )
        before = live.verdicts
        self._wait(lambda: live.verdicts > before or self._is_idle(), "verdicts come again")

    def _kill_driver(self) -> None:
        """Once it has written totals, or at least read something; not when it starts after everything else is done."""
        live = self._live
        self._wait_for_share("driver")
        enough = round(self._settings.events * _SHARES["driver at the latest"])

        def is_time() -> bool:
            query = self._page_use()
            return live.account is not None or query.written > 0 or (query.read > 0 and live.sent >= enough)

        self._wait(is_time, "Spark has read page events")
        query = self._page_use()
        if live.account is not None:
            self._say("The pipeline on Spark was slow to start, as the machine is busy: its driver is not killed.")
            return
        pid = self._processes.kill("driver")
        killed_s = live.now_s
        self._say(
            f"The driver of the pipeline (process {pid}) was killed with SIGKILL; it had read {query.read:,} page "
            f"events and written {query.written:,} totals.",
            "driver killed",
        )
        self._processes.start_driver()
        self._wait(lambda: self._page_use().batch >= 0, "the pipeline has finished a batch")
        self._say(
            f"It continues from its checkpoint (process {self._processes['driver'].pid}) after "
            f"{live.now_s - killed_s:.1f} s.",
            "driver back",
        )

    def _drain(self) -> None:
        """Wait until everything that was sent is processed, according to the checkpoints."""
        live, processes = self._live, self._processes
        self._say(f"All {live.sent:,} events are sent. The rest is processed.", "all sent")
        with contextlib.closing(ProgressReader(processes.url)) as look:
            self._wait(
                lambda: look.lag(FRAUD_GROUP, TRANSACTIONS) == 0, "all transactions are dealt with", _ASK_EVERY_S
            )
            self._wait(lambda: look.lag(USE_GROUP, PAGE_EVENTS) == 0, "all page events are counted", _ASK_EVERY_S)
            for name in CONSUMERS:
                processes.finish(name, DRAIN_TIMEOUT_S)
            if not self._parts.spark:
                return
            self._wait(lambda: live.has_session, "Spark is up")
            if live.is_real_time:
                assert live.account is not None
                wanted = len(live.account.large)
                self._wait(lambda: _has_large(look, wanted), "all large payments are passed on", _ASK_EVERY_S)
            processes.finish("driver", DRAIN_TIMEOUT_S)
            self._show.update()

    def _wait_for_share(self, part: str) -> None:
        """Wait until this part's share of the events is sent."""
        wanted = round(self._settings.events * _SHARES[part])
        self._wait(lambda: self._live.sent >= wanted, "the generator makes progress")

    def _is_idle(self) -> bool:
        return self._live.account is not None and self._live.lag == 0

    def _page_use(self) -> QueryState:
        return self._live.queries.get(PAGE_USE, QueryState())

    def _wait(self, is_so: Callable[[], bool], what: str, every_s: float = LOOK_AGAIN_S) -> None:
        """Wait for a condition, updating the display and checking for processes that have ended."""

        def check() -> bool:
            self._processes.check()
            if (said := self._processes.lost_console()) is not None:
                self._say(f"The console has ended. It said: {said}")
            self._show.update()
            return is_so()

        self._interruption.until(check, what, DRAIN_TIMEOUT_S + self._settings.seconds, every_s)

    def _say(self, text: str, mark: str = "") -> None:
        self._show.happened(self._live.happened(text, mark))


def _has_large(look: ProgressReader, wanted: int) -> bool:
    """Whether this many different large payments arrived. Some may have arrived twice, so all are read."""
    return look.records(LARGE_PAYMENTS) >= wanted and count_large(look.connection) >= wanted
