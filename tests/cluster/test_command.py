"""`penstock cluster`: what it does to the brokers, and what it says when it cannot."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.cluster.brokers import Cluster, _command_line
from penstock.cluster.drills.stage import Stage
from penstock.cluster.jars import KAFKA_VERSION, kafka_jars
from penstock.cluster.networks import LOOPBACK, check_ports
from penstock.cluster.plans import CONTROLLER_PORTS, FEWEST_HEAP_MB, Plan
from penstock.cluster.status import status_of
from penstock.cluster.temporary import processes_of
from penstock.errors import ClusterError, JavaMissingError
from tests import real_parts
from tests.cli.forked import ForkedCommand
from tests.cli.running import COMMAND, Command
from tests.clients.waiting import eventually
from tests.servers import free_ports

pytestmark = pytest.mark.xdist_group("kafka-cluster")
TIMEOUT_S = 60.0
CHANGES = 50


@pytest.fixture
def run(cluster: Cluster) -> Command:
    command = ForkedCommand(cluster.url)
    command.environment = {**command.environment, "PENSTOCK_CLUSTER": str(cluster.folder)}
    return command


@pytest.fixture
def nowhere(tmp_path: Path) -> Command:
    """The command in a folder without a cluster."""
    command = ForkedCommand("kafka://127.0.0.1:1")
    command.environment = {**command.environment, "PENSTOCK_CLUSTER": str(tmp_path / "none")}
    return command


def test_the_other_commands_work_with_the_url(run: Command, cluster: Cluster) -> None:
    run.well("topics", "create", "by-url", "--partitions", "3")
    run.well("produce", "by-url", given="one\ntwo\nthree\n")
    read = run.well("consume", "by-url", "--from", "earliest").out
    assert all(word in read for word in ("one", "two", "three"))
    found = eventually("a broker answers", lambda: known_status(run), TIMEOUT_S)
    assert found["url"] == cluster.url
    assert sum(broker["leader_of"] for broker in found["brokers"]) >= 3
    assert [broker["is_controller"] for broker in found["brokers"]].count(True) == 1


def known_status(run: Command) -> Any:
    """The cluster's status; None if no broker answered."""
    found = run.well("cluster", "status", "--json").json
    return None if found["without_leader"] is None or found["controller"] is None else found


def test_a_status_that_no_broker_answers_is_not_known(nowhere: Command, cluster: Cluster, tmp_path: Path) -> None:
    """None of these brokers runs, as the processes are those of another folder."""
    (tmp_path / "none").mkdir()
    shutil.copy(cluster.folder / "cluster.json", tmp_path / "none")
    found = status_of(Cluster.at(tmp_path / "none"))
    assert found.without_leader is None
    assert found.with_replicas_out_of_sync is None
    assert [(broker.leader_of, broker.out_of_sync) for broker in found.brokers] == [(None, None)] * 3
    assert not found.is_whole
    assert "not known whether partitions have leaders" in nowhere.well("cluster", "status").err
    assert nowhere.well("cluster", "status", "--json").json["with_replicas_out_of_sync"] is None


def test_a_killed_broker_is_shown_and_starts_again(run: Command, cluster: Cluster) -> None:
    assert "was killed" in run.well("cluster", "kill", "2").err
    done = run.well("cluster", "status")
    assert "not running" in done.out
    again = run("cluster", "kill", "2")
    assert again.code == 1
    assert "penstock cluster start 2" in again.err
    Cluster.at(cluster.folder).start(2)
    cluster.refresh()
    eventually("broker 2 runs, and is in sync", lambda: status_of(cluster).is_whole, TIMEOUT_S)


def test_an_isolated_broker_is_shown_until_it_is_healed(run: Command, cluster: Cluster) -> None:
    assert "is isolated from clients" in run.well("cluster", "isolate", "3", "--from", "clients").err
    assert "isolated from clients" in run.well("cluster", "status").out
    run.well("cluster", "isolate", "3", "--from", "all")
    run.well("cluster", "heal")
    cluster.state = Cluster.at(cluster.folder).state
    eventually("broker 3 runs, and is in sync", lambda: status_of(cluster).is_whole, TIMEOUT_S)


def test_two_brokers_that_are_started_at_once_are_both_known(run: Command, cluster: Cluster) -> None:
    """Without a lock, the second one saves what it read before the first one was started."""
    run.well("cluster", "kill", "2")
    run.well("cluster", "kill", "3")
    with ThreadPoolExecutor() as both:
        for done in list(both.map(lambda number: run("cluster", "start", number), ("2", "3"))):
            assert done.code == 0, done.err
    assert cluster.running() == [1], "what this object knew before is another matter"
    cluster.refresh()
    assert cluster.running() == [1, 2, 3]
    assert sorted(processes_of(cluster.folder)) == sorted(broker.pid for broker in cluster.brokers)
    eventually("the cluster is whole", lambda: status_of(cluster).is_whole, TIMEOUT_S)


def test_changes_from_several_threads_and_objects_are_all_kept(tmp_path: Path, cluster: Cluster) -> None:
    folder = tmp_path / "none"
    folder.mkdir()
    state = msgspec.structs.replace(cluster.state, plan=msgspec.structs.replace(cluster.state.plan, network="loopback"))
    (folder / "cluster.json").write_bytes(msgspec.json.encode(state))
    same = [Cluster.at(folder) for _ in cluster.numbers]

    def change(number: int) -> None:
        for _ in range(CHANGES):
            with same[number - 1]._changing() as _:
                same[number - 1].broker(number).port += 1
                same[number - 1]._save()

    with ThreadPoolExecutor() as threads:
        list(threads.map(change, cluster.numbers))
    ports = [broker.port for broker in Cluster.at(folder).brokers]
    assert ports == [broker.port + CHANGES for broker in cluster.brokers]


def test_an_isolated_broker_that_dies_is_started_without_waiting_for_the_impossible(
    run: Command, cluster: Cluster
) -> None:
    run.well("cluster", "isolate", "3")
    run.well("cluster", "kill", "3")
    started = run.well("cluster", "start", "3")
    assert "broker 3 runs, but is isolated from all" in started.err
    assert "penstock cluster heal 3" in started.err
    assert "isolated from all" in run.well("cluster", "status").out
    run.well("cluster", "heal", "3")
    cluster.refresh()
    eventually("broker 3 serves, and is in sync", lambda: status_of(cluster).is_whole, TIMEOUT_S)


def test_a_broker_that_a_killed_drill_left_paused_is_shown_and_continues_with_heal(
    run: Command, cluster: Cluster
) -> None:
    """Whoever paused it is gone, so only the file knows."""
    Cluster.at(cluster.folder).pause(2)
    cluster.refresh()
    assert run.well("cluster", "status", "--json").json["brokers"][1]["state"] == "paused"
    assert not cluster.serves(2)
    run.well("cluster", "heal")
    eventually("broker 2 serves, and is in sync", lambda: known_whole(cluster), TIMEOUT_S)
    Cluster.at(cluster.folder).pause(2)
    stage = Stage(cluster, 1, print)
    stage.make_whole()
    stage.close()
    assert cluster.serves(2)
    Cluster.at(cluster.folder).pause(2)
    assert "was stopped" in run.well("cluster", "stop", "2").err
    cluster.start(2)
    eventually("the cluster is whole", lambda: known_whole(cluster), TIMEOUT_S)


def known_whole(cluster: Cluster) -> bool:
    cluster.refresh()
    return status_of(cluster).is_whole


def test_a_cluster_that_is_up_is_not_started_twice(run: Command) -> None:
    done = run("cluster", "up", "--network", "loopback")
    assert done.code == 1
    assert "is up already" in done.err


def test_an_unknown_broker_is_named_with_those_that_there_are(run: Command) -> None:
    for command in ("kill", "stop", "start", "heal"):
        done = run("cluster", command, "7")
        assert done.code == 1
        assert "there is no broker 7: this cluster has 1, 2, 3" in done.err


@pytest.mark.parametrize("command", [["status"], ["down"], ["kill", "1"], ["stop", "1"], ["heal"], ["isolate", "1"]])
def test_without_a_cluster_the_command_that_starts_one_is_named(nowhere: Command, command: list[str]) -> None:
    done = nowhere("cluster", *command)
    assert done.code == 1
    assert "penstock cluster up" in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--brokers", "2", "--replication-factor", "3"], "2 brokers cannot hold 3 replicas"),
        (["--min-insync-replicas", "4"], "min.insync.replicas 4 cannot be met by 3 replicas"),
        (["--brokers", "30"], "--brokers must be from 1 to 9"),
        (["--port", "70000"], "--port must be from 1 to"),
        (["--config", "default.replication.factor=5"], "3 brokers cannot hold 5 replicas of a partition (--config def"),
        (["--config", "min.insync.replicas=4"], "min.insync.replicas 4 (--config min.insync.replicas) cannot be met"),
        (
            ["--config", "offsets.topic.replication.factor=1"],
            "min.insync.replicas 2 cannot be met by 1 replicas (--con",
        ),
        (["--config", "transaction.state.log.min.isr=4"], "transaction.state.log.min.isr 4 (--config transaction"),
        (["--config", "default.replication.factor=many"], "default.replication.factor=many must be an integer >= 1"),
        (["--config", "listeners=PLAINTEXT://:9092"], "--config listeners cannot be used: "),
        (["--config", "node.id=7"], "choose how many with --brokers"),
        (["--config", "log.dirs=/tmp"], "choose it with --folder"),
        (["--config", "broker.rack=x"], "choose them with --racks"),
        (["--jars", "."], "pass the `libs` folder of a Kafka distribution"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_before_anything_starts(
    nowhere: Command, tmp_path: Path, options: list[str], said: str
) -> None:
    done = nowhere("cluster", "up", "--network", "loopback", *options)
    assert done.code == 1
    assert said in done.err
    assert not list((tmp_path / "none").glob("broker-*"))


def test_the_settings_of_a_plan_are_those_that_the_brokers_are_given() -> None:
    plan = Plan(settings={"default.replication.factor": "2", "log.retention.ms": "1000"})
    plan.check()
    given = plan.kafka_settings()
    assert (given["default.replication.factor"], given["min.insync.replicas"]) == ("2", "2")
    assert given["log.retention.ms"] == "1000"


def test_options_with_unknown_values_list_the_known_ones(nowhere: Command) -> None:
    assert "auto, loopback, proxies, namespaces" in nowhere("cluster", "up", "--network", "token-ring").err
    assert "peers, clients, all" in nowhere("cluster", "isolate", "1", "--from", "friends").err
    assert "leader-failover, acks" in nowhere("cluster", "drill", "fire").err


def test_the_drills_are_listed(nowhere: Command) -> None:
    assert "rolling-restart" in nowhere.well("cluster", "drill").out
    assert len(nowhere.well("cluster", "drill", "--json").json) == 12


@pytest.mark.timeout(300)
def test_a_drill_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    """No process, no network, no mounted disk, no file, even if it had not noted all of its brokers yet."""
    real_parts.java()
    command = [*COMMAND, "cluster", "drill", "full-disk", "--folder", str(tmp_path / "none")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*command, "--jars", str(real_parts.kafka_jars())], env=environment, stderr=subprocess.DEVNULL
    ) as drill:
        eventually("a broker was started", lambda: processes_of(tmp_path) or drill.poll() is not None, 120)
        drill.kill()
    assert drill.returncode == -signal.SIGKILL
    eventually("every process has ended", lambda: not processes_of(tmp_path), TIMEOUT_S)
    eventually("the folder is gone", lambda: not list(tmp_path.glob("penstock-cluster-*")), TIMEOUT_S)
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_a_process_that_replaces_its_program_has_a_command_line_all_the_time() -> None:
    """A broker in a network namespace is `ip netns exec` first, and then Java."""
    again = 'test "$1" = 0 || exec sh "$0" $(($1 - 1)) the-marker'
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write(again)
        script.flush()
        process = subprocess.Popen(["sh", script.name, "300", "the-marker"])
        seen = 0
        while process.poll() is None:
            command = _command_line(process.pid)
            if process.poll() is None:
                assert "the-marker" in command
                seen += 1
    assert process.returncode == 0
    assert seen, "the process was looked at while it ran"


def test_a_taken_port_is_named() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} of 127.0.0.1 is taken.*--port"):
            check_ports([port])


def test_without_java_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.java.installed.jvm_folders", lambda: ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaMissingError, match="Apache Kafka needs Java 17 or newer; found none"):
        Cluster.up(tmp_path, Plan())


def test_without_jars_and_without_maven_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="install Maven, or pass --jars"):
        kafka_jars()


def test_the_kafka_of_the_cluster_is_the_one_that_the_tests_know() -> None:
    assert real_parts.kafka_version() == KAFKA_VERSION


def free_port() -> int:
    """For a broker whose controller's port is free, too."""
    while True:
        (port,) = free_ports(1)
        with contextlib.suppress(ClusterError):
            check_ports([port + CONTROLLER_PORTS])
            return port


def test_a_folder_keeps_its_data_between_down_and_up_in_the_foreground(tmp_path: Path) -> None:
    real_parts.java()
    jars = real_parts.kafka_jars()
    plan = Plan(brokers=1, replication_factor=1, min_insync_replicas=1, port=free_port(), heap_mb=FEWEST_HEAP_MB)
    command = Command("")
    first = Cluster.up(tmp_path, plan, jars)
    try:
        command.environment = {**command.environment, "PENSTOCK_URL": first.url}
        command.well("topics", "create", "kept")
        with pytest.raises(ClusterError, match="--network proxies"):
            first.isolate(1, "all")
    finally:
        first.down()
    with pytest.raises(ClusterError, match="--brokers must be 1"):
        Cluster.up(tmp_path, Plan(), jars)
    options = ["--brokers", "1", "--network", "loopback", "--port", str(plan.port), "--jars", str(jars), "--foreground"]
    second = subprocess.Popen(
        [*COMMAND, "cluster", "up", "--folder", str(tmp_path), *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert second.stdout is not None
        assert second.stdout.readline().strip() == first.url
        assert "kept" in command.well("topics").out
        pid = Cluster.at(tmp_path).broker(1).pid
    finally:
        second.terminate()
        second.communicate(timeout=TIMEOUT_S)
    assert second.returncode == 128 + signal.SIGTERM
    eventually("the broker has ended", lambda: not Path(f"/proc/{pid}").exists(), TIMEOUT_S)
    with pytest.raises(ClusterError, match="no cluster is up"):
        Cluster.at(tmp_path)
