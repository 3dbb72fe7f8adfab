"""kafkajs, the client of Node.js programs: scripts in `kafkajs/` do the work and tell what they saw."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import TopicPartition

from tests import real_parts
from tests.clients import confluent
from tests.clients.names import fresh
from tests.servers import Server

TIMEOUT_S: Final = 60.0
SCRIPTS: Final = Path(__file__).parent / "kafkajs"


def run(server: Server, script: str, **given: Any) -> Any:
    """What a script saw."""
    command = [real_parts.node(), str(SCRIPTS / script), json.dumps({"bootstrap": server.bootstrap, **given})]
    quiet = {"KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    environment = {**os.environ, "NODE_PATH": str(real_parts.kafkajs_modules()), **quiet}
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("compress", "acks"), [(False, -1), (True, -1), (False, 1)])
def test_records_come_back_as_they_were_sent(server: Server, compress: bool, acks: int) -> None:
    topic, count = confluent.create_topic(server), 50
    seen = run(server, "round_trip.js", topic=topic, group=fresh("group"), compress=compress, acks=acks, count=count)
    (sent,) = seen["sent"]
    assert (sent["errorCode"], sent["baseOffset"]) == (0, "0")
    assert seen["received"] == [
        {
            "partition": 0,
            "offset": str(number),
            "key": f"key {number}",
            "value": f"value {number} {'x' * 50}",
            "timestamp": str(1_700_000_000_000 + number),
            "headers": {"trace": b"abc".hex(), "binary": "00ff"},
        }
        for number in range(count)
    ]


def test_a_group_shares_partitions_and_resumes_where_it_was(server: Server) -> None:
    topic, group = confluent.create_topic(server, partitions=4), fresh("group")
    seen = run(server, "groups.js", topic=topic, group=group)
    first, second = seen["shared"]
    assert (len(first), len(second), sorted(first + second)) == (2, 2, [0, 1, 2, 3])
    assert seen["received"] == [[partition, f"to {partition}"] for partition in range(4)]
    assert seen["third"] == [[0, "later"]]


def test_transactions_are_seen_when_they_are_committed(server: Server) -> None:
    topic, source = confluent.create_topic(server), confluent.create_topic(server)
    names = {"topic": topic, "source": source, "group": fresh("group"), "transactionalId": fresh("txn")}
    seen = run(server, "transactions.js", **names)
    assert seen == {
        "committed": ["committed"],
        "everything": ["aborted", "committed"],
        "offset": "7",
        "fenced": "INVALID_PRODUCER_EPOCH",
    }


def test_topics_and_groups_are_administered(server: Server) -> None:
    read, group = confluent.create_topic(server, partitions=2), fresh("group")
    with confluent.consumer(server, group) as reader:
        reader.commit(offsets=[TopicPartition(read, 0, 3)], asynchronous=False)
    seen = run(server, "admin.js", topic=fresh(), other=fresh(), group=group, read=read)
    deleted = seen.pop("deletedGroup")
    assert [row["errorCode"] for row in deleted] == [0]
    assert seen == {
        "created": True,
        "createdAgain": False,
        "badSetting": "INVALID_CONFIG",
        "badReplicas": "INVALID_REPLICATION_FACTOR",
        "partitions": [0, 1, 2],
        "retention": ["5000"],
        "offsets": {"partition": 0, "offset": "4", "high": "4", "low": "0"},
        "afterDeletion": {"partition": 0, "offset": "4", "high": "4", "low": "2"},
        "groupOffsets": [
            {"partition": 0, "offset": "3", "metadata": None},
            {"partition": 1, "offset": "-1", "metadata": None},
        ],
        "listed": True,
        "state": "Empty",
        "deletedGroupAgain": "GROUP_ID_NOT_FOUND",
        "cluster": {"brokers": 1, "port": server.port},
        "listedTopic": True,
    }
