"""Apache Pulsar on a real Pulsar, broker and bookie in one process."""

from __future__ import annotations

import contextlib
import http.server
import logging
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pulsar
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app as command
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    DeliveryError,
    InvalidTopicError,
    NotAllowedError,
    OffsetOutOfRangeError,
    StreamError,
    TopicExistsError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import NewRecord, Position
from penstock.streams.pulsar.messages import parse_pointer, partition_of, pointer, pointer_text
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.clients.names import fresh
from tests.consuming.eventually import wait_until
from tests.secured_kafka import make_certificates
from tests.seeds import seed_of
from tests.servers import free_ports
from tests.systems.older_server import relay_that_replaces
from tests.systems.pulsar_server import LISTENER, PASSWORD, SUPERUSER, PulsarServer, admin, token_for, version
from tests.systems.stream_app import check_a_killed_app_loses_nothing

pytestmark = [pytest.mark.system("Apache Pulsar"), pytest.mark.xdist_group("pulsar")]

URL = "PENSTOCK_TEST_PULSAR"
TOPICS = "persistent/public/default"


class Outage:
    """A Pulsar and the proxy in front of its broker."""

    def __init__(self, server: PulsarServer, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self._server = server

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.start()


_running: list[Outage] = []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarServer]:
    server = PulsarServer(tmp_path_factory.mktemp("pulsar"))
    with TcpProxy(server.port) as proxy:
        server.advertise(proxy.port)
        with server:
            _running.append(Outage(server, proxy))
            with penstock.connect(server.url) as stream:
                system_table.met("Apache Pulsar", f"Pulsar {version()} standalone, journal synced", stream.features)
            yield server
            _running.pop()


@pytest.fixture
def proxy(server: PulsarServer) -> Iterator[TcpProxy]:
    yield _running[-1].proxy
    _running[-1].proxy.heal()


@pytest.fixture
def url(server: PulsarServer) -> str:
    return server.url


@pytest.fixture
def proxied_url(server: PulsarServer, proxy: TcpProxy) -> str:
    return f"pulsar://{proxy.address}?admin_url={server.admin_url}&listener_name={LISTENER}"


@pytest.fixture
def topic() -> str:
    return fresh()


def connect(url: str, **settings: object) -> penstock.Connection:
    return penstock.connect(f"{url}{'&' if '?' in url else '?'}{urlencode(settings)}")


def open_pulsar() -> penstock.Connection:
    """Found by the environment, so that child processes find it, too."""
    return connect(os.environ[URL], timeout_s=5)


def outage() -> Outage:
    return _running[-1]


class TestPulsar(conformance.stream(open_pulsar, outage=outage)):  # type: ignore[misc]
    # Pulsar removes whole ledgers, and those of a topic cannot be divided afterwards:
    # test_a_trimmed_place_is_an_error tests the same with ledgers that are.
    test_records_that_expired_are_never_skipped_silently = None
    test_a_partition_whose_records_expired_is_removed_and_the_others_go_on = None

    @pytest.fixture(autouse=True)
    def _server(self, proxied_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(URL, proxied_url)


@contextlib.contextmanager
def own_client(server: PulsarServer) -> Iterator[Any]:
    """The system's own client, as other programs use it."""
    client = pulsar.Client(
        f"pulsar://127.0.0.1:{server.port}",
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(server.folder / "client.log")),
    )
    try:
        yield client
    finally:
        client.close()


def put(opened: Any, *values: bytes | None) -> list[int]:
    return [r.result(30).offset for r in opened.append([NewRecord(opened.topic, value) for value in values])]


def test_an_app_whose_process_is_killed_handles_every_record(url: str, topic: str, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'checkpoints.db'}"
    check_a_killed_app_loses_nothing(url, topic, tmp_path, store, random.Random(seed_of()).randint(20, 120))


def test_an_app_must_say_where_checkpoints_are_kept(url: str, topic: str) -> None:
    app = penstock.App(url, group="billing")
    app.handle(topic)(print)
    with pytest.raises(ConfigError, match="has no place for checkpoints: pass checkpoints="):
        app.run(end="latest")


def test_messages_of_other_programs_are_records(server: PulsarServer, topic: str) -> None:
    with own_client(server) as client:
        alone = client.create_producer(topic)
        alone.send(b"one", properties={"b": "2", "a": "1"}, partition_key="k", event_timestamp=1_000)
        alone.send(None, partition_key="gone")
        batched = client.create_producer(topic, batching_enabled=True, compression_type=pulsar.CompressionType.ZSTD)
        for number in range(3):
            batched.send_async(b"%d" % number, lambda result, id: None)
        batched.flush()
    with penstock.connect(server.url) as stream:
        assert topic in stream.topics()
        first, second, *batch = stream.read(topic)
    assert (first.key, first.value) == (b"k", b"one")
    assert first.headers == (("a", b"1"), ("b", b"2"), ("penstock-timestamp", b"1000"))
    assert (second.key, second.value, second.headers) == (b"gone", None, ())
    assert [(record.key, record.value) for record in batch] == [(None, b"0"), (None, b"1"), (None, b"2")]
    assert [record.offset - batch[0].offset for record in batch] == [0, 1, 2]


def test_other_programs_read_our_records(server: PulsarServer, topic: str) -> None:
    with penstock.connect(server.url) as stream:
        record = NewRecord(topic, b"value", b"key", (("trace", b"7"),), timestamp_ms=2_000)
        place = stream.open_topic(topic).append([record])[0].result(30)
        stream.send(topic, None, key=b"\xff", headers={"binary": b"\xfe"}).result(30)
    with own_client(server) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        first, second = reader.read_next(10_000), reader.read_next(10_000)
        assert (first.data(), first.partition_key(), first.properties()) == (b"value", "key", {"trace": "7"})
        assert first.event_timestamp() == 2_000
        id = first.message_id()
        assert pointer(id.ledger_id(), id.entry_id(), max(0, id.batch_index())) == place.offset
        assert second.has_null_value()
        assert (second.partition_key(), second.properties()["penstock-key"]) == ("/w==", "base64")
        assert second.properties()["penstock-headers"] == '[["binary", "/g=="]]'


def test_a_key_has_the_partition_that_javas_client_gives_it() -> None:
    """By String.hashCode, whose values these are."""
    for key, hashed in (("a", 97), ("hello", 99_162_322), ("polygenelubricants", -(1 << 31)), ("\u00fc", 252)):
        assert partition_of(key.encode(), 1_000) == (hashed & 0x7FFFFFFF) % 1_000


def test_timestamps_are_when_records_were_published_and_the_producers_is_a_header(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        for stamp_ms in (1_000, 0, -5):
            opened.append([NewRecord(topic, b"old", timestamp_ms=stamp_ms)])[0].result(30)
        records = list(stream.read(topic))
    assert all((record.timestamp_ms or 0) > 1_700_000_000_000 for record in records)
    assert [dict(record.headers)["penstock-timestamp"] for record in records] == [b"1000", b"0", b"-5"]


def test_topics_with_dots_and_several_partitions(server: PulsarServer, topic: str) -> None:
    name = f"{topic}.dlq"
    with penstock.connect(server.url) as stream:
        stream.create_topic(name, 3)
        with pytest.raises(TopicExistsError, match="exists already"):
            stream.create_topic(name, 3)
        places = [stream.send(name, b"%d" % number, key=b"%d" % number) for number in range(12)]
        assert {place.result(30).partition for place in places} == {0, 1, 2}
        assert name in stream.topics()
        assert sorted(record.value or b"" for record in stream.read(name)) == sorted(b"%d" % n for n in range(12))
        opened = stream.open_topic(name)
        assert list(opened.partitions()) == [0, 1, 2]
        admin(server, "POST", f"{TOPICS}/{name}/partitions", 4)
        assert list(opened.partitions()) == [0, 1, 2, 3]
        [receipt] = stream.open_topic(name).append([NewRecord(name, b"new", partition=3)])
        assert [record.value for record in opened.read(3, receipt.result(30).offset, 9, 5.0)] == [b"new"]
        stream.delete_topic(name)
        assert name not in stream.topics()
        with pytest.raises(UnknownTopicError, match="`penstock topics create`"):
            stream.delete_topic(name)
        with pytest.raises(InvalidTopicError, match="names a partition of Pulsar"):
            stream.open_topic(f"{topic}-partition-1")


def test_new_topics_keep_their_records(server: PulsarServer, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with penstock.connect(server.url) as stream:
        stream.create_topic(topic)
        assert list(stream.open_topic(topic).partitions()) == [0]
    assert not caplog.records
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    assert admin(server, "GET", f"{TOPICS}/{topic}/retention?applied=true") == kept
    with connect(server.url, max_age_s=3601, max_bytes=20_000_000_000, partitions=2) as stream:
        stream.send(f"{topic}.2", b"x").result(30)
        assert list(stream.open_topic(f"{topic}.2").partitions()) == [0, 1]
        assert stream.backend.retention_s(f"{topic}.2") == 3660  # type: ignore[attr-defined]
        assert stream.backend.retention_s(topic) is None  # type: ignore[attr-defined]
    kept = {"retentionTimeInMinutes": 61, "retentionSizeInMB": 19074}
    assert admin(server, "GET", f"{TOPICS}/{topic}.2/retention?applied=true") == kept
    with connect(server.url, max_bytes=5_000_000) as stream:
        with pytest.raises(StreamError, match=r"was not created .* Retention Quota must .* raise max_bytes"):
            stream.create_topic(f"{topic}.3")
        assert f"{topic}.3" not in stream.topics()


def test_a_topic_that_keeps_nothing_is_warned_of(
    server: PulsarServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin(server, "PUT", f"{TOPICS}/{topic}")
    with penstock.connect(server.url) as stream, caplog.at_level(logging.WARNING):
        opened = stream.open_topic(topic)
        opened.partitions()
        opened.partitions()
    [warning] = caplog.messages
    assert f"deletes records of topic '{topic}' that no subscription waits for" in warning
    assert "pulsar-admin topics set-retention" in warning


def test_a_trimmed_place_is_an_error(server: PulsarServer, topic: str) -> None:
    """Each ledger holds two records; the first three are removed, as retention does."""
    with connect(server.url, batch_records=1, max_age_s=60) as stream:
        stream.create_topic(topic)
        opened = stream.open_topic(topic)
        places: list[int] = []
        for first in range(0, 8, 2):
            places += put(opened, b"%d" % first, b"%d" % (first + 1))
            admin(server, "PUT", f"{TOPICS}/{topic}/unload")
        start, end = opened.span(0)
        assert start == places[0]
        middle = start
        values: list[bytes | None] = []
        while len(values) < 3:
            batch = opened.read(0, middle, 3 - len(values), 30.0)
            assert batch.records, f"{values} came, and then nothing"
            values += [record.value for record in batch]
            middle = batch.next
        assert values == [b"0", b"1", b"2"]
        admin(server, "POST", f"{TOPICS}/{topic}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})

        def is_trimmed() -> bool:
            admin(server, "POST", f"{TOPICS}/{topic}/trim")
            return opened.span(0)[0] > places[5]

        wait_until(is_trimmed, 60.0)
        first_left = opened.span(0)[0]
        fresh_reader = stream.open_topic(topic)
        for place in (start, places[1], middle):
            with pytest.raises(OffsetOutOfRangeError, match="may have been deleted by retention") as caught:
                fresh_reader.read(0, place, 10, 0.0)
            assert pointer_text(place) in str(caught.value)
        left = [record.value for record in fresh_reader.read(0, first_left, 10, 0.0)]
        assert left == [b"%d" % n for n in range(8)][8 - len(left) :]
        with pytest.raises(OffsetOutOfRangeError, match="has not been written yet"):
            fresh_reader.read(0, end + (5 << 96), 10, 0.0)


def test_a_reader_that_was_at_the_end_goes_on_over_many_ledgers(server: PulsarServer, topic: str) -> None:
    """Also from the end of an empty topic, whose ledger is replaced when the topic is loaded again."""
    with penstock.connect(server.url) as stream:
        stream.create_topic(topic)
        opened = stream.open_topic(topic)
        place = empty = opened.span(0)[1]
        values = []
        for number in range(3):
            admin(server, "PUT", f"{TOPICS}/{topic}/unload")
            put(opened, b"%d" % number)
            batch = opened.read(0, place, 10, 30.0)
            values += [record.value for record in batch]
            place = batch.next
            assert not opened.read(0, place, 10, 0.0)
        assert values == [b"0", b"1", b"2"]
        assert [record.value for record in stream.open_topic(topic).read(0, empty, 10, 0.0)] == [b"0", b"1", b"2"]


def test_a_message_in_chunks_is_read_again_from_its_place(server: PulsarServer, topic: str) -> None:
    large = random.Random(seed_of()).randbytes(11 << 20)
    with own_client(server) as client:
        client.create_producer(topic).send(b"before")
        client.create_producer(topic, chunking_enabled=True).send(large)
        client.create_producer(topic).send(b"after")
    with penstock.connect(server.url) as stream:
        opened = stream.open_topic(topic)
        records = list(stream.read(topic))
        assert [record.value for record in records] == [b"before", large, b"after"]
        again = opened.read(0, records[1].offset, 1, 0.0)
        assert [record.value for record in again] == [large]
        for place in (again.next, records[1].offset + 1):
            assert [record.value for record in opened.read(0, place, 10, 0.0)] == [b"after"]


def test_pointers_are_shown_as_message_ids(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        place = stream.send(topic, b"x").result(30).offset
        text = stream.backend.pointer_text(place)  # type: ignore[attr-defined]
        ledger, entry, partition, index = text.split(":")
        assert (partition, pointer(int(ledger), int(entry), int(index))) == ("-1", place)
        opened = stream.open_topic(topic)
        assert opened.locate(0, Position.at_pointer(text)) == place
        with pytest.raises(ConfigError, match="'yesterday' is not a message id of Pulsar"):
            opened.locate(0, Position.at_pointer("yesterday"))


def test_a_read_behind_the_last_record_of_a_batch_is_at_the_end(url: str, topic: str) -> None:
    with connect(url) as stream:
        stream.create_topic(topic)
        for number in range(3):
            stream.send(topic, str(number))
        stream.flush(30)
        last, opened = list(stream.read(topic))[-1], stream.open_topic(topic)
        for place in (last.offset + 1, last.offset + 500):
            batch = opened.read(0, place, 10, 0.2)
            assert (len(batch), batch.next) == (0, opened.span(0)[1])
        stream.send(topic, "new").result(30)
        assert [record.value for record in opened.read(0, batch.next, 10, 30.0)] == [b"new"]


def test_message_ids_of_all_tools_are_understood() -> None:
    place = pointer(172, 5, 3)
    for text in ("172:5:-1:3", "172:5:2:3", "(172,5,-1,3)", str(place)):
        assert parse_pointer(text) == place
    for text in ("172:5", "172:5:0", "(172,5,-1,-1)"):
        assert parse_pointer(text) == pointer(172, 5)
    assert parse_pointer(pointer_text(place)) == place


def test_the_commands_work_on_pulsar(url: str, topic: str) -> None:
    def run(*words: str) -> str:
        done = CliRunner().invoke(command, [*words, "--url", url])
        assert done.exit_code == 0, done.output
        return done.output

    run("topics", "create", topic, "--partitions", "2")
    with penstock.connect(url) as stream:
        place = stream.send(topic, b"from pulsar", key=b"k").result(30)
    assert topic in run("topics", "list")
    assert "from pulsar" in run("consume", topic, "--format", "raw")
    assert pointer_text(place.offset) in run("consume", topic)
    run("topics", "delete", topic, "--yes")
    assert topic not in run("topics", "list")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("colour=red", "has no setting 'colour'"),
        ("timeout_s=soon", "timeout_s='soon'"),
        ("timeout_s=0", "must be a positive number of seconds"),
        ("partitions=0", "partitions=0 must be an integer >= 1"),
        ("compression=rar", "one of none, lz4"),
        ("admin_url=host:8080", "must be an http:// or https:// URL"),
        ("token=a&token_file=b", "not both"),
        ("tls_cert=a", "belong together"),
    ],
)
def test_a_bad_setting_is_refused_when_the_url_is_opened(setting: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        penstock.connect(f"pulsar://127.0.0.1:1?{setting}")


@pytest.mark.parametrize("bad", ["pulsar:", "pulsar://", "pulsar://a:notaport", "pulsar://a/public"])
def test_a_bad_url_is_refused(bad: str) -> None:
    with pytest.raises(UrlError, match=r"HOST|TENANT/NAMESPACE"):
        penstock.connect(bad)


def test_a_server_that_is_not_there_is_named_without_the_token() -> None:
    (port,) = free_ports(1)
    with pytest.raises(BrokerUnavailableError, match=f"Pulsar at 127.0.0.1:{port}/public/default is unav") as caught:
        penstock.connect(f"pulsar://:secret@127.0.0.1:{port}?timeout_s=1")
    assert "secret" not in str(caught.value)
    assert caught.value.retriable


def test_a_web_service_that_is_not_there_or_not_pulsars_is_named(server: PulsarServer) -> None:
    (port,) = free_ports(1)
    with pytest.raises(BrokerUnavailableError, match=rf"web service at http://127.0.0.1:{port} is una.*admin_url"):
        penstock.connect(f"pulsar://127.0.0.1:{server.port}?admin_url=http://127.0.0.1:{port}")

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises(StreamError, match="does not answer as Pulsar does: is admin_url"):
            penstock.connect(f"pulsar://127.0.0.1:{server.port}?admin_url=http://127.0.0.1:{other.server_port}")
        other.shutdown()


def test_a_missing_namespace_says_how_to_create_it(server: PulsarServer) -> None:
    for path in ("public/nowhere", "nobody/default"):
        with pytest.raises(StreamError, match=f"`pulsar-admin namespaces create {path}`"):
            penstock.connect(f"pulsar://127.0.0.1:{server.port}/{path}?admin_url={server.admin_url}")
    admin(server, "PUT", "namespaces/public/other")
    created = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    admin(server, "POST", "namespaces/public/other/autoTopicCreation", created)
    with penstock.connect(f"pulsar://127.0.0.1:{server.port}/public/other?admin_url={server.admin_url}") as stream:
        assert stream.topics() == [], "connecting has created a topic"
        stream.send("orders", b"x").result(30)
        assert stream.topics() == ["orders"]


def test_a_missing_topic_says_how_to_create_it(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        with pytest.raises(UnknownTopicError, match=f"there is no topic '{topic}'.*`penstock topics create`"):
            stream.open_topic(topic).read(0, 0, 1, 0)
        assert topic not in stream.topics(), "reading has created the topic"
        stream.create_topic(topic, 2)
        with pytest.raises(UnknownTopicError, match="has no partition 2"):
            stream.open_topic(topic).read(2, 0, 1, 0)


def test_a_broker_that_is_too_old_says_so(server: PulsarServer) -> None:
    older = ("2.8." + "9" * 10)[: len(version())]
    with (
        relay_that_replaces(server.web_port, version().encode(), older.encode()) as address,
        pytest.raises(BrokerUnavailableError, match=rf"has Pulsar {older}, which is too old: 2\.9 or newer") as old,
    ):
        penstock.connect(f"pulsar://127.0.0.1:{server.port}?admin_url=http://{address}")
    assert not old.value.retriable


def test_a_record_over_the_limit_is_refused_and_the_others_are_stored(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        opened = stream.open_topic(topic)
        good, bad, last = opened.append([NewRecord(topic, value) for value in (b"a", b"b" * (6 << 20), b"c")])
        assert good.result(30).offset < last.result(30).offset
        with pytest.raises(DeliveryError, match="raise maxMessageSize"):
            bad.result(30)
        assert [record.value for record in stream.read(topic)] == [b"a", b"c"]


def test_an_append_to_a_server_that_stays_away_fails_in_time(proxied_url: str, proxy: TcpProxy, topic: str) -> None:
    with connect(proxied_url, delivery_timeout_s=1, timeout_s=1) as stream:
        opened = stream.open_topic(topic)
        put(opened, b"x")
        proxy.cut()
        [receipt] = opened.append([NewRecord(topic, b"y")])
        with pytest.raises(DeliveryError, match="did not acknowledge a record") as caught:
            receipt.result(30)
        assert caught.value.retriable
        other = stream.open_topic(topic)
        [receipt] = other.append([NewRecord(topic, b"z")])
        with pytest.raises(DeliveryError, match=r"Pulsar at .* is unavailable") as caught:
            receipt.result(30)
        assert caught.value.retriable
        with pytest.raises(BrokerUnavailableError, match=r"Pulsar at .* is unavailable"):
            other.read(0, opened.span(0)[0], 1, 0.0)
        opened.close()
        other.close()


def test_a_record_that_is_sent_again_is_stored_once(
    server: PulsarServer, proxied_url: str, proxy: TcpProxy, topic: str
) -> None:
    """Records are stored, their acknowledgements are lost with the connection, and the client sends them again."""
    rng = random.Random(seed_of())
    receipts: list[Any] = []

    def received() -> int:
        stats: Any = admin(server, "GET", f"{TOPICS}/{topic}/stats")
        return int(stats["msgInCounter"])

    with connect(proxied_url, deduplicate=True) as stream:
        opened = stream.open_topic(topic)
        put(opened, b"first")
        for turn in range(4):
            before = received()
            proxy.delay_s = 60.0
            new = opened.append([NewRecord(topic, b"%d-%d" % (turn, n)) for n in range(rng.randint(1, 50))])
            wait_until(lambda before=before: received() > before, 30.0)  # type: ignore[misc]
            assert not any(receipt.done for receipt in new)
            proxy.cut()
            proxy.heal()
            receipts += new
            new[-1].result(60)
        assert all(receipt.result(60) for receipt in receipts)
        values = [record.value for record in stream.read(topic)]
    assert len(values) == len(set(values)) == len(receipts) + 1, "a record is stored twice, or not at all"
    assert received() > len(values), "no record was sent twice, so nothing was tested"


def test_deduplication_is_required_of_an_existing_topic(server: PulsarServer, topic: str) -> None:
    admin(server, "PUT", f"{TOPICS}/{topic}")
    with connect(server.url, deduplicate=True) as stream:
        with pytest.raises(DeliveryError, match="`pulsar-admin topics set-deduplication --enable"):
            stream.open_topic(topic).append([NewRecord(topic, b"x")])[0].result(30)
        admin(server, "POST", f"{TOPICS}/{topic}/deduplicationEnabled", True)
        stream.open_topic(topic).append([NewRecord(topic, b"x")])[0].result(30)


def test_a_compacted_topic_has_the_last_record_of_each_key(server: PulsarServer, topic: str) -> None:
    with connect(server.url, batch_records=1) as stream:
        for number in range(9):
            stream.send(topic, b"%d" % number, key=b"%d" % (number % 3))
        stream.flush(30)
    admin(server, "PUT", f"{TOPICS}/{topic}/compaction")

    def is_compacted() -> bool:
        status = admin(server, "GET", f"{TOPICS}/{topic}/compaction")
        return isinstance(status, dict) and status["status"] == "SUCCESS"

    wait_until(is_compacted, 60.0)
    with connect(server.url, read_compacted=True) as stream:
        stream.send(topic, None, key=b"1").result(30)
        found = [(record.key, record.value) for record in stream.read(topic)]
    assert found == [(b"0", b"6"), (b"1", b"7"), (b"2", b"8"), (b"1", None)]
    with penstock.connect(server.url) as stream:
        assert len(list(stream.read(topic))) == 10


def test_reading_leaves_no_subscriptions_behind(server: PulsarServer, topic: str) -> None:
    def subscriptions() -> Any:
        return admin(server, "GET", f"{TOPICS}/{topic}/subscriptions")

    with penstock.connect(server.url) as stream:
        opened = stream.open_topic(topic)
        places = put(opened, *(b"%d" % number for number in range(20)))
        for index in (1, 5, 3, 10, 7, 12):
            assert len(opened.read(0, places[index], 2, 5.0)) == 2
        wait_until(lambda: len(subscriptions()) <= 4)
        opened.close()
        wait_until(lambda: not subscriptions())


def test_a_forked_process_needs_a_connection_of_its_own(url: str, topic: str) -> None:
    with penstock.connect(url) as stream:
        stream.send(topic, b"x").result(30)
        pid = os.fork()
        if pid == 0:
            try:
                list(stream.read(topic))
            except ConnectionClosedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert len(list(stream.read(topic))) == 1


def test_the_client_writes_nothing_to_the_terminal(url: str, topic: str) -> None:
    """Also when a connection fails, and when the program forgets to close it."""
    (port,) = free_ports(1)
    program = (
        "import penstock\n"
        f"stream = penstock.connect({url!r})\n"
        f"stream.send({topic!r}, b'x').result(30)\n"
        "try:\n"
        f"    penstock.connect('pulsar://127.0.0.1:{port}?timeout_s=1')\n"
        "except penstock.errors.BrokerUnavailableError:\n"
        "    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarServer]:
    """A Pulsar with TLS that asks for tokens. `boss` may do everything; nobody else may do anything."""
    folder = tmp_path_factory.mktemp("secured-pulsar")
    make_certificates(folder, folder / "ca.pem", folder / "both.pem")
    with PulsarServer(folder / "server", certificates=folder) as server:
        yield server


def test_tokens_and_tls(secured: PulsarServer, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boss, url = token_for(SUPERUSER), secured.tls_url
    authority = secured.folder.with_name("ca.pem")
    with connect(url, tls_ca=authority, token=boss) as stream:
        stream.send(topic, b"secret").result(30)
        assert [record.value for record in stream.read(topic)] == [b"secret"]
    monkeypatch.setenv("PULSAR_TOKEN", boss)
    with connect(url, tls_ca=authority) as stream:
        assert topic in stream.topics()
    monkeypatch.delenv("PULSAR_TOKEN")
    (tmp_path / "token").write_text(f"{boss}\n", "utf-8")
    (tmp_path / "client.conf").write_text(
        "authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\n"
        f"authParams=file://{tmp_path / 'token'}\ntlsTrustCertsFilePath={authority}\n",
        "utf-8",
    )
    monkeypatch.setenv("PULSAR_CLIENT_CONF", str(tmp_path / "client.conf"))
    with penstock.connect(url) as stream:
        assert topic in stream.topics()
    monkeypatch.delenv("PULSAR_CLIENT_CONF")
    with connect(url, tls_ca=authority, token_file=tmp_path / "token") as stream:
        assert topic in stream.topics()
    files = {
        "tls_ca": authority,
        "tls_cert": authority.with_name("server.crt"),
        "tls_key": authority.with_name("server.key"),
    }
    with connect(url, **files) as stream:
        assert [record.value for record in stream.read(topic)] == [b"secret"]
    with connect(url.replace("//", f"//ann:{PASSWORD}@", 1), tls_ca=authority) as stream:
        assert [record.value for record in stream.read(topic)] == [b"secret"]
    with pytest.raises(BrokerUnavailableError, match=r"token file .* cannot be read"):
        connect(url, token_file=tmp_path / "missing")
    with pytest.raises(BrokerUnavailableError, match="is unavailable"):
        connect(url, token=boss, timeout_s=2)


def test_a_wrong_token_is_refused_and_a_role_without_permission_is_told(secured: PulsarServer, topic: str) -> None:
    authority = secured.folder.with_name("ca.pem")
    for wrong in ("", token_for("boss", b"another secret that is not the server's")):
        with pytest.raises(BrokerUnavailableError, match="refused the login") as caught:
            connect(secured.tls_url, tls_ca=authority, token=wrong or "nonsense", timeout_s=5)
        assert not caught.value.retriable
        assert not wrong or wrong not in str(caught.value)
    with pytest.raises(NotAllowedError, match="Grant this role the permission"):
        connect(secured.tls_url, tls_ca=authority, token=token_for("nobody"), timeout_s=5)
