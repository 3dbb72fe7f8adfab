"""URLs that lead to a server of another kind: the error names the system and the address, in time."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

import penstock
from penstock.errors import BrokerUnavailableError, StreamError
from penstock.queues import open_queue
from tests.moto_server import CREDENTIALS

IN_TIME_S = 120.0


class _Page(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_error(501)

    do_GET = do_POST

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


class _Greeting(threading.Thread):
    """Greets as SSH does, reads what comes, and hangs up."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self) -> None:
        while True:  # ends when the listener is closed
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    @staticmethod
    def _answer(connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                connection.recv(1_000)
            except OSError:
                return


@pytest.fixture(scope="module", params=["a web server", "an SSH server"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "an SSH server":
        greeting = _Greeting()
        greeting.start()
        yield greeting.port
        greeting.listener.close()
        return
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://127.0.0.1:{}/0", r"Redis at 127.0.0.1:{}/0 does not answer as Redis does"),
        ("nats://127.0.0.1:{}?timeout_s=2", r"NATS at 127.0.0.1:{} is unavailable: .*is the URL right"),
        ("rabbitmq-stream://127.0.0.1:{}?timeout_s=2", r"RabbitMQ at 127.0.0.1:{} is unavailable: "),
        (
            "postgresql://me@127.0.0.1:{}/x?connect_timeout_s=2",
            r"PostgreSQL database 'x' at 127.0.0.1.* unavailable",
        ),
        ("pulsar://127.0.0.1:{0}?timeout_s=2&admin_url=http://127.0.0.1:{0}", r"Pulsar.* http://127.0.0.1:{}"),
        ("kinesis://eu-central-1?endpoint_url=http://127.0.0.1:{}", r"Kinesis .*http://127.0.0.1:{}.*endpoint_url"),
        ("amqp://127.0.0.1:{}/q?connect_timeout_s=2", r"amqp://127.0.0.1:{}/q (gave no answer|cannot be reached)"),
        (
            "amqp1://127.0.0.1:{}/q?connect_timeout_s=2",
            r"amqp1://127.0.0.1:{}/q (gave no|does not|cannot be reached: no) answer",
        ),
        ("stomp://127.0.0.1:{}/q?connect_timeout_s=2", r"stomp://127.0.0.1:{}/q cannot be reached"),
        ("sqs://eu-central-1/q?endpoint_url=http://127.0.0.1:{}", r"SQS .*http://127.0.0.1:{}.*endpoint_url"),
    ],
)
def test_the_error_names_the_system_and_the_address(
    port: int, url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    is_queue = url.partition(":")[0] in ("amqp", "amqp1", "stomp", "sqs")
    began_s = time.monotonic()
    with pytest.raises((BrokerUnavailableError, StreamError), match=message.format(port)) as caught:
        (open_queue if is_queue else penstock.connect)(url.format(port))
    assert "<html" not in str(caught.value).lower(), "no web pages in errors"
    assert time.monotonic() - began_s < IN_TIME_S
