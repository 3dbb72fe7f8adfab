"""Answers leave a connection in the order in which the requests came, whatever each of them has to wait for."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.broker.plain_requests import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    create_topic,
    fetch_fields,
    fetched,
    framed,
    produce,
    produce_fields,
    produced,
    whole_values,
)
from tests.clients import wire
from tests.seeds import seed_of
from tests.servers import Penstock


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("order")) as server:
        yield server


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was sent, and what the answer must say."""

    api: str
    version: int
    fields: dict[str, Any]
    offset: int = -1


def check_answer(asked: Asked, answer: Any, stored: list[bytes]) -> None:
    match asked.api:
        case "produce":
            assert produced(answer) == (ErrorCode.none, asked.offset)
        case "fetch":
            assert fetched(answer).error_code is ErrorCode.none
            found = whole_values(answer)
            assert found == list(enumerate(stored))[asked.offset : asked.offset + len(found)]
        case "list_offsets":
            assert answer.topics[0].partitions[0].offset == asked.offset
        case "metadata":
            assert len(answer.brokers) == 1


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("follower", ["metadata", "fetch"])
def test_a_request_in_the_same_packet_as_a_produce_is_answered(penstock: Penstock, acks: int, follower: str) -> None:
    topic = create_topic(penstock)
    first = wire.encode(*PRODUCE, 1, produce_fields(topic, [b"x"], acks))
    api, fields = (FETCH, fetch_fields(topic, 0)) if follower == "fetch" else (METADATA, {"topics": []})
    with wire.Connection(penstock, timeout_s=5) as connection:
        connection.socket.sendall(framed(first) + framed(wire.encode(*api, 2, fields)))
        assert produced(wire.decode(*PRODUCE, connection.receive(), 1)) == (ErrorCode.none, 0)
        wire.decode(*api, connection.receive(), 2)


def test_a_thousand_mixed_requests_in_pieces_of_any_size_are_answered_in_order(penstock: Penstock) -> None:
    rng = random.Random(seed_of())
    topic = create_topic(penstock)
    stored: list[bytes] = []
    asked: list[Asked] = []
    for _ in range(1000):
        kind = rng.choice(["produce"] * 5 + ["fetch", "fetch at the end", "metadata", "list_offsets"])
        if kind == "produce":
            values = [rng.randbytes(rng.choice([1, 100, 20_000])) for _ in range(rng.randint(1, 4))]
            asked.append(Asked(*PRODUCE, produce_fields(topic, values, rng.choice([1, -1])), len(stored)))
            stored += values
        elif kind == "metadata":
            asked.append(Asked(*METADATA, {"topics": [{"topic_id": uuid.UUID(int=0), "name": topic}]}))
        elif kind == "list_offsets":
            part = {"partition_index": 0, "timestamp": -1}
            wanted = {"replica_id": -1, "topics": [{"name": topic, "partitions": [part]}]}
            asked.append(Asked(*LIST_OFFSETS, wanted, len(stored)))
        elif kind == "fetch":
            asked.append(Asked(*FETCH, fetch_fields(topic, 0, max_bytes=100_000), 0))
        else:
            fields = fetch_fields(topic, len(stored), wait_ms=rng.randint(0, 20))
            asked.append(Asked(*FETCH, fields, len(stored)))
    stream = b"".join(framed(wire.encode(one.api, one.version, n, one.fields)) for n, one in enumerate(asked))
    with wire.Connection(penstock) as connection:
        sender = threading.Thread(target=_send_in_pieces, args=(connection, stream, rng))
        sender.start()
        try:
            for number, one in enumerate(asked):
                check_answer(one, wire.decode(one.api, one.version, connection.receive(), number), stored)
        finally:
            connection.socket.shutdown(socket.SHUT_RDWR)
            sender.join()


def _send_in_pieces(connection: wire.Connection, stream: bytes, rng: random.Random) -> None:
    position = 0
    with contextlib.suppress(BrokenPipeError):  # the reader has given up, and says why
        while position < len(stream):
            size = rng.choice([1, 3, 100, 5_000, 300_000])
            connection.socket.sendall(stream[position : position + size])
            position += size


def test_a_reader_that_waits_is_woken_by_a_producer_on_another_connection(penstock: Penstock) -> None:
    topic = create_topic(penstock)
    with wire.Connection(penstock) as reader:
        waiting = reader.send(*FETCH, **fetch_fields(topic, 0, wait_ms=20_000))
        behind = reader.send(*METADATA, topics=[])
        started = time.monotonic()
        produce(penstock, topic, [b"at last"])
        answer = wire.decode(*FETCH, reader.receive(), waiting)
        assert whole_values(answer) == [(0, b"at last")]
        wire.decode(*METADATA, reader.receive(), behind)
        assert time.monotonic() - started < 10


def test_records_sent_without_acknowledgement_are_in_order_with_those_that_are(penstock: Penstock) -> None:
    topic = create_topic(penstock)
    with wire.Connection(penstock) as connection:
        for number in range(50):
            connection.send(*PRODUCE, **produce_fields(topic, [b"%d" % number], acks=0))
        assert produced(connection.call(*PRODUCE, **produce_fields(topic, [b"50"]))) == (ErrorCode.none, 50)
        answer = connection.call(*FETCH, **fetch_fields(topic, 0))
        assert whole_values(answer) == [(number, b"%d" % number) for number in range(51)]
