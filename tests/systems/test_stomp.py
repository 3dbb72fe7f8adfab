"""Queues by `stomp:` URLs, on a real ActiveMQ Classic that is killed and cut off."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import stomp

import penstock as ps
from penstock.abc import Outcome
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    NotAllowedError,
    RecordTooLargeError,
    StaleDeliveryError,
    UrlError,
)
from penstock.model import NewRecord
from penstock.queues import open_queue
from penstock.queues.reconnecting import LONGEST_BACKOFF_S
from penstock.queues.stomp import StompQueue
from penstock.queues.stomp.link import StompDelivery
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.systems.activemq_server import LARGEST_BYTES, PASSWORD, STRANGER, USER, ActiveMq
from tests.systems.java_keystore import make_keystore
from tests.systems.killed_queue_app import check_every_record_is_handled
from tests.systems.oversize import check_refused

pytestmark = [pytest.mark.system("ActiveMQ"), pytest.mark.xdist_group("activemq")]

ADDRESS = "PENSTOCK_TEST_STOMP"
WAIT_S = 60.0


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
    keystore = make_keystore(tmp_path_factory.mktemp("certificates")) if shutil.which("openssl") else None
    with ActiveMq(tmp_path_factory.mktemp("activemq"), keystore) as server, TcpProxy(server.port) as proxy:
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
class TestStompQueue(conformance.queue(open_by_folder, outage=outage, longest_backoff_s=LONGEST_BACKOFF_S)):  # type: ignore[misc]
    pass


@pytest.mark.usefixtures("activemq")
def test_a_rejected_record_is_in_the_dead_letter_queue_of_activemq() -> None:
    queue = new_queue()
    unique = uuid.uuid4().hex.encode()
    queue.send([NewRecord("queue", b"bad", unique, (("reason", b"none"),), 1_700_000_000_123)])
    [delivery] = queue.receive(1, WAIT_S)
    queue.settle(delivery, Outcome.REJECT)
    letters = new_queue(name="ActiveMQ.DLQ")
    dead = _find(letters, unique)
    assert dead.record.value == b"bad"
    assert ("reason", b"none") in dead.record.headers
    assert dead.record.timestamp_ms == 1_700_000_000_123
    assert dead.record.offset == delivery.record.offset
    letters.settle(dead, Outcome.DONE)
    letters.close()
    queue.close()


@pytest.mark.usefixtures("activemq")
def test_rejected_records_go_to_the_queue_that_the_url_names() -> None:
    name = f"letters-{uuid.uuid4().hex[:8]}"
    queue = new_queue(f"dead_letters={name}")
    headers = (("twice", b"1"), ("twice", b"\xff"))
    queue.send([NewRecord("queue", bytes(range(256)), b"\xff", headers), NewRecord("queue", b"good")])
    deliveries = _take(queue, 2)
    assert not queue.settle_all(deliveries[:1], Outcome.REJECT, reason="too: old\n")
    queue.settle(deliveries[1], Outcome.DONE)
    letters = new_queue(name=name)
    [dead] = _receive(letters, 1)
    assert (dead.record.key, dead.record.value) == (b"\xff", bytes(range(256)))
    assert dead.record.headers == (*headers, ("penstock-reason", b"too: old\n"))
    letters.close()
    queue.close()


@pytest.mark.usefixtures("activemq")
def test_null_values_and_headers_of_any_kind_come_back() -> None:
    queue = new_queue()
    several: list[ps.model.Headers] = [
        (("twice", b"1"), ("twice", None), ("once", b"\xff")),
        (("a:b\\c\r\n", b" :\\\r\n "), ("\u00fc", "\u20ac\u2028".encode()), ("empty", b"")),
        (("destination", b"/queue/elsewhere"), ("expires", b"1"), ("priority", b"high"), ("receipt", b"r")),
        (("AMQ_SCHEDULED_DELAY", b"1000000"), ("nul", b"\0"), ("", b"")),
    ]
    queue.send([NewRecord("queue", None, b"\0", headers, 5) for headers in several])
    for delivery, headers in zip(_receive(queue, len(several)), several, strict=True):
        assert (delivery.record.value, delivery.record.key, delivery.record.timestamp_ms) == (None, b"\0", 5)
        assert sorted(delivery.record.headers, key=repr) == sorted(headers, key=repr)
    queue.close()


def test_messages_of_other_programs_are_read_and_ours_by_them(activemq: ActiveMq) -> None:
    queue = new_queue("text=true")
    client = Client(activemq)
    headers = {"n": "5", "text": "\u00fc", "id": "mine", "correlation-id": "c", "persistent": "true"}
    client.connection.send(f"/queue/{queue.name}", "pl\u00e4in", headers=headers)
    client.connection.send(f"/queue/{queue.name}", b"\0\xff", headers={"content-length": "2", "persistent": "true"})
    first, second = _receive(queue, 2)
    assert dict(first.record.headers) == {
        "n": b"5",
        "text": "\u00fc".encode(),
        "id": b"mine",
        "correlation-id": b"c",
    }
    assert first.record.value == "pl\u00e4in".encode()
    assert abs((first.record.timestamp_ms or 0) - time.time() * 1000) < 600_000, "the time at which the broker got it"
    assert (second.record.value, second.record.headers, second.record.key) == (b"\0\xff", (), None)

    queue.close()

    queue = new_queue("text=true")
    queue.send([NewRecord("queue", "\u00fc".encode(), b"k", (("n", b"1"),)), NewRecord("queue", b"\xff")])
    client.connection.subscribe(f"/queue/{queue.name}", "1", "auto")
    wait_until(lambda: len(client.messages) == 2, WAIT_S)
    text, binary = client.messages
    assert (text.body, text.headers["penstock-key"], text.headers["n"]) == ("\u00fc".encode(), "k", "1")
    assert "content-length" not in text.headers, "a TextMessage"
    assert (binary.body, binary.headers["content-length"]) == (b"\xff", "1")
    client.connection.disconnect()
    queue.close()


@pytest.mark.usefixtures("activemq")
def test_a_record_over_a_limit_is_refused_and_the_queue_goes_on() -> None:
    queue = new_queue()
    check_refused(
        queue, NewRecord("queue", bytes(20 * LARGEST_BYTES)), "maximum data length.*raise the limits of the br"
    )
    check_refused(queue, NewRecord("queue", b"", b"k" * 100_000), "maximum header length.*raise the limits of the br")
    queue.close()


@pytest.mark.usefixtures("activemq")
def test_a_batch_with_a_message_over_the_limit_is_not_stored_at_all() -> None:
    queue = new_queue()
    records = [NewRecord("queue", b"small"), NewRecord("queue", bytes(LARGEST_BYTES + 1))]
    with pytest.raises(RecordTooLargeError, match=f"a message for {queue.name} is larger than stomp://"):
        queue.send(records)

    wait_until(functools.partial(_works, queue), WAIT_S)
    assert [each.record.value for each in _receive(queue, 1)] == [b"again"]
    assert not queue.receive(1, 0.2)
    queue.close()


@pytest.mark.usefixtures("activemq")
def test_what_is_sent_can_wait_or_expire_at_the_broker() -> None:
    later = new_queue("send_delay_s=1")
    began_s = time.monotonic()
    later.send([NewRecord("queue", b"later")])
    assert [each.record.value for each in _receive(later, 1)] == [b"later"]
    assert time.monotonic() - began_s >= 0.8
    brief = new_queue("ttl_s=0.001&priority=9")
    brief.send([NewRecord("queue", b"brief")])
    assert not brief.receive(1, 0.5)
    for queue in (later, brief):
        queue.close()


@pytest.mark.usefixtures("activemq")
def test_a_retried_record_comes_to_others_once_its_holder_closes() -> None:
    first = new_queue()
    first.send([NewRecord("queue", b"1"), NewRecord("queue", b"2")])
    [one, two] = _take(first, 2)
    first.settle_all([one, two], Outcome.RETRY)
    again = _take(first, 2)
    assert [each.record.value for each in again] == [b"1", b"2"], "in their order"
    assert [each.attempt for each in again] == [2, 2]
    first.close()
    second = new_queue(name=first.name)
    deliveries = _receive(second, 2)
    assert {each.record.value for each in deliveries} == {b"1", b"2"}
    assert all(each.attempt > 1 for each in deliveries)
    second.close()


@pytest.mark.usefixtures("activemq")
def test_what_cannot_work_is_refused_with_the_reason() -> None:
    address = os.environ[ADDRESS]
    with pytest.raises(BrokerUnavailableError, match=r"stomp://me@[\d.:]+/q refused the user or the password") as wrong:
        open_queue(f"stomp://me:secret@{address}/q")
    assert not wrong.value.retriable
    assert "secret" not in str(wrong.value)
    denied = open_queue(f"stomp://{STRANGER}:{quote(PASSWORD, safe='')}@{address}/q")
    with pytest.raises(NotAllowedError, match=r"denied a request: .*not authorized"):
        denied.send([NewRecord("queue", b"1")])
    with pytest.raises(NotAllowedError, match=r"denied a request: .*not authorized"):
        denied.receive(1, 0.0)
    denied.close()
    with pytest.raises(UrlError, match="is not stomp://HOST:PORT/QUEUE"):
        open_queue(f"stomp://{address}")
    with pytest.raises(UrlError, match="has a line break"):
        open_queue(f"stomp://me:a%0Ab@{address}/q")
    with pytest.raises(ConfigError, match=r"has no setting 'prefech'; stomp: has .*prefetch"):
        open_queue(f"stomp://{address}/q?prefech=1")
    for parameters, reason in (
        ("prefetch=0", "prefetch=0 must be an integer >= 1"),
        ("priority=10", "priority=10 must be an integer from 0 to 9"),
        ("send_delay_s=-1", "send_delay_s=-1.0 must not be negative"),
        ("ttl_s=0", "ttl_s=0.0 must be positive"),
        ("destination=/queue/{name}", "may have {queue} and no other braces"),
        ("ca_file=/nowhere", "certificates for stomp.ssl://.* cannot be loaded"),
    ):
        with pytest.raises(ConfigError, match=reason):
            open_queue(f"stomp{'+ssl' * ('ca_file' in parameters)}://{address}/q?{parameters}")
    queue = new_queue()
    queue.send([NewRecord("queue", b"1")])
    [delivery] = queue.receive(1, WAIT_S)
    with pytest.raises(ConfigError, match="cannot delay a delivery"):
        queue.settle(delivery, Outcome.RETRY, delay_s=1.0)
    queue.settle(delivery, Outcome.DONE)
    with pytest.raises(StaleDeliveryError, match="was settled twice"):
        queue.settle(delivery, Outcome.DONE)
    queue.close()


def test_an_unreachable_server_is_told_in_time() -> None:
    with TcpProxy(1) as proxy:
        proxy.cut()
        with pytest.raises(BrokerUnavailableError, match=rf"broker at stomp://{proxy.address}/q cannot be reached"):
            open_queue(f"stomp://{proxy.address}/q?connect_timeout_s=1")


def test_a_broker_that_takes_nothing_does_not_block_a_sender_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(_accept_and_read_no_more, listener)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        queue = open_queue(f"stomp://{address}/q?send_timeout_s=1")
        with pytest.raises(BrokerUnavailableError, match=f"stomp://{address}/q cannot be reached"):
            queue.send([NewRecord("queue", bytes(1_000_000)) for _ in range(20)])
        accepting.result(WAIT_S).close()
        queue.close()


def _accept_and_read_no_more(listener: socket.socket) -> socket.socket:
    """As a broker does that has no room for more messages. It offers no heart-beats."""
    connection, _ = listener.accept()
    connection.recv(1)
    connection.sendall(b"CONNECTED\nversion:1.2\n\n\0")
    return connection


def test_a_server_of_another_kind_is_told_apart(activemq: ActiveMq) -> None:
    with pytest.raises(BrokerUnavailableError, match=r"closed the connection without an answer|Is it a port for STOMP"):
        open_queue(f"stomp://127.0.0.1:{activemq.amqp_port}/q?connect_timeout_s=2")


def test_the_next_host_is_tried_when_one_cannot_be_reached(activemq: ActiveMq) -> None:
    secret = quote(PASSWORD, safe="")
    queue = open_queue(f"stomp://{USER}:{secret}@127.0.0.1:1,127.0.0.1:{activemq.port}/hosts")
    assert isinstance(queue, StompQueue)
    queue.send([NewRecord("queue", b"1")])
    assert [each.record.value for each in _receive(queue, 1)] == [b"1"]
    queue.close()


def test_tls_is_verified_and_recovers(activemq: ActiveMq) -> None:
    if activemq.keystore is None:
        pytest.skip("openssl is not there: install it to make the certificates")
    authority = activemq.keystore.with_name("ca.pem")
    with TcpProxy(activemq.tls_port) as proxy:
        place = f"stomp+ssl://{USER}:{quote(PASSWORD, safe='')}@{proxy.address}/tls-{uuid.uuid4().hex[:8]}"
        with pytest.raises(BrokerUnavailableError, match=r"certificate of stomp.ssl://.* is not trusted.*Set ca_file"):
            open_queue(place)
        queue = open_queue(f"{place}?ca_file={authority}&heartbeat_s=1")
        assert isinstance(queue, StompQueue)
        values = [bytes(200_000), b"\0" * 1000, b"small"]
        queue.send([NewRecord("queue", value) for value in values])
        assert [each.record.value for each in _receive(queue, 3)] == values
        for break_network in (proxy.cut, proxy.freeze):
            queue.send([NewRecord("queue", b"1")])
            break_network()
            wait_until(functools.partial(_fails, queue), WAIT_S)
            proxy.heal()
            wait_until(functools.partial(_works, queue), WAIT_S)
            assert {each.record.value for each in _receive(queue, 2)} == {b"1", b"again"}
        queue.close()


def _fails(queue: StompQueue) -> bool:
    try:
        return not queue.receive(1, 0.1) and False
    except BrokerUnavailableError:
        return True


def _works(queue: StompQueue) -> bool:
    try:
        queue.send([NewRecord("queue", b"again")])
    except BrokerUnavailableError:
        return False
    return True


@pytest.mark.usefixtures("activemq")
def test_an_app_handles_every_record_though_handlers_fail_and_its_process_is_killed(tmp_path: Path) -> None:
    check_every_record_is_handled(url(f"jobs-{uuid.uuid4().hex[:8]}"), tmp_path)


class Client(stomp.ConnectionListener):  # type: ignore[misc]
    """stomp.py as other programs use it."""

    def __init__(self, server: ActiveMq) -> None:
        self.messages: list[Any] = []
        self.connection = stomp.Connection12([("127.0.0.1", server.port)], auto_decode=False, auto_content_length=False)
        self.connection.set_listener("test", self)
        self.connection.connect(USER, PASSWORD, wait=True)

    def on_message(self, frame: Any) -> None:
        self.messages.append(frame)


def _find(queue: StompQueue, key: bytes) -> StompDelivery:
    """The delivery with this key; others are settled."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        for delivery in queue.receive(1, 1.0):
            if delivery.record.key == key:
                return delivery
            queue.settle(delivery, Outcome.DONE)
    raise AssertionError(f"{queue.name} has no record with the key {key!r}")


def _take(queue: StompQueue, count: int) -> list[StompDelivery]:
    received: list[StompDelivery] = []
    while len(received) < count:
        deliveries = queue.receive(count - len(received), WAIT_S)
        assert deliveries, f"{len(received)} of {count} records came, and then none"
        received += deliveries
    return received


def _receive(queue: StompQueue, count: int) -> list[StompDelivery]:
    """So many deliveries, settled as done."""
    received = _take(queue, count)
    assert not queue.settle_all(received, Outcome.DONE)
    return received
