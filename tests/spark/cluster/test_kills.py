"""A pipeline on a real cluster while workers, drivers and brokers are killed: every record counts once."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock import Connection
from penstock.errors import JavaMissingError
from tests.servers import Penstock, ServerProcess
from tests.spark.cluster.counting import GATE_MARK, PER_BATCH
from tests.spark.cluster.standalone import Standalone

PROGRAM: Final = Path(__file__).with_name("counting.py")
ROOT: Final = Path(__file__).resolve().parents[3]
PATIENCE_S: Final = 240.0
NAMES: Final = ("ann", "bob", "cid")
BEFORE: Final = 2 * PER_BATCH
AFTER: Final = PER_BATCH


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    try:
        with Standalone(tmp_path_factory.mktemp("cluster")) as started:
            yield started
    except JavaMissingError as missing:
        pytest.skip(str(missing))


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
        return self.driver.terminate(60.0)

    def close(self) -> None:
        if self._driver is not None:
            self._driver.kill()

    def send(self, connection: Connection, count: int, *, mark: bool = False) -> None:
        """Records for all names. The mark comes in the last batch of them."""
        end = len(self.sent) + count
        for number in range(len(self.sent), end):
            value = GATE_MARK if mark and number == end - 1 else str(number).encode()
            self.sent.append((NAMES[number % len(NAMES)].encode(), value))
        for key, value in self.sent[-count:]:
            connection.send("numbers", value, key=key)
        connection.flush()

    def await_held(self) -> str:
        """The working folder of the task that stands at the gate, in the middle of its batch."""
        held = self._gate / "held"
        self._wait_until(held.exists, "a task at the gate")
        return held.read_text()

    def open_gate(self) -> None:
        (self._gate / "go").touch()

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
    """The program runs, one batch is out, and the task of the next one stands at the gate."""
    cluster.replace_the_dead()
    cluster.await_idle()
    with Penstock(tmp_path / "broker") as broker:
        made = Case(cluster, broker, tmp_path)
        try:
            with penstock.connect(made.url) as connection:
                connection.create_topic("numbers", 1)
                made.send(connection, BEFORE, mark=True)
                made.start_driver()
                made.await_held()
                assert len(copies(connection)) == PER_BATCH, "one batch is out, and one is on its way"
            yield made
        finally:
            made.close()


def test_a_worker_that_is_killed_in_the_middle_of_a_batch_changes_nothing(case: Case) -> None:
    case.cluster.worker_at(case.await_held()).kill()
    case.open_gate()
    with penstock.connect(case.url) as connection:
        case.send(connection, AFTER)
        case.await_all(connection)
        assert case.stop_driver() == 0
        case.check(connection)


def test_a_driver_that_is_killed_in_the_middle_of_a_batch_is_started_again(case: Case) -> None:
    case.driver.kill()
    case.open_gate()
    case.cluster.await_idle()
    case.start_driver()
    with penstock.connect(case.url) as connection:
        case.send(connection, AFTER)
        case.await_all(connection)
        assert case.stop_driver() == 0
        case.check(connection)


def test_a_broker_that_is_killed_in_the_middle_of_a_batch_and_comes_back(case: Case) -> None:
    case.broker.kill()
    case.open_gate()
    case.broker.restart()
    with penstock.connect(case.url) as connection:
        case.send(connection, AFTER)
        case.await_all(connection)
        assert case.stop_driver() == 0
        case.check(connection)
