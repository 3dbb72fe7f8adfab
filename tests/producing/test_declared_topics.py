"""A Topic with a number of partitions is created with that number by whoever uses it first."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

import penstock
from penstock.errors import DeliveryError
from tests.clients.names import fresh
from tests.servers import Penstock

Send = Callable[[str, penstock.Topic[str], Path], None]


@pytest.fixture(scope="module")
def unwilling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a broker that creates no topic unless it is told to, as many Kafkas are set up."""
    folder = tmp_path_factory.mktemp("unwilling")
    with Penstock(folder, "--config", "auto.create.topics.enable=false") as running:
        yield f"kafka://{running.bootstrap}"


def by_connection(url: str, topic: penstock.Topic[str], folder: Path) -> None:
    with penstock.connect(url) as stream:
        stream.send(topic, "a").result(30)


def by_connection_with_spool(url: str, topic: penstock.Topic[str], folder: Path) -> None:
    with penstock.connect(url, spool=folder / "spool") as stream:
        stream.send(topic, "a")


def by_producer(url: str, topic: penstock.Topic[str], folder: Path) -> None:
    with penstock.Producer(url) as producer:
        producer.send(topic, "a").result(30)


def by_spooled_producer(url: str, topic: penstock.Topic[str], folder: Path) -> None:
    with penstock.Producer(url, buffer=f"spool:{folder / 'spool'}") as producer:
        producer.send(topic, "a")


def by_transaction(url: str, topic: penstock.Topic[str], folder: Path) -> None:
    with penstock.Producer(url, transactional_id=fresh()) as producer, producer.transaction():
        producer.send(topic, "a")


def by_result(url: str, topic: penstock.Topic[str], folder: Path) -> None:
    _handle(url, topic, folder)


def by_context(url: str, topic: penstock.Topic[str], folder: Path) -> None:
    source = _source(url)
    app = penstock.App(url, group=fresh(), checkpoints=f"sqlite:{folder / 'checkpoints.db'}")

    @app.handle(source, end="latest", session_timeout_s=6)
    def pass_on(value: str, ctx: penstock.Context) -> None:
        ctx.send(topic, value)

    app.run()


def by_transaction_of_an_app(url: str, topic: penstock.Topic[str], folder: Path) -> None:
    _handle(url, topic, folder, guarantee="exactly-once")


def _handle(
    url: str,
    topic: penstock.Topic[str],
    folder: Path,
    guarantee: Literal["at-least-once", "exactly-once"] = "at-least-once",
) -> None:
    app = penstock.App(url, group=fresh())

    @app.handle(_source(url), to=topic, end="latest", guarantee=guarantee, session_timeout_s=6)
    def pass_on(value: str) -> str:
        return value

    app.run()


def _source(url: str) -> penstock.Topic[str]:
    source = penstock.Topic(fresh(), str, partitions=1)
    with penstock.connect(url) as stream:
        stream.send(source, "a").result(30)
    return source


@pytest.mark.parametrize(
    "send",
    [
        by_connection,
        by_connection_with_spool,
        by_producer,
        by_spooled_producer,
        by_transaction,
        by_result,
        by_context,
        by_transaction_of_an_app,
    ],
)
@pytest.mark.parametrize("broker", ["creates topics", "creates none"])
def test_a_declared_topic_gets_its_partitions(
    broker: str, send: Send, url: str, unwilling: str, tmp_path: Path
) -> None:
    chosen = url if broker == "creates topics" else unwilling
    topic = penstock.Topic(fresh(), str, partitions=4)
    send(chosen, topic, tmp_path)
    with penstock.connect(chosen) as stream:
        assert stream.open_topic(topic.name).partitions() == (0, 1, 2, 3)
        assert [record.value for record in stream.read(topic.name)] == [b"a"]


def test_a_declared_topic_in_memory_gets_its_partitions() -> None:
    topic = penstock.Topic(fresh(), str, partitions=4)
    with penstock.connect(f"memory:{fresh()}") as stream:
        stream.send(topic, "a")
        assert len(stream.open_topic(topic.name).partitions()) == 4


def test_a_spool_left_by_a_killed_process_creates_the_topic_as_it_was_declared(url: str, tmp_path: Path) -> None:
    """The broker was away when the record was sent; whoever opens the spool next knows nothing of the Topic."""
    name, spool = fresh(), tmp_path / "spool"
    program = (
        "import os, sys, penstock\n"
        "producer = penstock.Producer('kafka://127.0.0.1:1', buffer='spool:' + sys.argv[1])\n"
        "producer.send(penstock.Topic(sys.argv[2], str, partitions=4), 'a')\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, os.fspath(spool), name], check=True, timeout=60)
    with penstock.Producer(url, buffer=f"spool:{spool}") as producer:
        producer.flush(30)
    with penstock.connect(url) as stream:
        assert len(stream.open_topic(name).partitions()) == 4


def test_a_topic_that_is_there_stays_as_it_is_and_that_is_told_once(
    url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    declared = penstock.Topic(topic, str, partitions=4)
    with penstock.connect(url) as stream, caplog.at_level(logging.WARNING):
        for _ in range(3):
            stream.send(declared, "a").result(30)
        assert stream.open_topic(topic).partitions() == (0,)
    [told] = [record.getMessage() for record in caplog.records if record.name == "penstock.streams.declared"]
    assert "partitions=4 and has 1" in told
    assert f"penstock topics alter {topic} --partitions 4" in told


def test_a_topic_that_may_not_be_created_fails_the_send_and_says_why(unwilling: str) -> None:
    with penstock.connect(unwilling) as stream, pytest.raises(DeliveryError, match="could not be created"):
        stream.send(penstock.Topic(fresh(), str, partitions=10_000_000), "a")
    with penstock.Producer(unwilling) as producer, pytest.raises(DeliveryError, match="could not be created"):
        producer.send(penstock.Topic(fresh(), str, partitions=10_000_000), "a").result(30)
