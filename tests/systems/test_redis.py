"""Redis Streams on a real Redis."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from typer.testing import CliRunner

import penstock
from penstock.abc import NamesPointers
from penstock.cli.main import app as command
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    OffsetOutOfRangeError,
    StreamError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import NewRecord, Position
from penstock.streams.adapting.append_queue import LONGEST_PAUSE_S
from penstock.streams.capability import capability
from penstock.streams.redis.entries import id_of
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.clients.names import fresh
from tests.consuming.eventually import wait_until
from tests.redis_server import RedisServer
from tests.secured_kafka import make_certificates
from tests.seeds import seed_of
from tests.servers import free_ports
from tests.systems.stream_app import check_a_killed_app_loses_nothing

pytestmark = [pytest.mark.system("Redis Streams"), pytest.mark.xdist_group("redis streams")]

URL = "PENSTOCK_TEST_REDIS_STREAMS"


class Outage:
    """A Redis and the proxy in front of it."""

    def __init__(self, server: RedisServer, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self._server = server

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.start()


_running: list[Outage] = []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as proxy:
        version = redis.Redis(port=server.port).info("server")["redis_version"]
        with penstock.connect(f"redis://{proxy.address}") as stream:
            system_table.met("Redis Streams", f"Redis {version}, appendfsync always", stream.features)
        _running.append(Outage(server, proxy))
        yield proxy
        _running.pop()


def connect(url: str, **settings: object) -> penstock.Connection:
    return penstock.connect(f"{url}?{urlencode(settings)}")


def open_redis() -> penstock.Connection:
    """Found by the environment, so that child processes find it, too."""
    return connect(os.environ[URL], timeout_s=2.0)


def trim(connection: penstock.Connection, topic: str, partition: int, before: int) -> None:
    key = topic if partition == 0 else f"{topic}:{partition}"
    redis.Redis.from_url(os.environ[URL]).xtrim(key, minid=id_of(before), approximate=False)


def outage() -> Outage:
    return _running[-1]


class TestRedis(conformance.stream(open_redis, expire=trim, outage=outage, longest_backoff_s=LONGEST_PAUSE_S)):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def _server(self, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(URL, f"redis://{proxy.address}/0")


@pytest.fixture
def url(server: RedisServer) -> str:
    return server.url


@pytest.fixture
def raw(server: RedisServer) -> Iterator[Any]:
    """The system's own client, as other programs use it."""
    with redis.Redis(port=server.port) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return fresh()


@pytest.mark.parametrize("checkpoints", [None, "sqlite"])
def test_an_app_whose_process_is_killed_handles_every_record(
    url: str, topic: str, tmp_path: Path, checkpoints: str | None
) -> None:
    store = f"sqlite:{tmp_path / 'checkpoints.db'}" if checkpoints else None
    check_a_killed_app_loses_nothing(url, topic, tmp_path, store, random.Random(seed_of()).randint(20, 120))


def test_entries_of_other_programs_are_records(url: str, topic: str, raw: Any) -> None:
    raw.xadd(topic, {"amount": "12", "customer": "ann"})
    raw.xadd(topic, {"value": b"\x00\xff", "key": "k", "trace": "7"})
    raw.xadd(topic, {"raw": b"\xff"})
    with penstock.connect(url) as stream:
        first, second, third = stream.read(topic)
    assert (first.key, json.loads(first.value or b"")) == (None, {"amount": "12", "customer": "ann"})
    assert (second.key, second.value, second.headers) == (b"k", b"\x00\xff", (("trace", b"7"),))
    assert json.loads(third.value or b"") == {"raw": "\\xff"}


def test_the_fields_of_key_and_value_can_be_named(url: str, topic: str, raw: Any) -> None:
    raw.xadd(topic, {"id": "7", "body": "hello"})
    with penstock.connect(f"{url}?value_field=body&key_field=id") as stream:
        stream.send(topic, b"reply", key=b"8").result(10)
        found = [(record.key, record.value) for record in stream.read(topic)]
    assert found == [(b"7", b"hello"), (b"8", b"reply")]
    assert raw.xrange(topic)[1][1] == {b"body": b"reply", b"id": b"8"}


def test_timestamps_are_those_of_redis_and_the_producers_is_a_header(url: str, topic: str, raw: Any) -> None:
    with penstock.connect(url) as stream:
        [receipt] = stream.open_topic(topic).append([NewRecord(topic, b"old", timestamp_ms=1_000)])
        place = receipt.result(10)
        [record] = stream.read(topic)
    assert record.timestamp_ms == place.offset >> 64 == int(raw.xrange(topic)[0][0].partition(b"-")[0])
    assert record.headers == (("penstock-timestamp", b"1000"),)


def test_pointers_are_shown_as_ids(url: str, topic: str, raw: Any) -> None:
    raw.xadd(topic, {"value": "x"}, id="1526919030474-55")
    with penstock.connect(url) as stream:
        [record] = stream.read(topic)
        names = capability(stream, NamesPointers)
        assert names is not None
        assert names.pointer_text(record.offset) == "1526919030474-55"
        assert names.parse_pointer("1526919030474-55") == record.offset
        opened = stream.open_topic(topic)
        assert opened.locate(0, Position.at_pointer("1526919030474-55")) == record.offset
        with pytest.raises(ConfigError, match="1526919030474-55"):
            names.parse_pointer("yesterday")


def test_our_trimming_is_exact_and_readers_behind_it_are_told(url: str, topic: str) -> None:
    with connect(url, max_length=50) as stream:
        opened = stream.open_topic(topic)
        places = [receipt.result(10) for receipt in opened.append([NewRecord(topic, b"%d" % n) for n in range(100)])]
        opened.append([NewRecord(topic, b"%d" % n) for n in range(100, 200)])[-1].result(10)
        kept = opened.read(0, opened.span(0)[0], 1000, 0)
        assert [record.value for record in kept] == [b"%d" % n for n in range(150, 200)]
        with pytest.raises(OffsetOutOfRangeError, match=r"may have been trimmed.* max_length") as caught:
            opened.read(0, places[50].offset, 10, 0)
        assert id_of(kept[0].offset) in str(caught.value)
        assert caught.value.start == kept[0].offset
        behind_149 = kept[0].offset - 1  # entries of one batch have consecutive ids
        with pytest.raises(OffsetOutOfRangeError):
            opened.read(0, behind_149, 10, 0)
        assert opened.read(0, behind_149 + 1, 1, 0)[0].value == b"150"


def test_a_reader_that_has_read_everything_does_not_mind_that_it_is_trimmed(url: str, topic: str, raw: Any) -> None:
    """By our own trimming, whoever reads; by others, for a reader that was at the end."""
    with connect(url, max_age_s=0.001) as stream, penstock.connect(url) as other:
        opened = stream.open_topic(topic)
        old = opened.append([NewRecord(topic, b"old", partition=0)])[0].result(10)
        wait_until(lambda: int(raw.time()[0] * 1000 + raw.time()[1] // 1000) > (old.offset >> 64) + 1)
        opened.append([NewRecord(topic, b"new")])[0].result(10)
        assert raw.xlen(topic) == 1
        found = other.open_topic(topic).read(0, old.offset + 1, 10, 0)
        assert [record.value for record in found] == [b"new"]
        with pytest.raises(OffsetOutOfRangeError):
            other.open_topic(topic).read(0, old.offset, 10, 0)
        following = other.open_topic(topic)
        end = following.read(0, found.next, 10, 0).next
        raw.xtrim(topic, maxlen=0)
        raw.xadd(topic, {"value": "newest"})
        assert [record.value for record in following.read(0, end, 10, 0)] == [b"newest"]
        raw.xadd(topic, {"value": "lost"})
        raw.xtrim(topic, maxlen=0)
        with pytest.raises(OffsetOutOfRangeError):
            following.read(0, end, 10, 0)


def test_a_batch_that_is_sent_again_is_stored_once(server: RedisServer, topic: str, raw: Any) -> None:
    """The answer to an append is lost; the same batch is sent again, and recognised."""
    with TcpProxy(server.port) as proxy, connect(f"redis://{proxy.address}", timeout_s=0.5) as stream:
        stream.create_topic(topic)
        stream.send(topic, b"first").result(10)
        proxy.delay_s = 30.0
        receipt = stream.send(topic, b"second")
        wait_until(lambda: raw.xlen(topic) == 2)
        connections = proxy.connections
        wait_until(lambda: proxy.connections > connections)
        proxy.heal()
        place = receipt.result(30)
    assert [id_of(place.offset).encode()] == [id for id, _ in raw.xrange(topic)][1:]


def test_a_topic_is_created_by_its_first_record_and_deleted_with_everything(url: str, topic: str, raw: Any) -> None:
    with connect(url, partitions=3, max_length=1, prefix="app:") as stream:
        for number in range(6):
            stream.send(topic, b"x", key=b"%d" % number).result(10)
        assert list(stream.open_topic(topic).partitions()) == [0, 1, 2]
        assert topic in stream.topics()
        assert raw.exists(f"app:{topic}", f"app:{topic}:1", f"app:{topic}:2") == 3
        stream.delete_topic(topic)
        assert topic not in stream.topics()
        left = [key for key in raw.keys(f"*{topic}*") if b":producer:" not in key]
        assert left == []
        with pytest.raises(UnknownTopicError, match="`penstock topics create`"):
            stream.delete_topic(topic)
        assert [record.value for record in _send_and_read(stream, topic)] == [b"again"]


def _send_and_read(stream: penstock.Connection, topic: str) -> list[penstock.Record]:
    stream.send(topic, b"again").result(10)
    return list(stream.read(topic))


def test_the_command_reads_a_redis_stream(url: str, topic: str, raw: Any) -> None:
    raw.xadd(topic, {"value": "from redis"})
    done = CliRunner().invoke(command, ["consume", topic, "--url", url, "--format", "raw"])
    assert done.exit_code == 0, done.output
    assert "from redis" in done.output


def test_the_command_shows_ids_and_counts_records_by_their_number(url: str, topic: str, raw: Any) -> None:
    for number in (7, 9):
        raw.xadd(topic, {"value": "x"}, id=f"1526919030474-{number}")
    described = CliRunner().invoke(command, ["topics", "describe", topic, "--url", url])
    assert described.exit_code == 0, described.output
    assert described.output.splitlines()[1].split() == ["0", "1526919030474-7", "1526919030474-10", "2", "-"]
    listed = CliRunner().invoke(command, ["topics", "--url", url, "--json"])
    [row] = [row for row in json.loads(listed.stdout) if row["topic"] == topic]
    assert (row["partitions"], row["records"]) == (1, 2)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("colour=red", "has no setting 'colour'"),
        ("timeout_s=soon", "timeout_s='soon'"),
        ("timeout_s=0", "must be a positive number of seconds"),
        ("max_length=0", "max_length=0 must be an integer >= 1"),
        ("wait_replicas=-1", "must not be negative"),
        ("value_field=key", "two different names"),
        ("prefix=a*", "must not contain"),
        ("ssl_cert_reqs=maybe", "one of required, none"),
    ],
)
def test_a_bad_setting_is_refused_when_the_url_is_opened(setting: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        penstock.connect(f"redis://127.0.0.1:1/0?{setting}")


@pytest.mark.parametrize("bad", ["redis:", "redis://", "redis://a:1,b:2/0", "redis://a:notaport/0"])
def test_a_bad_url_is_refused(bad: str) -> None:
    with pytest.raises(UrlError, match="HOST"):
        penstock.connect(bad)


def test_a_database_must_be_a_number() -> None:
    with pytest.raises(ConfigError, match="'orders' is not the number of a Redis database"):
        penstock.connect("redis://127.0.0.1:1/orders")


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    (port,) = free_ports(1)
    with pytest.raises(BrokerUnavailableError, match=f"Redis at 127.0.0.1:{port}/0 is unavailable") as caught:
        penstock.connect(f"redis://ann:secret@127.0.0.1:{port}")
    assert "secret" not in str(caught.value)
    assert caught.value.retriable


def test_wrong_credentials_are_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer(tmp_path, "--requirepass", "right") as server:
        with pytest.raises(BrokerUnavailableError, match=r"refused the login.*REDISCLI_AUTH") as caught:
            penstock.connect(f"redis://:wrong@127.0.0.1:{server.port}")
        assert not caught.value.retriable
        assert "wrong" not in str(caught.value)
        with pytest.raises(BrokerUnavailableError, match="refused the login"):
            penstock.connect(server.url)
        monkeypatch.setenv("REDISCLI_AUTH", "right")
        with penstock.connect(server.url) as stream:
            assert stream.topics() == []


def test_a_server_that_may_evict_records_is_refused(tmp_path: Path) -> None:
    settings = ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with RedisServer(tmp_path, *settings) as server, pytest.raises(ConfigError, match="may evict records"):
        penstock.connect(server.url)


def test_a_missing_topic_says_how_to_create_it(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        with pytest.raises(UnknownTopicError, match=f"no stream at key '{topic}'"):
            stream.open_topic(topic).read(0, 0, 1, 0)
        stream.create_topic(topic, 2)
        with pytest.raises(UnknownTopicError, match="has no partition 2: it has 2"):
            stream.open_topic(topic).read(2, 0, 1, 0)


def test_a_key_of_another_kind_is_not_a_topic(url: str, topic: str, raw: Any) -> None:
    raw.set(topic, "text")
    with penstock.connect(url) as stream:
        with pytest.raises(StreamError, match="holds a string, not a stream"):
            stream.open_topic(topic).partitions()
        with pytest.raises(DeliveryError, match="holds a string, not a stream"):
            stream.send(topic, b"x").result(10)


def test_a_record_over_the_limit_is_refused_and_the_others_are_stored(url: str, topic: str) -> None:
    with connect(url, max_record_bytes=1000) as stream:
        opened = stream.open_topic(topic)
        values = (b"a", b"b" * 1001, b"c")
        good, bad, last = opened.append([NewRecord(topic, value) for value in values])
        assert good.result(10).offset < last.result(10).offset
        with pytest.raises(DeliveryError, match="more than max_record_bytes=1000"):
            bad.result(10)


def test_an_append_to_a_server_that_stays_away_fails_in_time(tmp_path: Path, topic: str) -> None:
    with RedisServer(tmp_path) as server:
        stream = connect(server.url, delivery_timeout_s=0.3)
        opened = stream.open_topic(topic)
        opened.append([NewRecord(topic, b"x")])[0].result(10)
        server.kill()
        [receipt] = opened.append([NewRecord(topic, b"y")])
        with pytest.raises(DeliveryError, match="is unavailable") as caught:
            receipt.result(30)
        assert caught.value.retriable
        with pytest.raises(BrokerUnavailableError):
            opened.span(0)
        opened.close()
        stream.close()


def test_replicas_that_are_asked_for_and_not_there_are_an_error(url: str, topic: str) -> None:
    with (
        connect(url, wait_replicas=1, timeout_s=0.1, delivery_timeout_s=0.3) as stream,
        pytest.raises(DeliveryError, match="0 of 1 replicas confirmed the records"),
    ):
        stream.send(topic, b"x").result(30)


def test_a_record_is_acknowledged_when_a_replica_has_it(tmp_path: Path, topic: str) -> None:
    with (
        RedisServer(tmp_path / "primary", "--repl-diskless-sync-delay", "0") as primary,
        RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(primary.port)) as replica,
        redis.Redis(port=replica.port) as copy,
        connect(primary.url, wait_replicas=1, delivery_timeout_s=20) as stream,
    ):
        stream.send(topic, b"kept").result(30)
        assert copy.xlen(topic) == 1
        with connect(replica.url, delivery_timeout_s=0.2) as wrong, pytest.raises(DeliveryError, match="is a replica"):
            wrong.send(topic, b"refused").result(10)
        assert copy.xlen(topic) == 1


def test_tls_with_the_authority_of_the_url(tmp_path: Path, topic: str) -> None:
    authority, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    make_certificates(tmp_path, authority, key)
    (port,) = free_ports(1)
    tls = ("--tls-port", str(port), "--tls-cert-file", str(key), "--tls-key-file", str(key))
    with RedisServer(tmp_path / "data", *tls, "--tls-ca-cert-file", str(authority), "--tls-auth-clients", "no"):
        with penstock.connect(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority}") as stream:
            stream.send(topic, b"secret").result(10)
            assert [record.value for record in stream.read(topic)] == [b"secret"]
        with pytest.raises(BrokerUnavailableError, match="certificate verify failed"):
            penstock.connect(f"rediss://127.0.0.1:{port}/0")
        with penstock.connect(f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=none") as stream:
            assert topic in stream.topics()
