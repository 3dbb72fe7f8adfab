"""Input that no client would send never crashes the broker, grows its memory or slows the others.

Only for our broker: how Apache Kafka bears these is its own business.
"""

from __future__ import annotations

import random
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest
from kio.schema.errors import ErrorCode

from tests.clients import confluent, wire
from tests.clients.batches import batch, values_in
from tests.clients.every_request import set_stage
from tests.clients.waiting import eventually
from tests.clients.wire import Connection
from tests.servers import Penstock

MB: Final = 1024 * 1024
OTHERS_WITHIN_S: Final = 10.0
"""How long a round trip of somebody else may take meanwhile. Far more than it needs, far less than a hang."""

# The first bytes of `openssl s_client`: a TLS 1.2 record of a ClientHello. Read as a length, it is 369 MB.
TLS_HELLO: Final = bytes.fromhex("1603010200010001fc0303") + bytes(range(256)) + bytes(240)


@pytest.fixture(autouse=True)
def unharmed(penstock: Penstock) -> Iterator[None]:
    """After each test the broker still answers, and is no larger than it may be."""
    before_bytes = resident_bytes(penstock)
    yield
    check_others_are_served(penstock)
    grown_bytes = resident_bytes(penstock) - before_bytes
    assert grown_bytes < 40 * MB, f"the broker has grown by {grown_bytes / MB:.0f} MB"


def resident_bytes(penstock: Penstock) -> int:
    status = Path(f"/proc/{penstock.pid}/status").read_text("ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def check_others_are_served(penstock: Penstock) -> None:
    """Write a record and read it again, quickly, as somebody who has nothing to do with the trouble."""
    begin = time.monotonic()
    with Connection(penstock) as connection:
        stage = set_stage(connection)
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": MB}
        topics = [{"topic": stage.topic, "partitions": [part]}]
        answer = connection.call("fetch", 12, replica_id=-1, max_wait=0, min_bytes=0, topics=topics)
        assert values_in(answer.responses[0].partitions[0].records) == [(0, b"first")]
    assert time.monotonic() - begin < OTHERS_WITHIN_S


@pytest.mark.parametrize(
    "start",
    [
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 100 * MB + 1),
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 0),
        struct.pack(">i", 1) + b"\0",
        struct.pack(">i", 7) + bytes(7),
        TLS_HELLO,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\r\n\r\n\r\n\r\n",
        bytes(64),
        b"\xff" * 64,
    ],
    ids=["2 GB", "over the limit", "-1", "minimum", "0", "1", "7", "TLS", "HTTP", "newlines", "zeros", "ones"],
)
def test_a_length_that_lies_closes_the_connection(penstock: Penstock, start: bytes) -> None:
    with Connection(penstock, timeout_s=5) as connection:
        connection.socket.sendall(start)
        assert connection.is_closed_by_server()


def test_random_bytes_never_harm(penstock: Penstock) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        with Connection(penstock, timeout_s=5) as connection:
            body = chance.randbytes(chance.randrange(1, 200))
            connection.send_frame(body) if chance.random() < 0.7 else connection.socket.sendall(body)
    check_others_are_served(penstock)


def test_requests_with_flipped_bits_never_harm(penstock: Penstock) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Connection(penstock) as connection:
        stage = set_stage(connection)
    part = {"index": 0, "records": batch([b"x"] * 5)}
    whole = [
        wire.encode("metadata", 12, 1, {"topics": [{"name": stage.topic}]}),
        wire.encode("produce", 9, 1, {"acks": 1, "topic_data": [{"name": stage.topic, "partition_data": [part]}]}),
        wire.encode("offset_fetch", 8, 1, {"groups": [{"group_id": "g", "topics": None}]}),
        wire.encode(
            "create_topics", 7, 1, {"topics": [{"name": "flipped", "num_partitions": 1}], "validate_only": True}
        ),
    ]
    for _ in range(400):
        frame = bytearray(chance.choice(whole))
        # Not the header: the API and its version stay what they were.
        position = chance.randrange(20, len(frame))
        frame[position] ^= 1 << chance.randrange(8)
        with Connection(penstock, timeout_s=5) as connection:
            connection.send_frame(bytes(frame))
            # A second request, because the first may have become one that is not answered: acks=0.
            connection.send_frame(wire.encode("api_versions", 0, 1, {}))
            # Answered or closed, either is fine; a hang is not, and ends in a TimeoutError.
            connection.is_closed_by_server()
    check_others_are_served(penstock)


def test_an_array_that_claims_to_be_huge_takes_no_memory(penstock: Penstock) -> None:
    header = struct.pack(">hhih", 3, 1, 1, -1)
    for count in (2**31 - 1, 2**28, 10_000_000):
        with Connection(penstock, timeout_s=5) as connection:
            connection.send_frame(header + struct.pack(">i", count))
            assert connection.is_closed_by_server()


def test_half_a_request_held_open_harms_nobody(penstock: Penstock) -> None:
    with ExitStack() as stack:
        for sent in (b"\0\0\0", b"\0\0", struct.pack(">i", 90 * MB), struct.pack(">i", 90 * MB) + bytes(100)):
            for _ in range(10):
                opened = stack.enter_context(Connection(penstock))
                opened.socket.sendall(sent)
        check_others_are_served(penstock)


def test_a_request_that_trickles_in_harms_nobody(penstock: Penstock) -> None:
    frame = wire.encode("metadata", 12, 1, {"topics": []})
    whole = struct.pack(">i", len(frame)) + frame
    with ExitStack() as stack:
        slow = [stack.enter_context(Connection(penstock)) for _ in range(20)]
        for position, byte in enumerate(whole):
            for connection in slow:
                connection.socket.sendall(bytes([byte]))
            if position % 10 == 0:
                check_others_are_served(penstock)
        for connection in slow:
            wire.decode("metadata", 12, connection.receive(), 1)


def test_a_thousand_idle_connections_harm_nobody(penstock: Penstock) -> None:
    count = 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 200:
        pytest.skip(f"this machine allows a process {hard} open files, and the test needs {count + 200}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
    try:
        with ExitStack() as stack:
            opened = [stack.enter_context(Connection(penstock)) for _ in range(count)]
            check_others_are_served(penstock)
            # They are connections like any other: each is answered when it asks.
            for connection in opened[::100]:
                assert connection.call("api_versions", 0).error_code is ErrorCode.none
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_thousand_requests_whose_answers_nobody_reads_harm_nobody(penstock: Penstock) -> None:
    topic = confluent.create_topic(penstock, partitions=200)
    frame = wire.encode("metadata", 12, 1, {"topics": [{"name": topic}]})
    request = struct.pack(">i", len(frame)) + frame
    before_bytes = resident_bytes(penstock)
    with Connection(penstock) as greedy:
        greedy.socket.setblocking(False)
        unsent = memoryview(request * 10_000)
        ticks, calm_since = processor_ticks(penstock), time.monotonic()

        def the_broker_rests() -> bool:
            """It has taken all that it wants to take, and has worked on none of it for a while."""
            nonlocal unsent, ticks, calm_since
            with suppress(BlockingIOError):
                unsent = unsent[greedy.socket.send(unsent) :] if unsent else unsent
            if processor_ticks(penstock) != ticks:
                ticks, calm_since = processor_ticks(penstock), time.monotonic()
            return time.monotonic() - calm_since > 0.3

        eventually("the broker rests", the_broker_rests)
        check_others_are_served(penstock)
        grown_bytes = resident_bytes(penstock) - before_bytes
        # Unbounded, the answers alone would be more than 60 MB.
        assert grown_bytes < 40 * MB, f"the broker has grown by {grown_bytes / MB:.0f} MB"


def processor_ticks(penstock: Penstock) -> int:
    fields = Path(f"/proc/{penstock.pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_reader_who_does_not_read_is_served_when_it_does(penstock: Penstock) -> None:
    count = 2000
    with Connection(penstock) as connection:
        ids = [connection.send("api_versions", 0) for _ in range(count)]
        check_others_are_served(penstock)
        for correlation_id in ids:
            wire.decode("api_versions", 0, connection.receive(), correlation_id)


def test_connections_that_are_reset_leave_nothing_behind(penstock: Penstock) -> None:
    def open_files() -> int:
        return len(list(Path(f"/proc/{penstock.pid}/fd").iterdir()))

    before = open_files()
    reset_on_close = struct.pack("ii", 1, 0)
    for _ in range(200):
        opened = socket.create_connection(("127.0.0.1", penstock.port), timeout=5)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_on_close)
        opened.sendall(struct.pack(">i", 100) + bytes(50))
        opened.close()
    eventually("the files are closed", lambda: open_files() <= before + 2)


def test_a_long_poll_whose_client_has_gone_is_forgotten(penstock: Penstock) -> None:
    with Connection(penstock) as setting:
        stage = set_stage(setting)
    part = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": MB}
    topics = [{"topic": stage.topic, "partitions": [part]}]
    for _ in range(100):
        with Connection(penstock) as gone:
            gone.send("fetch", 12, replica_id=-1, max_wait=600_000, min_bytes=1, topics=topics)
    with Connection(penstock) as connection:
        data = [{"name": stage.topic, "partition_data": [{"index": 0, "records": batch([b"wakes them"])}]}]
        answer = connection.call("produce", 9, acks=-1, timeout=5000, topic_data=data)
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
