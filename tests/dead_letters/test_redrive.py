"""Redrive: what was given up is sent again as it was, in order, within its limits, and in good order when stopped."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.abc import DeadLetters, Feature, Features
from penstock.dead_letters import (
    REDRIVE_GROUP_HEADER,
    REDRIVE_ID_HEADER,
    RedriveReport,
    letter_id_of,
    redrive,
    redrive_of,
)
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError, RecordTooLargeError, UnknownTopicError
from penstock.model import DeadLetter, DeadLetterFilter, LetterState, NewRecord, Receipt, Record
from penstock.model.letter import letter_id, query_row
from penstock.queues import MemoryQueue
from penstock.streams.memory import MemoryStream
from penstock.streams.memory.streams import MemoryTopicStream
from tests.dead_letters.hasty_clock import HastyClock

WAITING, REDRIVEN = LetterState.WAITING, LetterState.REDRIVEN
EVERYTHING = DeadLetterFilter(states=frozenset())


@pytest.fixture
def streams() -> MemoryStream:
    memory = MemoryStream()
    memory.create_topic("orders", 3)
    return memory


@pytest.fixture
def letters(tmp_path: Path) -> Iterator[SqliteDeadLetters]:
    opened = SqliteDeadLetters(tmp_path / "letters.db")
    yield opened
    opened.close()


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


def letter(number: int, topic: str = "orders", **changes: object) -> DeadLetter:
    record = Record(topic, number % 3, 100 + number, b"\xff%d" % number, b"value %d" % number, (("a", None),), 1_000)
    record = replace(record, **changes)  # type: ignore[arg-type]
    return DeadLetter(
        id=letter_id("billing", topic, record.partition, record.offset),
        group="billing",
        record=record,
        error=f"ValueError: {number}",
        error_kind="ValueError",
        traceback="Traceback …",
        attempts=1,
        first_ms=1,
        last_ms=number,
        handler="bill",
        handler_version="1",
    )


def records(streams: MemoryStream, topic: str = "orders") -> list[Record]:
    stream = streams.open_topic(topic)
    return [record for partition in stream.partitions() for record in stream.read(partition, 0, 10_000, 0)]


def states(letters: DeadLetters) -> list[LetterState]:
    return [each.state for each in letters.browse(EVERYTHING, 10_000)]


def test_records_are_sent_again_as_they_were(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock
) -> None:
    put = [
        letter(0, value=None),
        letter(1, key=None),
        letter(2, headers=(("a", b"1"), ("a", None))),
        letter(5, value=b""),
    ]
    letters.put(put)
    assert redrive(letters, streams, DeadLetterFilter(), clock=clock) == RedriveReport(redriven=4)
    found = records(streams)
    assert [record.partition for record in found] == [0, 1, 2, 2], "each in its own partition"
    for original, record in zip(put, found, strict=True):
        assert (record.key, record.value) == (original.record.key, original.record.value)
        assert record.timestamp_ms == original.record.timestamp_ms
        marks = ((REDRIVE_ID_HEADER, f"{original.id}.1".encode()), (REDRIVE_GROUP_HEADER, b"billing"))
        assert record.headers == (*original.record.headers, *marks)
    assert [(each.state, each.redrives) for each in letters.browse(EVERYTHING)] == [(REDRIVEN, 1)] * 4


def test_letters_that_were_dealt_with_are_left_alone(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock
) -> None:
    letters.put([letter(number) for number in range(4)])
    letters.discard([letter(1).id])
    assert redrive(letters, streams, EVERYTHING, clock=clock).redriven == 3
    assert redrive(letters, streams, EVERYTHING, clock=clock) == RedriveReport()
    assert sorted(record.value or b"" for record in records(streams)) == [b"value 0", b"value 2", b"value 3"]


def test_rows_of_a_query_wait_for_who_names_a_topic_and_hold_up_no_others(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock
) -> None:
    streams.create_topic("mended", 1)
    rows = [replace(letter(number), record=query_row("shop.spend", 7, b"{}", ())) for number in range(300)]
    letters.put([*rows, letter(300)])
    report = redrive(letters, streams, DeadLetterFilter(), clock=clock)
    assert (report.redriven, report.failed, report.gave_up) == (1, 300, False)
    assert "row of a pipeline's query" in report.failures[0][1]
    assert "--to TOPIC" in report.failures[0][1]
    assert [record.value for record in records(streams)] == [b"value 300"]
    assert redrive(letters, streams, DeadLetterFilter(), to="mended", clock=clock) == RedriveReport(redriven=300)
    assert [record.value for record in records(streams, "mended")] == [b"{}"] * 300


def test_a_record_that_a_queue_refuses_waits_and_the_others_go_on(
    letters: SqliteDeadLetters, clock: HastyClock
) -> None:
    class Small(MemoryQueue):
        def send(self, records: Sequence[NewRecord]) -> None:
            if any(len(record.value or b"") > 100 for record in records):
                raise RecordTooLargeError("at most 100 bytes")
            super().send(records)

    queue = Small()
    letters.put([letter(0), letter(1, value=bytes(101)), letter(2)])
    report = redrive(letters, queue, DeadLetterFilter(), clock=clock)
    assert (report.redriven, report.failures) == (2, ((letter(1).id, "at most 100 bytes"),))
    assert [each.record.value for each in queue.receive(10, 0.0)] == [b"value 0", b"value 2"]
    assert states(letters) == [REDRIVEN, WAITING, REDRIVEN]


def test_a_queue_that_is_away_ends_the_redrive_and_the_letters_wait(
    letters: SqliteDeadLetters, clock: HastyClock
) -> None:
    class Away(MemoryQueue):
        def send(self, records: Sequence[NewRecord]) -> None:
            raise BrokerUnavailableError("nobody answers")

    letters.put([letter(0), letter(1)])
    with pytest.raises(BrokerUnavailableError, match="nobody answers"):
        redrive(letters, Away(), DeadLetterFilter(), clock=clock)
    assert states(letters) == [WAITING, WAITING]


def test_the_filter_chooses(letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock) -> None:
    letters.put([letter(number) for number in range(6)])
    assert redrive(letters, streams, DeadLetterFilter(partition=1), clock=clock).redriven == 2
    assert {record.partition for record in records(streams)} == {1}


def test_a_record_that_fails_again_is_the_same_letter(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock
) -> None:
    letters.put([letter(0)])
    redrive(letters, streams, DeadLetterFilter(), clock=clock)
    (again,) = records(streams)
    assert letter_id_of("billing", again) == letter(0).id
    assert letter_id_of("shipping", again) == letter_id("shipping", "orders", again.partition, again.offset)
    letters.put([replace(letter(0), record=again, error="KeyError: 1", last_ms=50)])
    (stored,) = letters.browse(DeadLetterFilter())
    assert (stored.state, stored.redrives, stored.error) == (WAITING, 1, "KeyError: 1")

    redrive(letters, streams, DeadLetterFilter(), clock=clock)
    first, second = records(streams)
    assert second.headers == (
        ("a", None),
        (REDRIVE_ID_HEADER, f"{letter(0).id}.2".encode()),
        (REDRIVE_GROUP_HEADER, b"billing"),
    ), "the headers of the first redrive are replaced"
    assert (first.key, first.value, first.timestamp_ms) == (second.key, second.value, second.timestamp_ms)


def test_a_record_that_fails_again_before_its_letter_is_settled_is_not_lost(
    letters: SqliteDeadLetters, clock: HastyClock
) -> None:
    """The consumer is quick: it has put the letter again while the redrive waits for the acknowledgement."""

    class QuickToFail(MemoryTopicStream):
        def append(self, new: Sequence[NewRecord]) -> list[Receipt]:
            receipts = list(super().append(new))
            place = receipts[0].result(1)
            (again,) = self.read(place.partition, place.offset, 1, 1)
            letters.put([replace(letter(0), record=again, last_ms=50)])
            return receipts

    class Quick(MemoryStream):
        def open_topic(self, topic: str) -> MemoryTopicStream:
            return QuickToFail(topic, self._topics)

    streams = Quick(partitions=3)
    streams.create_topic("orders")
    letters.put([letter(0)])
    redrive(letters, streams, DeadLetterFilter(), clock=clock)
    (stored,) = letters.browse(EVERYTHING)
    assert (stored.state, stored.redrives) == (WAITING, 1), "it waits, and its next redrive has another id"
    redrive(letters, streams, DeadLetterFilter(), clock=clock)
    ids = [redrive_of(record) for record in records(streams)]
    assert [each.id for each in ids if each is not None] == [f"{letter(0).id}.1", f"{letter(0).id}.2"]


def test_to_another_topic_it_goes_by_its_key_and_for_everybody(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock
) -> None:
    streams.create_topic("elsewhere", 1)
    letters.put([letter(2)])
    assert redrive(letters, streams, DeadLetterFilter(), clock=clock, to="elsewhere").redriven == 1
    (record,) = records(streams, "elsewhere")
    found = redrive_of(record)
    assert found is not None
    assert (found.id, found.letter_id, found.number, found.group) == (f"{letter(2).id}.1", letter(2).id, 1, None)
    assert found.is_for("anybody")
    assert records(streams) == []


def test_a_partition_that_is_not_there_is_not_asked_for(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock
) -> None:
    letters.put([letter(0, partition=7)])
    assert redrive(letters, streams, DeadLetterFilter(), clock=clock).redriven == 1
    assert len(records(streams)) == 1


def test_timestamps_may_be_new(letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock) -> None:
    letters.put([letter(0)])
    redrive(letters, streams, DeadLetterFilter(), clock=clock, timestamps="now")
    (record,) = records(streams)
    assert record.timestamp_ms is not None
    assert record.timestamp_ms > 1_600_000_000_000


def test_no_more_than_the_limit(letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock) -> None:
    letters.put([letter(number) for number in range(500)])
    assert redrive(letters, streams, DeadLetterFilter(), clock=clock, limit=250).redriven == 250
    assert states(letters) == [REDRIVEN] * 250 + [WAITING] * 250
    assert redrive(letters, streams, DeadLetterFilter(), clock=clock, limit=0) == RedriveReport()


def test_no_faster_than_the_rate(letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock) -> None:
    letters.put([letter(number) for number in range(50)])
    began_s = clock.now_s
    seen: list[RedriveReport] = []
    redrive(letters, streams, DeadLetterFilter(), clock=clock, rate_per_s=5, on_progress=seen.append)
    assert clock.now_s - began_s == pytest.approx(49 / 5), "one at once, then five in a second"
    assert [report.redriven for report in seen] == list(range(5, 51, 5)), "no letter is held for more than a second"


def test_a_slow_rate_sends_one_at_a_time(letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock) -> None:
    letters.put([letter(number) for number in range(3)])
    began_s = clock.now_s
    redrive(letters, streams, DeadLetterFilter(), clock=clock, rate_per_s=0.1)
    assert clock.now_s - began_s == pytest.approx(20)


class Refusing(MemoryStream):
    """Streams that do not take some values."""

    refused: frozenset[bytes] = frozenset()

    def open_topic(self, topic: str) -> MemoryTopicStream:
        refused = self.refused

        class Stream(MemoryTopicStream):
            def append(self, new: Sequence[NewRecord]) -> list[Receipt]:
                if new[0].value not in refused:
                    return list(super().append(new))
                receipt = Receipt(new[0].topic)
                receipt.settle(-1, -1, DeliveryError("it is too large"))
                return [receipt]

        return Stream(topic, self._topics)


def test_a_refused_record_is_waiting_again_and_told(letters: SqliteDeadLetters, clock: HastyClock) -> None:
    streams = Refusing(partitions=3)
    streams.create_topic("orders")
    streams.refused = frozenset({b"value 1"})
    letters.put([letter(number) for number in range(3)])
    report = redrive(letters, streams, DeadLetterFilter(), clock=clock)
    assert report == RedriveReport(redriven=2, failed=1, failures=((letter(1).id, "it is too large"),))
    assert states(letters) == [REDRIVEN, WAITING, REDRIVEN]


def test_it_gives_up_when_nothing_comes_through(letters: SqliteDeadLetters, clock: HastyClock) -> None:
    streams = Refusing(partitions=3)
    streams.create_topic("orders")
    letters.put([letter(number) for number in range(500)])
    streams.refused = frozenset(letter(number).record.value or b"" for number in range(500))
    report = redrive(letters, streams, DeadLetterFilter(), clock=clock)
    assert (report.redriven, report.failed, report.gave_up) == (0, 200, True)
    assert len(report.failures) == 100, "the first of them are told"
    assert set(states(letters)) == {WAITING}


def test_a_missing_topic_is_an_error_and_loses_nothing(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock
) -> None:
    letters.put([letter(0), letter(1, topic="gone"), letter(2)])
    with pytest.raises(UnknownTopicError):
        redrive(letters, streams, DeadLetterFilter(), clock=clock)
    assert states(letters) == [REDRIVEN, WAITING, WAITING], "what had been sent is settled, the rest is waiting"


def test_ctrl_c_ends_it_in_good_order(letters: SqliteDeadLetters, streams: MemoryStream) -> None:
    class Interrupted(HastyClock):
        def sleep(self, duration_s: float) -> None:
            super().sleep(duration_s)
            if len(self.slept_s) == 7:
                raise KeyboardInterrupt

    letters.put([letter(number) for number in range(20)])
    report = redrive(letters, streams, DeadLetterFilter(), clock=Interrupted(), rate_per_s=5)
    assert report == RedriveReport(redriven=7, interrupted=True)
    assert states(letters) == [REDRIVEN] * 7 + [WAITING] * 13, "no letter is left taken"
    assert len(records(streams)) == 7


@pytest.mark.parametrize("step", ["result", "settle", "settled"])
def test_ctrl_c_while_it_waits_for_acknowledgements_leaves_no_letter_taken(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    interrupted: list[str] = []

    def interrupt_once(at: str) -> None:
        if at == step and not interrupted:
            interrupted.append(at)
            raise KeyboardInterrupt

    wait, settle = Receipt.result, letters.settle

    def waiting(receipt: Receipt, timeout: float | None = None) -> object:
        interrupt_once("result")
        return wait(receipt, timeout)

    def settling(ids: Collection[str], taker: str, redriven: bool) -> None:
        interrupt_once("settle")
        settle(ids, taker, redriven)
        interrupt_once("settled")

    letters.put([letter(number) for number in range(300)])
    monkeypatch.setattr(Receipt, "result", waiting)
    monkeypatch.setattr(letters, "settle", settling)
    report = redrive(letters, streams, DeadLetterFilter(), clock=clock)
    assert report == RedriveReport(redriven=200, interrupted=True), "the page that was under way is finished"
    assert states(letters) == [REDRIVEN] * 200 + [WAITING] * 100
    assert len(records(streams)) == 200


def test_what_others_deal_with_meanwhile_is_not_sent(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock
) -> None:
    class Overtaken(SqliteDeadLetters):
        def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
            page = super().browse(which, limit, after)
            letters.discard([each.id for each in page[:2]])
            return page

    overtaken = Overtaken(letters.path)
    letters.put([letter(number) for number in range(5)])
    assert redrive(overtaken, streams, DeadLetterFilter(), clock=clock) == RedriveReport(redriven=3, gone=2)
    overtaken.close()


def test_letters_of_a_dead_taker_are_taken_again(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock
) -> None:
    letters.put([letter(0)])
    letters.take([letter(0).id], "dead")
    assert redrive(letters, streams, DeadLetterFilter(), clock=clock).redriven == 1


def test_impossible_orders_are_refused_before_anything_is_sent(
    letters: SqliteDeadLetters, streams: MemoryStream, clock: HastyClock
) -> None:
    class Headless(MemoryStream):
        @property
        def features(self) -> Features:
            return super().features - {Feature.HEADERS}

    letters.put([letter(0)])
    which = DeadLetterFilter()
    with pytest.raises(ConfigError, match="has no headers"):
        redrive(letters, Headless(), which, clock=clock)
    with pytest.raises(ConfigError, match=r"rate_per_s=.* must be positive"):
        redrive(letters, streams, which, clock=clock, rate_per_s=0)
    with pytest.raises(ConfigError, match=r"limit=.* must be an integer"):
        redrive(letters, streams, which, clock=clock, limit=-1)
    with pytest.raises(ConfigError, match="only letters that are waiting"):
        redrive(letters, streams, DeadLetterFilter(states=frozenset({REDRIVEN})), clock=clock)
    with pytest.raises(ConfigError, match="'original' or 'now'"):
        redrive(letters, streams, which, clock=clock, timestamps="later")  # type: ignore[arg-type]
    assert states(letters) == [WAITING]


@pytest.mark.parametrize(
    "content", [None, b"", b"abc", b"abc.", b"abc.0", b"abc.x", b".1", b"abc.01", b"a b.1", b"\xff.1", b"abc.-1"]
)
def test_a_header_that_is_not_ours_is_no_redrive(content: bytes | None) -> None:
    assert redrive_of(Record("orders", 0, 1, None, None, ((REDRIVE_ID_HEADER, content),))) is None


def test_a_record_without_headers_is_no_redrive() -> None:
    assert redrive_of(Record("orders", 0, 1, None, None)) is None
