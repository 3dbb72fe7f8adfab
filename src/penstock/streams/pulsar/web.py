"""Pulsar's web service: requests to its REST API, and its errors in our words. Any thread may use it."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.errors import BrokerUnavailableError, ConnectionClosedError, NotAllowedError, StreamError, UrlError
from penstock.streams.forks import FORKS

logger = logging.getLogger(__name__)

NOT_FOUND: Final = 404
CONFLICT: Final = 409
_IDLE_CONNECTIONS: Final = 8
_LONGEST_VERSION: Final = 100
_REDIRECTS: Final = 5
"""How often a request is sent on to the broker that owns its topic."""
_READ_BYTES: Final = 64 << 20
_BUSY: Final = (429, 500, 502, 503, 504)

Address = tuple[str, str, int]
"""Scheme, host and port."""


class PulsarWebError(StreamError):
    """The web service refused a request."""

    def __init__(self, where: str, what: str, status: int, reason: str) -> None:
        super().__init__(f"{where}: {what} failed: {reason} (HTTP status {status})")
        self.status = status
        self.reason = reason


class PulsarWeb:
    """Sends requests over connections of its own, which are kept for the next ones."""

    def __init__(
        self, url: str, timeout_s: float, headers: Callable[[], Mapping[str, str]], tls: ssl.SSLContext | None
    ) -> None:
        self._address = _address(url)
        self._prefix = urlsplit(url).path.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = headers
        self._tls = tls
        self.where = f"Pulsar's web service at {url}"
        self._lock = threading.Lock()
        self._idle: list[tuple[Address, http.client.HTTPConnection]] = []
        self._closed = False
        self._forks = FORKS.count

    def get(self, path: str) -> Any:
        return self.ask("GET", path)

    def find(self, path: str) -> Any:
        """Like `get`, but None if there is no such thing."""
        try:
            return self.ask("GET", path)
        except PulsarWebError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def version(self) -> str:
        """The version of the broker that answers; "" if it does not report one."""
        status, _, data = self._send(self._address, "GET", f"{self._prefix}/admin/v2/brokers/version", None)
        text = data[:_LONGEST_VERSION].decode(errors="replace").strip().strip('"')
        return text if status == http.client.OK and text[:1].isdecimal() else ""

    def headers(self, path: str) -> Mapping[str, str]:
        """The headers of an answer whose body is of no interest; empty if there is no such thing."""
        connection = self._new(self._address)
        try:
            connection.request("GET", f"{self._prefix}/admin/v2/{path}", headers=dict(self._headers()))
            answer = connection.getresponse()
            if answer.status == http.client.TEMPORARY_REDIRECT:
                connection.close()
                location = urlsplit(answer.getheader("Location", ""))
                connection = self._new(_address(location.geturl()))
                connection.request("GET", location.path, headers=dict(self._headers()))
                answer = connection.getresponse()
            return dict(answer.getheaders()) if answer.status == http.client.OK else {}
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer, parsed. PulsarWebError if the service refuses, BrokerUnavailableError if it cannot answer."""
        payload = None if body is None else json.dumps(body).encode()
        address, target = self._address, f"{self._prefix}/admin/v2/{path}"
        for _ in range(_REDIRECTS):
            status, location, data = self._send(address, method, target, payload)
            if status not in (http.client.TEMPORARY_REDIRECT, http.client.PERMANENT_REDIRECT):
                return self._answer(f"{method} {path}", status, data)
            address = _address(location)
            parts = urlsplit(location)
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        raise BrokerUnavailableError(f"{self.where}: the brokers send {method} {path} to each other: try again later")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        if self._forks == FORKS.count:
            for _, connection in idle:
                connection.close()

    def _send(self, address: Address, method: str, target: str, payload: bytes | None) -> tuple[int, str, bytes]:
        headers = {"Content-Type": "application/json", "Accept": "*/*", **self._headers()}
        while True:  # ends: an idle connection is not returned when it fails
            connection, is_new = self._borrow(address)
            try:
                connection.request(method, target, payload, headers)
                answer = connection.getresponse()
                data = answer.read(_READ_BYTES)
            except TimeoutError as error:
                connection.close()
                raise self._unavailable(f"no answer within {self._timeout_s:g} s") from error
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if is_new or method != "GET":
                    raise self._unavailable(str(error) or type(error).__name__) from error
                continue
            self._give_back(address, connection)
            return answer.status, answer.getheader("Location", ""), data

    def _answer(self, what: str, status: int, data: bytes) -> Any:
        if 200 <= status < 300:
            try:
                return json.loads(data) if data.strip() else None
            except ValueError:
                raise self._not_pulsar() from None
        reason = _reason(data)
        if status == http.client.UNAUTHORIZED:
            raise BrokerUnavailableError(
                f"{self.where} refused the login: {reason}. Check the token, or user and password, of the URL",
                retriable=False,
            )
        if status == http.client.FORBIDDEN:
            raise NotAllowedError(f"{self.where} does not permit {what}: {reason}. Grant this role the permission")
        if status in _BUSY:
            raise BrokerUnavailableError(f"{self.where} cannot answer {what} now: {reason} (HTTP status {status})")
        if data.lstrip()[:1] == b"<":  # Pulsar's own reasons are JSON
            raise self._not_pulsar()
        raise PulsarWebError(self.where, what, status, reason)

    def _not_pulsar(self) -> StreamError:
        return StreamError(f"{self.where} does not answer as Pulsar does: is admin_url that of its web service?")

    def _unavailable(self, reason: str) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"{self.where} is unavailable: {reason}. Is Pulsar running, and is admin_url right?"
        )

    def _borrow(self, address: Address) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it is new."""
        with self._lock:
            if self._closed or self._forks != FORKS.count:
                raise ConnectionClosedError(f"the connection to {self.where} is closed: connect again")
            for index, (theirs, connection) in enumerate(self._idle):
                if theirs == address:
                    del self._idle[index]
                    return connection, False
        return self._new(address), True

    def _new(self, address: Address) -> http.client.HTTPConnection:
        scheme, host, port = address
        if scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _give_back(self, address: Address, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append((address, connection))
                return
        with contextlib.suppress(OSError):
            connection.close()


def _address(url: str) -> Address:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UrlError(f"{url!r} is not the URL of a web service, such as http://HOST:8080")
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


def _reason(data: bytes) -> str:
    try:
        found = json.loads(data)
        return (
            " ".join(str(found["reason"]).split()) if isinstance(found, dict) and found.get("reason") else "no reason"
        )
    except ValueError:
        return " ".join(data[:200].decode(errors="replace").split()) or "no reason"
