"""A disk that says no: a sync that failed is never tried again and believed; everything else recovers by itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from penstock.testing import FaultyDisk
from tests.broker.plain_requests import PRODUCE, create_topic, produce_fields, produced
from tests.clients import wire
from tests.crash.at_rest import fetch_once, read_partition
from tests.crash.in_process import BrokerInThread

REFUSED = ErrorCode.kafka_storage_error


def send(connection: wire.Connection, topic: str, value: bytes, acks: int = -1) -> tuple[ErrorCode, int]:
    return produced(connection.call(*PRODUCE, **produce_fields(topic, [value], acks)))


def test_after_a_failed_sync_a_partition_takes_no_writes_until_restart_and_others_do(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with BrokerInThread(tmp_path, disk) as server:
        topic, other = create_topic(server), create_topic(server)
        with wire.Connection(server) as connection:
            assert send(connection, topic, b"safe") == (ErrorCode.none, 0)
            assert send(connection, other, b"safe") == (ErrorCode.none, 0)
            disk.fail("sync")
            assert send(connection, topic, b"lost") == (REFUSED, -1)
            for acks in (-1, 1):
                assert send(connection, topic, b"never", acks)[0] is REFUSED, "it was tried again and believed"
            assert send(connection, other, b"goes on") == (ErrorCode.none, 1)
            assert read_partition(connection, topic, 0) == {0: b"safe"}, "what is not safe was shown to readers"
            assert read_partition(connection, other, 0) == {0: b"safe", 1: b"goes on"}
    with BrokerInThread(tmp_path) as server, wire.Connection(server) as connection:
        kept = read_partition(connection, topic, 0)
        assert kept[0] == b"safe"
        assert b"never" not in kept.values()
        assert send(connection, topic, b"after") == (ErrorCode.none, len(kept))


def test_requests_that_share_a_sync_share_its_failure_only_with_their_own_partition(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with BrokerInThread(tmp_path, disk) as server:
        topics = [create_topic(server) for _ in range(4)]
        with wire.Connection(server) as connection:
            for topic in topics:
                assert send(connection, topic, b"safe") == (ErrorCode.none, 0)
            part = {"index": 0, "records": produce_fields("", [b"x"])["topic_data"][0]["partition_data"][0]["records"]}
            data = [{"name": topic, "partition_data": [part]} for topic in topics]
            disk.fail("sync", passes=2, times=1)
            answer = connection.call(*PRODUCE, acks=-1, timeout=10_000, topic_data=data)
            codes = [topic.partition_responses[0].error_code for topic in answer.responses]
            assert sorted(codes) == [ErrorCode.none] * 3 + [REFUSED]
            for topic, code in zip(topics, codes, strict=True):
                assert send(connection, topic, b"next")[0] is code


def test_commits_are_refused_after_a_failed_sync_of_their_partition_only(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with BrokerInThread(tmp_path, disk, {"offsets.topic.num.partitions": "2"}) as server:
        topic = create_topic(server)
        with wire.Connection(server) as connection:
            assert send(connection, topic, b"x") == (ErrorCode.none, 0)
            # Java's hash of a name of one letter is its number, so these are two partitions of the offsets topic.
            assert commit(connection, "a", topic, 1) is ErrorCode.none
            disk.fail("sync")
            assert commit(connection, "a", topic, 2) is ErrorCode.not_coordinator
            assert commit(connection, "a", topic, 3) is ErrorCode.not_coordinator
            assert commit(connection, "b", topic, 1) is ErrorCode.none
            assert committed(connection, "a", topic) == 1
            assert send(connection, topic, b"y") == (ErrorCode.none, 1)
    with BrokerInThread(tmp_path) as server, wire.Connection(server) as connection:
        assert committed(connection, "a", topic) in (1, 2)
        assert commit(connection, "a", topic, 3) is ErrorCode.none


def commit(connection: wire.Connection, group: str, topic: str, offset: int) -> ErrorCode:
    part = {"partition_index": 0, "committed_offset": offset}
    fields = {"group_id": group, "generation_id_or_member_epoch": -1}
    answer = connection.call("offset_commit", 8, **fields, topics=[{"name": topic, "partitions": [part]}])
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


def committed(connection: wire.Connection, group: str, topic: str) -> int:
    wanted = [{"name": topic, "partition_indexes": [0]}]
    answer = connection.call("offset_fetch", 7, group_id=group, topics=wanted)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_write_that_fails_is_refused_and_the_next_one_is_taken(tmp_path: Path, code: int) -> None:
    disk = FaultyDisk()
    with BrokerInThread(tmp_path, disk) as server:
        topic = create_topic(server)
        with wire.Connection(server) as connection:
            assert send(connection, topic, b"first") == (ErrorCode.none, 0)
            disk.fail("write", code=code)
            assert send(connection, topic, b"refused") == (REFUSED, -1)
            assert send(connection, topic, b"second") == (ErrorCode.none, 1)
            assert read_partition(connection, topic, 0) == {0: b"first", 1: b"second"}
    with BrokerInThread(tmp_path) as server, wire.Connection(server) as connection:
        assert read_partition(connection, topic, 0) == {0: b"first", 1: b"second"}


def test_a_write_that_can_neither_be_finished_nor_taken_back_ends_writing(tmp_path: Path) -> None:
    """Half of a batch is in the file and stays there: only a restart, which cuts it off, makes it safe to go on."""
    disk = FaultyDisk()
    with BrokerInThread(tmp_path, disk) as server:
        topic = create_topic(server)
        with wire.Connection(server) as connection:
            assert send(connection, topic, b"first") == (ErrorCode.none, 0)
            disk.fill(free_bytes=30)
            disk.fail("truncate", times=None)
            assert send(connection, topic, b"torn") == (REFUSED, -1)
            disk.free()
            disk.heal()
            assert send(connection, topic, b"second")[0] is REFUSED
            assert read_partition(connection, topic, 0)[0] == b"first"
    with BrokerInThread(tmp_path) as server, wire.Connection(server) as connection:
        kept = read_partition(connection, topic, 0)
        assert kept[0] == b"first"
        assert b"torn" not in kept.values()
        assert send(connection, topic, b"third") == (ErrorCode.none, len(kept))


def test_a_read_that_fails_is_an_error_and_not_an_empty_answer(tmp_path: Path) -> None:
    with BrokerInThread(tmp_path) as server:
        topic = create_topic(server)
        with wire.Connection(server) as connection:
            for number in range(3):
                assert send(connection, topic, b"%d" % number) == (ErrorCode.none, number)
    disk = FaultyDisk()
    with BrokerInThread(tmp_path, disk) as server, wire.Connection(server) as connection:
        disk.fail("read", times=None)
        assert fetch_once(connection, topic, 0, 0)[0] is REFUSED
        disk.heal()
        assert len(read_partition(connection, topic, 0)) == 3


def test_a_partition_whose_file_cannot_be_made_is_refused_and_made_later(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with BrokerInThread(tmp_path, disk) as server:
        topic = create_topic(server)
        with wire.Connection(server) as connection:
            disk.fail("open", code=errno.EMFILE)
            assert send(connection, topic, b"refused") == (REFUSED, -1)
            assert send(connection, topic, b"first") == (ErrorCode.none, 0)
