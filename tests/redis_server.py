"""A real Redis on loopback, in a process that the test owns."""

from __future__ import annotations

import atexit
import os
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests import real_parts
from tests.servers import ServerProcess, free_ports, wait_for_start

VARIABLE: Final = "PENSTOCK_TEST_REDIS"


class RedisServer:
    """One Redis with an append-only file that is synced at every write, in a folder of its own."""

    def __init__(self, folder: Path, *settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (self.port,) = free_ports(1)
        self._settings = settings
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start on the folder, and on the port of the first start; returns when it answers."""
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder))
        keeping = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")
        command = [real_parts.redis_server(), *place, *keeping, *self._settings]
        self._process = ServerProcess(command, self.folder / "output.txt")
        wait_for_start(self._process, lambda: answers(self.port))

    def kill(self) -> None:
        assert self._process is not None, "Redis has not been started"
        self._process.kill()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # a primary that is asked to stop would wait for its replicas

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


def shared_url() -> str:
    """The URL of the Redis of this test process: started when it is first needed, and stopped with this process.

    Tests share it, so each keeps to groups of its own, and none stops it. Child processes of a test find it, too.
    """
    if VARIABLE not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="penstock-redis-")
        server = RedisServer(Path(folder.name))
        server.start()
        atexit.register(folder.cleanup)
        atexit.register(server.stop)
        os.environ[VARIABLE] = server.url
    return os.environ[VARIABLE]


def answers(port: int) -> bool:
    """Whether a Redis behind the port has read its files and serves."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) in (b"+PONG", b"-NOAU")
    except OSError:
        return False
