"""Every stream system, started by itself on loopback, or shared: a context manager that gives its URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.moto_server import CREDENTIALS, REGION
from tests.postgres import shared_postgres
from tests.redis_server import shared_url
from tests.servers import ApacheKafka
from tests.streams.embedded import stop_broker
from tests.systems.kinesis_server import KinesisServer
from tests.systems.nats_server import NatsServer
from tests.systems.pulsar_server import PulsarServer
from tests.systems.rabbitmq_server import RabbitMq


@contextmanager
def embedded_log(folder: Path) -> Iterator[str]:
    yield f"log:{folder / 'data'}"
    stop_broker(folder / "data")


@contextmanager
def apache_kafka(folder: Path) -> Iterator[str]:
    with ApacheKafka(folder / "kafka") as server:
        yield f"kafka://{server.bootstrap}"


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    yield f"{shared_url()}?prefix={folder.name}:"


@contextmanager
def nats(folder: Path) -> Iterator[str]:
    with NatsServer(folder / "nats") as server:
        yield server.url


@contextmanager
def rabbitmq_stream(folder: Path) -> Iterator[str]:
    with RabbitMq(folder / "rabbitmq", 4) as server:
        yield f"rabbitmq-stream://127.0.0.1:{server.stream_port}"


@contextmanager
def managed_rabbitmq_stream(folder: Path) -> Iterator[str]:
    """With the management API, which knows the topics: the stream protocol does not tell them."""
    settings = "management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management_port}\n"
    with RabbitMq(folder / "rabbitmq", 4, plugins=("rabbitmq_management",), settings=settings) as server:
        management = f"http%3A//127.0.0.1%3A{server.management_port}"
        yield f"rabbitmq-stream://127.0.0.1:{server.stream_port}?management={management}"


@contextmanager
def pulsar(folder: Path) -> Iterator[str]:
    with PulsarServer(folder / "pulsar") as server:
        yield server.url


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    yield shared_postgres().fresh_database()


@contextmanager
def sqlite(folder: Path) -> Iterator[str]:
    yield f"sqlite:{folder / 'events.db'}"


@contextmanager
def files(folder: Path) -> Iterator[str]:
    yield f"file:{folder / 'events'}"


@contextmanager
def kinesis(folder: Path) -> Iterator[str]:
    with KinesisServer(folder / "kinesis", persist=False) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield f"kinesis://{REGION}?endpoint_url={server.endpoint}&read_interval_s=0.03"


SYSTEMS: Final[tuple[Callable[[Path], AbstractContextManager[str]], ...]] = (
    embedded_log,
    apache_kafka,
    redis,
    nats,
    rabbitmq_stream,
    pulsar,
    postgres,
    sqlite,
    files,
    kinesis,
)
