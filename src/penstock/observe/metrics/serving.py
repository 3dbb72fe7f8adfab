"""Serving metrics and health probes over HTTP."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

from penstock.errors import ConfigError
from penstock.model.addresses import METRICS_EXPOSE, check_exposure, host_and_port
from penstock.model.closing import Closing
from penstock.observe.metrics import registry as registry_of_this_process

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

logger = logging.getLogger(__name__)

_CLOSING_S: Final = 5.0

Probe = Callable[[], Sequence[str]]
"""Returns what is wrong, in words; nothing while all is well."""


class MetricsServer(Closing):
    """Answers every GET with the metrics, except for the paths of probes. Close it with `close` or a `with` block; it
    ends with the process."""

    def __init__(self, host: str, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self._pid = os.getpid()
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{server.server_port}"
        """Where it listens: HOST:PORT, with the chosen port where 0 was given."""
        self.url = f"http://{self.address}/metrics"

    def close(self) -> None:
        """Stop listening. Responses in progress are finished."""
        if self._pid != os.getpid():  # a forked process has the socket, but not the threads
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_CLOSING_S)


def check_address(address: str, *, insecure: bool = False) -> tuple[str, int]:
    """Host and port of an address for metrics. Raises ConfigError for a bad one, or when other machines could reach
    it."""
    host, port = host_and_port(address, "the address for metrics", "127.0.0.1:9464")
    check_exposure(
        host,
        what=f"serving metrics at {address}",
        exposes=METRICS_EXPOSE,
        allow="add --insecure (in a program: insecure_endpoints=True)",
        insecure=insecure,
    )
    return host, port


def serve(
    address: str,
    registry: CollectorRegistry | None = None,
    probes: Mapping[str, Probe] | None = None,
    *,
    documents: Mapping[str, Callable[[], object]] | None = None,
    insecure: bool = False,
) -> MetricsServer:
    """Serve these metrics at HOST:PORT; without a registry, those of this process (`penstock.observe.metrics`).

    A probe answers at its path with 200, or with 503 and what is wrong; a document is JSON at its path. Raises
    ConfigError when the address is invalid or in use, or can be reached by other machines without `insecure`: there is
    no login.
    """
    host, port = check_address(address, insecure=insecure)
    shown = registry or registry_of_this_process()
    try:
        server, thread = start_http_server(port, addr=host, registry=shown)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigError(
            f"metrics cannot be served at {address}: {reason}. Choose another port, or 0 for one that is free"
        ) from error
    if probes or documents:
        server.set_app(_with_probes(make_wsgi_app(shown), probes or {}, documents or {}))
    serving = MetricsServer(host, server, thread)
    logger.info("metrics are served at %s", serving.url)
    return serving


def _with_probes(
    metrics: Callable[..., Iterable[bytes]],
    probes: Mapping[str, Probe],
    documents: Mapping[str, Callable[[], object]],
) -> Callable[..., Iterable[bytes]]:
    """A WSGI application: the probes and documents at their paths, and the metrics at all others."""

    def answer(environment: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environment.get("PATH_INFO", "").rstrip("/")
        if path in documents:
            return _answer_json(start_response, HTTPStatus.OK, documents[path]())
        probe = probes.get(path)
        if probe is None:
            return metrics(environment, start_response)
        try:
            problems = list(probe())
        except Exception as error:  # a probe that cannot answer counts as unhealthy
            logger.exception("the probe %s failed", environment["PATH_INFO"])
            problems = [f"{type(error).__name__}: {error}"]
        status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
        told = {"status": "unavailable" if problems else "ok", "problems": problems}
        return _answer_json(start_response, status, told)

    return answer


def _answer_json(start_response: Callable[..., Any], status: HTTPStatus, value: object) -> Iterable[bytes]:
    body = msgspec.json.encode(value)
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response(f"{status.value} {status.phrase}", headers)
    return [body]
