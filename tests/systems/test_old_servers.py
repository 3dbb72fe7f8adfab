"""Servers that are too old for what the adapters use: the error names the version and the remedy, and is final.

Real servers whose stated version a relay replaces, and scripted ones for handshakes that no server of today has.
RabbitMQ, Artemis and Pulsar are in the tests of their adapters, which run them anyway.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis

import penstock
from penstock.errors import BrokerUnavailableError, ConfigError, PenstockError
from penstock.queues import open_queue
from tests import real_parts
from tests.postgres import shared_postgres
from tests.redis_server import RedisServer
from tests.secured_kafka import make_certificates
from tests.systems.nats_server import NatsServer, version
from tests.systems.older_server import relay_that_replaces

KAFKA_0_10 = {0: (0, 2), 1: (0, 3), 2: (0, 1), 3: (0, 2), 18: (0, 0)}
"""API keys, and the oldest and the newest version that the broker has."""


@contextlib.contextmanager
def scripted(answer: Callable[[bytes], bytes], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server that answers what it reads first, and then says nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:  # ends: with the listener
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with (
                    contextlib.suppress(OSError),
                    connection if tls is None else tls.wrap_socket(connection, server_side=True) as connection,
                ):
                    connection.sendall(answer(connection.recv(1 << 16)))
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):  # ends: with the client
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def check_refused(connect: Callable[[], object], message: str) -> None:
    with pytest.raises(PenstockError, match=message) as caught:
        connect()
    assert isinstance(caught.value, BrokerUnavailableError)
    assert not caught.value.retriable


@pytest.mark.system("NATS JetStream")
def test_nats(tmp_path: Path) -> None:
    older = ("2.9." + "9" * 10)[: len(version())]
    with (
        NatsServer(tmp_path) as server,
        relay_that_replaces(server.port, f'"{version()}"'.encode(), f'"{older}"'.encode()) as address,
    ):
        check_refused(lambda: penstock.connect(f"nats://{address}"), rf"nats-server {older}, .*too old: 2\.10 or newer")


@pytest.mark.system("Redis Streams")
def test_redis(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        with redis.Redis(port=server.port) as client:
            version = str(client.info("server")["redis_version"])
        older = f"6{version[1:]}"
        said, instead = (f"redis_version:{each}".encode() for each in (version, older))
        with (
            relay_that_replaces(server.port, said, instead) as address,
            pytest.raises(ConfigError, match=rf"is version {re.escape(older)}: redis: URLs need Redis 7\.0 or newer"),
        ):
            penstock.connect(f"redis://{address}/0")


def _as_kafka_0_10(request: bytes) -> bytes:
    if not request:  # it was asked whether anybody is there
        return b""
    (key,) = struct.unpack_from(">h", request, 4)
    if key != 18:
        return b""  # it hangs up when it does not know a request
    ranges = b"".join(struct.pack(">hhh", key, *versions) for key, versions in KAFKA_0_10.items())
    body = request[8:12] + struct.pack(">hi", 0, len(KAFKA_0_10)) + ranges
    return struct.pack(">i", len(body)) + body


@pytest.mark.system("Apache Kafka")
def test_kafka_0_10() -> None:
    with scripted(_as_kafka_0_10) as address:
        check_refused(
            lambda: penstock.connect(f"kafka://{address}"),
            rf"broker at {address} is too old: .*Kafka 0\.11 or newer is needed: upgrade",
        )


@pytest.mark.system("Apache Kafka")
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SSL", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_kafka_0_10_behind_tls_or_a_login(protocol: str, mechanism: str, tmp_path: Path) -> None:
    tls = None
    settings = {"security.protocol": protocol}
    if protocol != "SSL":
        settings |= {"sasl.mechanism": mechanism, "sasl.username": "me", "sasl.password": "secret"}
    if protocol != "SASL_PLAINTEXT":
        make_certificates(tmp_path, tmp_path / "ca.pem", tmp_path / "server.pem")
        settings["ssl.ca.location"] = str(tmp_path / "ca.pem")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(tmp_path / "server.pem")
    with scripted(_as_kafka_0_10, tls) as address:
        check_refused(
            lambda: penstock.connect(f"kafka://{address}", librdkafka=settings),
            rf"broker at {address} is too old: .*Kafka 0\.11 or newer is needed: upgrade",
        )


@pytest.mark.system("PostgreSQL")
def test_postgresql_12() -> None:
    url = shared_postgres().fresh_database()
    with psycopg.connect(url) as connection:
        version, port = str(connection.info.parameter_status("server_version")), connection.info.port
        name, user = connection.info.dbname, connection.info.user
    said, instead = (b"server_version\0" + each.encode() for each in (version, f"12{version[2:]}"))
    with relay_that_replaces(port, said, instead) as address:
        tables = f"postgresql://{user}@{address}/{name}?sslmode=disable"
        for each in (tables, f"{tables}&id_column=id"):
            with pytest.raises(ConfigError, match=r"PostgreSQL 12\S* .*too old, 13 or newer is needed: upgrade"):
                penstock.connect(each)


@pytest.mark.system("Apache Kafka")
def test_kafka_0_9_which_hangs_up_on_requests_for_its_versions() -> None:
    with scripted(lambda request: b"") as address:
        check_refused(lambda: penstock.connect(f"kafka://{address}"), r"or is older than Kafka 0\.10")


@pytest.mark.system("ActiveMQ")
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"CONNECTED\nsession:1\n\n\0", r"is too old: it speaks STOMP 1\.0, and 1\.2 is needed: upgrade the broker"),
        (b"CONNECTED\nversion:1.1\n\n\0", r"is too old: it speaks STOMP 1\.1, and 1\.2 is needed"),
        (
            b"ERROR\nversion:1.0,1.1\nmessage:Unsupported version\n\nSupported protocol versions are 1.0 1.1\0",
            r"does not speak STOMP 1\.2: Unsupported version\. Upgrade the broker",
        ),
    ],
)
def test_stomp(answer: bytes, message: str) -> None:
    with scripted(lambda request: answer) as address:
        check_refused(lambda: open_queue(f"stomp://{address}/q?connect_timeout_s=5"), message)


@pytest.mark.system("AMQP 1.0, RabbitMQ 3")
def test_a_broker_that_speaks_amqp_0_9_1_only() -> None:
    real_parts.proton()
    with scripted(lambda request: b"AMQP\0\0\x09\x01") as address:
        check_refused(
            lambda: open_queue(f"amqp1://{address}/q?connect_timeout_s=5"), r"does not answer as an AMQP 1\.0 broker"
        )
