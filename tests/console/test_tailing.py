"""The live tail: what comes from now on, bounded, and honest about what it has left out."""

from __future__ import annotations

import pytest

import penstock
from penstock.console.messages import tailing
from penstock.console.messages.tailing import Tail
from penstock.console.service import Service
from penstock.console.views import MessageQuery, MessageRow
from penstock.errors import ClosedError, ConfigError


def poll_until(tail: Tail, count: int, timeout_s: float = 30.0) -> list[MessageRow]:
    """So many rows, as they come."""
    found: list[MessageRow] = []
    for _ in range(round(timeout_s / 0.5)):
        found += tail.poll(0.5)
        if len(found) >= count:
            return found
    raise AssertionError(f"only {len(found)} of {count} rows have come")


def test_only_what_comes_from_now_on_is_shown(service: Service, stream: penstock.Connection, topic: str) -> None:
    stream.send(topic, "before", partition=0)
    stream.flush(30)
    with service.tail(MessageQuery(topic)) as tail:
        assert tail.poll(0.0) == []
        for partition in range(3):
            stream.send(topic, f"now {partition}", partition=partition)
        stream.flush(30)
        assert {row.value.text for row in poll_until(tail, 3)} == {"now 0", "now 1", "now 2"}
        assert tail.dropped == 0


def test_a_tail_shows_what_matches(service: Service, stream: penstock.Connection, topic: str) -> None:
    query = MessageQuery(topic, expression="value.n > 5", search="yes", partition=1)
    with service.tail(query) as tail:
        for number in range(10):
            stream.send(topic, {"n": number, "t": "YES" if number % 2 else "no"}, partition=1)
        stream.send(topic, {"n": 100, "t": "yes"}, partition=0)
        stream.flush(30)
        assert [row.pointer for row in poll_until(tail, 2)] == [7, 9]


def test_what_is_too_much_is_left_out_and_counted(
    service: Service, stream: penstock.Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailing, "_POLL_RECORDS", 50)
    monkeypatch.setattr(tailing, "_LOOKED_AT", 100)
    with service.tail(MessageQuery(topic, limit=10, partition=0)) as tail:
        for number in range(1_000):
            stream.send(topic, str(number), partition=0)
        stream.flush(30)
        shown: list[int] = []
        for _ in range(100):
            shown += [row.pointer for row in tail.poll(0.5)]
            if len(shown) + tail.dropped >= 1_000:
                break
        assert len(shown) + tail.dropped == 1_000
        assert tail.dropped >= 800
        assert shown == sorted(set(shown))


def test_a_closed_tail_says_so(service: Service, topic: str) -> None:
    tail = service.tail(MessageQuery(topic))
    tail.close()
    with pytest.raises(ClosedError):
        tail.poll(0.0)


def test_tails_have_a_limit_and_stale_ones_make_room(
    service: Service, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.console import service as module

    monkeypatch.setattr(module, "MOST_TAILS", 2)
    first, second = service.tail(MessageQuery(topic)), service.tail(MessageQuery(topic))
    with pytest.raises(ConfigError, match="open already"):
        service.tail(MessageQuery(topic))
    first.polled_s -= 3_600
    third = service.tail(MessageQuery(topic))
    with pytest.raises(ClosedError):
        first.poll(0.0)
    for tail in (second, third):
        tail.close()
