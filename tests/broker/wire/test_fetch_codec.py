"""The hand-written Fetch codec says exactly what the protocol's schemas say, in every version they have."""

from __future__ import annotations

import datetime
import io
import uuid
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from penstock.broker.wire.fetch import (
    FLEXIBLE_SINCE,
    MAX_VERSION,
    MIN_VERSION,
    TOPIC_IDS_SINCE,
    FetchAnswer,
    read_fetch,
    write_fetch,
)
from penstock.log.aborted import AbortedTransaction

TOPIC_ID = uuid.UUID(int=0xBEEF)
VERSIONS = range(MIN_VERSION, MAX_VERSION + 1)


def schema(version: int, kind: EntityType) -> Any:
    return load_payload_module(1, version, kind)  # type: ignore[arg-type]


def given(entity: Any, **values: Any) -> Any:
    """The entity with those of the values that its version has."""
    return entity(**{name: value for name, value in values.items() if name in entity.__dataclass_fields__})


def encode_request(version: int) -> bytes:
    module = schema(version, EntityType.request)
    partition = given(
        module.FetchPartition,
        partition=3,
        current_leader_epoch=0,
        fetch_offset=1_000,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=65_536,
    )
    request = given(
        module.FetchRequest,
        replica_id=-1,
        max_wait=datetime.timedelta(milliseconds=500),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=12,
        session_epoch=4,
        topics=(given(module.FetchTopic, topic="orders", topic_id=TOPIC_ID, partitions=(partition,)),),
        forgotten_topics_data=(
            (given(module.ForgottenTopic, topic="orders", topic_id=TOPIC_ID, partitions=(1, 2)),)
            if version >= 7
            else ()
        ),
        rack_id="",
    )
    out = io.BytesIO()
    entity_writer(module.FetchRequest)(out, request)
    return out.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_read_as_the_schema_wrote_it(version: int) -> None:
    request = read_fetch(memoryview(encode_request(version)), 0, version)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 1 << 20)
    assert request.read_committed
    topic = TOPIC_ID if version >= TOPIC_IDS_SINCE else b"orders"
    [(named, [wanted])] = request.topics
    assert named == topic
    assert (wanted.partition, wanted.offset, wanted.max_bytes) == (3, 1_000, 65_536)
    if version >= 7:
        assert (request.session_id, request.session_epoch) == (12, 4)
        assert request.forgotten == [(topic, [1, 2])]
    else:
        assert (request.session_id, request.session_epoch, request.forgotten) == (0, -1, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_with_its_records_is_what_the_schema_reads(version: int) -> None:
    topic = TOPIC_ID if version >= TOPIC_IDS_SINCE else b"orders"
    answers = [
        FetchAnswer(0, 0, 100, 90, 10, [AbortedTransaction(7, 20, 30)], 5),
        FetchAnswer(1, 1, -1, -1, 3, None, 0),
    ]
    head, second, tail = write_fetch(77, version, 0, 12, [(topic, answers)])
    frame = head + b"bytes" + second + tail
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    body = frame[9:] if version >= FLEXIBLE_SINCE else frame[8:]
    answer, used = entity_reader(schema(version, EntityType.response).FetchResponse)(body, 0)
    assert used == len(body)
    [answered] = answer.responses
    good, bad = answered.partitions
    assert (good.partition_index, good.error_code, good.high_watermark, good.last_stable_offset) == (0, 0, 100, 90)
    assert bytes(good.records) == b"bytes"
    assert [(entry.producer_id, entry.first_offset) for entry in good.aborted_transactions] == [(7, 20)]
    assert (bad.partition_index, bad.error_code) == (1, 1)
    assert not bad.aborted_transactions
    if version >= 7:
        assert answer.session_id == 12


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_without_partitions_is_what_the_schema_reads(version: int) -> None:
    [frame] = write_fetch(5, version, 70 if version >= 7 else 0, 0, [])
    body = frame[9:] if version >= FLEXIBLE_SINCE else frame[8:]
    answer, used = entity_reader(schema(version, EntityType.response).FetchResponse)(body, 0)
    assert used == len(body)
    assert answer.responses == ()
    if version >= 7:
        assert answer.error_code == 70
