"""The Java client, which defines what a Kafka client is: programs in `java/` do the work and tell what they saw."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests import real_parts
from tests.clients import confluent
from tests.clients.names import fresh
from tests.servers import QUICK_START, Server, java_command

TIMEOUT_S: Final = 240.0
SOURCES: Final = Path(__file__).parent / "java"
Program = Callable[..., Any]

pytestmark = pytest.mark.xdist_group("java")
"""The programs are compiled once."""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled programs."""
    folder = tmp_path_factory.mktemp("java")
    javac = Path(real_parts.java_with_compiler()).resolve().with_name("javac")
    sources = [str(source) for source in sorted(SOURCES.glob("*.java"))]
    command = [str(javac), "-cp", real_parts.kafka_class_path(), "-d", str(folder), *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def java(server: Server, compiled: Path) -> Program:
    """Runs one of the programs; the answer is what it saw."""

    def run(program: str, *arguments: str) -> Any:
        *options, class_path = java_command(*QUICK_START, "-Xmx256m")
        command = [*options, f"{class_path}:{compiled}", program, server.bootstrap, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_records_of_every_codec_and_acknowledgement_come_back(server: Server, java: Program) -> None:
    topic = confluent.create_topic(server)
    small = confluent.create_topic(server, settings={"max.message.bytes": "1000"})
    seen = java("RoundTrip", topic, small)
    kinds = [(codec, acks) for codec in ("none", "gzip", "snappy", "lz4", "zstd") for acks in ("0", "1", "all")]
    told = [-1 if acks == "0" else offset for offset, acks in enumerate(acks for _, acks in kinds for _ in range(10))]
    assert seen.pop("offsets") == told
    expected = [(codec, acks, number) for codec, acks in kinds for number in range(10)]
    assert seen.pop("received") == [
        f"{offset} {1_700_000_000_000 + offset} {codec} {codec} {codec} {acks} {number} "
        for offset, (codec, acks, number) in enumerate(expected)
    ]
    assert seen == {"beginning": 0, "end": 150, "atTime": 42, "sought": 7, "tooLarge": "RecordTooLargeException"}


@pytest.mark.parametrize(
    ("assignor", "taken"), [("RangeAssignor", 4), ("StickyAssignor", 4), ("CooperativeStickyAssignor", 2)]
)
def test_a_group_shares_partitions_and_resumes_where_it_was(
    server: Server, java: Program, assignor: str, taken: int
) -> None:
    topic = confluent.create_topic(server, partitions=4)
    seen = java("Groups", topic, fresh("group"), f"org.apache.kafka.clients.consumer.{assignor}")
    assert seen == {
        "together": [0, 1, 2, 3],
        "takenFromTheFirst": taken,
        "received": ["0 value", "1 value", "2 value", "3 value"],
        "metadata": "by hand",
        "third": ["0 value"],
    }


def test_transactions_are_whole_or_not_at_all(server: Server, java: Program) -> None:
    source = confluent.create_topic(server)
    sink = confluent.create_topic(server, settings={"max.message.bytes": "2000"})
    seen = java("Transactions", source, sink, fresh("group"), fresh("txn"))
    assert seen == {
        "ongoing": "Ongoing",
        "committedAfterAbort": "null",
        "tooLarge": "RecordTooLargeException",
        "commitIsRefused": True,
        "committed": 2,
        "fenced": "ProducerFencedException",
        "readCommitted": ["committed", "from the heir"],
        "readUncommitted": ["aborted", "committed", "from the zombie", "from the heir"],
    }


def test_topics_and_groups_are_administered(server: Server, java: Program) -> None:
    assert java("AdminTasks", fresh(), fresh("group")) == {
        "createdAgain": "TopicExistsException",
        "badName": "InvalidTopicException",
        "badReplicas": "InvalidReplicationFactorException",
        "badSetting": "InvalidConfigurationException",
        "placedOnNobody": "InvalidReplicaAssignmentException",
        "byDefault": 1,
        "grownAgain": "InvalidPartitionsException",
        "cleanupPolicy": "delete,compact",
        "badChange": "InvalidConfigurationException",
        "nodes": 1,
        "controllerPort": server.port,
        "earliest": 0,
        "latest": 3,
        "maxTimestamp": 2,
        "atTime": 1,
        "lowWatermark": 1,
        "state": "Stable",
        "assignor": "range",
        "member": "the-reader",
        "assigned": 3,
        "deletedWithMembers": "GroupNotEmptyException",
        "offsetsDeletedWhileSubscribed": "GroupSubscribedToTopicException",
        "listed": True,
        "offset": 3,
        "alteredOffset": 1,
        "offsetIsDeleted": True,
        "describedAfterDeletion": "GroupIdNotFoundException",
        "deletedAgain": "UnknownTopicOrPartitionException",
    }
