"""A queue in memory, on a clock that is turned by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.abc import Outcome
from penstock.errors import ConfigError, ConnectionClosedError, StaleDeliveryError
from penstock.model import NewRecord
from penstock.queues import MemoryQueue
from penstock.queues.memory import MemoryDelivery
from penstock.testing import VirtualClock

REAL_S = 10.0


def send(queue: MemoryQueue, *values: bytes) -> None:
    queue.send([NewRecord("queue", value) for value in values])


def receive(queue: MemoryQueue) -> MemoryDelivery:
    [delivery] = queue.receive(1, 0.0)
    return delivery


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def queue(clock: VirtualClock) -> MemoryQueue:
    return MemoryQueue(visibility_timeout_s=30.0, clock=clock)


def test_a_delivery_is_its_receivers_for_the_visibility_time(queue: MemoryQueue, clock: VirtualClock) -> None:
    send(queue, b"a")
    first = receive(queue)
    clock.advance(29.9)
    assert queue.receive(1, 0.0) == []
    clock.advance(0.1)
    second = receive(queue)
    assert (first.attempt, second.attempt) == (1, 2)
    with pytest.raises(StaleDeliveryError, match="30 s"):
        queue.settle(first, Outcome.DONE)
    queue.settle(second, Outcome.DONE)
    assert len(queue) == 0


def test_who_lets_the_time_pass_is_late_even_if_nobody_else_has_it_yet(queue: MemoryQueue, clock: VirtualClock) -> None:
    send(queue, b"a")
    delivery = receive(queue)
    clock.advance(30)
    with pytest.raises(StaleDeliveryError):
        queue.settle(delivery, Outcome.DONE)
    assert receive(queue).attempt == 2


def test_a_waiting_receiver_gets_what_another_let_go(queue: MemoryQueue, clock: VirtualClock) -> None:
    send(queue, b"a")
    receive(queue)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.receive, 1, 3600.0)
        clock.wait_for_sleepers(1)
        clock.advance(30)
        assert [delivery.attempt for delivery in waiting.result(REAL_S)] == [2]


def test_a_delayed_record_comes_at_its_time_and_at_its_old_place(queue: MemoryQueue, clock: VirtualClock) -> None:
    send(queue, b"a", b"b", b"c")
    queue.settle(receive(queue), Outcome.RETRY, delay_s=5.0)
    queue.settle(receive(queue), Outcome.DONE)
    clock.advance(5)
    assert [delivery.record.value for delivery in queue.receive(10, 0.0)] == [b"a", b"c"]


def test_what_a_closed_connection_had_goes_to_others_at_once(queue: MemoryQueue) -> None:
    other = queue.another()
    send(queue, b"a", b"b")
    lost = receive(other)
    other.close()
    assert [delivery.record.value for delivery in queue.receive(10, 0.0)] == [b"a", b"b"]
    with pytest.raises(ConnectionClosedError):
        other.settle(lost, Outcome.DONE)
    with pytest.raises(StaleDeliveryError):
        queue.settle(lost, Outcome.DONE)


def test_closing_ends_the_wait_of_a_receiver(queue: MemoryQueue, clock: VirtualClock) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.receive, 1, 3600.0)
        clock.wait_for_sleepers(1)
        queue.close()
        with pytest.raises(ConnectionClosedError):
            waiting.result(REAL_S)


def test_rejected_records_are_the_queues_own_dead_letters(queue: MemoryQueue) -> None:
    send(queue, b"a")
    queue.settle(receive(queue), Outcome.REJECT)
    assert [record.value for record in queue.rejected] == [b"a"]
    assert len(queue) == 0


def test_settling_twice_is_refused(queue: MemoryQueue) -> None:
    send(queue, b"a")
    delivery = receive(queue)
    queue.settle(delivery, Outcome.DONE)
    with pytest.raises(StaleDeliveryError):
        queue.settle(delivery, Outcome.RETRY)
    assert len(queue) == 0


def test_what_makes_no_sense_is_refused(queue: MemoryQueue) -> None:
    send(queue, b"a")
    delivery = receive(queue)
    with pytest.raises(ConfigError, match="for RETRY"):
        queue.settle(delivery, Outcome.DONE, delay_s=1.0)
    with pytest.raises(ConfigError, match="not negative"):
        queue.settle(delivery, Outcome.RETRY, delay_s=-1.0)
    with pytest.raises(ConfigError, match="limit"):
        queue.receive(0, 0.0)
    with pytest.raises(ConfigError, match="visibility"):
        MemoryQueue(0)
