"""Countdowns, the timeouts of members and phases."""

from __future__ import annotations

from penstock.broker.groups.countdown import Countdown
from tests.broker.groups.doubles import VirtualClock, in_a_loop


class Bell:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.rang_at_ms: list[int] = []
        self.countdown = Countdown(self.clock, lambda: self.rang_at_ms.append(self.clock.now_ms))


@in_a_loop
async def test_it_rings_once_when_the_time_has_passed() -> None:
    bell = Bell()
    bell.countdown.start(1_000)
    await bell.clock.advance(5_000)
    assert bell.rang_at_ms == [1_000]
    assert not bell.countdown.running


@in_a_loop
async def test_a_restart_counts_from_then_on() -> None:
    bell = Bell()
    bell.countdown.start(1_000)
    await bell.clock.advance(900)
    bell.countdown.start(1_000)
    await bell.clock.advance(5_000)
    assert bell.rang_at_ms == [1_900]


@in_a_loop
async def test_it_can_be_restarted_to_ring_earlier() -> None:
    bell = Bell()
    bell.countdown.start(10_000)
    bell.countdown.start(1_000)
    await bell.clock.advance(20_000)
    assert bell.rang_at_ms == [1_000]


@in_a_loop
async def test_a_stopped_one_does_not_ring_until_it_is_started_again() -> None:
    bell = Bell()
    bell.countdown.start(1_000)
    bell.countdown.stop()
    await bell.clock.advance(5_000)
    assert bell.rang_at_ms == []
    assert bell.clock.waiting() == 0
    bell.countdown.start(1_000)
    await bell.clock.advance(1_000)
    assert bell.rang_at_ms == [6_000]


@in_a_loop
async def test_it_can_be_started_from_its_own_ring() -> None:
    clock, rings = VirtualClock(), list[int]()

    def ring() -> None:
        rings.append(clock.now_ms)
        countdown.start(500)

    countdown = Countdown(clock, ring)
    countdown.start(1_000)
    await clock.advance(2_000)
    assert rings == [1_000, 1_500, 2_000]


@in_a_loop
async def test_a_negative_time_is_no_time() -> None:
    bell = Bell()
    bell.countdown.start(-5)
    await bell.clock.advance(0)
    assert bell.rang_at_ms == [0]
