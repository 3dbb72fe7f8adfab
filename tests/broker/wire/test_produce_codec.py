"""The hand-written Produce codec says exactly what the protocol's schemas say, in every version they have."""

from __future__ import annotations

import datetime
import io
import struct
import uuid
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from penstock.broker.wire.primitives import MalformedRequestError
from penstock.broker.wire.produce import (
    BATCHES_SINCE,
    MAX_VERSION,
    TOPIC_IDS_SINCE,
    ProduceResult,
    read_produce,
    write_produce,
)
from penstock.log.batches.batch import NewRecord, build_batch

TOPIC_ID = uuid.UUID(int=0xFEED)
BATCH = bytes(build_batch([NewRecord(1_000, b"key", b"value")]))
VERSIONS = range(BATCHES_SINCE, MAX_VERSION + 1)


def schema(version: int, kind: EntityType) -> Any:
    return load_payload_module(0, version, kind)  # type: ignore[arg-type]


def encode_request(version: int, transactional_id: str | None, acks: int) -> bytes:
    module = schema(version, EntityType.request)
    partitions = (
        module.PartitionProduceData(index=0, records=BATCH),
        module.PartitionProduceData(index=7, records=None),
    )
    named = {"topic_id": TOPIC_ID} if version >= TOPIC_IDS_SINCE else {"name": "orders"}
    request = module.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=datetime.timedelta(milliseconds=1500),
        topic_data=(module.TopicProduceData(**named, partition_data=partitions),),
    )
    out = io.BytesIO()
    entity_writer(module.ProduceRequest)(out, request)
    return out.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "till-7"])
def test_a_request_is_read_as_the_schema_wrote_it(version: int, transactional_id: str | None) -> None:
    request = read_produce(memoryview(encode_request(version, transactional_id, -1)), 0, version)
    assert request.transactional_id == transactional_id
    assert request.acks == -1
    [(topic, [(first, records), (second, nothing)])] = request.topics
    assert topic == (TOPIC_ID if version >= TOPIC_IDS_SINCE else b"orders")
    assert (first, second, nothing) == (0, 7, None)
    assert records is not None
    assert bytes(records) == BATCH


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_is_what_the_schema_reads(version: int) -> None:
    topic = TOPIC_ID if version >= TOPIC_IDS_SINCE else b"orders"
    results = [ProduceResult(3, 0, 42, -1, 5), ProduceResult(4, 10, -1, -1, -1, "too large")]
    frame = write_produce(99, version, [(topic, results)])
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == 99
    body = frame[9:] if version >= 9 else frame[8:]
    answer, used = entity_reader(schema(version, EntityType.response).ProduceResponse)(body, 0)
    assert used == len(body)
    [answered] = answer.responses
    good, bad = answered.partition_responses
    assert (good.index, good.error_code, good.base_offset) == (3, 0, 42)
    assert (bad.index, bad.error_code, bad.base_offset) == (4, 10, -1)
    if version >= 5:
        assert good.log_start_offset == 5
    if version >= 8:
        assert (good.error_message, bad.error_message) == (None, "too large")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_short_is_refused_wherever_it_is_cut(version: int) -> None:
    whole = encode_request(version, "till-7", 1)
    for length in range(len(whole) - 1):
        try:
            request = read_produce(memoryview(whole[:length]), 0, version)
        except (MalformedRequestError, IndexError, struct.error, ValueError):
            continue
        # Only what stands behind the last field may be missing: tags and the like.
        assert [bytes(records) for _, parts in request.topics for _, records in parts if records] in ([BATCH], [])


def test_a_topic_name_of_negative_length_is_refused() -> None:
    body = b"\xff\xff" + b"\x00\x01" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x01" + b"\x80\x00" + b"\x00" * 64
    with pytest.raises(MalformedRequestError):
        read_produce(memoryview(body), 0, 7)
