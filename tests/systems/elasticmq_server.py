"""ElasticMQ on loopback, in a process that the test owns: SQS with queues and messages on disk."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.testing import TcpProxy
from tests import real_parts
from tests.servers import QUICK_START, ServerProcess, free_ports, wait_for_start

SETTINGS: Final = """
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
queues-storage {{ enabled = true, path = "{folder}/queues.conf" }}
messages-storage {{
  enabled = true
  driver-class-name = "org.h2.Driver"
  uri = "jdbc:h2:{folder}/messages;WRITE_DELAY=0"
  username = ""
  password = ""
  prune-data-on-init = false
}}
"""


class ElasticMqServer:
    """One ElasticMQ, whose H2 database writes at each commit."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (self.port,) = free_ports(1)
        self._process: ServerProcess | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        [jar] = Path(real_parts.elasticmq_class_path()).parent.glob("elasticmq-server_*.jar")
        return jar.stem.rpartition("-")[2]

    def start(self) -> None:
        """Start on the folder, and on the port of the first start; returns when it answers."""
        config = self.folder / "elasticmq.conf"
        config.write_text(SETTINGS.format(port=self.port, folder=self.folder))
        options = (*QUICK_START, "-Xmx256m", f"-Dconfig.file={config}")
        command = [real_parts.java(), *options, "-cp", real_parts.elasticmq_class_path(), "org.elasticmq.server.Main"]
        self._process = ServerProcess(command, self.folder / "output.txt")
        wait_for_start(self._process, lambda: answers(self.port))

    def kill(self) -> None:
        assert self._process is not None, "ElasticMQ has not been started"
        self._process.kill()

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


class ElasticMqOutage:
    """An ElasticMQ behind a proxy."""

    def __init__(self, server: ElasticMqServer, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self._server = server

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.start()


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"GET /?Action=ListQueues HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False
