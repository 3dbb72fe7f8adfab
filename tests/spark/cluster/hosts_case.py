"""One case on hosts: a broker, the program on the cluster, what is sent to it, and what must come out."""

from __future__ import annotations

import functools
import io
import json
import sys
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Protocol

import psycopg
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector

import penstock
from penstock import Connection
from penstock.cluster.brokers import Cluster
from penstock.cluster.status import status_of
from tests.clients.waiting import eventually
from tests.servers import Penstock, ServerProcess
from tests.spark.cluster.hosts import SparkHosts
from tests.spark.cluster.hosts_program import GATE_MARK, PADDING, PER_BATCH
from tests.spark.cluster.stores import Store

PROGRAM: Final = Path(__file__).with_name("hosts_program.py")
ROOT: Final = Path(__file__).resolve().parents[3]
PATIENCE_S: Final = 900.0
NAMES: Final = tuple(b"%c" % letter for letter in range(97, 109))
WINDOW_S: Final = 10
TARGETS: Final = ("topic", "sql", "files", "windows", "state")
COUNTED: Final = frozenset({"windows", "state"})
"""Targets that have results, not the rows."""
LOST: Final = "Lost executor"
"""What Spark's log says when the driver gives an executor up."""
LONGEST_STALL_S: Final = 60.0
"""From the cut until the driver gives up an executor of the host: 15 s to 18 s by the settings of Penstock's sessions,
if the machine has time to spare. Spark's own settings take 120 s to 180 s."""


class Gate:
    """Holds the first task that asks at a gate, until it is opened. Others pass."""

    def __init__(self, host: str) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, str]] = {}
        self._open: set[str] = set()
        self._passed: set[str] = set()
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urllib.parse.urlsplit(self.path)
                asked = dict(urllib.parse.parse_qsl(url.query))
                answer = gate._answer(url.path.strip("/"), asked["task"], asked["host"])
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: object) -> None:
                """Not on the test's output."""

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self.url = f"http://{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _answer(self, name: str, task: str, host: str) -> bytes:
        with self._lock:
            holder, _ = self._held.setdefault(name, (task, host))
            if holder == task and name not in self._open:
                return b"hold"
            if holder == task:
                self._passed.add(name)
            return b"go"

    def host_at(self, name: str) -> str | None:
        """The host of the task that is held."""
        with self._lock:
            return self._held[name][1] if name in self._held else None

    def open(self, name: str) -> None:
        with self._lock:
            self._open.add(name)

    def has_passed(self, name: str) -> bool:
        """Whether the task that was held has gone on."""
        with self._lock:
            return name in self._passed

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Broker(Protocol):
    """The stream: a server, or several that stand in for each other."""

    @property
    def bootstrap(self) -> str: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


class OneBroker(Penstock):
    def __init__(self, folder: Path, host: str) -> None:
        super().__init__(folder, host=host)

    def close(self) -> None:
        self.kill()


class ThreeBrokers:
    """A cluster of Kafka that runs. One broker at a time is killed, each in turn."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._killed = 0
        self.bootstrap = cluster.bootstrap

    def start(self) -> None:
        pass

    def kill(self) -> None:
        """Once all replicas are in sync: two brokers that are behind may stop writes with acks=all."""
        eventually("the cluster is whole", lambda: status_of(self._cluster).is_whole, PATIENCE_S)
        self._killed = self._killed % len(self._cluster.numbers) + 1
        self._cluster.kill(self._killed)

    def restart(self) -> None:
        self._cluster.start(self._killed)

    def close(self) -> None:
        pass


class Case:
    def __init__(
        self,
        cluster: SparkHosts,
        store: Store,
        folder: Path,
        database: str,
        targets: Sequence[str] = TARGETS,
        *,
        by_tasks: bool = False,
        broker: Broker | None = None,
    ) -> None:
        """`by_tasks`: every batch for the topic is published by tasks, in transactions of their own."""
        self.cluster = cluster
        self.store = store
        self.targets = targets
        self._by_tasks = by_tasks
        self._database = database
        self._folder = folder
        self._in_store = store.fresh_folder()
        self.gate = Gate(cluster.hosts.outside)
        self.broker = broker or OneBroker(folder / "broker", cluster.hosts.outside)
        self._driver: ServerProcess | None = None
        self.sent: list[tuple[bytes, bytes]] = []
        self._begun_s = time.monotonic()

    def note(self, what: str) -> None:
        """Print when something happened: pytest shows it if the test fails, or with -s."""
        sys.stdout.write(f"{time.monotonic() - self._begun_s:7.1f} s  {what}\n")

    @property
    def url(self) -> str:
        return f"kafka://{self.broker.bootstrap}"

    @property
    def driver(self) -> ServerProcess:
        assert self._driver is not None
        return self._driver

    def start(self, more: Mapping[str, str] | None = None) -> None:
        self.broker.start()
        with penstock.connect(self.url) as connection:
            connection.create_topic("numbers", 2)
        self.start_driver(more)

    def await_refusal(self) -> str:
        """What the driver says when it ends by itself, with an error, and has written nothing."""
        assert self.driver.popen.wait(PATIENCE_S) != 0, self.driver.last_words()
        for target in self.targets:
            assert not self.rows(target)
        return self.driver.output()

    def start_driver(self, more: Mapping[str, str] | None = None) -> None:
        """`more` has variables of the environment."""
        told = {
            "url": self.url,
            "master": self.cluster.url,
            "conf": {**self.cluster.conf(), **self.store.conf()},
            "checkpoints": f"{self._in_store}/checkpoints",
            "folder": f"{self._in_store}/files",
            "database": self._database,
            "gate": self.gate.url,
            "targets": self.targets,
            "by_tasks": self._by_tasks,
        }
        environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **self.store.environment(), **(more or {})}
        command = [sys.executable, str(PROGRAM), json.dumps(told)]
        self._driver = self.cluster.start_driver(command, self._folder / "driver.txt", environment)

    def close(self) -> None:
        if self._driver is not None:
            self._driver.kill()
        self.gate.close()
        self.broker.close()

    def send_batch(self, *, at_s: int, gate: str | None = None, count: int = PER_BATCH) -> None:
        """Send records of these seconds. One of them waits at the gate."""
        begin = len(self.sent)
        for number in range(begin, begin + count):
            mark = GATE_MARK + gate.encode() + b" " if gate is not None and number == begin else b""
            value = b"%d %d %b%b" % (number, at_s + number % WINDOW_S, mark, PADDING)
            self.sent.append((NAMES[number % len(NAMES)], value))
        with penstock.connect(self.url) as connection:
            for key, value in self.sent[begin:]:
                connection.send("numbers", value, key=key)
            connection.flush()

    def await_held(self, gate: str) -> str:
        """The host of the task that is held at the gate."""
        self.wait_until(lambda: self.gate.host_at(gate) is not None, f"a task at the gate {gate!r}")
        host = self.gate.host_at(gate) or ""
        self.note(f"a task on {host} is held at {gate!r}")
        return host

    def await_all(self) -> None:
        """Return when every target has as many rows as were sent."""
        for target in self.targets:
            if target not in COUNTED:
                self.wait_until(functools.partial(self._has_all, target), f"all rows in {target}")
        if "state" in self.targets:
            self.wait_until(lambda: sum(rows for rows, _ in self._totals().values()) >= len(self.sent), "all totals")
        self.note(f"all {len(self.sent)} rows are there")

    def delivered(self) -> int:
        """The number of rows in all targets."""
        return sum(len(self.rows(target)) for target in self.targets if target not in COUNTED)

    def _has_all(self, target: str) -> bool:
        return len(self.rows(target)) >= len(self.sent)

    def check(self) -> None:
        """Each record counts once in every target."""
        for target in self.targets:
            if target not in COUNTED:
                found = Counter(_number(value) for value in self.rows(target))
                wanted = Counter(range(len(self.sent)))
                assert found == wanted, f"{target}: lost {wanted - found}, repeated {found - wanted}"

        if "state" in self.targets:
            numbers: dict[str, list[int]] = {}
            for number, (name, _) in enumerate(self.sent):
                numbers.setdefault(name.decode(), []).append(number)
            assert self._totals() == {name: (len(each), sum(each)) for name, each in numbers.items()}

    def _totals(self) -> dict[str, tuple[int, int]]:
        """The newest total of each key: rows, and the sum of their numbers."""
        with penstock.connect(self.url) as connection:
            values = [json.loads(record.value or b"{}") for record in _records(connection, "totals")]
        return {value["name"]: (value["rows"], value["sum"]) for value in values}

    def unplug(self, host: str) -> None:
        """Cut a worker off, and return when the driver has given its executors up."""
        before = self.driver.output().count(LOST)
        began_s = time.monotonic()
        self.cluster.hosts.unplug(host)
        self.wait_until(lambda: self.driver.output().count(LOST) > before, "an executor given up")
        took_s = time.monotonic() - began_s
        self.note(f"the driver gave an executor of {host} up {took_s:.1f} s after the cut")
        assert took_s < LONGEST_STALL_S

    def check_windows(self) -> None:
        """Close all windows by a last record, and compare with what was sent: each row is in its window, or late."""
        self.send_batch(at_s=10**9, count=1)
        wanted = Counter(_second(value) // WINDOW_S * WINDOW_S for _, value in self.sent[:-1])
        self.wait_until(lambda: self._windows().total() >= wanted.total(), f"all windows of {wanted}")
        assert self._windows() == wanted

    def _windows(self) -> Counter[int]:
        """Rows by the beginning of their window, counted or late."""
        found: Counter[int] = Counter()
        with penstock.connect(self.url) as connection:
            closed = [json.loads(record.value or b"{}") for record in _records(connection, "windows")]
            late = [json.loads(record.value or b"{}") for record in _records(connection, "late")]
        starts = [each["start"] for each in closed]
        assert len(starts) == len(set(starts)), f"a window was closed twice: {closed}"
        for each in closed:
            found[each["start"]] += each["rows"]
        for each in late:
            found[_second(self.sent[each["number"]][1]) // WINDOW_S * WINDOW_S] += 1
        return found

    def staged_files(self) -> list[str]:
        """The files with staged rows that are in the store now."""
        return [path for path in self._files("checkpoints") if path.endswith(".arrow")]

    def _files(self, below: str) -> list[str]:
        url = urllib.parse.urlsplit(f"{self._in_store}/{below}")
        base = f"{url.netloc}{url.path}" if url.scheme == "s3a" else url.path
        found = self.store.files().get_file_info(FileSelector(base, allow_not_found=True, recursive=True))
        return [info.path for info in found if info.is_file]

    def rows(self, target: str) -> list[bytes]:
        """The values that a target has."""
        if target == "topic":
            with penstock.connect(self.url) as connection:
                return [record.value or b"" for record in _records(connection, "copies")]
        if target == "sql":
            with psycopg.connect(self._database) as connection:
                if connection.execute("SELECT to_regclass('copies')").fetchone() == (None,):
                    return []
                return [text.encode() for (text,) in connection.execute("SELECT text FROM copies").fetchall()]
        rows: list[bytes] = []
        for path in self._files("files"):
            if path.endswith(".parquet") and "_penstock" not in path:
                with self.store.files().open_input_stream(path) as file:
                    table = pq.read_table(io.BytesIO(file.read()))
                rows += [text.encode() for text in table.column("text").to_pylist()]
        return rows

    def wait_until(self, holds: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
        until = time.monotonic() + timeout_s
        while not holds():
            assert self.driver.is_alive(), f"the driver ended before there were {what}:\n{self.driver.last_words()}"
            assert time.monotonic() < until, f"not {what} within {timeout_s:g} s:\n{self.driver.last_words()}"
            time.sleep(0.1)


def _number(value: bytes) -> int:
    return int(value.split()[0])


def _second(value: bytes) -> int:
    return int(value.split()[1])


def _records(connection: Connection, topic: str) -> list[penstock.Record]:
    return list(connection.read(topic)) if topic in connection.topics() else []
