"""Real servers that take what notifiers send, on loopback: for webhooks, and for mail."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import queue
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any, Final

WAIT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Posted:
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Hook:
    """A webhook. What it answers can be changed while it runs."""

    url: str = ""
    status: int = 204
    answer_headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b""
    gate: threading.Event = field(default_factory=threading.Event)
    """It answers nothing until this is set."""
    taken: queue.Queue[Posted] = field(default_factory=queue.Queue)

    def next(self, timeout_s: float = WAIT_S) -> Posted:
        return self.taken.get(timeout=timeout_s)


@contextmanager
def hook() -> Iterator[Hook]:
    found = Hook()
    found.gate.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.taken.put(Posted(dict(self.headers.items()), body))
            found.gate.wait(WAIT_S)
            with contextlib.suppress(ConnectionError):  # who has given up waiting does not hear it
                self.send_response(found.status)
                for name, value in found.answer_headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(found.answer)))
                self.end_headers()
                self.wfile.write(found.answer)

        def log_message(self, *_: Any) -> None:
            pass

    with _serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        found.url = f"http://127.0.0.1:{port}/hook"
        try:
            yield found
        finally:
            found.gate.set()


@dataclass(slots=True)
class MailServer:
    """A mail server of the simplest kind: it takes what it is told to take."""

    port: int = 0
    refuses: frozenset[str] = frozenset()
    refuses_login: bool = False
    taken: queue.Queue[Mail] = field(default_factory=queue.Queue)

    def next(self, timeout_s: float = WAIT_S) -> Mail:
        return self.taken.get(timeout=timeout_s)


@dataclass(frozen=True, slots=True)
class Mail:
    sender: str
    to: tuple[str, ...]
    login: str | None
    is_encrypted: bool
    letter: EmailMessage


@contextmanager
def mail_server(certificate: ssl.SSLContext | None = None, *, from_the_start: bool = False) -> Iterator[MailServer]:
    """`certificate` offers STARTTLS, or speaks TLS from the start."""
    found = MailServer()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if from_the_start:
                assert certificate is not None
                self._encrypt(certificate)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                self._talk()

        def _encrypt(self, context: ssl.SSLContext) -> None:
            self.connection: socket.socket = context.wrap_socket(self.request, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)  # type: ignore[assignment]

        def _say(self, text: str) -> None:
            self.wfile.write(text.encode() + b"\r\n")

        def _talk(self) -> None:
            sender, to, login = "", [], None
            self._say("220 sink")
            while line := self.rfile.readline():
                text = line.decode().strip()
                verb = text.upper()
                is_encrypted = isinstance(self.connection, ssl.SSLSocket)
                if verb.startswith("EHLO"):
                    offers = ["STARTTLS"] if certificate is not None and not is_encrypted else []
                    names = ["sink", *offers, "AUTH PLAIN"]
                    for number, name in enumerate(names):
                        self._say(f"250{'-' if number < len(names) - 1 else ' '}{name}")
                elif verb == "STARTTLS" and certificate is not None:
                    self._say("220 go on")
                    self._encrypt(certificate)
                elif verb.startswith("AUTH PLAIN "):
                    login = base64.b64decode(text.split()[2]).decode()
                    self._say("535 no" if found.refuses_login else "235 welcome")
                elif verb.startswith("MAIL FROM:"):
                    sender = text[10:].split()[0].strip("<>")
                    self._say("250 ok")
                elif verb.startswith("RCPT TO:"):
                    address = text[8:].strip("<>")
                    if address in found.refuses:
                        self._say("550 nobody here of that name")
                    else:
                        to.append(address)
                        self._say("250 ok")
                elif verb == "DATA":
                    self._say("354 go on")
                    content = b"".join(iter(self.rfile.readline, b".\r\n"))
                    letter = message_from_bytes(content, policy=default)
                    found.taken.put(Mail(sender, tuple(to), login, is_encrypted, letter))
                    self._say("250 taken")
                elif verb == "QUIT":
                    self._say("221 bye")
                    return
                else:
                    self._say("250 ok")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with _serving(server) as port:
        found.port = port
        yield found


@contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[int]:
    # Polled often, as shutting down takes until the next look.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield int(server.socket.getsockname()[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(WAIT_S)
