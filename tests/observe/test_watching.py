"""The thread that watches: it hears of everything, finds a broker again, and is no burden."""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path

import pytest

import penstock
from penstock.errors import BrokerUnavailableError, ConfigError
from penstock.observe.facts import Snapshot
from penstock.observe.history.history import History
from penstock.observe.watching import REST, Watch
from penstock.testing.clock import VirtualClock
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Penstock


def test_before_the_first_look_nothing_is_known_and_nobody_waits() -> None:
    watch = Watch("kafka://127.0.0.1:1")
    assert watch.latest.problem is not None
    assert watch.connection is None
    watch.close()


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="every_s"):
        Watch("kafka://127.0.0.1:1", every_s=0)


def test_each_look_is_told_and_kept(server: Penstock, stream: penstock.Connection, tmp_path: Path) -> None:
    topic = fresh()
    stream.create_topic(topic)
    history = History(tmp_path / "history.db")
    watch = Watch(f"kafka://{server.bootstrap}", history, every_s=60, pipelines=tmp_path)
    heard: list[Snapshot] = []
    leave = watch.listen(heard.append)
    watch.start()
    try:
        first = watch.look_now(30)
        assert first.problem is None
        assert topic in first.topics
        assert watch.latest is first
        assert heard[-1] is first
        assert history.series("topic", topic, "records", 0)[-1][1] == 0
        assert watch.connection is not None
        stream.send(topic, "value").result(20)
        assert watch.look_now(30).topics[topic].records == 1
        count = len(heard)
        leave()
        watch.look_now(30)
        assert len(heard) == count
    finally:
        watch.close()
        history.close()
    assert watch.connection is None
    watch.close()


def test_a_listener_that_fails_keeps_nobody_from_hearing(
    server: Penstock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Snapshot] = []

    def fail(_: Snapshot) -> None:
        raise RuntimeError("no")

    watch = Watch(f"kafka://{server.bootstrap}", every_s=60, pipelines=tmp_path)
    watch.listen(fail)
    watch.listen(heard.append)
    watch.start()
    try:
        with caplog.at_level(logging.ERROR):
            watch.look_now(30)
            watch.look_now(30)
    finally:
        watch.close()
    assert len(heard) >= 2
    assert "a listener failed" in caplog.text


def test_who_cannot_connect_says_so_and_tries_again(server: Penstock, tmp_path: Path) -> None:
    is_there = threading.Event()

    def connect() -> penstock.Connection:
        if not is_there.is_set():
            raise BrokerUnavailableError("nothing answers at the moment")
        return penstock.connect(f"kafka://{server.bootstrap}")

    watch = Watch(connect, every_s=60, pipelines=tmp_path)
    watch.start()
    try:
        assert watch.look_now(30).problem == "nothing answers at the moment"
        is_there.set()
        assert watch.look_now(30).problem is None
    finally:
        watch.close()


def test_a_connection_that_is_of_no_use_any_more_is_made_again(server: Penstock, tmp_path: Path) -> None:
    made: list[penstock.Connection] = []

    def connect() -> penstock.Connection:
        made.append(penstock.connect(f"kafka://{server.bootstrap}"))
        return made[-1]

    watch = Watch(connect, every_s=60, pipelines=tmp_path)
    watch.start()
    try:
        before = watch.look_now(30)
        made[0].close()
        away = watch.look_now(30)
        assert away.problem is not None
        assert away.topics == before.topics, "what was last known stands there"
        eventually("it is connected again", lambda: watch.look_now(30).problem is None)
        assert len(made) == 2
    finally:
        watch.close()


def test_looks_are_as_far_apart_as_was_asked_for(server: Penstock, tmp_path: Path) -> None:
    clock = VirtualClock()
    looks: list[Snapshot] = []
    # The processor's time is left out: where it was long, they would rightly be further apart.
    url = f"kafka://{server.bootstrap}"
    watch = Watch(url, every_s=5, pipelines=tmp_path, clock=clock, processor_s=lambda: 0.0)
    watch.listen(looks.append)
    watch.start()
    try:
        for count in (1, 2, 3):
            clock.wait_for_sleepers(1, 30)
            assert len(looks) == count
            clock.advance(5)
        clock.wait_for_sleepers(1, 30)
    finally:
        watch.close()
    assert [later.at_ms - earlier.at_ms for earlier, later in itertools.pairwise(looks)] == [5_000] * 3


def test_where_a_look_is_much_work_there_are_fewer(server: Penstock, tmp_path: Path) -> None:
    clock = VirtualClock()
    worked_s = iter(itertools.count(0, 2))
    url = f"kafka://{server.bootstrap}"
    watch = Watch(url, every_s=5, pipelines=tmp_path, clock=clock, processor_s=lambda: next(worked_s) / 10)
    watch.start()
    try:
        clock.wait_for_sleepers(1, 30)
        assert watch.interval_s == pytest.approx(REST * 0.2)
    finally:
        watch.close()
