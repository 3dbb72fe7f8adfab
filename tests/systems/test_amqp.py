"""RabbitMQ queues by `amqp:` URLs, on a real RabbitMQ that is killed and cut off."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

import penstock as ps
from penstock.abc import Feature, Outcome, Queue
from penstock.errors import BrokerUnavailableError, ConfigError, StaleDeliveryError, UrlError
from penstock.model import NewRecord
from penstock.queues import open_queue
from penstock.queues.amqp import AmqpDelivery, AmqpQueue
from penstock.queues.reconnecting import LONGEST_BACKOFF_S
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.secured_kafka import make_certificates
from tests.systems.killed_queue_app import check_every_record_is_handled
from tests.systems.older_server import relay_that_replaces
from tests.systems.oversize import check_refused
from tests.systems.rabbitmq_server import RabbitMq

pytestmark = [pytest.mark.system("RabbitMQ"), pytest.mark.xdist_group("rabbitmq")]

ADDRESS = "PENSTOCK_TEST_AMQP"
ADDRESS4 = "PENSTOCK_TEST_AMQP_4"
WARNER = "penstock.queues"
OFTEN = 50
"""More returns than RabbitMQ 4 allows by default."""
WAIT_S = 30.0
LARGEST_BYTES = 1_000_000
TLS = """\
listeners.ssl.local = 127.0.0.1:{tls_port}
ssl_options.cacertfile = {folder}/ca.pem
ssl_options.certfile = {folder}/server.crt
ssl_options.keyfile = {folder}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
"""


class Outage:
    def __init__(self, server: RabbitMq, proxy: TcpProxy) -> None:
        self.server = server
        self.proxy = proxy
        self.kill = server.kill
        self.restart = server.restart


_running: dict[str, Outage] = {}
"""By the environment variable that has the server's address."""


def outage() -> Outage:
    return _running[ADDRESS]


def outage4() -> Outage:
    return _running[ADDRESS4]


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    folder = tmp_path_factory.mktemp("rabbitmq")
    settings = f"max_message_size = {LARGEST_BYTES}\n"
    if shutil.which("openssl"):
        make_certificates(folder, folder / "ca.pem", folder / "server.pem")
        settings += TLS
    with RabbitMq(folder, settings=settings) as server, TcpProxy(server.port) as proxy:
        os.environ[ADDRESS] = proxy.address
        _running[ADDRESS] = Outage(server, proxy)
        queue = open_queue(url("first"))
        system_table.met("RabbitMQ", f"RabbitMQ {server.version}, AMQP 0-9-1", queue.features)
        queue.close()
        yield server
        del _running[ADDRESS], os.environ[ADDRESS]


@pytest.fixture(scope="class")
def rabbitmq4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    with RabbitMq(tmp_path_factory.mktemp("rabbitmq4"), 4) as server, TcpProxy(server.port) as proxy:
        os.environ[ADDRESS4] = proxy.address
        _running[ADDRESS4] = Outage(server, proxy)
        queue = open_queue(url("first", address=ADDRESS4))
        system_table.met("RabbitMQ 4", f"RabbitMQ {server.version}, AMQP 0-9-1", queue.features)
        queue.close()
        yield server
        del _running[ADDRESS4], os.environ[ADDRESS4]


def url(name: str, parameters: str = "heartbeat_s=2", address: str = ADDRESS) -> str:
    return f"amqp://{os.environ[address]}/{name}?{parameters}"


def new_queue(parameters: str = "heartbeat_s=2") -> AmqpQueue:
    queue = open_queue(url(f"q-{uuid.uuid4().hex[:8]}", parameters))
    assert isinstance(queue, AmqpQueue)
    return queue


def open_quorum(folder: Path, address: str = ADDRESS) -> AmqpQueue:
    """The folder's name is the queue's, and the environment says where the server is: child processes find it, too."""
    queue = open_queue(url(folder.name, address=address))
    assert isinstance(queue, AmqpQueue)
    return queue


def open_classic(folder: Path, address: str = ADDRESS) -> AmqpQueue:
    queue = open_queue(url(f"{folder.name}-classic", "queue_type=classic&heartbeat_s=2&prefetch=20", address))
    assert isinstance(queue, AmqpQueue)
    return queue


def open_quorum4(folder: Path) -> AmqpQueue:
    return open_quorum(folder, ADDRESS4)


def open_classic4(folder: Path) -> AmqpQueue:
    return open_classic(folder, ADDRESS4)


@pytest.mark.usefixtures("rabbitmq")
class TestQuorumQueue(conformance.queue(open_quorum, outage=outage, longest_backoff_s=LONGEST_BACKOFF_S)):  # type: ignore[misc]
    pass


def test_a_server_that_is_too_old_for_streams_says_so(rabbitmq: RabbitMq) -> None:
    if not rabbitmq.version.startswith("3.10."):
        pytest.skip(f"RabbitMQ {rabbitmq.version} is not too old")
    with pytest.raises(BrokerUnavailableError, match=r"has version 3\.10.*RabbitMQ 3\.11 or newer") as caught:
        ps.connect(f"rabbitmq-stream://127.0.0.1:{rabbitmq.stream_port}")
    assert not caught.value.retriable


def test_a_server_that_is_too_old_for_quorum_queues_says_so_and_has_classic_ones(rabbitmq: RabbitMq) -> None:
    older = ("3.9." + "9" * 10)[: len(rabbitmq.version)]
    with relay_that_replaces(rabbitmq.port, rabbitmq.version.encode(), older.encode()) as address:
        with pytest.raises(
            BrokerUnavailableError, match=rf"RabbitMQ {older}, .* too old.* 3\.10 .*queue_type=cl"
        ) as old:
            open_queue(f"amqp://{address}/q-{uuid.uuid4().hex[:8]}")
        assert not old.value.retriable
        queue = open_queue(f"amqp://{address}/q-{uuid.uuid4().hex[:8]}?queue_type=classic")
        queue.send([NewRecord("queue", b"1")])
        queue.close()


@pytest.mark.usefixtures("rabbitmq")
class TestClassicQueue(conformance.queue(open_classic, outage=outage, longest_backoff_s=LONGEST_BACKOFF_S)):  # type: ignore[misc]
    pass


@pytest.mark.usefixtures("rabbitmq4")
@pytest.mark.system("RabbitMQ 4")
class TestQuorumQueueOfRabbitMq4(
    conformance.queue(open_quorum4, outage=outage4, longest_backoff_s=LONGEST_BACKOFF_S)  # type: ignore[misc]
):
    def test_no_number_of_returns_takes_a_record_out_of_the_queue_or_its_dead_letters(self) -> None:
        for name in (f"q-{uuid.uuid4().hex[:8]}", f"q-{uuid.uuid4().hex[:8]}"):
            with contextlib.closing(open_queue(url(name, address=ADDRESS4))) as queue:
                queue.send([NewRecord("queue", b"often")])
                _return_often(queue)
                [delivery] = queue.receive(1, WAIT_S)
                queue.settle(delivery, Outcome.REJECT)
            with (
                self.assertNoLogs(WARNER, "WARNING"),
                contextlib.closing(open_queue(url(f"{name}.dead", address=ADDRESS4))) as letters,
            ):
                _return_often(letters)
                [dead] = letters.receive(1, WAIT_S)
                assert dead.record.value == b"often"
                letters.settle(dead, Outcome.DONE)

    def test_a_limit_that_was_asked_for_applies(self) -> None:
        check_the_limit(f"q-{uuid.uuid4().hex[:8]}", ADDRESS4)

    def test_a_queue_that_exists_with_the_limit_of_rabbitmq_is_warned_about_and_the_remedy_works(self) -> None:
        name = f"q.{uuid.uuid4().hex[:8]}"
        arguments = {"x-queue-type": "quorum", "x-max-length": 1000, "x-single-active-consumer": False}
        self._declare(name, arguments)
        with (
            self.assertLogs(WARNER, "WARNING") as logs,
            contextlib.closing(open_queue(url(name, address=ADDRESS4))) as queue,
        ):
            queue.send([NewRecord("queue", b"lost")])
            _return_often(queue, 21)
            queue.send([NewRecord("queue", b"next")])
            [delivery] = queue.receive(1, WAIT_S)
            assert delivery.record.value == b"next"
            queue.settle(delivery, Outcome.DONE)
        [warning] = logs.output
        assert re.search(rf"queue '{name}' at amqp://.* without x-delivery-limit.* more than 20 times", warning)
        found = re.search(r"run rabbitmqctl (set_policy .*')\. With", warning)
        assert found is not None, warning
        outage4().server.control(*shlex.split(found[1]))
        with (
            self.assertNoLogs(WARNER, "WARNING"),
            contextlib.closing(open_queue(url(name, "declare=false", ADDRESS4))) as queue,
        ):
            queue.send([NewRecord("queue", b"often")])
            _return_often(queue)

    def test_a_queue_that_exists_with_a_limit_of_its_own_is_used_as_it_is(self) -> None:
        name = f"q-{uuid.uuid4().hex[:8]}"
        self._declare(name, {"x-queue-type": "quorum", "x-delivery-limit": 7, "x-overflow": "reject-publish"})
        with self.assertNoLogs(WARNER, "WARNING"):
            open_queue(url(name, address=ADDRESS4)).close()
        with self.assertLogs(WARNER, "WARNING") as logs:
            open_queue(url(name, "delivery_limit=9", ADDRESS4)).close()
        assert "exists with x-delivery-limit=7, so delivery_limit=9 does not apply" in logs.output[0]

    def test_a_classic_queue_that_exists_is_not_warned_about(self) -> None:
        name = f"q-{uuid.uuid4().hex[:8]}"
        self._declare(name, {"x-queue-type": "classic"})
        with (
            self.assertNoLogs(WARNER, "WARNING"),
            contextlib.closing(open_queue(url(name, address=ADDRESS4))) as queue,
        ):
            queue.send([NewRecord("queue", b"1")])
            assert [each.record.value for each in queue.receive(1, WAIT_S)] == [b"1"]

    def test_dead_letters_may_go_to_a_queue_that_exists(self) -> None:
        name = f"q-{uuid.uuid4().hex[:8]}"
        self._declare(f"{name}.dead", {"x-queue-type": "classic"})
        with contextlib.closing(open_queue(url(name, address=ADDRESS4))) as queue:
            queue.send([NewRecord("queue", b"bad")])
            [delivery] = queue.receive(1, WAIT_S)
            queue.settle(delivery, Outcome.REJECT)
        with contextlib.closing(open_queue(url(f"{name}.dead", address=ADDRESS4))) as letters:
            assert [each.record.value for each in letters.receive(1, WAIT_S)] == [b"bad"]

    def _declare(self, name: str, arguments: dict[str, object]) -> None:
        address = ("127.0.0.1", outage4().server.port)
        with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters(*address))) as connection:
            connection.channel().queue_declare(name, durable=True, arguments=arguments)


@pytest.mark.usefixtures("rabbitmq4")
@pytest.mark.system("RabbitMQ 4")
class TestClassicQueueOfRabbitMq4(
    conformance.queue(open_classic4, outage=outage4, longest_backoff_s=LONGEST_BACKOFF_S)  # type: ignore[misc]
):
    pass


@pytest.mark.usefixtures("rabbitmq")
def test_a_rejected_record_is_in_the_queue_of_dead_letters() -> None:
    queue = new_queue()
    queue.send([NewRecord("queue", b"bad", b"key", (("reason", b"none"),), 1_700_000_000_123)])
    [delivery] = queue.receive(1, WAIT_S)
    queue.settle(delivery, Outcome.REJECT)
    letters = open_queue(url(f"{queue.name}.dead"))
    [dead] = letters.receive(1, WAIT_S)
    assert (dead.record.key, dead.record.value) == (b"key", b"bad")
    assert dead.record.headers == (("reason", b"none"),)
    assert dead.record.timestamp_ms == 1_700_000_000_123
    letters.settle(dead, Outcome.DONE)
    letters.close()
    queue.close()


@pytest.mark.usefixtures("rabbitmq")
def test_the_broker_gives_up_after_the_delivery_limit() -> None:
    check_the_limit(f"q-{uuid.uuid4().hex[:8]}", ADDRESS)


def check_the_limit(name: str, address: str) -> None:
    queue = open_queue(url(name, "delivery_limit=2", address))
    queue.send([NewRecord("queue", b"bad")])
    for attempt in (1, 2, 3):
        [delivery] = queue.receive(1, WAIT_S)
        assert delivery.attempt == attempt
        queue.settle(delivery, Outcome.RETRY)
    letters = open_queue(url(f"{name}.dead", address=address))
    [dead] = letters.receive(1, WAIT_S)
    assert dead.record.value == b"bad"
    letters.close()
    queue.close()


@pytest.mark.usefixtures("rabbitmq")
def test_null_values_and_repeated_headers_come_back() -> None:
    queue = new_queue()
    headers = (("twice", b"1"), ("twice", None), ("once", b"\xff"))
    queue.send([NewRecord("queue", None, b"", headers)])
    [delivery] = queue.receive(1, WAIT_S)
    assert (delivery.record.value, delivery.record.key) == (None, b"")
    assert delivery.record.headers == headers
    queue.settle(delivery, Outcome.DONE)
    queue.close()


def test_messages_of_other_programs_are_read(rabbitmq: RabbitMq) -> None:
    queue = new_queue()
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbitmq.port))
    channel = connection.channel()
    properties = pika.BasicProperties(headers={"n": 5, "text": "ü", "deep": {"a": [1]}}, timestamp=1_700_000_000)
    channel.basic_publish("", queue.name, b"plain", properties)
    channel.basic_publish("", queue.name, b"bare")
    first, second = _receive(queue, 2)
    connection.close()
    assert dict(first.record.headers) == {"n": b"5", "text": "ü".encode(), "deep": b'{"a": [1]}'}
    assert (first.record.value, first.record.timestamp_ms) == (b"plain", 1_700_000_000_000)
    assert (second.record.value, second.record.headers, second.record.timestamp_ms) == (b"bare", (), None)
    queue.close()


@pytest.mark.usefixtures("rabbitmq")
def test_a_queue_that_exists_is_used_as_it_is() -> None:
    queue = new_queue("queue_type=classic&dead_letters=")
    assert Feature.DEAD_LETTERS not in queue.features
    again = open_queue(url(queue.name))
    again.send([NewRecord("queue", b"1")])
    assert _receive(queue, 1)[0].record.value == b"1"
    again.close()
    queue.close()


@pytest.mark.usefixtures("rabbitmq")
def test_a_queue_that_is_deleted_is_declared_again(rabbitmq: RabbitMq) -> None:
    queue = new_queue()
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbitmq.port))
    queue.receive(1, 0.0)
    connection.channel().queue_delete(queue.name)
    connection.close()

    def is_back() -> bool:
        try:
            queue.send([NewRecord("queue", b"1")])
        except (ps.PenstockError, TimeoutError):
            return False
        return True

    wait_until(is_back, WAIT_S)
    assert _receive(queue, 1)[0].record.value == b"1"
    queue.close()


@pytest.mark.usefixtures("rabbitmq")
def test_what_cannot_work_is_refused_with_the_reason() -> None:
    address = os.environ[ADDRESS]
    with pytest.raises(BrokerUnavailableError, match=r"amqp://me@[\d.:]+/q refused the user or the password") as wrong:
        open_queue(f"amqp://me:secret@{address}/q")
    assert not wrong.value.retriable
    with pytest.raises(BrokerUnavailableError, match="refused access to the virtual host"):
        open_queue(f"amqp://{address}/nowhere/q")
    with pytest.raises(BrokerUnavailableError, match=r"there is no queue 'missing'.*create it"):
        open_queue(f"amqp://{address}/missing?declare=false")
    with pytest.raises(UrlError, match="is not amqp://HOST:PORT/QUEUE"):
        open_queue(f"amqp://{address}")
    with pytest.raises(ConfigError, match=r"has no setting 'prefech'; amqp: has .*prefetch"):
        open_queue(f"amqp://{address}/q?prefech=1")
    with pytest.raises(ConfigError, match="prefetch=0 must be an integer from 1 to 65535"):
        open_queue(f"amqp://{address}/q?prefetch=0")
    with pytest.raises(ConfigError, match=r"delivery_limit .* needs queue_type=quorum"):
        open_queue(f"amqp://{address}/q?delivery_limit=3&queue_type=classic")
    queue = new_queue()
    with pytest.raises(ConfigError, match=r"header name .* is longer than AMQP's 255 bytes"):
        queue.send([NewRecord("queue", b"", headers=(("n" * 256, b""),))])
    queue.send([NewRecord("queue", b"1")])
    [delivery] = queue.receive(1, WAIT_S)
    with pytest.raises(ConfigError, match="cannot delay a delivery"):
        queue.settle(delivery, Outcome.RETRY, delay_s=1.0)
    queue.settle(delivery, Outcome.DONE)
    with pytest.raises(StaleDeliveryError, match="was settled twice"):
        queue.settle(delivery, Outcome.DONE)
    queue.close()


@pytest.mark.usefixtures("rabbitmq")
def test_a_record_over_the_limit_is_refused_and_the_queue_goes_on() -> None:
    queue = new_queue()
    check_refused(queue, NewRecord("queue", b"x" * (LARGEST_BYTES + 1)), f"{LARGEST_BYTES}.*raise max_message_size of")
    queue.send([NewRecord("queue", b"x" * LARGEST_BYTES)])
    assert _receive(queue, 1)[0].record.value == b"x" * LARGEST_BYTES
    queue.close()


@pytest.mark.usefixtures("rabbitmq")
def test_a_record_whose_key_and_headers_do_not_fit_into_a_frame_is_refused_and_the_queue_goes_on() -> None:
    queue = new_queue()
    for record in (
        NewRecord("queue", b"", b"k" * 131_000),
        NewRecord("queue", b"", headers=(("h", b"v" * 131_000),) * 2),
    ):
        check_refused(queue, record, r"need a frame of \d+ bytes, and 131072 are allowed.*raise frame_max")
    queue.send([NewRecord("queue", b"", b"k" * 130_500)])
    assert _receive(queue, 1)[0].record.key == b"k" * 130_500
    queue.close()


def test_tls_with_an_authority_and_a_certificate_of_the_client(rabbitmq: RabbitMq, tmp_path: Path) -> None:
    make_certificates(tmp_path, tmp_path / "other.pem", tmp_path / "both.pem")
    ours, theirs = rabbitmq.folder, tmp_path
    authority = f"ca_file={ours}/ca.pem"
    own = f"cert_file={ours}/server.crt&key_file={ours}/server.key"
    secure = f"amqps://127.0.0.1:{rabbitmq.tls_port}/secret?connect_timeout_s=5"
    queue = open_queue(f"{secure}&{authority}&{own}")
    assert isinstance(queue, AmqpQueue)
    value = os.urandom(300_000)
    queue.send([NewRecord("queue", value)])
    assert _receive(queue, 1)[0].record.value == value
    queue.close()
    for problem, settings in {
        r"certificate verify failed.*; set ca_file": f"ca_file={theirs}/other.pem&{own}",
        r"certificate required.*; set cert_file and key_file": authority,
        r"unknown ca.*; set cert_file and key_file": f"{authority}&cert_file={theirs}/both.pem",
    }.items():
        with pytest.raises(BrokerUnavailableError, match=rf"TLS with amqps://.* failed: .*{problem}") as refused:
            open_queue(f"{secure}&{settings}")
        assert not refused.value.retriable
    with pytest.raises(ConfigError, match="cannot be loaded"):
        open_queue(f"{secure}&ca_file=/no/such/file")
    with pytest.raises(BrokerUnavailableError, match=r"If it is one for TLS, use amqps://"):
        open_queue(f"amqp://127.0.0.1:{rabbitmq.tls_port}/q?connect_timeout_s=5")
    with pytest.raises(BrokerUnavailableError, match=r"is it a port without TLS\? Then use amqp://"):
        open_queue(f"amqps://127.0.0.1:{rabbitmq.port}/q?connect_timeout_s=5&{authority}")
    with pytest.raises(ConfigError, match=r"for TLS.*write amqps://"):
        open_queue(f"amqp://127.0.0.1:{rabbitmq.port}/q?{authority}")


def test_an_unreachable_server_is_told_in_time() -> None:
    with TcpProxy(1) as proxy:
        proxy.cut()
        with pytest.raises(BrokerUnavailableError, match=rf"RabbitMQ at amqp://{proxy.address}/q cannot be reached"):
            open_queue(f"amqp://{proxy.address}/q?connect_timeout_s=1")


@pytest.mark.usefixtures("rabbitmq")
def test_an_app_handles_every_record_though_handlers_fail_and_its_process_is_killed(tmp_path: Path) -> None:
    check_every_record_is_handled(url(f"jobs-{uuid.uuid4().hex[:8]}"), tmp_path)


def _return_often(queue: Queue, times: int = OFTEN) -> None:
    for number in range(times):
        deliveries = queue.receive(1, WAIT_S)
        assert deliveries, f"a record was lost after it was returned {number} times"
        queue.settle(deliveries[0], Outcome.RETRY)


def _receive(queue: AmqpQueue, count: int) -> list[AmqpDelivery]:
    """So many deliveries, settled as done."""
    received: list[AmqpDelivery] = []
    while len(received) < count:
        deliveries = queue.receive(count - len(received), WAIT_S)
        assert deliveries, f"{len(received)} of {count} records came, and then none"
        received += deliveries
    queue.settle_all(received, Outcome.DONE)
    return received
