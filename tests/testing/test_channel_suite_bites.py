"""Each defect of a channel is caught by the case that is there for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import pytest

from penstock.testing import TcpProxy
from penstock.testing.conformance import channel as make_cases
from penstock.testing.conformance.channels import ChannelCases
from tests.testing import broken_channels as broken
from tests.testing.running_cases import complaint_of, reason_for_skipping

SUITE: Final = "penstock.testing.conformance.channels"

LISTENERS: Final[list[tuple[Callable[..., Any], str]]] = [
    (broken.HasOneOffset, "test_records_carry_the_name_of_the_channel_and_offsets_that_differ"),
    (broken.HasAnotherName, "test_records_carry_the_name_of_the_channel_and_offsets_that_differ"),
    (broken.IgnoresTheLimit, "test_listen_returns_at_most_the_limit_and_the_rest_later"),
    (broken.WaitsTooLong, "test_listen_returns_as_soon_as_there_is_a_record"),
    (broken.DoesNotWait, "test_listen_without_records_ends_once_the_wait_is_over"),
    (broken.HasNoBuffer, "test_what_arrives_between_two_calls_of_listen_waits"),
    (broken.CountsTooMany, "test_nothing_is_counted_as_lost_while_everything_arrives"),
    (broken.HasABadName, "test_the_name_can_be_that_of_a_topic"),
    (broken.PromisesAnswers, "test_what_the_features_say_is_there_and_nothing_else"),
    (broken.SleepsWhenClosed, "test_close_ends_a_listen_that_waits_and_is_final"),
    (broken.IsUsedWhenClosed, "test_close_ends_a_listen_that_waits_and_is_final"),
    (broken.KeepsItsAddress, "test_an_address_is_free_once_its_channel_is_closed"),
    (broken.Lossy, "test_what_another_process_sends_arrives"),
]
SENDERS: Final[list[tuple[Callable[..., Any], str]]] = [
    (broken.LosesOne, "test_what_is_sent_while_somebody_listens_arrives_once"),
    (broken.RepeatsOne, "test_what_is_sent_while_somebody_listens_arrives_once"),
    (broken.Reverses, "test_records_of_one_sender_arrive_in_order"),
    (broken.StripsValues, "test_values_arrive_as_they_were"),
    (broken.SpellsNull, "test_a_null_value_arrives_as_null_or_empty"),
    (broken.Lossy, "test_a_value_that_is_too_large_is_refused_and_others_pass"),
    (broken.LosesKeys, "test_keys_arrive_as_they_were"),
    (broken.LosesHeaders, "test_headers_arrive_as_they_were"),
    (broken.LosesTimes, "test_times_arrive_as_they_were"),
    (broken.HasNoBuffer, "test_what_arrives_between_two_calls_of_listen_waits"),
    (broken.WaitsForNothing, "test_nothing_to_send_is_sent_at_once"),
    (broken.TakesFiveHundred, "test_many_records_of_one_call_arrive"),
    (broken.HearsOneSender, "test_the_records_of_several_senders_arrive"),
    (broken.IsUsedWhenClosed, "test_a_sender_that_was_closed_is_not_used"),
]
LIMITED: Final[list[tuple[Callable[..., Any], str]]] = [
    (broken.Unbounded, "test_a_buffer_with_little_room_is_bounded_and_what_is_lost_is_counted"),
    (broken.CountsTooFew, "test_a_buffer_with_little_room_is_bounded_and_what_is_lost_is_counted"),
]
ANSWERS: Final[list[tuple[Callable[..., Any], str]]] = [
    (broken.ReturnsEarly, "test_send_returns_once_every_record_is_acknowledged"),
    (broken.LosesTheReason, "test_a_refusal_reaches_the_sender_with_its_reason"),
    (broken.IsAlwaysRetriable, "test_a_refusal_reaches_the_sender_with_its_reason"),
    (broken.ForgetsOneRefusal, "test_one_refused_record_of_many_is_an_error"),
    (broken.WaitsForEver, "test_no_answer_in_time_is_an_error_and_a_late_one_is_harmless"),
    (broken.TakesLateAnswers, "test_no_answer_in_time_is_an_error_and_a_late_one_is_harmless"),
    (broken.AnswersAllAlike, "test_each_of_many_senders_gets_its_own_answer"),
    (broken.Swallows, "test_a_listener_that_is_closed_before_it_answers_is_an_error_for_the_sender"),
    (broken.Swallows, "test_sending_while_nobody_listens_is_an_error"),
]
PROCESSES: Final[list[tuple[type[Any], type[Any], str]]] = [
    (
        broken.Listening,
        broken.SwallowsWhenKilled,
        "test_a_listener_that_is_killed_before_it_answers_is_an_error_for_the_sender",
    ),
    (broken.AcknowledgesAtOnce, broken.Asking, "test_what_a_killed_listener_acknowledged_is_all_that_was_sent"),
    (broken.NeedsALivingSender, broken.TellsItsProcess, "test_the_answer_to_a_killed_sender_is_harmless"),
    (
        broken.HearsTheFirstSender,
        broken.PusherThatTellsItsProcess,
        "test_a_listener_hears_the_sender_that_follows_a_killed_one",
    ),
    (broken.ListensOnce, broken.Pusher, "test_a_sender_reaches_the_listener_that_follows_a_killed_one"),
    (broken.Puller, broken.Blocks, "test_sending_while_nobody_listens_does_not_hang"),
    (broken.Puller, broken.StaysBroken, "test_records_arrive_again_when_connections_were_cut"),
    (broken.NeedsAFastNetwork, broken.Publisher, "test_records_arrive_over_a_slow_network"),
    (broken.Puller, broken.HangsWithTheNetwork, "test_no_call_hangs_when_the_other_side_does_not_answer"),
]
DIRECTION: Final = "test_the_direction_that_a_channel_does_not_have_is_refused"
DROPPED: Final = "test_what_the_transport_has_no_place_for_is_dropped"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that waits for what a broken channel never does gives up soon."""
    for name in ("", ".suite", ".answers", ".recovery"):
        module = importlib.import_module(SUITE + name)
        for constant, value in (("COME_S", 1.2), ("HANG_S", 2.0), ("RECOVERY_S", 5.0)):
            if hasattr(module, constant):
                monkeypatch.setattr(module, constant, value)


@pytest.mark.parametrize(("listener", "case"), LISTENERS)
def test_a_defect_of_a_listener_is_caught(listener: Callable[..., Any], case: str) -> None:
    sender = listener if listener is broken.HasNoBuffer else broken.Lossy
    assert complaint_of(make_cases(listener, sender), case) is not None


@pytest.mark.parametrize(("sender", "case"), SENDERS)
def test_a_defect_of_a_sender_is_caught(sender: Callable[..., Any], case: str) -> None:
    listener = sender if sender is broken.HasNoBuffer else broken.Lossy
    assert complaint_of(make_cases(listener, sender, too_large_bytes=1 << 20), case) is not None


@pytest.mark.parametrize(("limited", "case"), LIMITED)
def test_a_defect_of_a_buffer_is_caught(limited: Callable[..., Any], case: str) -> None:
    assert complaint_of(make_cases(broken.Lossy, broken.Lossy, limited=limited), case) is not None


@pytest.mark.parametrize(("channel", "case"), ANSWERS)
def test_a_defect_of_answers_is_caught(channel: Callable[..., Any], case: str) -> None:
    assert complaint_of(make_cases(channel, channel, answer_s=broken.ANSWER_S), case) is not None


@pytest.mark.parametrize(("listener", "sender", "case"), PROCESSES)
def test_a_defect_that_a_kill_or_a_broken_network_brings_to_light_is_caught(
    listener: type[Any], sender: type[Any], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze, cut = TcpProxy.freeze, TcpProxy.cut

    def tell_and_freeze(proxy: TcpProxy) -> None:
        broken.FROZEN.set()
        freeze(proxy)

    def tell_and_cut(proxy: TcpProxy) -> None:
        broken.CUT.set()
        cut(proxy)

    monkeypatch.setattr(TcpProxy, "freeze", tell_and_freeze)
    monkeypatch.setattr(TcpProxy, "cut", tell_and_cut)
    try:
        assert complaint_of(make_cases(listener, sender, network=True), case) is not None
    finally:
        broken.FROZEN.clear()
        broken.CUT.clear()


def test_a_channel_that_only_listens_refuses_to_send() -> None:
    assert "ConfigError was to be raised" in str(complaint_of(make_cases(broken.Lossy, broken.StandIn), DIRECTION))


def test_a_channel_without_keys_that_refuses_them_is_caught() -> None:
    assert complaint_of(make_cases(broken.RefusesKeys, broken.RefusesKeys), DROPPED) is not None


@pytest.mark.parametrize(("listener", "sender", "case"), PROCESSES)
def test_a_channel_without_a_defect_passes(
    listener: type[Any], sender: type[Any], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the cases complain of is the defect, not the impatience of these tests."""
    listener, sender = (side if side.__doc__ == "Without a defect." else side.__mro__[1] for side in (listener, sender))
    monkeypatch.undo()
    assert complaint_of(make_cases(listener, sender, network=True), case) is None


def test_what_a_channel_does_not_keep_is_not_asked_for() -> None:
    cases = make_cases(broken.Lossy, broken.Lossy, ordered=False, timestamps=False)
    assert "does not keep the order" in str(reason_for_skipping(cases, "test_records_of_one_sender_arrive_in_order"))
    assert "does not carry timestamps" in str(reason_for_skipping(cases, "test_times_arrive_as_they_were"))


def test_every_case_of_the_suite_is_shown_to_bite() -> None:
    shown = {case for _, case in (*LISTENERS, *SENDERS, *LIMITED, *ANSWERS)} | {case for *_, case in PROCESSES}
    assert shown | {DIRECTION, DROPPED} == {name for name in dir(ChannelCases) if name.startswith("test_")}
