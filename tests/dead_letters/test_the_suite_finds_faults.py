"""A suite that lets faults pass proves nothing: here each fault is found by the case that is there to find it."""

from __future__ import annotations

import unittest

import pytest

from penstock.abc import DeadLetters
from penstock.testing.conformance.letters import dead_letters
from tests.dead_letters import broken

FAULTS = {
    "KeepsTheOlder": "the_newer_of_two_failures_is_kept",
    "KeepsTheLastPut": "the_newer_of_two_failures_is_kept",
    "MovesWhatIsPutAgain": "paging_goes_on_when_letters_leave_the_filter_or_come_back",
    "KeepsTheStateOfWhatIsPutAgain": "a_letter_that_comes_back_while_it_is_redriven_is_not_taken_for_redriven",
    "ForgetsTheRedrives": "a_redriven_letter_that_fails_again_is_waiting_with_the_newer_error",
    "RevivesTheDiscarded": "a_discarded_letter_is_waiting_only_when_its_record_fails_again",
    "PutsInTheStateGiven": "letters_are_waiting_when_they_are_put",
    "TakesNoneForEmpty": "records_are_kept_to_the_byte",
    "TakesKeysForText": "records_are_kept_to_the_byte",
    "TakesHeadersForADictionary": "records_are_kept_to_the_byte",
    "CutsLargeValues": "records_of_any_size_are_kept_whole",
    "CutsTheEndOfTracebacks": "long_and_odd_texts_harm_nothing",
    "RefusesOddTexts": "long_and_odd_texts_harm_nothing",
    "BeginsAnewAfterAnUnknownLetter": "a_page_after_an_unknown_letter_is_refused",
    "LooksForTheLastSeenAmongTheMatching": "paging_goes_on_when_letters_leave_the_filter_or_come_back",
    "OrdersByTime": "letters_come_in_the_order_in_which_they_were_put",
    "IgnoresTheLimit": "pages_of_any_size_give_each_letter_once",
    "IgnoresCase": "filters_give_what_matches",
    "IncludesTheEndOfATime": "filters_give_what_matches",
    "CountsTheWaitingOnly": "filters_give_what_matches",
    "TakesForShow": "taken_letters_are_given_and_marked",
    "TakesTheRedriven": "a_redriven_letter_counts_its_redrives",
    "TakesTheDiscarded": "discarded_letters_stay_and_are_not_taken",
    "LeavesWhatIsTaken": "only_the_last_taker_settles",
    "TakesInAnyOrder": "taken_letters_are_given_and_marked",
    "SettlesForAnybody": "only_the_last_taker_settles",
    "SettlesWhatNobodyTook": "settling_what_nobody_took_changes_nothing",
    "CountsNoRedrives": "a_redriven_letter_counts_its_redrives",
    "CountsAllThatAreDiscarded": "discarded_letters_stay_and_are_not_taken",
    "RemovesTheDiscarded": "discarded_letters_stay_and_are_not_taken",
    "KeepsThemInMemoryForAWhile": "what_was_put_survives_a_kill",
    "SettlesInMemory": "what_was_settled_and_discarded_survives_a_kill",
    "PutsInTwoSteps": "a_kill_in_the_middle_of_a_put_leaves_letters_whole_and_usable",
    "MergesOutsideTheDatabase": "of_failures_that_are_put_at_once_the_newest_is_kept",
    "ReadsThenWrites": "letters_are_redriven_once_by_competing_takers",
    "MindsASecondClose": "closing_twice_is_no_error",
}


def run_case(opening: type[DeadLetters], case: str) -> unittest.TestResult:
    result = unittest.TestResult()
    dead_letters(opening)(f"test_{case}").run(result)
    return result


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found(fault: str) -> None:
    attempts = 5 if fault == "PutsInTwoSteps" else 1  # that one shows when the kill comes at the right moment
    for _ in range(attempts):
        result = run_case(getattr(broken, fault), FAULTS[fault])
        assert result.testsRun == 1
        assert not result.skipped
        if result.failures or result.errors:
            return
    pytest.fail(f"{fault} passed {FAULTS[fault]}")


def test_every_broken_implementation_is_tried() -> None:
    names = {name for name, kind in vars(broken).items() if isinstance(kind, type) and issubclass(kind, broken.Sound)}
    assert names - {"Sound", "ChangesRecords"} == set(FAULTS)


def test_a_memory_only_backend_skips_what_needs_a_disk() -> None:
    result = unittest.TestResult()
    dead_letters(broken.Sound, frozenset())("test_what_was_put_survives_a_kill").run(result)
    ((_, reason),) = result.skipped
    assert "memory beyond the process" in reason
