"""Callers who wait for the connection of a queue."""

from __future__ import annotations

import pytest

from penstock.errors import BrokerUnavailableError, RecordTooLargeError
from penstock.queues.pending import Pending, finish_lost, shortened


def test_a_message_that_is_too_large_is_the_problem_of_its_sender_alone() -> None:
    large, small, settling = Pending(largest_bytes=1_000), Pending(largest_bytes=10), Pending()
    finish_lost({large, small, settling}, RecordTooLargeError("too large"), BrokerUnavailableError("is replaced"))
    with pytest.raises(RecordTooLargeError):
        large.wait(0.0, "sending")
    for other in (small, settling):
        with pytest.raises(BrokerUnavailableError, match="is replaced"):
            other.wait(0.0, "waiting")


def test_settling_is_not_told_of_a_message_that_nobody_waits_for() -> None:
    settling = Pending()
    finish_lost([settling], RecordTooLargeError("too large"), BrokerUnavailableError("is replaced"))
    with pytest.raises(BrokerUnavailableError, match="is replaced"):
        settling.wait(0.0, "settling")


def test_another_problem_is_that_of_everybody() -> None:
    large, settling = Pending(largest_bytes=1_000), Pending()
    finish_lost([large, settling], BrokerUnavailableError("gone"), BrokerUnavailableError("is replaced"))
    for each in (large, settling):
        with pytest.raises(BrokerUnavailableError, match="gone"):
            each.wait(0.0, "waiting")


def test_an_error_that_repeats_the_message_is_cut() -> None:
    assert shortened("reason " + "x" * 100_000 + " end").startswith("reason xxx")
    assert len(shortened("x" * 100_000)) < 600
    assert shortened("short") == "short"
