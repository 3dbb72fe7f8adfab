"""Transactions of other producers are looked up and ended also while a broker hangs, without guessing about it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

import pytest

import penstock
from penstock.errors import StreamError
from penstock.streams.kafka.plain import PlainConnection
from penstock.streams.kafka.producing import open_transactions
from penstock.streams.kafka.producing.open_transactions import TransactionCoordinators
from penstock.streams.kafka.producing.transactions import start_transactional
from penstock.streams.kafka.stream import kafka_of
from penstock.streams.options import Options
from penstock.streams.url import Host
from penstock.testing import TcpProxy
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Penstock

TIMEOUT_S: Final = 4.0
JOIN_S: Final = 60.0


@pytest.fixture
def hung(server: Penstock) -> Iterator[TcpProxy]:
    """An address at which connections are accepted, and nothing is answered."""
    with TcpProxy(server.port) as proxy:
        proxy.freeze()
        yield proxy


def begun(stream: penstock.Connection, topic: str) -> str:
    """The id of a transaction with one record, which its producer has left open."""
    kafka, transactional_id = kafka_of(stream), fresh("transaction")
    producer = start_transactional(
        kafka.bootstrap, kafka.options, transactional_id, timeout_s=30, transaction_timeout_s=60
    )
    producer.begin()
    producer.produce(topic, transactional_id.encode())
    assert producer.flush(30) == 0
    producer.close()
    return transactional_id


def test_a_first_broker_that_hangs_is_waited_for_once(
    stream: penstock.Connection, server: Penstock, topic: str, hung: TcpProxy
) -> None:
    committed, aborted = begun(stream, topic), begun(stream, topic)
    coordinators = TransactionCoordinators(f"{hung.address},{server.bootstrap}", Options(), TIMEOUT_S)
    try:
        assert coordinators.is_supported()
        assert coordinators.open_ids(committed) == [committed]
        owner = coordinators.owner(committed)
        assert owner.is_open
        assert coordinators.commit(committed, owner.producer_id, owner.epoch)
        coordinators.fence(aborted)
        assert not coordinators.owner(aborted).is_open
        assert coordinators.bootstrap() == f"{server.bootstrap},{hung.address}"
    finally:
        coordinators.close()
    assert hung.connections == 1
    assert [record.value for record in stream.read(topic)] == [committed.encode()]


def test_a_broker_that_hangs_later_on_is_left_for_another(
    stream: penstock.Connection, server: Penstock, topic: str, hung: TcpProxy
) -> None:
    hung.heal()
    transactional_id = begun(stream, topic)
    coordinators = TransactionCoordinators(f"{hung.address},{server.bootstrap}", Options(), TIMEOUT_S)
    try:
        assert coordinators.owner(transactional_id).is_open
        hung.freeze()
        coordinators.fence(transactional_id)
        assert not coordinators.owner(transactional_id).is_open
    finally:
        coordinators.close()


def test_what_a_hung_broker_may_coordinate_is_not_taken_for_absent(
    stream: penstock.Connection, server: Penstock, topic: str, hung: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactional_id = begun(stream, topic)
    members = [Host("127.0.0.1", hung.port), Host("127.0.0.1", server.port)]
    monkeypatch.setattr(open_transactions, "_brokers", lambda _: (0, members))
    coordinators = TransactionCoordinators(server.bootstrap, Options(), TIMEOUT_S)
    told: list[str] = []
    try:
        with pytest.raises(StreamError, match=f"broker {hung.address} did not say which transactions are open there"):
            coordinators.open_ids(transactional_id)
        assert coordinators.open_ids(transactional_id, told.append) == [transactional_id]
        assert len(told) == 1
        assert hung.connections == 2, "one attempt for each list"

        looks = iter([members, members[1:]])
        monkeypatch.setattr(open_transactions, "_brokers", lambda _: (0, next(looks)))
        assert coordinators.open_ids(transactional_id) == [transactional_id], "it has left the cluster"
        coordinators.fence(transactional_id)
    finally:
        coordinators.close()


def test_a_broker_that_closes_connections_is_asked_again_what_it_knows(server: Penstock) -> None:
    """A broker that restarts, or a proxy in front of it, closes them too: that says nothing about its age."""
    answers: list[bool] = []
    with TcpProxy(server.port) as proxy:
        proxy.cut()
        coordinators = TransactionCoordinators(proxy.address, Options(), JOIN_S)
        asking = threading.Thread(target=lambda: answers.append(coordinators.is_supported()))
        asking.start()
        eventually("it was asked twice in vain", lambda: proxy.connections > 1)
        assert answers == []
        proxy.heal()
        asking.join(JOIN_S)
        coordinators.close()
    assert answers == [True]


def test_a_broker_without_these_requests_is_told_by_what_it_says_it_knows(
    server: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PlainConnection.newest_versions
    monkeypatch.setattr(
        PlainConnection, "newest_versions", lambda self: {key: new for key, new in real(self).items() if key != 66}
    )
    coordinators = TransactionCoordinators(server.bootstrap, Options(), TIMEOUT_S)
    assert not coordinators.is_supported()
    coordinators.close()


def test_without_any_broker_the_error_names_the_last_one_and_why(server: Penstock, hung: TcpProxy) -> None:
    coordinators = TransactionCoordinators(hung.address, Options(), 1.0)
    with pytest.raises(StreamError, match=rf"could not list the brokers within 1 s: {hung.address}: timed out"):
        coordinators.open_ids("")
    coordinators.close()
