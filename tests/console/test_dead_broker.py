"""A console whose broker is away: it shows what was last known, says so soon, and goes on when the broker is back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.console import link
from penstock.console.service import Service
from penstock.console.views import MessageQuery, Person
from penstock.errors import BrokerUnavailableError, PenstockError
from penstock.model import DeadLetterFilter
from tests.console.conftest import SELDOM_S
from tests.console.letters_of_tests import put_letters
from tests.servers import Penstock

SOON_S = 15.0
"""Much longer than the console waits, and much shorter than a program would: half a minute and more for each answer."""


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Penstock]:
    with Penstock(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/letters.db"


@pytest.fixture
def console(mortal: Penstock, tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(link, "_THERE_S", 0.0)  # else who asks right after the broker has died waits for its answer
    monkeypatch.setattr(link, "_REACHED_S", 2.0)
    url = f"kafka://{mortal.bootstrap}"
    with penstock.connect(url) as stream:
        stream.create_topic("orders", 2)
        stream.send("orders", "x", partition=0)
    with Service(url, state=tmp_path / "state", dead_letters=[spec], every_s=SELDOM_S) as service:
        service.look_now()
        service.topic("orders")
        yield service


def changes_of(service: Service, ann: Person, spec: str) -> list[Callable[[], object]]:
    return [
        lambda: service.messages(MessageQuery("orders")),
        lambda: service.message("orders", 0, 0),
        lambda: service.tail(MessageQuery("orders")),
        lambda: service.produce(ann, "orders", None, "x"),
        lambda: service.create_topic(ann, "more", 1),
        lambda: service.plan_reset("group", "latest", ["orders"]),
        lambda: service.reset(ann, "group", "latest", ["orders"]),
        lambda: service.redrive(ann, spec, DeadLetterFilter()),
    ]


def test_what_was_known_stays_and_all_else_is_refused_soon(
    console: Service, mortal: Penstock, ann: Person, spec: str
) -> None:
    put_letters(spec, "orders", 3)
    mortal.kill()
    began_s = time.monotonic()
    for ask in changes_of(console, ann, spec):
        with pytest.raises(BrokerUnavailableError):
            ask()
    assert time.monotonic() - began_s < SOON_S
    assert [line.outcome for line in console.audit()] == ["failed"] * 4
    snapshot = console.look_now()
    assert snapshot.problem is not None
    assert snapshot.topics["orders"].records == 1
    outage = console.outage()
    assert outage is not None
    assert outage.known_ms is not None
    assert outage.known_ms < outage.since_ms
    detail = console.topic("orders")
    assert detail.problem is not None
    assert detail.facts.records == 1
    assert detail.config
    assert len(console.letters(spec, DeadLetterFilter()).rows) == 3
    with pytest.raises(PenstockError):
        console.topic("never-seen")  # which looks once more
    assert console.outage() == outage, "it does not begin again with every look"


def test_a_broker_that_hangs_is_given_up_after_the_time_that_an_answer_may_take(
    console: Service, mortal: Penstock, ann: Person, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "ANSWER_S", 2.0)
    os.kill(mortal.pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        for ask in changes_of(console, ann, spec)[:4]:
            with pytest.raises(BrokerUnavailableError):
                ask()
        assert time.monotonic() - began_s < SOON_S
    finally:
        os.kill(mortal.pid, signal.SIGCONT)


def test_it_goes_on_when_the_broker_is_back(console: Service, mortal: Penstock, ann: Person) -> None:
    mortal.kill()
    with pytest.raises(BrokerUnavailableError):
        console.messages(MessageQuery("orders"))
    mortal.restart()
    until_s = time.monotonic() + 60
    while True:
        try:
            rows = console.messages(MessageQuery("orders")).rows
            break
        except BrokerUnavailableError:
            assert time.monotonic() < until_s
    assert [row.value.text for row in rows] == ["x"]
    console.look_now()
    assert console.outage() is None
    assert console.produce(ann, "orders", None, "y", partition=1) == (1, 0)


def test_a_console_may_be_there_before_its_broker(tmp_path: Path) -> None:
    with Service("kafka://127.0.0.1:1", state=tmp_path, every_s=SELDOM_S) as service:
        assert service.look_now().problem is not None
        assert service.pipelines() == []
        assert service.dead_letter_stores() == []
        outage = service.outage()
        assert outage is not None
        assert outage.known_ms is None
        assert not service.is_known
        for ask in (lambda: service.letters("orders.dlq", DeadLetterFilter()), lambda: service.consumer("billing")):
            with pytest.raises(BrokerUnavailableError, match="it is unknown whether "):
                ask()
        with pytest.raises(BrokerUnavailableError):
            service.messages(MessageQuery("orders"))
