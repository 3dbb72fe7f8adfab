"""A request with very many entries is refused or worked on in slices: others are served meanwhile."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.request import Steps, finished, run_slice
from tests.broker.plain_requests import create_topic, framed
from tests.clients import wire
from tests.servers import Penstock

LITTLE_S: Final = 0.5
"""A round trip of somebody else may take so long on a busy machine."""


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("large")) as server:
        yield server
        assert "Traceback" not in server.process.output()


def worst_round_trip_s(penstock: Penstock, work: Callable[[], None]) -> float:
    """The longest that another client had to wait for an answer while the work was done."""
    done, connected = threading.Event(), threading.Event()
    took_s: list[float] = []

    def ask() -> None:
        with wire.Connection(penstock) as connection:
            while not done.is_set():
                started = time.monotonic()
                connection.call("api_versions", 0)
                took_s.append(time.monotonic() - started)
                connected.set()

    bystander = threading.Thread(target=ask)
    bystander.start()
    try:
        assert connected.wait(wire.TIMEOUT_S)
        work()
    finally:
        done.set()
        bystander.join()
    return max(took_s)


def test_two_million_partitions_in_one_request_are_refused_at_once(penstock: Penstock) -> None:
    topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", 2_000_000) + bytes(4 * 2_000_000)
    frame = struct.pack(">hhih", 9, 1, 1, -1) + struct.pack(">h", 1) + b"g" + struct.pack(">i", 1) + topic

    def send() -> None:
        with wire.Connection(penstock) as connection:
            connection.send_frame(frame)
            assert connection.is_closed_by_server()

    started = time.monotonic()
    worst_s = worst_round_trip_s(penstock, send)
    assert worst_s < max(LITTLE_S, (time.monotonic() - started) / 2)
    assert "it holds more array entries than one request may (max.request.entries)" in penstock.process.output()


def array(entries: Iterable[bytes]) -> bytes:
    written = list(entries)
    return struct.pack(">i", len(written)) + b"".join(written)


def text(words: str) -> bytes:
    return struct.pack(">h", len(words)) + words.encode()


NUMBERS: Final = range(300_000)
LARGE: Final[dict[str, tuple[int, int, Callable[[str], bytes]]]] = {
    "OffsetFetch": (
        9,
        1,
        lambda topic: text("g") + array([text(topic) + array(struct.pack(">i", n) for n in NUMBERS)]),
    ),
    "OffsetCommit": (
        8,
        2,
        lambda topic: (
            text("g")
            + struct.pack(">ihq", -1, 0, -1)
            + array([text(topic) + array(struct.pack(">iqh", n, 5, -1) for n in NUMBERS)])
        ),
    ),
    "ListOffsets": (
        2,
        1,
        lambda topic: struct.pack(">i", -1) + array([text(topic) + array(struct.pack(">iq", n, 5) for n in NUMBERS)]),
    ),
    "DeleteRecords": (
        21,
        0,
        lambda topic: array([text(topic) + array(struct.pack(">iq", n, 5) for n in NUMBERS)]) + struct.pack(">i", 1000),
    ),
    "Metadata": (3, 1, lambda topic: array(text(f"{topic}-{n}") for n in NUMBERS)),
    "DescribeGroups": (15, 0, lambda topic: array(text(f"{topic}-{n}") for n in NUMBERS)),
}


@pytest.fixture(scope="module")
def generous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    """A broker that takes more than others do, so that there is a long time in which others could have to wait."""
    settings = ("max.request.entries=1000000", "other.request.max.bytes=100000000", "auto.create.topics.enable=false")
    arguments = [word for setting in settings for word in ("--config", setting)]
    with Penstock(tmp_path_factory.mktemp("generous"), *arguments) as server:
        yield server
        assert "Traceback" not in server.process.output()


@pytest.mark.parametrize("api", LARGE)
def test_others_are_served_while_a_request_of_many_entries_is_worked_on(generous: Penstock, api: str) -> None:
    api_key, version, body = LARGE[api]
    frame = struct.pack(">hhih", api_key, version, 7, -1) + body(create_topic(generous))
    started = time.monotonic()

    def send() -> None:
        with wire.Connection(generous, timeout_s=60) as connection:
            connection.send_frame(frame)
            assert connection.receive()[:4] == struct.pack(">i", 7)

    worst_s = worst_round_trip_s(generous, send)
    took_s = time.monotonic() - started
    assert worst_s < max(LITTLE_S, took_s / 2), "somebody else had to wait until it was done"


def test_others_are_served_while_one_client_sends_very_many_requests_at_once(penstock: Penstock) -> None:
    count = 20_000
    request = framed(wire.encode("metadata", 1, 7, {"topics": None}))
    started = time.monotonic()

    def send() -> None:
        with wire.Connection(penstock, timeout_s=60) as connection:
            sending = threading.Thread(target=connection.socket.sendall, args=(request * count,))
            sending.start()
            for _ in range(count):
                assert connection.receive()[:4] == struct.pack(">i", 7)
            sending.join()

    worst_s = worst_round_trip_s(penstock, send)
    assert worst_s < max(LITTLE_S, (time.monotonic() - started) / 2)


def test_a_large_request_is_answered_as_a_small_one_is(penstock: Penstock) -> None:
    topic = create_topic(penstock)
    with wire.Connection(penstock) as connection:
        commit = {"group_id": "many", "generation_id_or_member_epoch": -1}
        parts = [{"partition_index": n, "committed_offset": 7 + n} for n in range(3000)]
        committed = connection.call("offset_commit", 8, **commit, topics=[{"name": topic, "partitions": parts}])
        codes = [part.error_code for part in committed.topics[0].partitions]
        assert codes == [ErrorCode.none] + [ErrorCode.unknown_topic_or_partition] * 2999
        asked = [{"name": topic, "partition_indexes": list(range(5000))}]
        fetched = connection.call("offset_fetch", 7, group_id="many", topics=asked).topics[0].partitions
        assert [part.committed_offset for part in fetched] == [7] + [-1] * 4999
        connection.send("metadata", 12, topics=[{"name": "x" * 40} for _ in range(1000)])
        connection.send("api_versions", 0)
        for correlation_id in (3, 4):
            assert int.from_bytes(connection.receive()[:4], "big") == correlation_id


def test_work_in_slices_lets_others_have_their_turn() -> None:
    turns: list[str] = []

    def work() -> Steps[dict[str, Any]]:
        while not turns:
            yield
        turns.append("work")
        return {}

    async def other() -> None:
        turns.append("other")

    async def both() -> None:
        await asyncio.gather(finished(work()), other())

    asyncio.run(both())
    assert turns == ["other", "work"]


def test_work_that_fits_one_slice_is_done_at_once() -> None:
    def work() -> Steps[dict[str, Any]]:
        yield
        return {"done": True}

    assert run_slice(work()) == {"done": True}


def test_the_limit_of_entries_is_a_setting(tmp_path: Path) -> None:
    with Penstock(tmp_path, "--config", "max.request.entries=10") as server, wire.Connection(server) as connection:
        assert len(connection.call("find_coordinator", 4, key_type=0, coordinator_keys=["g"] * 10).coordinators) == 10
        connection.send("find_coordinator", 4, key_type=0, coordinator_keys=["g"] * 11)
        assert connection.is_closed_by_server()
