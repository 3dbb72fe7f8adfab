"""`penstock lag`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app
from penstock.streams.kafka.stream import kafka_of
from tests.clients.names import fresh
from tests.servers import Penstock


@pytest.fixture
def url(server: Penstock) -> str:
    return f"kafka://{server.bootstrap}"


@pytest.fixture
def group(stream: penstock.Connection) -> str:
    """A group that nobody is in, five records and 3,000 seconds behind in a topic of its own name."""
    name = fresh("group")
    stream.create_topic(name, 1, {"retention.ms": "7200000"})
    for _ in range(7):
        stream.send(name, "value", timestamp=time.time_ns() // 1_000_000 - 3_000_000)
    stream.flush(20)
    asked = [ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0, 2)])]
    kafka_of(stream).administration.admin.alter_consumer_group_offsets(asked)[name].result(20)
    return name


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["lag", *arguments])
    return done.exit_code, done.stdout, done.stderr


def rows(*arguments: str) -> list[dict[str, Any]]:
    code, out, err = run(*arguments, "--json", "--for", "0s")
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out)
    return found


def test_lag_is_told_for_programs(url: str, group: str) -> None:
    (row,) = rows("--url", url, "--group", group)
    assert (row["group"], row["topic"], row["lag"], row["state"], row["lost"]) == (group, group, 5, "empty", 0)
    assert row["lag_s"] == pytest.approx(3_000, abs=120)
    assert row["time_to_loss_s"] == pytest.approx(4_200, abs=120)
    assert row["rate_per_s"] is None
    assert group in [each["group"] for each in rows("--url", url)]
    assert [each["group"] for each in rows("--url", url, "--topic", group)] == [group]


def test_lag_is_shown_to_people_who_are_told_that_rates_take_a_moment(url: str, group: str) -> None:
    code, out, err = run("--url", url, "--group", group, "--for", "100ms")
    assert code == 0
    head, line = out.splitlines()
    assert head.split() == ["group", "topic", "lag", "waiting", "read/s", "to", "drain", "to", "loss", "state"]
    assert line.split()[:3] == [group, group, "5"]
    assert line.split()[-1] == "empty"
    assert "0.0" in line, "nobody reads"
    assert "Measuring rates for 0.1 s" in err


def test_scripts_learn_of_lag_and_loss_by_the_exit_code(url: str, group: str) -> None:
    here = ("--url", url, "--group", group, "--for", "0s")
    assert run(*here, "--fail-if-lag-s", "5000")[0] == 0
    code, _, err = run(*here, "--fail-if-lag-s", "60")
    assert code == 1
    assert f"behind in {group}" in err
    assert run(*here, "--fail-if-loss-within", "10m")[0] == 0
    code, _, err = run(*here, "--fail-if-loss-within", "2h")
    assert code == 1
    assert "will lose records" in err


def test_who_watches_sees_it_again_and_again_until_the_time_is_over(url: str, group: str) -> None:
    code, out, _ = run("--url", url, "--group", group, "--watch", "--json", "--for", "10ms")
    assert code == 0
    assert len(out.splitlines()) >= 2
    assert all(json.loads(line)[0]["lag"] == 5 for line in out.splitlines())


def test_what_is_not_there_is_named(url: str) -> None:
    code, _, err = run("--url", url, "--group", "nobody", "--for", "0s")
    assert code == 1
    assert "there is no group 'nobody'" in err
    code, _, err = run("--url", url, "--topic", "nothing", "--for", "0s")
    assert code == 1
    assert "there is no topic 'nothing'" in err
    code, _, err = run("--url", url, "--for", "soon")
    assert code == 2
    assert "'soon' is not a duration" in err


def test_a_broker_that_is_not_there_is_one_sentence() -> None:
    code, _, err = run("--url", "kafka://127.0.0.1:1")
    assert code == 1
    assert "nothing answers at 127.0.0.1:1" in err


def test_the_history_of_a_console_beside_the_log_spares_the_wait(tmp_path: Path) -> None:
    from penstock.observe.history.history import History
    from penstock.observe.stream_observer import StreamObserver

    url = f"log:{tmp_path}"
    with penstock.connect(url) as stream:
        stream.create_topic("orders")
        stream.send("orders", "value").result(20)
        asked = [ConsumerGroupTopicPartitions("billing", [TopicPartition("orders", 0, 0)])]
        kafka_of(stream).administration.admin.alter_consumer_group_offsets(asked)["billing"].result(20)
        history = History(tmp_path / "console" / "history.db")
        observer = StreamObserver(stream)
        snapshot = observer.look()
        observer.close()
        import dataclasses

        read = {"billing": dataclasses.replace(snapshot.groups["billing"], rate_per_s=0.25)}
        for second in range(0, 60, 10):
            history.add(dataclasses.replace(snapshot, at_ms=snapshot.at_ms - 55_000 + second * 1000, groups=read))
        history.close()
        code, out, err = run("--url", url, "--json")
    assert code == 0, err
    assert "Measuring rates for" not in err
    assert json.loads(out)[0]["rate_per_s"] == 0.25
