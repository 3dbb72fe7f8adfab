"""Handlers of a pattern on brokers: our own and Apache Kafka, with groups that the broker keeps."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import penstock
from penstock import App, Consumer, Record
from penstock.consuming import pattern_consumer
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.consuming.queues_to_handle import running

TIMEOUT_S = 60.0

CRASHING: str = """
import os, re, sys, penstock
app = penstock.App(sys.argv[1], group="billing")

@app.handle(re.compile(r"orders\\..*"), commit_interval_s=0, session_timeout_s=6.0)
def handle(record: penstock.Record) -> None:
    os.write(1, f"{record.topic} {record.value.decode()}\\n".encode())  # two threads write whole lines

app.run()
"""


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_consumer, "REFRESH_S", 0.2)


def send(stream: penstock.Connection, topic: str, *values: str) -> None:
    for number, value in enumerate(values):
        stream.send(topic, value, key=str(number))
    stream.flush(TIMEOUT_S)


def test_topics_join_and_leave_and_two_members_share_them(either: penstock.Connection) -> None:
    prefix, group = fresh(), fresh()
    names = [f"{prefix}.{letter}" for letter in "abc"]
    seen: list[tuple[int, str, bytes | None]] = []
    apps = []
    for member in range(2):
        app = App(either.url, group=group)
        app.handle(re.compile(rf"{prefix}\..*"))(
            lambda record, member=member: seen.append((member, record.topic, record.value))
        )
        apps.append(app)
    for name in names[:2]:
        either.create_topic(name, 4)
    with running(*apps):
        eventually(
            "both members have a part of both topics",
            lambda: all(sum(len(each.partitions) == 2 for each in app.health()) == 2 for app in apps),
            TIMEOUT_S,
        )
        for name in names[:2]:
            send(either, name, *map(str, range(100)))
        eventually("all records are handled", lambda: len(seen) >= 200, TIMEOUT_S)
        either.create_topic(names[2], 4)
        send(either, names[2], *map(str, range(100)))
        eventually("the new topic is read from its beginning", lambda: len(seen) >= 300, TIMEOUT_S)
        either.delete_topic(names[0])
        eventually(
            "the deleted topic leaves",
            lambda: all({each.handler.topic.name for each in app.consumers} == set(names[1:]) for app in apps),
            TIMEOUT_S,
        )
        send(either, names[1], "last")
        eventually("the others go on", lambda: len(seen) >= 301, TIMEOUT_S)
    assert Counter((topic, value) for _, topic, value in seen) == Counter(
        [(name, str(number).encode()) for name in names for number in range(100)] + [(names[1], b"last")]
    )
    assert {(member, topic) for member, topic, _ in seen} >= {
        (member, name) for member in range(2) for name in names[:2]
    }


def test_a_topic_that_is_created_again_is_read_from_its_beginning(either: penstock.Connection) -> None:
    prefix = fresh()
    app = App(either.url, group=fresh())
    seen: list[bytes] = []
    app.handle(re.compile(rf"{prefix}\..*"))(seen.append)
    with running(app):
        for number in range(2):
            send(either, f"{prefix}.a", "1", "2")
            eventually("they are handled", lambda: len(seen) == 2 * (number + 1), TIMEOUT_S)  # noqa: B023
            either.delete_topic(f"{prefix}.a")
            eventually("the deleted topic leaves", lambda: not app.consumers, TIMEOUT_S)
    assert Counter(seen) == Counter([b"1", b"2"] * 2)


def test_a_consumer_polls_a_pattern(either: penstock.Connection) -> None:
    prefix, group = fresh(), fresh()
    pattern = re.compile(rf"{prefix}\..*")
    send(either, f"{prefix}.a", "1")
    with Consumer(either.url, pattern, group=group) as consumer:
        records: list[Record] = []
        eventually("the first is polled", lambda: records.extend(consumer.poll(0.5)) or len(records) == 1, TIMEOUT_S)  # type: ignore[func-returns-value]
        send(either, f"{prefix}.b", "2")
        eventually("the second is polled", lambda: records.extend(consumer.poll(0.5)) or len(records) == 2, TIMEOUT_S)  # type: ignore[func-returns-value]
        for record in records:
            consumer.done(record)
    with Consumer(either.url, pattern, group=group, end="latest") as consumer:
        assert list(consumer) == []


def test_a_killed_app_resumes_each_topic_where_it_was(folder: Path) -> None:
    url = f"log:{folder}"
    with penstock.connect(url) as stream:
        for topic in ("orders.eu", "orders.us"):
            send(stream, topic, *map(str, range(200)))
        command = [sys.executable, "-c", CRASHING, url]
        seen: list[str] = []
        for is_last in (False, False, True):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            try:
                wanted = 400 if is_last else len(set(seen)) + 60
                for line in process.stdout:
                    seen.append(line.strip())
                    if len(set(seen)) >= wanted:
                        break
            finally:
                os.kill(process.pid, signal.SIGTERM if is_last else signal.SIGKILL)
                seen += process.stdout.read().splitlines()  # handled before it was killed
                process.wait(TIMEOUT_S)
                process.stdout.close()
    seen = [line for line in seen if line.count(" ") == 1]  # a killed process may leave half a line
    wanted_lines = {f"{topic} {number}" for topic in ("orders.eu", "orders.us") for number in range(200)}
    assert set(seen) == wanted_lines
    assert len(seen) - len(wanted_lines) <= 40  # what was finished and not saved, or printed after the last line read
