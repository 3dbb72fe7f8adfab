"""ZeroMQ channels by `zmq+tcp:` and `zmq+ipc:` URLs, with peers that are killed, cut off, or plain sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.abc import Channel
from penstock.channels import open_channel
from penstock.testing import conformance

pytestmark = [pytest.mark.system("ZeroMQ"), pytest.mark.xdist_group("zeromq")]

QUICK = "heartbeat_s=1&send_timeout_s=2&linger_s=1&wait_for_listener_s=0.2"
ANSWER_S = 3.0


def bound(folder: Path, settings: str) -> Channel:
    return open_channel(f"zmq+tcp://127.0.0.1:{conformance.port_to_bind(folder)}/ticks?{QUICK}&{settings}")


def connected(folder: Path, settings: str) -> Channel:
    return open_channel(f"zmq+tcp://127.0.0.1:{conformance.port_to_connect(folder)}/ticks?{QUICK}&{settings}")


def publisher(folder: Path) -> Channel:
    return bound(folder, "pattern=pubsub")


def subscriber(folder: Path) -> Channel:
    return connected(folder, "pattern=pubsub")


def small_subscriber(folder: Path) -> Channel:
    return connected(folder, "pattern=pubsub&buffer=2&socket_buffer_bytes=4096")


def small_publisher(folder: Path) -> Channel:
    return bound(folder, "pattern=pubsub&buffer=10&socket_buffer_bytes=4096")


def puller(folder: Path) -> Channel:
    return bound(folder, "pattern=pipeline")


def pusher(folder: Path) -> Channel:
    return connected(folder, "pattern=pipeline")


def ipc_puller(folder: Path) -> Channel:
    return open_channel(f"zmq+ipc://{folder}/ticks?pattern=pipeline&format=plain&{QUICK}")


def answering(folder: Path) -> Channel:
    return bound(folder, f"pattern=request&answer_timeout_s={ANSWER_S}")


def asking(folder: Path) -> Channel:
    return connected(folder, f"pattern=request&answer_timeout_s={ANSWER_S}")


class TestPubSub(conformance.channel(subscriber, publisher, network=True, too_large_bytes=17 << 20)):  # type: ignore[misc]
    test_the_records_of_several_senders_arrive = None
    """Only one process can bind an address. The listener binds it in the next class."""


class TestPipeline(conformance.channel(puller, pusher, network=True, too_large_bytes=17 << 20)):  # type: ignore[misc]
    pass


class TestPlainIpc(conformance.channel(ipc_puller, ipc_puller, timestamps=False, too_large_bytes=17 << 20)):  # type: ignore[misc]
    pass


class TestRequest(
    conformance.channel(answering, asking, network=True, answer_s=ANSWER_S, too_large_bytes=17 << 20)  # type: ignore[misc]
):
    pass


def binding_subscriber(folder: Path) -> Channel:
    return bound(folder, "pattern=pubsub&bind=true&topic=a,tick")


def connecting_publisher(folder: Path) -> Channel:
    return connected(folder, "pattern=pubsub&bind=false&topic=ticks.x&socket_buffer_bytes=4096&buffer=10")


def small_binding_subscriber(folder: Path) -> Channel:
    return bound(folder, "pattern=pubsub&bind=true&buffer=2&socket_buffer_bytes=4096")


class TestSubscriberBinds(
    conformance.channel(binding_subscriber, connecting_publisher, limited=small_binding_subscriber, network=True)  # type: ignore[misc]
):
    pass
