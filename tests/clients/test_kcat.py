"""kcat, the command line client, as people type it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Final

import pytest
from confluent_kafka import TopicPartition

from tests import real_parts
from tests.clients import confluent, wire
from tests.clients.names import fresh
from tests.servers import Server

TIMEOUT_S: Final = 30.0
Kcat = Callable[..., str]


@pytest.fixture
def kcat(server: Server) -> Kcat:
    """Runs kcat with some arguments and input; its output is the answer, and anything but success fails."""
    program = real_parts.kcat()

    def run(*arguments: str, text: str = "") -> str:
        command = [program, "-b", server.bootstrap, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, f"kcat {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    return run


def test_lines_go_in_and_come_out(server: Server, kcat: Kcat) -> None:
    topic = confluent.create_topic(server)
    kcat("-P", "-t", topic, text="one\ntwo\nthree\n")
    assert kcat("-C", "-t", topic, "-e", "-q") == "one\ntwo\nthree\n"
    assert kcat("-C", "-t", topic, "-o", "1", "-e", "-q") == "two\nthree\n"
    assert kcat("-C", "-t", topic, "-o", "-1", "-e", "-q") == "three\n"
    assert kcat("-C", "-t", topic, "-c", "2", "-q") == "one\ntwo\n"


def test_a_topic_is_made_by_producing_to_it(kcat: Kcat) -> None:
    topic = fresh()
    kcat("-P", "-t", topic, text="first\n")
    assert kcat("-C", "-t", topic, "-e", "-q") == "first\n"


def test_keys_headers_and_tombstones(server: Server, kcat: Kcat) -> None:
    topic = confluent.create_topic(server, partitions=2)
    kcat("-P", "-t", topic, "-p", "1", "-K", ":", "-H", "from=kcat", text="key:value\n")
    kcat("-P", "-t", topic, "-p", "1", "-K", ":", "-Z", text="key:\n")
    out = kcat("-C", "-t", topic, "-p", "1", "-e", "-q", "-Z", "-f", r"%p %o %k %s %h\n")
    assert out == "1 0 key value from=kcat\n1 1 key NULL \n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_round_trips(server: Server, kcat: Kcat, codec: str) -> None:
    topic = confluent.create_topic(server)
    lines = "".join(f"line {number} {'x' * 100}\n" for number in range(500))
    kcat("-P", "-t", topic, "-z", codec, text=lines)
    assert kcat("-C", "-t", topic, "-e", "-q") == lines
    stored_bytes = wire.partition_size_bytes(server, topic)
    # An old librdkafka that does not like the versions we offer stops compressing and says nothing.
    assert (stored_bytes < len(lines) / 3) == (codec != "none")


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acknowledgement(server: Server, kcat: Kcat, acks: str) -> None:
    topic = confluent.create_topic(server)
    kcat("-P", "-t", topic, "-X", f"acks={acks}", text="x\n")
    assert kcat("-C", "-t", topic, "-c", "1", "-q") == "x\n"


def test_the_idempotent_producer(server: Server, kcat: Kcat) -> None:
    topic = confluent.create_topic(server)
    kcat("-P", "-t", topic, "-X", "enable.idempotence=true", text="a\nb\n")
    assert kcat("-C", "-t", topic, "-e", "-q") == "a\nb\n"


def test_metadata_is_listed(server: Server, kcat: Kcat) -> None:
    topic = confluent.create_topic(server, partitions=3)
    told = json.loads(kcat("-L", "-J", "-t", topic))
    (broker,) = told["brokers"]
    assert broker["name"] == server.bootstrap
    (listed,) = told["topics"]
    assert (listed["topic"], [part["partition"] for part in listed["partitions"]]) == (topic, [0, 1, 2])
    assert {part["leader"] for part in listed["partitions"]} == {broker["id"]}


def test_offsets_are_asked_for_by_time(server: Server, kcat: Kcat) -> None:
    topic = confluent.create_topic(server)
    sender = confluent.producer(server)
    for timestamp_ms in (1000, 2000, 3000):
        sender.produce(topic, b"x", partition=0, timestamp=timestamp_ms)
    assert sender.flush(confluent.TIMEOUT_S) == 0
    answers = [kcat("-Q", "-t", f"{topic}:0:{asked}") for asked in ("1500", "-1", "-2")]
    assert answers == [f"{topic} [0] offset {offset}\n" for offset in (1, 3, 0)]


def test_a_group_reads_and_remembers(server: Server, kcat: Kcat) -> None:
    topic, group = confluent.create_topic(server, partitions=2), fresh("group")
    kcat("-P", "-t", topic, "-p", "0", text="a\nb\n")
    kcat("-P", "-t", topic, "-p", "1", text="c\n")
    settings = ("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=200")
    out = kcat("-G", group, "-e", "-q", *settings, topic)
    assert sorted(out.split()) == ["a", "b", "c"]
    with confluent.consumer(server, group) as reader:
        places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        committed = reader.committed(places, timeout=confluent.TIMEOUT_S)
        assert [place.offset for place in committed] == [2, 1]


def test_records_of_an_aborted_transaction_are_left_out(server: Server, kcat: Kcat) -> None:
    topic = confluent.create_topic(server)
    sender = confluent.producer(server, {"transactional.id": fresh("txn")})
    sender.init_transactions(TIMEOUT_S)
    for value, end in ((b"aborted", sender.abort_transaction), (b"committed", sender.commit_transaction)):
        sender.begin_transaction()
        sender.produce(topic, value, partition=0)
        assert sender.flush(TIMEOUT_S) == 0
        end(TIMEOUT_S)
    assert kcat("-C", "-t", topic, "-c", "1", "-q", "-X", "isolation.level=read_committed") == "committed\n"
    assert kcat("-C", "-t", topic, "-c", "2", "-q", "-X", "isolation.level=read_uncommitted") == "aborted\ncommitted\n"
