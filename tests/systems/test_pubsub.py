"""Google Pub/Sub by `pubsub:` URLs, on Google's own fake, behind a network that breaks."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import AlreadyExists
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from penstock.queues import open_queue
from penstock.queues.pubsub import PubsubQueue
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.systems.pubsub_server import PubsubServer

pytestmark = [pytest.mark.system("Google Pub/Sub"), pytest.mark.xdist_group("pubsub")]

ADDRESS = "PENSTOCK_TEST_PUBSUB"
DEADLINE_S = 2
"""The fake allows shorter ack deadlines than Pub/Sub does."""
WAIT_S = 60.0


class Outage:
    """The fake keeps everything in memory, so that killing it proves nothing."""

    def __init__(self, proxy: TcpProxy) -> None:
        self.proxy = proxy

    def kill(self) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError


_running: list[Outage] = []


def outage() -> Outage:
    return _running[-1]


@pytest.fixture(scope="module")
def pubsub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PubsubServer]:
    with PubsubServer(tmp_path_factory.mktemp("pubsub")) as server, TcpProxy(server.port) as proxy:
        os.environ[ADDRESS] = proxy.address
        _running.append(Outage(proxy))
        queue = new_queue()
        system_table.met("Google Pub/Sub", f"pstest {server.version}, a fake by Google", queue.features)
        queue.close()
        yield server
        _running.pop()
        del os.environ[ADDRESS]


class Clients:
    """Google's own clients of the server."""

    def __init__(self) -> None:
        self.channel = grpc.insecure_channel(os.environ[ADDRESS])
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        self.subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))

    def create(self, name: str, **settings: Any) -> None:
        """A topic, and a subscription of it with the same name."""
        topic, subscription = f"projects/p/topics/{name}", f"projects/p/subscriptions/{name}"
        self.publisher.create_topic(name=topic)
        settings = {"ack_deadline_seconds": DEADLINE_S, **settings}
        self.subscriber.create_subscription(request={"name": subscription, "topic": topic, **settings})

    def close(self) -> None:
        self.channel.close()


def url(name: str, parameters: str = "") -> str:
    return f"pubsub://p/{name}?emulator={os.environ[ADDRESS]}&{parameters}"


def new_queue(parameters: str = "", **settings: Any) -> PubsubQueue:
    """A queue on a new subscription."""
    name = f"q-{uuid.uuid4().hex[:8]}"
    clients = Clients()
    clients.create(name, **settings)
    clients.close()
    queue = open_queue(url(name, parameters))
    assert isinstance(queue, PubsubQueue)
    return queue


def open_by_folder(folder: Path) -> PubsubQueue:
    """The folder's name is the queue's, and the environment says where the server is: child processes find it, too."""
    clients = Clients()
    with contextlib.suppress(AlreadyExists):  # each case opens its queue several times
        clients.create(folder.name)
    clients.close()
    queue = open_queue(url(folder.name))
    assert isinstance(queue, PubsubQueue)
    return queue


@pytest.mark.usefixtures("pubsub")
class TestPubsubQueue(
    conformance.queue(open_by_folder, visibility_s=float(DEADLINE_S), ordered=False, outage=outage)  # type: ignore[misc]
):
    test_no_record_is_lost_when_the_server_is_killed = None
    """The fake keeps everything in memory: nothing would be left."""
