"""The broker dies at every single change of its files that an operation leads to, and the next one sets it right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from tests.clients import wire
from tests.clients.batches import batch
from tests.clients.waiting import eventually
from tests.crash.at_rest import read_partition, segments_of
from tests.crash.crash_points import Crasher, CrashingBroker, Died, Promised, call, die_at_every_point

TOPIC: Final = "topic"
GROUP: Final = "group"
VALUES: Final = {offset: b"value %d " % offset + b"." * 100 for offset in range(20)}
SMALL: Final = {"internal.segment.bytes": "500", "retention.ms": "-1"}
COMPACTED: Final = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
EARLIEST: Final = -2


@pytest.fixture(scope="module")
def crasher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crasher]:
    with Crasher(tmp_path_factory.mktemp("crash-points")) as starting:
        yield starting


def template_of(crasher: Crasher, folder: Path, configs: dict[str, str], *batches: bytes, stop: bool = False) -> Path:
    """The data folder of a broker that was killed, or stopped, after it had taken these batches."""
    broker = crasher.start(folder)
    try:
        assert broker.wait_until_listening()
        with broker.connect() as connection:
            create(connection, TOPIC, 1, configs)
            for records in batches:
                assert produce(connection, TOPIC, records)[0] is ErrorCode.none
        assert not stop or broker.terminate() == 0
    finally:
        broker.kill()
    return folder


@pytest.fixture
def filled(crasher: Crasher, tmp_path: Path) -> Path:
    return template_of(crasher, tmp_path / "template", SMALL, *[batch([value]) for value in VALUES.values()])


def create(connection: wire.Connection, name: str, partitions: int, configs: dict[str, str] | None = None) -> ErrorCode:
    rows = [{"name": key, "value": value} for key, value in (configs or {}).items()]
    new = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
    (created,) = call(connection, "create_topics", 7, topics=[new], timeout=10_000).topics
    code: ErrorCode = created.error_code
    return code


def produce(connection: wire.Connection, topic: str, records: bytes, partition: int = 0) -> tuple[ErrorCode, int]:
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    answer = call(connection, "produce", 9, acks=-1, timeout=10_000, topic_data=data)
    (stored,) = answer.responses[0].partition_responses
    return stored.error_code, stored.base_offset


def topics_of(connection: wire.Connection) -> dict[str, Any]:
    return {topic.name: topic for topic in call(connection, "metadata", 12, topics=None).topics}


def start_of(connection: wire.Connection, topic: str) -> int:
    wanted = {"name": topic, "partitions": [{"partition_index": 0, "timestamp": EARLIEST}]}
    offset: int = call(connection, "list_offsets", 6, replica_id=-1, topics=[wanted]).topics[0].partitions[0].offset
    return offset


def check_goes_on(connection: wire.Connection, topic: str, partition: int = 0) -> None:
    """The partition takes another record, and gives it back."""
    code, offset = produce(connection, topic, batch([b"one more"]), partition)
    assert code is ErrorCode.none
    assert read_partition(connection, topic, partition, offset) == {offset: b"one more"}


def test_while_a_topic_is_made(crasher: Crasher, filled: Path) -> None:
    def act(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            assert create(connection, "new", 3, {"retention.ms": "12345"}) is ErrorCode.none
            promised.add("created")
            for partition in range(3):
                assert produce(connection, "new", batch([b"first"]), partition) == (ErrorCode.none, 0)
                promised.add(f"first {partition}")

    def check(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            found = topics_of(connection).get("new")
            assert found is not None or not promised, "a topic is gone"
            if found is None:
                assert create(connection, "new", 3) is ErrorCode.none
                found = topics_of(connection)["new"]
            assert len(found.partitions) == 3
            for partition in range(3):
                kept = read_partition(connection, "new", partition)
                assert kept == {0: b"first"} or (kept == {} and f"first {partition}" not in promised)
                check_goes_on(connection, "new", partition)

    assert die_at_every_point(crasher, filled, act, check) >= 15


def test_while_a_topic_is_removed_and_made_again(crasher: Crasher, filled: Path) -> None:
    def act(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            (deleted,) = call(connection, "delete_topics", 6, topics=[{"name": TOPIC}], timeout=10_000).responses
            assert deleted.error_code is ErrorCode.none
            promised.add("deleted")
            assert create(connection, TOPIC, 2) is ErrorCode.none
            promised.add("created")
            assert produce(connection, TOPIC, batch([b"new"])) == (ErrorCode.none, 0)
            promised.add("first")

    def check(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            found = topics_of(connection).get(TOPIC)
            if found is None:
                assert "created" not in promised, "a topic is gone"
                assert create(connection, TOPIC, 2) is ErrorCode.none
                found = topics_of(connection)[TOPIC]
            kept = read_partition(connection, TOPIC, 0)
            if len(found.partitions) == 1:
                assert "deleted" not in promised, "a deleted topic has come back"
                assert kept == VALUES, "it is not deleted, but some of it is gone"
            else:
                assert kept == {0: b"new"} or (kept == {} and "first" not in promised)
            check_goes_on(connection, TOPIC)

    assert die_at_every_point(crasher, filled, act, check) >= 10


def test_while_partitions_are_added_and_settings_changed(crasher: Crasher, filled: Path) -> None:
    def act(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            wanted = {"name": TOPIC, "count": 3, "assignments": None}
            (grown,) = call(connection, "create_partitions", 3, topics=[wanted], timeout=10_000).results
            assert grown.error_code is ErrorCode.none
            promised.add("grown")
            config = {"name": "retention.ms", "config_operation": 0, "value": "777"}
            change = {"resource_type": 2, "resource_name": TOPIC, "configs": [config]}
            (altered,) = call(connection, "incremental_alter_configs", 1, resources=[change]).responses
            assert altered.error_code is ErrorCode.none
            promised.add("altered")

    def check(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            partitions = len(topics_of(connection)[TOPIC].partitions)
            assert partitions == 3 or (partitions == 1 and "grown" not in promised)
            wanted = {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": ["retention.ms"]}
            (described,) = call(connection, "describe_configs", 4, resources=[wanted]).results
            retention = described.configs[0].value
            assert retention == "777" or (retention == "-1" and "altered" not in promised)
            if retention == "-1":
                assert read_partition(connection, TOPIC, 0) == VALUES
            for partition in range(partitions):
                check_goes_on(connection, TOPIC, partition)

    assert die_at_every_point(crasher, filled, act, check) >= 8


def test_while_segments_fill_up(crasher: Crasher, filled: Path) -> None:
    def act(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            for number in range(5):
                assert produce(connection, TOPIC, batch([b"%d" % number] * 2)) == (ErrorCode.none, 20 + 2 * number)
                promised.add(str(number))

    def check(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            kept = read_partition(connection, TOPIC, 0)
            assert list(kept) == list(range(len(kept)))
            assert {offset: kept[offset] for offset in VALUES} == VALUES
            assert {str(number) for number in range((len(kept) - 20) // 2)} >= promised
            for offset in range(20, len(kept)):
                assert kept[offset] == b"%d" % ((offset - 20) // 2)
            check_goes_on(connection, TOPIC)

    assert die_at_every_point(crasher, filled, act, check) >= 12


def test_while_records_are_deleted(crasher: Crasher, filled: Path) -> None:
    def act(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            for offset in (7, 13):
                wanted = {"name": TOPIC, "partitions": [{"partition_index": 0, "offset": offset}]}
                answer = call(connection, "delete_records", 2, topics=[wanted], timeout=10_000)
                assert answer.topics[0].partitions[0].error_code is ErrorCode.none
                promised.add(f"{offset:02}")

    def check(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            start = start_of(connection, TOPIC)
            assert start in (0, 7, 13)
            assert start >= int(max(promised, default="0")), "deleted records have come back"
            kept = read_partition(connection, TOPIC, 0, start)
            assert kept == {offset: value for offset, value in VALUES.items() if offset >= start}
            check_goes_on(connection, TOPIC)

    assert die_at_every_point(crasher, filled, act, check) >= 15


def test_while_records_expire(crasher: Crasher, tmp_path: Path) -> None:
    configs = {**SMALL, "retention.bytes": "1200"}
    batches = [batch([value]) for value in VALUES.values()]
    template = template_of(crasher, tmp_path / "template", configs, *batches, stop=True)

    def act(broker: CrashingBroker, promised: Promised) -> None:
        eventually("some expire", lambda: broker.metric("penstock_log_segments_deleted_total") > 0)

    def check(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            start = start_of(connection, TOPIC)
            kept = read_partition(connection, TOPIC, 0, start)
            assert kept == {offset: value for offset, value in VALUES.items() if offset >= start}
            assert len(kept) >= 8, "too much has expired"
            check_goes_on(connection, TOPIC)
        assert "is damaged" not in broker.output()

    assert die_at_every_point(crasher, template, act, check, "log.retention.check.interval.ms=1", armed=True) >= 8


def keyed_batch(number: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for offset, key in enumerate([b"often %d" % (number % 3), b"once %d" % number]):
        builder.append(offset, 1_700_000_000_000, key, b"%s of %d " % (key, number) + b"." * 60, [])
    return bytes(builder.build())


def test_while_a_partition_is_compacted(crasher: Crasher, tmp_path: Path) -> None:
    rounds = 10
    template = template_of(crasher, tmp_path / "template", COMPACTED, *map(keyed_batch, range(rounds)), stop=True)
    # Of the keys that are written often, the last three; of the others, all.
    must = {2 * number + 1 for number in range(rounds)} | {2 * number for number in range(rounds - 3, rounds)}

    def act(broker: CrashingBroker, promised: Promised) -> None:
        eventually("it is compacted", lambda: broker.metric("penstock_log_compactions_total") > 0)
        promised.add("compacted")

    def check(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            kept = read_partition(connection, TOPIC, 0)
            assert must <= set(kept) <= set(range(2 * rounds))
            assert "compacted" not in promised or len(kept) < 2 * rounds
            for offset, value in kept.items():
                key = b"once %d" % (offset // 2) if offset % 2 else b"often %d" % (offset // 2 % 3)
                assert value == b"%s of %d " % (key, offset // 2) + b"." * 60
            check_goes_on_keyed(connection)
        assert "is damaged" not in broker.output()
        leftovers = [path.name for path in (broker.data / f"{TOPIC}-0").iterdir() if is_left_over(path)]
        assert not leftovers

    assert die_at_every_point(crasher, template, act, check, "log.cleaner.backoff.ms=1", armed=True) >= 15


def is_left_over(path: Path) -> bool:
    return path.name == "swap" or path.name.endswith((".cleaned", "~"))


def check_goes_on_keyed(connection: wire.Connection) -> None:
    assert produce(connection, TOPIC, keyed_batch(100)) == (ErrorCode.none, 20)
    assert set(read_partition(connection, TOPIC, 0, 20)) == {20, 21}


def test_while_offsets_are_committed(crasher: Crasher, filled: Path) -> None:
    def act(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            for offset in (5, 6, 7):
                part = {"partition_index": 0, "committed_offset": offset}
                fields = {"group_id": GROUP, "generation_id_or_member_epoch": -1}
                wanted = [{"name": TOPIC, "partitions": [part]}]
                answer = call(connection, "offset_commit", 8, **fields, topics=wanted)
                assert answer.topics[0].partitions[0].error_code is ErrorCode.none
                promised.add(str(offset))

    def check(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            committed = committed_offset(connection)
            assert committed in (-1, 5, 6, 7)
            assert committed >= int(max(promised, default="-1"))

    assert die_at_every_point(crasher, filled, act, check) >= 8


def committed_offset(connection: wire.Connection) -> int:
    wanted = [{"name": TOPIC, "partition_indexes": [0]}]
    answer = call(connection, "offset_fetch", 7, group_id=GROUP, topics=wanted)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def test_while_it_recovers(crasher: Crasher, filled: Path) -> None:
    """What it recovers from has everything: a torn write, a topic half deleted, files half written."""
    for number, partition in enumerate(filled.glob(f"{TOPIC}-0")):
        last = segments_of(filled, TOPIC, number)[-1]
        with last.open("ab") as file:
            file.write(batch([b"torn"])[:-3])
        (partition / "checkpoint~").write_bytes(b"half")
        for index in partition.glob("*.penstock-index"):
            index.write_bytes(index.read_bytes()[:-5])
    shutil.copy(filled / "topics" / TOPIC, filled / "topics" / f"{TOPIC}~")

    def act(broker: CrashingBroker, promised: Promised) -> None:
        promised.add("started")

    def check(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            assert read_partition(connection, TOPIC, 0) == VALUES
            check_goes_on(connection, TOPIC)

    assert die_at_every_point(crasher, filled, act, check, armed=True) >= 10


def test_while_it_stops(crasher: Crasher, filled: Path) -> None:
    def act(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            assert produce(connection, TOPIC, batch([b"last"])) == (ErrorCode.none, 20)
            promised.add("last")
        if broker.terminate() != 0:
            raise Died

    def check(broker: CrashingBroker, promised: Promised) -> None:
        with broker.connect() as connection:
            kept = read_partition(connection, TOPIC, 0)
            assert kept == {**VALUES, 20: b"last"} or (kept == VALUES and not promised)
            check_goes_on(connection, TOPIC)

    assert die_at_every_point(crasher, filled, act, check) >= 8
