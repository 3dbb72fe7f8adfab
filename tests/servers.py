"""Real servers for tests: Apache Kafka as the reference, and our own broker, each a process that the test owns.

Both are context managers and have `.bootstrap`. Neither outlives the process that started it, however that one ends:
the kernel kills them with it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from tests import real_parts

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
LAST_WORDS_LENGTH: Final = 4000

ANNOUNCEMENT: Final = re.compile(r"^penstock: listening on [\d.]+:(?P<port>\d+)\b", re.MULTILINE)
"""The line of `penstock serve` that tells which port it got."""

# Runs a program that is killed when the process (strictly: the thread) that started it ends. It asks for that itself
# and then becomes the program, so nothing of ours runs between fork and exec of a process with threads.
LAUNCHER: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this one has already ended")
os.execvp(sys.argv[2], sys.argv[2:])
"""


QUICK_START: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""For a Java that starts quickly rather than runs long: what tests want, and no benchmark."""


FIRST_FIXED_PORT: Final = 15_000
FIXED_PORTS: Final = 15_000
_given_ports: set[int] = set()


class ServerError(Exception):
    """A server did not start, or ended by itself; the message ends with what it last wrote."""


class Server(Protocol):
    """What a behaviour test may know of the server it runs against."""

    @property
    def bootstrap(self) -> str:
        """The address clients are given: `127.0.0.1:PORT`."""

    @property
    def port(self) -> int: ...


class ServerProcess:
    """One process of a server: started in a session of its own, stopped within a bound, its output kept in a file."""

    def __init__(self, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> None:
        self._output = output
        with output.open("ab") as sink:
            self._output_start_bytes = sink.tell()
            self.popen = subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def is_alive(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        """SIGKILL to the process and to all it started; returns when it is gone."""
        if self.is_alive():
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(STOP_TIMEOUT_S)

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, then SIGKILL once the timeout has passed. Answers the exit code (negative: the signal)."""
        if self.is_alive():
            self.popen.terminate()
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        return self.popen.wait(STOP_TIMEOUT_S)

    def output(self) -> str:
        """What this process has written so far, not what another one wrote to the same file before it."""
        return self._output.read_bytes()[self._output_start_bytes :].decode(errors="replace")

    def last_words(self) -> str:
        return self.output()[-LAST_WORDS_LENGTH:]


class ApacheKafka:
    """One real Apache Kafka, broker and controller in one process, in a fresh folder: the reference for behaviour."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (*QUICK_START, "-Xmx512m"),
        features: Mapping[str, int] | None = None,
    ) -> None:
        """`features` have the versions that are not those of this Kafka's defaults, such as `transaction.version`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._java_options = java_options
        self._features = features or {}
        self.port, controller_port = free_ports(2)
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(folder / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # One partition to load instead of fifty.
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            **(settings or {}),
        }
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), "utf-8")
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None, "Apache Kafka has not been started"
        return self._process

    def start(self) -> None:
        output = self.folder / "output.txt"
        if not (self.folder / "data").exists():
            format_storage(self._properties, output, self._features)
        self._process = ServerProcess(
            [*java_command(*self._java_options), "kafka.Kafka", str(self._properties)], output
        )
        wait_for_start(self._process, lambda: answers(self.port))

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Penstock:
    """Our broker as its users start it, `penstock serve`, in a process of its own."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0, host: str = "127.0.0.1") -> None:
        """Another host than loopback is for machines of a test's own network: see `penstock.cluster.networks`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.arguments = arguments if host == "127.0.0.1" else (*arguments, "--insecure")
        self.port = port
        self.host = host
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None, "Penstock has not been started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        """Start on the folder, and on the port of the first start; returns when it listens."""
        listen = ("--listen", f"{self.host}:{self.port}", "--data", str(self.data))
        self._process = ServerProcess(
            [sys.executable, "-m", "penstock.cli", "serve", *listen, *self.arguments],
            self.folder / "output.txt",
        )
        wait_for_start(self._process, lambda: self._announcement() is not None)
        announcement = self._announcement()
        assert announcement is not None
        self.port = int(announcement["port"])

    def _announcement(self) -> re.Match[str] | None:
        return ANNOUNCEMENT.search(self.process.output())

    def kill(self) -> None:
        """SIGKILL: what a crash of the process is."""
        self.process.kill()

    def terminate(self) -> int:
        """SIGTERM: close cleanly. Answers the exit code."""
        return self.process.terminate()

    def restart(self) -> None:
        """Start again after `kill` or `terminate` (a broker that still runs is terminated first)."""
        if self.process.is_alive():
            self.terminate()
        self.start()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            if self._process is not None:
                self._process.terminate()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()


def java_command(*options: str) -> list[str]:
    """Java with all of Apache Kafka on its class path."""
    warnings = "-Dorg.apache.logging.log4j.level=WARN"
    return [real_parts.java(), warnings, *options, "-cp", real_parts.kafka_class_path()]


def format_storage(properties: Path, output: Path, features: Mapping[str, int]) -> None:
    command = [*java_command(*QUICK_START), "kafka.tools.StorageTool", "format", "--standalone"]
    command += ["--cluster-id", "cGVuc3RvY2stdGVzdHMtMQ", "--config", str(properties)]
    for name, version in features.items():
        command += ["--feature", f"{name}={version}"]
    with output.open("ab") as sink:
        done = subprocess.run(command, stdout=sink, stderr=sink, timeout=START_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise ServerError(f"Apache Kafka could not format its folder:\n{output.read_text('utf-8', errors='replace')}")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago, all different.

    They lie below those that the system gives to clients, or one of the many connections of a test run might take one
    before its server does. Each process starts looking in a place of its own.
    """
    found: list[int] = []
    for step in range(FIXED_PORTS):
        port = FIRST_FIXED_PORT + (os.getpid() * 97 + len(_given_ports) + step) % FIXED_PORTS
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given_ports:
            _given_ports.add(port)
            found.append(port)
        if len(found) == count:
            return found
    raise ServerError(f"no {count} free ports from {FIRST_FIXED_PORT} on")


def answers(port: int) -> bool:
    """Whether a Kafka server behind the port answers the smallest of all requests, ApiVersions version 0."""
    api_key, version, correlation_id, no_client_id = 18, 0, 1, -1
    request = struct.pack(">hhih", api_key, version, correlation_id, no_client_id)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            return connection.recv(1) != b""
    except OSError:
        return False


def wait_for_start(process: ServerProcess, has_started: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
    """Return once `has_started` says so; raise when the process ends, or the time is over, before it does."""
    deadline = time.monotonic() + timeout_s
    while not has_started():
        if not process.is_alive():
            raise ServerError(f"the server ended with code {process.popen.returncode}:\n{process.last_words()}")
        if time.monotonic() > deadline:
            raise ServerError(f"the server did not start within {timeout_s:.0f} s:\n{process.last_words()}")
        time.sleep(0.02)
