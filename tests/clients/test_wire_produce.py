"""What a broker takes and refuses in a Produce request, batch by batch."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode

from penstock.log.batches import compression
from tests.clients import confluent, wire
from tests.clients.batches import CRC_AT, batch, values_in, with_checksum
from tests.clients.names import fresh
from tests.clients.wire import Connection
from tests.log.batches import Batch, frame, varint
from tests.servers import Penstock, Server


@pytest.fixture
def topic(server: Server, connection: Connection) -> str:
    return new_topic(server, connection)


def new_topic(server: Server, connection: Connection, settings: dict[str, str] | None = None) -> str:
    name = confluent.create_topic(server, settings=settings)
    wire.wait_for_leader(connection, name)
    return name


def produce(
    connection: Connection, topic: str, records: bytes | None, version: int = 9, acks: int = -1, partition: int = 0
) -> Any:
    """The answer for the one partition."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    answer = connection.call("produce", version, acks=acks, timeout=5000, topic_data=data)
    return answer.responses[0].partition_responses[0]


def stored(connection: Connection, topic: str) -> list[tuple[int, bytes]]:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": topic, "partitions": [part]}]
    answer = connection.call("fetch", 12, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    return values_in(answer.responses[0].partitions[0].records)


def new_producer(connection: Connection) -> tuple[int, int]:
    init = connection.call("init_producer_id", 4, transactional_id=None, transaction_timeout=0)
    assert init.error_code is ErrorCode.none
    return init.producer_id, init.producer_epoch


def test_a_batch_that_is_sent_twice_is_stored_once(connection: Connection, topic: str) -> None:
    producer_id, epoch = new_producer(connection)
    assert epoch == 0
    for sequence in (0, 2):
        records = batch([b"a", b"b"], producer_id=producer_id, epoch=epoch, sequence=sequence)
        first, again = produce(connection, topic, records), produce(connection, topic, records)
        assert (first.error_code, first.base_offset) == (ErrorCode.none, sequence)
        assert (again.error_code, again.base_offset) == (ErrorCode.none, sequence)
    assert stored(connection, topic) == [(0, b"a"), (1, b"b"), (2, b"a"), (3, b"b")]


def test_the_last_five_batches_are_remembered_as_duplicates(connection: Connection, topic: str) -> None:
    producer_id, epoch = new_producer(connection)
    batches = [
        batch([str(sequence).encode()], producer_id=producer_id, epoch=epoch, sequence=sequence)
        for sequence in range(7)
    ]
    for records in batches:
        assert produce(connection, topic, records).error_code is ErrorCode.none
    answers = [produce(connection, topic, records) for records in batches]
    assert [answer.error_code for answer in answers[2:]] == [ErrorCode.none] * 5
    assert [answer.base_offset for answer in answers[2:]] == [2, 3, 4, 5, 6]
    # What is older than that is known to be a duplicate, but no longer where it was stored.
    for answer in answers[:2]:
        assert answer.error_code in (ErrorCode.duplicate_sequence_number, ErrorCode.out_of_order_sequence_number)
    assert len(stored(connection, topic)) == 7


@pytest.mark.parametrize(
    ("sequence", "epoch", "code"),
    [
        (1, 0, ErrorCode.none),
        (2, 0, ErrorCode.out_of_order_sequence_number),
        (0, 1, ErrorCode.none),
        (1, 1, ErrorCode.out_of_order_sequence_number),
    ],
)
def test_sequences_follow_each_other(
    connection: Connection, topic: str, sequence: int, epoch: int, code: ErrorCode
) -> None:
    producer_id, _ = new_producer(connection)
    assert produce(connection, topic, batch([b"0"], producer_id=producer_id, epoch=0, sequence=0)).error_code == 0
    answer = produce(connection, topic, batch([b"1"], producer_id=producer_id, epoch=epoch, sequence=sequence))
    assert answer.error_code is code
    assert len(stored(connection, topic)) == (2 if code is ErrorCode.none else 1)


def test_an_older_epoch_is_fenced(connection: Connection, topic: str) -> None:
    producer_id, _ = new_producer(connection)
    assert produce(connection, topic, batch([b"0"], producer_id=producer_id, epoch=3, sequence=0)).error_code == 0
    answer = produce(connection, topic, batch([b"1"], producer_id=producer_id, epoch=2, sequence=0))
    assert answer.error_code is ErrorCode.invalid_producer_epoch


def test_sequences_wrap_around(connection: Connection, topic: str) -> None:
    producer_id, epoch = new_producer(connection)
    last = 2**31 - 1
    # A producer that the partition does not know yet may start anywhere.
    first = produce(connection, topic, batch([b"a"], producer_id=producer_id, epoch=epoch, sequence=last))
    assert first.error_code is ErrorCode.none
    following = produce(connection, topic, batch([b"b"], producer_id=producer_id, epoch=epoch, sequence=0))
    assert following.error_code is ErrorCode.none
    assert stored(connection, topic) == [(0, b"a"), (1, b"b")]


def broken_checksum(records: bytes) -> bytes:
    return records[:CRC_AT] + bytes([records[CRC_AT] ^ 1]) + records[CRC_AT + 1 :]


def flipped_bit(records: bytes) -> bytes:
    return records[:-3] + bytes([records[-3] ^ 1]) + records[-2:]


def wrong_count(records: bytes) -> bytes:
    return with_checksum(records[:57] + struct.pack(">i", 7) + records[61:])


def wrong_last_offset(records: bytes) -> bytes:
    return with_checksum(records[:23] + struct.pack(">i", 7) + records[27:])


def control(records: bytes) -> bytes:
    return with_checksum(records[:21] + struct.pack(">h", 0x20) + records[23:])


def future_magic(records: bytes) -> bytes:
    return records[:16] + b"\x03" + records[17:]


def wrong_length(records: bytes) -> bytes:
    return records[:8] + struct.pack(">i", len(records)) + records[12:]


def negative_length(records: bytes) -> bytes:
    return records[:8] + struct.pack(">i", -1) + records[12:]


def unknown_codec(records: bytes) -> bytes:
    return with_checksum(records[:21] + struct.pack(">h", 7) + records[23:])


def not_compressed(records: bytes) -> bytes:
    """Says gzip, is none."""
    return with_checksum(records[:21] + struct.pack(">h", 1) + records[23:])


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (broken_checksum, ErrorCode.corrupt_message),
        (flipped_bit, ErrorCode.corrupt_message),
        (wrong_length, ErrorCode.invalid_record),
        (negative_length, ErrorCode.corrupt_message),
        (wrong_count, ErrorCode.invalid_record),
        (wrong_last_offset, ErrorCode.invalid_record),
        (control, ErrorCode.invalid_record),
        # Apache Kafka has no code for these but that of an internal error.
        (unknown_codec, None),
        (not_compressed, None),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_damaged_batch_is_refused_and_nothing_of_it_is_stored(
    connection: Connection, topic: str, damage: Callable[[bytes], bytes], code: ErrorCode | None
) -> None:
    answer = produce(connection, topic, damage(batch([b"a", b"b"])))
    assert answer.error_code is not ErrorCode.none
    assert code in (None, answer.error_code)
    assert produce(connection, topic, batch([b"good"])).base_offset == 0
    assert stored(connection, topic) == [(0, b"good")]


@pytest.mark.parametrize("acks", [-2, 2, 100])
def test_acknowledgements_other_than_none_one_and_all_are_refused(
    connection: Connection, topic: str, acks: int
) -> None:
    assert produce(connection, topic, batch([b"x"]), acks=acks).error_code is ErrorCode.invalid_required_acks
    assert stored(connection, topic) == []


def test_a_topic_or_partition_that_does_not_exist_is_refused(connection: Connection, topic: str) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert produce(connection, fresh(), batch([b"x"])).error_code is unknown
    assert produce(connection, topic, batch([b"x"]), partition=1).error_code is unknown


def test_a_topic_id_that_does_not_exist_is_refused(connection: Connection) -> None:
    data = [{"topic_id": uuid.uuid4(), "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
    answer = connection.call("produce", 13, acks=-1, timeout=5000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.unknown_topic_id


def test_a_record_without_acknowledgement_that_is_refused_closes_the_connection(connection: Connection) -> None:
    data = [{"name": fresh(), "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
    connection.send("produce", 9, acks=0, timeout=5000, topic_data=data)
    assert connection.is_closed_by_server()


def test_a_record_without_acknowledgement_gets_no_answer(connection: Connection, topic: str) -> None:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
    for _ in range(3):
        connection.send("produce", 9, acks=0, timeout=5000, topic_data=data)
    # The next answer is that of the next request, which is carried out after them.
    assert stored(connection, topic) == [(0, b"x"), (1, b"x"), (2, b"x")]


def test_zstd_is_refused_from_clients_that_are_too_old_for_it(connection: Connection, topic: str) -> None:
    zstd = 4
    records = batch([b"x" * 100], codec=zstd)
    assert produce(connection, topic, records, version=6).error_code is ErrorCode.unsupported_compression_type
    assert produce(connection, topic, records, version=7).error_code is ErrorCode.none


def test_several_batches_for_one_partition_are_refused(connection: Connection, topic: str) -> None:
    answer = produce(connection, topic, batch([b"a"]) + batch([b"b"]))
    assert answer.error_code is ErrorCode.invalid_record
    assert stored(connection, topic) == []


def test_a_refused_partition_does_not_stop_the_others(connection: Connection, topic: str) -> None:
    good, bad = {"index": 0, "records": batch([b"x"])}, {"index": 9, "records": batch([b"x"])}
    data = [{"name": topic, "partition_data": [bad, good]}]
    answer = connection.call("produce", 9, acks=-1, timeout=5000, topic_data=data)
    codes = {part.index: part.error_code for part in answer.responses[0].partition_responses}
    assert codes == {0: ErrorCode.none, 9: ErrorCode.unknown_topic_or_partition}
    assert stored(connection, topic) == [(0, b"x")]


def test_a_record_without_a_key_is_pointed_at_in_a_compacted_topic(server: Server, connection: Connection) -> None:
    topic = new_topic(server, connection, settings={"cleanup.policy": "compact"})
    answer = produce(connection, topic, batch([b"a", b"b"]))
    assert answer.error_code is ErrorCode.invalid_record
    assert [error.batch_index for error in answer.record_errors] == [0, 1]


@pytest.mark.parametrize(("setting", "codec"), [("gzip", 1), ("zstd", 4), ("uncompressed", 0), ("producer", 3)])
def test_a_topic_can_choose_its_own_compression(
    server: Server, connection: Connection, setting: str, codec: int
) -> None:
    topic = new_topic(server, connection, settings={"compression.type": setting})
    lz4 = 3
    assert produce(connection, topic, batch([b"x" * 500, b"y" * 500], codec=lz4)).error_code is ErrorCode.none
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": topic, "partitions": [part]}]
    answer = connection.call("fetch", 12, replica_id=-1, max_wait=0, min_bytes=0, topics=topics)
    records = answer.responses[0].partitions[0].records
    assert struct.unpack_from(">h", records, 21)[0] & 0x07 == codec
    assert values_in(records) == [(0, b"x" * 500), (1, b"y" * 500)]


def test_a_transactional_batch_outside_a_transaction_is_refused(connection: Connection, topic: str) -> None:
    transactional_id = fresh("txn")
    init = connection.call("init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=5000)
    records = batch([b"x"], producer_id=init.producer_id, epoch=init.producer_epoch, sequence=0, transactional=True)
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    answer = connection.call("produce", 9, transactional_id=transactional_id, acks=-1, timeout=5000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.invalid_txn_state
    assert stored(connection, topic) == []


def record(delta: int, body: bytes = b"\x01\x02v\0") -> bytes:
    """A record of the batch, at its start: its offset within the batch, then key, value and headers."""
    return sized(b"\0\0" + varint(delta) + body)


def sized(body: bytes) -> bytes:
    return varint(len(body)) + body


LYING: Final = {
    "a record of 2^31-1 bytes": (varint(2**31 - 1) + record(0)[1:], 1),
    "a record of -1 bytes": (varint(-1) + record(0)[1:], 1),
    "2^31-1 records of which there is 1": (record(0), 2**31 - 1),
    "5 records of which there is 1": (record(0), 5),
    "1 record of which there are 3": (record(0) + record(1) + record(2), 1),
    "1 record of which there is none": (b"", 1),
    "a byte behind the last record": (record(0) + b"\0", 1),
    "a record with bytes behind its fields": (record(0, b"\x01\x02v\0xx"), 1),
    "a record that is shorter than its fields": (varint(5) + record(0)[1:], 1),
    "a key that is longer than its record": (record(0, b"\x7e\x02v\0"), 1),
    "a value that is longer than its record": (record(0, b"\x01\x08v\0") + record(1), 2),
    "-1 headers": (record(0, b"\x01\x02v\x01"), 1),
    "5 headers of which there is none": (record(0, b"\x01\x02v\x0a"), 1),
    "a header without a name": (record(0, b"\x01\x02v\x02\x01\x01"), 1),
    "a header that is longer than its record": (record(0, b"\x01\x02v\x02\x7eh\x01"), 1),
    "a number of too many bytes": (record(0, b"\x80\x80\x80\x80\x80\0\x02v\0"), 1),
}
LENGTHS: Final = {"a record of 2^31-1 bytes", "a record of -1 bytes", "a record that is shorter than its fields"}
"""Lies that Kafka does not notice in a batch that it has to unpack: there it does not look at these lengths."""


def lying_batch(section: bytes, count: int, codec: int) -> bytes:
    return frame(Batch(0, (), count - 1, codec=codec), compression.compress(codec, section), count)


@pytest.mark.parametrize("codec", [0, 1, 4], ids=["none", "gzip", "zstd"])
@pytest.mark.parametrize("lie", LYING)
def test_a_batch_whose_records_are_not_what_it_says_is_refused(
    server: Server, connection: Connection, topic: str, lie: str, codec: int
) -> None:
    answer = produce(connection, topic, lying_batch(*LYING[lie], codec))
    if codec and lie in LENGTHS and not isinstance(server, Penstock):
        assert answer.error_code is ErrorCode.none
        return
    assert answer.error_code is ErrorCode.invalid_record
    assert produce(connection, topic, batch([b"behind it"])).base_offset == 0
    assert stored(connection, topic) == [(0, b"behind it")]


def test_a_batch_whose_offsets_do_not_start_at_0_is_refused(connection: Connection, topic: str) -> None:
    moved = frame(Batch(7, (), 8), record(0) + record(1), 2)
    assert produce(connection, topic, moved).error_code is ErrorCode.invalid_record


@pytest.mark.parametrize("deltas", [(0, 0), (1, 2), (0, 5), (1, 0), (-1, 0)])
@pytest.mark.parametrize("codec", [0, 4], ids=["none", "zstd"])
def test_offsets_within_a_batch_that_do_not_count_up_are_refused(
    penstock: Penstock, deltas: tuple[int, int], codec: int
) -> None:
    """Kafka looks at them only in batches that it has to unpack, and answers UNKNOWN_SERVER_ERROR there."""
    with Connection(penstock) as connection:
        topic = new_topic(penstock, connection)
        records = lying_batch(record(deltas[0]) + record(deltas[1]), 2, codec)
        assert produce(connection, topic, records).error_code is ErrorCode.invalid_record
