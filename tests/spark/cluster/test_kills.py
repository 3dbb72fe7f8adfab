"""A pipeline on a real cluster while workers, drivers and brokers are killed: every record counts once."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock import Connection
from tests.sampling import sample
from tests.servers import Penstock, ServerProcess
from tests.spark.cluster.counting import GATE_MARK, PER_BATCH
from tests.spark.cluster.standalone import Standalone

PROGRAM: Final = Path(__file__).with_name("counting.py")
ROOT: Final = Path(__file__).resolve().parents[3]
PATIENCE_S: Final = 240.0
STOP_S: Final = 300.0
NAMES: Final = ("ann", "bob", "cid")


class Case:
    """The counting program on the cluster, and what is sent to it."""

    def __init__(self, cluster: Standalone, broker: Penstock, folder: Path) -> None:
        self.cluster = cluster
        self.broker = broker
        self.url = f"kafka://{broker.bootstrap}"
        self._folder = folder
        self._gate = folder / "gate"
        self._gate.mkdir()
        self._driver: ServerProcess | None = None
        self.sent: list[tuple[bytes, bytes]] = []

    @property
    def driver(self) -> ServerProcess:
        assert self._driver is not None
        return self._driver

    def start_driver(self) -> None:
        command = [sys.executable, str(PROGRAM), self.url, str(self._folder / "checkpoints"), self.cluster.url]
        environment = {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._driver = ServerProcess([*command, str(self._gate)], self._folder / "driver.txt", environment)

    def stop_driver(self) -> int:
        return self.driver.terminate(STOP_S)

    def close(self) -> None:
        if self._driver is not None:
            self._driver.kill()

    def send_batch(self, connection: Connection, gate: str | None = None) -> None:
        """As many records as a batch takes, for all names. The first is to wait at this gate: no batch may pass
        it that has only some of the others."""
        begin = len(self.sent)
        for number in range(begin, begin + PER_BATCH):
            self.sent.append((NAMES[number % len(NAMES)].encode(), str(number).encode()))
        if gate is not None:
            self.sent[begin] = (self.sent[begin][0], GATE_MARK + gate.encode())
        for key, value in self.sent[begin:]:
            connection.send("numbers", value, key=key)
        connection.flush()

    def await_held(self, gate: str) -> str:
        """The working folder of the task that stands at the gate, in the middle of its batch."""
        held = self._gate / f"{gate}.held"
        self._wait_until(held.exists, f"a task at the gate {gate!r}")
        return held.read_text()

    def open(self, gate: str) -> None:
        (self._gate / f"{gate}.go").touch()

    def await_all(self, connection: Connection) -> None:
        """Return when the results are all there."""
        self._wait_until(lambda: len(copies(connection)) >= len(self.sent), f"{len(self.sent)} copies")
        self._wait_until(lambda: last_counts(connection) == self.expected_counts(), "the right counts")

    def expected_counts(self) -> dict[str, int]:
        return dict(Counter(key.decode() for key, _ in self.sent))

    def check(self, connection: Connection) -> None:
        assert Counter(copies(connection)) == Counter(self.sent), "each record was copied once"
        assert last_counts(connection) == self.expected_counts(), "each record was counted once"

    def _wait_until(self, holds: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
        until = time.monotonic() + timeout_s
        while not holds():
            assert self.driver.is_alive(), f"the driver ended before there was {what}:\n{self.driver.last_words()}"
            assert time.monotonic() < until, f"not {what} within {timeout_s:g} s:\n{self.driver.last_words()}"
            time.sleep(0.05)


def copies(connection: Connection) -> list[tuple[bytes, bytes]]:
    """What is in the topic of copies, as far as it is committed."""
    return [(record.key or b"", record.value or b"") for record in _records(connection, "copies")]


def last_counts(connection: Connection) -> dict[str, int]:
    told = [json.loads(record.value or b"null") for record in _records(connection, "counts")]
    return {each["name"]: each["times"] for each in told}


def _records(connection: Connection, topic: str) -> list[penstock.Record]:
    return list(connection.read(topic)) if topic in connection.topics() else []


@pytest.fixture
def case(cluster: Standalone, tmp_path: Path) -> Iterator[Case]:
    """The program runs on two workers."""
    with Penstock(tmp_path / "broker") as broker:
        made = Case(cluster, broker, tmp_path)
        with penstock.connect(made.url) as connection:
            connection.create_topic("numbers", 1)
        try:
            made.start_driver()
            yield made
        finally:
            made.close()


@pytest.mark.sampled(2, among="pipelines on a standalone cluster")
@pytest.mark.timeout(1_800)
def test_a_worker_a_broker_and_a_driver_killed_in_the_middle_of_a_batch_change_nothing(case: Case) -> None:
    for killed in sample(("worker", "broker", "driver"), 1):
        with in_the_middle(case, killed) as folder:
            if killed == "worker":
                case.cluster.worker_at(folder).kill()
            elif killed == "broker":
                case.broker.kill()
                case.broker.restart()
            else:
                case.driver.kill()
        case.cluster.replace_the_dead()
        if killed == "driver":
            case.cluster.await_idle()
            case.start_driver()
    with penstock.connect(case.url) as connection:
        case.send_batch(connection)
        case.await_all(connection)
        assert case.stop_driver() == 0
        case.check(connection)


@contextmanager
def in_the_middle(case: Case, gate: str) -> Iterator[str]:
    """One more batch is out, and of the next a task stands at the gate: gives where. Afterwards it may go on."""
    with penstock.connect(case.url) as connection:
        case.send_batch(connection)
        case.await_all(connection)
        case.send_batch(connection, gate)
        folder = case.await_held(gate)
        assert len(copies(connection)) == len(case.sent) - PER_BATCH, "one batch is on its way"
    yield folder
    case.open(gate)
