"""Whatever arrives, the broker answers it or closes that one connection: it never ends, and never grows without bound.

`PENSTOCK_FUZZ_FRAMES=1000000` runs the long version; `PENSTOCK_SEED` repeats a run.
"""

from __future__ import annotations

import os
import socket
import struct
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.clients import wire
from tests.clients.batches import values_in
from tests.clients.every_request import set_stage
from tests.clients.fuzzing import Requests, Things
from tests.seeds import seed_of
from tests.servers import Penstock

FRAMES: Final = int(os.environ.get("PENSTOCK_FUZZ_FRAMES", "6000"))
CLIENTS: Final = 8
MOST_BYTES: Final = 300 * 1024 * 1024
PATIENCE_S: Final = 0.5
"""How long a client waits for an answer. A group's rebalance or a long poll may well take longer: that is no hang."""
PROBE_ID: Final = 0x7EADBEEF
PROBE: Final = struct.pack(">ihhih", 10, 18, 0, PROBE_ID, -1)
TOPICS: Final = ("orders", "payments", "clicks")
TOPICS_ARE_MADE_AGAIN_EVERY: Final = 500


class Attacker:
    """One client that sends frames, each followed by a request that shows whether the broker still listens."""

    def __init__(self, server: Penstock, requests: Requests) -> None:
        self._server = server
        self._requests = requests
        self._socket: socket.socket | None = None
        self.seen: Counter[str] = Counter()

    def run(self, frames: int) -> Counter[str]:
        for number in range(frames):
            if number % TOPICS_ARE_MADE_AGAIN_EVERY == 0:
                self._requests.things = Things(TOPICS, make_topics(self._server))
            outcome = self._attack(self._requests.next_frame())
            self.seen[outcome] += 1
            if outcome != "answered":
                self._hang_up()
        self._hang_up()
        return self.seen

    def _attack(self, frame: bytes) -> str:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._server.port), timeout=PATIENCE_S)
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame + PROBE)
            while self._next_answer() != PROBE_ID:
                pass
        except TimeoutError:
            return "waiting"
        except ConnectionError:
            return "closed"
        return "answered"

    def _next_answer(self) -> int:
        length, correlation_id = struct.unpack(">ii", self._read(8))
        self._read(length - 4)
        return int(correlation_id)

    def _read(self, count: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return bytes(data)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def make_topics(penstock: Penstock) -> list[uuid.UUID]:
    """The ids of the topics, made again where a request has deleted them."""
    new = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in TOPICS]
    wire.call(penstock, "create_topics", 7, topics=new, timeout=10_000)
    asked = [{"name": name} for name in TOPICS]
    return [topic.topic_id for topic in wire.call(penstock, "metadata", 12, topics=asked).topics if topic.topic_id]


def peak_bytes(penstock: Penstock) -> int:
    """The most memory that the broker has ever had."""
    status = Path(f"/proc/{penstock.pid}/status").read_text("ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def tracebacks_in(output: Path) -> list[str]:
    """Each with the lines around it."""
    lines = output.read_text("utf-8", errors="replace").splitlines()
    return ["\n".join(lines[max(0, n - 2) : n + 30]) for n, line in enumerate(lines) if "Traceback" in line]


def check_it_still_works(penstock: Penstock) -> None:
    with wire.Connection(penstock) as connection:
        stage = set_stage(connection)
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": stage.topic, "partitions": [part]}]
        answer = connection.call("fetch", 12, replica_id=-1, max_wait=0, min_bytes=0, topics=topics)
        assert values_in(answer.responses[0].partitions[0].records) == [(0, b"first")]


@pytest.mark.timeout(120 + FRAMES / 100)
def test_no_frame_ends_the_broker_or_makes_it_grow(tmp_path: Path) -> None:
    seed = seed_of()
    settings = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}
    arguments = [word for name, value in settings.items() for word in ("--config", f"{name}={value}")]
    with Penstock(tmp_path, *arguments) as penstock:
        started = time.monotonic()
        attackers = [Attacker(penstock, Requests(seed + number)) for number in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            seen = sum(pool.map(lambda attacker: attacker.run(FRAMES // CLIENTS), attackers), Counter[str]())
        took_s = time.monotonic() - started
        assert penstock.process.is_alive(), f"the broker ended:\n{penstock.process.last_words()}"
        check_it_still_works(penstock)
        peak = peak_bytes(penstock)
        print(f"{seen.total()} frames in {took_s:.0f} s: {dict(seen)}; at most {peak / (1 << 20):.0f} MB")
        assert tracebacks_in(tmp_path / "output.txt") == []
        assert peak < MOST_BYTES
        assert penstock.terminate() == 0
