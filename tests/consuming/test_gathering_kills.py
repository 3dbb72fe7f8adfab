"""A process that gathers is killed again and again: each request has one verdict, and each late answer follows once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
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


def start(url: str, member: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(PROGRAM), url, member])


def records(stream: penstock.Connection, topic: str) -> list[Record]:
    return list(stream.read(topic)) if topic in stream.topics() else []


@pytest.mark.xdist_group("gathering kills")
def test_each_request_has_one_verdict_and_each_late_answer_follows_whatever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(seed_of())
    url = f"log:{tmp_path / 'data'}"
    worker: subprocess.Popen[bytes] | None = None
    try:
        with penstock.connect(url, linger_ms=0) as stream:
            for topic in ("requests", "answers-a", "answers-b"):
                stream.create_topic(topic, PARTITIONS)
            sender = Sender(stream, chance)
            for _ in range(times(3, soak=30)):
                before = len(records(stream, "verdicts"))
                worker = start(url, "one")
                eventually(
                    "it gives verdicts again",
                    lambda before=before: len(records(stream, "verdicts")) > before + 20,  # type: ignore[misc]
                    PATIENCE_S,
                )
                threading.Event().wait(chance.random())
                worker.kill()
                worker.wait()
            sender.stop()
            worker = start(url, "one")
            wanted = {str(number) for number in range(sender.sent)}

            def found() -> Counter[str]:
                return Counter(text_headers(each.headers)["penstock-request"] for each in records(stream, "verdicts"))

            eventually("every request has a verdict", lambda: set(found()) == wanted, PATIENCE_S)
            said = [text_headers(each.headers) for each in records(stream, "verdicts")]
            missed = {
                (about["penstock-request"], name)
                for about in said
                if "penstock-missing" in about
                for name in about["penstock-missing"].split(",")
            }

            def late() -> Counter[tuple[str, str]]:
                said = [text_headers(each.headers) for each in records(stream, "late")]
                return Counter((about["penstock-request"], about["penstock-answer"]) for about in said)

            eventually("every late answer has followed", lambda: set(late()) >= missed, PATIENCE_S)
            assert {name: count for name, count in found().items() if count > 1} == {}, "verdicts that came twice"
            assert set(late()) == missed, "late answers whose verdict does not miss them"
            assert {name: count for name, count in late().items() if count > 1} == {}, "late answers that came twice"
            assert missed, "some answers were late"
            assert any("penstock-overdue" in about for about in said), "what came while nothing ran is labelled"
    finally:
        if worker is not None and worker.poll() is None:
            worker.kill()
            worker.wait()
        stop_broker(tmp_path / "data")
