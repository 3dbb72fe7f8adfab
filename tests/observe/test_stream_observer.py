"""Looking at a real broker: topics, groups of Kafka's and of the library, dead letters, and a broker that is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import NewTopic

import penstock
from penstock.checkpoints.kafka.store import KafkaCheckpoints
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.dead_letters import open_dead_letters
from penstock.errors import ConfigError
from penstock.model import Change, Checkpoint, CheckpointKey, DeadLetter, LetterState, Record
from penstock.observe.facts import LetterFacts
from penstock.observe.letters import COUNTED_UP_TO
from penstock.observe.stream_observer import StreamObserver
from penstock.streams.kafka.stream import kafka_of
from penstock.testing.clock import VirtualClock
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Penstock


@pytest.fixture
def observer(stream: penstock.Connection, tmp_path: Path) -> Iterator[StreamObserver]:
    made = StreamObserver(stream, pipelines=tmp_path)
    yield made
    made.close()


def commit(stream: penstock.Connection, group: str, topic: str, offset: int, partition: int = 0) -> None:
    places = [TopicPartition(topic, partition, offset)]
    asked = [ConsumerGroupTopicPartitions(group, places)]
    kafka_of(stream).administration.admin.alter_consumer_group_offsets(asked)[group].result(20)


def send(stream: penstock.Connection, topic: str, count: int, timestamp_ms: int | None = None) -> None:
    for number in range(count):
        stream.send(topic, f"value {number}", timestamp=timestamp_ms)
    stream.flush(20)


def letter(number: int) -> DeadLetter:
    record = Record("orders", 0, number, None, b"value", (), 1_000)
    return DeadLetter(
        id=f"{number:024x}",
        record=record,
        group="billing",
        handler="bill",
        handler_version="",
        attempts=1,
        error_kind="ValueError",
        error="no",
        traceback="",
        first_ms=1,
        last_ms=1,
        state=LetterState.WAITING,
    )


def test_a_look_tells_what_a_topic_holds_and_how_long_it_keeps_it(
    observer: StreamObserver, stream: penstock.Connection
) -> None:
    topic = fresh()
    stream.create_topic(topic, 2, {"retention.ms": "60000", "retention.bytes": "-1", "cleanup.policy": "compact"})
    for partition, count in ((0, 3), (1, 4)):
        for number in range(count):
            stream.send(topic, "value", key=str(number), partition=partition)
    stream.flush(20)
    snapshot = observer.look()
    assert snapshot.problem is None
    facts = snapshot.topics[topic]
    assert [(each.partition, each.start, each.end) for each in facts.partitions] == [(0, 0, 3), (1, 0, 4)]
    assert (facts.retention_ms, facts.retention_bytes, facts.is_compacted) == (60_000, None, True)
    assert (facts.size_bytes or 0) > 0
    assert facts.rate_per_s is None, "one look is no rate"
    assert snapshot.topics["__consumer_offsets"].is_internal if "__consumer_offsets" in snapshot.topics else True


def test_the_oldest_record_that_waits_tells_the_lag_in_seconds(
    observer: StreamObserver, stream: penstock.Connection
) -> None:
    topic, group = fresh(), fresh("group")
    stream.create_topic(topic, 1, {"retention.ms": str(3 * 3_600_000)})
    now_ms = time.time_ns() // 1_000_000
    for age_s in (7_000, 5_000, 3_000):
        send(stream, topic, 1, now_ms - age_s * 1_000)
    commit(stream, group, topic, 1)
    eventually("the record was read", lambda: (observer.look().groups[group].lag_s or 0) > 1_000)
    facts = observer.look().groups[group]
    assert (facts.state, facts.members, facts.lag) == ("empty", 0, 2)
    assert facts.lag_s == pytest.approx(5_000, abs=60)
    assert facts.time_to_loss_s == pytest.approx(3 * 3_600 - 5_000, abs=60), "nobody is in it, so it stands still"


def test_what_is_foreseen_to_be_lost_now_is_what_the_broker_removes(
    observer: StreamObserver, stream: penstock.Connection
) -> None:
    """Records of known ages, each in a segment of its own: of those with no time left none is kept, of others all."""
    topic = fresh()
    stream.create_topic(topic, 1, {"internal.segment.bytes": "100", "retention.ms": "-1"})
    now_ms = time.time_ns() // 1_000_000
    ages_s = (9_000, 8_000, 7_300, 6_000, 2_000, 10)
    for age_s in ages_s:
        stream.send(topic, "v" * 80, timestamp=now_ms - age_s * 1_000).result(20)
    groups = {fresh("group"): offset for offset in range(len(ages_s))}
    for group, offset in groups.items():
        commit(stream, group, topic, offset)
    before = observer.look()
    assert all(before.groups[group].time_to_loss_s is None for group in groups), "it keeps everything"
    stream.admin().change_config(topic, {"retention.ms": "7200000"})
    eventually("old records go", lambda: stream.open_topic(topic).span(0)[0] > 0)
    foreseen = StreamObserver(stream)
    try:
        snapshot = foreseen.look()
    finally:
        foreseen.close()
    (partition,) = snapshot.topics[topic].partitions
    assert partition.start == 3
    for group, offset in groups.items():
        facts = snapshot.groups[group]
        if ages_s[offset] > 7_200:
            assert (facts.lost, facts.time_to_loss_s) == (3 - offset, 0)
        else:
            assert facts.lost == 0


def test_a_transaction_leaves_a_mark_that_nobody_waits_for(
    observer: StreamObserver, stream: penstock.Connection
) -> None:
    topic, group = fresh(), fresh("group")
    stream.create_topic(topic, 1, {"retention.ms": "60000"})
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": stream.bootstrap, "transactional.id": fresh("transaction")})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    producer.commit_transaction(20)
    commit(stream, group, topic, 1)
    eventually("nothing is found to wait", lambda: observer.look().groups[group].lag_s == 0)
    facts = observer.look().groups[group]
    assert (facts.lag, facts.lag_s, facts.time_to_loss_s) == (1, 0, None)


def test_groups_of_the_library_are_found_in_the_store_of_the_log(tmp_path: Path) -> None:
    with penstock.connect(f"log:{tmp_path}") as stream:
        stream.create_topic("orders")
        send(stream, "orders", 10)
        observer = StreamObserver(stream)
        try:
            assert observer.look().groups == {}
            assert not (tmp_path / "checkpoints.sqlite").exists(), "looking makes no store"
            with SqliteCheckpoints(tmp_path / "checkpoints.sqlite") as store:
                key = CheckpointKey("billing", "orders", 0)
                lease = store.claim("billing", key.lease_name, "me", None)
                assert lease is not None
                store.save(lease, key, Change(Checkpoint(4, 8, ((6, 7),))))
                facts = observer.look().groups["billing"]
                assert (facts.is_library, facts.lag, facts.state) == (True, 6, "empty")
                assert store.claim("billing", "member:orders:me", "me", None) is not None
                facts = observer.look().groups["billing"]
                assert (facts.state, facts.members, facts.readers[0].member) == ("stable", 1, "me")
        finally:
            observer.close()


def test_dead_letters_are_counted_in_topics_and_where_they_were_said_to_be(
    stream: penstock.Connection, tmp_path: Path
) -> None:
    topic = fresh() + ".dlq"
    place = f"sqlite:{tmp_path / 'letters.db'}"
    observer = StreamObserver(stream, dead_letters=[place], pipelines=tmp_path, clock=VirtualClock())
    in_topic = open_dead_letters(topic, stream)
    try:
        assert observer.look().letters[place] == LetterFacts(place, 0)
        assert not (tmp_path / "letters.db").exists(), "looking makes no file"
        in_topic.put([letter(1), letter(2), letter(3)])
        assert observer.look().letters[topic] == LetterFacts(topic, 3)
        in_topic.discard([f"{2:024x}"])
        assert observer.look().letters[topic] == LetterFacts(topic, 2)
        in_file = open_dead_letters(place)
        in_file.put([letter(1)])
        in_file.close()
        assert observer.look().letters[place] == LetterFacts(place, 1)
    finally:
        in_topic.close()
        observer.close()


def test_a_place_with_very_many_letters_is_not_counted_at_every_look(
    stream: penstock.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh() + ".dlq"
    stream.create_topic(topic, 1)
    send(stream, topic, 20)
    monkeypatch.setattr("penstock.observe.letters.COUNTED_UP_TO", 19)
    assert COUNTED_UP_TO >= 10_000
    observer = StreamObserver(stream, pipelines=tmp_path)
    try:
        assert observer.look().letters[topic] == LetterFacts(topic, 20, is_exact=False)
    finally:
        observer.close()


def test_many_topics_and_groups_take_few_requests(observer: StreamObserver, stream: penstock.Connection) -> None:
    """Asked one by one, 150 topics and 60 groups would take more than 600 requests, each with a wait for its answer."""
    prefix = fresh()
    admin = kafka_of(stream).administration.admin
    made = admin.create_topics([NewTopic(f"{prefix}-{number}", 2) for number in range(150)])
    for future in made.values():
        future.result(60)
    for number in range(60):
        commit(stream, f"{prefix}-{number}", f"{prefix}-{number}", 0)
    snapshot = observer.look()
    ours = [name for name in snapshot.topics if name.startswith(prefix)]
    assert len(ours) == 150
    assert all(len(snapshot.topics[name].partitions) == 2 for name in ours)
    assert sum(name.startswith(prefix) for name in snapshot.groups) == 60


def test_memory_has_nothing_to_look_at() -> None:
    with penstock.connect("memory:looked-at") as stream, pytest.raises(ConfigError, match="log: or kafka:"):
        StreamObserver(stream)


def test_a_broker_that_is_away_leaves_what_was_last_known_and_says_why(tmp_path: Path) -> None:
    with Penstock(tmp_path / "broker") as server, penstock.connect(f"kafka://{server.bootstrap}") as stream:
        stream.create_topic("orders")
        send(stream, "orders", 5)
        commit(stream, "billing", "orders", 2)
        observer = StreamObserver(stream, timeout_s=1.0, pipelines=tmp_path)
        before = observer.look()
        server.kill()
        away = observer.look()
        assert away.problem is not None
        assert f"nothing answers at {server.bootstrap}" in away.problem
        assert (away.topics, away.groups) == (before.topics, before.groups)
        assert away.at_ms >= before.at_ms
        assert away.took_s < 10
        server.start()
        eventually("it answers again", lambda: observer.look().problem is None)
        assert observer.look().groups["billing"].lag == 3
        observer.close()


def test_groups_whose_checkpoints_are_in_the_stream_are_found(
    observer: StreamObserver, stream: penstock.Connection
) -> None:
    topic, group = fresh(), fresh("group")
    stream.create_topic(topic)
    send(stream, topic, 5)
    store = KafkaCheckpoints(stream, partitions=1)
    try:
        key = CheckpointKey(group, topic, 0)
        lease = store.claim(group, key.lease_name, "me", None)
        assert lease is not None
        store.save(lease, key, Change(Checkpoint(2, 4)))
        facts = observer.look().groups[group]
        assert (facts.is_library, facts.lag) == (True, 3)
    finally:
        store.close()


def test_a_store_that_is_not_there_is_not_made_by_looking(stream: penstock.Connection, tmp_path: Path) -> None:
    for given in (f"sqlite:{tmp_path / 'none.db'}?busy_timeout_s=1", f"file:{tmp_path / 'none'}"):
        observer = StreamObserver(stream, checkpoints=given, pipelines=tmp_path)
        assert observer.look().problem is None
        observer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_none_is_refused(stream: penstock.Connection) -> None:
    with pytest.raises(ConfigError, match="'what is this' does not name dead letters"):
        StreamObserver(stream, dead_letters=["what is this"])
