"""A process that gathers is killed again and again: each request has one verdict, and each late answer follows once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock.consuming.deadlines.gathering import text_headers
from penstock.model import Record
from tests.clients.waiting import eventually
from tests.sampling import times
from tests.seeds import seed_of
from tests.streams.embedded import stop_broker

PROGRAM: Final = Path(__file__).parent / "gathering_program.py"
PARTITIONS: Final = 2
SESSION_S: Final = 3.0
EVERY_S: Final = 0.004
PATIENCE_S: Final = 60.0


class Sender:
    """Sends requests and answers until it is stopped. Of every seventh request, one answer comes later."""

    def __init__(self, stream: penstock.Connection, chance: random.Random) -> None:
        self.sent = 0
        self._stream = stream
        self._chance = chance
        self._stopping = threading.Event()
        self._held: list[tuple[str, bytes, int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._release()
        self._stream.flush(timeout_s=30)

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            name, partition = b"%d" % self.sent, self.sent % PARTITIONS
            self._stream.send("requests", name, partition=partition)
            self._stream.send("answers-a", name, partition=partition)
            if self.sent % 7:
                self._stream.send("answers-b", name, partition=partition)
            else:
                self._held.append(("answers-b", name, partition))
            self.sent += 1
            if self._chance.random() < 0.05:
                self._release()

    def _release(self) -> None:
        for topic, name, partition in self._held:
            self._stream.send(topic, name, partition=partition)
        self._held = []


class Gatherers:
    """Processes that gather, by name, on a log of their own."""

    def __init__(self, folder: Path, stream: penstock.Connection) -> None:
        self.stream = stream
        self._url = f"log:{folder}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, member: str) -> None:
        command = [sys.executable, str(PROGRAM), self._url, member, str(SESSION_S)]
        self._running[member] = subprocess.Popen(command)

    def end(self, member: str, number: signal.Signals) -> int:
        process = self._running.pop(member)
        process.send_signal(number)
        return process.wait(PATIENCE_S)

    def close(self) -> None:
        for member in list(self._running):
            self.end(member, signal.SIGKILL)

    def wait_for_verdicts(self, member: str, count: int = 20) -> None:
        """Wait until there are more verdicts of this process than now."""

        def given() -> int:
            return sum((record.value or b"").startswith(f"{member} ".encode()) for record in self.records("verdicts"))

        before = given()
        eventually(f"verdicts of {member} come", lambda: given() > before + count, PATIENCE_S)

    def records(self, topic: str) -> list[Record]:
        return list(self.stream.read(topic)) if topic in self.stream.topics() else []

    def said(self, topic: str) -> list[Mapping[str, str]]:
        """The headers of the records of a topic."""
        return [text_headers(record.headers) for record in self.records(topic)]

    def check(self, sent: int) -> None:
        """Wait until each request has its verdict and each late answer has followed, and none of them twice."""
        wanted = {str(number) for number in range(sent)}

        def found() -> Counter[str]:
            return Counter(about["penstock-request"] for about in self.said("verdicts"))

        eventually("every request has a verdict", lambda: set(found()) == wanted, PATIENCE_S)
        missed = {
            (about["penstock-request"], name)
            for about in self.said("verdicts")
            if "penstock-missing" in about
            for name in about["penstock-missing"].split(",")
        }

        def late() -> Counter[tuple[str, str]]:
            return Counter((about["penstock-request"], about["penstock-answer"]) for about in self.said("late"))

        eventually("every late answer has followed", lambda: set(late()) >= missed, PATIENCE_S)
        assert {name: count for name, count in found().items() if count > 1} == {}, "verdicts that came twice"
        assert set(late()) == missed, "late answers whose verdict does not miss them"
        assert {name: count for name, count in late().items() if count > 1} == {}, "late answers that came twice"
        assert missed, "some answers were late"


@pytest.fixture
def gatherers(tmp_path: Path) -> Iterator[Gatherers]:
    folder = tmp_path / "data"
    try:
        with penstock.connect(f"log:{folder}", linger_ms=0) as stream:
            for topic in ("requests", "answers-a", "answers-b"):
                stream.create_topic(topic, PARTITIONS)
            gatherers = Gatherers(folder, stream)
            try:
                yield gatherers
            finally:
                gatherers.close()
    finally:
        stop_broker(folder)


@pytest.mark.xdist_group("gathering kills")
def test_each_request_has_one_verdict_and_each_late_answer_follows_once_whatever_is_killed(
    gatherers: Gatherers,
) -> None:
    chance = random.Random(seed_of())
    sender = Sender(gatherers.stream, chance)
    for _ in range(times(3, soak=30)):
        gatherers.start("one")
        gatherers.wait_for_verdicts("one", chance.randrange(20, 200))
        gatherers.end("one", signal.SIGKILL)
    sender.stop()
    gatherers.start("one")
    gatherers.check(sender.sent)
    assert any("penstock-overdue" in about for about in gatherers.said("verdicts")), "what came meanwhile is labelled"


@pytest.mark.xdist_group("gathering kills")
def test_the_same_holds_when_partitions_move_between_processes_that_start_end_and_are_killed(
    gatherers: Gatherers,
) -> None:
    chance = random.Random(seed_of())
    sender = Sender(gatherers.stream, chance)
    gatherers.start("one")
    gatherers.wait_for_verdicts("one")
    for _ in range(times(1, soak=10)):
        gatherers.start("two")
        gatherers.wait_for_verdicts("two")
        assert gatherers.end("one", signal.SIGTERM) == 0
        gatherers.wait_for_verdicts("two", chance.randrange(20, 200))
        gatherers.start("one")
        gatherers.wait_for_verdicts("one", chance.randrange(20, 200))
        gatherers.end("two", signal.SIGKILL)
        gatherers.wait_for_verdicts("one")
    sender.stop()
    gatherers.check(sender.sent)
