"""Dead letters in a topic: what others see of them, and what happens to the topic behind their back."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from penstock.abc import Feature, Features
from penstock.dead_letters import stream as stream_letters
from penstock.dead_letters.stream import StreamDeadLetters
from penstock.dead_letters.stream_encoding import DecodedRecord, read_record
from penstock.errors import ConfigError, StoreUnavailableError
from penstock.model import DeadLetterFilter, LetterState, NewRecord, Record
from penstock.streams import connect
from penstock.streams.memory import MemoryStream
from penstock.streams.memory.streams import MemoryTopicStream
from tests.dead_letters.letters import given_up

EVERYTHING = DeadLetterFilter(states=frozenset())


@pytest.fixture
def streams() -> MemoryStream:
    return MemoryStream()


@pytest.fixture
def letters(streams: MemoryStream) -> StreamDeadLetters:
    return StreamDeadLetters(streams, "orders.dlq")


def record(offset: int = 7, **changes: object) -> Record:
    found = Record("orders", 2, offset, b"key", b"value", (("trace", b"1"), ("trace", None)), 1_000)
    return replace(found, **changes)  # type: ignore[arg-type]


def stored(streams: MemoryStream, topic: str = "orders.dlq") -> list[Record]:
    return list(streams.open_topic(topic).read(0, 0, 10_000, 0))


def test_letters_are_kept_in_the_memory_of_this_process_too() -> None:
    with connect("memory:letters") as connection:
        letters = StreamDeadLetters(connection, "orders.dlq")
        letters.put([given_up(record())])
        assert letters.count(EVERYTHING) == 1


def test_a_letter_is_a_record_that_any_client_can_read(streams: MemoryStream, letters: StreamDeadLetters) -> None:
    letter = given_up(record())
    letters.put([letter])
    (found,) = stored(streams)
    assert found.value == b"value", "the value as it was"
    assert found.key == letter.id.encode()
    assert found.headers[:2] == (("trace", b"1"), ("trace", None)), "the headers as they were, then ours"
    ours = dict(found.headers[2:])
    assert ours["penstock-letter"] == b"put"
    assert ours["penstock-letter-headers"] == b"2"
    assert ours["penstock-letter-topic"] == b"orders"
    assert ours["penstock-letter-partition"] == b"2"
    assert ours["penstock-letter-pointer"] == b"7"
    assert ours["penstock-letter-key"] == b"key"
    assert ours["penstock-letter-group"] == b"billing"
    assert ours["penstock-letter-error"] == b"ValueError: no"
    assert ours["penstock-letter-error-kind"] == b"ValueError"
    assert ours["penstock-letter-attempts"] == b"3"
    assert (ours["penstock-letter-traceback"] or b"").startswith(b"Traceback")


def test_what_happens_to_a_letter_is_a_record_of_the_same_key(
    streams: MemoryStream, letters: StreamDeadLetters
) -> None:
    letter = given_up(record())
    letters.put([letter])
    letters.take([letter.id], "first")
    letters.settle([letter.id], "first", redriven=True)
    letters.discard([letter.id])
    told = [(found.key, dict(found.headers).get("penstock-letter")) for found in stored(streams)]
    assert told == [(letter.id.encode(), word) for word in (b"put", b"taken", b"redriven", b"discarded")]


def test_what_changes_nothing_is_not_written_down(streams: MemoryStream, letters: StreamDeadLetters) -> None:
    letters.put([given_up(record())])
    letters.settle([given_up(record()).id], "nobody", redriven=True)
    letters.take(["unknown"], "first")
    letters.discard(["unknown"])
    assert len(stored(streams)) == 1


def test_a_letter_about_a_letter_is_kept_apart_from_it(streams: MemoryStream, letters: StreamDeadLetters) -> None:
    """A program that handles a topic of dead letters may fail, too."""
    letters.put([given_up(record())])
    (inner,) = stored(streams)
    outer = given_up(inner)
    second = StreamDeadLetters(streams, "orders.dlq.dlq")
    second.put([outer])
    assert second.browse(EVERYTHING) == [outer]


def test_the_topic_is_made_with_the_first_letter(streams: MemoryStream, letters: StreamDeadLetters) -> None:
    assert list(letters.browse(EVERYTHING)) == []
    assert letters.count(EVERYTHING) == letters.discard(["x"]) == 0
    assert streams.topics() == [], "looking makes nothing"
    letters.put([given_up(record())])
    assert streams.topics() == ["orders.dlq"]
    assert list(streams.open_topic("orders.dlq").partitions()) == [0]


def test_a_topic_that_was_deleted_is_made_again(streams: MemoryStream, letters: StreamDeadLetters) -> None:
    letters.put([given_up(record())])
    assert letters.count(EVERYTHING) == 1
    streams.delete_topic("orders.dlq")
    assert letters.count(EVERYTHING) == 0
    eight = given_up(record(8))
    letters.put([eight])
    assert letters.browse(EVERYTHING) == [eight]


def test_letters_expire_with_their_records(streams: MemoryStream, letters: StreamDeadLetters) -> None:
    put = [given_up(record(offset)) for offset in range(5)]
    letters.put(put)
    letters.discard([put[0].id, put[4].id])
    assert letters.count(EVERYTHING) == 5
    streams.expire("orders.dlq", 0, 2)
    found = letters.browse(EVERYTHING)
    assert [letter.id for letter in found] == [letter.id for letter in put[2:]]
    assert found[-1].state is LetterState.DISCARDED


def test_gaps_in_the_topic_are_passed_over(streams: MemoryStream, letters: StreamDeadLetters) -> None:
    letters.put([given_up(record(1))])
    streams.skip("orders.dlq", 0, 3)
    assert letters.count(EVERYTHING) == 1
    letters.put([given_up(record(2))])
    streams.skip("orders.dlq", 0, 2)
    sparing = StreamDeadLetters(streams, "orders.dlq", held_bytes=0)
    assert list(sparing.browse(EVERYTHING)) == [given_up(record(1)), given_up(record(2))]


def test_records_of_others_are_passed_over_and_told(
    streams: MemoryStream, letters: StreamDeadLetters, caplog: pytest.LogCaptureFixture
) -> None:
    letters.put([given_up(record())])
    foreign = [
        NewRecord("orders.dlq", b"hello"),
        NewRecord("orders.dlq", None, b"x", (("penstock-letter-headers", b"0"),)),
        NewRecord("orders.dlq", None, b"x", (("penstock-letter", b"put"), ("penstock-letter-headers", b"0"))),
        NewRecord("orders.dlq", None, b"x", (("penstock-letter", b"eaten"), ("penstock-letter-headers", b"0"))),
        NewRecord("orders.dlq", None, b"x", (("penstock-letter", b"put"), ("penstock-letter-headers", b"many"))),
    ]
    for receipt in streams.open_topic("orders.dlq").append(foreign):
        receipt.result(1)
    with caplog.at_level(logging.WARNING):
        assert letters.browse(EVERYTHING) == [given_up(record())]
    assert sum("is not a dead letter" in message for message in caplog.messages) == len(foreign)
    letters.count(EVERYTHING)
    assert len(caplog.messages) == len(foreign), "they are told once"


def test_a_large_letter_is_there_when_its_last_part_is(streams: MemoryStream) -> None:
    letters = StreamDeadLetters(streams, "orders.dlq", largest_record_bytes=16_384)
    large = given_up(record(value=bytes(range(256)) * 200, key=b"k" * 20_000))
    letters.put([large])
    parts = stored(streams)
    assert len(parts) > 3
    assert all(len(part.value or b"") < 16_384 for part in parts)
    assert letters.browse(EVERYTHING) == [large]

    torn = MemoryStream()
    torn.create_topic("orders.dlq", 1)
    others = StreamDeadLetters(torn, "orders.dlq")

    def copy(count: int, start: int = 0) -> None:
        for part in parts[start:count]:
            new = NewRecord("orders.dlq", part.value, part.key, part.headers)
            torn.open_topic("orders.dlq").append([new])[0].result(1)

    copy(len(parts) - 1)
    assert others.count(EVERYTHING) == 0, "its writer was killed before it had written it all"
    copy(2)
    assert others.count(EVERYTHING) == 0, "the next one began again, and was killed, too"
    copy(len(parts), start=1)
    assert list(others.browse(EVERYTHING)) == [large], "parts that were stored twice do not harm"


def test_a_small_limit_cuts_texts_and_not_records(streams: MemoryStream) -> None:
    letters = StreamDeadLetters(streams, "orders.dlq", largest_record_bytes=16_384)
    letter = replace(given_up(record()), error="E: " + "x" * 7_000, traceback="t" * 30_000 + "the end")
    letters.put([letter])
    (found,) = letters.browse(EVERYTHING)
    assert found.record == letter.record
    assert found.error.startswith("E: xxx")
    assert found.traceback.endswith("the end")


def test_a_stream_without_headers_is_refused(streams: MemoryStream) -> None:
    class Headless(MemoryStream):
        @property
        def features(self) -> Features:
            return super().features - {Feature.HEADERS}

    with pytest.raises(ConfigError, match="it has no headers"):
        StreamDeadLetters(Headless(), "orders.dlq")
    with pytest.raises(ConfigError, match="must be >= 16384"):
        StreamDeadLetters(streams, "orders.dlq", largest_record_bytes=1000)


def test_a_record_that_the_stream_refuses_is_told(streams: MemoryStream) -> None:
    letters = StreamDeadLetters(streams, "orders.dlq")
    letters.put([given_up(record())])
    letters._stream.append = lambda records: (_ for _ in ()).throw(_refusal())  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError, match="could not be written: the disk is full"):
        letters.put([given_up(record(8))])


def _refusal() -> Exception:
    from penstock.errors import DeliveryError

    return DeliveryError("the disk is full")


def test_an_interrupted_look_counts_nothing_twice(
    streams: MemoryStream, letters: StreamDeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = given_up(record())
    letters.put([letter, given_up(record(8))])
    letters.take([letter.id], "first")
    letters.settle([letter.id], "first", redriven=True)
    fresh = StreamDeadLetters(streams, "orders.dlq")
    calls: list[Record] = []

    def interrupted(found: Record) -> DecodedRecord:
        calls.append(found)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return read_record(found)

    monkeypatch.setattr(stream_letters, "read_record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fresh.count(EVERYTHING)
    assert [each.redrives for each in fresh.browse(EVERYTHING)] == [1, 0]


def test_a_stream_that_acknowledges_before_it_shows_is_waited_for() -> None:
    """As a broker does for a producer that asks for one acknowledgement only."""

    class Late(MemoryTopicStream):
        def span(self, partition: int) -> tuple[int, int]:
            start, end = super().span(partition)
            return start, max(start, end - 1)

    class LateStreams(MemoryStream):
        def open_topic(self, topic: str) -> Late:
            return Late(topic, self._topics)

    letters = StreamDeadLetters(LateStreams(), "orders.dlq")
    letters.put([given_up(record()), given_up(record(8))])
    taken = letters.take([given_up(record()).id], "first")
    assert [each.id for each in taken] == [given_up(record()).id]
    assert letters.discard([given_up(record()).id]) == 1
