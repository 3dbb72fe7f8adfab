"""The other sides of webhooks: a listener in a thread, a receiver that answers as it is told, raw clients."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.abc import Acknowledging, Channel
from penstock.channels import open_channel
from penstock.errors import ConnectionClosedError
from penstock.model import Record


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


Answer = Callable[[Channel, list[Record]], object]


def acknowledge(channel: Channel, records: list[Record]) -> None:
    assert isinstance(channel, Acknowledging)
    channel.acknowledge(records)


@dataclass
class Listening:
    """A channel that a thread listens to."""

    url: str
    channel: Channel
    records: list[Record] = field(default_factory=list)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


@contextmanager
def listening(parameters: str = "", answer: Answer = acknowledge, scheme: str = "http") -> Iterator[Listening]:
    """A channel at a free port of loopback. `answer` gets what arrived."""
    port = free_port()
    channel = open_channel(f"{scheme}://127.0.0.1:{port}/hooks?{parameters}")
    found = Listening(f"{scheme}://127.0.0.1:{port}/hooks", channel)
    channel.listen(1, 0.0)

    def run() -> None:
        try:
            while True:  # ends when the channel is closed
                records = list(channel.listen(100, 1.0))
                found.records += records
                if records:
                    answer(channel, records)
        except ConnectionClosedError:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        channel.close()
        thread.join(10)


@dataclass
class Request:
    """What a receiver got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """A server of the standard library: `answer` decides for each request, by its status and headers."""

    url: str
    requests: list[Request] = field(default_factory=list)
    answer: Callable[[Request], tuple[int, dict[str, str]] | None] = lambda _: (200, {})
    """None: hang up without an answer. The header "body" is the body of the answer."""

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]


@contextmanager
def receiving(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver("")
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            with lock:
                receiver.requests.append(request)
            answer = receiver.answer(request)
            if answer is None:
                self.close_connection = True
                return
            headers = dict(answer[1])
            said = headers.pop("body", "").encode()
            self.send_response(answer[0])
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_PUT = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}/in"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def raw(url: str, request: bytes, timeout_s: float = 20.0) -> bytes:
    """The answer to these bytes, read until the server hangs up, or has sent a whole answer."""
    host, _, port = url.split("/")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout_s) as client:
        client.sendall(request)
        return read_answer(client)


def read_answer(client: socket.socket) -> bytes:
    answer = b""
    while True:  # ends: with the answer, or the timeout of the socket
        head, end, body = answer.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if end and len(body) >= length:
            return answer
        received = client.recv(65536)
        if not received:
            return answer
        answer += received
