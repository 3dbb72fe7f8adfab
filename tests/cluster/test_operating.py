"""Commands and the console show and change what apps do on a cluster, also while one of its brokers is away."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from penstock.cluster.brokers import Cluster
from penstock.cluster.status import status_of
from penstock.console.service import Service
from penstock.console.views import Person
from penstock.errors import Reject
from penstock.model import DeadLetterFilter
from penstock.observe.facts import Snapshot
from tests.cli.forked import ForkedCommand
from tests.clients.names import fresh
from tests.clients.waiting import eventually

pytestmark = pytest.mark.xdist_group("kafka-cluster")
RECORDS = 10
TIMEOUT_S = 120.0
ANN = Person("ann", "10.0.0.8")


@pytest.mark.timeout(600)
def test_groups_lag_and_dead_letters_are_shown_and_changed_while_a_broker_is_away(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic, group = fresh(), fresh("group")
    place = f"{topic}.dlq"
    refused = {b"3", b"7"}
    handled: list[bytes] = []
    run = ForkedCommand(cluster.url)

    def handle(value: bytes) -> None:
        if value in refused:
            raise Reject("not yet")
        handled.append(value)

    def work() -> None:
        app = ps.App(cluster.url, group=group)
        app.handle(topic, dead_letters=place)(handle)
        app.run(end="latest")

    with ps.connect(cluster.url) as stream:
        stream.create_topic(topic, 1)
        for number in range(RECORDS):
            stream.send(topic, str(number)).result(TIMEOUT_S)
        work()
        cluster.kill(2)
        stream.send(topic, "late").result(TIMEOUT_S)

        (listed,) = [each for each in run.well("groups", "--json").json if each["group"] == group]
        assert listed["lag"] == 1
        (row,) = run.well("lag", "--group", group, "--for", "0s", "--json").json
        assert row["lag"] == 1
        letters = run.well("dlq", "list", place, "--json").json
        assert [each["group"] for each in letters] == [group] * 2

        with Service(cluster.url, state=tmp_path / "state", dead_letters=[place]) as console:
            snapshot = eventually("the console knows the cluster", lambda: seen(console, topic, group), TIMEOUT_S)
            assert snapshot is not None
            assert [reader.lag for reader in snapshot.groups[group].readers] == [1]
            assert console.count_letters(place, DeadLetterFilter(group=group)) == 2
            refused.clear()
            job = console.redrive(ANN, place, DeadLetterFilter(group=group), limit=1)
            eventually("one letter was redriven", lambda: job.is_done and job.done == 1, TIMEOUT_S)
        assert "Redrove 1 letter." in run.well("dlq", "redrive", place, "--group", group).err
        cluster.start(2)
        work()
    assert sorted(handled) == sorted([*(b"%d" % number for number in range(RECORDS)), b"late"])
    eventually("the cluster is whole", lambda: status_of(cluster).is_whole, TIMEOUT_S)


def seen(console: Service, topic: str, group: str) -> Snapshot | None:
    """A snapshot that has both; None before."""
    found = console.look_now()
    return found if topic in found.topics and group in found.groups else None
