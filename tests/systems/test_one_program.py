"""One program, `examples/any_system.py`, runs unchanged on six systems and more: only its URL differs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

PROGRAM: Final = Path(__file__).parents[2] / "examples" / "any_system.py"


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


SYSTEMS: Final = (embedded_log, apache_kafka, redis, nats, rabbitmq_stream, pulsar, postgres, sqlite, files, kinesis)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_program_runs_on(system: Callable[[Path], Iterator[str]], tmp_path: Path) -> None:
    with system(tmp_path) as url:  # type: ignore[attr-defined]
        done = subprocess.run(
            [sys.executable, str(PROGRAM), url],
            cwd=tmp_path,
            env={**os.environ, "PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
            errors="replace",  # librdkafka logs whatever bytes it has in hand
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "500 of 500 views of this run were counted" in done.stdout
    assert done.stdout.count(" 100\n") == 5, "each page was seen 100 times"
