"""NATS JetStream on a real NATS server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import nats
import nkeys
import pytest
from nats.js.api import StreamConfig
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app as command
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import NewRecord, Position
from penstock.streams.adapting.append_queue import LONGEST_PAUSE_S
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.clients.names import fresh
from tests.consuming.eventually import wait_until
from tests.secured_kafka import make_certificates
from tests.seeds import seed_of
from tests.servers import free_ports
from tests.systems.nats_server import NatsServer, cluster_of, version
from tests.systems.stream_app import check_a_killed_app_loses_nothing

pytestmark = [pytest.mark.system("NATS JetStream"), pytest.mark.xdist_group("nats")]

URL = "PENSTOCK_TEST_NATS"


class Outage:
    """A NATS server and the proxy in front of it."""

    def __init__(self, server: NatsServer, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self._server = server

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.start()


_running: list[Outage] = []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: NatsServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as proxy:
        with penstock.connect(f"nats://{proxy.address}") as stream:
            system_table.met("NATS JetStream", f"nats-server {version()}, sync_interval 2m", stream.features)
        _running.append(Outage(server, proxy))
        yield proxy
        _running.pop()


def connect(url: str, **settings: object) -> penstock.Connection:
    return penstock.connect(f"{url}?{urlencode(settings)}")


def open_nats() -> penstock.Connection:
    """Found by the environment, so that child processes find it, too."""
    return connect(os.environ[URL], timeout_s=2.0)


R = TypeVar("R")


def by_client(url: str, work: Callable[[Any], Awaitable[R]]) -> R:
    """Use the system's own client, as other programs do: `work` is called with its JetStream context."""

    async def run() -> R:
        client = await nats.connect(url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def purge(connection: penstock.Connection, topic: str, partition: int, before: int) -> None:
    stream = topic if partition == 0 else f"{topic}@{partition}"
    by_client(os.environ[URL], lambda js: js.purge_stream(stream, seq=before))


def outage() -> Outage:
    return _running[-1]


class TestNats(conformance.stream(open_nats, expire=purge, outage=outage, longest_backoff_s=LONGEST_PAUSE_S)):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def _server(self, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(URL, f"nats://{proxy.address}")


@pytest.fixture
def url(server: NatsServer) -> str:
    return server.url


@pytest.fixture
def topic() -> str:
    return fresh()


def test_an_app_whose_process_is_killed_handles_every_record(url: str, topic: str, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'checkpoints.db'}"
    check_a_killed_app_loses_nothing(url, topic, tmp_path, store, random.Random(seed_of()).randint(20, 120))


def test_an_app_must_say_where_checkpoints_are_kept(url: str, topic: str) -> None:
    app = penstock.App(url, group="billing")
    app.handle(topic)(print)
    with pytest.raises(ConfigError, match="has no place for checkpoints: pass checkpoints="):
        app.run(end="latest")


def test_messages_of_other_programs_are_records(url: str, topic: str) -> None:
    """Of a stream with a wildcard, whose messages have subjects of their own."""

    async def publish(js: Any) -> None:
        await js.add_stream(StreamConfig(name=topic, subjects=[f"shop.{topic}.*"]))
        await js.publish(f"shop.{topic}.eu", b"one", headers={"Trace": "7"})
        await js.publish(f"shop.{topic}.us", b"", headers={"Nats-Msg-Id": "theirs"})

    by_client(url, publish)
    with penstock.connect(url) as stream:
        assert topic in stream.topics()
        stream.send(topic, b"ours", key=b"k").result(10)
        first, second, third = stream.read(topic)
    assert (first.offset, first.key, first.value) == (1, None, b"one")
    assert first.headers == (("Trace", b"7"), ("nats-subject", f"shop.{topic}.eu".encode()))
    assert (second.value, second.headers[0]) == (b"", ("Nats-Msg-Id", b"theirs"))
    assert (third.offset, third.key, third.value, third.headers) == (3, b"k", b"ours", ())


def test_other_programs_read_our_records(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        receipt = stream.send(topic, b"value", key=b"key", headers={"trace": b"7"})
        assert receipt.result(10).offset == 1
        stream.send(topic, None, key=b"\xff").result(10)
    first, second = by_client(url, lambda js: _messages(js, topic, 2))
    assert (first.subject, first.data, first.headers["Penstock-Key"]) == (topic, b"value", "key")
    assert first.headers["trace"] == "7"
    assert not second.data
    assert (second.headers["Penstock-Null"], second.headers["Penstock-Key-B64"]) == ("1", "/w==")


async def _messages(js: Any, stream: str, count: int) -> list[Any]:
    return [await js.get_msg(stream, seq) for seq in range(1, count + 1)]


def test_timestamps_are_those_of_the_server_and_the_producers_is_a_header(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        stream.open_topic(topic).append([NewRecord(topic, b"old", timestamp_ms=1_000)])[0].result(10)
        [record] = stream.read(topic)
        assert record.timestamp_ms is not None
        assert record.timestamp_ms > 1_700_000_000_000
        assert record.headers == (("penstock-timestamp", b"1000"),)


def test_topics_with_dots_and_several_partitions(url: str, topic: str) -> None:
    name = f"{topic}.dlq"
    with penstock.connect(url) as stream:
        stream.create_topic(name, 3)
        with pytest.raises(TopicExistsError, match="exists already"):
            stream.create_topic(name, 3)
        places = [stream.send(name, b"%d" % number, key=b"%d" % number).result(10) for number in range(12)]
        assert {place.partition for place in places} == {0, 1, 2}
        assert name in stream.topics()
        assert sorted(record.value or b"" for record in stream.read(name)) == sorted(b"%d" % n for n in range(12))
        assert list(stream.open_topic(name).partitions()) == [0, 1, 2]
        stream.delete_topic(name)
        assert name not in stream.topics()
        with pytest.raises(UnknownTopicError, match="`penstock topics create`"):
            stream.delete_topic(name)


def test_a_message_that_is_sent_again_is_stored_once(server: NatsServer, topic: str) -> None:
    """The acknowledgement is lost; the same record is sent again, and recognised by its id."""
    with TcpProxy(server.port) as proxy, connect(f"nats://{proxy.address}", timeout_s=0.5) as stream:
        stream.create_topic(topic)
        stream.send(topic, b"first").result(10)
        proxy.delay_s = 30.0
        receipt = stream.send(topic, b"second")
        connections = proxy.connections
        wait_until(lambda: proxy.connections > connections)
        proxy.heal()
        assert receipt.result(30).offset == 2
    state = by_client(server.url, lambda js: js.stream_info(topic)).state
    assert (state.messages, state.last_seq) == (2, 2)


def test_a_deleted_message_leaves_a_gap_and_a_purged_one_is_an_error(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        opened.append([NewRecord(topic, b"%d" % number) for number in range(10)])[-1].result(10)
        by_client(url, lambda js: js.delete_msg(topic, 4))
        assert [record.value for record in opened.read(0, 1, 100, 0)] == [b"%d" % n for n in range(10) if n != 3]
        by_client(url, lambda js: js.purge_stream(topic, seq=8))
        with pytest.raises(OffsetOutOfRangeError, match="offset 5 was deleted by retention; the log holds 8 to 11"):
            opened.read(0, 5, 100, 0)
        assert [record.value for record in opened.read(0, 8, 100, 0)] == [b"7", b"8", b"9"]
        with pytest.raises(OffsetOutOfRangeError, match="has not been written yet"):
            opened.read(0, 12, 100, 0)


def test_retention_of_new_topics(url: str, topic: str) -> None:
    with connect(url, max_messages=5, max_age_s=3600, max_bytes=1_000_000, storage="memory") as stream:
        for number in range(8):
            stream.send(topic, b"%d" % number)
        stream.flush(10)
        assert stream.open_topic(topic).span(0) == (4, 9)
    config = by_client(url, lambda js: js.stream_info(topic)).config
    assert (config.max_msgs, config.max_bytes, config.max_age, config.storage) == (5, 1_000_000, 3600.0, "memory")


def test_a_reader_goes_on_when_its_consumer_was_removed(url: str, topic: str) -> None:
    async def remove_consumers(js: Any) -> int:
        consumers = await js.consumers_info(topic)
        for consumer in consumers:
            await js.delete_consumer(topic, consumer.name)
        return len(consumers)

    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        opened.append([NewRecord(topic, b"%d" % number) for number in range(4)])[-1].result(10)
        batch = opened.read(0, 1, 2, 0)
        assert by_client(url, remove_consumers) == 1
        assert [record.value for record in opened.read(0, batch.next, 2, 0)] == [b"2", b"3"]


def test_pointers_are_sequence_numbers(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        stream.send(topic, b"x").result(10)
        opened = stream.open_topic(topic)
        assert opened.locate(0, Position.at_pointer(1)) == 1
        with pytest.raises(ConfigError, match="'yesterday' is not a sequence number"):
            opened.locate(0, Position.at_pointer("yesterday"))


def test_the_command_reads_a_stream_of_nats(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        stream.send(topic, b"from nats").result(10)
    done = CliRunner().invoke(command, ["consume", topic, "--url", url, "--format", "raw"])
    assert done.exit_code == 0, done.output
    assert "from nats" in done.output


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("colour=red", "has no setting 'colour'"),
        ("timeout_s=soon", "timeout_s='soon'"),
        ("timeout_s=0", "must be a positive number of seconds"),
        ("replicas=0", "replicas=0 must be an integer >= 1"),
        ("storage=tape", "one of file, memory"),
        ("max_age_s=0.01", "must be at least 0.1"),
    ],
)
def test_a_bad_setting_is_refused_when_the_url_is_opened(setting: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        penstock.connect(f"nats://127.0.0.1:1?{setting}")


@pytest.mark.parametrize("bad", ["nats:", "nats://", "nats://a:notaport", "nats://a:4222/orders"])
def test_a_bad_url_is_refused(bad: str) -> None:
    with pytest.raises(UrlError, match=r"HOST|has a path"):
        penstock.connect(bad)


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    (port,) = free_ports(1)
    with pytest.raises(BrokerUnavailableError, match=f"NATS at 127.0.0.1:{port} is unavailable") as caught:
        penstock.connect(f"nats://ann:secret@127.0.0.1:{port}")
    assert "secret" not in str(caught.value)
    assert caught.value.retriable


def test_wrong_credentials_are_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with NatsServer(tmp_path, 'authorization { user: ann, password: "right" }') as server:
        for wrong in ("nats://", "nats://ann:wrong@"):
            with pytest.raises(BrokerUnavailableError, match="refused the login") as caught:
                penstock.connect(f"{wrong}127.0.0.1:{server.port}")
            assert not caught.value.retriable
            assert "wrong" not in str(caught.value)
        with penstock.connect(f"nats://ann:right@127.0.0.1:{server.port}") as stream:
            assert stream.topics() == []
        monkeypatch.setenv("NATS_USER", "ann")
        monkeypatch.setenv("NATS_PASSWORD", "right")
        with penstock.connect(server.url) as stream:
            assert stream.topics() == []


def test_an_nkey_in_a_file(tmp_path: Path) -> None:
    seed = nkeys.encode_seed(random.Random(seed_of()).randbytes(32), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    (tmp_path / "user.nk").write_bytes(bytes(seed))
    with (
        NatsServer(tmp_path / "server", f"authorization {{ users: [ {{ nkey: {public} }} ] }}") as server,
        connect(server.url, nkey=tmp_path / "user.nk") as stream,
    ):
        assert stream.topics() == []


def test_a_server_without_jetstream_says_so(tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path, jetstream=False) as server,
        pytest.raises(BrokerUnavailableError, match="JetStream: is it enabled on the server"),
    ):
        penstock.connect(server.url)


def test_what_is_not_permitted_is_named(tmp_path: Path, topic: str) -> None:
    denied = 'permissions: { publish: { deny: "$JS.API.STREAM.CREATE.>" } }'
    settings = f"authorization {{ users: [ {{ user: ann, password: right, {denied} }} ] }}"
    with NatsServer(tmp_path, settings) as server:
        url = f"nats://ann:right@127.0.0.1:{server.port}"
        with (
            connect(url, timeout_s=0.5) as stream,
            pytest.raises(penstock.errors.NotAllowedError, match=r"permissions violation.*create"),
        ):
            stream.create_topic(topic)


def test_a_missing_topic_says_how_to_create_it(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        with pytest.raises(UnknownTopicError, match=f"there is no stream '{topic}'"):
            stream.open_topic(topic).read(0, 0, 1, 0)
        stream.create_topic(topic, 2)
        with pytest.raises(UnknownTopicError, match="has no partition 2"):
            stream.open_topic(topic).read(2, 0, 1, 0)


def test_a_topic_whose_subject_is_taken_is_refused(url: str, topic: str) -> None:
    by_client(url, lambda js: js.add_stream(StreamConfig(name=f"{topic}-other", subjects=[topic])))
    with (
        penstock.connect(url) as stream,
        pytest.raises(ConfigError, match=f"another stream takes the subject '{topic}'"),
    ):
        stream.create_topic(topic)


def test_a_record_over_the_limit_is_refused_and_the_others_are_stored(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        good, bad, last = opened.append([NewRecord(topic, value) for value in (b"a", b"b" * (1 << 20), b"c")])
        assert (good.result(10).offset, last.result(10).offset) == (1, 2)
        with pytest.raises(DeliveryError, match="more than max_payload of the server, 1048576"):
            bad.result(10)


def test_a_record_that_the_stream_refuses_fails_with_its_reason(url: str, topic: str) -> None:
    by_client(url, lambda js: js.add_stream(StreamConfig(name=topic, subjects=[topic], max_msg_size=1000)))
    with penstock.connect(url) as stream, pytest.raises(DeliveryError, match="message size exceeds maximum allowed"):
        stream.send(topic, b"x" * 2000).result(10)


def test_an_append_to_a_server_that_stays_away_fails_in_time(tmp_path: Path, topic: str) -> None:
    with NatsServer(tmp_path) as server:
        stream = connect(server.url, delivery_timeout_s=0.5, timeout_s=0.5)
        opened = stream.open_topic(topic)
        opened.append([NewRecord(topic, b"x")])[0].result(10)
        server.kill()
        [receipt] = opened.append([NewRecord(topic, b"y")])
        with pytest.raises(DeliveryError, match="NATS at") as caught:
            receipt.result(30)
        assert caught.value.retriable
        with pytest.raises(BrokerUnavailableError):
            opened.span(0)
        opened.close()
        stream.close()


def test_tls_with_the_authority_of_the_url(tmp_path: Path, topic: str) -> None:
    authority, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    make_certificates(tmp_path, authority, key)
    settings = f'tls {{ cert_file: "{key}", key_file: "{key}" }}'
    with NatsServer(tmp_path / "server", settings) as server:
        address = f"tls://127.0.0.1:{server.port}"
        with connect(address, tls_ca=authority) as stream:
            stream.send(topic, b"secret").result(10)
            assert [record.value for record in stream.read(topic)] == [b"secret"]
        with pytest.raises(BrokerUnavailableError, match="certificate verify failed"):
            penstock.connect(address)
        with pytest.raises(BrokerUnavailableError, match="cannot be read"):
            connect(address, tls_ca=tmp_path / "missing.pem")


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


def test_closing_a_topic_leaves_no_consumers_behind(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        opened.append([NewRecord(topic, b"%d" % number) for number in range(20)])[-1].result(10)
        for start in (1, 5, 3, 10, 7, 12):
            assert opened.read(0, start, 2, 0).next == start + 2
        assert len(by_client(url, lambda js: js.consumers_info(topic))) <= 4
        opened.close()
        wait_until(lambda: not by_client(url, lambda js: js.consumers_info(topic)))


def test_a_cluster_loses_nothing_when_the_leader_of_a_topic_is_killed(tmp_path: Path, topic: str) -> None:
    servers = cluster_of(tmp_path, 3)
    with contextlib.ExitStack() as running:
        for server in servers:
            running.callback(server.stop)
            server.start()
        url = "nats://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
        wait_until(lambda: _is_ready(url), 60.0)
        stream = running.enter_context(connect(url, replicas=3, timeout_s=2.0))
        stream.create_topic(topic)
        before = [stream.send(topic, b"%d" % number) for number in range(100)]
        stream.flush(30)
        leader = by_client(servers[0].url, lambda js: js.stream_info(topic)).cluster.leader
        servers[int(leader.rpartition("-")[2])].kill()
        after = [stream.send(topic, b"%d" % number) for number in range(100, 200)]
        stream.flush(60)
        places = [receipt.result(0).offset for receipt in (*before, *after)]
        found = {record.offset: record.value for record in stream.read(topic)}
    assert [found[place] for place in places] == [b"%d" % number for number in range(200)]
    assert len(found) == 200, "a record is stored twice"


def _is_ready(url: str) -> bool:
    """Whether the cluster has elected who speaks for JetStream."""
    try:
        with connect(url, timeout_s=1.0) as stream:
            stream.topics()
    except BrokerUnavailableError:
        return False
    return True
