"""Which deaths are followed by another start, and which are hopeless."""

from __future__ import annotations

import random

import pytest

from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError, MissingExtraError, PipelineRunningError
from penstock.model.retry import Retry
from penstock.supervising.restarts import Attempts, Cause, Ending, RestartPolicy, cause_of
from tests.seeds import seed_of

KILLED = Ending(-9, None, Cause.OTHER, False, 5.0)


@pytest.fixture
def attempts() -> Attempts:
    backoff = Retry(None, first_delay_s=1.0, max_delay_s=60.0, jitter=0.5)
    return Attempts(RestartPolicy(backoff), random.Random(seed_of()))


def failed(error: str, *, progressed: bool = False, ready: bool = False, ran_s: float = 1.0) -> Ending:
    return Ending(1, error, Cause.OTHER, progressed, ran_s, ready)


def test_delays_grow_and_are_spread(attempts: Attempts) -> None:
    delays = [attempts.after(KILLED).delay_s for _ in range(4)]
    for delay_s, most_s in zip(delays, (1, 2, 4, 8), strict=True):
        assert delay_s is not None
        assert most_s / 2 <= delay_s <= most_s
    assert delays != [1, 2, 4, 8]


def test_ten_deaths_without_progress_are_hopeless(attempts: Attempts) -> None:
    assert all(attempts.after(KILLED).delay_s is not None for _ in range(9))
    last = attempts.after(KILLED)
    assert last.delay_s is None
    assert last.why == "10 deaths in a row without progress"


def test_progress_begins_the_count_and_the_delays_again(attempts: Attempts) -> None:
    for _ in range(20):
        for _ in range(3):
            assert attempts.after(KILLED).delay_s is not None
        delay_s = attempts.after(failed("a bad moment", progressed=True)).delay_s
        assert delay_s is not None
        assert delay_s <= 1.0


def test_a_program_that_has_worked_for_a_while_is_started_at_once(attempts: Attempts) -> None:
    assert attempts.after(failed("killed", progressed=True, ran_s=10.0)).delay_s == 0
    assert (attempts.after(failed("killed", progressed=True, ran_s=9.0)).delay_s or 0) > 0
    assert (attempts.after(failed("killed", ran_s=10.0)).delay_s or 0) > 0


def test_the_same_error_three_times_before_it_is_ready_is_hopeless(attempts: Attempts) -> None:
    assert attempts.after(failed("no table at 0x7f12 in line 3")).delay_s is not None
    assert attempts.after(failed("no table at 0x7e99 in line 3")).delay_s is not None
    last = attempts.after(failed("no table at 0x7aaa in line 3"))
    assert last.delay_s is None
    assert last.why == "the same error 3 times in a row, before it was ready"


def test_different_errors_or_errors_at_work_may_have_more_attempts(attempts: Attempts) -> None:
    for error in ("one", "two", "one"):
        assert attempts.after(failed(error)).delay_s is not None
    assert attempts.after(failed("one", ready=True)).delay_s is not None


def test_a_program_that_ran_for_long_is_not_in_a_loop_though_it_had_nothing_to_do(attempts: Attempts) -> None:
    assert all(attempts.after(failed("idle", ran_s=301.0)).delay_s is not None for _ in range(20))


def test_what_the_program_needs_may_be_away_for_any_time(attempts: Attempts) -> None:
    away = Ending(1, "no broker answers", Cause.UNAVAILABLE, False, 1.0)
    delays = [attempts.after(away).delay_s for _ in range(50)]
    assert None not in delays
    assert max(each for each in delays if each is not None) <= 60.0


@pytest.mark.parametrize(
    "ending", [Ending(1, "bad", Cause.INCURABLE, True, 500.0), Ending(2, "usage", Cause.OTHER, False, 1.0)]
)
def test_what_a_restart_cannot_cure_is_not_tried_again(attempts: Attempts, ending: Ending) -> None:
    decision = attempts.after(ending)
    assert decision.delay_s is None
    assert "which a restart cannot cure" in decision.why


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConfigError("x"), Cause.INCURABLE),
        (MissingExtraError("a", "b"), Cause.INCURABLE),
        (SyntaxError("x"), Cause.INCURABLE),
        (ModuleNotFoundError("x"), Cause.INCURABLE),
        (BrokerUnavailableError("x"), Cause.UNAVAILABLE),
        (BrokerUnavailableError("x", retriable=False), Cause.INCURABLE),
        (PipelineRunningError("x"), Cause.UNAVAILABLE),
        (ConnectionRefusedError(), Cause.UNAVAILABLE),
        (DeliveryError("x"), Cause.OTHER),
        (ValueError("x"), Cause.OTHER),
    ],
)
def test_errors_have_causes(error: Exception, cause: Cause) -> None:
    assert cause_of(error) is cause


def test_a_policy_without_attempts_is_refused() -> None:
    with pytest.raises(ConfigError, match="give_up_after=0"):
        RestartPolicy(give_up_after=0)
