"""The Java client, which defines what a Kafka client is: programs in `java/` do the work and tell what they saw."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients import confluent
from tests.clients.java_programs import TIMEOUT_S, JavaPrograms
from tests.clients.names import fresh
from tests.sampling import times
from tests.servers import Penstock, Server

Program = Callable[..., Any]

pytestmark = pytest.mark.xdist_group("java")
"""The programs are compiled once, and most run in one JVM."""


@pytest.fixture
def java(server: Server, java_programs: JavaPrograms) -> Program:
    """Runs one of the programs; the answer is what it saw."""

    def run(program: str, *arguments: str) -> Any:
        done = java_programs.run(program, server.bootstrap, *arguments)
        assert not done.failed, done.printed
        return json.loads(done.printed.splitlines()[-1])

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


RESTARTS: Final = 4
SOAK_RESTARTS: Final = 30


def test_producers_and_consumers_survive_restarts_under_load(tmp_path: Path, java_programs: JavaPrograms) -> None:
    """The broker is stopped and killed in turn; consumers with and without a group see all that was acknowledged.

    A consumer that loses its broker may begin a fetch session by topic name and go on by id, or the reverse.
    """
    with Penstock(tmp_path, "--config", "group.initial.rebalance.delay.ms=0") as penstock:
        topic = confluent.create_topic(penstock, partitions=4)
        command = java_programs.command("Restarts", penstock.bootstrap, topic, "4", fresh("group"))
        with running(command, tmp_path / "java.txt") as ask:
            for number in range(times(RESTARTS, SOAK_RESTARTS)):
                assert ask("check") == {"failures": {}}, f"before restart {number}"
                penstock.kill() if number % 2 else penstock.terminate()
                penstock.restart()
            assert ask("check") == {"failures": {}}, "after the last restart"
            seen = ask("stop")
        assert "Traceback" not in (tmp_path / "output.txt").read_text("utf-8")
    print(seen)
    assert seen["acknowledged"] == seen["sent"] > 0
    assert seen["failures"] == {}
    readers = ("assigned-0", "assigned-1", "assigned-2", "subscribed")
    assert seen["missing"] == dict.fromkeys(readers, 0)
    assert [seen["repeated"][reader] for reader in readers[:3]] == [0, 0, 0]


@contextmanager
def running(command: list[str], log: Path) -> Iterator[Callable[[str], Any]]:
    """A program, and what says a line to it and waits for its answer. What else it prints is in the log."""
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        inbound, outbound = process.stdin, process.stdout
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()

        def ask(line: str) -> Any:
            print(line, file=inbound, flush=True)
            for answer in outbound:
                if answer.startswith("{"):
                    return json.loads(answer)
                errors.write(answer)
            raise AssertionError(f"the program has ended, and said nothing to {line!r}: see {log}")

        try:
            yield ask
        finally:
            watchdog.cancel()
            process.kill()
