"""`isolate` cuts a broker off from whom it says, and from nobody else, in namespaces and by proxies."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

import penstock
from penstock.cluster.brokers import Cluster
from penstock.cluster.drills.stage import Stage
from penstock.cluster.networks import LOOPBACK, CutOff
from penstock.cluster.proxies import is_cut, owner_of
from penstock.cluster.status import status_of
from penstock.cluster.temporary import temporary_cluster
from tests import real_parts
from tests.clients.waiting import eventually
from tests.cluster.conftest import SETTINGS

pytestmark = pytest.mark.xdist_group("kafka-cluster")
TIMEOUT_S = 60.0
CUT = 3
"""The broker that is isolated. It never leads the topic."""


@pytest.fixture(scope="module", params=["best", "proxies"])
def isolating(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Cluster]:
    """The cluster of all tests, and one behind proxies, if that is another one."""
    if request.param == "best":
        yield cluster
        return
    if cluster.state.plan.network == "proxies":
        pytest.skip("does not apply: the cluster of all tests is behind proxies")
    with temporary_cluster(real_parts.kafka_jars(), settings=SETTINGS, network="proxies") as running:
        yield running


@pytest.mark.sampled(1)
@pytest.mark.timeout(300)
def test_a_broker_is_isolated_from_whom_it_is_told_to_and_from_nobody_else(isolating: Cluster) -> None:
    stage = Stage(isolating, 1, print)
    stage.make_whole()
    topic = stage.topic("isolated", [[1, 2, CUT]])
    with penstock.connect(isolating.url) as stream:
        stream.send(topic, "whole").result(TIMEOUT_S)

        isolating.isolate(CUT, "clients")
        assert not isolating.serves(CUT)
        stream.send(topic, "without clients").result(TIMEOUT_S)  # acknowledged by all replicas in sync
        assert stage.is_in_sync(topic, CUT)
        assert status_of(isolating).brokers[CUT - 1].state == "isolated from clients"

        isolating.isolate(CUT, "peers")
        eventually("clients reach it", lambda: isolating.serves(CUT), TIMEOUT_S)
        eventually("the broker is out of sync", lambda: not stage.is_in_sync(topic, CUT), TIMEOUT_S)
        stream.send(topic, "without peers").result(TIMEOUT_S)
        assert status_of(isolating).brokers[CUT - 1].state == "isolated from peers"

        isolating.isolate(CUT, "all")
        assert not isolating.serves(CUT)
        assert not stage.is_in_sync(topic, CUT)
        stream.send(topic, "without all").result(TIMEOUT_S)

        isolating.heal(CUT)
        eventually("clients reach it again", lambda: isolating.serves(CUT), TIMEOUT_S)
        eventually("the broker is in sync", lambda: stage.is_in_sync(topic, CUT), TIMEOUT_S)
        eventually("the cluster is whole", lambda: status_of(isolating).is_whole, TIMEOUT_S)
        assert sum(1 for _ in stream.read(topic)) == 4
    stage.close()


@pytest.mark.parametrize(
    ("cut_off", "from_peer", "from_client", "to_peer"),
    [("peers", True, False, True), ("clients", False, True, False), ("all", True, True, True)],
)
def test_a_cut_works_both_ways_and_never_between_a_broker_and_itself(
    cut_off: CutOff, from_peer: bool, from_client: bool, to_peer: bool
) -> None:
    isolated: dict[int, CutOff | None] = {1: cut_off, 2: None}
    assert is_cut(2, 1, isolated) == from_peer
    assert is_cut(None, 1, isolated) == from_client
    assert is_cut(1, 2, isolated) == to_peer
    assert not is_cut(None, 2, isolated)
    assert not is_cut(1, 1, isolated)


def test_a_connection_is_known_by_the_process_that_has_it() -> None:
    with (
        socket.create_server((LOOPBACK, 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        port = connection.getsockname()[1]
        assert owner_of(port, {1: 1, 2: os.getpid()}) == 2
        assert owner_of(port, {1: os.getppid()}) is None
