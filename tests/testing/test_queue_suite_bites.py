"""Each defect of a queue is caught by the case that is there for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from penstock.queues import MemoryQueue
from penstock.testing import conformance
from penstock.testing.conformance import queue as make_cases
from penstock.testing.conformance.queue import QueueCases, QueueOutageCases
from tests.testing import broken_queues, sqlite_queue
from tests.testing.running_cases import complaint_of, reason_for_skipping
from tests.testing.sqlite_queue import SqliteQueue

SUITE: Final = importlib.import_module("penstock.testing.conformance.queue")
"""The module, whose name the package gives to the function in it."""
SENDER: Final = "test_what_was_sent_is_there_when_the_sender_was_killed"
RECEIVER: Final = "test_what_a_killed_receiver_had_is_handed_out_again_and_what_it_settled_is_not"

DEFECTS: Final[list[tuple[Callable[[], MemoryQueue], str]]] = [
    (broken_queues.NeverForgets, "test_what_is_sent_is_received_once"),
    (broken_queues.LastInFirstOut, "test_records_come_in_the_order_in_which_they_were_sent"),
    (broken_queues.ChangesValues, "test_values_come_back_as_they_were"),
    (broken_queues.LosesKeys, "test_keys_come_back_as_they_were"),
    (broken_queues.LosesHeaders, "test_headers_come_back_as_they_were"),
    (broken_queues.WaitsTooLong, "test_a_receive_that_waits_returns_as_soon_as_there_is_a_record"),
    (broken_queues.DoesNotWait, "test_a_receive_without_records_ends_once_the_wait_is_over"),
    (broken_queues.HandsOutTwice, "test_what_somebody_has_is_not_handed_to_another"),
    (broken_queues.IgnoresTheLimit, "test_what_somebody_has_is_not_handed_to_another"),
    (broken_queues.HandsToSeveral, "test_competing_receivers_get_each_record_once"),
    (broken_queues.DoesNotRetry, "test_what_is_settled_with_retry_is_handed_out_again"),
    (broken_queues.CountsFromTwo, "test_what_is_settled_with_retry_is_handed_out_again"),
    (broken_queues.IgnoresTheDelay, "test_a_retry_with_a_delay_comes_after_the_delay_and_lets_others_pass"),
    (broken_queues.AcceptsDelaysWithoutHavingThem, "test_a_retry_with_a_delay_is_refused"),
    (broken_queues.RetriesWhatIsRejected, "test_what_is_rejected_is_never_handed_out_again"),
    (broken_queues.AcceptsWhatIsStale, "test_settling_a_delivery_that_was_handed_out_again_is_stale"),
    (
        broken_queues.AcceptsWhatIsStale,
        "test_what_is_not_settled_in_time_is_handed_out_again_and_the_late_one_is_stale",
    ),
    (broken_queues.NeverTakesBack, "test_what_is_not_settled_in_time_is_handed_out_again_and_the_late_one_is_stale"),
    (broken_queues.TakesBackTooSoon, "test_what_is_not_settled_in_time_is_handed_out_again_and_the_late_one_is_stale"),
    (broken_queues.NeverCloses, "test_a_queue_that_was_closed_is_not_used"),
    (broken_queues.ForgetsWhatIsReleased, "test_what_is_released_is_handed_out_again_and_is_not_counted"),
    (broken_queues.CountsWhatIsReleased, "test_what_is_released_is_handed_out_again_and_is_not_counted"),
    (broken_queues.DoesNotCount, "test_deliveries_are_counted"),
    (broken_queues.HasOneOffset, "test_the_offset_tells_records_apart_and_stays_the_same"),
    (broken_queues.HasNoName, "test_the_queue_has_a_name"),
    (broken_queues.DoesNotExtend, "test_what_is_extended_is_not_handed_out_again"),
    (broken_queues.CountsWhatIsHeld, "test_what_waits_is_counted_and_what_somebody_has_is_not"),
    (broken_queues.SettlesAllButTheLast, "test_many_are_settled_at_once"),
]

CRASH_DEFECTS: Final[list[tuple[Callable[[Path], SqliteQueue], str, str]]] = [
    (sqlite_queue.SendsLater, SENDER, "and then none"),
    (sqlite_queue.SettlesLater, RECEIVER, "came again"),
    (sqlite_queue.ForgetsWhatIsHandedOut, RECEIVER, "and then none"),
]

TestSqliteQueue = conformance.queue(SqliteQueue, visibility_s=sqlite_queue.VISIBILITY_S)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that waits for what a broken backend never does gives up soon."""
    monkeypatch.setattr(SUITE, "COME_S", 1.2)


@pytest.mark.parametrize(("factory", "case"), DEFECTS)
@pytest.mark.usefixtures("impatient")
def test_a_defect_of_a_queue_is_caught(factory: Callable[[], MemoryQueue], case: str) -> None:
    cases = make_cases(factory, visibility_s=broken_queues.VISIBILITY_S)
    assert complaint_of(cases, case) is not None


@pytest.mark.parametrize(("factory", "case", "says"), CRASH_DEFECTS)
def test_a_defect_that_a_kill_brings_to_light_is_caught(
    factory: Callable[[Path], SqliteQueue], case: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SUITE, "COME_S", 2.5)
    assert says in str(complaint_of(make_cases(factory, visibility_s=sqlite_queue.VISIBILITY_S), case))


def test_a_queue_without_order_is_not_asked_for_it() -> None:
    cases = make_cases(MemoryQueue, ordered=False)
    reason = reason_for_skipping(cases, "test_records_come_in_the_order_in_which_they_were_sent")
    assert reason == "does not apply: the queue does not keep the order"


def test_every_case_of_the_suite_is_shown_to_bite() -> None:
    shown = {case for _, case in DEFECTS} | {case for _, case, _ in CRASH_DEFECTS}
    outages = set(dir(QueueOutageCases))  # test_outage_cases_bite has those
    assert shown == {name for name in set(dir(QueueCases)) - outages if name.startswith("test_")}
