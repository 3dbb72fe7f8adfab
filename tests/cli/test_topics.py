"""`penstock topics`."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

import penstock
from tests.cli.running import COMMAND, Command
from tests.clients.names import fresh
from tests.servers import Penstock

TIMEOUT_S = 60.0


def test_topics_are_listed_with_what_is_in_them(run: Command, numbers: str) -> None:
    (row,) = [row for row in run.well("topics").table if row[0] == numbers]
    assert row[1:3] == ["1", "10"]
    (entry,) = [each for each in run.well("topics", "list", "--json").json if each["topic"] == numbers]
    assert entry.pop("size_bytes") > 100
    assert entry == {"topic": numbers, "partitions": 1, "records": 10, "internal": False}


def test_the_brokers_own_topics_are_listed_when_asked_for(run: Command) -> None:
    internal = {each["topic"] for each in run.well("topics", "--all", "--json").json if each["internal"]}
    assert internal == {"__consumer_offsets", "__transaction_state"}
    assert not [each for each in run.well("topics", "--json").json if each["internal"]]


def test_no_topics_yet_says_how_to_make_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Penstock(tmp_path_factory.mktemp("empty")) as empty:
        run = Command(f"kafka://{empty.bootstrap}")
        done = run.well("topics")
        assert done.out == ""
        assert "penstock topics create NAME" in done.err
        assert run.well("topics", "--json").json == []


def test_a_topic_is_created_described_altered_and_deleted(run: Command) -> None:
    name = fresh()
    run.well(
        "topics",
        "create",
        name,
        "--partitions",
        "3",
        "--config",
        "retention.ms=1000",
        "--config",
        "segment.bytes=2000000",
    )
    described = run.well("topics", "describe", name, "--json").json
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert described["config"] == {"retention.ms": "1000", "segment.bytes": "2000000"}

    run.well(
        "topics", "alter", name, "--config", "cleanup.policy=compact", "--reset", "retention.ms", "--partitions", "5"
    )
    described = run.well("topics", "describe", name, "--json").json
    assert len(described["partitions"]) == 5
    assert described["config"] == {"segment.bytes": "2000000", "cleanup.policy": "compact"}
    assert "cleanup.policy  compact" in run.well("topics", "describe", name).out
    assert "retention.ms" in run.well("topics", "describe", name, "--all-config").out

    run.well("topics", "delete", name, "--yes")
    done = run("topics", "describe", name)
    assert done.code == 1
    assert f"there is no topic '{name}'; there are:" in done.err


def test_the_description_tells_offsets_and_sizes(run: Command, numbers: str) -> None:
    (partition,) = run.well("topics", "describe", numbers, "--json").json["partitions"]
    assert partition.pop("size_bytes") > 100
    assert partition == {"partition": 0, "start": 0, "end": 10, "records": 10}
    assert run.well("topics", "describe", numbers).out.splitlines()[1].split()[:4] == ["0", "0", "10", "10"]


def test_creating_what_exists_is_an_error_unless_it_is_meant(run: Command, topic: str) -> None:
    done = run("topics", "create", topic)
    assert (done.code, "exists already" in done.err) == (1, True)
    other = fresh()
    run.well("topics", "create", topic, other, "--if-not-exists")
    assert run.well("topics", "describe", other, "--json").json["topic"] == other


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["create", "not a topic"], 1, "use 1 to 249 letters"),
        (["create", "x", "--config", "retention.sm=1"], 1, "retention.sm"),
        (["create", "x", "--config", "retention.ms"], 2, "is not NAME=VALUE"),
        (["create", "x", "--partitions", "0"], 2, "--partitions"),
        (["alter", "x"], 2, "nothing to change"),
        (["alter", "x", "--config", "a=1", "--reset", "a"], 2, "is set and reset"),
        (["delete", "no-such-topic", "--yes"], 1, "there is no topic 'no-such-topic'"),
    ],
)
def test_what_cannot_be_done_is_told(run: Command, arguments: list[str], code: int, complaint: str) -> None:
    done = run("topics", *arguments)
    assert (done.code, "Traceback" in done.err) == (code, False)
    assert complaint in done.err


def test_partitions_are_never_taken_away(run: Command) -> None:
    name = fresh()
    run.well("topics", "create", name, "--partitions", "3")
    done = run("topics", "alter", name, "--partitions", "2")
    assert done.code == 2
    assert "has 3 partitions; partitions can be added, not removed" in done.err


def test_deleting_without_anybody_to_ask_is_refused(run: Command, stream: penstock.Connection, numbers: str) -> None:
    done = run("topics", "delete", numbers)
    assert done.code == 2
    assert "pass --yes" in done.err
    assert numbers in stream.topics()


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_deleting_asks_and_says_what_would_be_gone(
    run: Command, stream: penstock.Connection, numbers: str, answer: str, code: int
) -> None:
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, answer.encode())
        done = subprocess.run(
            [*COMMAND, "topics", "delete", numbers],
            stdin=terminal,
            capture_output=True,
            text=True,
            env=dict(run.environment),
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert done.returncode == code
    assert f"{numbers}: 10 records" in done.stderr
    assert (numbers in stream.topics()) == (code == 1)
