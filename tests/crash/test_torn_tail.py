"""A write that a power cut has torn, at every byte of the last batch, through the real broker.

The partitions of one topic are cut at one byte each, so that a single start meets every case.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.clients import wire
from tests.clients.batches import batch
from tests.crash.at_rest import fetch_once, read_partition, segments_of
from tests.seeds import seed_of
from tests.servers import Penstock

TOPIC = "torn"
WHOLE = [b"first", b"second", b"third"]
LAST = b"last"
BATCH_BYTES = len(batch([LAST]))
PARTITIONS = BATCH_BYTES + 1

Tear = Callable[[bytes], bytes]
"""What the disk holds in place of the bytes that did not reach it."""


def cut(missing: bytes) -> bytes:
    return b""


def zeros(missing: bytes) -> bytes:
    return b"\0" * len(missing)


def noise(missing: bytes) -> bytes:
    return random.Random(len(missing)).randbytes(len(missing))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Penstock]:
    with Penstock(tmp_path) as penstock:
        yield penstock


NOBODY = (-1, -1)
"""A producer that is not idempotent."""


def produce(
    connection: wire.Connection, values: list[bytes], sequence: int = -1, producer: tuple[int, int] = NOBODY
) -> list[int]:
    """One batch to every partition. Answers where each stands."""
    producer_id, epoch = producer
    records = batch(values, producer_id=producer_id, epoch=epoch, sequence=sequence)
    parts = [{"index": number, "records": records} for number in range(PARTITIONS)]
    topics = [{"name": TOPIC, "partition_data": parts}]
    answer = connection.call("produce", 9, acks=-1, timeout=10_000, topic_data=topics)
    responses = sorted(answer.responses[0].partition_responses, key=lambda response: response.index)
    assert {response.error_code for response in responses} == {ErrorCode.none}
    return [response.base_offset for response in responses]


def fill(server: Penstock) -> tuple[int, int]:
    """Four batches in every partition, by an idempotent producer, which is answered."""
    with wire.Connection(server) as connection:
        new = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}
        connection.call("create_topics", 7, topics=[new], timeout=10_000)
        given = connection.call("init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)
        producer = given.producer_id, given.producer_epoch
        for sequence, value in enumerate([*WHOLE, LAST]):
            assert set(produce(connection, [value], sequence, producer)) == {sequence}
    return producer


def tear(server: Penstock, kind: Tear) -> set[int]:
    """Leave so many bytes of the last batch in each partition as its number is. Answers where it is still whole."""
    whole = set()
    for partition in range(PARTITIONS):
        (segment,) = segments_of(server.data, TOPIC, partition)
        content = segment.read_bytes()
        kept = len(content) - BATCH_BYTES + partition
        torn = content[:kept] + kind(content[kept:])
        segment.write_bytes(torn)
        if torn == content:
            whole.add(partition)
    assert PARTITIONS - 1 in whole
    return whole


@pytest.mark.parametrize("kind", [cut, zeros, noise])
def test_a_torn_write_is_taken_back_and_nothing_else(server: Penstock, kind: Tear) -> None:
    producer = fill(server)
    server.kill()
    whole = tear(server, kind)
    server.start()
    with wire.Connection(server) as connection:
        for partition in range(PARTITIONS):
            expected = [*WHOLE, LAST] if partition in whole else WHOLE
            assert read_partition(connection, TOPIC, partition) == dict(enumerate(expected))
        # The producer was never answered, so it sends the batch again; where it had survived, this is a repetition.
        assert set(produce(connection, [LAST], 3, producer)) == {3}
        assert set(produce(connection, [b"next", b"after"], 4, producer)) == {4}
    expected = [*WHOLE, LAST, b"next", b"after"]
    check_everywhere(server, expected)
    server.kill()
    server.start()
    check_everywhere(server, expected)


def check_everywhere(server: Penstock, expected: list[bytes]) -> None:
    with wire.Connection(server) as connection:
        for partition in range(PARTITIONS):
            assert read_partition(connection, TOPIC, partition) == dict(enumerate(expected))


def test_records_that_the_disk_has_lost_after_a_clean_stop_are_missed_loudly(server: Penstock) -> None:
    """These were acknowledged, written down as safe, and are gone: nobody may read past them without an error, and
    their offsets may not be given to others."""
    rng = random.Random(seed_of())
    fill(server)
    assert server.terminate() == 0
    partitions = [0, BATCH_BYTES - 1, *rng.sample(range(1, BATCH_BYTES - 1), 20)]
    for partition in partitions:
        (segment,) = segments_of(server.data, TOPIC, partition)
        os.truncate(segment, segment.stat().st_size - BATCH_BYTES + partition)
    server.start()
    with wire.Connection(server) as connection:
        assert set(produce(connection, [b"next"])) == {4}
        for partition in range(PARTITIONS):
            if partition not in partitions:
                assert read_partition(connection, TOPIC, partition) == dict(enumerate([*WHOLE, LAST, b"next"]))
                continue
            code, records, end = fetch_once(connection, TOPIC, partition, 0)
            assert (code, records, end) == (ErrorCode.none, dict(enumerate(WHOLE)), 5)
            assert fetch_once(connection, TOPIC, partition, 3)[0] is ErrorCode.corrupt_message
            assert read_partition(connection, TOPIC, partition, 4) == {4: b"next"}
            assert f"{TOPIC}-{partition}/{0:020d}.log: " in server.process.output(), "the file is not named in the log"
