"""Message sets of old clients become batches without losing anything."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from penstock.broker.legacy import to_batch
from penstock.errors import CorruptBatchError
from penstock.log.batches.batch import check_crc, read_header, records_of
from tests.broker.plain_requests import create_topic
from tests.servers import Penstock

GZIP = 1
SNAPPY = 2


def message_set(magic: int, codec: int) -> bytes:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for number in range(5):
        builder.append(number, 1_000 + number if magic else None, b"k%d" % number, b"v%d" % number)
    builder.append(5, 2_000 if magic else None, None, None)
    return bytes(builder.build())


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, GZIP])
def test_every_message_becomes_a_record(magic: int, codec: int) -> None:
    batch = to_batch(memoryview(message_set(magic, codec)))
    check_crc(batch)
    records = list(records_of(batch))
    assert [(record.key, record.value) for record in records] == [
        *((b"k%d" % number, b"v%d" % number) for number in range(5)),
        (None, None),
    ]
    expected_times = [1_000, 1_001, 1_002, 1_003, 1_004, 2_000] if magic else [-1] * 6
    assert [record.timestamp for record in records] == expected_times
    assert read_header(batch).codec == codec


def test_a_damaged_message_is_refused() -> None:
    data = bytearray(message_set(1, 0))
    data[30] ^= 1
    with pytest.raises(CorruptBatchError):
        to_batch(memoryview(data))


def test_a_set_cut_short_is_refused_wherever_it_is_cut() -> None:
    whole = message_set(1, 0)
    first = 12 + int.from_bytes(whole[8:12], "big")
    for length in range(first):
        with pytest.raises(CorruptBatchError):
            to_batch(memoryview(whole[:length]))


def test_an_old_client_is_answered_whatever_its_timestamps(tmp_path: Path) -> None:
    """The byte that holds a batch's codec is a part of the timestamp here, and must not be taken for zstd."""
    with Penstock(tmp_path) as penstock, socket.create_connection(("127.0.0.1", penstock.port), 10) as old:
        topic = create_topic(penstock).encode()
        for number in range(8):
            builder = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1 << 20)
            builder.append(0, 1_700_000_000_000 + (number << 24), b"k", b"v")
            records = bytes(builder.build())
            partition = struct.pack(">iii", 1, 0, len(records)) + records
            body = struct.pack(">hii", -1, 5_000, 1) + struct.pack(">h", len(topic)) + topic + partition
            request = struct.pack(">hhih", 0, 2, number, -1) + body
            old.sendall(struct.pack(">i", len(request)) + request)
            size = int.from_bytes(old.recv(4, socket.MSG_WAITALL), "big")
            answer = old.recv(size, socket.MSG_WAITALL)
            at = 4 + 4 + 2 + len(topic) + 4
            assert struct.unpack_from(">ihq", answer, at) == (0, 0, number)
