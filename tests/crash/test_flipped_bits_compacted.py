"""One flipped bit in a compacted partition, where a batch's offset is vouched for by nothing but the index."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from tests.clients import wire
from tests.clients.waiting import eventually
from tests.crash.at_rest import StoredBatch, batches_in, flip_bit, segments_of
from tests.crash.past_damage import Seen, read_with_confluent
from tests.seeds import seed_of
from tests.servers import Penstock

TOPIC: Final = "compacted"
PARTITIONS: Final = 80
ROUNDS: Final = 12
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "600",
    "min.cleanable.dirty.ratio": "0.01",
}
NEVER: Final = ("--config", "log.cleaner.backoff.ms=1000000000")
ALWAYS: Final = ("--config", "log.cleaner.backoff.ms=20")


def keyed_batch(partition: int, number: int) -> bytes:
    """Two records, of which the first is overwritten three rounds later."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for offset, key in enumerate([b"often %d" % (number % 3), b"once %d" % number]):
        value = b"partition %d, round %d, " % (partition, number) + b"." * 50
        builder.append(offset, 1_700_000_000_000, key, value, [])
    return bytes(builder.build())


def fill(server: Penstock) -> None:
    with wire.Connection(server) as connection:
        configs = [{"name": name, "value": value} for name, value in CONFIGS.items()]
        new = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1, "configs": configs}
        connection.call("create_topics", 7, topics=[new], timeout=10_000)
        for number in range(ROUNDS):
            parts = [{"index": part, "records": keyed_batch(part, number)} for part in range(PARTITIONS)]
            topics = [{"name": TOPIC, "partition_data": parts}]
            answer = connection.call("produce", 9, acks=-1, timeout=10_000, topic_data=topics)
            codes = {response.error_code for response in answer.responses[0].partition_responses}
            assert codes == {ErrorCode.none}


pytestmark = pytest.mark.xdist_group("flipped bits, compacted")
"""The template is made once."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Seen]]:
    """The data folder of a broker that has compacted every partition and was stopped, and what it then holds."""
    server = Penstock(tmp_path_factory.mktemp("compacted"), *ALWAYS)
    with server:
        fill(server)
        eventually("all is compacted", lambda: all(is_compacted(server, number) for number in range(PARTITIONS)))
        assert server.terminate() == 0
        server.arguments = NEVER
        server.start()
        expected = read_with_confluent(server, TOPIC, range(PARTITIONS))
        assert server.terminate() == 0
    assert all(2 * ROUNDS > len(seen.records) >= ROUNDS for seen in expected.values())
    return server.data, expected


def is_compacted(server: Penstock, partition: int) -> bool:
    first = segments_of(server.data, TOPIC, partition)[0]
    return any(batch.count == batch.last_offset - batch.first_offset for batch in batches_in(first))


def copied(folder: Path, template: Path) -> Penstock:
    server = Penstock(folder, *NEVER)
    shutil.copytree(template, server.data)
    return server


def check_served(expected: Seen, seen: Seen, damaged: StoredBatch | None, what: str) -> None:
    strange = seen.records.items() - expected.records.items()
    assert not strange, f"{what}: damaged records were served: {strange}"
    lost = set(expected.records) - set(seen.records)
    allowed = set(range(damaged.first_offset, damaged.last_offset + 1)) if damaged else set()
    assert lost <= allowed, f"{what}: other records were lost than those that are damaged: {sorted(lost - allowed)}"
    assert lost <= seen.errors, f"{what}: nobody was told that these are lost: {sorted(lost - seen.errors)}"


def test_a_damaged_batch_of_a_compacted_segment_is_never_served(
    tmp_path: Path, template: tuple[Path, dict[int, Seen]]
) -> None:
    rng = random.Random(seed_of())
    folder, expected = template
    server = copied(tmp_path, folder)
    hits: dict[int, tuple[StoredBatch, str]] = {}
    for partition in range(PARTITIONS):
        segment = segments_of(server.data, TOPIC, partition)[0]
        hit = rng.choice(batches_in(segment))
        within, bit = partition % min(hit.size_bytes, 64), rng.randrange(8)
        if partition < 16:
            # The low bits of the base offset: another offset of the same segment, and no checksum over it.
            within, bit = 7, partition % 4
        flip_bit(segment, hit.position + within, bit)
        hits[partition] = hit, f"{segment} at byte {hit.position}+{within} bit {bit}"
    with server:
        seen = read_with_confluent(server, TOPIC, range(PARTITIONS))
        for partition, (hit, what) in hits.items():
            check_served(expected[partition], seen[partition], hit, what)
            assert seen[partition].errors, f"{what}: not noticed"
            assert str(segments_of(server.data, TOPIC, partition)[0]) in server.process.output()


def test_nothing_of_a_compacted_segment_is_lost_by_damage_to_its_index(
    tmp_path: Path, template: tuple[Path, dict[int, Seen]]
) -> None:
    rng = random.Random(seed_of())
    folder, expected = template
    server = copied(tmp_path, folder)
    for partition in range(PARTITIONS):
        index = segments_of(server.data, TOPIC, partition)[0].with_suffix(".penstock-index")
        flip_bit(index, rng.randrange(index.stat().st_size), rng.randrange(8))
    with server:
        seen = read_with_confluent(server, TOPIC, range(PARTITIONS))
        for partition in range(PARTITIONS):
            check_served(expected[partition], seen[partition], None, f"the index of partition {partition}")
