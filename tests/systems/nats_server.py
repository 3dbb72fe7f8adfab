"""A real NATS server with JetStream on loopback, in a process that the test owns."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests import real_parts
from tests.servers import ServerProcess, free_ports, wait_for_start


class NatsServer:
    """One NATS server in a folder of its own. As by default, it gives messages to the system before it acknowledges
    them, and syncs them to the disk every two minutes."""

    def __init__(self, folder: Path, settings: str = "", *, jetstream: bool = True, limits: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (self.port,) = free_ports(1)
        self._config = folder / "nats.conf"
        store = f'jetstream {{ store_dir: "{folder / "data"}", {limits} }}' if jetstream else ""
        self._config.write_text(f"host: 127.0.0.1\nport: {self.port}\n{store}\n{settings}\n", "utf-8")
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start on the folder, and on the port of the first start; returns when it answers."""
        command = [real_parts.nats_server(), "--config", str(self._config)]
        self._process = ServerProcess(command, self.folder / "output.txt")
        wait_for_start(self._process, lambda: answers(self.port))

    def kill(self) -> None:
        assert self._process is not None, "NATS has not been started"
        self._process.kill()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()

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


def cluster_of(folder: Path, size: int) -> list[NatsServer]:
    """Servers that keep JetStream together, not started yet."""
    ports = free_ports(size)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    return [
        NatsServer(
            folder / f"server-{number}",
            f"server_name: server-{number}\n"
            f'cluster {{ name: tests, listen: "127.0.0.1:{port}", routes: [ {routes} ] }}',
        )
        for number, port in enumerate(ports)
    ]


def version() -> str:
    done = subprocess.run(
        [real_parts.nats_server(), "--version"], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.strip().rpartition("v")[2]


def answers(port: int) -> bool:
    """Whether a NATS server behind the port greets its clients."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False
