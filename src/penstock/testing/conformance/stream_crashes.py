"""Cases: what is left of a stream when those who used it were killed."""

from __future__ import annotations

import itertools

from penstock.abc import Feature, Streams
from penstock.model import Record
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.stream_suite import StreamSuite, check_values, numbered, ordered_record, places
from penstock.testing.conformance.suite import needs

KILLS = 3
KEYS = (b"a", b"b", b"c")


class CrashCases(StreamSuite):
    @needs(Feature.DURABLE)
    def test_what_was_stored_is_there_when_the_stream_is_opened_again(self) -> None:
        streams = self.open()
        stream = self.new_stream(streams=streams)
        self.put(stream, numbered(20))
        stream.close()
        streams.close()
        check_values(self.everything(self.opened(self.open(), stream.topic)), numbered(20), "after it was opened again")

    @needs(Feature.DURABLE)
    def test_nothing_acknowledged_is_lost_when_the_appender_is_killed(self) -> None:
        """One record after the other, killed while the next one is under way, and then from where that one stopped."""
        streams = self.open()
        stream = self.new_stream(streams=streams)
        acknowledged: list[tuple[int, int, int]] = []
        first = 0
        for _ in range(KILLS):
            with self.child(append_and_tell, stream.topic, first) as child:
                said = [child.hear() for _ in range(self.rng.randint(1, 60))]
                said += child.kill()
            acknowledged += said
            first = said[-1][0] + 1000  # a gap, so that what was under way is told from what comes now
        records = self.everything_everywhere(stream)
        self._check_kept(records, acknowledged)
        self._check_order(records)

    @needs(Feature.DURABLE, Feature.IDEMPOTENCE)
    def test_nothing_is_stored_twice_when_the_appender_is_killed(self) -> None:
        stream = self.new_stream(streams=self.open())
        with self.child(append_and_tell, stream.topic, 0) as child:
            for _ in range(self.rng.randint(1, 100)):
                child.hear()
            child.kill()
        values = [record.value for record in self.everything_everywhere(stream)]
        repeated = {value for value in values if values.count(value) > 1}
        assert not repeated, f"each record was appended once, but {sorted(map(repr, repeated))} are stored repeatedly"

    def _check_kept(self, records: list[Record], acknowledged: list[tuple[int, int, int]]) -> None:
        there = {(record.partition, record.offset): record.value for record in records}
        lost = [said for said in acknowledged if there.get((said[1], said[2])) != b"%d" % said[0]]
        assert not lost, (
            f"{len(lost)} of {len(acknowledged)} acknowledged records are not where their receipts said, such as "
            f"(number, partition, pointer) {lost[0]}: there is {there.get(lost[0][1:])!r}"
        )

    def _check_order(self, records: list[Record]) -> None:
        """Also of what was not acknowledged: where it is stored, it is stored in its order."""
        for key in KEYS if Feature.KEYS in self.features else (None,):
            numbers = [int(record.value or b"-1") for record in records if key is None or record.key == key]
            disordered = [pair for pair in itertools.pairwise(numbers) if pair[0] > pair[1]]
            assert not disordered, f"of key {key!r}, {disordered[0][0]} stands before {disordered[0][1]}"


def append_and_tell(streams: Streams, parent: Parent, topic: str, first: int) -> None:
    """Append numbered records until it is killed, and say of each where it stands. A few are under way at any time."""
    stream = streams.stream(topic)
    for number in itertools.count(first, 4):
        numbers = range(number, number + 4)
        receipts = stream.append([ordered_record(stream, b"%d" % each, KEYS[each % 3]) for each in numbers])
        for each, place in zip(numbers, places(receipts), strict=True):
            parent.say((each, place.partition, place.offset))
