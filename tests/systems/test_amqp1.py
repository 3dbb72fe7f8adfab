"""Queues of AMQP 1.0 brokers by `amqp1:` URLs: Artemis, which is killed and cut off, Qpid, RabbitMQ and ActiveMQ."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest

from penstock.abc import Feature, Outcome
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    StaleDeliveryError,
    StreamError,
    UrlError,
)
from penstock.model import NewRecord
from penstock.queues import open_queue
from penstock.queues.amqp1 import Amqp1Delivery, Amqp1Queue
from penstock.queues.reconnecting import LONGEST_BACKOFF_S
from penstock.testing import TcpProxy, conformance
from tests import real_parts, system_table
from tests.consuming.eventually import wait_until
from tests.servers import free_ports
from tests.systems import activemq_server, artemis_server, qpid_server
from tests.systems.activemq_server import ActiveMq
from tests.systems.artemis_server import Artemis
from tests.systems.java_keystore import make_keystore
from tests.systems.killed_queue_app import check_every_record_is_handled
from tests.systems.older_server import relay_that_replaces
from tests.systems.oversize import check_refused
from tests.systems.qpid_server import LARGEST_MESSAGE_BYTES, Qpid
from tests.systems.rabbitmq_server import RabbitMq

pytestmark = [pytest.mark.system("AMQP 1.0, Artemis"), pytest.mark.xdist_group("amqp1")]

ARTEMIS = "PENSTOCK_TEST_ARTEMIS"
QPID = "PENSTOCK_TEST_QPID"
RABBITMQ = "PENSTOCK_TEST_RABBITMQ_AMQP1"
RABBITMQ4 = "PENSTOCK_TEST_RABBITMQ4_AMQP1"
ACTIVEMQ = "PENSTOCK_TEST_ACTIVEMQ_AMQP1"
USER = f"{artemis_server.USER}:{quote(artemis_server.PASSWORD, safe='')}"
WAIT_S = 30.0
LARGEST_BYTES = 1_000_000
SOON_DEAD = f"heartbeat = 10\nmax_message_size = {LARGEST_BYTES}\n"
"""RabbitMQ: a client that is silent for about 20 s is dead. By default, it takes two minutes."""
OVERSIZE = NewRecord("queue", b"x" * (LARGEST_BYTES + 1))


class Outage:
    def __init__(self, server: Artemis | Qpid | RabbitMq | ActiveMq, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self.kill = server.kill
        self.restart = server.restart


_running: dict[str, Outage] = {}
"""By the environment variable that has the server's URL."""


def outage_of(variable: str) -> Callable[[], Outage]:
    return lambda: _running[variable]


@contextmanager
def reached(variable: str, server: Artemis | Qpid | RabbitMq | ActiveMq, port: int, user: str) -> Iterator[None]:
    """The environment has the server's URL, which leads through a proxy."""
    with TcpProxy(port) as proxy:
        os.environ[variable] = f"amqp1://{user}@{proxy.address}"
        _running[variable] = Outage(server, proxy)
        yield
        del _running[variable], os.environ[variable]


@pytest.fixture(scope="module")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    real_parts.proton()
    keystore = make_keystore(tmp_path_factory.mktemp("certificates")) if shutil.which("openssl") else None
    with (
        Artemis(tmp_path_factory.mktemp("artemis"), keystore) as server,
        reached(ARTEMIS, server, server.port, USER),
    ):
        meet("AMQP 1.0, Artemis", artemis_url("first", "retries=broker"))
        yield server


@pytest.fixture(scope="module")
def qpid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qpid]:
    real_parts.proton()
    user = f"{qpid_server.USER}:{qpid_server.PASSWORD}"
    with Qpid(tmp_path_factory.mktemp("qpid")) as server, reached(QPID, server, server.port, user):
        meet("AMQP 1.0, Qpid", f"{os.environ[QPID]}/delaying?retries=broker")
        yield server


@pytest.fixture(scope="class")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    real_parts.proton()
    with (
        RabbitMq(tmp_path_factory.mktemp("rabbitmq"), settings=SOON_DEAD) as server,
        reached(RABBITMQ, server, server.port, "guest:guest"),
    ):
        meet("AMQP 1.0, RabbitMQ 3", f"{os.environ[RABBITMQ]}/first")
        yield server


@pytest.fixture(scope="class")
def rabbitmq4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    real_parts.proton()
    with (
        RabbitMq(tmp_path_factory.mktemp("rabbitmq4"), 4, settings=SOON_DEAD) as server,
        reached(RABBITMQ4, server, server.port, "guest:guest"),
    ):
        with closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port))) as connection:
            channel = connection.channel()
            for name, limit in (("a queue", {"x-delivery-limit": -1}), ("its own limit", {})):
                channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"} | limit)
        meet("AMQP 1.0, RabbitMQ 4", f"{os.environ[RABBITMQ4]}/a%20queue")
        yield server


@pytest.fixture(scope="class")
def activemq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMq]:
    real_parts.proton()
    user = f"{activemq_server.USER}:{quote(activemq_server.PASSWORD, safe='')}"
    with (
        ActiveMq(tmp_path_factory.mktemp("activemq")) as server,
        reached(ACTIVEMQ, server, server.amqp_port, user),
    ):
        meet("AMQP 1.0, ActiveMQ", f"{os.environ[ACTIVEMQ]}/first?retries=broker")
        yield server


def meet(system: str, url: str) -> None:
    with closing(open_amqp1(url)) as queue:
        system_table.met(system, queue.product, queue.features)


def open_amqp1(url: str) -> Amqp1Queue:
    queue = open_queue(url)
    assert isinstance(queue, Amqp1Queue)
    return queue


def artemis_url(name: str, parameters: str = "") -> str:
    return f"{os.environ[ARTEMIS]}/{name}?heartbeat_s=2&{parameters}"


def new_queue(parameters: str = "", *, prefix: str = "") -> Amqp1Queue:
    return open_amqp1(artemis_url(f"{prefix}q-{uuid.uuid4().hex[:8]}", parameters))


def open_on_artemis(folder: Path) -> Amqp1Queue:
    """The folder's name is the queue's, and the environment says where the server is: child processes find it, too."""
    return open_amqp1(artemis_url(folder.name, "retries=broker"))


def open_on_qpid(_: Path) -> Amqp1Queue:
    return open_amqp1(f"{os.environ[QPID]}/delaying?retries=broker&prefetch=5&heartbeat_s=2")


def open_on_rabbitmq(folder: Path) -> Amqp1Queue:
    return open_amqp1(f"{os.environ[RABBITMQ]}/{folder.name}?heartbeat_s=2")


def open_on_rabbitmq4(_: Path) -> Amqp1Queue:
    return open_amqp1(f"{os.environ[RABBITMQ4]}/a%20queue?prefetch=20&heartbeat_s=2")


def open_on_activemq(folder: Path) -> Amqp1Queue:
    return open_amqp1(f"{os.environ[ACTIVEMQ]}/{folder.name}?prefetch=20&retries=broker&heartbeat_s=2")


def suite(factory: Callable[[Path], Amqp1Queue], variable: str) -> Any:
    return conformance.queue(factory, outage=outage_of(variable), longest_backoff_s=LONGEST_BACKOFF_S)


@pytest.mark.usefixtures("artemis")
class TestArtemis(suite(open_on_artemis, ARTEMIS)):  # type: ignore[misc]
    pass


@pytest.mark.usefixtures("qpid")
@pytest.mark.system("AMQP 1.0, Qpid")
class TestQpid(suite(open_on_qpid, QPID)):  # type: ignore[misc]
    pass


@pytest.mark.usefixtures("rabbitmq")
@pytest.mark.system("AMQP 1.0, RabbitMQ 3")
class TestRabbitMq3(suite(open_on_rabbitmq, RABBITMQ)):  # type: ignore[misc]
    def test_retries_by_the_broker_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"delayed delivery, which RabbitMQ 3\..* does not offer: use retries="):
            open_queue(f"{os.environ[RABBITMQ]}/q?retries=broker")

    def test_a_record_over_the_limit_is_refused_and_the_queue_goes_on(self) -> None:
        with closing(open_amqp1(f"{os.environ[RABBITMQ]}/oversize")) as queue:
            check_refused(queue, OVERSIZE, "raise max_message_size of RabbitMQ")


@pytest.mark.usefixtures("rabbitmq4")
@pytest.mark.system("AMQP 1.0, RabbitMQ 4")
class TestRabbitMq4(suite(open_on_rabbitmq4, RABBITMQ4)):  # type: ignore[misc]
    def test_a_missing_queue_is_told(self) -> None:
        with pytest.raises(BrokerUnavailableError, match=r"there is no queue 'missing' at .*create it"):
            open_queue(f"{os.environ[RABBITMQ4]}/missing")

    def test_a_record_over_the_limit_is_refused_and_the_queue_goes_on(self) -> None:
        with closing(open_on_rabbitmq4(Path())) as queue:
            check_refused(queue, OVERSIZE, f"takes {LARGEST_BYTES}.*raise max_message_size of RabbitMQ")

    def test_no_number_of_returns_takes_a_record_out_of_a_queue_without_a_limit(self) -> None:
        for outcome in (Outcome.RELEASE, Outcome.RETRY):
            with self.assertNoLogs("penstock.queues", "WARNING"), closing(open_on_rabbitmq4(Path())) as queue:
                queue.send([NewRecord("queue", b"often")])
                for _ in range(50):
                    [delivery] = queue.receive(1, WAIT_S)
                    queue.settle(delivery, outcome)
                assert [each.record.value for each in _receive(queue, 1)] == [b"often"]

    def test_a_queue_with_the_limit_of_rabbitmq_is_warned_about(self) -> None:
        with (
            self.assertLogs("penstock.queues", "WARNING") as logs,
            closing(open_amqp1(f"{os.environ[RABBITMQ4]}/its%20own%20limit")) as queue,
        ):
            queue.send([NewRecord("queue", b"lost")])
            for _ in range(21):
                [delivery] = queue.receive(1, WAIT_S)
                queue.settle(delivery, Outcome.RELEASE)
            queue.send([NewRecord("queue", b"next")])
            assert [each.record.value for each in _receive(queue, 1)] == [b"next"]
        assert re.search(r"queue 'its own limit' .* without x-delivery-limit: .* run rabbitmqctl set_pol", *logs.output)


@pytest.mark.usefixtures("activemq")
@pytest.mark.system("AMQP 1.0, ActiveMQ")
class TestActiveMq(suite(open_on_activemq, ACTIVEMQ)):  # type: ignore[misc]
    def test_a_record_over_the_limit_is_refused_and_the_queue_goes_on(self) -> None:
        with closing(open_amqp1(f"{os.environ[ACTIVEMQ]}/oversize")) as queue:
            check_refused(queue, OVERSIZE, "raise wireFormat.maxFrameSize of ActiveMQ's connector")


@pytest.mark.usefixtures("artemis")
def test_a_record_whose_headers_are_over_the_limit_of_artemis_is_refused_and_the_queue_goes_on() -> None:
    with closing(new_queue()) as queue:
        record = NewRecord("queue", b"", headers=(("h", b"v" * LARGEST_BYTES),))
        check_refused(queue, record, "keep large headers in the value, or raise journal-buffer-size")


@pytest.mark.usefixtures("artemis")
def test_a_rejected_record_is_in_the_dead_letter_queue_of_the_broker() -> None:
    queue = new_queue()
    assert Feature.DEAD_LETTERS in queue.features
    mark = uuid.uuid4().bytes
    queue.send([NewRecord("queue", b"bad", mark, (("reason", b"none"),), 1_700_000_000_123)])
    [delivery] = queue.receive(1, WAIT_S)
    assert not queue.settle_all([delivery], Outcome.REJECT, reason="it is bad")
    letters = open_amqp1(artemis_url("DLQ"))
    while (dead := _receive(letters, 1)[0]).record.key != mark:  # ends: other tests reject a few records only
        pass
    assert (dead.record.value, dead.record.headers) == (b"bad", (("reason", b"none"),))
    assert dead.record.timestamp_ms == 1_700_000_000_123
    assert dead.record.offset == delivery.record.offset
    letters.close()
    queue.close()


@pytest.mark.usefixtures("artemis")
def test_null_values_and_repeated_headers_come_back() -> None:
    queue = new_queue()
    headers = (("twice", b"1"), ("twice", None), ("once", b"\xff"), ("twice", b"3"))
    queue.send([NewRecord("queue", None, b"", headers, 0), NewRecord("queue", b"", headers=(("n" * 300, b"v" * 300),))])
    null, empty = _receive(queue, 2)
    assert (null.record.value, null.record.key, null.record.timestamp_ms) == (None, b"", 0)
    assert null.record.headers == headers
    assert (empty.record.value, empty.record.key, empty.record.timestamp_ms) == (b"", None, None)
    assert empty.record.headers == (("n" * 300, b"v" * 300),)
    queue.close()


def test_messages_of_other_programs_are_read(artemis: Artemis) -> None:
    queue = new_queue()
    with closing(_proton_connection(artemis)) as connection:
        sender = connection.create_sender(queue.name)
        for message in _messages_of_another_program():
            sender.send(message)
    text, mapping, listed, nothing, data = _receive(queue, 5)
    assert (text.record.value, text.record.key) == (b"text", b"group")
    assert text.record.timestamp_ms == 1_700_000_000_500
    assert dict(text.record.headers) == {"n": b"5", "text": "ü".encode(), "yes": b"true", "raw": b"\xff", "none": None}
    assert json.loads(mapping.record.value or b"") == {"a": [1, 2.5, "x"]}
    assert json.loads(listed.record.value or b"") == [1, "two"]
    assert nothing.record.value is None
    assert (data.record.value, data.record.headers, data.record.timestamp_ms) == (b"bytes", (), None)
    assert len({each.record.offset for each in (text, mapping, listed, nothing, data)}) == 5
    queue.close()


def _messages_of_another_program() -> list[Any]:
    from proton import Message

    properties = {"n": 5, "text": "ü", "yes": True, "raw": b"\xff", "none": None}
    return [
        Message("text", properties=properties, group_id="group", creation_time=1_700_000_000.5, id="1"),
        Message({"a": [1, 2.5, "x"]}),
        Message([1, "two"], inferred=True),
        Message(None, id=7),
        Message(b"bytes", inferred=True, id=uuid.uuid4()),
    ]


def test_other_programs_read_our_messages(artemis: Artemis) -> None:
    queue = new_queue("group_by_key=true")
    queue.send([NewRecord("queue", b"value", b"key", (("a", b"text"), ("b", b"\xff")), 1_700_000_000_123)])
    with closing(_proton_connection(artemis)) as connection:
        receiver = connection.create_receiver(queue.name)
        message = receiver.receive(timeout=WAIT_S)
        receiver.accept()
    assert bytes(message.body) == b"value"
    assert message.durable
    assert message.group_id == "key"
    assert round(message.creation_time * 1000) == 1_700_000_000_123
    assert message.properties["a"] == "text"
    assert bytes(message.properties["b"]) == b"\xff"
    assert message.properties["penstock-key"] == "key"
    queue.close()


def _proton_connection(artemis: Artemis) -> Any:
    from proton.utils import BlockingConnection

    return BlockingConnection(
        f"127.0.0.1:{artemis.port}",
        timeout=WAIT_S,
        user=artemis_server.USER,
        password=artemis_server.PASSWORD,
        allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
    )


@pytest.mark.usefixtures("artemis")
def test_a_delayed_record_keeps_its_count_and_all_else_when_the_consumer_is_replaced() -> None:
    queue = new_queue("retries=broker")
    assert queue.features >= {Feature.DELAYED_REDELIVERY, Feature.DELIVERY_COUNT}
    headers = (("h", b"1"),)
    queue.send([NewRecord("queue", b"value", b"key", headers, 1_700_000_000_123)])
    for attempt in (1, 2, 3):
        [delivery] = queue.receive(1, WAIT_S)
        assert delivery.attempt == attempt
        queue.settle(delivery, Outcome.RETRY, delay_s=0.1)
        queue.close()
        queue = open_amqp1(artemis_url(queue.name, "retries=broker"))
    [last] = queue.receive(1, WAIT_S)
    assert last.attempt == 4
    assert last.record == delivery.record
    queue.settle(last, Outcome.RELEASE, delay_s=0.1)
    [released] = queue.receive(1, WAIT_S)
    assert released.attempt == 4, "a released delivery does not count"
    queue.settle(released, Outcome.DONE)
    queue.close()


def test_a_message_that_must_not_be_copied_is_retried_at_once(artemis: Artemis) -> None:
    from proton import Message

    queue = new_queue("retries=broker")
    with closing(_proton_connection(artemis)) as connection:
        connection.create_sender(queue.name).send(Message(b"once", properties={"_AMQ_DUPL_ID": "1"}, durable=True))
    [delivery] = queue.receive(1, WAIT_S)
    queue.settle(delivery, Outcome.RETRY, delay_s=0.1)
    [again] = queue.receive(1, WAIT_S)
    assert (again.record.value, again.attempt) == (b"once", 2)
    queue.settle(again, Outcome.DONE)
    queue.close()


@pytest.mark.usefixtures("artemis", "qpid")
@pytest.mark.parametrize("broker", [ARTEMIS, QPID])
def test_what_was_fetched_and_not_handled_is_not_counted_when_the_queue_is_closed(broker: str) -> None:
    url = f"{os.environ[broker]}/plain"
    first = open_amqp1(url)
    first.send([NewRecord("queue", b"%d" % number) for number in range(5)])
    [taken] = first.receive(1, WAIT_S)
    first.close()
    second = open_amqp1(url)
    assert [(each.record.value, each.attempt) for each in _receive(second, 5)] == [
        (b"%d" % number, 1) for number in range(5)
    ]
    with pytest.raises(StaleDeliveryError, match="its connection was lost"):
        second.settle(taken, Outcome.DONE)
    second.close()


@pytest.mark.usefixtures("artemis")
def test_records_of_one_key_go_to_one_consumer() -> None:
    name = f"groups-{uuid.uuid4().hex[:8]}"
    queues = [open_amqp1(artemis_url(name, "group_by_key=true&prefetch=1")) for _ in range(2)]
    for queue in queues:
        queue.receive(1, 0.0)
    queues[0].send([NewRecord("queue", b"", b"%d" % (number % 4)) for number in range(40)])
    keys: list[Counter[bytes | None]] = [Counter(), Counter()]

    def drain() -> bool:
        for queue, seen in zip(queues, keys, strict=True):
            for delivery in queue.receive(10, 0.1):
                seen[delivery.record.key] += 1
                queue.settle(delivery, Outcome.DONE)
        return sum(keys[0].values()) + sum(keys[1].values()) == 40

    wait_until(drain, WAIT_S)
    assert all(count == 10 for seen in keys for count in seen.values()), f"keys were shared: {keys}"
    for queue in queues:
        queue.close()


def test_tls_is_checked_and_used(artemis: Artemis) -> None:
    if artemis.keystore is None:
        pytest.skip("openssl is not there: install it to make the certificates of a secured broker")
    authority = artemis.keystore.with_name("ca.pem")
    address = f"{USER}@127.0.0.1:{artemis.tls_port}"
    with closing(open_amqp1(f"amqps1://{address}/secret?ca_file={authority}")) as queue:
        value = os.urandom(300_000)
        queue.send([NewRecord("queue", value)])
        assert _receive(queue, 1)[0].record.value == value
    with pytest.raises(BrokerUnavailableError, match=r"TLS with amqps1://.* failed: .*; set ca_file") as untrusted:
        open_queue(f"amqps1://{address}/secret")
    assert not untrusted.value.retriable
    assert "s3cret" not in str(untrusted.value)
    with pytest.raises(BrokerUnavailableError, match=r"gave no answer within 2 s.*is it the right port\?"):
        open_queue(f"amqps1://{USER}@127.0.0.1:{artemis.port}/secret?ca_file={authority}&connect_timeout_s=2")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        open_queue(f"amqps1://{address}/secret?ca_file=/no/such/file")
    with pytest.raises(ConfigError, match=r"for TLS.*write amqps1://"):
        open_queue(f"amqp1://{address}/secret?ca_file={authority}")


def test_the_user_may_come_from_the_connection_file_of_qpid(
    artemis: Artemis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "connect.json"
    monkeypatch.setenv("MESSAGING_CONNECT_FILE", str(file))
    url = f"amqp1://127.0.0.1:{artemis.port}/first"
    file.write_text(json.dumps({"host": "127.0.0.1", "user": artemis_server.USER, "password": artemis_server.PASSWORD}))
    open_queue(url).close()
    file.write_text(json.dumps({"host": "elsewhere", "user": "somebody", "password": "else"}))
    with pytest.raises(BrokerUnavailableError, match=r"refused access .* give a user, as in amqp1://"):
        open_queue(url)
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"connect\.json cannot be read as connection settings"):
        open_queue(url)


def test_the_next_host_is_used_when_the_first_is_away(artemis: Artemis) -> None:
    (closed,) = free_ports(1)
    with closing(open_amqp1(f"amqp1://{USER}@127.0.0.1:{closed},127.0.0.1:{artemis.port}/second")) as queue:
        queue.send([NewRecord("queue", b"1")])
        assert _receive(queue, 1)[0].record.value == b"1"


@pytest.mark.usefixtures("artemis")
def test_who_may_only_read_can_read() -> None:
    queue = new_queue(prefix="reading.")
    with pytest.raises(BrokerUnavailableError, match=r"refused access to 'reading\..*check the user's permissions"):
        queue.send([NewRecord("queue", b"1")])
    assert not queue.receive(1, 0.0)
    queue.close()


@pytest.mark.usefixtures("artemis")
def test_a_broker_that_cannot_store_a_message_is_told() -> None:
    queue = new_queue(prefix="full.")
    with pytest.raises(StreamError, match=r"could not store a message in full\..*, it was rejected"):
        _send_some(queue, 5)
    assert len(_receive(queue, 2)) == 2
    queue.close()


def _send_some(queue: Amqp1Queue, count: int) -> None:
    for _ in range(count):
        queue.send([NewRecord("queue", b"1")])


@pytest.mark.usefixtures("qpid")
def test_a_record_over_the_limit_is_refused_and_the_queue_goes_on() -> None:
    queue = open_amqp1(f"{os.environ[QPID]}/plain")
    record = NewRecord("queue", b"x" * (LARGEST_MESSAGE_BYTES + 1))
    check_refused(queue, record, f"the broker takes {LARGEST_MESSAGE_BYTES}.*raise qpid.max_message_size")
    queue.close()


@pytest.mark.usefixtures("qpid")
def test_a_record_whose_delayed_copy_would_be_over_the_limit_is_retried_at_once() -> None:
    queue = open_amqp1(f"{os.environ[QPID]}/delaying?retries=broker")
    value = b"x" * (LARGEST_MESSAGE_BYTES - 100)
    queue.send([NewRecord("queue", value)])
    [delivery] = queue.receive(1, WAIT_S)
    queue.settle(delivery, Outcome.RETRY, delay_s=WAIT_S * 100)
    [again] = queue.receive(1, WAIT_S)
    assert (again.record.value, again.attempt) == (value, 2)
    queue.settle(again, Outcome.DONE)
    queue.close()


@pytest.mark.usefixtures("qpid")
def test_rejected_records_of_qpid_go_where_its_queue_sends_them() -> None:
    queue = open_amqp1(f"{os.environ[QPID]}/limited?dead_letters=true")
    assert Feature.DEAD_LETTERS in queue.features
    queue.send([NewRecord("queue", b"bad")])
    for _ in range(3):
        [delivery] = queue.receive(1, WAIT_S)
        queue.settle(delivery, Outcome.REJECT)
    letters = open_amqp1(f"{os.environ[QPID]}/dead")
    assert _receive(letters, 1)[0].record.value == b"bad"
    letters.close()
    queue.close()


@pytest.mark.usefixtures("artemis", "qpid")
def test_what_cannot_work_is_refused_with_the_reason() -> None:
    proxy = _running[ARTEMIS].proxy.address
    with pytest.raises(BrokerUnavailableError, match=r"amqp1://me@[\d.:]+/q refused the user or the password") as wrong:
        open_queue(f"amqp1://me:secret@{proxy}/q")
    assert not wrong.value.retriable
    for missing in (f"{os.environ[ARTEMIS]}/nowhere.q", f"{os.environ[QPID]}/missing"):
        with pytest.raises(BrokerUnavailableError, match=r"there is no queue '.*' at .*create it\. .*\(amqp:not-found"):
            open_queue(missing)
    with closing(open_amqp1(artemis_url("refused.q"))) as refused:
        with pytest.raises(
            BrokerUnavailableError, match=r"refused access to 'refused\.q': check the user's permissions"
        ):
            refused.send([NewRecord("queue", b"1")])
        with pytest.raises(BrokerUnavailableError, match=r"refused access to 'refused\.q'"):
            refused.receive(1, WAIT_S)
    with pytest.raises(BrokerUnavailableError, match=r"refused: Unknown hostname"):
        open_queue(f"{os.environ[QPID]}/plain?virtual_host=elsewhere")
    with pytest.raises(UrlError, match="is not amqp1://HOST:PORT/QUEUE"):
        open_queue(f"amqp1://{proxy}")
    with pytest.raises(ConfigError, match=r"has no setting 'prefech'; amqp1: has .*prefetch"):
        open_queue(f"amqp1://{proxy}/q?prefech=1")
    with pytest.raises(ConfigError, match="prefetch=0 must be an integer from 1 to 65535"):
        open_queue(f"amqp1://{proxy}/q?prefetch=0")
    with pytest.raises(ConfigError, match=r"heartbeat_s=0\.0 must be positive"):
        open_queue(f"amqp1://{proxy}/q?heartbeat_s=0")
    queue = new_queue()
    queue.send([NewRecord("queue", b"1")])
    [delivery] = queue.receive(1, WAIT_S)
    with pytest.raises(ConfigError, match="cannot delay a delivery: without retries=broker"):
        queue.settle(delivery, Outcome.RETRY, delay_s=1.0)
    with pytest.raises(ConfigError, match="is not a delivery of this queue"):
        queue.settle("delivery", Outcome.DONE)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="limit=0 must be"):
        queue.receive(0, 0.0)
    queue.settle(delivery, Outcome.DONE)
    with pytest.raises(StaleDeliveryError, match="was settled twice"):
        queue.settle(delivery, Outcome.DONE)
    queue.close()


def test_a_server_that_is_away_or_of_another_kind_is_told_in_time() -> None:
    real_parts.proton()
    with TcpProxy(1) as proxy:
        proxy.cut()
        with pytest.raises(BrokerUnavailableError, match=rf"broker at amqp1://{proxy.address}/q cannot be reached"):
            open_queue(f"amqp1://{proxy.address}/q?connect_timeout_s=1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(BrokerUnavailableError, match="no answer within 1 s"):
            open_queue(f"amqp1://127.0.0.1:{port}/q?connect_timeout_s=1")  # it accepts, and says nothing
        threading.Thread(target=_answer_as_web_server, args=(server,), daemon=True).start()
        with pytest.raises(BrokerUnavailableError, match=r"does not answer as an AMQP 1\.0 broker does"):
            open_queue(f"amqp1://127.0.0.1:{port}/q?connect_timeout_s=10")


def _answer_as_web_server(server: socket.socket) -> None:
    for _ in range(10):
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_a_broker_that_is_too_old_says_so(artemis: Artemis) -> None:
    older = "1" + artemis.version[1:]
    with (
        relay_that_replaces(artemis.port, artemis.version.encode(), older.encode()) as address,
        pytest.raises(BrokerUnavailableError, match=rf"it is Artemis {older}, which is too old: 2\.0 or") as old,
    ):
        open_queue(f"amqp1://{USER}@{address}/q")
    assert not old.value.retriable


@pytest.mark.usefixtures("artemis")
@pytest.mark.parametrize("retries", ["consumer", "broker"])
def test_an_app_handles_every_record_though_handlers_fail_and_its_process_is_killed(
    tmp_path: Path, retries: str
) -> None:
    url = artemis_url(f"jobs-{uuid.uuid4().hex[:8]}", f"retries={retries}&prefetch=20")
    check_every_record_is_handled(url, tmp_path)


def _receive(queue: Amqp1Queue, count: int) -> list[Amqp1Delivery]:
    """So many deliveries, settled as done."""
    received: list[Amqp1Delivery] = []
    while len(received) < count:
        deliveries = queue.receive(count - len(received), WAIT_S)
        assert deliveries, f"{len(received)} of {count} records came, and then none"
        received += deliveries
    queue.settle_all(received, Outcome.DONE)
    return received
