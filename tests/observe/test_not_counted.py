"""Groups of a stream whose pointers do not count records, as those of Redis, Kinesis and files do not."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from penstock.consuming.health import Health, PartitionHealth
from penstock.model import Pointer
from penstock.observe.alerts import Rule, RuleKind, checking
from penstock.observe.alerts.evaluator import EvaluatorState
from penstock.observe.alerts.readings import unusable
from penstock.observe.facts import GroupFacts, PartitionFacts, ReaderFacts, Snapshot
from penstock.observe.history.history import measured
from penstock.observe.lag_rows import lag_rows
from penstock.observe.library_groups import LibraryGroup
from penstock.observe.metrics.stream import families
from penstock.testing.clock import VirtualClock
from tests.observe.fake_survey import FakeStream

A_MS = 1 << 64
"""One millisecond in pointers of Redis."""
PLACE = ("orders", 0)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def stream(clock: VirtualClock) -> FakeStream:
    return FakeStream(clock, is_counted=False)


def redis_pointer(at_ms: int) -> Pointer:
    return at_ms * A_MS


def append(stream: FakeStream, at_ms: int) -> None:
    stream.times[redis_pointer(at_ms)] = at_ms
    stream.start = min(stream.times) if stream.start == 0 else stream.start
    stream.end = redis_pointer(at_ms) + 1


def commit(stream: FakeStream, pointer: Pointer, delivered: int = 0, members: int = 1) -> None:
    stream.library["bill"] = LibraryGroup({PLACE: pointer}, {}, members, (), {PLACE: delivered})


def snapshot_of(stream: FakeStream) -> Snapshot:
    topic, groups = stream.look()
    return Snapshot(stream.clock.wall_ms(), {topic.name: topic}, groups, is_counted=False)


def told(stream: FakeStream) -> GroupFacts:
    return stream.look()[1]["bill"]


def test_a_lag_in_records_is_unknown_and_the_lag_in_time_is_told(stream: FakeStream, clock: VirtualClock) -> None:
    for _ in range(3):
        append(stream, clock.wall_ms())
        clock.advance(10)
    commit(stream, min(stream.times) + 1)
    group = told(stream)
    assert group.is_behind
    assert (group.lag, group.unread, group.lost, group.is_counted) == (None, 0, 0, False)
    assert group.lag_s == pytest.approx(20)
    (reader,) = group.readers
    assert reader.lag is None


def test_a_group_that_has_read_everything_has_a_lag_of_0(stream: FakeStream, clock: VirtualClock) -> None:
    append(stream, clock.wall_ms())
    commit(stream, stream.end)
    group = told(stream)
    assert (group.lag, group.lag_s, group.is_behind, group.time_to_drain_s) == (0, 0.0, False, 0.0)


def test_where_a_read_finds_nothing_more_nothing_is_behind(stream: FakeStream, clock: VirtualClock) -> None:
    append(stream, clock.wall_ms())
    commit(stream, stream.end)
    stream.end += 5 * A_MS  # a system may tell an end beyond its last record
    group = told(stream)
    assert (group.lag, group.is_behind) == (0, False)


def test_rates_and_the_time_to_drain_come_from_checkpoints_and_from_time(
    stream: FakeStream, clock: VirtualClock
) -> None:
    begun_ms = clock.wall_ms()
    for second in range(200):
        append(stream, begun_ms + 1000 * second)
    clock.advance(200)
    for look in range(12):  # each second a record comes, and three are read
        append(stream, clock.wall_ms())
        commit(stream, redis_pointer(begun_ms + 15_000 * look), delivered=15 * look)
        stream.look()
        clock.advance(5)
    group = told(stream)
    assert group.rate_per_s == pytest.approx(3.0, rel=0.1)
    assert group.lag is None
    assert not group.is_growing
    assert group.lag_s is not None
    assert group.time_to_drain_s == pytest.approx(group.lag_s / 2, rel=0.3)


def test_a_group_that_reads_less_than_comes_is_growing_and_one_without_new_records_is_not(
    stream: FakeStream, clock: VirtualClock
) -> None:
    begun_ms = clock.wall_ms()
    for second in range(600):
        append(stream, begun_ms - 600_000 + 1000 * second)
    for look in range(12):
        append(stream, clock.wall_ms())
        commit(stream, redis_pointer(begun_ms - 600_000 + 1000 * look))
        stream.look()
        clock.advance(5)
    assert told(stream).is_growing
    for _ in range(30):  # nothing comes any more, and nothing is read
        clock.advance(5)
        stream.look()
    assert not told(stream).is_growing


def test_a_start_beyond_the_reader_is_a_loss_only_if_a_read_says_so(stream: FakeStream, clock: VirtualClock) -> None:
    append(stream, clock.wall_ms())
    commit(stream, 1)  # the partition was empty when it committed
    clock.advance(1)
    group = told(stream)
    assert (group.lost, group.time_to_loss_s) == (0, None)
    append(stream, clock.wall_ms())
    stream.start = stream.expired_before = max(stream.times)
    clock.advance(1)
    group = told(stream)
    assert (group.lost, group.time_to_loss_s) == (1, 0.0)


def test_the_time_to_loss_is_known_by_age_and_by_the_pace_of_the_start(clock: VirtualClock) -> None:
    by_age = FakeStream(clock, {"retention.ms": "60000"}, is_counted=False)
    append(by_age, clock.wall_ms())
    clock.advance(20)
    commit(by_age, 1, members=0)
    assert told(by_age).time_to_loss_s == pytest.approx(40, abs=1)

    by_pace = FakeStream(clock, is_counted=False)
    by_pace.config = None
    begun_ms = clock.wall_ms()
    for second in range(1000):
        append(by_pace, begun_ms + 1000 * second)
    commit(by_pace, redis_pointer(begun_ms + 500_000))
    for look in range(6):  # trimmed by 10 seconds' worth of records in each second
        by_pace.start = redis_pointer(begun_ms + 50_000 * look)
        by_pace.look()
        clock.advance(5)
    by_pace.start = redis_pointer(begun_ms + 300_000)
    assert told(by_pace).time_to_loss_s == pytest.approx(20, rel=0.2)


def test_the_systems_own_count_is_used_where_it_is_exact() -> None:
    partition = PartitionFacts("orders", 0, A_MS, 9 * A_MS, is_counted=False, stored=8)
    assert partition.records == 8
    assert dataclasses.replace(partition, stored=None).records is None
    assert dataclasses.replace(partition, stored=None, end=A_MS).records == 0
    reader = ReaderFacts("bill", "orders", 0, A_MS, A_MS, 9 * A_MS, is_counted=False, stored=8)
    assert reader.lag == 8  # it has read none of them
    assert dataclasses.replace(reader, committed=2 * A_MS).lag is None
    assert dataclasses.replace(reader, committed=None).unread == 8


def test_rows_history_and_metrics_leave_out_what_is_unknown(stream: FakeStream, clock: VirtualClock) -> None:
    for _ in range(3):
        append(stream, clock.wall_ms())
        clock.advance(1)
    commit(stream, min(stream.times) + 1)
    snapshots = [snapshot_of(stream)]
    clock.advance(2)
    snapshots.append(snapshot_of(stream))
    (row,) = lag_rows(snapshots)
    assert (row.lag, row.is_counted, row.is_growing) == (None, False, False)
    assert row.lag_s == pytest.approx(4)
    values = measured(snapshots[-1])
    assert values["group", "bill", "lag"] is None
    assert values["system", "", "lag"] is None
    assert values["system", "", "lag_s"] == pytest.approx(4)
    assert values["topic", "orders", "records"] is None
    samples = {each.name: each.samples for each in families(snapshots[-1])}
    assert samples["penstock_reader_lag_records"] == []
    assert samples["penstock_topic_records"] == []
    assert samples["penstock_reader_lag_seconds"][0].value == pytest.approx(4)


def test_a_rule_about_records_is_told_to_be_of_no_use_and_one_about_seconds_fires(
    stream: FakeStream, clock: VirtualClock
) -> None:
    append(stream, clock.wall_ms())
    clock.advance(100)
    append(stream, clock.wall_ms())
    commit(stream, min(stream.times), members=0)
    clock.advance(20)
    rules = [
        Rule(name="many", kind=RuleKind.LAG, threshold=1),
        Rule(name="old", kind=RuleKind.LAG_S, threshold=60),
        Rule(name="still", kind=RuleKind.STALLED, threshold=1),
    ]
    first = snapshot_of(stream)
    clock.advance(5)
    second = snapshot_of(stream)
    text = unusable(rules, second)
    assert text is not None
    assert "many" in text
    assert "lag_s" in text
    assert unusable(rules[1:], second) is None
    assert unusable(rules, dataclasses.replace(second, is_counted=True)) is None
    firing, memory = checking.check(rules, [first, second], EvaluatorState())
    assert {each.rule for each in firing} == {"old", "still"}
    assert all("record" not in each.text.split("behind")[0] for each in firing)
    stored = msgspec.json.decode(msgspec.json.encode(memory), type=EvaluatorState)  # pointers exceed 64 bits
    assert stored.marks == memory.marks


def test_the_health_of_a_consumer_tells_a_lag_only_if_it_is_known() -> None:
    behind = PartitionHealth(0, A_MS, 3 * A_MS, 0, 0, 0.0, is_counted=False)
    done = PartitionHealth(1, A_MS, A_MS, 0, 0, 0.0, is_counted=False)
    assert (behind.lag, behind.is_behind) == (None, True)
    assert (done.lag, done.is_behind) == (0, False)
    assert Health("orders", "bill", True, (behind, done), (), 0, 0).lag is None
    assert Health("orders", "bill", True, (done,), (), 0, 0).lag == 0
