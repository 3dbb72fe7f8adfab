"""A suite that cannot fail is worth nothing: each defect here is caught by the case that is there for it."""

from __future__ import annotations

from typing import Final

import pytest

from penstock.streams.memory import MemoryStream
from penstock.streams.memory.streams import MemoryFeed, MemoryTopicStream
from penstock.testing import conformance
from penstock.testing.conformance.streams import StreamCases
from penstock.testing.conformance.streams import feeding as stream_feeding
from penstock.testing.conformance.streams import groups as stream_groups
from penstock.testing.conformance.streams import reading as stream_reading
from penstock.testing.conformance.streams import suite as stream_suite
from penstock.testing.conformance.streams.outages import StreamOutageCases
from tests.testing import broken_feeds, broken_streams, memory_groups
from tests.testing.running_cases import complaint_of, reason_for_skipping

STREAM_DEFECTS: Final[list[tuple[type[MemoryTopicStream], str]]] = [
    (broken_streams.TurnsAppendsAround, "test_records_are_read_in_the_order_in_which_they_were_appended"),
    (broken_streams.ForgetsWhatWasRead, "test_reading_changes_nothing"),
    (broken_streams.LeavesGaps, "test_consecutive_records_have_consecutive_pointers"),
    (broken_streams.IgnoresTheLimit, "test_a_batch_has_at_most_as_many_records_as_were_asked_for"),
    (broken_streams.SkipsARecord, "test_reading_goes_on_at_the_next_of_a_batch_without_gap_or_overlap"),
    (broken_streams.RepeatsARecord, "test_reading_goes_on_at_the_next_of_a_batch_without_gap_or_overlap"),
    (broken_streams.StartsElsewhere, "test_one_more_than_the_pointer_of_a_record_is_the_place_behind_it"),
    (broken_streams.DoesNotWait, "test_a_read_at_the_end_gives_an_empty_batch_once_the_wait_is_over"),
    (broken_streams.WaitsTooLong, "test_a_waiting_read_returns_as_soon_as_there_is_a_record"),
    (broken_streams.LosesNone, "test_values_come_back_as_they_were"),
    (broken_streams.LosesEmptyKeys, "test_keys_come_back_as_they_were"),
    (broken_streams.KeepsOneHeaderOfAName, "test_headers_come_back_as_they_were"),
    (
        broken_streams.StampsEverythingTheSame,
        "test_a_record_without_a_timestamp_gets_the_time_when_it_was_appended",
    ),
    (broken_streams.ScattersKeys, "test_records_of_one_key_are_in_one_partition_in_their_order"),
    (broken_streams.PutsAllKeysInOnePartition, "test_records_of_one_key_are_in_one_partition_in_their_order"),
    (broken_streams.PutsAllKeysInOnePartition, "test_a_record_goes_to_the_partition_that_was_chosen"),
    (broken_streams.StoresTwice, "test_many_appends_under_way_at_once_keep_their_order"),
    (
        broken_streams.DropsUnderPressure,
        "test_what_threads_append_at_the_same_time_is_all_stored_once_and_in_the_order_of_each",
    ),
    (broken_streams.LiesAboutPlaces, "test_there_is_a_receipt_for_each_record_that_says_where_it_stands"),
    (broken_streams.ForgetsAReceipt, "test_there_is_a_receipt_for_each_record_that_says_where_it_stands"),
    (broken_streams.NeverSettlesTheLast, "test_close_settles_what_is_under_way"),
    (broken_streams.AcceptsAnyPartition, "test_a_record_for_a_partition_that_does_not_exist_is_refused"),
    (broken_streams.NeverCloses, "test_what_is_appended_after_close_is_refused"),
    (broken_streams.NeverCloses, "test_a_stream_that_was_closed_is_not_read"),
    (broken_streams.LatestIsTheLastRecord, "test_earliest_is_the_first_record_and_latest_is_behind_the_last"),
    (broken_streams.EarliestIsTheSecondRecord, "test_earliest_is_the_first_record_and_latest_is_behind_the_last"),
    (broken_streams.FindsTheLastOfATime, "test_a_position_at_a_time_is_the_first_record_from_then_on"),
    (broken_streams.RoundsPointers, "test_a_position_at_a_pointer_is_that_pointer"),
    (broken_streams.AcceptsTimesWithoutHavingThem, "test_a_position_at_a_time_is_refused"),
    (broken_streams.SpanEndsAtTheLastRecord, "test_the_span_begins_at_the_first_record_and_ends_behind_the_last"),
    (broken_streams.KnowsEveryPartition, "test_a_partition_that_does_not_exist_is_an_unknown_topic_error"),
    (broken_streams.SkipsWhatExpired, "test_records_that_expired_are_never_skipped_silently"),
    (broken_streams.HasOneCursorForAll, "test_threads_can_read_at_the_same_time"),
    (broken_streams.TakesAThousandAtMost, "test_one_append_takes_many_records"),
    (broken_streams.KnowsEveryTopic, "test_a_topic_that_does_not_exist_is_an_unknown_topic_error"),
    (broken_streams.MixesPartitionsUp, "test_partitions_are_read_apart_from_each_other"),
    (broken_streams.ClosesOnce, "test_closing_twice_does_no_harm"),
    (broken_streams.GivesAReceiptForNothing, "test_appending_nothing_gives_no_receipts"),
    (broken_streams.HasARecordFromTheStart, "test_a_new_topic_is_empty_and_can_be_read"),
    (broken_streams.SaysItHasGroups, "test_a_stream_has_groups_of_its_own_if_it_says_so"),
]

FEED_DEFECTS: Final[list[tuple[type[MemoryFeed], str]]] = [
    (broken_feeds.Overlaps, "test_a_feed_gives_every_record_once_and_in_order"),
    (broken_feeds.IgnoresTheLimit, "test_a_feed_gives_every_record_once_and_in_order"),
    (broken_feeds.ServesOnePartitionOnly, "test_a_feed_gives_the_records_of_all_its_partitions"),
    (broken_feeds.DoesNotPause, "test_a_paused_partition_gives_nothing_and_goes_on_where_it_was"),
    (broken_feeds.LosesWhatItHeldWhenPaused, "test_a_paused_partition_gives_nothing_and_goes_on_where_it_was"),
    (broken_feeds.DoesNotRemove, "test_a_removed_partition_gives_nothing_and_can_come_back_elsewhere"),
    (broken_feeds.IgnoresASecondAdd, "test_a_partition_that_is_added_again_goes_on_elsewhere"),
    (broken_feeds.CannotBeWoken, "test_wake_ends_a_poll_that_waits_and_also_one_that_is_about_to"),
    (broken_feeds.ForgetsToBeWoken, "test_wake_ends_a_poll_that_waits_and_also_one_that_is_about_to"),
    (broken_feeds.Spins, "test_a_poll_without_records_ends_once_the_wait_is_over"),
    (broken_feeds.Spins, "test_a_feed_without_partitions_waits_too"),
    (broken_feeds.SkipsWhatExpired, "test_a_partition_whose_records_expired_is_removed_and_the_others_go_on"),
    (broken_feeds.BeginsAtTheStart, "test_a_feed_begins_where_it_is_told_to"),
    (broken_feeds.WaitsTooLong, "test_a_waiting_poll_returns_as_soon_as_there_is_a_record"),
    (broken_feeds.LosesKeys, "test_a_feed_gives_keys_and_headers_like_a_read"),
    (broken_feeds.StopsAllWhenOneExpires, "test_a_partition_whose_records_expired_is_removed_and_the_others_go_on"),
]


CRASHES: Final = {
    "test_what_was_stored_is_there_when_the_stream_is_opened_again",
    "test_nothing_acknowledged_is_lost_when_the_appender_is_killed",
    "test_nothing_is_stored_twice_when_the_appender_is_killed",
}
"""See test_durable_streams."""

GROUP_DEFECTS: Final[list[type[memory_groups.FairFeed]]] = [
    memory_groups.HasTwoOwners,
    memory_groups.KeepsServingWhatIsRevoked,
    memory_groups.StartsAnew,
    memory_groups.NeverShares,
    memory_groups.NeverLetsGo,
]
SHARING: Final = "test_members_of_a_group_share_its_partitions_and_nobody_has_one_that_another_has"
COOPERATING: Final = "test_members_of_a_group_share_its_partitions_when_they_cooperate"

SYSTEM_DEFECTS: Final[list[tuple[type[MemoryStream], str]]] = [
    (broken_streams.HidesTopics, "test_topics_are_listed_and_not_created_twice"),
    (broken_streams.CreatesTwice, "test_topics_are_listed_and_not_created_twice"),
    (broken_streams.CreatesWithoutPartitions, "test_a_topic_has_at_least_one_partition"),
]


def cases_for(kind: type[MemoryTopicStream]) -> type[StreamCases]:
    return conformance.stream(broken_streams.with_streams_of(kind), expire=MemoryStream.expire)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that waits for what a broken backend never does gives up soon."""
    for module in (stream_suite, stream_reading, stream_feeding, stream_groups):
        monkeypatch.setattr(module, "SETTLE_S", 0.5)
    monkeypatch.setattr(stream_suite, "WAIT_S", 0.5)


@pytest.mark.parametrize(("kind", "case"), STREAM_DEFECTS)
def test_a_defect_of_a_stream_is_caught(kind: type[MemoryTopicStream], case: str) -> None:
    assert complaint_of(cases_for(kind), case) is not None


@pytest.mark.parametrize(("kind", "case"), FEED_DEFECTS)
def test_a_defect_of_a_feed_is_caught(kind: type[MemoryFeed], case: str) -> None:
    assert complaint_of(cases_for(broken_feeds.with_feeds_of(kind)), case) is not None


CHANCES = 5
"""That two members have one partition for a moment is not seen each time."""


@pytest.mark.parametrize("kind", GROUP_DEFECTS)
def test_a_defect_of_a_group_is_caught(kind: type[memory_groups.FairFeed]) -> None:
    for case in (SHARING, COOPERATING):
        suite = cases_for(memory_groups.with_groups_of(kind))
        assert any(complaint_of(suite, case) is not None for _ in range(CHANCES))


def test_a_group_without_defect_is_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_groups, "SETTLE_S", 30.0)
    for case in (SHARING, COOPERATING):
        assert complaint_of(cases_for(memory_groups.with_groups_of(memory_groups.FairFeed)), case) is None


@pytest.mark.parametrize(("kind", "case"), SYSTEM_DEFECTS)
def test_a_defect_of_a_system_of_streams_is_caught(kind: type[MemoryStream], case: str) -> None:
    assert complaint_of(conformance.stream(kind), case) is not None


def test_the_complaint_says_what_was_promised_and_what_was_seen() -> None:
    case = "test_values_come_back_as_they_were"
    assert "value 2, None, came back as b''" in str(complaint_of(cases_for(broken_streams.LosesNone), case))


def test_a_case_that_does_not_apply_is_skipped_with_the_name_of_the_feature() -> None:
    reason = reason_for_skipping(
        conformance.stream(MemoryStream), "test_nothing_acknowledged_is_lost_when_the_appender_is_killed"
    )
    assert reason is not None
    assert "(DURABLE)" in reason


def test_without_a_way_to_expire_records_its_cases_are_skipped() -> None:
    reason = reason_for_skipping(
        conformance.stream(MemoryStream), "test_records_that_expired_are_never_skipped_silently"
    )
    assert reason is not None
    assert "expire=" in reason


def test_features_that_are_declared_count_more_than_those_of_the_backend() -> None:
    cases = conformance.stream(MemoryStream, features=frozenset())
    reason = reason_for_skipping(cases, "test_headers_come_back_as_they_were")
    assert reason is not None
    assert "(HEADERS)" in reason


def test_every_case_of_the_suite_is_shown_to_bite() -> None:
    shown = {case for _, case in [*STREAM_DEFECTS, *FEED_DEFECTS, *SYSTEM_DEFECTS]} | CRASHES | {SHARING, COOPERATING}
    outages = set(dir(StreamOutageCases))  # test_outage_cases_bite has those
    assert shown == {name for name in set(dir(StreamCases)) - outages if name.startswith("test_")}
