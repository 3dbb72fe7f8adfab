"""What a client may do to the broker: little. Lies, garbage, silence and greed cost the client its connection, and
nobody else memory or time."""

from __future__ import annotations

import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.broker.plain_requests import (
    FETCH,
    MEBIBYTE,
    METADATA,
    PRODUCE,
    create_topic,
    fetch_fields,
    framed,
    produce,
    produce_fields,
    produced,
    resident_bytes,
    whole_values,
)
from tests.clients import wire
from tests.clients.shared_server import ServerAddress
from tests.clients.waiting import eventually
from tests.seeds import seed_of
from tests.servers import ANNOUNCEMENT, Penstock, ServerProcess, wait_for_start

MAX_REQUEST_BYTES = 32 * MEBIBYTE
IDLE_MS = 2_500
LITTLE_BYTES = 8 * MEBIBYTE
"""More than this the broker may not grow by what one bad client does."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    settings = {"socket.request.max.bytes": MAX_REQUEST_BYTES}
    arguments = [word for name, value in settings.items() for word in ("--config", f"{name}={value}")]
    with Penstock(tmp_path_factory.mktemp("limits"), *arguments) as server:
        yield server


@pytest.fixture
def penstock(running: Penstock) -> Iterator[Penstock]:
    yield running
    assert running.process.is_alive(), f"the broker ended:\n{running.process.last_words()}"
    assert wire.call(running, *METADATA, topics=[]).brokers
    assert "Traceback" not in running.process.output()


def drain(connection: wire.Connection) -> None:
    """Return when the server has closed the connection."""
    while True:
        try:
            if not connection.socket.recv(65536):
                return
        except ConnectionResetError:
            return


LIES = {
    "negative": struct.pack(">i", -1),
    "zero": struct.pack(">i", 0),
    "shorter than a header": struct.pack(">i", 7) + b"\0" * 7,
    "just too long": struct.pack(">i", MAX_REQUEST_BYTES + 1),
    "the longest number": struct.pack(">i", 2**31 - 1),
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("what", LIES)
def test_a_length_that_cannot_be_closes_the_connection_at_once(penstock: Penstock, what: str) -> None:
    before = resident_bytes(penstock.pid)
    with wire.Connection(penstock, timeout_s=5) as connection, wire.Connection(penstock) as other:
        connection.socket.sendall(LIES[what])
        drain(connection)
        assert other.call(*METADATA, topics=[]).brokers
    assert resident_bytes(penstock.pid) - before < LITTLE_BYTES


def test_garbage_never_ends_the_broker_nor_another_clients_connection(penstock: Penstock) -> None:
    rng = random.Random(seed_of())
    topic = create_topic(penstock)
    good = wire.encode(*PRODUCE, 1, produce_fields(topic, [b"v" * 100, b"w" * 100]))
    with wire.Connection(penstock) as bystander:
        for round_number in range(300):
            with wire.Connection(penstock, timeout_s=5) as connection:
                if round_number % 3 == 0:
                    frame = rng.randbytes(rng.randint(8, 400))
                elif round_number % 3 == 1:
                    head = struct.pack(">hhih", rng.randint(0, 80), rng.randint(0, 12), 1, -1)
                    frame = head + rng.randbytes(rng.randint(0, 200))
                else:
                    damaged = bytearray(good)
                    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
                    frame = bytes(damaged)
                connection.send_frame(frame)
                connection.socket.shutdown(socket.SHUT_WR)
                drain(connection)
            if round_number % 30 == 0:
                assert bystander.call(*METADATA, topics=[]).brokers
    with wire.Connection(penstock) as connection:
        answer = connection.call(*FETCH, **fetch_fields(topic, 0, max_bytes=MAX_REQUEST_BYTES))
        assert {value for _, value in whole_values(answer)} <= {b"v" * 100, b"w" * 100}


def test_a_long_request_takes_memory_only_as_its_bytes_arrive(penstock: Penstock) -> None:
    before = resident_bytes(penstock.pid)
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(wire.Connection(penstock))
            connection.socket.sendall(struct.pack(">i", MAX_REQUEST_BYTES) + b"\0" * 1000)
        assert wire.call(penstock, *METADATA, topics=[]).brokers
        assert resident_bytes(penstock.pid) - before < LITTLE_BYTES


def test_memory_that_a_large_request_took_is_given_back(penstock: Penstock) -> None:
    topic = create_topic(penstock, max_message_bytes=str(MAX_REQUEST_BYTES))
    value = b"x" * (MAX_REQUEST_BYTES - 10_000)
    before = resident_bytes(penstock.pid)
    with wire.Connection(penstock) as connection:
        for _ in range(3):
            answer = connection.call(*PRODUCE, **produce_fields(topic, [value]))
            assert produced(answer)[0] is ErrorCode.none
        assert connection.call(*METADATA, topics=[]).brokers
        assert resident_bytes(penstock.pid) - before < LITTLE_BYTES + MAX_REQUEST_BYTES // 2
        with pytest.raises((ConnectionError, wire.ConnectionClosed)):
            connection.call(*PRODUCE, **produce_fields(topic, [b"x" * MAX_REQUEST_BYTES]))


def test_a_client_that_reads_no_records_holds_up_only_itself(penstock: Penstock) -> None:
    topic = create_topic(penstock)
    for _ in range(16):
        produce(penstock, topic, [b"x" * (900 * 1024)])
    before = resident_bytes(penstock.pid)
    wanted = fetch_fields(topic, 0, max_bytes=16 * MEBIBYTE)
    with wire.Connection(penstock) as greedy, wire.Connection(penstock) as other:
        ids = [greedy.send(*FETCH, **wanted) for _ in range(40)]
        started = time.monotonic()
        for _ in range(200):
            assert other.call(*METADATA, topics=[]).brokers
        assert time.monotonic() - started < 5, "others were held up"
        assert resident_bytes(penstock.pid) - before < LITTLE_BYTES
        for correlation_id in ids:
            answer = wire.decode(*FETCH, greedy.receive(), correlation_id)
            assert len(whole_values(answer)) == 16


def test_a_client_that_hangs_up_in_the_middle_of_an_answer_is_forgotten_quietly(penstock: Penstock) -> None:
    topic = create_topic(penstock)
    for _ in range(16):
        produce(penstock, topic, [b"x" * (900 * 1024)])
    said = len(penstock.process.output())
    for read_bytes in (1, 100_000, 3_000_000):
        with wire.Connection(penstock) as leaving:
            leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaving.send(*FETCH, **fetch_fields(topic, 0, max_bytes=16 * MEBIBYTE))
            left = read_bytes
            while left > 0:
                left -= len(leaving.socket.recv(left))
    assert wire.call(penstock, *METADATA, topics=[]).brokers
    assert penstock.process.output()[said:].count("\n") < 10


def test_a_client_that_reads_no_answers_is_not_listened_to_any_more(penstock: Penstock) -> None:
    before = resident_bytes(penstock.pid)
    request = framed(wire.encode(*METADATA, 1, {"topics": None}))
    with wire.Connection(penstock, timeout_s=2) as greedy, wire.Connection(penstock) as other:
        with pytest.raises(TimeoutError):
            greedy.socket.sendall(request * 1_000_000)
        assert other.call(*METADATA, topics=[]).brokers
        # The setting is 8 MiB of answers; what the client has sent meanwhile stays in its socket.
        assert resident_bytes(penstock.pid) - before < 2 * LITTLE_BYTES
        greedy.socket.settimeout(wire.TIMEOUT_S)
        for _ in range(1000):
            wire.decode(*METADATA, greedy.receive(), 1)


CROWD = 5
"""The connections that the broker of these tests takes."""
LONG_MS = 60_000
"""Longer than any of these tests takes."""


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Penstock]:
    settings = {"max.connections": CROWD, "group.initial.rebalance.delay.ms": LONG_MS}
    arguments = [word for name, value in settings.items() for word in ("--config", f"{name}={value}")]
    with Penstock(tmp_path, *arguments) as server:
        yield server


def test_the_connection_idle_the_longest_makes_room_for_a_new_one(crowded: Penstock) -> None:
    topic = create_topic(crowded)
    with ExitStack() as stack:
        polling, silent, *others = (stack.enter_context(wire.Connection(crowded)) for _ in range(CROWD))
        poll = polling.send(*FETCH, **fetch_fields(topic, 0, wait_ms=LONG_MS))
        for connection in (silent, *others):
            assert connection.call(*METADATA, topics=[]).brokers
        assert wire.call(crowded, *METADATA, topics=[]).brokers
        drain(silent)
        for connection in others:
            assert connection.call(*METADATA, topics=[]).brokers
        produce(crowded, topic, [b"x"])
        assert whole_values(wire.decode(*FETCH, polling.receive(), poll)) == [(0, b"x")]
    said = crowded.process.output()
    assert f"{CROWD} connections are open, and no more are allowed (max.connections): 1 since the last such" in said


def test_a_new_connection_is_turned_away_when_all_others_have_a_request_open(crowded: Penstock) -> None:
    topic = create_topic(crowded)
    with ExitStack() as stack:
        connections = [stack.enter_context(wire.Connection(crowded)) for _ in range(CROWD)]
        polls = [each.send(*FETCH, **fetch_fields(topic, 0, wait_ms=LONG_MS)) for each in connections[1:]]
        # In one piece, so that the broker, which has read the polls by then, has the second when it answers the first.
        metadata = framed(wire.encode(*METADATA, 1, {"topics": []}))
        connections[0].socket.sendall(metadata + framed(wire.encode(*JOIN, 2, join_fields("readers"))))
        assert wire.decode(*METADATA, connections[0].receive(), 1).brokers
        for _ in range(50):
            assert not is_answered(crowded)
        connections[0].close()
        eventually("there is room for another client", lambda: is_answered(crowded))
        produce(crowded, topic, [b"x"])
        for connection, poll in zip(connections[1:], polls, strict=True):
            assert whole_values(wire.decode(*FETCH, connection.receive(), poll)) == [(0, b"x")]
    assert crowded.process.output().count("no more are allowed (max.connections)") <= 2


JOIN = ("join_group", 2)


def join_fields(group: str) -> dict[str, Any]:
    """A member that is alone, and waits for others as long as `group.initial.rebalance.delay.ms` says."""
    protocols = [{"name": "range", "metadata": b"\0" * 10}]
    times = {"session_timeout": LONG_MS, "rebalance_timeout": LONG_MS}
    return {"group_id": group, **times, "protocol_type": "consumer", "protocols": protocols}


def is_answered(penstock: Penstock) -> bool:
    try:
        return bool(wire.call(penstock, *METADATA, topics=[]).brokers)
    except (wire.ConnectionClosed, ConnectionError):
        return False


def test_there_are_no_more_connections_than_file_handles(tmp_path: Path) -> None:
    """With too few of them, neither a connection nor a file of the log could be opened any more."""
    serve = [sys.executable, "-m", "penstock.cli", "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    few = ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh", *serve, "--config", "log.open.files.max=32"]
    process = ServerProcess(few, tmp_path / "output.txt")
    try:
        wait_for_start(process, lambda: ANNOUNCEMENT.search(process.output()) is not None)
        announcement = ANNOUNCEMENT.search(process.output())
        assert announcement is not None
        server = ServerAddress(int(announcement["port"]))
        with ExitStack() as stack:
            for _ in range(150):
                assert stack.enter_context(wire.Connection(server)).call(*METADATA, topics=[]).brokers
        assert "only 32 connections are accepted, not the 2000 of max.connections" in process.output()
        assert "Traceback" not in process.output()
    finally:
        process.terminate()


UNFINISHED_BYTES = 20 * MEBIBYTE
QUEUED_BYTES = 16 * MEBIBYTE


@pytest.fixture
def frugal(tmp_path: Path) -> Iterator[Penstock]:
    settings = {"socket.request.max.bytes": MAX_REQUEST_BYTES, "queued.max.request.bytes": QUEUED_BYTES}
    arguments = [word for name, value in settings.items() for word in ("--config", f"{name}={value}")]
    with Penstock(tmp_path, *arguments) as server:
        yield server
        assert "Traceback" not in server.process.output()


def test_unfinished_requests_of_all_connections_together_have_a_bound(frugal: Penstock) -> None:
    before = resident_bytes(frugal.pid)
    unfinished = struct.pack(">ihh", MAX_REQUEST_BYTES, 0, 9) + bytes(UNFINISHED_BYTES)
    with ExitStack() as stack:
        left = {stack.enter_context(wire.Connection(frugal)).socket: memoryview(unfinished) for _ in range(12)}
        for each in left:
            each.setblocking(False)
        calm_since = time.monotonic()
        while time.monotonic() - calm_since < 1:
            for each, rest in left.items():
                with suppress(BlockingIOError):
                    left[each] = rest[each.send(rest) :]
                    calm_since = time.monotonic() if rest else calm_since
        assert wire.call(frugal, *METADATA, topics=[]).brokers, "a short request needs none of that memory"
        # One may exceed the bound to finish its request, and while a buffer grows there are two.
        assert resident_bytes(frugal.pid) - before < QUEUED_BYTES + 2 * UNFINISHED_BYTES + LITTLE_BYTES


def test_long_requests_of_many_clients_are_all_finished(frugal: Penstock) -> None:
    topic = create_topic(frugal, max_message_bytes=str(MAX_REQUEST_BYTES))
    value = b"x" * UNFINISHED_BYTES
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: wire.call(frugal, *PRODUCE, **produce_fields(topic, [value])), range(8)))
    assert {produced(answer)[0] for answer in answers} == {ErrorCode.none}
    assert "WARNING" not in frugal.process.output()


@pytest.fixture(scope="module")
def unharried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    """A broker that logs each refusal: one that was sent much garbage leaves lines out."""
    with Penstock(tmp_path_factory.mktemp("unharried")) as server:
        yield server


def test_a_long_request_that_is_no_produce_is_refused_before_it_arrives(unharried: Penstock) -> None:
    with wire.Connection(unharried, timeout_s=5) as connection:
        connection.socket.sendall(struct.pack(">ihh", 9 * MEBIBYTE, 3, 12))
        drain(connection)
    assert "a request of 9437184 bytes other than Produce (other.request.max.bytes)" in unharried.process.output()


def test_a_frame_of_twenty_bytes_that_claims_a_huge_array_is_refused_with_one_warning(unharried: Penstock) -> None:
    before = unharried.process.output().count("WARNING")
    with wire.Connection(unharried, timeout_s=5) as connection:
        connection.socket.sendall(bytes.fromhex("000000100003000c00000001ffff00ffffffff7f"))
        drain(connection)
    said = unharried.process.output()
    assert "a malformed request (API 3 version 12): an array claims" in said
    assert said.count("WARNING") == before + 1


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("idle"), "--config", f"connections.max.idle.ms={IDLE_MS}") as server:
        yield server


def test_a_client_that_says_nothing_is_let_go(impatient: Penstock) -> None:
    with wire.Connection(impatient) as silent:
        started = time.monotonic()
        drain(silent)
        assert time.monotonic() - started >= IDLE_MS / 1000


def test_a_client_that_sends_one_byte_at_a_time_and_never_a_request_is_let_go(impatient: Penstock) -> None:
    with wire.Connection(impatient, timeout_s=0.1) as dripping:
        dripping.socket.sendall(struct.pack(">i", 1000))
        eventually("the connection is closed", lambda: not drip(dripping))


def drip(connection: wire.Connection) -> bool:
    """Send one byte more; False once the server has closed the connection."""
    try:
        connection.socket.sendall(b"\0")
        return connection.socket.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_a_client_that_reads_none_of_its_answers_is_let_go(impatient: Penstock) -> None:
    topic = create_topic(impatient)
    for _ in range(8):
        produce(impatient, topic, [b"x" * (900 * 1024)])
    with wire.Connection(impatient) as deaf:
        closed_before = impatient.process.output().count(": idle")
        for _ in range(20):
            deaf.send(*FETCH, **fetch_fields(topic, 0, max_bytes=16 * MEBIBYTE))
        eventually("the connection is closed", lambda: impatient.process.output().count(": idle") > closed_before)


def test_a_client_that_works_or_waits_for_records_is_not_idle(impatient: Penstock) -> None:
    topic = create_topic(impatient)
    with wire.Connection(impatient) as waiting, wire.Connection(impatient) as working:
        correlation_id = waiting.send(*FETCH, **fetch_fields(topic, 0, wait_ms=3 * IDLE_MS))
        started = time.monotonic()
        while time.monotonic() - started < 2.5 * IDLE_MS / 1000:
            assert working.call(*METADATA, topics=[]).brokers
            threading.Event().wait(0.05)  # it works now and then, as clients do
        answer = wire.decode(*FETCH, waiting.receive(), correlation_id)
        assert whole_values(answer) == []


def test_a_client_that_vanishes_while_it_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    with Penstock(tmp_path) as penstock:
        topic = create_topic(penstock)
        with wire.Connection(penstock) as other:
            for number in range(600):
                with wire.Connection(penstock) as connection:
                    connection.send(*FETCH, **fetch_fields(topic, 0, wait_ms=2**31 - 1))
                assert other.call(*METADATA, topics=[]).brokers
                if number == 100:
                    before = resident_bytes(penstock.pid)
            assert resident_bytes(penstock.pid) - before < 4 * MEBIBYTE
