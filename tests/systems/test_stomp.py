"""Queues by `stomp:` URLs, on a real ActiveMQ Classic that is killed and cut off."""

from __future__ import annotations

import functools
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import stomp

import penstock as ps
from penstock.abc import Feature, Outcome
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    NotAllowedError,
    RecordTooLargeError,
    StaleDeliveryError,
    UrlError,
)
from penstock.model import DeadLetterFilter, NewRecord
from penstock.queues import open_queue
from penstock.queues.stomp import StompQueue
from penstock.queues.stomp.link import StompDelivery
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.forking import FORKING
from tests.systems.activemq_server import LARGEST_BYTES, PASSWORD, USER, ActiveMq

pytestmark = [pytest.mark.system("ActiveMQ"), pytest.mark.xdist_group("activemq")]

ADDRESS = "PENSTOCK_TEST_STOMP"
WAIT_S = 30.0


class Outage:
    def __init__(self, server: ActiveMq, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self.kill = server.kill
        self.restart = server.restart


_running: list[Outage] = []


def outage() -> Outage:
    return _running[-1]


@pytest.fixture(scope="module")
def activemq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMq]:
    with ActiveMq(tmp_path_factory.mktemp("activemq")) as server, TcpProxy(server.port) as proxy:
        os.environ[ADDRESS] = proxy.address
        _running.append(Outage(server, proxy))
        queue = open_queue(url("first"))
        system_table.met("ActiveMQ", f"ActiveMQ Classic {server.version}, STOMP 1.2", queue.features)
        queue.close()
        yield server
        _running.pop()
        del os.environ[ADDRESS]


def url(name: str, parameters: str = "heartbeat_s=1") -> str:
    return f"stomp://{USER}:{quote(PASSWORD, safe='')}@{os.environ[ADDRESS]}/{name}?{parameters}"


def new_queue(parameters: str = "heartbeat_s=1", name: str = "") -> StompQueue:
    queue = open_queue(url(name or f"q-{uuid.uuid4().hex[:8]}", parameters))
    assert isinstance(queue, StompQueue)
    return queue


def open_by_folder(folder: Path) -> StompQueue:
    """The folder's name is the queue's, and the environment says where the server is: child processes find it, too."""
    return new_queue(name=folder.name)


@pytest.mark.usefixtures("activemq")
class TestStompQueue(conformance.queue(open_by_folder, outage=outage)):  # type: ignore[misc]
    pass
