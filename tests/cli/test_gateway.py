"""`penstock gateway`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import penstock
from tests.cli.running import Command
from tests.consuming.eventually import wait_until
from tests.systems.nats_server import NatsServer

MAPPING = """
import json

def shout(record):
    return record.value.decode().upper() if record.value != b"3" else None

def fails(record):
    raise ValueError("this record cannot be mapped")
"""


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with ten orders, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mapping.py").write_text(MAPPING)
    url = f"sqlite:{tmp_path}/a.db"
    with penstock.connect(url) as stream:
        stream.create_topic("orders", 1)
        for number in range(10):
            stream.send("orders", str(number) if number != 5 else "five")
        stream.flush(20)
    return url


def carried(url: str, topic: str = "orders") -> list[str]:
    with penstock.connect(url) as stream:
        return [(record.value or b"").decode() for record in stream.read(topic)]


def test_once_carries_what_is_there_and_says_what_it_did(run: Command, database: str, tmp_path: Path) -> None:
    sink = f"sqlite:{tmp_path}/b.db"
    done = run.well("gateway", f"{database}#orders", sink, "--once", "--map", "mapping:shout")
    assert carried(sink) == ["0", "1", "2", "4", "FIVE", "6", "7", "8", "9"]
    assert done.err.splitlines() == [
        f"{database}#orders to {sink}#orders, at-least-once",
        "delivered 10, waiting 0, retried 0, dead letters 0",
    ]


def test_what_cannot_be_mapped_is_a_dead_letter_and_the_rest_goes_on(
    run: Command, database: str, tmp_path: Path
) -> None:
    sink, letters = f"sqlite:{tmp_path}/b.db", f"sqlite:{tmp_path}/letters.db"
    arguments = ("--once", "--quiet", "--map", "mapping:fails", "--dead-letters", letters)
    run.well("gateway", f"{database}#orders", sink, *arguments)
    listed = run.well("dlq", "list", letters, "--json").json
    assert len(listed) == 10, listed


def test_a_record_is_tried_as_often_as_retry_says(run: Command, database: str, tmp_path: Path) -> None:
    sink, letters = f"sqlite:{tmp_path}/b.db", f"sqlite:{tmp_path}/letters.db"
    arguments = ("--once", "--quiet", "--map", "mapping:fails", "--dead-letters", letters, "--retry", "1")
    run.well("gateway", f"{database}#orders", sink, *arguments)
    assert {letter["attempts"] for letter in run.well("dlq", "list", letters, "--json").json} == {1}


def test_a_stream_without_a_place_for_checkpoints_is_carried_with_a_store_that_is_named(
    run: Command, tmp_path: Path
) -> None:
    sink = f"sqlite:{tmp_path}/b.db"
    with NatsServer(tmp_path / "nats") as server:
        with penstock.connect(server.url) as stream:
            for number in range(3):
                stream.send("orders", str(number))
            stream.flush(20)
        refused = run("gateway", f"{server.url}#orders", sink, "--once")
        assert refused.code != 0
        assert "has no place for checkpoints" in refused.err
        assert "--checkpoints" in refused.err
        arguments = ("--once", "--quiet", "--checkpoints", f"sqlite:{tmp_path}/checkpoints.db")
        run.well("gateway", f"{server.url}#orders", sink, *arguments)
        assert carried(sink) == ["0", "1", "2"]
        run.well("gateway", f"{server.url}#orders", sink, *arguments)
    assert carried(sink) == ["0", "1", "2"], "a second run carried records again"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing:x#t", "memory:a#t"), "is not the URL of a stream, queue or channel; installed: streams"),
        (("memory:a#t", "memory:b#t", "--map", "shout"), "is not MODULE:FUNCTION"),
        (("memory:a#t", "memory:b#t", "--map", "missing:shout"), "missing cannot be imported"),
        (("memory:a#t", "memory:b#t", "--map", "mapping:whisper"), "mapping has no function 'whisper'"),
        (("memory:jobs", "memory:b#t", "--once"), "is not a topic, so it has no end"),
        (("kafka://127.0.0.1:1", "memory:b#t"), "has no topic: name it"),
        (("memory:jobs", "memory:b#t", "--checkpoints", "sqlite:./a.db"), "a queue, which keeps its own progress"),
        (("memory:a#t", "memory:b#t", "--retry", "0"), "--retry"),
    ],
)
@pytest.mark.usefixtures("database")
def test_wrong_arguments_are_told_in_one_line(run: Command, arguments: tuple[str, ...], message: str) -> None:
    done = run("gateway", *arguments)
    assert done.code != 0
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_signal_ends_it_after_what_is_in_flight(run: Command, database: str, tmp_path: Path) -> None:
    sink = f"sqlite:{tmp_path}/b.db"
    with penstock.connect(sink) as stream:
        stream.create_topic("orders", 1)
    process = run.start("gateway", f"{database}#orders", sink)
    try:
        wait_until(lambda: len(carried(sink)) == 10, 60.0)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert said.splitlines()[-1] == "delivered 10, waiting 0, retried 0, dead letters 0"
