"""A small HTTP server that answers GET with JSON, for what a running program shows of itself."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import ConfigError
from penstock.model.addresses import check_exposure, host_and_port, is_loopback
from penstock.model.closing import Closing

logger = logging.getLogger(__name__)

_CLOSING_S: Final = 5.0
_IDLE_S: Final = 30.0
"""How long a connection may be silent."""
_MOST_CONNECTIONS: Final = 64


class JsonAnswer(NamedTuple):
    """What a GET is answered with."""

    status: HTTPStatus
    value: Any
    """Encoded as JSON; bytes are sent as they are."""
    headers: Mapping[str, str] = {}


class JsonServer(Closing):
    """Answers GET and HEAD with what a function returns, until it is closed.

    There is no login, so an address that other machines can reach is refused unless `insecure` is true.
    """

    def __init__(
        self,
        answer: Callable[[str, Message], JsonAnswer],
        address: str,
        *,
        what: str,
        exposes: str,
        allow: str,
        insecure: bool,
        encode_other: Callable[[Any], Any] = repr,
    ) -> None:
        """`answer` takes the path with its query, and the headers. `what` is served, as in "the table"; `exposes` and
        `allow` are those of `check_exposure`; `encode_other` makes values plain that JSON does not have."""
        host, port = host_and_port(address, f"the address of {what}", "127.0.0.1:8080")
        check_exposure(host, what=f"serving {what} at {address}", exposes=exposes, allow=allow, insecure=insecure)
        try:
            handler = _handler(answer, encode_other, what, only_loopback=is_loopback(host))
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise ConfigError(
                f"{what} cannot be served at {address}: {os.strerror(error.errno or 0)}. Choose another port, or 0 "
                "for one that is free"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.server_address[1]}"
        """Where it listens: HOST:PORT, with the chosen port where 0 was given."""
        self.url = f"http://{self.address}"
        self._pid = os.getpid()
        self._closed = False
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(0.1,),
            name=f"penstock-http-{self._server.server_address[1]}",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Answers in progress are finished."""
        if self._closed or self._pid != os.getpid():  # a forked process has the socket, but not the threads
            return
        self._closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_CLOSING_S)


class _Server(ThreadingHTTPServer):
    """A bounded number of connections, each with a thread; others wait to be accepted."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(timeout=_CLOSING_S):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a connection of %s ended with an error", client_address)


def _handler(
    answer: Callable[[str, Message], JsonAnswer],
    encode_other: Callable[[Any], Any],
    what: str,
    *,
    only_loopback: bool,
) -> type[BaseHTTPRequestHandler]:
    """The class whose instances handle one connection each."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "penstock"
        sys_version = ""
        timeout = _IDLE_S

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, format: str, *args: Any) -> None:
            logger.debug("%s: " + format, self.address_string(), *args)

        def _answer(self, *, with_body: bool) -> None:
            found = self._found()
            try:
                body = _body(found.value, encode_other)
            except (TypeError, ValueError, msgspec.MsgspecError) as error:
                found = JsonAnswer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"it is no JSON: {error}"})
                body = _body(found.value, encode_other)
            is_json = not isinstance(found.value, bytes) or _is_json(found.value)
            self.send_response(found.status)
            self.send_header("Content-Type", "application/json" if is_json else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def _found(self) -> JsonAnswer:
            if only_loopback and not _is_ours(self.headers.get("Host", "localhost")):
                # A page of the web whose name leads to this machine must not read what is served.
                return JsonAnswer(HTTPStatus.FORBIDDEN, {"error": "this address is for programs of this machine"})
            try:
                return answer(self.path, self.headers)
            except Exception as error:
                logger.exception("%s could not answer %s", what, self.path)
                return JsonAnswer(
                    HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"unexpected error: {type(error).__name__}"}
                )

    return Handler


def _body(value: Any, encode_other: Callable[[Any], Any]) -> bytes:
    return value if isinstance(value, bytes) else msgspec.json.encode(value, enc_hook=encode_other)


def _is_ours(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return is_loopback(name or host)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
