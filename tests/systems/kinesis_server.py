"""kinesis-local on loopback, in a process that the test owns."""

from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.testing import TcpProxy
from tests import real_parts
from tests.servers import ServerProcess, free_ports, wait_for_start

PERSIST_S: Final = 1.0
PERSIST_TIMEOUT_S: Final = 60.0

# It listens on every interface of the machine, and has no setting for that.
LOOPBACK: Final = """
const net = require("net"), listen = net.Server.prototype.listen
net.Server.prototype.listen = function (...given) {
  if (typeof given[0] === "object" && given[0] !== null) given[0].host = "127.0.0.1"
  else if (typeof given[0] === "number") given = [given[0], "127.0.0.1", ...given.filter(x => typeof x === "function")]
  return listen.apply(this, given)
}
"""


class KinesisServer:
    """One kinesis-local. It writes all it has into a file every second, and reads that file when it starts."""

    def __init__(self, folder: Path, persist: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._persist = persist
        self.port, self._tls_port = free_ports(2)
        self._process: ServerProcess | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "kinesis-data.json"

    @property
    def version(self) -> str:
        return str(json.loads((real_parts.kinesis_local() / "package.json").read_text("utf-8"))["version"])

    def start(self) -> None:
        program = real_parts.kinesis_local()
        preload = self.folder / "loopback.cjs"
        preload.write_text(LOOPBACK)
        at_once = ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS", "UPDATE_SHARD_COUNT")
        environment = {
            "KINESIS_MOCK_PLAIN_PORT": str(self.port),
            "KINESIS_MOCK_TLS_PORT": str(self._tls_port),
            "KINESIS_MOCK_CERT_PATH": str(program / "server.json"),
            "SHOULD_PERSIST_DATA": str(self._persist).lower(),
            "PERSIST_PATH": str(self.folder),
            "PERSIST_INTERVAL": f"{PERSIST_S * 1000:.0f}ms",
            "SHARD_LIMIT": "100000",
            "LOG_LEVEL": "ERROR",
            **{f"{each}_DURATION": "0ms" for each in at_once},
        }
        command = [real_parts.node(), "--require", str(preload), str(program / "main.js")]
        self._process = ServerProcess(command, self.folder / "output.txt", environment)
        wait_for_start(self._process, lambda: answers(self.port))

    def kill(self) -> None:
        assert self._process is not None, "kinesis-local has not been started"
        self._process.kill()

    def wait_until_persisted(self, timeout_s: float = PERSIST_TIMEOUT_S) -> Path:
        """A copy of the file as it is once everything up to now is in it. The file itself is half written at times."""
        deadline_s = time.monotonic() + timeout_s
        copy = self.folder / "persisted.json"
        written: set[int] = {self._written_ns()}
        while time.monotonic() < deadline_s:
            written.add(self._written_ns())
            if len(written) > 2:  # the second one began after this function did
                shutil.copy(self.data, copy)
                if is_json(copy):
                    return copy
            time.sleep(0.02)
        raise AssertionError(f"kinesis-local wrote no whole file within {timeout_s:g} s")

    def _written_ns(self) -> int:
        return self.data.stat().st_mtime_ns if self.data.exists() else 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()


class KinesisOutage:
    """A kinesis-local behind a proxy. Kinesis has stored what it acknowledges; kinesis-local has it in memory for a
    while, so the kill lets no more answers pass, and waits until those before it are in the file."""

    def __init__(self, server: KinesisServer, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self._server = server
        self._persisted: Path | None = None

    def kill(self) -> None:
        self.proxy.freeze()
        self._persisted = self._server.wait_until_persisted()
        self._server.kill()
        self.proxy.cut()
        self.proxy.heal()

    def restart(self) -> None:
        assert self._persisted is not None, "it was not killed"
        shutil.copy(self._persisted, self._server.data)
        self._server.start()


def is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"GET /healthcheck HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False
