"""A table over HTTP: rows by key and by index, and whether the table is fresh."""

from __future__ import annotations

import logging
import os
import socket
import threading
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import ConfigError, PenstockError
from penstock.model.addresses import check_exposure, host_and_port, is_loopback
from penstock.model.closing import Closing
from penstock.tables.changes import plain_value

if TYPE_CHECKING:
    from penstock.tables.table.table import Table

logger = logging.getLogger(__name__)

_CLOSING_S: Final = 5.0
_IDLE_S: Final = 30.0
"""How long a connection may be silent."""
_MOST_CONNECTIONS: Final = 64
_MOST_ROWS: Final = 1_000
"""The rows of an answer, unless `limit` asks for fewer."""


class TableServer(Closing):
    """Answers requests about one table, until it or the table is closed."""

    def __init__(self, table: Table[Any], address: str, *, insecure: bool = False) -> None:
        host, port = host_and_port(address, "the address of a table", "127.0.0.1:8080")
        check_exposure(
            host,
            what=f"serving a table at {address}",
            exposes="read its rows",
            allow="pass insecure=True",
            insecure=insecure,
        )
        try:
            self._server = _Server((host, port), _handler(table, only_loopback=is_loopback(host)))
        except OSError as error:
            raise ConfigError(
                f"the table cannot be served at {address}: {os.strerror(error.errno or 0)}. Choose another port, or 0 "
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
            name=f"penstock-table-http-{self._server.server_address[1]}",
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


Answer = tuple[HTTPStatus, Any]


def _handler(table: Table[Any], *, only_loopback: bool) -> type[BaseHTTPRequestHandler]:
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
            if only_loopback and not _is_ours(self.headers.get("Host", "localhost")):
                # A page of the web whose name leads to this machine must not read the rows.
                status, found = HTTPStatus.FORBIDDEN, {"error": "this address is for programs of this machine"}
            else:
                status, found = answer(table, self.path)
            body = found if isinstance(found, bytes) else msgspec.json.encode(found, enc_hook=plain_value)
            is_json = not isinstance(found, bytes) or _is_json(found)
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if is_json else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    return Handler


def _is_ours(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return is_loopback(name or host)


def answer(table: Table[Any], target: str) -> Answer:
    """The answer to GET of this path and query."""
    path, _, query = target.partition("?")
    try:
        if path == "/healthz":
            return _health(table, ready=False)
        if path == "/readyz":
            return _health(table, ready=True)
        if not table.progress.is_caught_up:
            problem = table.progress.problem
            return HTTPStatus.SERVICE_UNAVAILABLE, {
                "error": problem or "the table has not caught up with its topic yet"
            }
        if path not in ("", "/"):
            return _row(table, urllib.parse.unquote(path[1:], errors="strict"))
        return _rows(table, query) if query else (HTTPStatus.OK, _about(table))
    except UnicodeDecodeError:
        return HTTPStatus.BAD_REQUEST, {"error": "the path is not UTF-8"}
    except ConfigError as error:
        return HTTPStatus.BAD_REQUEST, {"error": str(error)}
    except PenstockError as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}


def _health(table: Table[Any], *, ready: bool) -> Answer:
    progress = table.progress
    problems = [] if progress.problem is None else [progress.problem]
    if ready and not progress.is_caught_up:
        problems.append("the table has not caught up with its topic yet")
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return status, {"status": "unavailable" if problems else "ok", "problems": problems}


def _about(table: Table[Any]) -> dict[str, Any]:
    progress = table.progress
    pointers = {str(partition): str(pointer) for partition, pointer in progress.pointers.items()}
    return {"topic": table.topic.name, "rows": progress.rows, "pointers": pointers, "indexes": table.index_names}


def _row(table: Table[Any], text: str) -> Answer:
    for key in table.key_of_text(text):
        try:
            return HTTPStatus.OK, table[key]
        except KeyError:
            continue
    return HTTPStatus.NOT_FOUND, {"error": f"there is no row with the key {text!r}"}


def _rows(table: Table[Any], query: str) -> Answer:
    asked = urllib.parse.parse_qsl(query, keep_blank_values=True)
    limits = [value for name, value in asked if name == "limit" and name not in table.index_names]
    if any(not limit.isdigit() for limit in limits):
        raise ConfigError("limit must be an integer >= 0")
    limit = min([_MOST_ROWS, *map(int, limits)])
    wanted = [(name, value) for name, value in asked if name in table.index_names or name != "limit"]
    if len(wanted) != 1:
        raise ConfigError("ask for one index: /?INDEX=VALUE, and perhaps &limit=100")
    [(index, text)] = wanted
    found: dict[Any, Any] = {}
    for value in (text, *_json_values(text)):
        found.update(table.by(index, value))
    rows = [{"key": key, "row": row} for key, row in list(found.items())[:limit]]
    return HTTPStatus.OK, {"rows": rows, "total": len(found)}


def _json_values(text: str) -> list[Any]:
    """Numbers, booleans and null, as a URL can write them."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return []
    return [] if isinstance(value, str | list | dict) else [value]


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
