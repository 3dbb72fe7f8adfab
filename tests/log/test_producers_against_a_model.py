"""Producer states against a naive model, which answers every question by reading its whole log again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    PenstockError,
)
from penstock.log.producers import Duplicate, ProducerStates
from tests.sampling import examples

LAST_SEQUENCE = 2**31 - 1
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Entry:
    """One batch of the naive model's log."""

    producer_id: int
    epoch: int
    first_offset: int
    sequence: int
    count: int
    transactional: bool
    timestamp_ms: int
    commit: bool | None = None

    @property
    def is_marker(self) -> bool:
        return self.commit is not None


class NaiveModel:
    """Answers every question by reading its whole log again."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.forgotten: dict[int, int] = {}
        self.end_offset = 0

    def known(self, producer_id: int) -> list[Entry]:
        return [entry for entry in self.log[self.forgotten.get(producer_id, 0) :] if entry.producer_id == producer_id]

    def open_since(self, producer_id: int) -> int | None:
        start = None
        for entry in self.known(producer_id):
            if entry.is_marker:
                start = None
            elif entry.transactional and start is None:
                start = entry.first_offset
        return start

    def batches_of_epoch(self, producer_id: int) -> list[Entry]:
        known = self.known(producer_id)
        kept: list[Entry] = []
        for entry in reversed(known):
            if entry.epoch != known[-1].epoch:
                break
            if not entry.is_marker:
                kept.insert(0, entry)
        return kept

    def expected_sequence(self, producer_id: int) -> int:
        kept = self.batches_of_epoch(producer_id)
        return (kept[-1].sequence + kept[-1].count) % 2**31 if kept else 0

    def judge(
        self, producer_id: int, epoch: int, sequence: int, count: int, transactional: bool
    ) -> Duplicate | type[PenstockError] | None:
        known = self.known(producer_id)
        if not known:
            return None
        current = known[-1].epoch
        if epoch == current:
            for entry in self.batches_of_epoch(producer_id)[-5:]:
                if (entry.sequence, entry.count) == (sequence, count):
                    return Duplicate(entry.first_offset, entry.first_offset + count - 1, entry.timestamp_ms)
        if epoch < current:
            return InvalidProducerEpochError
        if sequence != (self.expected_sequence(producer_id) if epoch == current else 0):
            return OutOfOrderSequenceError
        if not transactional and self.open_since(producer_id) is not None:
            return InvalidTransactionStateError
        return None

    def last_stable_offset(self, high_watermark: int) -> int:
        bounds = [high_watermark]
        starts: dict[int, int] = {}
        for entry in self.log:
            if entry.is_marker:
                start = starts.pop(entry.producer_id, None)
                if start is not None and entry.first_offset >= high_watermark:
                    bounds.append(start)
            elif entry.transactional:
                starts.setdefault(entry.producer_id, entry.first_offset)
        return min(bounds + list(starts.values()))


producer_ids = st.integers(0, 3)
epochs = st.integers(0, 3)


class ProducersAgainstTheModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = NaiveModel()
        self.states = ProducerStates("t-0")
        self.high_watermark = 0
        self.now_ms = NOW_MS
        self.silent: set[int] = set()

    @rule(
        producer_id=producer_ids,
        epoch=epochs,
        count=st.integers(1, 3),
        transactional=st.booleans(),
        sequence=st.one_of(
            st.just("next"), st.just("next"), st.just("again"), st.integers(0, 4), st.just(LAST_SEQUENCE - 1)
        ),
        back=st.integers(1, 7),
    )
    def produce(
        self, producer_id: int, epoch: int, count: int, transactional: bool, sequence: int | str, back: int
    ) -> None:
        kept = self.model.batches_of_epoch(producer_id)
        if sequence == "again" and len(kept) >= back:
            epoch, sequence, count = kept[-back].epoch, kept[-back].sequence, kept[-back].count
        elif isinstance(sequence, str):
            sequence = self.model.expected_sequence(producer_id)
        expected = self.model.judge(producer_id, epoch, sequence, count, transactional)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.states.check(producer_id, epoch, sequence, count - 1, transactional)
            return
        assert self.states.check(producer_id, epoch, sequence, count - 1, transactional) == expected
        if expected is None:
            offset = self.model.end_offset
            entry = Entry(producer_id, epoch, offset, sequence, count, transactional, self.now_ms)
            self.states.record(producer_id, epoch, sequence, count - 1, offset, self.now_ms, transactional)
            self.model.log.append(entry)
            self.model.end_offset += count
            self.silent.discard(producer_id)

    @rule(producer_id=producer_ids, epoch=epochs, commit=st.booleans())
    def mark(self, producer_id: int, epoch: int, commit: bool) -> None:
        known = self.model.known(producer_id)
        if known and epoch < known[-1].epoch:
            with pytest.raises(InvalidProducerEpochError):
                self.states.check_marker(producer_id, epoch, 0)
            return
        self.states.check_marker(producer_id, epoch, 0)
        start = self.model.open_since(producer_id)
        offset = self.model.end_offset
        self.model.log.append(Entry(producer_id, epoch, offset, -1, 1, True, self.now_ms, commit))
        self.model.end_offset += 1
        self.silent.discard(producer_id)
        completed = self.states.end_transaction(
            producer_id, epoch, offset, coordinator_epoch=0, timestamp_ms=self.now_ms
        )
        assert completed == start

    @rule(step=st.integers(1, 5))
    def sync(self, step: int) -> None:
        self.high_watermark = min(self.model.end_offset, self.high_watermark + step)

    @rule(step_ms=st.integers(0, 100))
    def expire(self, step_ms: int) -> None:
        self.now_ms += step_ms
        forgotten = 0
        for producer_id in range(4):
            known = self.model.known(producer_id)
            if not known or self.model.open_since(producer_id) is not None:
                continue
            if producer_id in self.silent and known[-1].timestamp_ms + 100 <= self.now_ms:
                self.model.forgotten[producer_id] = len(self.model.log)
                forgotten += 1
        self.silent = {0, 1, 2, 3}
        assert self.states.expire(self.now_ms, 100) == forgotten

    @rule()
    def restart_from_a_snapshot(self) -> None:
        self.high_watermark = self.model.end_offset
        restored = ProducerStates("t-0")
        restored.restore(self.states.snapshot())
        self.states = restored

    @precondition(lambda self: not self.model.forgotten)
    @rule()
    def restart_from_the_log(self) -> None:
        rebuilt = ProducerStates("t-0")
        for entry in self.model.log:
            if entry.commit is not None:
                rebuilt.end_transaction(
                    entry.producer_id,
                    entry.epoch,
                    entry.first_offset,
                    coordinator_epoch=0,
                    timestamp_ms=entry.timestamp_ms,
                )
            else:
                rebuilt.record(
                    entry.producer_id,
                    entry.epoch,
                    entry.sequence,
                    entry.count - 1,
                    entry.first_offset,
                    entry.timestamp_ms,
                    entry.transactional,
                )
        assert list(rebuilt.producers()) == list(self.states.producers())
        self.states = rebuilt
        self.silent = set()

    @invariant()
    def the_last_stable_offset_agrees(self) -> None:
        assert self.states.last_stable_offset(self.high_watermark) == self.model.last_stable_offset(self.high_watermark)

    @invariant()
    def open_transactions_agree(self) -> None:
        opened = {producer_id: self.model.open_since(producer_id) for producer_id in range(4)}
        starts = [start for start in opened.values() if start is not None]
        assert self.states.first_undecided_offset() == min(starts, default=None)


ProducersAgainstTheModel.TestCase.settings = settings(
    max_examples=examples(40, soak=1500), stateful_step_count=40, deadline=None
)
test_producers_agree_with_a_model_that_reads_the_whole_log = ProducersAgainstTheModel.TestCase
