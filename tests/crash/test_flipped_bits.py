"""One flipped bit in a file of a stopped broker: what is served is what was acknowledged, or an error names the place.

The partitions of one topic are spoilt at one place each, so that a single start meets many cases.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from kio.schema.errors import ErrorCode

from tests.clients import wire
from tests.clients.batches import batch
from tests.crash.at_rest import StoredBatch, batches_in, flip_bit, segments_of
from tests.crash.past_damage import Seen, read_with_confluent, read_with_kafka_python
from tests.seeds import seed_of
from tests.servers import Penstock

TOPIC: Final = "spoilt"
HEADER_BYTES: Final = 61
PARTITIONS: Final = HEADER_BYTES + 39
ROUNDS: Final = 11
"""Batches in each partition: three closed segments of three, and two in the last one."""
RECORDS_PER_BATCH: Final = 2
GZIP: Final = 1
END: Final = ROUNDS * RECORDS_PER_BATCH
SAMPLE: Final = 6
"""How many of the partitions kafka-python reads too."""


@dataclass(frozen=True, slots=True)
class Flip:
    """Where a bit was flipped, and the batch that holds it if it is in a segment."""

    path: Path
    position: int
    bit: int
    batch: StoredBatch | None = None


def value(partition: int, offset: int) -> bytes:
    return b"partition %d, offset %d, " % (partition, offset) + random.Random(offset).randbytes(30).hex().encode()


def fill(server: Penstock) -> None:
    with wire.Connection(server) as connection:
        configs = [{"name": "internal.segment.bytes", "value": "900"}]
        new = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1, "configs": configs}
        connection.call("create_topics", 7, topics=[new], timeout=10_000)
        for number in range(ROUNDS):
            parts = []
            for partition in range(PARTITIONS):
                offsets = range(number * RECORDS_PER_BATCH, (number + 1) * RECORDS_PER_BATCH)
                records = batch([value(partition, offset) for offset in offsets], codec=GZIP * (number % 4 == 3))
                parts.append({"index": partition, "records": records})
            topics = [{"name": TOPIC, "partition_data": parts}]
            answer = connection.call("produce", 9, acks=-1, timeout=10_000, topic_data=topics)
            codes = {response.error_code for response in answer.responses[0].partition_responses}
            assert codes == {ErrorCode.none}


pytestmark = pytest.mark.xdist_group("flipped bits")
"""The templates are made once."""


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data folders, one of a broker that was stopped and one of a broker that was killed."""
    folder = tmp_path_factory.mktemp("templates")
    with Penstock(folder) as server:
        fill(server)
        server.kill()
        shutil.copytree(server.data, folder / "killed")
        server.start()
        assert server.terminate() == 0
        shutil.copytree(server.data, folder / "stopped")
        segments = segments_of(server.data, TOPIC, 0)
        assert len(segments) >= 3
        assert all(len(batches_in(segment)) >= 2 for segment in segments)
    return {name: folder / name for name in ("killed", "stopped")}


def flip_in_batch(segment: Path, hit: StoredBatch, partition: int, rng: random.Random) -> Flip:
    """In each byte of the batch's header, by the number of the partition, or anywhere in it."""
    within = partition if partition < HEADER_BYTES else rng.randrange(hit.size_bytes)
    flip = Flip(segment, hit.position + within, rng.randrange(8), hit)
    flip_bit(flip.path, flip.position, flip.bit)
    return flip


def flip_anywhere(path: Path, rng: random.Random) -> Flip:
    flip = Flip(path, rng.randrange(path.stat().st_size), rng.randrange(8))
    flip_bit(flip.path, flip.position, flip.bit)
    return flip


class Spoilt:
    """A copy of a data folder in which one file of every partition is spoilt, served and read."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.server = Penstock(folder)
        shutil.copytree(template, self.server.data)
        self.flips: dict[int, Flip] = {}

    def folder_of(self, partition: int) -> Path:
        return self.server.data / f"{TOPIC}-{partition}"

    def check(self, rng: random.Random) -> None:
        with self.server as server:
            everything = read_with_confluent(server, TOPIC, range(PARTITIONS))
            for partition in range(PARTITIONS):
                self._check(partition, everything[partition])
            for partition in rng.sample(range(PARTITIONS), SAMPLE):
                self._check(partition, read_with_kafka_python(server, TOPIC, partition, END))
            self._check_log(server.process.output())

    def _check(self, partition: int, seen: Seen) -> None:
        flip = self.flips[partition]
        wrong = [offset for offset, record in seen.records.items() if record != value(partition, offset)]
        assert not wrong, f"{flip}: damaged records were served at {wrong}"
        lost = set(range(END)) - set(seen.records)
        damaged = range(flip.batch.first_offset, flip.batch.last_offset + 1) if flip.batch else range(0)
        assert lost == set(damaged), f"{flip}: other records were lost than those that are damaged: {sorted(lost)}"
        silent = lost - seen.errors
        assert not silent, f"{flip}: nobody was told that these are lost: {sorted(silent)}"

    def _check_log(self, output: str) -> None:
        """Every batch that is damaged is named with its file and where it stands there."""
        for flip in self.flips.values():
            if flip.batch is not None:
                place = f"{flip.path}: the batch at byte {flip.batch.position} "
                assert place in output, f"{flip} is not in the broker's log"


@pytest.mark.parametrize(
    ("which", "ended"),
    [
        ("closed segment", "stopped"),
        ("closed segment", "killed"),
        ("last segment", "stopped"),
        ("last segment", "killed"),
        # After a kill, a last batch that is not whole is a torn write: see test_torn_tail.
        ("last batch", "stopped"),
    ],
)
def test_a_damaged_batch_is_never_served_and_those_around_it_are(
    tmp_path: Path, templates: dict[str, Path], which: str, ended: str
) -> None:
    rng = random.Random(seed_of())
    spoilt = Spoilt(tmp_path, templates[ended])
    for partition in range(PARTITIONS):
        segments = segments_of(spoilt.server.data, TOPIC, partition)
        segment = rng.choice(segments[:-1]) if which == "closed segment" else segments[-1]
        batches = batches_in(segment)
        hit = batches[-1] if which == "last batch" else rng.choice(batches[:-1])
        spoilt.flips[partition] = flip_in_batch(segment, hit, partition, rng)
    spoilt.check(rng)


@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_nothing_is_lost_by_damage_to_the_files_beside_the_segments(
    tmp_path: Path, templates: dict[str, Path], ended: str
) -> None:
    rng = random.Random(seed_of())
    spoilt = Spoilt(tmp_path, templates[ended])
    for partition in range(PARTITIONS):
        others = [path for path in spoilt.folder_of(partition).iterdir() if path.suffix != ".log"]
        spoilt.flips[partition] = flip_anywhere(rng.choice([path for path in others if path.stat().st_size]), rng)
    kinds = {"checkpoint" if flip.path.name == "checkpoint" else flip.path.suffix for flip in spoilt.flips.values()}
    assert ".penstock-index" in kinds
    assert ended == "killed" or "checkpoint" in kinds
    spoilt.check(rng)


def test_a_file_that_is_spoilt_while_the_broker_runs_is_not_served_any_more(
    tmp_path: Path, templates: dict[str, Path]
) -> None:
    rng = random.Random(seed_of())
    spoilt = Spoilt(tmp_path, templates["stopped"])
    partition = rng.randrange(PARTITIONS)
    with spoilt.server as server:
        before = read_with_confluent(server, TOPIC, [partition])[partition]
        assert len(before.records) == END
        segment = segments_of(server.data, TOPIC, partition)[0]
        hit = batches_in(segment)[1]
        flip_bit(segment, hit.position + hit.size_bytes - 1, 0)
        after = read_with_confluent(server, TOPIC, [partition])[partition]
        assert set(before.records) - set(after.records) == {hit.first_offset, hit.last_offset} == after.errors
