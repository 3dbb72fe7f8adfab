"""What a real cluster of Kafka cannot do, or cannot do now, is said clearly, in time, and before anything is lost."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import penstock as ps
from penstock.cluster.brokers import Cluster
from penstock.cluster.status import status_of
from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError
from tests import real_parts
from tests.cli.forked import ForkedCommand
from tests.cli.running import COMMAND, Command
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import free_ports

pytestmark = pytest.mark.xdist_group("kafka-cluster")
TIMEOUT_S: Final = 60.0
FAST_S: Final = 20.0
"""What counts as fast on a busy machine: a client that only retries would take 30 s and more."""


@pytest.fixture
def stream(cluster: Cluster) -> Iterator[ps.Connection]:
    with ps.connect(cluster.url) as connected:
        yield connected


@pytest.fixture
def run(cluster: Cluster) -> Command:
    return ForkedCommand(cluster.url)


@pytest.fixture
def no_cluster() -> str:
    """The URL of three brokers, none of which runs."""
    return "kafka://" + ",".join(f"127.0.0.1:{port}" for port in free_ports(3))


def test_more_replicas_than_brokers_are_refused(stream: ps.Connection, run: Command) -> None:
    with pytest.raises(ConfigError, match=r"only 3 broker.* Lower replication\.factor=5, or use a cluster"):
        stream.create_topic("too-many-replicas", 1, {"replication.factor": "5"})
    done = run("topics", "create", "too-many-replicas", "--config", "replication.factor=5")
    assert done.code == 1
    assert "Lower replication.factor=5" in done.err
    assert "too-many-replicas" not in stream.topics()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"min.insync.replicas": "4"}, "min.insync.replicas=4 cannot be met by 3 replicas. Lower it to 2"),
        ({"replication.factor": "2", "min.insync.replicas": "3"}, "cannot be met by 2 replicas. Lower it to 1"),
        ({"replication.factor": "none"}, "replication.factor=none must be an integer >= 1"),
        ({"replication.factor": "0"}, "replication.factor=0 must be an integer >= 1"),
        ({"min.insync.replicas": "-1"}, "min.insync.replicas=-1 must be an integer >= 1"),
    ],
)
def test_a_topic_whose_writes_would_stop_is_not_created(
    stream: ps.Connection, config: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        stream.create_topic("never", 1, config)
    assert "never" not in stream.topics()


def test_a_topic_has_the_replicas_that_were_asked_for_and_cannot_be_altered_to_need_more(
    stream: ps.Connection, run: Command
) -> None:
    run.well("topics", "create", "two-copies", "--config", "replication.factor=2", "--config", "min.insync.replicas=1")
    eventually("it has two replicas", lambda: replicas(stream, "two-copies") == [2], TIMEOUT_S)
    done = run("topics", "alter", "two-copies", "--config", "min.insync.replicas=3")
    assert done.code == 1
    assert "min.insync.replicas=3 cannot be met by its 2 replicas. Lower it to 1" in done.err


def test_one_replica_by_default_is_a_warning_so_that_programs_run_on_the_embedded_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log does not tell its default number of replicas, so there is not even a warning."""
    with ps.connect(f"log:{tmp_path / 'data'}") as log:
        log.create_topic("orders", 1, {"min.insync.replicas": "2"})
        with pytest.raises(ConfigError, match="penstock's log is one node"):
            log.create_topic("copies", 1, {"replication.factor": "3"})
        assert log.topics() == ["orders"]


@pytest.mark.timeout(300)
def test_records_that_too_few_replicas_would_have_are_refused_with_the_reason(
    cluster: Cluster, stream: ps.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Once by `send`, and once by a `Producer`: librdkafka would only say that time is over."""
    stream.create_topic("all-or-nothing", 1, {"min.insync.replicas": "3"})
    stream.send("all-or-nothing", "before").result(timeout=TIMEOUT_S)
    stopped = 1 + leader_of(stream, "all-or-nothing") % 3
    cluster.kill(stopped)
    try:
        eventually("a replica is out of sync", lambda: in_sync(cluster, "all-or-nothing") == 2, TIMEOUT_S)
        with (
            caplog.at_level(logging.WARNING),
            ps.connect(cluster.url, delivery_timeout_s=20.0) as short,
            ps.Producer(cluster.url, delivery_timeout_s=20.0) as producer,
        ):
            receipts = [
                short.send("all-or-nothing", "during"),
                producer.send("all-or-nothing", "during"),
            ]
            for receipt in receipts:
                with pytest.raises(DeliveryError) as refused:
                    receipt.result(timeout=TIMEOUT_S)
                assert "'all-or-nothing' has 2 of 3 replicas in sync, and min.insync.replicas=3" in str(refused.value)
                assert f"start broker {stopped}" in str(refused.value)
                assert "penstock topics alter all-or-nothing --config min.insync.replicas=2" in str(refused.value)
        assert any("2 of 3 replicas in sync" in message for message in caplog.messages), "before the time is over, too"
        stream.admin().change_config("all-or-nothing", {"min.insync.replicas": "2"})
        stream.send("all-or-nothing", "after").result(timeout=TIMEOUT_S)
    finally:
        cluster.start(stopped)
        eventually("all are in sync", lambda: status_of(cluster).is_whole, TIMEOUT_S)
    assert [record.value for record in stream.read("all-or-nothing")] == [b"before", b"after"]


@pytest.mark.timeout(300)
def test_topics_are_created_while_a_broker_is_gone_whichever_it_is(cluster: Cluster, stream: ps.Connection) -> None:
    """librdkafka goes on asking the controller that it knew."""
    known = stream.admin().admin.list_topics().controller_id  # type: ignore[attr-defined]
    stream.create_topic("before-the-kill", 1)
    cluster.kill(known)
    try:
        stream.create_topic("after-the-kill", 1)
        stream.delete_topic("before-the-kill")
        eventually("the topic is there", lambda: "after-the-kill" in stream.topics(), TIMEOUT_S)
        eventually("the topic is gone", lambda: "before-the-kill" not in stream.topics(), TIMEOUT_S)
    finally:
        cluster.start(known)
        eventually("all are in sync", lambda: status_of(cluster).is_whole, TIMEOUT_S)


def test_a_cluster_that_is_down_is_named_at_once(no_cluster: str) -> None:
    begin_s = time.monotonic()
    for attempt in (ps.connect, ps.Producer):
        with pytest.raises(BrokerUnavailableError) as error:
            attempt(no_cluster)
        assert_names(str(error.value), no_cluster)
    assert time.monotonic() - begin_s < FAST_S


def test_an_app_says_at_once_that_its_cluster_is_down_and_waits_for_it(
    no_cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = ps.App(no_cluster, group="nobody")
    app.handle("orders")(print)
    running = threading.Thread(target=app.run)
    with caplog.at_level(logging.WARNING):
        running.start()
        try:
            eventually("it says so", lambda: "penstock cluster up" in caplog.text, FAST_S)
        finally:
            app.stop()
            running.join(TIMEOUT_S)
    assert not running.is_alive()
    assert_names(caplog.text, no_cluster)
    assert "retries until it is stopped" in caplog.text


@pytest.mark.parametrize(
    "words",
    [
        ["topics"],
        ["topics", "create", "orders"],
        ["produce", "orders"],
        ["consume", "orders"],
        ["groups"],
        ["lag"],
        ["dlq", "list", "orders.dlq"],
    ],
    ids=" ".join,
)
def test_every_command_names_a_cluster_that_is_down_in_one_line(no_cluster: str, words: list[str]) -> None:
    begin_s = time.monotonic()
    done = ForkedCommand(no_cluster)(*words, given="a record\n")
    assert done.code == 1, done.out + done.err
    assert "Traceback" not in done.err
    assert_names(done.err, no_cluster)
    assert len(done.err.strip().splitlines()) == 1, done.err
    assert time.monotonic() - begin_s < FAST_S


@pytest.mark.timeout(200)
def test_a_pipeline_on_a_cluster_that_is_down_ends_with_one_line(no_cluster: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom penstock.spark import Pipeline\n"
        "pipeline = Pipeline('copies', sys.argv[1])\n"
        "pipeline.write(pipeline.read('orders').select('key', 'value'), 'copies')\n"
    )
    real_parts.java()
    command = [*COMMAND, "run", str(program), "--quiet", "--master", "local[1]", "--once", "--", no_cluster]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("penstock: ")]
    assert_names(said, no_cluster)


@pytest.mark.timeout(200)
def test_one_broker_that_is_cut_off_delays_a_connection_by_its_share_alone(cluster: Cluster) -> None:
    """Packets are dropped, so connecting hangs instead of being refused. With all of them cut off, it says so."""
    if cluster.state.plan.network != "namespaces":
        pytest.skip("does not apply: behind proxies, connections to a broker that is cut off open, and hang then")
    try:
        cluster.isolate(1, "clients")
        with ps.connect(cluster.url, connect_timeout_s=6.0) as connected:
            connected.topics()
        for number in (2, 3):
            cluster.isolate(number, "clients")
        begin_s = time.monotonic()
        with pytest.raises(BrokerUnavailableError) as error:
            ps.connect(cluster.url, connect_timeout_s=6.0)
        assert time.monotonic() - begin_s < FAST_S
        for broker in cluster.brokers:
            assert f"{broker.address} does not answer" in str(error.value)
    finally:
        for number in cluster.numbers:
            cluster.heal(number)
    eventually("all are in sync", lambda: status_of(cluster).is_whole, TIMEOUT_S)


@pytest.mark.timeout(300)
def test_a_member_whose_checkpoints_are_in_a_file_of_another_host_is_refused(
    cluster: Cluster, stream: ps.Connection, tmp_path: Path
) -> None:
    """What the second member of a group reads in its own file is not what the first one has handled."""
    topic, group = fresh("bills"), fresh("billing")
    stream.create_topic(topic, 1)

    def handled_with(host: str, count: int) -> list[bytes]:
        """What a member on this host handles after so many more records were sent."""
        for number in range(count):
            stream.send(topic, str(number))
        stream.flush(TIMEOUT_S)
        values: list[bytes] = []
        app = ps.App(cluster.url, group=group, checkpoints=f"sqlite:{tmp_path / host}.db")
        app.handle(topic, commit_interval_s=0.1)(values.append)
        app.run(end="latest")
        return values

    assert len(handled_with("first", 10)) == 10
    assert len(handled_with("first", 2)) == 2, "a member that is restarted goes on with its file"
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"{topic}-0 was handled up to offset 12 by") as refused:
            handled_with("second", 3)
        assert "/first.db. This member" in str(refused.value)
        assert "would begin at offset 0, and handle again the records in between" in str(refused.value)
        assert "Give all members one checkpoint store" in str(refused.value)
    shutil.copy(tmp_path / "first.db", tmp_path / "moved.db")
    assert len(handled_with("moved", 0)) == 6, "a file that was moved has the checkpoints"
    reset = ForkedCommand(cluster.url).well(
        *("groups", "reset", group, "--topic", topic, "--to", "16", "--execute"),
        *("--checkpoints", f"sqlite:{tmp_path / 'second.db'}"),
    )
    assert "16" in reset.out
    assert len(handled_with("second", 0)) == 2, "where the file begins was said"


@pytest.mark.timeout(300)
def test_a_member_whose_checkpoint_is_behind_its_group_is_warned(
    cluster: Cluster, stream: ps.Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file lost what it had after a power failure, or was restored: only some records are handled again."""
    topic, group = fresh("bills"), fresh("billing")
    stream.create_topic(topic, 1)
    for backed_up, expected in ((True, 5), (False, 5), (False, 5)):
        for number in range(5):
            stream.send(topic, str(number))
        stream.flush(TIMEOUT_S)
        handled: list[bytes] = []
        app = ps.App(cluster.url, group=group, checkpoints=f"sqlite:{tmp_path / 'here.db'}")
        app.handle(topic, commit_interval_s=0.1)(handled.append)
        app.run(end="latest")
        assert len(handled) == expected
        if backed_up:
            shutil.copy(tmp_path / "here.db", tmp_path / "backup.db")
    assert "has committed offset" not in caplog.text
    shutil.copy(tmp_path / "backup.db", tmp_path / "here.db")
    again: list[bytes] = []
    app = ps.App(cluster.url, group=group, checkpoints=f"sqlite:{tmp_path / 'here.db'}")
    app.handle(topic, commit_interval_s=0.1)(again.append)
    with caplog.at_level(logging.WARNING):
        app.run(end="latest")
    assert len(again) == 10
    assert f"has committed offset 15 of {topic}-0, but the checkpoint of this member ends at 5" in caplog.text


def assert_names(said: str, url: str) -> None:
    """The error names every address, and what to do."""
    for address in url.removeprefix("kafka://").split(","):
        assert f"nothing answers at {address}" in said, said
    assert "Check that the brokers run" in said
    assert "penstock cluster up" in said


def leader_of(stream: ps.Connection, topic: str) -> int:
    found = stream.admin().admin.list_topics(topic).topics[topic].partitions[0].leader  # type: ignore[attr-defined]
    return int(found)


def replicas(stream: ps.Connection, topic: str) -> list[int]:
    """How many replicas each partition has, as far as brokers know the topic."""
    found = stream.admin().admin.list_topics(topic).topics[topic].partitions  # type: ignore[attr-defined]
    return [len(partition.replicas) for partition in found.values()]


def in_sync(cluster: Cluster, topic: str) -> int:
    with ps.connect(cluster.url) as stream:
        return len(stream.admin().admin.list_topics(topic).topics[topic].partitions[0].isrs)  # type: ignore[attr-defined]
