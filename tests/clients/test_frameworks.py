"""Frameworks that know nothing of Penstock: their own hello worlds run, as programs of their own, on the broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import TopicPartition

from tests import real_parts
from tests.clients import confluent
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Server, ServerProcess

APPS: Final = Path(__file__).parent / "apps"
START_S: Final = 60.0


@contextmanager
def running(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[ServerProcess]:
    """The program, while the test looks at what it does; it must then end when it is told to."""
    process = ServerProcess(command, folder / "output.txt", environment)
    try:
        yield process
        assert process.is_alive(), process.last_words()
    finally:
        process.terminate()


def answers(server: Server, sink: str, process: ServerProcess, count: int) -> list[Any]:
    """What the program has written, once there is as much as expected."""

    def found() -> list[bytes | None]:
        assert process.is_alive(), process.last_words()
        values = confluent.values_of(
            confluent.read_to_end(server, sink, settings={"isolation.level": "read_committed"})
        )
        return values if len(values) >= count else []

    return [value and value.decode() for value in eventually(f"{count} answers", found, START_S)]


@pytest.mark.parametrize("client", ["confluent", "kafka"])
def test_faststream_answers_what_it_is_sent(server: Server, tmp_path: Path, client: str) -> None:
    source, sink, group = confluent.create_topic(server), confluent.create_topic(server), fresh("group")
    confluent.produce(server, source, [json.dumps({"user": "John", "user_id": number}).encode() for number in range(3)])
    names = {"BOOTSTRAP": server.bootstrap, "SOURCE": source, "SINK": sink, "GROUP": group}
    command = [sys.executable, "-m", "faststream", "run", f"faststream_{client}:app", "--app-dir", str(APPS)]
    with running(command, tmp_path, names) as process:
        expected = [f"User: {number} - John registered" for number in range(3)]
        assert answers(server, sink, process, 3) == expected
    # It has left in good order: what it has read is committed.
    with confluent.consumer(server, group) as reader:
        (committed,) = reader.committed([TopicPartition(source, 0)], timeout=confluent.TIMEOUT_S)
        assert committed.offset == 3


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_quix_streams_counts_what_it_is_sent(server: Server, tmp_path: Path, guarantee: str) -> None:
    python = real_parts.quixstreams_python()
    source, sink, group = confluent.create_topic(server), confluent.create_topic(server), fresh("group")
    sender = confluent.producer(server)
    for word in ("hello", "world", "again"):
        sender.produce(source, json.dumps({"text": word}).encode(), b"one key")
    assert sender.flush(confluent.TIMEOUT_S) == 0
    names = {"BOOTSTRAP": server.bootstrap, "SOURCE": source, "SINK": sink, "GROUP": group}
    settings = {"STATE": str(tmp_path / "state"), "GUARANTEE": guarantee}
    command = [str(python), str(APPS / "quixstreams_hello.py")]
    with running(command, tmp_path, names | settings) as process:
        told = [json.loads(answer) for answer in answers(server, sink, process, 3)]
        assert told == [
            {"text": "HELLO", "total": 1},
            {"text": "WORLD", "total": 2},
            {"text": "AGAIN", "total": 3},
        ]
    changelogs = [name for name in confluent.admin(server).list_topics(timeout=20).topics if group in name]
    assert changelogs == [f"changelog__{group}--{source}--default"]
