"""The suite for checkpoint stores notices each broken promise: a suite that everything passes proves nothing."""

from __future__ import annotations

import os
import unittest

import pytest

from penstock.testing.conformance.checkpoints import checkpoint_store
from penstock.testing.conformance.suite import SEED_VARIABLE
from tests.checkpoints import broken_stores as broken
from tests.checkpoints.spoiling import spoil_sqlite

CAUGHT_BY: dict[type[broken.Store], str] = {
    broken.ClaimsWithoutLookingAtTheBeat: "test_a_claim_of_what_is_not_as_it_was_seen_gets_nothing",
    broken.ClaimsWhatIsThereAsIfItWereNot: "test_a_claim_of_what_is_not_as_it_was_seen_gets_nothing",
    broken.GrantsTheSameEpochAgain: "test_the_first_claim_has_epoch_1_and_each_one_after_it_one_more",
    broken.LooksFirstAndWritesThen: "test_of_many_threads_that_claim_at_once_one_gets_it",
    broken.RenewsForAnybody: "test_who_lost_a_lease_cannot_renew_it",
    broken.ForgetsTheEpochAtRelease: "test_a_released_lease_keeps_its_epoch_and_can_be_claimed",
    broken.ReleasesForAnybody: "test_releasing_what_another_holds_changes_nothing",
    broken.SavesForAnybody: "test_who_lost_the_lease_can_save_nothing_of_a_change",
    broken.SavesForAnyEpochOfTheOwner: "test_who_lost_the_lease_can_save_nothing_of_a_change",
    broken.ChecksTheLeaseAndSavesThen: "test_among_processes_no_lease_is_held_twice",
    broken.TellsBeforeItIsRefused: "test_who_lost_the_lease_can_save_nothing_of_a_change",
    broken.SavesPieceByPiece: "test_after_a_kill_a_change_is_there_as_a_whole_or_not_at_all",
    broken.AcknowledgesBeforeItSaves: "test_what_is_saved_is_loaded_with_everything_in_it",
    broken.KeepsFewRuns: "test_the_set_of_finished_records_may_be_large",
    broken.CutsPointersTo64Bits: "test_pointers_may_be_of_any_size",
    broken.MixesLargeAndSmallLetters: "test_names_may_be_odd",
    broken.KeepsStateThatIsGone: "test_state_is_set_changed_and_removed_key_by_key",
    broken.TellsTheOldestLines: "test_history_tells_all_lines_oldest_first_with_everything_in_them",
    broken.FindsOnlyTheFirstOfARun: "test_history_of_a_record_is_found_also_in_the_middle_of_a_run",
    broken.ForgetsHistoryTooSoon: "test_history_that_is_not_to_be_forgotten_stays",
    broken.ForgetsKeysTooSoon: "test_idempotency_keys_within_the_window_are_not_forgotten",
    broken.RemembersKeysForEveryTopic: "test_idempotency_keys_are_remembered_for_their_group_and_topic",
    broken.ForgetsGroupsInUse: "test_a_group_in_use_is_not_forgotten",
    broken.BeginsEpochsAnewAfterForgetting: "test_a_forgotten_group_is_gone_and_its_old_owners_stay_fenced",
    broken.ListsOtherGroupsToo: "test_checkpoints_are_told_apart_by_group_topic_and_partition",
    broken.GuessesWhenDamaged: "test_a_damaged_checkpoint_is_an_error_that_names_it_and_a_new_one_can_be_saved",
    broken.EffectsFirstCheckpointThen: "test_who_lost_the_lease_commits_no_effect",
    broken.LetsUsersCommit: "test_ending_the_transaction_from_inside_is_refused",
}
BY_THE_WALK = (
    broken.ClaimsWhatIsThereAsIfItWereNot,
    broken.SavesForAnybody,
    broken.RenewsForAnybody,
    broken.ReleasesForAnybody,
    broken.TellsBeforeItIsRefused,
    broken.KeepsStateThatIsGone,
    broken.AcknowledgesBeforeItSaves,
)
CHANCES = 5
"""A race, and a kill in a window of time, are not hit each time."""


@pytest.mark.parametrize("store", CAUGHT_BY, ids=lambda store: store.__name__)
def test_a_broken_store_is_caught(store: type[broken.Store]) -> None:
    assert any(not passes(store, CAUGHT_BY[store]) for _ in range(CHANCES))


@pytest.mark.parametrize("store", BY_THE_WALK, ids=lambda store: store.__name__)
def test_the_random_walk_meets_a_broken_promise(store: type[broken.Store], monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get(SEED_VARIABLE, "0"))
    for chance in range(CHANCES):
        monkeypatch.setenv(SEED_VARIABLE, str(seed + chance))  # with one seed, every walk would be the same
        if not passes(store, "test_a_random_walk_agrees_with_a_model"):
            return
    pytest.fail(f"{CHANCES} walks did not meet the broken promise of {store.__name__}")


def test_two_transactions_in_place_of_one_are_caught_by_a_kill_or_a_race() -> None:
    store = broken.EffectsFirstCheckpointThen
    cases = (
        "test_after_a_kill_there_are_as_many_effects_as_the_checkpoint_says",
        "test_two_processes_that_take_the_lease_from_each_other_have_each_effect_once",
    )
    assert any(not passes(store, case) for _ in range(CHANCES) for case in cases)


def passes(store: type[broken.Store], case: str) -> bool:
    result = unittest.TestResult()
    checkpoint_store(store, spoil=spoil_sqlite)(case).run(result)
    assert result.testsRun == 1, f"there is no case {case}"
    assert not result.skipped, f"{case} was skipped: {result.skipped}"
    for _, trace in (*result.errors, *result.failures):
        assert "TypeError" not in trace, f"{store.__name__} is broken in another way than it should be:\n{trace}"
    return result.wasSuccessful()
