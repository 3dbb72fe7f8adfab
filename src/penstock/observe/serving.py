"""Serving metrics over HTTP, at HOST:PORT, for as long as somebody wants them."""

from __future__ import annotations

import logging
import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from prometheus_client import CollectorRegistry, start_http_server

from penstock.errors import ConfigError
from penstock.observe.metrics import registry as registry_of_this_process

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

logger = logging.getLogger(__name__)

_CLOSING_S: Final = 5.0


class MetricsServer:
    """Answers every GET with the metrics. Closed with `close` or by a `with` block, or with the process."""

    def __init__(self, host: str, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self._pid = os.getpid()
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{server.server_port}"
        """Where it listens: HOST:PORT, with the port that was free where 0 was asked for."""
        self.url = f"http://{self.address}/metrics"

    def close(self) -> None:
        """Listen no more. Who is being answered still gets the answer."""
        if self._pid != os.getpid():  # a forked process has the socket, and none of the threads
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_CLOSING_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(address: str, registry: CollectorRegistry | None = None) -> MetricsServer:
    """Serve these metrics at HOST:PORT; without a registry, those of this process (`penstock.observe.metrics`).

    ConfigError when the address is none, or cannot be listened on.
    """
    host, port = host_and_port(address)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry or registry_of_this_process())
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigError(
            f"metrics cannot be served at {address}: {reason}. Choose another port, or 0 for one that is free"
        ) from error
    serving = MetricsServer(host, server, thread)
    logger.info("metrics are served at %s", serving.url)
    return serving


def host_and_port(address: str) -> tuple[str, int]:
    """HOST:PORT, or [IPv6]:PORT, in its parts. ConfigError when it is none."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"{address!r} is no address for metrics: write HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]"), int(port)
