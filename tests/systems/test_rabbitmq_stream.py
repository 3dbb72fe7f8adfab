"""RabbitMQ streams on a real RabbitMQ 4."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import pytest
import rstream
from rstream.compression import CompressionType
from typer.testing import CliRunner

import penstock
from penstock.abc import TopicStream
from penstock.cli.main import app as command
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    InvalidTopicError,
    NotAllowedError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import NewRecord, Position
from penstock.queues import open_queue
from penstock.streams.adapting.append_queue import LONGEST_PAUSE_S
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.clients.names import fresh
from tests.consuming.eventually import wait_until
from tests.secured_kafka import make_certificates
from tests.seeds import seed_of
from tests.servers import free_ports
from tests.systems.rabbitmq_server import RabbitMq, cluster_of
from tests.systems.stream_app import check_a_killed_app_loses_nothing

pytestmark = [pytest.mark.system("RabbitMQ streams"), pytest.mark.xdist_group("rabbitmq-stream")]

URL = "PENSTOCK_TEST_RABBITMQ_STREAM"
MANAGEMENT = "PENSTOCK_TEST_RABBITMQ_MANAGEMENT"
PLUGINS = ("rabbitmq_management", "rabbitmq_auth_mechanism_ssl")
SETTINGS = """
management.tcp.ip = 127.0.0.1
management.tcp.port = {management_port}
stream.listeners.ssl.local = 127.0.0.1:{tls_stream_port}
ssl_options.cacertfile = {folder}/ca.pem
ssl_options.certfile = {folder}/key.pem
ssl_options.keyfile = {folder}/key.pem
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
ssl_cert_login_from = common_name
"""


class Outage:
    """A RabbitMQ and the proxy in front of it."""

    def __init__(self, server: RabbitMq, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self._server = server

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.restart()


_running: list[Outage] = []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    folder = tmp_path_factory.mktemp("rabbitmq")
    make_certificates(folder, folder / "ca.pem", folder / "key.pem")
    with RabbitMq(folder, 4, plugins=PLUGINS, settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: RabbitMq) -> Iterator[TcpProxy]:
    with TcpProxy(server.stream_port) as proxy:
        with penstock.connect(f"rabbitmq-stream://{proxy.address}") as stream:
            system_table.met("RabbitMQ streams", f"RabbitMQ {server.version}, one node", stream.features)
        _running.append(Outage(server, proxy))
        yield proxy
        _running.pop()


def connect(url: str, **settings: object) -> penstock.Connection:
    mark = "&" if "?" in url else "?"
    return penstock.connect(f"{url}{mark}{urlencode(settings)}")


def open_rabbitmq() -> penstock.Connection:
    """Found by the environment, so that child processes find it, too."""
    return connect(os.environ[URL], timeout_s=2.0, management=os.environ[MANAGEMENT])


def outage() -> Outage:
    return _running[-1]


class TestRabbitMqStreams(conformance.stream(open_rabbitmq, outage=outage, longest_backoff_s=LONGEST_PAUSE_S)):  # type: ignore[misc]
    # Retention removes whole segments: it cannot keep 4 of 10 records. There is a test of our own below.
    test_records_that_expired_are_never_skipped_silently = None
    test_a_partition_whose_records_expired_is_removed_and_the_others_go_on = None

    @pytest.fixture(autouse=True)
    def _server(self, server: RabbitMq, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(URL, f"rabbitmq-stream://{proxy.address}")
        monkeypatch.setenv(MANAGEMENT, f"http://127.0.0.1:{server.management_port}")


@pytest.fixture
def url(server: RabbitMq) -> str:
    return f"rabbitmq-stream://127.0.0.1:{server.stream_port}?management=http%3A//127.0.0.1%3A{server.management_port}"


@pytest.fixture
def topic() -> str:
    return fresh()


def manage(server: RabbitMq, method: str, what: str, body: dict[str, str] | None = None) -> Any:
    """Ask the management API, which is quicker than `rabbitmqctl`."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.management_port}/api/{what}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


R = TypeVar("R")


def by_producer(server: RabbitMq, work: Callable[[Any], Awaitable[R]]) -> R:
    """Use RabbitMQ's own client, as other programs do."""

    async def run() -> R:
        async with rstream.Producer("127.0.0.1", server.stream_port, username="guest", password="guest") as producer:
            return await work(producer)

    return asyncio.run(run())


def their_messages(server: RabbitMq, stream: str, count: int) -> list[Any]:
    """What RabbitMQ's own client reads."""
    found: list[Any] = []

    async def run() -> None:
        consumer = rstream.Consumer("127.0.0.1", server.stream_port, username="guest", password="guest")

        async def take(message: Any, context: Any) -> None:
            found.append(message)
            if len(found) == count:
                consumer.stop()

        first = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST)
        await consumer.start()
        await consumer.subscribe(stream, take, decoder=rstream.amqp_decoder, offset_specification=first)
        await asyncio.wait_for(consumer.run(), 30)
        await consumer.close()

    asyncio.run(run())
    return found


def test_an_app_whose_process_is_killed_handles_every_record(url: str, topic: str, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'checkpoints.db'}"
    check_a_killed_app_loses_nothing(url, topic, tmp_path, store, random.Random(seed_of()).randint(20, 120))


def test_an_app_must_say_where_checkpoints_are_kept(url: str, topic: str) -> None:
    app = penstock.App(url, group="billing")
    app.handle(topic)(print)
    with pytest.raises(ConfigError, match="has no place for checkpoints: pass checkpoints="):
        app.run(end="latest")


def test_messages_of_other_programs_are_records(server: RabbitMq, url: str, topic: str) -> None:
    properties = rstream.Properties(message_id="m-1", correlation_id=7, content_type="text/plain")
    messages = [
        rstream.AMQPMessage(body=b"data", application_properties={"n": 5, "t": "text", "f": True, "none": None}),
        rstream.AMQPMessage(body=b"with properties", properties=properties),
        b"\x00SpE\x00Sw\xc1\x0c\x02\xa1\x01a\xc0\x06\x02U\x01\xa1\x01x",  # with a header, a map in the body
        b"\x00St\xc1\x1f\x04\xa1\x04long\x81\x10\0\0\0\0\0\0\0\xa1\x04half\x82\x3f\xe0\0\0\0\0\0\0\x00Sw\xa1\x04text",
        b"\x00Su\xa0\x04two \x00Su\xb0\x00\x00\x00\x08sections",
        b"no AMQP",
        b"\x00Su\xa0\x7fcut",
    ]

    async def publish(producer: Any) -> None:
        await producer.create_stream(topic)
        for message in messages:
            await producer.send_wait(topic, message)

    by_producer(server, publish)
    with penstock.connect(url) as stream:
        records = list(stream.read(topic))
    assert [record.offset for record in records] == list(range(7))
    values = [record.value for record in records]
    assert values[:2] == [b"data", b"with properties"]
    assert json.loads(values[2] or b"") == {"a": [1, "x"]}
    assert values[3:] == [b"text", b"two sections", b"no AMQP", b"\x00Su\xa0\x7fcut"]
    assert records[3].headers == (("long", b"%d" % (1 << 60)), ("half", b"0.5"))
    assert records[0].headers == (("n", b"5"), ("t", b"text"), ("f", b"true"), ("none", None))
    assert dict(records[1].headers) == {
        "amqp-message-id": b"m-1",
        "amqp-correlation-id": b"7",
        "amqp-content-type": b"text/plain",
    }
    assert all(record.key is None for record in records)


@pytest.mark.parametrize("compression", [CompressionType.No, CompressionType.Gzip])
def test_batches_that_other_programs_compress_are_records(
    server: RabbitMq, url: str, topic: str, compression: CompressionType
) -> None:
    messages = [rstream.AMQPMessage(body=b"%d" % number) for number in range(20)]

    async def publish(producer: Any) -> None:
        await producer.create_stream(topic)
        await producer.send_sub_entry(topic, messages, compression_type=compression)
        await producer.send_wait(topic, rstream.AMQPMessage(body=b"20"))

    by_producer(server, publish)
    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        wait_until(lambda: opened.span(0) == (0, 21))
        records = list(stream.read(topic))
        assert [record.offset for record in records] == list(range(21))
        assert sorted(int(record.value or b"") for record in records) == list(range(21))
        assert opened.read(0, 13, 100, 5.0).records == records[13:]


def test_other_programs_read_our_records(server: RabbitMq, url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        receipt = stream.send(topic, b"value", key=b"key", headers={"trace": b"7", "raw": b"\xff"})
        assert receipt.result(10).offset == 0
        stream.send(topic, None, key=b"\xff").result(10)
    first, second = their_messages(server, topic, 2)
    assert bytes(first.body) == b"value"
    assert first.application_properties == {b"penstock-key": b"key", b"trace": b"7", b"raw": b"\xff"}
    assert first.properties.message_id.startswith(b"penstock-")
    assert bytes(second.body) == b""
    assert second.application_properties == {b"penstock-key": b"\xff", b"penstock-null": True}


def test_timestamps_are_those_of_the_server_and_the_producers_is_a_header(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        stream.open_topic(topic).append([NewRecord(topic, b"old", timestamp_ms=1_000)])[0].result(10)
        [record] = stream.read(topic)
        assert record.timestamp_ms is not None
        assert record.timestamp_ms > 1_700_000_000_000
        assert record.headers == (("penstock-timestamp", b"1000"),)


def test_a_topic_with_several_partitions_is_a_super_stream(server: RabbitMq, url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        stream.create_topic(topic, 3)
        with pytest.raises(TopicExistsError, match="exists already"):
            stream.create_topic(topic, 3)
        places = [stream.send(topic, b"%d" % number, key=b"%d" % number).result(10) for number in range(12)]
        assert {place.partition for place in places} == {0, 1, 2}
        listed = stream.topics()
        assert topic in listed
        assert f"{topic}-0" not in listed
        assert sorted(record.value or b"" for record in stream.read(topic)) == sorted(b"%d" % n for n in range(12))
        assert list(stream.open_topic(f"{topic}-0").partitions()) == [0], "a partition is a stream, too"
        stream.delete_topic(topic)
        assert topic not in stream.topics()
        with pytest.raises(UnknownTopicError, match="`penstock topics create`"):
            stream.delete_topic(topic)


def test_a_super_stream_of_another_program_keeps_its_order_of_partitions(
    server: RabbitMq, url: str, topic: str
) -> None:
    """Its partitions have names that sort in another order."""

    async def create(producer: Any) -> None:
        client = await producer.default_client
        names = [f"{topic}-{name}" for name in ("north", "east", "south")]
        await client.create_super_stream(topic, names, ["north", "east", "south"])
        await producer.send_wait(f"{topic}-east", rstream.AMQPMessage(body=b"from the east"))

    by_producer(server, create)
    with penstock.connect(url) as stream:
        [record] = stream.read(topic)
        assert (record.partition, record.offset, record.value) == (1, 0, b"from the east")
        assert [name for name in stream.topics() if name.startswith(topic)] == [topic]


def test_keys_are_in_the_partitions_where_other_clients_put_them(url: str, topic: str) -> None:
    """The clients of RabbitMQ for Java, .NET and Go have this table in their tests."""
    expected = {"hello1": 1, "hello2": 0, "hello3": 1, "hello4": 2, "hello5": 0, "hello6": 2, "hello10": 2}
    with penstock.connect(url) as stream:
        stream.create_topic(topic, 3)
        places = {key: stream.send(topic, b"x", key=key.encode()).result(10).partition for key in expected}
    assert places == expected


def test_a_message_that_is_sent_again_is_stored_once(server: RabbitMq, topic: str) -> None:
    """The server stores the records, but what it says is lost; they are sent again, and recognised."""
    with (
        TcpProxy(server.stream_port) as proxy,
        connect(f"rabbitmq-stream://{proxy.address}", timeout_s=1.0) as stream,
    ):
        opened = stream.open_topic(topic)
        opened.append([NewRecord(topic, b"first")])[0].result(10)
        proxy.delay_s = 30.0
        receipts = opened.append([NewRecord(topic, b"%d" % number) for number in range(10)])
        connections = proxy.connections
        wait_until(lambda: proxy.connections > connections)
        proxy.heal()
        assert [receipt.result(30).offset for receipt in receipts] == list(range(1, 11))
        assert opened.span(0) == (0, 11)
        assert [record.value for record in stream.read(topic)] == [b"first", *(b"%d" % n for n in range(10))]


def test_what_others_write_meanwhile_does_not_confuse_receipts(server: RabbitMq, url: str, topic: str) -> None:
    """More chunks than the writer takes ahead come from somebody else before it writes again."""
    with penstock.connect(url) as stream, penstock.connect(url) as other:
        opened, others = stream.open_topic(topic), other.open_topic(topic)
        assert opened.append([NewRecord(topic, b"same")])[0].result(10).offset == 0
        for number in range(40):
            assert others.append([NewRecord(topic, b"same")])[0].result(10).offset == number + 1
        places = [receipt.result(10).offset for receipt in opened.append([NewRecord(topic, b"same")] * 3)]
        assert places == [41, 42, 43]


def fill(stream: penstock.Connection, topic: str, first: int, count: int) -> None:
    """Append records one by one, so that each is a chunk of its own."""
    opened = stream.open_topic(topic)
    for number in range(first, first + count):
        opened.append([NewRecord(topic, b"%d" % number + b"." * 100)])[0].result(10)
    opened.close()


def test_records_that_retention_removed_are_an_error(url: str, topic: str) -> None:
    with connect(url, max_bytes=3_000, segment_bytes=1_000) as stream:
        opened = stream.open_topic(topic)
        fill(stream, topic, 0, 5)
        early = opened.read(0, 0, 2, 5.0)
        assert len(early) == 2
        fill(stream, topic, 5, 60)
        wait_until(lambda: opened.span(0)[0] > 20)
        first, end = opened.span(0)
        for start in (0, first - 1):
            with pytest.raises(OffsetOutOfRangeError, match=f"offset {start} was deleted by retention; .* {first} to"):
                opened.read(0, start, 100, 0)
        with pytest.raises(OffsetOutOfRangeError, match="has not been written yet"):
            opened.read(0, end + 1, 100, 0)
        records = list(stream.read(topic))
        assert records[-1].value == b"64" + b"." * 100
        assert records[0].offset in (first, first + 1)
        # Where a segment begins, RabbitMQ keeps a note of its own: there is no record to miss.
        assert opened.read(0, first, 1, 0)[0] == records[0]


def read_on(opened: TopicStream, start: int, count: int) -> None:
    for _ in range(count):
        start = opened.read(0, start, 1, 1.0).next


def test_a_reader_that_is_overtaken_by_retention_is_told(url: str, topic: str) -> None:
    """It has read the start of the topic, and what comes next is gone when it comes back."""
    with connect(url, max_bytes=3_000, segment_bytes=1_000) as stream:
        opened = stream.open_topic(topic)
        fill(stream, topic, 0, 2)
        start = opened.read(0, 0, 2, 5.0).next
        fill(stream, topic, 2, 300)
        with pytest.raises(OffsetOutOfRangeError, match="was deleted by retention"):
            read_on(opened, start, 400)


def test_settings_of_new_topics(server: RabbitMq, url: str, topic: str) -> None:
    with connect(url, max_age_s=3600.5, max_bytes=1_000_000_000, segment_bytes=1_000_000, partitions=2) as stream:
        stream.send(topic, b"made by the first record").result(10)
        assert list(stream.open_topic(topic).partitions()) == [0, 1]
    arguments = manage(server, "GET", f"queues/%2F/{topic}-1")["arguments"]
    assert (arguments["x-max-age"], arguments["x-max-length-bytes"]) == ("3601s", 1_000_000_000)
    assert arguments["x-stream-max-segment-size-bytes"] == 1_000_000


def test_pointers_are_offsets(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        stream.send(topic, b"x").result(10)
        opened = stream.open_topic(topic)
        assert opened.locate(0, Position.at_pointer(1)) == 1
        with pytest.raises(ConfigError, match="'yesterday' is not an offset of RabbitMQ"):
            opened.locate(0, Position.at_pointer("yesterday"))


def test_a_position_at_a_time_between_two_records(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        opened.append([NewRecord(topic, b"%d" % number) for number in range(50)])[-1].result(10)
        [*_, last] = stream.read(topic)
        assert last.timestamp_ms is not None
        wait_until(lambda: time.time_ns() // 1_000_000 > last.timestamp_ms + 20)  # type: ignore[operator]
        opened.append([NewRecord(topic, b"later")])[0].result(10)
        assert opened.locate(0, Position.at_time(last.timestamp_ms + 1)) == 50
        assert opened.locate(0, Position.at_time(0)) == 0
        assert opened.locate(0, Position.at_time(last.timestamp_ms + 3_600_000)) == 51


def test_the_commands_work_on_rabbitmq(url: str, topic: str) -> None:
    def run(*arguments: str, given: str | None = None) -> str:
        done = CliRunner().invoke(command, [*arguments, "--url", url], input=given)
        assert done.exit_code == 0, done.output
        return done.output

    run("topics", "create", topic, "--partitions", "2")
    run("produce", topic, given="from a terminal\n")
    assert "from a terminal" in run("consume", topic, "--format", "raw")
    assert topic in run("topics", "list")
    run("topics", "delete", topic, "--yes")
    assert topic not in run("topics", "list")


def test_a_topic_that_was_deleted_is_made_again_by_the_next_record(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        assert opened.append([NewRecord(topic, b"one")])[0].result(10).offset == 0
        assert len(opened.read(0, 0, 10, 5.0)) == 1
        stream.delete_topic(topic)
        assert opened.append([NewRecord(topic, b"two")])[0].result(30).offset == 0
        assert [record.value for record in opened.read(0, 0, 10, 5.0)] == [b"two"]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("colour=red", "has no setting 'colour'"),
        ("timeout_s=soon", "timeout_s='soon'"),
        ("timeout_s=0", "must be a positive number of seconds"),
        ("replicas=0", "replicas=0 must be an integer >= 1"),
        ("login=fingerprint", "one of password, certificate"),
        ("login=certificate", "login=certificate needs cert_file"),
        ("max_age_s=0.01", "must be at least 1"),
        ("management=http://ann:secret@host", "the user is that of the URL"),
    ],
)
def test_a_bad_setting_is_refused_when_the_url_is_opened(setting: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        penstock.connect(f"rabbitmq-stream://127.0.0.1:1?{setting}")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("bad", ["rabbitmq-stream:", "rabbitmq-stream://", "rabbitmq-stream://a:notaport"])
def test_a_bad_url_is_refused(bad: str) -> None:
    with pytest.raises(UrlError, match="HOST"):
        penstock.connect(bad)


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    (port,) = free_ports(1)
    with pytest.raises(BrokerUnavailableError, match=f"RabbitMQ at 127.0.0.1:{port} is unavailable") as caught:
        penstock.connect(f"rabbitmq-stream://ann:secret@127.0.0.1:{port}")
    assert "secret" not in str(caught.value)
    assert caught.value.retriable


def test_a_server_of_another_kind_is_named(server: RabbitMq) -> None:
    """The port of AMQP, and one that never says anything."""
    with pytest.raises(BrokerUnavailableError, match="does not speak RabbitMQ's stream protocol"):
        penstock.connect(f"rabbitmq-stream://127.0.0.1:{server.port}")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(BrokerUnavailableError, match=r"did not answer within 0\.2 s"):
            penstock.connect(f"rabbitmq-stream://127.0.0.1:{port}?timeout_s=0.2")


def test_wrong_credentials_are_not_retried(server: RabbitMq) -> None:
    with pytest.raises(BrokerUnavailableError, match=r"wrong user or password\. Check user and password") as caught:
        penstock.connect(f"rabbitmq-stream://ann:secret@127.0.0.1:{server.stream_port}")
    assert not caught.value.retriable
    assert "secret" not in str(caught.value)
    with pytest.raises(BrokerUnavailableError, match=r"virtual host 'nowhere'.*Check the virtual host") as caught:
        penstock.connect(f"rabbitmq-stream://127.0.0.1:{server.stream_port}/nowhere")
    assert not caught.value.retriable


def test_what_is_not_permitted_is_named(server: RabbitMq, url: str, topic: str) -> None:
    """A user of a virtual host of its own who may read one stream, and nothing else."""
    manage(server, "PUT", "vhosts/shop", {})
    manage(server, "PUT", "users/ann", {"password": "right", "tags": ""})
    manage(server, "PUT", "permissions/shop/ann", {"configure": "^$", "write": "^$", "read": "readable.*"})
    with penstock.connect(f"rabbitmq-stream://127.0.0.1:{server.stream_port}/shop") as stream:
        stream.create_topic("hidden")
        stream.create_topic("readable")
    settings = f"delivery_timeout_s=5&{url.partition('?')[2]}"
    with penstock.connect(f"rabbitmq-stream://ann:right@127.0.0.1:{server.stream_port}/shop?{settings}") as stream:
        with pytest.raises(NotAllowedError, match="Change the permissions"):
            stream.create_topic(topic)
        with pytest.raises(NotAllowedError, match="access refused"):
            stream.open_topic("hidden").read(0, 0, 1, 0)
        with pytest.raises(DeliveryError, match="to publish to stream 'readable': access refused"):
            stream.send("readable", b"x").result(10)
        with pytest.raises(NotAllowedError, match="give this user the tag `management`"):
            stream.topics()


def test_a_missing_management_api_is_named(server: RabbitMq) -> None:
    (port,) = free_ports(1)
    with (
        connect(f"rabbitmq-stream://127.0.0.1:{server.stream_port}", management=f"http://127.0.0.1:{port}") as stream,
        pytest.raises(BrokerUnavailableError, match="enable the plugin rabbitmq_management, or say where it is"),
    ):
        stream.topics()


def test_a_missing_topic_says_how_to_create_it(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        with pytest.raises(UnknownTopicError, match="created by the first record, or with `penstock topics create`"):
            stream.open_topic(topic).read(0, 0, 1, 0)
        stream.create_topic(topic, 2)
        with pytest.raises(UnknownTopicError, match="has no partition 2"):
            stream.open_topic(topic).read(2, 0, 1, 0)


def test_a_topic_whose_name_is_taken_by_a_queue_is_refused(server: RabbitMq, url: str, topic: str) -> None:
    open_queue(f"amqp://{server.address}/{topic}").close()
    with penstock.connect(url) as stream:
        with pytest.raises(InvalidTopicError, match="taken by a queue"):
            stream.create_topic(topic)
        assert topic not in stream.topics()


def test_a_record_over_the_limit_is_refused_and_the_others_are_stored(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        good, bad, last = opened.append([NewRecord(topic, value) for value in (b"a", b"b" * (1 << 20), b"c")])
        assert (good.result(10).offset, last.result(10).offset) == (0, 1)
        with pytest.raises(DeliveryError, match=r"accepts, 10485\d\d: raise stream\.frame_max"):
            bad.result(10)
        largest = b"l" * ((1 << 20) - 200)
        assert opened.append([NewRecord(topic, largest)])[0].result(10).offset == 2
        assert opened.read(0, 2, 1, 5.0)[0].value == largest


def test_an_append_to_a_server_that_stays_away_fails_in_time(server: RabbitMq, topic: str) -> None:
    with (
        TcpProxy(server.stream_port) as proxy,
        connect(f"rabbitmq-stream://{proxy.address}", delivery_timeout_s=0.5, timeout_s=0.5) as stream,
    ):
        opened = stream.open_topic(topic)
        opened.append([NewRecord(topic, b"x")])[0].result(10)
        proxy.cut()
        [receipt] = opened.append([NewRecord(topic, b"y")])
        with pytest.raises(DeliveryError, match="RabbitMQ at") as caught:
            receipt.result(30)
        assert caught.value.retriable
        with pytest.raises(BrokerUnavailableError):
            opened.span(0)
        opened.close()


def test_tls_with_password_and_with_certificate(server: RabbitMq, topic: str) -> None:
    address = f"rabbitmq-stream+tls://127.0.0.1:{server.tls_stream_port}"
    authority, key = server.folder / "ca.pem", server.folder / "key.pem"
    with connect(address, ca_file=authority) as stream:
        receipts = [stream.send(topic, b"%d" % number * 100) for number in range(1000)]
        assert receipts[-1].result(10).offset == 999
        assert len(list(stream.read(topic))) == 1000
    with pytest.raises(BrokerUnavailableError, match="certificate verify failed") as caught:
        penstock.connect(address)
    assert not caught.value.retriable
    with pytest.raises(ConfigError, match="cannot be loaded"):
        connect(address, ca_file=server.folder / "missing.pem")
    certified = {"ca_file": authority, "cert_file": key, "key_file": key, "login": "certificate"}
    with pytest.raises(BrokerUnavailableError, match="wrong user or password"):
        connect(address, **certified)
    manage(server, "PUT", "users/127.0.0.1", {"password": "unused", "tags": ""})
    manage(server, "PUT", "permissions/%2F/127.0.0.1", {"configure": ".*", "write": ".*", "read": ".*"})
    with connect(address, **certified) as stream:
        assert stream.send(topic, b"certified").result(10).offset == 1000


def test_the_address_of_the_url_is_used_although_the_server_advertises_another(server: RabbitMq, topic: str) -> None:
    with TcpProxy(server.stream_port) as proxy:
        for settings in ({}, {"load_balancer": "true"}):
            before = proxy.connections
            with connect(f"rabbitmq-stream://{proxy.address}", **settings) as stream:
                stream.send(topic, b"x").result(10)
                list(stream.read(topic))
            assert proxy.connections > before


def test_records_read_in_a_child_process_need_a_connection_of_its_own(url: str, topic: str) -> None:
    """Its thread and its sockets stay with the process that made them."""
    with penstock.connect(url) as stream:
        stream.send(topic, json.dumps({"n": 1}).encode()).result(10)
        pid = os.fork()
        if pid == 0:
            try:
                list(stream.read(topic))
            except penstock.errors.ConnectionClosedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert len(list(stream.read(topic))) == 1


def test_closing_a_topic_leaves_no_consumers_behind(server: RabbitMq, url: str, topic: str) -> None:
    def consumers() -> int:
        return server.control("list_stream_consumers", "stream").count(topic)

    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        opened.append([NewRecord(topic, b"%d" % number) for number in range(20)])[-1].result(10)
        for start in (1, 5, 3, 10, 7, 12):
            assert opened.read(0, start, 2, 0).next == start + 2
        assert 1 < consumers() <= 5, "those of readers, and one that finds what was written"
        opened.close()
        wait_until(lambda: consumers() == 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RabbitMq]]:
    with cluster_of(tmp_path_factory.mktemp("rabbitmq-cluster"), 3) as nodes:
        yield nodes


def test_a_cluster_is_used_through_the_addresses_of_the_url(cluster: list[RabbitMq], topic: str) -> None:
    """As behind a load balancer. Each node has a topic of its own, as it is created through it without replicas."""
    topics = [f"{topic}.{number}" for number in range(len(cluster))]
    for name, node in zip(topics, cluster, strict=True):
        with connect(f"rabbitmq-stream://127.0.0.1:{node.stream_port}", replicas=1) as stream:
            stream.create_topic(name)
    with contextlib.ExitStack() as running:
        proxies = [running.enter_context(TcpProxy(node.stream_port)) for node in cluster]
        url = "rabbitmq-stream://" + ",".join(proxy.address for proxy in proxies)
        stream = running.enter_context(connect(url, load_balancer=True))
        for name in topics:
            assert stream.send(name, name.encode()).result(30).offset == 0
            assert [record.value for record in stream.read(name)] == [name.encode()]
        assert all(proxy.connections for proxy in proxies)


def test_a_cluster_loses_nothing_when_the_leader_of_a_topic_is_killed(cluster: list[RabbitMq], topic: str) -> None:
    url = "rabbitmq-stream://" + ",".join(f"127.0.0.1:{node.stream_port}" for node in cluster)
    with connect(url, replicas=3, timeout_s=3.0) as stream:
        stream.create_topic(topic, 2)
        before = [stream.send(topic, b"%d" % number, key=b"%d" % number) for number in range(100)]
        stream.flush(30)
        leader = leader_of(cluster, f"{topic}-0")
        leader.kill()
        after = [stream.send(topic, b"%d" % number, key=b"%d" % number) for number in range(100, 200)]
        stream.flush(60)
        places = [receipt.result(0) for receipt in (*before, *after)]
        found = {(record.partition, record.offset): record.value for record in stream.read(topic)}
    assert [found[place.partition, place.offset] for place in places] == [b"%d" % number for number in range(200)]
    assert len(found) == 200, "a record is stored twice"


def leader_of(cluster: list[RabbitMq], stream: str) -> RabbitMq:
    """The node that leads a stream."""
    listed = cluster[0].control("list_queues", "name", "leader")
    [line] = [line for line in listed.splitlines() if line.split()[:1] == [stream]]
    return next(node for node in cluster if node.name in line)
