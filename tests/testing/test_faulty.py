"""Parts that fail as their script says, and are the real ones otherwise."""

from __future__ import annotations

import threading

import pytest

from penstock.abc import Feeding, Grouping, TransactionalStore
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.errors import DeliveryError, OffsetOutOfRangeError, StoreUnavailableError
from penstock.model import Change, Checkpoint, CheckpointKey, NewRecord
from penstock.testing import Fate, FaultyStore, FaultyStream, FaultyTopicStream, MemoryStream, VirtualClock

KEY = CheckpointKey("group", "topic", 0)


def new_records(*values: bytes) -> list[NewRecord]:
    return [NewRecord("topic", value) for value in values]


def stored(stream: FaultyTopicStream) -> list[bytes | None]:
    return [record.value for record in stream.read(0, 0, 1000, 0.0)]


@pytest.fixture
def stream() -> FaultyTopicStream:
    streams = MemoryStream()
    streams.create_topic("topic")
    return FaultyTopicStream(streams.open_topic("topic"))


def test_a_failed_call_has_no_effect_and_the_one_after_it_is_fine() -> None:
    store = FaultyStore(MemoryCheckpoints())
    store.faults.fail("claim", StoreUnavailableError("no route"))
    with pytest.raises(StoreUnavailableError, match="no route"):
        store.claim("group", KEY.lease_name, "me", None)
    assert store.leases("group") == []
    assert store.claim("group", KEY.lease_name, "me", None) is not None
    assert (store.faults.calls["claim"], store.faults.failed["claim"]) == (2, 1)


def test_a_lost_answer_is_an_effect_that_nobody_was_told_of() -> None:
    store = FaultyStore(MemoryCheckpoints())
    lease = store.claim("group", KEY.lease_name, "me", None)
    assert lease is not None
    store.faults.fail("save", StoreUnavailableError("timeout"), after=True)
    with pytest.raises(StoreUnavailableError):
        store.save(lease, KEY, Change(Checkpoint(3, 5)))
    loaded = store.load(KEY)
    assert loaded is not None
    assert loaded.start == 3


def test_faults_come_where_the_script_has_them(stream: FaultyTopicStream) -> None:
    stream.faults.fail("read", OffsetOutOfRangeError("topic-0", 1, 2, 3), passes=1, times=2)
    outcomes = []
    for _ in range(5):
        try:
            stream.read(0, 0, 1, 0.0)
            outcomes.append("fine")
        except OffsetOutOfRangeError:
            outcomes.append("gone")
    assert outcomes == ["fine", "gone", "gone", "fine", "fine"]


def test_several_faults_of_one_operation_come_one_after_the_other(stream: FaultyTopicStream) -> None:
    stream.faults.fail("span", StoreUnavailableError("first"))
    stream.faults.fail("span", StoreUnavailableError("second"))
    for text in ("first", "second"):
        with pytest.raises(StoreUnavailableError, match=text):
            stream.span(0)
    assert stream.span(0) == (0, 0)


def test_healing_ends_all_faults(stream: FaultyTopicStream) -> None:
    stream.faults.fail("span", StoreUnavailableError("x"), times=None)
    stream.faults.refuse(times=None)
    stream.faults.fail_randomly(1.0, StoreUnavailableError("x"))
    stream.faults.spoil_randomly(1.0)
    stream.faults.heal()
    assert stream.span(0) == (0, 0)
    assert [receipt.error for receipt in stream.append(new_records(b"a"))] == [None]


def test_a_fault_of_an_operation_that_does_not_exist_is_refused(stream: FaultyTopicStream) -> None:
    with pytest.raises(ValueError, match=r"'raed' is not an operation.*read"):
        stream.faults.fail("raed", StoreUnavailableError("x"))
    with pytest.raises(ValueError, match="must be an integer"):
        stream.faults.fail("read", StoreUnavailableError("x"), times=0)


def test_a_delay_takes_its_time_on_the_clock() -> None:
    clock = VirtualClock()
    streams = MemoryStream()
    streams.create_topic("topic")
    stream = FaultyTopicStream(streams.open_topic("topic"), clock)
    stream.faults.delay("span", 30.0)
    answered = threading.Event()

    def ask() -> None:
        stream.span(0)
        answered.set()

    threading.Thread(target=ask, daemon=True).start()
    clock.wait_for_sleepers(1)
    assert not answered.is_set()
    clock.advance(30)
    assert answered.wait(10)


def test_refused_records_are_not_stored(stream: FaultyTopicStream) -> None:
    stream.faults.refuse(passes=1, times=2)
    receipts = stream.append(new_records(b"a", b"b", b"c", b"d"))
    assert [receipt.error is not None for receipt in receipts] == [False, True, True, False]
    assert stored(stream) == [b"a", b"d"]
    assert receipts[3].result().offset == 1


def test_a_record_without_acknowledgement_is_stored(stream: FaultyTopicStream) -> None:
    stream.faults.lose_acknowledgements(DeliveryError("gone astray"))
    [receipt] = stream.append(new_records(b"a"))
    with pytest.raises(DeliveryError, match="gone astray"):
        receipt.result(5)
    assert stored(stream) == [b"a"]


def test_a_duplicated_record_is_stored_twice(stream: FaultyTopicStream) -> None:
    stream.faults.duplicate(passes=1)
    receipts = stream.append(new_records(b"a", b"b", b"c"))
    assert stored(stream) == [b"a", b"b", b"b", b"c"]
    assert [receipt.result().offset for receipt in receipts] == [0, 1, 3]


def test_the_same_seed_gives_the_same_faults() -> None:
    outcomes = []
    for _ in range(2):
        streams = MemoryStream()
        streams.create_topic("topic")
        stream = FaultyTopicStream(streams.open_topic("topic"))
        assert stream.faults.spoil_randomly(0.5, seed=42) == 42
        stream.faults.fail_randomly(0.3, StoreUnavailableError("x"), operations=["append"], seed=43)
        fates = []
        for _ in range(50):
            try:
                fates += [receipt.error is None for receipt in stream.append(new_records(b"a", b"b"))]
            except StoreUnavailableError:
                fates.append(False)
        outcomes.append((fates, len(stored(stream))))
    assert outcomes[0] == outcomes[1]
    assert 0 < sum(outcomes[0][0]) < len(outcomes[0][0])


def test_a_seed_that_nobody_chose_is_told(stream: FaultyTopicStream, caplog: pytest.LogCaptureFixture) -> None:
    seeds = [
        stream.faults.fail_randomly(0.5, StoreUnavailableError("x")),
        stream.faults.spoil_randomly(0.5, [Fate.REFUSED]),
    ]
    assert all(f"seed {seed}" in caplog.text for seed in seeds)


def test_a_system_of_streams_has_one_script() -> None:
    streams = FaultyStream(MemoryStream())
    streams.faults.refuse(times=2)
    refused = [
        [receipt.error is not None for receipt in streams.open_topic(topic).append([NewRecord(topic, b"a")] * 2)]
        for topic in ("one", "two")
    ]
    assert refused == [[True, True], [False, False]]


def test_feeds_follow_the_script_too(stream: FaultyTopicStream) -> None:
    assert isinstance(stream, Feeding)
    stream.append(new_records(b"a"))
    feed = stream.feed()
    feed.add(0, 0)
    stream.faults.fail("poll", OffsetOutOfRangeError("topic-0", 0, 1, 2))
    with pytest.raises(OffsetOutOfRangeError):
        feed.poll(10, 0.0)
    assert [len(batch) for batch in feed.poll(10, 0.0)] == [1]


def test_a_wrapper_has_what_the_part_has_and_no_more(stream: FaultyTopicStream) -> None:
    assert not isinstance(stream, Grouping)
    plain = MemoryCheckpoints()
    assert isinstance(FaultyStore(plain), TransactionalStore) == isinstance(plain, TransactionalStore)


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_that_fails_was_rolled_back_or_its_answer_was_lost(after: bool) -> None:
    store = FaultyStore(MemoryCheckpoints())
    lease = store.claim("group", KEY.lease_name, "me", None)
    assert lease is not None
    store.faults.fail("commit", StoreUnavailableError("timeout"), after=after)
    with pytest.raises(StoreUnavailableError), store.transaction() as transaction:
        transaction.save(lease, KEY, Change(Checkpoint(3, 5)))
    assert (store.load(KEY) is not None) == after
    with store.transaction() as transaction:
        transaction.save(lease, KEY, Change(Checkpoint(4, 5)))
    loaded = store.load(KEY)
    assert loaded is not None
    assert loaded.start == 4
