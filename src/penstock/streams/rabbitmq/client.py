"""Connections to the nodes of RabbitMQ: which one serves a stream, and what it refuses in our words."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import re
import secrets
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    NotAllowedError,
    PenstockError,
    StreamError,
)
from penstock.streams.adapting.servers import tls_context
from penstock.streams.backend_url import BackendUrl, check_tls
from penstock.streams.forks import FORKS
from penstock.streams.rabbitmq.connection import Login, StreamConnection
from penstock.streams.rabbitmq.protocol import Code, Command, Reply, RequestRefusedError
from penstock.streams.rabbitmq.settings import RabbitMqSettings
from penstock.streams.url import Host

TLS_SCHEME: Final = "rabbitmq-stream+tls"
OLDEST: Final = (3, 11)
_BALANCER_TRIES: Final = 20
"""How often a load balancer is asked for a connection to a certain node."""
_LARGEST_LIST_BYTES: Final = 256 << 20
_MANAGEMENT_PORTS: Final = {False: ("http", 15672), True: ("https", 15671)}

Address = tuple[str, str]
"""Host and port that a node advertises."""


class StreamClient:
    """The connections to one server or cluster. Any thread may use it. A connection that breaks is replaced by the next
    call that needs one."""

    def __init__(self, url: BackendUrl, settings: RabbitMqSettings) -> None:
        self._url = url
        self._settings = settings
        self.where = f"RabbitMQ at {','.join(map(str, url.hosts))}"
        self._login = Login(
            user=url.user or "guest",
            password=self._password(),
            vhost=url.path or "/",
            mechanism="EXTERNAL" if settings.login == "certificate" else "PLAIN",
            name=settings.client_id,
            timeout_s=settings.timeout_s,
            heartbeat_s=settings.heartbeat_s,
            tls=_tls(url, settings),
        )
        self._has_connected = False
        self._connecting = threading.Lock()
        self._connections: list[StreamConnection] = []
        self._closed = False
        self._forks = FORKS.count

    def _password(self) -> str:
        return self._settings.password_of(self._url) or ("guest" if self._url.user is None else "")

    def connection(self) -> StreamConnection:
        """A connection to any node."""
        with self._connecting:
            self._check_open()
            return self._usable() or self._connect(self._url.hosts)

    def connection_for(self, stream: str, *, at_leader: bool) -> StreamConnection:
        """A connection to the leader of a stream, or to any node that has it. Raises UnknownTopicError.

        The leader takes messages, and knows the end of the stream: what others have may be older.
        """
        leader, replicas = self.connection().leader(stream)
        wanted = [leader] if at_leader else [leader, *replicas]
        with self._connecting:
            self._check_open()
            found = self._usable(wanted)
            if found is not None:
                return found
            if self._settings.load_balancer or self._known(wanted):
                return self._connect_through(wanted)
            name, port = random.choice(wanted)
            try:
                return self._connect([Host(name, int(port))])
            except BrokerUnavailableError as error:
                raise BrokerUnavailableError(
                    f"{error} The node of stream {stream!r} tells this address; if it cannot be reached from here, set "
                    "load_balancer=true",
                    retriable=error.retriable,
                ) from error

    def request(self, command: Command, what: str, *parts: bytes) -> Reply:
        """An answer of any node. RequestRefusedError if it refuses."""
        return self.connection().request(command, what, *parts)

    def refusal(self, error: RequestRefusedError) -> PenstockError:
        """The error to raise for a refusal that has no other meaning to the caller."""
        if error.code == Code.ACCESS_REFUSED:
            return NotAllowedError(f"{error}. Change the permissions of this user")
        if error.code in (Code.STREAM_NOT_AVAILABLE, Code.INTERNAL_ERROR, Code.PUBLISHER_DOES_NOT_EXIST):
            return BrokerUnavailableError(str(error))
        return error

    def version(self) -> tuple[int, ...]:
        return _version(self.connection())

    def managed(self, what: str) -> Any:
        """The answer of the management API about `what`, such as `queues`, in the virtual host."""
        settings, url = self._settings, self._url
        scheme, port = _MANAGEMENT_PORTS[url.scheme == TLS_SCHEME]
        base = settings.management or f"{scheme}://{Host(url.host.name, port)}"
        query = "columns=name,type,arguments,effective_policy_definition"
        request = urllib.request.Request(f"{base.rstrip('/')}/api/{what}/{quote(self._login.vhost, safe='')}?{query}")
        secret = base64.b64encode(f"{self._login.user}:{self._password()}".encode()).decode()
        request.add_header("Authorization", f"Basic {secret}")
        shown = f"the management API of RabbitMQ at {base}"
        try:
            with urllib.request.urlopen(request, timeout=settings.timeout_s, context=self._login.tls) as answer:
                return json.loads(answer.read(_LARGEST_LIST_BYTES))
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise NotAllowedError(
                    f"{shown} refused the login, with status {error.code}: give this user the tag `management`"
                ) from error
            raise StreamError(f"{shown} answered with status {error.code}: is the URL right?") from error
        except (OSError, ValueError) as error:
            raise BrokerUnavailableError(
                f"{shown} is unavailable: {getattr(error, 'reason', error)}. Only it can list the topics: enable the "
                "plugin rabbitmq_management, or say where it is with the setting management=http://HOST:PORT"
            ) from error

    def close(self) -> None:
        with self._connecting:
            self._closed = True
            connections, self._connections = self._connections, []
        if self._forks == FORKS.count:
            for connection in connections:
                connection.close()

    def _check_open(self) -> None:
        if self._closed or self._forks != FORKS.count:
            raise ConnectionClosedError(f"the connection to {self.where} is closed: connect again")

    def _usable(self, wanted: Sequence[Address] | None = None) -> StreamConnection | None:
        """A connection that is open already, and has room. The caller holds `_connecting`."""
        self._connections = [each for each in self._connections if each.is_usable]
        for each in self._connections:
            if each.has_room and (wanted is None or each.address in wanted):
                return each
        return None

    def _known(self, wanted: Sequence[Address]) -> bool:
        """Whether an address of the URL leads to one of these nodes, as that of the only node does."""
        return any(each.address in wanted for each in self._connections)

    def _connect_through(self, wanted: Sequence[Address]) -> StreamConnection:
        """Connect to the addresses of the URL until one of these nodes answers."""
        for _ in range(_BALANCER_TRIES):
            connection = self._connect(self._url.hosts)
            if connection.address in wanted:
                return connection
            self._connections.remove(connection)
            connection.close()
        nodes = " or ".join(":".join(each) for each in wanted)
        raise BrokerUnavailableError(
            f"{self.where} led to other nodes than {nodes} in {_BALANCER_TRIES} attempts: check the load balancer"
        )

    def _connect(self, hosts: Sequence[Host]) -> StreamConnection:
        """A new connection to one of these. The caller holds `_connecting`."""
        problem: BrokerUnavailableError | None = None
        try:
            password = self._password()
        except ConfigError as error:  # it cannot be read at the moment
            raise BrokerUnavailableError(str(error)) from error
        for host in random.sample(hosts, len(hosts)):
            try:
                connection = StreamConnection(host, dataclasses.replace(self._login, password=password))
            except BrokerUnavailableError as error:
                if error.retriable:
                    problem = error
                elif self._has_connected and self._settings.password_may_change:  # it may be replaced meanwhile
                    problem = BrokerUnavailableError(str(error))
                else:
                    raise
                continue
            if _version(connection) < OLDEST:
                connection.close()
                raise BrokerUnavailableError(
                    f"{connection.where} has version {connection.server.get('version')}, which is too old: streams "
                    f"need RabbitMQ {'.'.join(map(str, OLDEST))} or newer",
                    retriable=False,
                )
            self._connections.append(connection)
            self._has_connected = True
            return connection
        assert problem is not None
        raise problem


def new_name() -> str:
    """A name that nobody else uses."""
    return secrets.token_hex(8)


def _version(connection: StreamConnection) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", connection.server.get("version", "0"))[:3]))


def _tls(url: BackendUrl, settings: RabbitMqSettings) -> ssl.SSLContext | None:
    check_tls(url, settings, TLS_SCHEME, "ca_file", "cert_file", "key_file", "login")
    if url.scheme != TLS_SCHEME:
        return None
    return tls_context(url.shown, settings.ca_file, settings.cert_file, settings.key_file)
