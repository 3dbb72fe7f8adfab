"""Passwords outside URLs: `password_file` and `password_env` of every scheme that RabbitMQ speaks, on a real one."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import penstock
from penstock.abc import Queue
from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError, PenstockError
from penstock.model import NewRecord
from penstock.queues import open_queue
from penstock.queues.amqp import FEATURES
from penstock.testing import TcpProxy
from tests import real_parts, system_table
from tests.consuming.eventually import wait_until
from tests.servers import free_ports
from tests.systems.rabbitmq_server import RabbitMq

pytestmark = [pytest.mark.system("RabbitMQ 4"), pytest.mark.xdist_group("rabbitmq")]

WAIT_S = 60.0
QUEUE = "jobs"
SCHEMES = {
    "amqp": "amqp://{who}@{address}/jobs?heartbeat_s=2&",
    "amqp1": "amqp1://{who}@{address}/jobs?heartbeat_s=2&",
    "stomp": "stomp://{who}@{address}/jobs?vhost=/&destination=/amq/queue/{{queue}}&heartbeat_s=2&",
    "rabbitmq-stream": "rabbitmq-stream://{who}@{address}?load_balancer=true&",
}
SOON = {"rabbitmq-stream": "delivery_timeout_s=2"}
"""How to be told soon that a record cannot be stored."""


class Secured:
    """A RabbitMQ with a user of which each test has its own, behind one proxy for each protocol."""

    def __init__(self, server: RabbitMq, proxies: dict[str, TcpProxy]) -> None:
        self.server = server
        self.proxies = proxies

    def new_user(self) -> tuple[str, str]:
        user, password = f"user-{uuid.uuid4().hex[:8]}", f"first-{uuid.uuid4().hex}"
        self.server.control("add_user", user, password)
        self.server.control("set_permissions", "-p", "/", user, ".*", ".*", ".*")
        return user, password

    def change_password(self, user: str) -> str:
        password = f"second-{uuid.uuid4().hex}"
        self.server.control("change_password", user, password)
        return password

    def url(self, scheme: str, who: str, settings: str) -> str:
        return SCHEMES[scheme].format(who=who, address=self.proxies[scheme].address) + settings


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    real_parts.proton()
    [stomp_port] = free_ports(1)
    settings = f"stomp.listeners.tcp.1 = 127.0.0.1:{stomp_port}\n"
    folder = tmp_path_factory.mktemp("rabbitmq")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(RabbitMq(folder, 4, plugins=("rabbitmq_stomp",), settings=settings))
        with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port))) as each:
            each.channel().queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "classic"})
        ports = {"amqp": server.port, "amqp1": server.port, "stomp": stomp_port, "rabbitmq-stream": server.stream_port}
        system_table.met("RabbitMQ 4", f"RabbitMQ {server.version}, AMQP 0-9-1", FEATURES)
        yield Secured(server, {scheme: stack.enter_context(TcpProxy(port)) for scheme, port in ports.items()})


class Sender:
    """Sends records by the queue or the stream of a URL."""

    def __init__(self, url: str) -> None:
        self._opened: Any = penstock.connect(url) if url.startswith("rabbitmq-stream") else open_queue(url)
        self._topic = f"topic-{uuid.uuid4().hex[:8]}"

    def send(self) -> bool:
        """Whether a record was stored. False: the broker cannot be used now, and later perhaps."""
        try:
            if isinstance(self._opened, Queue):
                self._opened.send([NewRecord(QUEUE, b"1")])
            else:
                self._opened.send(self._topic, b"1").result(WAIT_S)
        except (BrokerUnavailableError, DeliveryError) as error:
            if not error.retriable:
                raise
            return False
        return True

    def close(self) -> None:
        self._opened.close()


each_scheme = pytest.mark.parametrize("scheme", SCHEMES)


@each_scheme
def test_a_password_in_a_file_can_be_replaced_while_the_program_runs(
    scheme: str, secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    user, first = secured.new_user()
    file = tmp_path / "password"
    file.write_text(f"{first}\n")
    with contextlib.closing(Sender(secured.url(scheme, user, f"password_file={file}"))) as sender:
        assert sender.send()
        second = secured.change_password(user)
        file.write_text(second)
        secured.proxies[scheme].cut()
        secured.proxies[scheme].heal()
        wait_until(sender.send, WAIT_S)
    assert not any(secret in caplog.text for secret in (first, second))


@each_scheme
def test_a_connection_that_is_refused_until_the_file_has_the_new_password_comes_back(
    scheme: str, secured: Secured, tmp_path: Path
) -> None:
    user, first = secured.new_user()
    file = tmp_path / "password"
    file.write_text(first)
    with contextlib.closing(
        Sender(secured.url(scheme, user, f"password_file={file}&{SOON.get(scheme, '')}"))
    ) as sender:
        assert sender.send()
        second = secured.change_password(user)
        secured.proxies[scheme].cut()
        before = secured.proxies[scheme].connections
        secured.proxies[scheme].heal()
        wait_until(lambda: not sender.send() and secured.proxies[scheme].connections > before, WAIT_S)
        file.unlink()
        assert not sender.send()
        file.write_text(second)
        wait_until(sender.send, WAIT_S)


@each_scheme
def test_the_password_may_be_in_the_environment(scheme: str, secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    user, password = secured.new_user()
    monkeypatch.setenv("PENSTOCK_TEST_PASSWORD", password)
    with contextlib.closing(Sender(secured.url(scheme, user, "password_env=PENSTOCK_TEST_PASSWORD"))) as sender:
        assert sender.send()


@each_scheme
def test_a_password_that_cannot_be_used_is_refused_with_the_reason(
    scheme: str, secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_PASSWORD", "wrong-secret")
    file = tmp_path / "password"
    file.write_text("two\nlines")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for who, settings, message in (
        ("me", f"password_file={tmp_path}/missing", r"password_file=.*missing cannot be read: No such file"),
        ("me", f"password_file={file}", r"password_file=.* must hold the password, in one line"),
        ("me", f"password_file={tmp_path}/binary", r"cannot be read: it is not UTF-8"),
        ("me", "password_env=PENSTOCK_TEST_NOTHING", r"variable PENSTOCK_TEST_NOTHING must hold the password"),
        ("me", f"password_env=A&password_file={file}", "password_env and password_file exclude each other"),
        ("me:wrong-secret", "password_env=A", "password_env and the password in the URL exclude each other"),
        ("", "password_env=PENSTOCK_TEST_PASSWORD", rf"needs a user in the URL: {scheme}://USER@"),
    ):
        with pytest.raises(ConfigError, match=message) as refused:
            Sender(secured.url(scheme, who, settings))
        assert "wrong-secret" not in str(refused.value)
    user, _ = secured.new_user()
    with pytest.raises(PenstockError, match=r"(?i)user or (the )?password|authentication") as wrong:
        Sender(secured.url(scheme, user, "password_env=PENSTOCK_TEST_PASSWORD"))
    assert "wrong-secret" not in str(wrong.value)
    assert not getattr(wrong.value, "retriable", False)
