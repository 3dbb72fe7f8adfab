"""kill -9 while several producers write and a group reads: nothing acknowledged is lost, nothing is repeated."""

from __future__ import annotations

import random
from pathlib import Path

from tests.clients import confluent
from tests.clients.waiting import eventually
from tests.crash.killing import kill_again_and_again
from tests.crash.load import IDEMPOTENT, WRITTEN_ONLY, KeyedProducer
from tests.crash.promises import check_at_least_once, check_dense, check_exactly_once
from tests.crash.readers import GroupLedger, GroupReader
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock

PARTITIONS = 4
KILLS = 4
SOAK_KILLS = 60


def test_nothing_that_was_acknowledged_is_lost_or_repeated(tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    with Penstock(tmp_path, "--config", "group.initial.rebalance.delay.ms=0") as server:
        topic = confluent.create_topic(server, PARTITIONS, {"internal.segment.bytes": "100000"})
        exact = [
            KeyedProducer(server, topic, "plain", IDEMPOTENT),
            KeyedProducer(server, topic, "lz4", {**IDEMPOTENT, "compression.type": "lz4"}, value_bytes=1000),
            KeyedProducer(server, topic, "zstd", {**IDEMPOTENT, "compression.type": "zstd", "linger.ms": 20}),
        ]
        written = KeyedProducer(server, topic, "written", WRITTEN_ONLY)
        ledger = GroupLedger(server, topic, PARTITIONS, "readers")
        readers = [GroupReader(ledger, f"reader-{number}") for number in range(2)]
        producers = [*exact, written]
        for worker in (*producers, *readers):
            worker.start()
        kills = times(KILLS, SOAK_KILLS)
        kill_again_and_again(server, rng, [*producers, *readers], kills, restarted=ledger.check_committed)
        for producer in producers:
            producer.finish()
        server.kill()
        server.start()
        stored = confluent.read_to_end(server, topic, range(PARTITIONS))
        check_dense(stored)
        for producer in exact:
            check_exactly_once(producer, stored)
        check_at_least_once(written, stored)
        ends = {record.partition: record.offset + 1 for record in stored}
        eventually("the group has read everything", lambda: ledger.committed() == ends)
        for reader in readers:
            reader.finish()
        ledger.check_committed()
        assert {(record.partition, record.offset): record.value for record in stored} == {
            (partition, offset): value
            for partition, records in ledger.delivered.items()
            for offset, value in records.items()
        }
