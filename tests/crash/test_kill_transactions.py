"""kill -9 while programs read, transform and write in transactions: each record comes out once, whole and in order."""

from __future__ import annotations

import random
from pathlib import Path

from tests.clients import confluent
from tests.clients.waiting import eventually
from tests.crash.killing import kill_again_and_again
from tests.crash.load import IDEMPOTENT, KeyedProducer
from tests.crash.promises import check_exactly_once, own_records
from tests.crash.readers import GroupLedger
from tests.crash.transforming import Transformer
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock

PARTITIONS = 2
KILLS = 4
SOAK_KILLS = 60
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


def test_what_is_read_and_written_in_transactions_comes_out_exactly_once(tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    arguments = [word for setting in SETTINGS.items() for word in ("--config", "=".join(setting))]
    with Penstock(tmp_path, *arguments) as server:
        source = confluent.create_topic(server, PARTITIONS, {"internal.segment.bytes": "50000"})
        target = confluent.create_topic(server, PARTITIONS, {"internal.segment.bytes": "50000"})
        producer = KeyedProducer(server, source, "source", IDEMPOTENT, per_second=400)
        apps = [Transformer(server, source, target, "apps", f"app-{n}", rng.getrandbits(32)) for n in range(2)]
        for worker in (producer, *apps):
            worker.start()
        kill_again_and_again(server, rng, [producer, Together(apps)], times(KILLS, SOAK_KILLS))
        producer.finish()
        stored = confluent.read_to_end(server, source, range(PARTITIONS))
        check_exactly_once(producer, stored)
        ends = {record.partition: record.offset + 1 for record in stored}
        ledger = GroupLedger(server, source, PARTITIONS, "apps")
        eventually("everything is transformed", lambda: ledger.committed() == ends, timeout_s=60)
        for app in apps:
            app.finish()
        server.kill()
        server.start()
        committed = {"isolation.level": "read_committed"}
        transformed = confluent.read_to_end(server, target, range(PARTITIONS), committed)
        numbers = [number for number, _ in own_records(producer, transformed)]
        assert sorted(numbers) == list(range(producer.sent)), "records are lost or repeated"
        assert sum(app.aborted for app in apps) > 0
        last: dict[bytes, int] = {}
        for number in numbers:
            assert last.get(producer.key(number), -1) < number
            last[producer.key(number)] = number


class Together:
    """The progress of several: a rebalance may leave one of them without work for a while."""

    def __init__(self, workers: list[Transformer]) -> None:
        self._workers = workers

    @property
    def progress(self) -> int:
        return sum(worker.progress for worker in self._workers)

    def check_health(self) -> None:
        for worker in self._workers:
            worker.check_health()
