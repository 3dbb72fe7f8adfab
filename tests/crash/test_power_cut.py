"""What is acknowledged with acks=all survives a power cut, at whatever moment it comes."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
from kio.schema.errors import ErrorCode

from penstock.errors import PenstockError
from penstock.log.disk import Disk
from tests.broker.plain_requests import PRODUCE, produce_fields, produced
from tests.clients import confluent, wire
from tests.crash.at_rest import read_partition
from tests.crash.in_process import BrokerInThread
from tests.crash.killing import wait_for_flow
from tests.crash.load import IDEMPOTENT, KeyedProducer
from tests.crash.power_cut import PowerCut
from tests.crash.promises import own_records
from tests.crash.transacting import Transaction
from tests.seeds import seed_of
from tests.servers import Server

OPERATIONS: Final = 300
CUTS: Final = 50
SMALL: Final = {"internal.segment.bytes": "1000"}
GROUP: Final = "group"
QUICK_CLEANER: Final = {"log.cleaner.backoff.ms": "10", "log.retention.check.interval.ms": "10"}


class Client:
    """Does one thing after the other, and knows what was promised about each."""

    def __init__(self, connection: wire.Connection, rng: random.Random) -> None:
        self._connection = connection
        self._rng = rng
        self._made = 0
        self.records: dict[str, dict[int, bytes]] = {}
        self.starts: defaultdict[str, int] = defaultdict(int)
        self.deleted: set[str] = set()
        self.committed: dict[str, int] = {}

    def step(self) -> None:
        topics = list(self.records)
        choice = self._rng.randrange(20) if topics else 0
        if choice == 0:
            self._create()
        elif choice == 1:
            self._delete(self._rng.choice(topics))
        elif choice == 2:
            self._delete_records(self._rng.choice(topics))
        elif choice <= 5:
            self._commit(self._rng.choice(topics))
        else:
            self._produce(self._rng.choice(topics))

    def _create(self) -> None:
        self._made += 1
        name = f"topic-{self._made}"
        configs = [{"name": key, "value": value} for key, value in SMALL.items()]
        new = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
        (created,) = self._connection.call("create_topics", 7, topics=[new], timeout=10_000).topics
        assert created.error_code is ErrorCode.none
        self.records[name] = {}

    def _delete(self, name: str) -> None:
        (deleted,) = self._connection.call("delete_topics", 6, topics=[{"name": name}], timeout=10_000).responses
        assert deleted.error_code is ErrorCode.none
        del self.records[name]
        self.committed.pop(name, None)
        self.deleted.add(name)

    def _delete_records(self, name: str) -> None:
        offset = self._rng.randint(self.starts[name], len(self.records[name]))
        wanted = {"name": name, "partitions": [{"partition_index": 0, "offset": offset}]}
        answer = self._connection.call("delete_records", 2, topics=[wanted], timeout=10_000)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        self.starts[name] = offset

    def _commit(self, name: str) -> None:
        offset = self._rng.randrange(1000)
        part = {"partition_index": 0, "committed_offset": offset}
        fields = {"group_id": GROUP, "generation_id_or_member_epoch": -1}
        answer = self._connection.call("offset_commit", 8, **fields, topics=[{"name": name, "partitions": [part]}])
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        self.committed[name] = offset

    def _produce(self, name: str) -> None:
        values = [self._rng.randbytes(self._rng.randint(1, 300)) for _ in range(self._rng.randint(1, 4))]
        code, offset = produced(self._connection.call(*PRODUCE, **produce_fields(name, values)))
        assert (code, offset) == (ErrorCode.none, len(self.records[name]))
        self.records[name] |= dict(enumerate(values, offset))

    def check(self, server: Server) -> None:
        """Everything promised so far is true of the server."""
        with wire.Connection(server) as connection:
            found = {topic.name for topic in connection.call("metadata", 12, topics=None).topics}
            assert not self.deleted & found, "deleted topics have come back"
            assert set(self.records) <= found, "topics are gone"
            for name, records in self.records.items():
                start = self.starts[name]
                kept = read_partition(connection, name, 0, start)
                assert kept == {offset: value for offset, value in records.items() if offset >= start}
                assert committed_offset(connection, name) == self.committed.get(name, -1)


def committed_offset(connection: wire.Connection, name: str) -> int:
    topics = [{"name": name, "partition_indexes": [0]}]
    answer = connection.call("offset_fetch", 7, group_id=GROUP, topics=topics, require_stable=True)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def test_whatever_was_answered_is_still_true_after_a_power_cut(tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    cuts = set(rng.sample(range(OPERATIONS), CUTS))
    data = tmp_path / "data"
    with PowerCut(data) as power, BrokerInThread(data) as server, wire.Connection(server) as connection:
        client = Client(connection, rng)
        for number in range(OPERATIONS):
            client.step()
            if number in cuts:
                left = tmp_path / f"left-{number}"
                power.leave(left)
                with BrokerInThread(left) as after:
                    client.check(after)


def test_records_of_many_producers_survive_power_cuts_amid_rolls_compaction_and_retention(tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    kinds = {
        "all": {"internal.segment.bytes": "20000"},
        "last": {"internal.segment.bytes": "20000", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
        "some": {"internal.segment.bytes": "20000", "retention.bytes": "60000"},
    }
    with PowerCut(tmp_path / "data") as power, BrokerInThread(tmp_path / "data", None, QUICK_CLEANER) as server:
        topics = {kind: confluent.create_topic(server, 1, configs) for kind, configs in kinds.items()}
        producers = {kind: KeyedProducer(server, topics[kind], kind, IDEMPOTENT, per_second=300) for kind in kinds}
        for producer in producers.values():
            producer.start()
        for number in range(8):
            wait_for_flow(list(producers.values()), rng.randint(1, 100))
            promised = {kind: dict(producer.acknowledged) for kind, producer in producers.items()}
            left = tmp_path / f"left-{number}"
            power.leave(left)
            with BrokerInThread(left) as after:
                for kind, producer in producers.items():
                    check_kept(kind, producer, promised[kind], after, topics[kind])
        for producer in producers.values():
            producer.finish()


def check_kept(
    kind: str, producer: KeyedProducer, promised: dict[int, tuple[int, int | None]], server: Server, topic: str
) -> None:
    kept = [number for number, _ in own_records(producer, confluent.read_to_end(server, topic))]
    assert len(set(kept)) == len(kept), "records are repeated"
    if kind == "all":
        must = set(promised)
    elif kind == "last":
        # A later record of the key may have been written, and the promised one compacted away, before the cut.
        last = {producer.key(number): number for number in sorted(promised)}
        newest = {producer.key(number): number for number in sorted(kept)}
        must = {number for key, number in last.items() if newest.get(key, -1) <= number}
    else:
        must = {number for number in promised if number >= min(kept)}
        assert len(kept) * producer.value_bytes > 30_000 or min(kept) == 0, "too much has expired"
    lost = must - set(kept)
    assert not lost, f"{kind}: acknowledged records are lost: {sorted(lost)[:10]}"


def test_transactions_that_were_ended_stay_ended_after_a_power_cut(tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    data = tmp_path / "data"
    expected: list[bytes | None] = []
    offset = -1
    with PowerCut(data) as power, BrokerInThread(data) as server, wire.Connection(server) as connection:
        topics = [confluent.create_topic(server, 1, SMALL) for _ in range(2)]
        for number in range(8):
            transaction = Transaction(connection, topics)
            transaction.write(b"%d" % number)
            transaction.commit_offset(GROUP, number)
            commit = rng.random() < 0.6
            assert transaction.end(commit=commit) is ErrorCode.none
            if commit:
                expected.append(b"%d" % number)
                offset = number
            left = tmp_path / f"left-{number}"
            power.leave(left)
            with BrokerInThread(left) as after:
                for topic in topics:
                    isolated = {"isolation.level": "read_committed"}
                    assert confluent.values_of(confluent.read_to_end(after, topic, settings=isolated)) == expected
                with wire.Connection(after) as asking:
                    assert committed_offset(asking, topics[0]) == offset


class DiskThatSyncsNoFiles(Disk):
    def sync(self, fd: int) -> None:
        pass


class DiskThatSyncsNoFolders(Disk):
    def sync_folder(self, folder: Path) -> None:
        pass


def left_of_one_record(tmp_path: Path, acks: int, disk: Disk | None = None) -> dict[int, bytes] | None:
    """What a power cut leaves of one acknowledged record; None if not even its topic is left."""
    with PowerCut(tmp_path / "data") as power, BrokerInThread(tmp_path / "data", disk) as server:
        topic = confluent.create_topic(server)
        with wire.Connection(server) as connection:
            assert produced(connection.call(*PRODUCE, **produce_fields(topic, [b"x"], acks))) == (ErrorCode.none, 0)
        power.leave(tmp_path / "left")
    if not (tmp_path / "left" / "topics" / topic).exists():
        return None
    with BrokerInThread(tmp_path / "left") as after, wire.Connection(after) as connection:
        return read_partition(connection, topic, 0)


def test_what_is_acknowledged_with_acks_all_survives_a_power_cut(tmp_path: Path) -> None:
    assert left_of_one_record(tmp_path, acks=-1) == {0: b"x"}


def test_a_power_cut_takes_what_was_not_synced(tmp_path: Path) -> None:
    """What the tests above rest on: the disk does forget. With acks=1 the record is gone, as it may be."""
    assert left_of_one_record(tmp_path, acks=1) == {}


@pytest.mark.parametrize("disk", [DiskThatSyncsNoFiles(), DiskThatSyncsNoFolders()], ids=["files", "folders"])
def test_a_disk_whose_sync_does_nothing_is_caught(tmp_path: Path, disk: Disk) -> None:
    try:
        left = left_of_one_record(tmp_path, acks=-1, disk=disk)
    except PenstockError:
        left = None  # the folder cannot even be opened: its small files are empty
    assert left != {0: b"x"}
