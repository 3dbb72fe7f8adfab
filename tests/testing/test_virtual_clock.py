"""Time that passes when it is told to."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.model.clock import SystemClock, wait_on
from penstock.testing import VirtualClock

REAL_S = 10.0


def sleeping(clock: VirtualClock, duration_s: float, woken: list[float]) -> threading.Thread:
    """A thread that sleeps, and then writes down what time it is."""

    def sleep() -> None:
        clock.sleep(duration_s)
        woken.append(clock.monotonic_s())

    before = clock.sleepers
    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    clock.wait_for_sleepers(before + 1)
    return thread


def test_nothing_passes_by_itself() -> None:
    clock = VirtualClock(wall_ms=5_000, monotonic_s=7.0)
    assert (clock.wall_ms(), clock.monotonic_s()) == (5_000, 7.0)
    clock.advance(1.25)
    assert (clock.wall_ms(), clock.monotonic_s()) == (6_250, 8.25)


def test_sleepers_are_woken_in_the_order_of_their_times_each_at_its_own() -> None:
    clock = VirtualClock(monotonic_s=0.0)
    woken: list[float] = []
    threads = [sleeping(clock, duration_s, woken) for duration_s in (30, 10, 20, 40)]
    clock.advance(35)
    for thread in threads[:3]:
        thread.join(REAL_S)
    assert len(woken) == 3
    assert clock.sleepers == 1
    clock.advance(5)
    threads[3].join(REAL_S)
    assert woken[3] == 40.0


def test_a_sleeper_is_not_woken_before_its_time() -> None:
    clock = VirtualClock(monotonic_s=0.0)
    woken: list[float] = []
    thread = sleeping(clock, 10, woken)
    clock.advance(9.999)
    assert thread.is_alive()
    assert clock.sleepers == 1
    clock.advance(0.001)
    thread.join(REAL_S)
    assert not thread.is_alive()


def test_the_steps_of_a_time_add_up_to_it() -> None:
    clock = VirtualClock(monotonic_s=0.1)
    thread = sleeping(clock, 0.3, [])
    for _ in range(3):
        clock.advance(0.1)
    thread.join(REAL_S)
    assert not thread.is_alive()


def test_who_waits_until_a_time_in_a_loop_comes_to_an_end_whatever_is_left_by_rounding() -> None:
    clock = VirtualClock(monotonic_s=0.1)
    until_s = clock.monotonic_s() + 0.2
    clock.advance(0.2)
    loops = 0
    while clock.monotonic_s() < until_s and loops < 10:
        clock.sleep(until_s - clock.monotonic_s())
        loops += 1
    assert loops < 10


def test_nobody_who_falls_asleep_while_time_passes_is_forgotten() -> None:
    clock = VirtualClock(monotonic_s=0.0)
    slept: list[float] = []

    def sleep_again_and_again() -> None:
        for _ in range(200):
            before_s = clock.monotonic_s()
            clock.sleep(1)
            slept.append(clock.monotonic_s() - before_s)

    thread = threading.Thread(target=sleep_again_and_again, daemon=True)
    thread.start()
    for _ in range(100_000):
        if not thread.is_alive():
            break
        clock.advance(0.5)
    thread.join(REAL_S)
    assert len(slept) == 200
    assert min(slept) >= 1


def test_no_time_is_no_sleep() -> None:
    clock = VirtualClock()
    clock.sleep(0)
    clock.sleep(-1)
    assert clock.sleepers == 0


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="go back"):
        VirtualClock().advance(-1)


def test_waiting_for_sleepers_that_do_not_come_ends() -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        VirtualClock().wait_for_sleepers(1, timeout_s=0.01)


@pytest.mark.parametrize("end", ["time", "notification"])
def test_a_wait_on_a_condition_ends_with_the_time_or_with_a_notification(end: str) -> None:
    clock = VirtualClock()
    condition = threading.Condition()
    ended = threading.Event()

    def wait() -> None:
        with condition:
            wait_on(clock, condition, 60.0)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    clock.wait_for_sleepers(1)
    clock.advance(59)
    assert not ended.is_set()
    if end == "time":
        clock.advance(1)
    else:
        with condition:
            condition.notify_all()
    assert ended.wait(REAL_S)
    assert clock.sleepers == 0


def test_the_system_clock_is_that_of_the_machine() -> None:
    clock = SystemClock()
    assert abs(clock.wall_ms() / 1000 - time.time()) < 5
    before_s = clock.monotonic_s()
    clock.sleep(0.01)
    assert clock.monotonic_s() >= before_s + 0.01
    condition = threading.Condition()
    with condition:
        wait_on(clock, condition, 0.01)
    assert clock.monotonic_s() >= before_s + 0.02
