"""Cases: a stream whose server dies or whose network breaks, and comes back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from penstock.abc import Feature, TopicStream
from penstock.model import Pointer, Record, RecordMetadata
from penstock.testing.conformance.outages import (
    DELAY_S,
    HANG_S,
    UNAVAILABLE,
    Outage,
    OutageSuite,
    answers_or_raises,
)
from penstock.testing.conformance.streams.suite import (
    SETTLE_S,
    StreamSuite,
    check_values,
    numbered,
    ordered_record,
)
from penstock.testing.conformance.suite import needs

BEFORE = 50
"""How many records are acknowledged before the outage begins, and how many after it has ended."""


class Appender:
    """Appends numbered records in a thread, one after the other, and keeps the receipts of those that were stored."""

    def __init__(self, stream: TopicStream) -> None:
        self.stored: dict[int, RecordMetadata] = {}
        self._stream = stream
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._append, name="appender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(2 * SETTLE_S)
        assert not self._thread.is_alive(), f"an append has hung for {2 * SETTLE_S:g} s"

    def _append(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                return
            try:
                [receipt] = self._stream.append([ordered_record(self._stream, b"%d" % number, b"key")])
                self.stored[number] = receipt.result(SETTLE_S)
            except UNAVAILABLE:
                self._stopping.wait(0.05)


class StreamOutageCases(StreamSuite, OutageSuite):
    @needs(Feature.DURABLE)
    def test_nothing_acknowledged_is_lost_when_the_server_is_killed(self) -> None:
        def kill_and_restart(outage: Outage) -> None:
            outage.kill()
            outage.restart()

        self._append_through(kill_and_restart)

    def test_nothing_acknowledged_is_lost_when_connections_are_cut(self) -> None:
        def cut_and_heal(outage: Outage) -> None:
            outage.proxy.cut()
            outage.proxy.heal()

        self._append_through(cut_and_heal)

    @needs(Feature.DURABLE)
    def test_a_reader_goes_on_by_itself_when_the_server_was_killed(self) -> None:
        outage = self.outage()
        stream = self.new_stream()
        self.put(stream, numbered(10))
        start, _ = stream.span(0)
        batch = self.read(stream, start, 4)
        outage.kill()
        answers_or_raises(lambda: stream.read(0, batch.next, 100, 0.1))
        outage.restart()
        with self.recovering(outage):
            rest = self._read_on(stream, batch.next, 10 - len(batch))
        check_values([*batch, *rest], numbered(10), "after a restart")
        self._append_eventually(stream, b"after")
        values = [record.value for record in self._read_on(stream, batch.next, 11 - len(batch))]
        assert values[-1] == b"after", f"what was appended after a restart is not the last record: {values}"

    def test_a_reader_goes_on_by_itself_when_its_connection_was_cut(self) -> None:
        outage = self.outage()
        stream = self.new_stream()
        self.put(stream, numbered(10))
        start, _ = stream.span(0)
        batch = self.read(stream, start, 4)
        outage.proxy.cut()
        answers_or_raises(lambda: stream.read(0, batch.next, 100, 0.1))
        outage.proxy.heal()
        with self.recovering(outage):
            rest = self._read_on(stream, batch.next, 10 - len(batch))
        check_values([*batch, *rest], numbered(10), "after a cut")

    def test_a_slow_network_changes_nothing(self) -> None:
        outage = self.outage()
        stream = self.new_stream()
        outage.proxy.delay_s = DELAY_S
        self.put(stream, numbered(10))
        check_values(self.everything(stream), numbered(10), f"with answers that take {DELAY_S:g} s longer")

    def test_no_call_hangs_on_a_server_that_does_not_answer(self) -> None:
        outage = self.outage()
        stream = self.new_stream()
        self.put(stream, numbered(5))
        start, _ = stream.span(0)
        self.read(stream, start, 100)
        outage.proxy.freeze()
        reading = self.in_background(answers_or_raises, lambda: stream.read(0, start, 100, 0.5))
        self.result_of(reading, "a read from a server that accepts everything and answers nothing", HANG_S)
        outage.proxy.heal()
        check_values(self._read_on(stream, start, 5), numbered(5), "after a network that hung")
        self._append_eventually(stream, b"after")

    def test_an_append_to_a_server_that_does_not_answer_ends_and_nothing_acknowledged_is_lost(self) -> None:
        """The connections never work again, as when a firewall has forgotten them; new ones do."""

        def freeze_and_strand(outage: Outage) -> None:
            outage.proxy.freeze()
            appending = self.in_background(answers_or_raises, lambda: self._append(stream, b"frozen"))
            looking = self.in_background(answers_or_raises, lambda: stream.span(0))
            self.result_of(looking, "span of a server that accepts everything and answers nothing", HANG_S)
            self.result_of(appending, "an append to a server that accepts everything and answers nothing", HANG_S)
            outage.proxy.strand()

        outage = self.outage()
        stream = self.new_stream()
        self._append_through(freeze_and_strand, outage, stream, HANG_S + self.recovery_s)

    def _append_through(
        self,
        trouble: Callable[[Outage], None],
        outage: Outage | None = None,
        stream: TopicStream | None = None,
        recovery_s: float | None = None,
    ) -> None:
        outage = outage or self.outage()
        stream = stream or self.new_stream()
        appender = Appender(stream)
        try:
            self.eventually("records are stored", lambda: len(appender.stored) >= BEFORE)
            trouble(outage)
            stored = len(appender.stored)
            with self.recovering(outage):
                self.eventually("records are stored again", lambda: len(appender.stored) >= stored + BEFORE, recovery_s)
        finally:
            appender.stop()
        records = self.eventually("the records are read", lambda: self.everything(stream))
        there = {(record.partition, record.offset): record.value for record in records}
        lost = {
            number: place
            for number, place in appender.stored.items()
            if there.get((place.partition, place.offset)) != b"%d" % number
        }
        assert not lost, (
            f"{len(lost)} of {len(appender.stored)} acknowledged records are not where their receipts said, such as "
            f"{next(iter(lost.items()))}"
        )

    def _append(self, stream: TopicStream, value: bytes) -> bool:
        stream.append([ordered_record(stream, value, b"key")])
        return True

    def _append_eventually(self, stream: TopicStream, value: bytes) -> None:
        def attempt() -> RecordMetadata:
            [receipt] = stream.append([ordered_record(stream, value, b"key")])
            return receipt.result(SETTLE_S)

        self.eventually(f"{value!r} is appended", attempt)

    def _read_on(self, stream: TopicStream, start: Pointer, count: int) -> list[Record]:
        """At least `count` records from `start` on, whatever fails on the way."""
        records: list[Record] = []

        def attempt() -> bool:
            batch = stream.read(0, records[-1].offset + 1 if records else start, 100, 0.5)
            records.extend(batch)
            return len(records) >= count

        self.eventually(f"{count} records are read", attempt)
        return records
