"""One flipped bit in any other file of the data folder: the broker starts and knows what it knew, or says what is
wrong.

Descriptions, identities and checkpoints are kept twice in one file, so a single flip is repaired; these tests also
spoil both copies. What the coordinators remember is in logs of their own: a damaged batch there is passed over and
named.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import TopicPartition
from kio.schema.errors import ErrorCode

from penstock.log.disk import Disk
from penstock.log.statefile import write_state
from tests.clients import confluent, wire
from tests.crash.at_rest import batches_in, flip_bit, read_partition, segments_of
from tests.seeds import seed_of
from tests.servers import Penstock

ONE_PARTITION_EACH: Final = (
    *("--config", "offsets.topic.num.partitions=1"),
    *("--config", "transaction.state.log.num.partitions=1"),
)
GROUP: Final = "group"
VALUES: Final = [b"value %d" % number for number in range(10)]
COMMITTED: Final = [b"first", b"second", b"third"]
COMMITS: Final = [2, 4, 6]
NOTHING: Final = -1001


@dataclass(frozen=True, slots=True)
class Template:
    data: Path
    plain: str
    decided: str
    producer_id: int
    """The last that was given out."""


def transact(server: Penstock, topic: str) -> None:
    sender = confluent.producer(server, {"transactional.id": "sender", "linger.ms": 0})
    sender.init_transactions(confluent.TIMEOUT_S)
    for value in [COMMITTED[0], b"aborted", COMMITTED[1], b"aborted too", COMMITTED[2]]:
        sender.begin_transaction()
        sender.produce(topic, value, partition=0)
        sender.flush(confluent.TIMEOUT_S)
        end = sender.abort_transaction if value.startswith(b"aborted") else sender.commit_transaction
        end(confluent.TIMEOUT_S)


def new_producer_id(server: Penstock) -> Any:
    return wire.call(server, "init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    with Penstock(tmp_path_factory.mktemp("elsewhere"), *ONE_PARTITION_EACH) as server:
        plain, decided = confluent.create_topic(server), confluent.create_topic(server)
        for value in VALUES:  # each by a producer of its own, which the partition remembers
            confluent.produce(server, plain, [value], settings={"enable.idempotence": True})
        transact(server, decided)
        with confluent.consumer(server, GROUP) as reader:
            for offset in COMMITS:
                reader.commit(offsets=[TopicPartition(plain, 0, offset)], asynchronous=False)
        producer_id = new_producer_id(server).producer_id
        assert server.terminate() == 0
        return Template(server.data, plain, decided, producer_id)


def copied(folder: Path, template: Template) -> Penstock:
    server = Penstock(folder, *ONE_PARTITION_EACH)
    shutil.copytree(template.data, server.data)
    return server


def check_records(server: Penstock, template: Template) -> None:
    assert confluent.values_of(confluent.read_to_end(server, template.plain)) == VALUES
    isolated = confluent.read_to_end(server, template.decided, settings={"isolation.level": "read_committed"})
    assert confluent.values_of(isolated) == COMMITTED


def committed(server: Penstock, template: Template) -> int:
    with confluent.consumer(server, GROUP) as reader:
        return reader.committed([TopicPartition(template.plain, 0)], timeout=confluent.TIMEOUT_S)[0].offset


def check_everything(server: Penstock, template: Template) -> None:
    check_records(server, template)
    assert committed(server, template) == COMMITS[-1]
    given = new_producer_id(server)
    assert given.error_code is ErrorCode.none
    assert given.producer_id > template.producer_id, "a producer id was given out twice"
    assert confluent.produce(server, template.plain, [b"one more"]) == [len(VALUES)]


def check_refuses_to_start(server: Penstock, spoilt: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli", "serve", "--data", str(server.data), "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert str(spoilt) in done.stderr
    assert "Traceback" not in done.stderr


def spoil_both_copies(path: Path) -> None:
    flip_bit(path, 20, 0)
    flip_bit(path, path.stat().st_size - 21, 0)


REPAIRED: Final = {
    "description": "topics/{plain}",
    "description of the broker's own topic": "topics/__consumer_offsets",
    "cluster": "cluster",
    "producer ids": "producer-ids",
    "aborted transactions": "{decided}-0/aborted-transactions",
    "checkpoint with producers": "{decided}-0/checkpoint",
    "checkpoint of offsets": "__consumer_offsets-0/checkpoint",
    "checkpoint of transactions": "__transaction_state-0/checkpoint",
    "lock": "lock",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", REPAIRED)
def test_a_flipped_bit_changes_nothing(tmp_path: Path, template: Template, what: str) -> None:
    rng = random.Random(seed_of())
    server = copied(tmp_path, template)
    path = server.data / REPAIRED[what].format(plain=template.plain, decided=template.decided)
    flip_bit(path, rng.randrange(path.stat().st_size), rng.randrange(8))
    with server:
        check_everything(server, template)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize("where", ["in the base offset", "anywhere"])
def test_a_damaged_batch_of_a_coordinator_is_passed_over_and_named(
    tmp_path: Path, template: Template, topic: str, where: str
) -> None:
    rng = random.Random(seed_of())
    server = copied(tmp_path, template)
    segment = segments_of(server.data, topic, 0)[-1]
    batches = batches_in(segment)
    damaged = rng.choice(batches)
    within = rng.randrange(8 if where == "in the base offset" else damaged.size_bytes)
    flip_bit(segment, damaged.position + within, rng.randrange(8))
    with server:
        assert f"{segment}" in server.process.output(), "the file is not named in the log"
        check_records(server, template)
        assert committed(server, template) in {*COMMITS, NOTHING}
        if damaged is not batches[-1] and topic == "__consumer_offsets":
            assert committed(server, template) == COMMITS[-1]
        sender = confluent.producer(server, {"transactional.id": "sender", "linger.ms": 0})
        sender.init_transactions(confluent.TIMEOUT_S)
        sender.begin_transaction()
        sender.produce(template.decided, b"fourth", partition=0)
        sender.commit_transaction(confluent.TIMEOUT_S)
        isolated = confluent.read_to_end(server, template.decided, settings={"isolation.level": "read_committed"})
        assert confluent.values_of(isolated) == [*COMMITTED, b"fourth"]


def test_a_topic_whose_description_is_lost_is_not_served_and_not_forgotten(tmp_path: Path, template: Template) -> None:
    server = copied(tmp_path, template)
    description = server.data / "topics" / template.plain
    intact = description.read_bytes()
    spoil_both_copies(description)
    with server:
        assert f"topic {template.plain} is not served: {description} is damaged" in server.process.output()
        found = wire.call(server, "metadata", 12, topics=None).topics
        assert template.plain not in {topic.name for topic in found}
        isolated = confluent.read_to_end(server, template.decided, settings={"isolation.level": "read_committed"})
        assert confluent.values_of(isolated) == COMMITTED
        new = {"name": template.plain, "num_partitions": 1, "replication_factor": 1}
        (created,) = wire.call(server, "create_topics", 7, topics=[new], timeout=10_000).topics
        assert created.error_code is ErrorCode.topic_already_exists
        server.terminate()
        description.write_bytes(intact)
        server.start()
        check_everything(server, template)


def test_what_the_broker_cannot_do_without_is_named_and_it_does_not_start(tmp_path: Path, template: Template) -> None:
    for number, name in enumerate(["cluster", "topics/__consumer_offsets", "topics/__transaction_state"]):
        server = copied(tmp_path / str(number), template)
        spoil_both_copies(server.data / name)
        check_refuses_to_start(server, server.data / name)


def test_a_topic_whose_compaction_cannot_be_finished_is_not_served_and_not_lost(
    tmp_path: Path, template: Template
) -> None:
    server = copied(tmp_path, template)
    half_done = server.data / f"{template.plain}-0" / "swap"
    half_done.write_bytes(b"what compaction had decided to put in place of what")
    with server:
        assert f"topic {template.plain} is not served: {half_done} is damaged" in server.process.output()
        assert template.plain not in {topic.name for topic in wire.call(server, "metadata", 12, topics=None).topics}
        server.terminate()
        half_done.unlink()
        server.start()
        check_everything(server, template)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lost", ["missing", "damaged", "an old copy"])
def test_without_its_record_of_producer_ids_the_broker_gives_out_none_that_a_partition_knows(
    tmp_path: Path, template: Template, lost: str
) -> None:
    server = copied(tmp_path, template)
    path = server.data / "producer-ids"
    if lost == "missing":
        path.unlink()
    elif lost == "damaged":
        spoil_both_copies(path)
    else:
        write_state(path, b"0", Disk())
    with server:
        check_everything(server, template)
        sent = [b"%d" % number for number in range(20)]
        for value in sent:  # each by a new producer, whose first batch has sequence number 0
            confluent.produce(server, template.plain, [value], settings={"enable.idempotence": True})
        found = confluent.values_of(confluent.read_to_end(server, template.plain))
        assert found == [*VALUES, b"one more", *sent]
        assert server.process.output().count("New producers get ids from") == 1
        server.terminate()
        server.start()
        assert new_producer_id(server).error_code is ErrorCode.none
        assert "producer-ids" not in server.process.output()


def test_a_topic_without_its_description_keeps_its_records_and_the_offsets_of_its_groups(
    tmp_path: Path, template: Template
) -> None:
    server = copied(tmp_path, template)
    description = server.data / "topics" / template.plain
    intact = description.read_bytes()
    description.unlink()
    with server:
        said = server.process.output()
        assert f"topic {template.plain} is not served: its topic file {description} is missing" in said
        new = {"name": template.plain, "num_partitions": 1, "replication_factor": 1}
        (created,) = wire.call(server, "create_topics", 7, topics=[new], timeout=10_000).topics
        assert created.error_code is ErrorCode.topic_already_exists
        server.terminate()
        description.write_bytes(intact)
        server.start()
        check_everything(server, template)


def test_offsets_of_a_topic_of_which_nothing_is_left_are_kept_until_it_is_created_again(
    tmp_path: Path, template: Template
) -> None:
    server = copied(tmp_path, template)
    description, records = server.data / "topics" / template.plain, server.data / f"{template.plain}-0"
    aside = tmp_path / "aside"
    aside.mkdir()
    for path in (description, records):
        path.rename(aside / path.name)
    with server:
        assert f"and were not deleted: {template.plain}" in server.process.output()
        server.terminate()
        for path in (description, records):
            (aside / path.name).rename(path)
        server.start()
        check_everything(server, template)
        server.terminate()
        for path in (description, records):
            path.rename(aside / path.name)
        server.start()
        new = {"name": template.plain, "num_partitions": 1, "replication_factor": 1}
        (created,) = wire.call(server, "create_topics", 7, topics=[new], timeout=10_000).topics
        assert created.error_code is ErrorCode.none
        assert committed(server, template) == NOTHING


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_a_topic_of_the_coordinators_that_is_missing_in_part_is_not_taken_for_a_new_one(
    tmp_path: Path, template: Template, topic: str
) -> None:
    for number, name in enumerate([f"topics/{topic}", f"{topic}-0"]):
        server = copied(tmp_path / str(number), template)
        (server.data / name).rename(tmp_path / "lost")
        check_refuses_to_start(server, server.data / name)
        (tmp_path / "lost").rename(server.data / name)
        with server:
            check_everything(server, template)


def test_a_checkpoint_that_is_lost_costs_only_time(tmp_path: Path, template: Template) -> None:
    server = copied(tmp_path, template)
    for checkpoint in server.data.glob("*/checkpoint"):
        spoil_both_copies(checkpoint)
    with server:
        assert "the whole partition is verified" in server.process.output()
        with wire.Connection(server) as connection:
            assert list(read_partition(connection, template.plain, 0).values()) == VALUES
        check_everything(server, template)
