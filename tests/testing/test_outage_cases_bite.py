"""Each defect in the face of an outage is caught by the case that is there for it, and nothing else is."""

from __future__ import annotations

import importlib
from typing import Final

import pytest

from penstock.abc import Feature
from penstock.queues.memory import FEATURES as QUEUE_FEATURES
from penstock.streams.memory.streams import FEATURES as STREAM_FEATURES
from penstock.streams.memory.streams import MemoryTopicStream
from penstock.testing import conformance
from penstock.testing.conformance import outages
from penstock.testing.conformance.queue import QueueCases, QueueOutageCases
from penstock.testing.conformance.streams import StreamCases
from penstock.testing.conformance.streams import outages as stream_outages
from penstock.testing.conformance.streams.outages import StreamOutageCases
from penstock.testing.conformance.streams.suite import StreamSuite
from tests.testing import broken_queues, broken_recovery, broken_streams
from tests.testing.broken_recovery import WORLD
from tests.testing.running_cases import complaint_of, reason_for_skipping

QUEUE_SUITE: Final = importlib.import_module("penstock.testing.conformance.queue")

STREAM_APPEND: Final = "test_an_append_to_a_server_that_does_not_answer_ends_and_nothing_acknowledged_is_lost"
STREAM_DEFECTS: Final[list[tuple[type[MemoryTopicStream], str]]] = [
    (broken_recovery.LosesWhenKilled, "test_nothing_acknowledged_is_lost_when_the_server_is_killed"),
    (broken_recovery.LosesWhenCut, "test_nothing_acknowledged_is_lost_when_connections_are_cut"),
    (broken_recovery.StaysBroken, "test_a_reader_goes_on_by_itself_when_the_server_was_killed"),
    (broken_recovery.StaysBroken, "test_a_reader_goes_on_by_itself_when_its_connection_was_cut"),
    (broken_recovery.NeedsAFastNetwork, "test_a_slow_network_changes_nothing"),
    (broken_recovery.Hangs, "test_no_call_hangs_on_a_server_that_does_not_answer"),
    (broken_recovery.LosesWhenFrozen, STREAM_APPEND),
    (broken_recovery.HangsWhenAppending, STREAM_APPEND),
]
QUEUE_SEND: Final = "test_sending_and_settling_end_when_the_server_does_not_answer_and_nothing_acknowledged_is_lost"
QUEUE_DEFECTS: Final[list[tuple[type[broken_queues.ShortQueue], str]]] = [
    (broken_recovery.QueueForgets, "test_no_record_is_lost_when_the_server_is_killed"),
    (broken_recovery.QueueForgets, "test_no_record_is_lost_when_connections_are_cut"),
    (broken_recovery.QueueStoresLater, "test_no_record_is_lost_when_the_server_is_killed"),
    (broken_recovery.QueueStorms, "test_no_record_is_lost_when_the_server_is_killed"),
    (broken_recovery.QueueStorms, "test_no_record_is_lost_when_connections_are_cut"),
    (broken_recovery.QueueNeedsAFastNetwork, "test_a_slow_network_changes_nothing"),
    (broken_recovery.QueueHangs, "test_no_call_hangs_on_a_server_that_does_not_answer"),
    (broken_recovery.QueueHangsWhenSending, QUEUE_SEND),
    (broken_recovery.QueueHangsWhenSettling, QUEUE_SEND),
    (broken_recovery.QueueLosesWhenFrozen, QUEUE_SEND),
]


def stream_cases(kind: type[MemoryTopicStream]) -> type[StreamCases]:
    return conformance.stream(
        broken_streams.with_streams_of(kind), STREAM_FEATURES | {Feature.DURABLE}, outage=lambda: WORLD
    )


def queue_cases(kind: type[broken_queues.ShortQueue]) -> type[QueueCases]:
    return conformance.queue(
        kind, QUEUE_FEATURES | {Feature.DURABLE}, visibility_s=broken_queues.VISIBILITY_S, outage=lambda: WORLD
    )


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that waits for what a broken backend never does gives up soon."""
    WORLD.reset()
    monkeypatch.setattr(outages, "RECOVERY_S", 2.0)
    for module in (stream_outages, QUEUE_SUITE):
        monkeypatch.setattr(module, "HANG_S", 1.0)
    monkeypatch.setattr(QUEUE_SUITE, "COME_S", 1.2)
    monkeypatch.setattr(QUEUE_SUITE, "WRITE_S", 1.0)


@pytest.mark.parametrize(("kind", "case"), STREAM_DEFECTS)
def test_a_defect_of_a_stream_is_caught(kind: type[MemoryTopicStream], case: str) -> None:
    assert complaint_of(stream_cases(kind), case) is not None


@pytest.mark.parametrize(("kind", "case"), QUEUE_DEFECTS)
def test_a_defect_of_a_queue_is_caught(kind: type[broken_queues.ShortQueue], case: str) -> None:
    assert complaint_of(queue_cases(kind), case) is not None


@pytest.mark.parametrize("case", [case for _, case in STREAM_DEFECTS])
def test_a_stream_that_recovers_is_content(case: str) -> None:
    assert complaint_of(stream_cases(broken_recovery.Recovers), case) is None


@pytest.mark.parametrize("case", [case for _, case in QUEUE_DEFECTS])
def test_a_queue_that_recovers_is_content(case: str) -> None:
    assert complaint_of(queue_cases(broken_recovery.QueueRecovers), case) is None


def test_without_a_server_to_kill_the_cases_are_skipped() -> None:
    reason = reason_for_skipping(
        conformance.stream(broken_streams.with_streams_of(MemoryTopicStream)), "test_a_slow_network_changes_nothing"
    )
    assert reason == "does not apply: no outage= was given, so there is no server to kill"


def test_every_outage_case_is_shown_to_bite() -> None:
    for cases, suite, defects in (
        (StreamOutageCases, StreamSuite, {case for _, case in STREAM_DEFECTS}),
        (QueueOutageCases, QUEUE_SUITE.QueueSuite, {case for _, case in QUEUE_DEFECTS}),
    ):
        assert defects == {name for name in set(dir(cases)) - set(dir(suite)) if name.startswith("test_")}
