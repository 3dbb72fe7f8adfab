"""A receiver of OpenLineage events: an HTTP server that keeps them, refuses them, or does not answer."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

WAIT_S = 30


class LineageServer:
    """Serves on a free port of this machine while it is entered."""

    def __init__(self, status: int = 201, *, hangs: bool = False) -> None:
        self.paths: list[str] = []
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.requested = threading.Event()
        self._released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requested.set()
                if hangs:
                    receiver._released.wait(WAIT_S)
                receiver.paths.append(self.path)
                receiver.events.put(json.loads(body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is printed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def next(self) -> dict[str, Any]:
        """The next event, which must come soon."""
        return self.events.get(timeout=WAIT_S)

    def all(self) -> list[dict[str, Any]]:
        """The events that came and were not asked for yet."""
        found = []
        while not self.events.empty():
            found.append(self.events.get_nowait())
        return found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT_S)


def datasets(event: dict[str, Any], side: str) -> list[tuple[str, str]]:
    return [(each["namespace"], each["name"]) for each in event[side]]
