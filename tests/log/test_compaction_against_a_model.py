"""Compaction against a dictionary: whatever was written in whatever order, the last value of each key stays."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from penstock.log.batches.batch import StoredRecord
from penstock.log.partition import PartitionLog
from tests.log.engine import (
    NOW_MS,
    Pair,
    batch_of,
    committed,
    compact,
    end_transaction,
    headers_from,
    open_log,
    put,
)
from tests.sampling import examples

SETTINGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "400",
    "index.interval.bytes": "150",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
}
PLAIN_PRODUCERS = (-1, 1)
TRANSACTIONAL_PRODUCERS = (8, 9)

pairs = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", b"e" * 40]), st.none() | st.binary(max_size=30)),
    min_size=1,
    max_size=4,
)


class CompactedLog(RuleBasedStateMachine):
    """The log on one side, and on the other all that was ever committed to it."""

    log: PartitionLog

    @initialize()
    def start(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "topic-0"
        self.now_ms = NOW_MS
        self.sequences: dict[int, int] = {}
        self.open: dict[int, list[StoredRecord]] = {}
        self.ever: dict[int, StoredRecord] = {}
        """Every committed record by its offset."""
        self.deletable_at_ms: dict[int, int] = {}
        """When a tombstone may be gone: the earliest it can have become clean, and the retention behind it."""
        self.log = open_log(self.folder, SETTINGS)

    def teardown(self) -> None:
        if hasattr(self, "temporary"):
            self.temporary.cleanup()

    def append(self, producer_id: int, content: list[Pair], codec: int, *, transactional: bool) -> list[StoredRecord]:
        sequence = self.sequences.get(producer_id, 0)
        batch = batch_of(
            content,
            at_ms=self.now_ms,
            codec=codec,
            producer_id=producer_id,
            sequence=sequence if producer_id >= 0 else -1,
            transactional=transactional,
        )
        self.sequences[producer_id] = sequence + len(content)
        offset = put(self.log, batch, self.now_ms)
        return [
            StoredRecord(offset + delta, self.now_ms + delta, key, value) for delta, (key, value) in enumerate(content)
        ]

    @rule(producer_id=st.sampled_from(PLAIN_PRODUCERS), content=pairs, codec=st.integers(0, 4))
    def send(self, producer_id: int, content: list[Pair], codec: int) -> None:
        for record in self.append(producer_id, content, codec, transactional=False):
            self.ever[record.offset] = record

    @rule(producer_id=st.sampled_from(TRANSACTIONAL_PRODUCERS), content=pairs, codec=st.integers(0, 4))
    def send_in_a_transaction(self, producer_id: int, content: list[Pair], codec: int) -> None:
        self.open.setdefault(producer_id, []).extend(self.append(producer_id, content, codec, transactional=True))

    @rule(producer_id=st.sampled_from(TRANSACTIONAL_PRODUCERS), commit=st.booleans())
    def end(self, producer_id: int, commit: bool) -> None:
        end_transaction(self.log, producer_id, commit=commit, now_ms=self.now_ms)
        for record in self.open.pop(producer_id, []):
            if commit:
                self.ever[record.offset] = record

    @rule()
    def roll(self) -> None:
        if self.log.segments:
            self.log.roll()

    @rule(buffer_bytes=st.sampled_from([24 * 6, 1 << 20]))
    def compact(self, buffer_bytes: int) -> None:
        before = self.log.clean_offset
        cleaned = compact(self.log, self.now_ms, dedupe_buffer_bytes=buffer_bytes)
        if cleaned is not None:
            assert self.log.clean_offset > before
            for record in self.ever.values():
                if record.value is None and record.offset < self.log.clean_offset:
                    self.deletable_at_ms.setdefault(record.offset, self.now_ms + 1000)

    @rule(passed_ms=st.sampled_from([1, 500, 1001]))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule(lost=st.sampled_from(["", "*.penstock-index", "checkpoint", "aborted-transactions"]), close=st.booleans())
    def reopen(self, lost: str, close: bool) -> None:
        if close:
            self.log.close()
        for path in self.folder.glob(lost) if lost else ():
            path.unlink()
        producers = {state.producer_id: state for state in self.log.producers.producers()}
        self.log = open_log(self.folder, SETTINGS)
        again = {state.producer_id: state for state in self.log.producers.producers()}
        assert {pid: (state.epoch, state.transaction_first_offset) for pid, state in again.items()} == {
            pid: (state.epoch, state.transaction_first_offset) for pid, state in producers.items()
        }
        for pid in set(self.sequences) & set(producers):
            assert again[pid].last_sequence == producers[pid].last_sequence

    @invariant()
    def nothing_is_wrong(self) -> None:
        if not hasattr(self, "log"):
            return
        found = committed(self.log)
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        undecided = self.log.last_stable_offset
        decided = [record for record in self.ever.values() if record.offset < undecided]
        assert all(self.ever[record.offset] == record for record in found)
        last: dict[bytes | None, StoredRecord] = {}
        for record in sorted(decided):
            last[record.key] = record
        present = set(offsets)
        for record in last.values():
            may_be_gone = record.value is None and self.now_ms >= self.deletable_at_ms.get(record.offset, 1 << 62)
            assert record.offset in present or may_be_gone, f"{record} is the last of its key, and gone"
        for record in found:
            superseded = record.offset < last[record.key].offset < self.log.clean_offset
            assert not superseded, f"{record} is clean and has a later record: {last[record.key]}"
        clean_keys = {record.key for record in found if record.offset < self.log.clean_offset}
        resurrected = {key for key in clean_keys if last[key].value is None and last[key].offset not in present}
        assert not resurrected, f"{resurrected} were deleted, and came back"

    @invariant()
    def batches_stay_where_they_were(self) -> None:
        if hasattr(self, "log"):
            reached = 0
            for header, _ in headers_from(self.log, self.log.log_start_offset):
                assert header.base_offset >= reached
                reached = header.next_offset


def test_after_any_history_the_log_holds_the_last_value_of_each_key() -> None:
    run_state_machine_as_test(
        CompactedLog,
        settings=settings(max_examples=examples(15, soak=600), stateful_step_count=40, deadline=None, print_blob=True),
    )
