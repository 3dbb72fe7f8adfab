"""A new producer is made known to its broker: see `warm_up_thread` for what that spares."""

from __future__ import annotations

import threading
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Producer

import penstock
from penstock.streams.kafka.producing.producer import warm_up_thread
from tests.servers import Penstock


class Listener:
    """In place of a producer: hears what is asked about, and answers once it may."""

    def __init__(self, error: KafkaException | None = None) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self._error = error

    def list_topics(self, topic: str, timeout: float) -> object:
        assert self.may_answer.wait(20)
        self.asked.append(topic)
        if self._error is not None:
            raise self._error
        return object()


def introduce(listener: Listener) -> threading.Thread:
    return warm_up_thread(cast(Producer, cast(Any, listener)), "orders")


def test_it_hears_of_the_brokers_again_where_it_stays_connected() -> None:
    listener = Listener()
    introduction = introduce(listener)
    assert not listener.asked, "nobody waits for it"
    listener.may_answer.set()
    introduction.join()
    assert listener.asked == ["orders", "orders"]


def test_a_broker_that_is_away_is_no_error_here() -> None:
    listener = Listener(KafkaException(KafkaError(KafkaError._TRANSPORT)))
    listener.may_answer.set()
    introduce(listener).join()
    assert listener.asked == ["orders"]


def test_no_thread_of_it_outlives_the_connection(server: Penstock) -> None:
    with penstock.connect(f"kafka://{server.bootstrap}") as connection:
        connection.send("introduced", "hello").result(20)
    assert "penstock-warm-up" not in {thread.name for thread in threading.enumerate()}
