"""Connections to a Redis server: commands in pipelines, and its errors in our words. Any thread may use them."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    NotAllowedError,
    PenstockError,
    StreamError,
)
from penstock.streams.adapting.servers import import_extra
from penstock.streams.backend_url import BackendUrl, check_tls
from penstock.streams.forks import FORKS
from penstock.streams.redis.settings import TLS_SCHEME, TLS_SETTINGS, RedisSettings

logger = logging.getLogger(__name__)

BLOCK_S: Final = 1.0
"""The longest time for which the server is asked to hold an answer back."""
PASSWORD_VARIABLE: Final = "REDISCLI_AUTH"
"""Where `redis-cli` finds the password, too."""
_IDLE_CONNECTIONS: Final = 16

Command = Sequence[bytes | str | int]


def import_redis(what: str = "Redis") -> Any:
    return import_extra("redis", what, "redis")


def check_persistence(where: str, what: str, memory: Mapping[str, Any], persistence: Mapping[str, Any]) -> None:
    """Refuse a Redis that may evict `what`, by its INFO; warn about one that loses it when it restarts."""
    policy = str(memory.get("maxmemory_policy", ""))
    if int(memory.get("maxmemory", 0)) and policy.startswith("allkeys"):
        raise ConfigError(
            f"{where} may evict {what} when its memory is full (maxmemory-policy {policy}). "
            "Use a Redis with noeviction or one of the volatile policies"
        )
    if persistence and not int(persistence.get("aof_enabled", 0)):
        logger.warning(
            "%s has no append-only file: %s since its last snapshot are lost when it "
            "restarts. Set appendonly yes, and appendfsync always to survive a power failure",
            where,
            what,
        )


class RedisClient:
    """Sends commands in pipelines over connections of its own."""

    def __init__(self, url: BackendUrl, settings: RedisSettings) -> None:
        check_tls(url, settings, TLS_SCHEME, *TLS_SETTINGS)
        redis = import_redis("Redis Streams")
        self._errors = redis.exceptions
        self._timeout_s = settings.timeout_s
        self._options: dict[str, Any] = {
            "host": url.host.name,
            "port": url.host.port,
            "db": _database(url),
            "username": url.user,
            "password": password_of(url),
            "client_name": "penstock",
            "protocol": 2,
            "socket_timeout": settings.timeout_s + BLOCK_S,
            "socket_connect_timeout": settings.timeout_s,
            "socket_keepalive": True,
        }
        self._make: Any = redis.Connection
        if url.scheme == TLS_SCHEME:
            self._make = redis.SSLConnection
            self._options |= settings.tls
        self.where = f"Redis at {url.host}/{self._options['db']}"
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._closed = False
        self._forks = FORKS.count

    def call(self, *commands: Command) -> list[Any]:
        """Send the commands at once, and give their answers; an error among them is raised.

        A connection that was closed while it was idle is replaced once. Only for commands that may be sent again.
        """
        answers = self.pipeline(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise self.translated(answer)
        return answers

    def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Like `call`, but errors of single commands are among the answers."""
        while True:  # ends: an idle connection is not returned when it fails
            connection, is_new = self._borrow()
            try:
                answers = self._talk(connection, commands)
            except self._errors.TimeoutError as error:
                raise self.translated(error) from error
            except (self._errors.RedisError, OSError) as error:
                if is_new or isinstance(error, self._errors.AuthenticationError):
                    raise self.translated(error) from error
                continue
            self._give_back(connection)
            return answers

    def info(self, section: str) -> Mapping[str, str]:
        """INFO, parsed; empty where it is not permitted."""
        [answer] = self.pipeline([("INFO", section)])
        if isinstance(answer, self._errors.NoPermissionError):
            logger.warning("%s does not permit INFO: its version and persistence cannot be checked", self.where)
            return {}
        if isinstance(answer, Exception):
            raise self.translated(answer)
        lines = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
        return {name: value for name, colon, value in lines if colon}

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        if self._forks == FORKS.count:
            for connection in idle:
                connection.disconnect()

    def translated(self, error: Exception) -> PenstockError:
        """The error to raise for an error of redis-py."""
        named = self._errors
        text = str(error) or type(error).__name__
        if isinstance(error, named.AuthenticationError) or text.startswith(("NOAUTH", "WRONGPASS")):
            return BrokerUnavailableError(
                f"{self.where} refused the login: {text}. Check user and password in the URL, or {PASSWORD_VARIABLE}",
                retriable=False,
            )
        if isinstance(error, named.NoPermissionError):
            return NotAllowedError(f"{self.where}: {text}. Change the ACL of this user")
        if isinstance(error, named.ReadOnlyError):
            return BrokerUnavailableError(f"{self.where} is a replica, perhaps since a failover: {text}")
        if isinstance(error, named.OutOfMemoryError):
            return BrokerUnavailableError(f"{self.where} is full: {text} Raise maxmemory, or set max_length")
        if text.startswith(("MISCONF", "BUSY", "LOADING", "TRYAGAIN", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN")):
            return BrokerUnavailableError(f"{self.where} cannot do this now: {text}")
        if text.startswith(("MOVED", "ASK ")):
            return BrokerUnavailableError(
                f"{self.where} is a node of a Redis cluster, and redis: URLs need a single server or primary: {text}",
                retriable=False,
            )
        if "WRONGTYPE" in text:
            return StreamError(f"{self.where}: a key of this topic holds something else than a stream: {text}")
        if "unknown command" in text.lower() or "syntax error" in text.lower():
            return StreamError(f"{self.where} is too old, or has commands disabled; 7.0 or newer is required: {text}")
        if isinstance(error, named.InvalidResponse) or text.startswith("Protocol error"):
            return BrokerUnavailableError(
                f"{self.where} does not answer as Redis does: {text}. Is the port right?", retriable=False
            )
        if isinstance(error, named.ConnectionError | named.TimeoutError | OSError):
            return BrokerUnavailableError(f"{self.where} is unavailable: {text}. Is it running, and is the URL right?")
        return StreamError(f"{self.where}: {text}")

    def _talk(self, connection: Any, commands: Sequence[Command]) -> list[Any]:
        """The answers; the connection is closed if it cannot be used any more."""
        connection.send_packed_command(connection.pack_commands(commands))
        answers: list[Any] = []
        for _ in commands:
            try:
                answers.append(connection.read_response(disconnect_on_error=True))
            except self._errors.ConnectionError:
                connection.disconnect()
                raise
            except self._errors.ResponseError as error:
                answers.append(error)
        return answers

    def _borrow(self) -> tuple[Any, bool]:
        """A connection, and whether it is new."""
        with self._lock:
            if self._closed or self._forks != FORKS.count:
                raise ConnectionClosedError(f"the connection to {self.where} is closed: connect again")
            if self._idle:
                return self._idle.pop(), False
        try:
            return self._make(**self._options), True
        except (self._errors.RedisError, OSError) as error:
            raise self.translated(error) from error

    def _give_back(self, connection: Any) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        with contextlib.suppress(OSError):
            connection.disconnect()


def password_of(url: BackendUrl) -> str | None:
    return url.password or os.environ.get(PASSWORD_VARIABLE) or None


def _database(url: BackendUrl) -> int:
    path = url.path.strip("/")
    if path and not (path.isdecimal() and path.isascii()):
        raise ConfigError(f"{url.shown}: {path!r} is not the number of a Redis database")
    return int(path or 0)
