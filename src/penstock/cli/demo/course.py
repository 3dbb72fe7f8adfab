"""The course of the demo: start everything, kill three parts, wait until all is done, count."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.cli.demo.cast import CONSUMERS, Cast
from penstock.cli.demo.checking import checks_of
from penstock.cli.demo.events import (
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
from penstock.cli.demo.interruption import LOOK_AGAIN_S, Interruption
from penstock.cli.demo.live import Live
from penstock.cli.demo.looking import CONSUMED, Look, Looker
from penstock.cli.demo.outcome import Outcome
from penstock.cli.demo.parts import Parts, parts_for
from penstock.cli.demo.plan import DemoSettings
from penstock.cli.demo.report import check_folder, write_report
from penstock.cli.demo.results import count_large, read_results
from penstock.cli.demo.show import Show, show_for
from penstock.consuming.defaults import LOG_CHECKPOINTS

DRAIN_TIMEOUT_S: Final = 300.0
"""So long may what is left take, on a machine that is very busy. Nothing is judged by how long it does take."""
_ASK_EVERY_S: Final = 0.25
"""How often the log is asked whether all is done."""
_APPENDED: Final = {"message.timestamp.type": "LogAppendTime"}
"""Timestamps are those of the log, so that one clock measures from append to result."""
_SHARES: Final = {"consumer": 0.2, "broker": 0.4, "driver": 0.55, "driver at the latest": 0.8}
"""After which share of the events each part is killed, at the earliest."""


def run(settings: DemoSettings, *, keep: bool, began_s: float) -> list[str]:
    """The whole demo. What was found wrong, in sentences; nothing when every promise was kept."""
    check_folder(settings.report)
    interruption = Interruption()
    began_ms = round((time.time() - (time.monotonic() - began_s)) * 1000)
    parts = parts_for(settings)
    live = Live(began_s)
    with interruption.heard(), contextlib.ExitStack() as stack:
        folder = stack.enter_context(_folder(keep))
        cast = Cast(folder, live, interruption)
        stack.callback(cast.end)
        show = stack.enter_context(show_for(settings, live))
        course = Course(settings, parts, live, cast, interruption, show)
        outcome = course.run(began_ms)
        interruption.check()
        files = write_report(outcome)
        show.summary(outcome, files)
        interruption.check()
        if settings.stay:
            course.stay()
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
            Show.tell_of_folder(folder)


class Course:
    """Everything that happens between the first process and the last."""

    def __init__(
        self, settings: DemoSettings, parts: Parts, live: Live, cast: Cast, interruption: Interruption, show: Show
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._live = live
        self._cast = cast
        self._interruption = interruption
        self._show = show
        self._database = cast.data / LOG_CHECKPOINTS

    def run(self, began_ms: int) -> Outcome:
        settings, live, cast = self._settings, self._live, self._cast
        for sentence in self._parts.advice:
            self._say(sentence)
        self._start_log()
        with contextlib.closing(Looker(cast.url, live)):
            self._start_parts()
            self._kill_consumer()
            self._kill_broker()
            if self._parts.spark:
                self._kill_driver()
            self._wait(lambda: live.account is not None, "the generator has sent everything")
            cast.finish("generator", DRAIN_TIMEOUT_S)
            self._drain()
        assert live.account is not None
        with contextlib.closing(Look(cast.url)) as look:
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
            happenings=live.happenings,
            samples=live.samples,
            began_ms=began_ms,
            first_result_s=live.first_result_s,
            before_s=None if settings.since_s is None else max(0.0, began_ms / 1000 - settings.since_s),
            took_s=live.now_s,
            real_time=live.is_real_time,
        )

    def stay(self) -> None:
        """Start what has finished anew, and go on until interrupted."""
        cast, settings, account = self._cast, self._settings, self._live.account
        assert account is not None
        for name in CONSUMERS:
            cast.start_consumer(name)
        if self._parts.spark:
            cast.start_driver()
        first = max(account.transactions, account.malformed, account.pages)
        cast.start_generator(events=None, rate=settings.rate, seed=settings.seed + 1, first=first)
        where = f"; the console is at {self._live.console}" if self._live.console else ""
        self._say(f"It goes on, with new events, until Ctrl-C{where}.")
        while True:
            cast.check()
            self._interruption.pause(1.0)

    def _start_log(self) -> None:
        """The broker, the topics, and the table that consumers count in."""
        cast = self._cast
        cast.start_broker()
        broker = cast["broker"]
        self._say(f"The log is at 127.0.0.1:{self._live.broker_port} (process {broker.pid}), in {cast.data}.")
        with contextlib.closing(Look(cast.url)) as look:
            for topic in (TRANSACTIONS, VERDICTS, LATE_ANSWERS, PAGE_EVENTS):
                look.connection.create_topic(topic.name, topic.partitions, _APPENDED)
            look.lag(FRAUD_GROUP, TRANSACTIONS)  # the store is there when consumers begin
        with contextlib.closing(sqlite3.connect(self._database)) as database, database:
            database.execute(f"CREATE TABLE {USE_TABLE} (window_s, page, seen, PRIMARY KEY (window_s, page))")

    def _start_parts(self) -> None:
        settings, cast = self._settings, self._cast
        for name in CONSUMERS:
            cast.start_consumer(name)
        cast.start_generator(events=settings.events, rate=settings.rate, seed=settings.seed, fault=settings.fault)
        pids = " and ".join(str(cast[name].pid) for name in CONSUMERS)
        self._say(
            f"Two consumers (processes {pids}) judge card transactions within 20 ms and count page events; a generator "
            f"sends {settings.events:,} events, {settings.rate:,} a second."
        )
        if self._parts.spark:
            cast.start_driver()
            self._say(f"A pipeline on Spark (process {cast['driver'].pid}) adds up page events per 10 seconds.")
        if self._parts.console:
            cast.start_console()
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
        pid = self._cast.kill(name)
        live.forget_consumer(name)
        killed_s = live.now_s
        self._say(f"{name} (process {pid}) was killed with SIGKILL; it had {had} partitions.", "consumer killed")
        self._wait(lambda: live.covers(CONSUMED), f"the partitions of {name} are taken over")
        self._say(
            f"Its partitions were taken over by {CONSUMERS[0]} after {live.now_s - killed_s:.1f} s.", "taken over"
        )
        self._cast.start_consumer(name)
        self._wait(lambda: any(live.consumers[name].assigned.values()), f"{name} is back")
        self._say(f"{name} is back (process {self._cast[name].pid}), and has a share again.")

    def _kill_broker(self) -> None:
        live = self._live
        self._wait_for_share("broker")
        pid = self._cast.kill("broker")
        killed_s = live.now_s
        self._say(f"The broker (process {pid}) was killed with SIGKILL.", "broker killed")
        self._cast.start_broker()
        self._say(
            f"It is back (process {self._cast['broker'].pid}) after {live.now_s - killed_s:.1f} s, on the same port. "
            "Producers and consumers go on by themselves.",
            "broker back",
        )
        before = live.verdicts
        self._wait(lambda: live.verdicts > before or self._is_idle(), "verdicts come again")

    def _kill_driver(self) -> None:
        """Once it has written totals, or at least read something; not when it gets there after everybody else."""
        live = self._live
        self._wait_for_share("driver")
        enough = round(self._settings.events * _SHARES["driver at the latest"])

        def is_time() -> bool:
            return live.account is not None or self._written() > 0 or (self._read() > 0 and live.sent >= enough)

        self._wait(is_time, "Spark has read page events")
        read, written = self._read(), self._written()
        if live.account is not None:
            self._say("The pipeline on Spark was slow to start, as the machine is busy: its driver is not killed.")
            return
        pid = self._cast.kill("driver")
        killed_s = live.now_s
        self._say(
            f"The driver of the pipeline (process {pid}) was killed with SIGKILL; it had read {read:,} page events and "
            f"written {written:,} totals.",
            "driver killed",
        )
        self._cast.start_driver()
        self._wait(lambda: self._read() > 0, "the pipeline goes on")
        self._say(
            f"It goes on from its checkpoint (process {self._cast['driver'].pid}) after {live.now_s - killed_s:.1f} s.",
            "driver back",
        )

    def _drain(self) -> None:
        """Wait until all that was sent has been dealt with: by what the checkpoints say, whether or not it came out."""
        live, cast = self._live, self._cast
        self._say(f"All {live.sent:,} events are sent. What is left is dealt with.", "all sent")
        with contextlib.closing(Look(cast.url)) as look:
            self._wait(
                lambda: look.lag(FRAUD_GROUP, TRANSACTIONS) == 0, "all transactions are dealt with", _ASK_EVERY_S
            )
            self._wait(lambda: look.lag(USE_GROUP, PAGE_EVENTS) == 0, "all page events are counted", _ASK_EVERY_S)
            for name in CONSUMERS:
                cast.finish(name, DRAIN_TIMEOUT_S)
            if not self._parts.spark:
                return
            self._wait(lambda: live.has_session, "Spark is up")
            if live.is_real_time:
                assert live.account is not None
                wanted = len(live.account.large)
                self._wait(lambda: _has_large(look, wanted), "all large payments are passed on", _ASK_EVERY_S)
            cast.finish("driver", DRAIN_TIMEOUT_S)

    def _wait_for_share(self, part: str) -> None:
        """Until so many events are sent."""
        wanted = round(self._settings.events * _SHARES[part])
        self._wait(lambda: self._live.sent >= wanted, "the generator goes on")

    def _is_idle(self) -> bool:
        return self._live.account is not None and self._live.lag == 0

    def _read(self) -> int:
        query = self._live.queries.get(PAGE_USE)
        return query.read if query is not None else 0

    def _written(self) -> int:
        query = self._live.queries.get(PAGE_USE)
        return query.written if query is not None else 0

    def _wait(self, is_so: Callable[[], bool], what: str, every_s: float = LOOK_AGAIN_S) -> None:
        """Wait for it, showing how things stand, and hearing of processes that have ended."""

        def check() -> bool:
            self._cast.check()
            if (said := self._cast.lost_console()) is not None:
                self._say(f"The console has ended. It said: {said}")
            self._show.update()
            return is_so()

        self._interruption.until(check, what, DRAIN_TIMEOUT_S + self._settings.seconds, every_s)

    def _say(self, text: str, mark: str = "") -> None:
        self._show.happened(self._live.happened(text, mark))


def _has_large(look: Look, wanted: int) -> bool:
    """Whether so many different large payments are there. Some may be there twice: all are read when it may be so."""
    return look.records(LARGE_PAYMENTS) >= wanted and count_large(look.connection) >= wanted
