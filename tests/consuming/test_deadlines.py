"""`within`: analysers in parallel, and what is there when time is up."""

from __future__ import annotations

import asyncio
import datetime
import functools
import gc
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import pytest

from penstock.consuming.deadlines.parallel import Deadline, Result, Why, within
from penstock.errors import ClosedError, ConfigError, HandlerError, WorkerDiedError
from penstock.testing import VirtualClock
from tests.clients.waiting import eventually
from tests.consuming import analysers

LONG_S: Final = 30.0
"""A deadline that no call of a test reaches unless something is broken."""


class Gate:
    """An analyser that answers when it is let."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self, argument: object) -> str:
        self.began.release()
        assert self.opened.wait(LONG_S)
        return f"gate {argument}"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def quick(argument: object) -> str:
    return f"quick {argument}"


def broken(argument: object) -> str:
    raise LookupError(f"nothing about {argument}")


def test_all_answers_in_time_make_a_complete_result() -> None:
    with within(LONG_S, quick, length=len) as analyse:
        result = analyse("abc")
    assert result.complete
    assert result.label == "complete"
    assert result.answers == {"quick": "quick abc", "length": 3}
    assert (result.missing, result.failed) == ((), {})
    assert 0 < result.took_s < LONG_S


def test_analysers_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=LONG_S)

    def meet(_: object) -> int:
        return barrier.wait()

    with within(LONG_S, a=meet, b=meet, c=meet) as analyse:
        assert sorted(analyse(None).answers.values()) == [0, 1, 2]


def test_when_time_is_up_what_is_there_is_returned_and_what_is_missing_is_named(
    gate: Gate, pool: ThreadPoolExecutor
) -> None:
    clock = VirtualClock()
    with within(0.020, quick, slow=gate, clock=clock) as analyse:
        calling = pool.submit(analyse, "x")
        wait_for_begin(gate)
        wait_for_answers(analyse, "quick", 1)
        clock.wait_for_sleepers(1)
        clock.advance(0.019)
        assert not calling.done()
        clock.advance(0.001)
        result = calling.result(LONG_S)
        gate.opened.set()
    assert not result.complete
    assert result.label == "partial"
    assert result.answers == {"quick": "quick x"}
    assert result.missing == ("slow",)
    assert result.why == {"slow": Why.RUNNING}
    assert result.took_s == pytest.approx(0.020)
    assert str(result) == "partial after 20.0 ms; missing: slow (running)"


def test_an_analyser_that_fails_makes_the_result_partial_and_its_error_is_kept() -> None:
    with within(LONG_S, quick, broken) as analyse:
        result = analyse(1)
        statistics = analyse.statistics
    assert not result.complete
    assert result.answers == {"quick": "quick 1"}
    assert repr(result.failed["broken"]) == "LookupError('nothing about 1')"
    assert result.missing == ()
    assert statistics.analysers["broken"].failed == 1
    assert statistics.partial == 1


def test_a_worker_outlives_whatever_its_analyser_raises() -> None:
    def leave(_: object) -> None:
        raise SystemExit(3)

    with within(LONG_S, leave, workers=1) as analyse:
        assert [type(analyse(n).failed["leave"]) for n in range(3)] == [SystemExit] * 3


def test_a_late_answer_is_counted_and_sent_on(gate: Gate, pool: ThreadPoolExecutor) -> None:
    clock = VirtualClock()
    heard: Future[tuple[Any, ...]] = Future()

    def on_late(*what: Any) -> None:
        heard.set_result(what)

    with within(0.020, slow=gate, clock=clock, on_late=on_late) as analyse:
        late_call(analyse, gate, clock, pool)
        clock.advance(0.5)
        gate.opened.set()
        name, argument, answer, late_by_s = heard.result(LONG_S)
        assert (name, argument, answer) == ("slow", "x", "gate x")
        assert late_by_s == pytest.approx(0.5)
        eventually("the late answer is counted", lambda: analyse.statistics.analysers["slow"].late == 1)
        assert analyse.statistics.analysers["slow"].answered == 0


def test_an_on_late_that_fails_is_logged_and_the_worker_goes_on(
    gate: Gate, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()

    def on_late(*_: Any) -> None:
        raise OSError("nobody listens")

    with within(0.020, slow=gate, clock=clock, on_late=on_late, workers=1) as analyse:
        late_call(analyse, gate, clock, pool)
        gate.opened.set()
        assert pool.submit(analyse, "y").result(LONG_S).answers == {"slow": "gate y"}
    assert "on_late failed for a late answer of the analyser slow" in caplog.text


def test_a_hanging_analyser_takes_nothing_from_the_others_and_is_turned_away_once_its_queue_is_full(
    gate: Gate, pool: ThreadPoolExecutor
) -> None:
    clock = VirtualClock()
    with within(0.020, quick, hanging=gate, workers=2, queue_size=3, clock=clock) as analyse:
        results = []
        for number in range(10):
            calling = pool.submit(analyse, number)
            if number < 2:
                wait_for_begin(gate)
            if number < 5:
                wait_for_answers(analyse, "quick", number + 1)
                clock.wait_for_sleepers(1)
                clock.advance(0.020)
            results.append(calling.result(LONG_S))
        assert [result.answers for result in results] == [{"quick": f"quick {n}"} for n in range(10)]
        assert [result.why["hanging"] for result in results[5:]] == [Why.BUSY] * 5
        assert [result.why["hanging"] for result in results[:2]] == [Why.RUNNING] * 2
        assert [result.why["hanging"] for result in results[2:5]] == [Why.WAITING] * 3
        assert all(result.took_s < 0.020 for result in results[5:]), "who is turned away is not waited for"
        assert analyse.statistics.analysers["hanging"].busy == 5
        assert analyse.statistics.analysers["hanging"].running == 2
        gate.opened.set()
        eventually("what nobody waits for is skipped", lambda: analyse.statistics.analysers["hanging"].skipped == 3)
        assert analyse.statistics.analysers["hanging"].late == 2


def test_many_threads_may_call_at_once(pool: ThreadPoolExecutor) -> None:
    with within(LONG_S, quick, length=lambda argument: len(str(argument))) as analyse:
        results = list(pool.map(analyse, range(500)))
        statistics = analyse.statistics
    assert [result.answers["quick"] for result in results] == [f"quick {n}" for n in range(500)]
    assert (statistics.calls, statistics.complete) == (500, 500)
    assert statistics.analysers["quick"].answered == 500
    assert 0 < statistics.took.p50_s <= statistics.took.p99_s <= statistics.took.max_s


def test_async_analysers_run_beside_each_other_on_their_own_loops() -> None:
    loops = set()

    async def first(number: int) -> int:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return number + 1

    async def second(number: int) -> int:
        loops.add(asyncio.get_running_loop())
        return number + 2

    with within(LONG_S, first, second, quick) as analyse:
        assert analyse(1).answers == {"first": 2, "second": 3, "quick": "quick 1"}
        assert analyse(2).complete
    assert len(loops) == 2
    assert all(loop.is_closed() for loop in loops)


def test_an_async_analyser_that_never_answers_is_missing_then_busy_and_cancelled_by_close(
    pool: ThreadPoolExecutor,
) -> None:
    clock = VirtualClock()
    began, cancelled = threading.Event(), threading.Event()

    async def never(_: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    analyse = within(0.010, never, workers=1, queue_size=1, clock=clock)
    whys = []
    for _ in range(2):
        calling = pool.submit(analyse, None)
        assert began.wait(LONG_S)
        clock.wait_for_sleepers(1)
        clock.advance(0.010)
        whys.append(calling.result(LONG_S).why["never"])
    assert [*whys, analyse(None).why["never"]] == [Why.RUNNING, Why.WAITING, Why.BUSY]
    analyse.close(0.01)
    assert cancelled.wait(LONG_S)


def test_it_can_be_awaited_from_an_event_loop() -> None:
    async def main() -> list[Result]:
        with within(LONG_S, quick, analysers.double_async) as analyse:
            return list(await asyncio.gather(*(analyse.call_async(n) for n in range(20))))

    results = asyncio.run(main())
    assert [result.answers for result in results] == [{"quick": f"quick {n}", "double_async": 2 * n} for n in range(20)]


def test_awaiting_ends_at_the_deadline_too(gate: Gate) -> None:
    async def main() -> Result:
        with within(datetime.timedelta(milliseconds=10), quick, slow=gate) as analyse:
            result = await analyse.call_async("x")
            gate.opened.set()
            return result

    result = asyncio.run(main())
    assert result.missing == ("slow",)
    assert 0.010 <= result.took_s < LONG_S


def test_analysers_in_processes_answer_fail_and_are_replaced_when_they_die() -> None:
    with within(LONG_S, analysers.double, analysers.pid, analysers.die, analysers.fail, processes=True) as analyse:
        first, second, third = analyse(2), analyse(3), analyse(4)
    assert first.answers["double"] == 4
    assert first.answers["pid"] != analysers.pid(None)
    assert first.answers["die"] == 2
    assert repr(first.failed["fail"]) == "ValueError('no 2')"
    assert "analysers.py" in "".join(getattr(first.failed["fail"], "__notes__", [])), "its traceback comes along"
    assert isinstance(second.failed["die"], WorkerDiedError)
    assert third.answers["die"] == 4


def test_an_answer_that_cannot_leave_its_process_is_a_failure_that_says_so() -> None:
    with within(LONG_S, analysers.unpicklable, processes=["unpicklable"]) as analyse:
        result = analyse(1)
        assert "an answer of type lock cannot be pickled" in str(result.failed["unpicklable"])
        assert "cannot be pickled for the process" in str(analyse(threading.Lock()).failed["unpicklable"])


def test_closing_kills_a_process_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    analyse = within(0.5, quick, analysers.hang, processes="hang", workers=1)
    assert "hang" in analyse(1).missing
    eventually("it hangs", lambda: analyse.statistics.analysers["hang"].running == 1)
    analyse.close(0.05)
    assert "analysers still running 0.05 s after close: hang" in caplog.text
    eventually("its worker ends", lambda: not threads_of("hang"))


def test_closing_ends_all_threads_and_a_closed_one_cannot_be_called() -> None:
    analyse = within(LONG_S, quick, analysers.double_async)
    assert threads_of("quick")
    analyse.close()
    analyse.close()
    assert not threads_of("quick")
    assert not threads_of("double_async")
    with pytest.raises(ClosedError, match=r"quick, double_async \(closed\)> was called"):
        analyse(1)


def test_what_is_forgotten_ends_by_itself() -> None:
    analyse = within(LONG_S, quick, analysers.double_async)
    assert analyse(1).complete
    del analyse
    eventually("its threads end", lambda: gc.collect() >= 0 and not threads_of("quick") + threads_of("double_async"))


def test_a_forked_process_is_told_to_make_its_own() -> None:
    with within(LONG_S, quick) as analyse:
        child = os.fork()
        if not child:
            code = 1
            try:
                analyse.close()
                analyse(1)
            except ClosedError as error:
                code = 0 if "create one in this process, too" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert analyse(1).complete


def test_closing_does_not_wait_for_ever_for_a_thread_that_hangs(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    analyse = within(0.005, hanging=gate)
    assert analyse(1).missing == ("hanging",)
    analyse.close(0.01)
    assert "still running" in caplog.text


def test_a_failure_after_the_deadline_is_logged(
    gate: Gate, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    def fails_late(argument: object) -> None:
        raise ValueError(gate(argument))

    clock = VirtualClock()
    with caplog.at_level(logging.WARNING), within(0.020, fails_late, clock=clock) as analyse:
        late_call(analyse, gate, clock, pool)
        gate.opened.set()
        eventually("it is counted", lambda: analyse.statistics.analysers["fails_late"].failed == 1)
    assert "the analyser fails_late failed after its deadline" in caplog.text


def test_a_call_that_returns_long_after_its_deadline_is_counted_and_told_once(
    gate: Gate, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()

    def jump(_: object) -> None:
        clock.advance(0.050)

    with within(0.020, jump, clock=clock) as analyse:
        analyse(1)
        analyse(2)
        assert analyse.statistics.overdue == 2
    assert caplog.text.count("if its analysers are CPU-bound, name them in processes") == 1


def test_a_function_that_gives_a_coroutine_is_told_to_be_async() -> None:
    with within(LONG_S, sneaky=lambda argument: analysers.double_async(argument)) as analyse:
        assert "make it an `async def` itself" in str(analyse(1).failed["sneaky"])


def test_idle_workers_keep_no_argument_alive() -> None:
    class Large:
        pass

    with within(LONG_S, quick) as analyse:
        large = Large()
        gone = weakref.ref(large)
        analyse(large)
        del large
        eventually("the argument is let go of", lambda: gc.collect() >= 0 and gone() is None)


class Asking:
    async def __call__(self, number: int) -> int:
        return number


def test_partials_methods_and_objects_are_analysers_when_they_are_named() -> None:
    power = functools.partial(pow, 2)
    with within(LONG_S, "abc".count, power=power, object=Asking(), each=functools.partial(analysers.double)) as it:
        assert it.names == ("count", "power", "object", "each")
        failed = it(3)
    assert failed.answers == {"power": 8, "object": 3, "each": 6}
    assert isinstance(failed.failed["count"], TypeError)


def two(first: object, second: object) -> None: ...


@pytest.mark.parametrize(
    ("make", "error", "complaint"),
    [
        (lambda: within(0.02), HandlerError, "there are no analysers"),
        (lambda: within(quick), ConfigError, "the deadline is missing"),  # type: ignore[arg-type]
        (lambda: within(0, quick), ConfigError, "must be positive"),
        (lambda: within(-1.0, quick), ConfigError, "must be positive"),
        (lambda: within(float("nan"), quick), ConfigError, "must be positive"),
        (lambda: within(float("inf"), quick), ConfigError, "must be positive"),
        (lambda: within(datetime.timedelta(0), quick), ConfigError, "must be positive"),
        (lambda: within(True, quick), ConfigError, "must be a number of seconds or a timedelta"),
        (lambda: within("20ms", quick), ConfigError, "must be a number of seconds"),  # type: ignore[arg-type]
        (lambda: within(0.02, "quick"), HandlerError, "'quick' is not an analyser"),  # type: ignore[arg-type]
        (lambda: within(0.02, quick, quick), HandlerError, "two analysers are called quick"),
        (lambda: within(0.02, quick, quick=broken), HandlerError, "two analysers are called quick"),
        (lambda: within(0.02, lambda x: x), HandlerError, "has no name: pass it as a keyword"),
        (lambda: within(0.02, functools.partial(pow, 2)), HandlerError, "has no name: pass it as a keyword"),
        (lambda: within(0.02, two), HandlerError, "two.* cannot be called with one argument"),  # type: ignore[arg-type]
        (lambda: within(0.02, quick, worker=3), HandlerError, "worker=3 is neither an analyser nor an option"),  # type: ignore[arg-type]
        (lambda: within(0.02, quick, workers=0), ConfigError, "workers=0"),
        (lambda: within(0.02, quick, queue_size=0), ConfigError, "queue_size=0"),
        (lambda: within(0.02, quick, on_late=3), ConfigError, "on_late=3 must be a function"),  # type: ignore[arg-type]
        (
            lambda: within(0.02, quick, processes=["quik"]),
            ConfigError,
            "processes names 'quik'; the analysers are quick",
        ),
        (lambda: within(0.02, quick, processes=3), ConfigError, "must be True or the names"),  # type: ignore[arg-type]
        (lambda: within(0.02, analysers.double_async, processes=True), HandlerError, "is async def and cannot run in"),
        (
            lambda: within(0.02, f=lambda x: x, processes=True),
            ConfigError,
            "Define it with def at the top level of a module",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Any, error: type[Exception], complaint: str) -> None:
    before = threading.active_count()
    with pytest.raises(error, match=complaint):
        make()
    eventually("nothing is left running", lambda: threading.active_count() <= before)


def late_call(analyse: Deadline, gate: Gate, clock: VirtualClock, pool: ThreadPoolExecutor) -> None:
    """Make a call whose analyser, a gate, has begun but not answered when its time is up."""
    calling = pool.submit(analyse, "x")
    wait_for_begin(gate)
    clock.wait_for_sleepers(1)
    clock.advance(analyse.allowed_s)
    assert not calling.result(LONG_S).complete


def wait_for_begin(gate: Gate) -> None:
    assert gate.began.acquire(timeout=LONG_S)


def wait_for_answers(analyse: Deadline, name: str, count: int) -> None:
    eventually(f"{name} has answered", lambda: analyse.statistics.analysers[name].answered >= count)


def threads_of(analyser: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"within-{analyser}")]
