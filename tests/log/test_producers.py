"""What a partition answers to idempotent and transactional producers, rule by rule."""

from __future__ import annotations

import msgspec
import pytest

from penstock.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from penstock.log.producers import (
    MAX_SETTLING,
    PRODUCER_ID_EXPIRATION_MS,
    Duplicate,
    ProducerStates,
)

LAST_SEQUENCE = 2**31 - 1
NOW_MS = 1_700_000_000_000


def append(
    states: ProducerStates,
    offset: int,
    sequence: int,
    *,
    producer_id: int = 1,
    epoch: int = 0,
    count: int = 1,
    transactional: bool = False,
    timestamp_ms: int = NOW_MS,
) -> Duplicate | None:
    """Check a batch as the partition log does, and record it if it is new."""
    duplicate = states.check(producer_id, epoch, sequence, count - 1, transactional)
    if duplicate is None:
        states.record(producer_id, epoch, sequence, count - 1, offset, timestamp_ms, transactional)
    return duplicate


def end(states: ProducerStates, offset: int, *, producer_id: int = 1, epoch: int = 0) -> int | None:
    return states.end_transaction(producer_id, epoch, offset, coordinator_epoch=0, timestamp_ms=NOW_MS)


def test_batches_in_order_are_new() -> None:
    states = ProducerStates("t-0")
    assert append(states, 0, 0, count=3) is None
    assert append(states, 3, 3, count=2) is None
    assert append(states, 5, 5) is None


def test_each_of_the_last_five_batches_is_recognised_when_it_comes_again() -> None:
    states = ProducerStates("t-0")
    for number in range(6):
        append(states, 100 + 2 * number, 2 * number, count=2, timestamp_ms=NOW_MS + number)
    for number in range(1, 6):
        assert append(states, 999, 2 * number, count=2) == Duplicate(
            100 + 2 * number, 101 + 2 * number, NOW_MS + number
        )
    with pytest.raises(OutOfOrderSequenceError, match="must start at sequence 12, but was 0"):
        append(states, 999, 0, count=2)


def test_a_batch_that_only_overlaps_an_earlier_one_is_out_of_order() -> None:
    states = ProducerStates("t-0")
    append(states, 0, 0, count=4)
    with pytest.raises(OutOfOrderSequenceError):
        append(states, 4, 0, count=3)
    with pytest.raises(OutOfOrderSequenceError):
        append(states, 4, 2, count=4)


def test_a_gap_is_out_of_order_and_does_not_change_what_is_expected() -> None:
    states = ProducerStates("t-0")
    append(states, 0, 0)
    with pytest.raises(OutOfOrderSequenceError):
        append(states, 1, 2)
    assert append(states, 1, 1) is None


def test_an_unknown_producer_may_start_anywhere() -> None:
    states = ProducerStates("t-0")
    assert append(states, 0, 41) is None
    assert append(states, 1, 42) is None
    with pytest.raises(OutOfOrderSequenceError):
        append(states, 2, 0)


def test_a_new_epoch_starts_at_zero_and_forgets_the_old_batches() -> None:
    states = ProducerStates("t-0")
    append(states, 0, 0)
    append(states, 1, 1)
    with pytest.raises(OutOfOrderSequenceError):
        append(states, 2, 2, epoch=1)
    assert append(states, 2, 0, epoch=1) is None
    assert append(states, 9, 0, epoch=1) == Duplicate(2, 2, NOW_MS)


def test_an_older_epoch_is_fenced_even_with_a_batch_that_was_written_before() -> None:
    states = ProducerStates("t-0")
    append(states, 0, 0)
    append(states, 1, 0, epoch=1)
    with pytest.raises(InvalidProducerEpochError, match="epoch 0, but epoch 1"):
        append(states, 2, 0)


def test_sequence_numbers_go_on_at_zero_after_the_largest() -> None:
    states = ProducerStates("t-0")
    append(states, 0, LAST_SEQUENCE - 1, count=2)
    assert append(states, 2, 0) is None

    across = ProducerStates("t-0")
    append(across, 0, LAST_SEQUENCE - 1, count=4)
    assert append(across, 9, LAST_SEQUENCE - 1, count=4) == Duplicate(0, 3, NOW_MS)
    assert append(across, 4, 2) is None
    assert [state.last_sequence for state in across.producers()] == [2]


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (0, -1)])
def test_a_client_must_give_an_epoch_and_a_sequence_with_its_id(epoch: int, sequence: int) -> None:
    states = ProducerStates("t-0")
    with pytest.raises(InvalidRecordError):
        append(states, 0, sequence, epoch=epoch)
    states.record(1, 0, -1, 0, 0, NOW_MS, True)
    with pytest.raises(InvalidRecordError):
        append(states, 1, sequence, epoch=epoch, transactional=True)


def test_batches_the_broker_writes_for_a_producer_carry_no_sequence_but_an_epoch() -> None:
    states = ProducerStates("__consumer_offsets-0")
    states.check_epoch(1, 3, True)
    states.record(1, 3, -1, 0, 10, NOW_MS, True)
    states.check_epoch(1, 3, True)
    states.record(1, 3, -1, 0, 11, NOW_MS, True)
    assert states.first_undecided_offset() == 10
    assert [state.last_sequence for state in states.producers()] == [-1]
    with pytest.raises(InvalidProducerEpochError):
        states.check_epoch(1, 2, True)
    with pytest.raises(InvalidTransactionStateError):
        states.check_epoch(1, 3, False)


def test_a_plain_batch_amid_a_transaction_is_refused() -> None:
    states = ProducerStates("t-0")
    append(states, 0, 0, transactional=True)
    assert states.first_undecided_offset() == 0
    with pytest.raises(InvalidTransactionStateError, match="open since offset 0"):
        append(states, 1, 1)
    end(states, 1)
    assert states.first_undecided_offset() is None
    assert append(states, 2, 1) is None


def test_a_marker_tells_which_transaction_it_ended() -> None:
    states = ProducerStates("t-0")
    append(states, 5, 0, count=3, transactional=True)
    assert end(states, 8) == 5
    assert states.first_undecided_offset() is None
    append(states, 9, 3, transactional=True)
    append(states, 10, 0, producer_id=2, transactional=True)
    assert end(states, 11) == 9
    assert states.first_undecided_offset() == 10


def test_a_marker_without_records_before_it_ends_nothing() -> None:
    states = ProducerStates("t-0")
    assert end(states, 0) is None
    append(states, 1, 0, transactional=True)
    assert end(states, 2) is not None
    assert end(states, 3) is None
    assert states.last_stable_offset(4) == 4


def test_a_marker_with_a_higher_epoch_fences_the_producer_and_restarts_its_sequence() -> None:
    states = ProducerStates("t-0")
    append(states, 0, 0, transactional=True)
    end(states, 1, epoch=1)
    with pytest.raises(InvalidProducerEpochError):
        append(states, 2, 1, transactional=True)
    with pytest.raises(OutOfOrderSequenceError):
        append(states, 2, 1, epoch=1, transactional=True)
    assert append(states, 2, 0, epoch=1, transactional=True) is None


def test_a_marker_with_the_same_epoch_lets_the_sequence_go_on() -> None:
    states = ProducerStates("t-0")
    append(states, 0, 0, transactional=True)
    end(states, 1)
    assert append(states, 2, 1, transactional=True) is None
    assert append(states, 3, 0, transactional=True) == Duplicate(0, 0, NOW_MS)


def test_a_marker_from_the_past_is_refused() -> None:
    states = ProducerStates("t-0")
    states.check_marker(1, 0, 0)
    append(states, 0, 0, epoch=2, transactional=True)
    with pytest.raises(InvalidProducerEpochError):
        states.check_marker(1, 1, 0)
    states.end_transaction(1, 2, 1, coordinator_epoch=7, timestamp_ms=NOW_MS)
    with pytest.raises(TransactionCoordinatorFencedError, match="epoch 6, but 7"):
        states.check_marker(1, 2, 6)
    states.check_marker(1, 2, 7)
    states.check_marker(1, 3, 8)


def test_readers_of_committed_records_wait_for_the_earliest_open_transaction() -> None:
    states = ProducerStates("t-0")
    append(states, 0, 0, producer_id=9)
    append(states, 1, 0, producer_id=1, transactional=True)
    append(states, 2, 0, producer_id=2, transactional=True)
    append(states, 3, 1, producer_id=1, transactional=True)
    assert states.last_stable_offset(1) == 1
    assert states.last_stable_offset(4) == 1
    end(states, 4, producer_id=1)
    assert states.last_stable_offset(4) == 1, "the marker is not below the high watermark"
    assert states.last_stable_offset(5) == 2
    end(states, 5, producer_id=2)
    assert states.last_stable_offset(6) == 6


def test_the_last_stable_offset_is_never_below_the_start_of_the_log() -> None:
    states = ProducerStates("t-0")
    append(states, 3, 0, transactional=True)
    assert states.last_stable_offset(10, log_start_offset=7) == 7


def test_ended_transactions_that_nobody_asks_about_do_not_pile_up() -> None:
    states = ProducerStates("t-0")
    for number in range(3 * MAX_SETTLING):
        append(states, 2 * number, number, transactional=True)
        end(states, 2 * number + 1)
    assert len(states._settling) <= MAX_SETTLING
    assert states.last_stable_offset(6 * MAX_SETTLING - 1) < 6 * MAX_SETTLING - 1
    assert states.last_stable_offset(6 * MAX_SETTLING) == 6 * MAX_SETTLING


def test_a_silent_producer_is_forgotten_and_may_come_back_with_any_sequence() -> None:
    states = ProducerStates("t-0")
    append(states, 0, 0)
    append(states, 1, 0, producer_id=2, transactional=True)
    assert states.expire(NOW_MS) == 0
    assert states.expire(NOW_MS + PRODUCER_ID_EXPIRATION_MS - 1) == 0
    assert states.expire(NOW_MS + PRODUCER_ID_EXPIRATION_MS) == 1
    assert 1 not in states
    assert 2 in states, "it has an open transaction"
    assert append(states, 2, 17) is None


def test_a_producer_that_writes_old_timestamps_is_not_forgotten_while_it_writes() -> None:
    states = ProducerStates("t-0")
    for number in range(3):
        append(states, number, number, timestamp_ms=0)
        assert states.expire(NOW_MS) == 0
    assert append(states, 3, 2, timestamp_ms=0) == Duplicate(2, 2, 0)
    assert states.expire(NOW_MS) == 1


def test_a_snapshot_holds_everything() -> None:
    states = ProducerStates("t-0")
    append(states, 1, 4, producer_id=8, epoch=2, count=2, transactional=True)
    append(states, 3, 0, producer_id=3, transactional=True)
    append(states, 4, 0, producer_id=5)
    end(states, 5, producer_id=5)
    restored = ProducerStates("t-0")
    restored.restore(states.snapshot())
    assert list(restored.producers()) == list(states.producers())
    assert restored.first_undecided_offset() == 1
    assert append(restored, 9, 4, producer_id=8, epoch=2, count=2, transactional=True) == Duplicate(1, 2, NOW_MS)
    assert append(restored, 6, 1, producer_id=3, transactional=True) is None


@pytest.mark.parametrize("damage", [b"", b"\x00", b"not msgpack", msgspec.msgpack.encode((2, []))])
def test_what_is_not_a_snapshot_is_refused_and_changes_nothing(damage: bytes) -> None:
    states = ProducerStates("t-0")
    append(states, 0, 0)
    before = states.snapshot()
    with pytest.raises(ValueError, match="snapshot"):
        states.restore(damage)
    assert states.snapshot() == before
