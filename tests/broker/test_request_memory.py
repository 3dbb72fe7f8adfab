"""The memory for unfinished requests: who gets it, who waits, and who has to go."""

from __future__ import annotations

import pytest

from penstock.broker.limits import UNFINISHED_S, RequestMemory
from tests.broker.groups.doubles import VirtualClock, in_a_loop


class Client:
    def __init__(self, memory: RequestMemory) -> None:
        self.memory = memory
        self.last_active_s = 0.0
        self.told = 0
        self.closed: str | None = None
        self.is_receiving = True

    def take(self, size: int) -> bool:
        return self.memory.take(self, size, wait=True)

    def give_back(self) -> None:
        self.memory.give_back(self)

    def give_back_unused(self) -> None:
        if not self.is_receiving:
            self.give_back()

    def memory_free(self) -> None:
        self.told += 1

    def close(self, reason: str) -> None:
        self.closed = reason


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def memory(clock: VirtualClock) -> RequestMemory:
    return RequestMemory(100, clock)


def test_one_at_a_time_may_exceed_the_limit_so_that_none_waits_for_ever(memory: RequestMemory) -> None:
    first, second, third = Client(memory), Client(memory), Client(memory)
    assert first.take(60)
    assert second.take(40)
    assert first.take(30), "the first that needs more than there is"
    assert not second.take(30)
    assert not third.take(1)
    assert first.take(30), "it goes on until its request is complete"
    first.give_back()
    assert (second.told, third.told) == (1, 1)
    assert memory.held_bytes == 40


def test_who_only_would_like_more_never_waits_nor_exceeds(memory: RequestMemory) -> None:
    first, second = Client(memory), Client(memory)
    assert first.take(90)
    assert not memory.take(second, 20, wait=False)
    first.give_back()
    assert second.told == 0
    assert memory.take(second, 20, wait=False)


def test_memory_that_nobody_receives_into_is_given_back_first(memory: RequestMemory) -> None:
    resting, busy = Client(memory), Client(memory)
    resting.is_receiving = False
    assert resting.take(90)
    assert busy.take(90)
    assert memory.held_bytes == 90


@in_a_loop
async def test_an_unfinished_request_that_others_wait_for_is_given_up_after_a_while() -> None:
    clock = VirtualClock()
    memory = RequestMemory(100, clock)
    slow, quick, waiting = Client(memory), Client(memory), Client(memory)
    assert slow.take(60)
    await clock.advance(5_000)
    assert quick.take(60)
    assert not waiting.take(60)
    await clock.advance(round(UNFINISHED_S * 1000) - 5_001)
    assert slow.closed is None
    quick.last_active_s = clock.monotonic_s()
    await clock.advance(1)
    assert slow.closed == "an unfinished request holds 60 bytes that others wait for (queued.max.request.bytes)"
    assert (quick.closed, waiting.told) == (None, 0)
    quick.give_back()
    assert waiting.told == 1


@in_a_loop
async def test_a_slow_request_may_take_its_time_while_nobody_waits() -> None:
    clock = VirtualClock()
    memory = RequestMemory(100, clock)
    slow, other = Client(memory), Client(memory)
    assert slow.take(100)
    assert other.take(60)
    waiting = Client(memory)
    assert not waiting.take(10)
    waiting.give_back()  # its client has gone
    await clock.advance(60_000)
    assert (slow.closed, other.closed) == (None, None)
