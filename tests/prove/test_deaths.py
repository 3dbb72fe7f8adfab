"""Processes that are killed one after the other: who is killed, who is let live, and what is told of it."""

from __future__ import annotations

from collections import deque
from multiprocessing.process import BaseProcess

from tests.prove.deaths import Death, Kill, Moment, until_one_ends
from tests.prove.victims import start, start_endless, start_failing

REACHED = (Death("wake up", 1, after=False), Death("work", 1, after=True))
UNREACHED = Death("sleep", 1, after=False)


def test_each_process_dies_as_it_is_told_and_the_last_is_let_live() -> None:
    left: deque[Kill] = deque(REACHED)
    ending = until_one_ends(start, left)
    assert ending.kills == list(REACHED)
    assert ending.runs == 3
    assert not ending.problem
    assert not left


def test_who_does_not_reach_the_step_comes_to_the_end_and_the_other_kills_are_left() -> None:
    left: deque[Kill] = deque([REACHED[0], UNREACHED, REACHED[1]])
    ending = until_one_ends(start, left)
    assert ending.kills == [REACHED[0]]
    assert ending.exit_code == 0
    assert list(left) == [REACHED[1]]


def test_at_its_moment_a_process_is_killed_whatever_it_does() -> None:
    started: list[BaseProcess] = []

    def endless_at_first(death: Death | None) -> BaseProcess:
        started.append(start(death) if started else start_endless(death))
        return started[-1]

    ending = until_one_ends(endless_at_first, deque([Moment(0.01)]))
    assert ending.kills == [Moment(0.01)]
    assert [process.exitcode for process in started] == [-9, 0]


def test_an_end_in_an_error_is_told_and_nobody_comes_after_it() -> None:
    ending = until_one_ends(start_failing, deque([UNREACHED, UNREACHED]))
    assert ending.exit_code == 3
    assert ending.runs == 1
    assert "exit code 3" in ending.problem


def test_who_hangs_is_told_and_does_not_stay_behind() -> None:
    started: list[BaseProcess] = []

    def endless(death: Death | None) -> BaseProcess:
        started.append(start_endless(death))
        return started[-1]

    ending = until_one_ends(endless, deque(), timeout_s=0.1)
    assert ending.exit_code is None
    assert "did not end" in ending.problem
    assert started[0].exitcode == -9


def test_who_is_killed_by_somebody_else_is_a_problem() -> None:
    """The kernel kills who takes too much memory: that is no kill of ours."""

    def killed_unasked(_: Death | None) -> BaseProcess:
        return start(REACHED[0])

    assert "exit code -9" in until_one_ends(killed_unasked, deque()).problem
