"""moto's server on loopback: DynamoDB and S3 as AWS describes them, in a process that the test owns."""

from __future__ import annotations

import atexit
import importlib.util
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from tests.servers import ServerProcess, free_ports, wait_for_start

CREDENTIALS: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""What the usual chain finds in the environment of a test. moto does not look at them."""
REGION: Final = "eu-central-1"
VARIABLE: Final = "PENSTOCK_TEST_MOTO"

# moto looks at a condition, and then writes, in as many threads as there are connections, and without a lock: of two
# writes at once under the same condition both may succeed. AWS does them one after the other, and so does this. Both
# werkzeug and the server of the standard library below it send "100 Continue", and Java's asynchronous client takes the
# second one for the answer.
PROGRAM: Final = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple
application, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()
def one_at_a_time(environment, start):
    with turn:
        return [b"".join(application(environment, start))]
class Handler(WSGIRequestHandler):
    def handle_expect_100(self):
        return True
run_simple(sys.argv[2], int(sys.argv[1]), one_at_a_time, threaded=True, request_handler=Handler)
"""


class MotoServer:
    """One moto. It keeps everything in memory, so a new one is empty."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.host = host
        (self.port,) = free_ports(1)
        self._process: ServerProcess | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            pytest.skip("moto is not installed: run `pip install 'moto[server]'`")
        command = [sys.executable, "-c", PROGRAM, str(self.port), self.host]
        self._process = ServerProcess(command, self._folder / "output.txt")
        wait_for_start(self._process, lambda: answers(self.port, self.host))

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


def shared_endpoint() -> str:
    """The address of the moto of this test process: started when it is first needed, and stopped with this process.

    Tests share it, so each makes tables and buckets of its own, and none stops it. Child processes of a test find it,
    and credentials, too.
    """
    if VARIABLE not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="penstock-moto-")
        server = MotoServer(Path(folder.name))
        server.start()
        atexit.register(folder.cleanup)
        atexit.register(server.stop)
        os.environ[VARIABLE] = server.endpoint
    os.environ.update(CREDENTIALS)
    return os.environ[VARIABLE]


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a moto behind the port answers a request."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.sendall(b"GET /moto-api/data.json HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False
