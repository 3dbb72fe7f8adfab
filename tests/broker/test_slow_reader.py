"""A client that reads slowly gets every byte, in order, whichever way the bytes take."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

from tests.broker.plain_requests import FETCH, create_topic, fetch_fields, produce, whole_values
from tests.clients import wire
from tests.servers import Penstock

MEBIBYTE = 1024 * 1024
SEED = 7


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("slow")) as server:
        yield server


def test_large_answers_reach_a_slow_reader_whole_and_in_order(penstock: Penstock) -> None:
    topic = create_topic(penstock)
    values = [bytes([number]) * (900 * 1024) for number in range(12)]
    for value in values:
        produce(penstock, topic, [value])
    chance = random.Random(SEED)
    with wire.Connection(penstock) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        asked = [slow.send(*FETCH, **fetch_fields(topic, first, max_bytes=32 * MEBIBYTE)) for first in (0, 5, 11)]
        for first, correlation_id in zip((0, 5, 11), asked, strict=True):
            answer = wire.decode(*FETCH, receive_in_bits(slow.socket, chance), correlation_id)
            assert whole_values(answer) == list(enumerate(values))[first:]


def receive_in_bits(connection: socket.socket, chance: random.Random) -> bytes:
    """One answer, taken from the socket in pieces of any size."""
    data = bytearray()
    wanted = 4
    while len(data) < wanted:
        piece = connection.recv(min(wanted - len(data), chance.randint(1, 200_000)))
        assert piece, f"closed after {len(data)} of {wanted} bytes (seed {SEED})"
        data += piece
        if len(data) == 4 and wanted == 4:
            wanted += int.from_bytes(data, "big")
    return bytes(data[4:])
