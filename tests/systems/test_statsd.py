"""StatsD channels by `statsd:` URLs: metrics of the public client, of raw packets and of our own sender."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import logging
import random
import socket
import string
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
import statsd
from hypothesis import given
from hypothesis import strategies as st

from penstock.abc import Channel, Feature
from penstock.channels import open_channel
from penstock.channels.statsd import StatsdChannel
from penstock.channels.statsd.aggregates import Aggregates, statistics_of
from penstock.channels.statsd.lines import BadLineError, Metric, format_line, parse_line
from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError, RecordTooLargeError, UrlError
from penstock.gateway import Gateway
from penstock.model import NewRecord, Record
from penstock.streams import connect
from penstock.testing import conformance
from penstock.testing.conformance.channels import port_to_bind, port_to_connect
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.sampling import times
from tests.seeds import seed_of

pytestmark = [pytest.mark.system("StatsD"), pytest.mark.xdist_group("statsd")]

LOOPBACK: Final = "127.0.0.1"
WAIT_S: Final = 30.0
Body = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _met() -> None:
    with closing(open_channel(f"statsd://{LOOPBACK}")) as channel:
        system_table.met("StatsD", f"the client statsd {importlib.metadata.version('statsd')}", channel.features)


def open_udp(folder: Path) -> Channel:
    return open_channel(f"statsd://{LOOPBACK}:{port_to_bind(folder)}")


def listen_tcp(folder: Path) -> Channel:
    return open_channel(f"statsd://{LOOPBACK}:{port_to_bind(folder)}?transport=tcp")


def send_tcp(folder: Path) -> Channel:
    return open_channel(f"statsd://{LOOPBACK}:{port_to_connect(folder)}?transport=tcp&connect_timeout_s=2")


def as_metric(mark: bytes, number: int) -> NewRecord:
    return NewRecord("channel", b"%b:%d|c" % (mark, number), mark)


def number_of(mark: bytes, record: Record) -> int | None:
    return json.loads(record.value or b"{}").get("value") if record.key == mark else None


OF_METRICS: Final[dict[str, Any]] = {"timestamps": False, "message": as_metric, "number_of": number_of}


class TestUdp(conformance.channel(open_udp, open_udp, **OF_METRICS)):  # type: ignore[misc]
    """By UDP."""


class TestTcp(conformance.channel(listen_tcp, send_tcp, network=True, **OF_METRICS)):  # type: ignore[misc]
    """By TCP."""


@pytest.fixture(params=["udp", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def free_port() -> int:
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind((LOOPBACK, 0))
        port: int = tcp.getsockname()[1]
        udp.bind((LOOPBACK, port))
        return port


@pytest.fixture
def port() -> int:
    return free_port()


def listening(port: int, **options: Any) -> StatsdChannel:
    """A channel that has begun to listen."""
    channel = open_channel(f"statsd://{LOOPBACK}:{port}", **options)
    assert isinstance(channel, StatsdChannel)
    channel.listen(1, 0.0)
    return channel


def receive(channel: Channel, count: int) -> list[Body]:
    """The values of so many records."""
    found: list[Record] = []
    wait_until(functools.partial(_listen, channel, found, count), WAIT_S)
    for record in found:
        assert record.key == json.loads(record.value or b"")["name"].encode()
    return [json.loads(record.value or b"") for record in found]


def _listen(channel: Channel, found: list[Record], count: int) -> bool:
    found += channel.listen(1_000, 0.2)
    return len(found) >= count


def send(port: int, data: bytes, transport: str = "udp") -> None:
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    with socket.socket(type=kind) as program:
        program.connect((LOOPBACK, port))
        program.sendall(data)


def body(name: str, kind: str, value: object, **more: Any) -> Body:
    return {"name": name, "kind": kind, "value": value, "delta": False, "rate": 1.0, "tags": [], **more}


class TestTheClientStatsd:
    def test_what_it_sends_are_records(self, transport: str, port: int) -> None:
        with closing(listening(port, transport=transport)) as channel:
            kind = statsd.TCPStatsClient if transport == "tcp" else statsd.StatsClient
            client = kind(LOOPBACK, port, prefix="shop")
            client.incr("orders")
            client.decr("orders", 3)
            client.gauge("stock", 12.5)
            client.gauge("stock", -2, delta=True)
            client.gauge("stock", 2, delta=True)
            client.timing("load", 320)
            client.set("users", "ann")
            assert receive(channel, 7) == [
                body("shop.orders", "counter", 1),
                body("shop.orders", "counter", -3),
                body("shop.stock", "gauge", 12.5),
                body("shop.stock", "gauge", -2, delta=True),
                body("shop.stock", "gauge", 2, delta=True),
                body("shop.load", "timer", 320.0),
                body("shop.users", "set", "ann"),
            ]
            client.close()

    def test_a_pipeline_arrives_in_one_packet_and_is_many_records(self, port: int) -> None:
        with closing(listening(port)) as channel:
            with statsd.StatsClient(LOOPBACK, port).pipeline() as pipeline:
                for number in range(30):
                    pipeline.incr("clicks", number)
            assert [each["value"] for each in receive(channel, 30)] == list(range(30))

    def test_samples_carry_their_rate(self, port: int) -> None:
        with closing(listening(port)) as channel:
            client = statsd.StatsClient(LOOPBACK, port)
            for _ in range(500):
                client.incr("clicks", rate=0.5)
            client.incr("end")
            found = receive_until(channel, "end")
            assert {each["rate"] for each in found[:-1]} == {0.5}
            assert 100 < len(found) < 400

    def test_a_client_reads_what_our_sender_sends(self, transport: str, port: int) -> None:
        """The other way round: the client's counterpart is any server that reads lines."""
        url = f"statsd://{LOOPBACK}:{port}"
        with (
            closing(listening(port, transport=transport)) as channel,
            closing(open_channel(url, transport=transport)) as out,
        ):
            lines = [b"a:1|c|@0.5|#env:prod,new", b"b:-2|g", b"c:3.25|ms", b"d:x y|s", b"e:1e3|h", b"f:+4|g"]
            out.send([NewRecord("metrics", line) for line in lines])
            bodies = receive(channel, len(lines))
            out.send([NewRecord("metrics", json.dumps(each).encode()) for each in bodies])
            assert receive(channel, len(lines)) == bodies, "records that arrived can be sent as they are"


def receive_until(channel: Channel, name: str) -> list[Body]:
    found: list[Body] = []
    while not found or found[-1]["name"] != name:
        found += receive(channel, 1)
    return found


class TestLines:
    @pytest.mark.parametrize(
        ("line", "metrics"),
        [
            (b"a.b:1|c", [Metric("a.b", "counter", 1)]),
            (b"a:-1.5|c|@0.1", [Metric("a", "counter", -1.5, rate=0.1)]),
            (b"a:+1|g", [Metric("a", "gauge", 1, delta=True)]),
            (b"a:-1|g", [Metric("a", "gauge", -1, delta=True)]),
            (b"a:.5|g", [Metric("a", "gauge", 0.5)]),
            (b"a:320|ms", [Metric("a", "timer", 320)]),
            (b"a:1e3|h", [Metric("a", "histogram", 1000.0)]),
            (b"a:1|d|#x", [Metric("a", "distribution", 1, tags=["x"])]),
            (b"a:1|m", [Metric("a", "meter", 1)]),
            (b"a:b:c|s", [Metric("a", "set", "b:c")]),
            (b"a:1:2:3.5|ms|#env:prod", [Metric("a", "timer", each, tags=["env:prod"]) for each in (1, 2, 3.5)]),
            (b"a:1|c|#env:prod,x,|@0.5", [Metric("a", "counter", 1, rate=0.5, tags=["env:prod", "x"])]),
            (b"a:1|c|c:ci-123|e:x", [Metric("a", "counter", 1)]),
            ("größe:1|c".encode(), [Metric("größe", "counter", 1)]),
            (b"a:12345678901234567890|c", [Metric("a", "counter", 12345678901234567890.0)]),
        ],
    )
    def test_metrics_are_read(self, line: bytes, metrics: list[Metric]) -> None:
        assert parse_line(line) == (metrics, None)

    def test_a_time_is_that_of_the_record(self, port: int) -> None:
        assert parse_line(b"a:1|c|T1700000000") == ([Metric("a", "counter", 1)], 1_700_000_000_000)
        with closing(listening(port)) as channel:
            send(port, b"a:1|c|T1700000000")
            [record] = channel.listen(1, WAIT_S)
            assert record.timestamp_ms == 1_700_000_000_000

    @pytest.mark.parametrize(
        "line",
        [
            *(b"", b"a", b"a:1", b"a:|c", b":1|c", b"a:1|", b"a:1|x", b"a:x|c", b"a:1|c|@0", b"a:1|c|@2", b"a:1|c|@x"),
            *(b"a:nan|g", b"a:inf|g", b"a:1e999|g", b"a:1_0|c", b"a:0x1|c", b"a:1:|ms", b"a: 1|c", b"a:1|c|Tx"),
            *(b"\xff:1|c", b"a:\xff|s", b"a:1|c|#\xff", b"a\x00:1|c", b"a:1|c|@0.0000000000001", b"a:--1|c"),
            *(b"_e{5,4}:title|text", b"_sc|name|0", b"a:1|" + b"c" * 100, b"a" * 2_000 + b":1|c"),
        ],
    )
    def test_everything_else_is_a_bad_line(self, line: bytes) -> None:
        with pytest.raises(BadLineError):
            parse_line(line)

    @given(st.binary(max_size=60) | st.text("ab:|cgmshd@#T.,-+01e", max_size=30).map(str.encode))
    def test_any_bytes_are_metrics_or_a_bad_line(self, line: bytes) -> None:
        try:
            metrics, _ = parse_line(line)
        except BadLineError:
            return
        for metric in metrics:
            assert metric.name
            if not (metric.kind == "gauge" and metric.value == 0 and metric.delta):
                assert parse_line(format_line(metric))[0] == [metric], "what was read can be written"

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (b"hello", "it is not NAME:VALUE"),
            (b"{", "Input data was truncated"),
            (b'{"name": "a", "kind": "counter"}', "missing required field `value`"),
            (b'{"name": "a", "kind": "counter", "value": 1, "interval_s": 10}', "unknown field"),
            (b'{"name": "a|b", "kind": "counter", "value": 1}', "the name 'a|b' is empty, or has"),
            (b'{"name": "a", "kind": "gauge", "value": -1}', "in StatsD, a sign means a change"),
            (b'{"name": "a", "kind": "counter", "value": "x"}', "is not a number"),
            (b'{"name": "a", "kind": "set", "value": 1}', "is not text"),
            (b'{"name": "a", "kind": "set", "value": "x\\ny"}', "a control character"),
            (b'{"name": "a", "kind": "counter", "value": 1, "rate": 0}', "the rate 0.0 is not"),
            (b'{"name": "a", "kind": "counter", "value": 1, "tags": ["a,b"]}', "the tags .* have a comma"),
            (None, "it is not NAME:VALUE"),
        ],
    )
    def test_what_is_not_a_metric_cannot_be_sent(self, value: bytes | None, message: str, port: int) -> None:
        with (
            closing(open_channel(f"statsd://{LOOPBACK}:{port}")) as channel,
            pytest.raises(DeliveryError, match=message) as caught,
        ):
            channel.send([NewRecord("metrics", b"good:1|c"), NewRecord("metrics", value)])
        assert not caught.value.retriable


class TestBadInput:
    def test_bad_lines_are_counted_and_logged_now_and_then(
        self, transport: str, port: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        with closing(listening(port, transport=transport)) as channel, caplog.at_level(logging.WARNING):
            for _ in range(10):
                send(port, b"good:1|c\nbad\n" + b"worse:|c\n" * 50 + b"good:2|c\n", transport)
            assert len(receive(channel, 20)) == 20
            wait_until(lambda: channel.counts.bad_lines == 510)
        said = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
        assert said == [f"statsd {LOOPBACK}:{port}: the line b'bad' is ignored: it is not NAME:VALUE|KIND"]

    def test_garbage_never_stops_a_listener(self, transport: str, port: int) -> None:
        chooser = random.Random(seed_of())
        alphabet = (string.printable + "é\x00").encode()
        with closing(listening(port, transport=transport, flush_s=3600 if chooser.random() < 0.5 else 0)) as channel:
            for _ in range(times(300, soak=20_000)):
                size = chooser.randrange(1, 1_000)
                garbage = chooser.choice([chooser.randbytes(size), bytes(chooser.choices(alphabet, k=size))])
                send(port, garbage, transport)
            before = channel.counts.values
            send(port, b"after.all:1|c\n", transport)
            wait_until(lambda: channel.listen(1_000, 0.0) is not None and channel.counts.values > before)

    def test_a_line_without_end_disconnects_its_sender_only(self, port: int) -> None:
        with (
            closing(listening(port, transport="tcp")) as channel,
            closing(open_channel(f"statsd://{LOOPBACK}:{port}?transport=tcp")) as out,
            socket.create_connection((LOOPBACK, port)) as endless,
        ):
            out.send([NewRecord("metrics", b"a:1|c")])
            receive(channel, 1)
            endless.settimeout(WAIT_S)
            with pytest.raises(ConnectionError):
                endless.sendall(b"x" * 10_000_000)
            assert channel.counts.bad_lines == 1
            out.send([NewRecord("metrics", b"a:2|c")])
            assert receive(channel, 1) == [body("a", "counter", 2)]

    def test_a_last_line_without_end_counts_when_its_sender_hangs_up(self, port: int) -> None:
        with closing(listening(port, transport="tcp")) as channel:
            send(port, b"a:1|c\r\nb:2|c", "tcp")
            assert receive(channel, 2) == [body("a", "counter", 1), body("b", "counter", 2)]

    def test_more_connections_than_the_limit_are_refused(self, port: int) -> None:
        with closing(listening(port, transport="tcp", max_connections=2)) as channel:
            kept = [socket.create_connection((LOOPBACK, port)) for _ in range(2)]
            for number, each in enumerate(kept):
                each.sendall(b"a:%d|c\n" % number)
            receive(channel, 2)
            with socket.create_connection((LOOPBACK, port)) as refused:
                refused.settimeout(WAIT_S)
                assert refused.recv(1) == b""
            for each in kept:
                each.close()


class TestFloods:
    def test_a_flood_is_dropped_and_counted_not_kept(self, port: int) -> None:
        with closing(listening(port, buffer=100, socket_buffer_bytes=4096)) as channel:
            with socket.socket(type=socket.SOCK_DGRAM) as program:
                for number in range(5_000):
                    program.sendto(b"flood:%d|c" % number, (LOOPBACK, port))
            arrived: list[Record] = []
            deadline_s = time.monotonic() + WAIT_S
            while len(arrived) + channel.dropped < 5_000 and time.monotonic() < deadline_s:
                arrived += channel.listen(1_000, 0.1)
            assert len(arrived) + channel.dropped == 5_000
            assert channel.dropped
            assert Feature.LOSS_COUNT not in channel.features, "what the network lost is not known"
            send(port, b"after:1|c")
            assert receive(channel, 1) == [body("after", "counter", 1)]

    def test_senders_by_tcp_have_to_wait_and_lose_nothing(self, port: int) -> None:
        count = 20_000
        with closing(listening(port, transport="tcp", buffer=50)) as channel:
            data = b"".join(b"flood:%d|c\n" % number for number in range(count))
            sending = threading.Thread(target=send, args=(port, data, "tcp"), daemon=True)
            sending.start()
            assert [each["value"] for each in receive(channel, count)] == list(range(count))
            sending.join(WAIT_S)
            assert channel.dropped == 0

    def test_closing_does_not_wait_for_senders_that_are_held_back(self, port: int) -> None:
        channel = listening(port, transport="tcp", buffer=1)
        with socket.create_connection((LOOPBACK, port)) as program:
            program.sendall(b"a:1|c\n" * 100)
            wait_until(lambda: channel.counts.values)
            channel.close()
            program.settimeout(WAIT_S)
            with contextlib.suppress(ConnectionError):
                assert program.recv(1) == b""


class TestAggregates:
    def test_an_interval_becomes_a_record_for_each_metric(self, port: int) -> None:
        with closing(listening(port, flush_s=0.5, percentiles="50,90")) as channel:
            send(port, b"clicks:1|c\nclicks:2|c|@0.1\nstock:10|g\nstock:-3|g\nusers:ann|s\nusers:bob|s\nusers:ann|s")
            found = {each["name"]: each for each in receive(channel, 3)}
            common = {"tags": [], "interval_s": 0.5}
            assert found == {
                "clicks": {"name": "clicks", "kind": "counter", **common, "count": 21, "rate_per_s": 42.0},
                "stock": {"name": "stock", "kind": "gauge", **common, "value": 7},
                "users": {"name": "users", "kind": "set", **common, "count": 2},
            }
            send(port, b"stock:+1|g\nload:5|ms|#host:a")
            found = {each["name"]: each for each in receive(channel, 2)}
            assert found["stock"]["value"] == 8, "gauges keep their value"
            assert found["load"]["tags"] == ["host:a"]
            assert found["load"]["upper_90"] == 5.0

    def test_timers_are_summed_up_as_statsd_does(self) -> None:
        """The figures are those that StatsD 0.10.2 gives for the same values."""
        found = statistics_of([450, 120, 553, 994, 334, 844, 675, 496], [90, 50])
        assert found == {
            "lower": 120,
            "upper": 994,
            "sum": 4466,
            "sum_squares": 3036278,
            "mean": 558.25,
            "median": 524.5,
            "count_90": 7,
            "mean_90": 496,
            "upper_90": 844,
            "sum_90": 3472,
            "sum_squares_90": 2048242,
            "count_50": 4,
            "mean_50": 350,
            "upper_50": 496,
            "sum_50": 1400,
            "sum_squares_50": 574472,
            "std": pytest.approx(260.56033370411546),
        }
        assert statistics_of([7], [90])["mean_90"] == 7
        assert "count_1" not in statistics_of([1, 2, 3], [1]), "no value is in the lowest percent of three"
        assert "upper_99_9" in statistics_of([1, 2], [99.9])

    def test_timers_count_what_their_samples_stand_for(self) -> None:
        aggregates = Aggregates([], 10)
        for _ in range(3):
            aggregates.add(Metric("load", "timer", 2, rate=0.5))
        [(name, value)] = aggregates.flush(10.0)
        found = json.loads(value)
        assert (name, found["count"], found["rate_per_s"], found["sum"]) == ("load", 6, 0.6, 6.0)

    def test_tags_and_kinds_tell_metrics_apart(self) -> None:
        aggregates = Aggregates([], 10)
        for metric in (Metric("a", "counter", 1), Metric("a", "counter", 1, tags=["x"]), Metric("a", "gauge", 1)):
            assert aggregates.add(metric)
        assert len(aggregates.flush(1.0)) == 3
        assert aggregates.flush(1.0) == [], "a metric without a value in an interval has no record"

    def test_memory_is_bounded_whatever_is_sent(self) -> None:
        aggregates = Aggregates([], 100, random.Random(1))
        added = sum(aggregates.add(Metric(f"m{number}", "counter", 1)) for number in range(1_000))
        assert added == 100
        aggregates.flush(1.0)
        for number in range(50_000):
            aggregates.add(Metric("load", "timer", number))
        [(_, value)] = aggregates.flush(1.0)
        found = json.loads(value)
        assert found["count"] == 50_000
        assert found["median"] == pytest.approx(25_000, rel=0.1), "of a random sample"
        for number in range(1_000):
            aggregates.add(Metric(f"g{number}", "gauge", 1))
            aggregates.flush(1.0)
        assert len(aggregates._gauges) == 100

    def test_more_metrics_than_the_limit_are_counted(self, port: int) -> None:
        with closing(listening(port, flush_s=0.2, max_series=5)) as channel:
            send(port, b"\n".join(b"m%d:1|c" % number for number in range(20)))
            assert len(receive(channel, 5)) == 5
            assert channel.dropped == channel.counts.left_out == 15


class TestSettings:
    @pytest.mark.parametrize(
        ("url", "error", "message"),
        [
            ("statsd:", UrlError, "is not statsd://HOST:PORT"),
            ("statsd://a,b", UrlError, "is not statsd://HOST:PORT"),
            ("statsd://a?flush=1", ConfigError, "has no setting 'flush'; statsd: has buffer, "),
            ("statsd://a?transport=http", ConfigError, "must be one of udp, tcp"),
            ("statsd://a?flush_s=-1", ConfigError, "flush_s=-1.0 must not be negative"),
            ("statsd://a?percentiles=90,x", ConfigError, "percentiles='90,x' must be numbers"),
            ("statsd://a?percentiles=0", ConfigError, "percentiles='0' must be numbers"),
            ("statsd://a?buffer=0", ConfigError, "buffer=0 must be positive"),
            ("statsd://a?datagram_bytes=100000", ConfigError, "datagram_bytes=100000 must be"),
        ],
    )
    def test_what_cannot_work_is_refused_at_once(self, url: str, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            open_channel(url)

    def test_listening_where_strangers_can_send_needs_consent(self, transport: str, port: int) -> None:
        url = f"statsd://0.0.0.0:{port}?transport={transport}"
        with (
            closing(open_channel(url)) as channel,
            pytest.raises(ConfigError, match=r"lets every machine .* send records here.* or add insecure=true"),
        ):
            channel.listen(1, 0.0)
        with closing(open_channel(f"{url}&insecure=true")) as channel:
            assert channel.listen(1, 0.0) == []

    def test_an_address_in_use_is_named(self, transport: str, port: int) -> None:
        with (
            closing(listening(port, transport=transport)),
            closing(open_channel(f"statsd://{LOOPBACK}:{port}?transport={transport}")) as second,
            pytest.raises(BrokerUnavailableError, match=f"cannot listen at {LOOPBACK}:{port}: .*another program"),
        ):
            second.listen(1, 0.0)

    def test_a_server_that_is_not_there_is_named_by_tcp(self, port: int) -> None:
        with (
            closing(open_channel(f"statsd://{LOOPBACK}:{port}?transport=tcp")) as channel,
            pytest.raises(BrokerUnavailableError, match=f"statsd at {LOOPBACK}:{port} cannot be reached by TCP"),
        ):
            channel.send([NewRecord("metrics", b"a:1|c")])

    def test_a_metric_that_does_not_fit_into_a_datagram_is_refused(self, port: int) -> None:
        with (
            closing(open_channel(f"statsd://{LOOPBACK}:{port}")) as channel,
            pytest.raises(RecordTooLargeError, match="raise datagram_bytes=1432"),
        ):
            channel.send([NewRecord("metrics", b"a:1|c|#" + b"x" * 1_500)])

    def test_metrics_share_datagrams(self, port: int) -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as server:
            server.bind((LOOPBACK, port))
            server.settimeout(WAIT_S)
            with closing(open_channel(f"statsd://{LOOPBACK}:{port}?datagram_bytes=20")) as channel:
                channel.send([NewRecord("metrics", b"abc:%d|c" % number) for number in range(5)])
                assert [server.recv(100) for _ in range(3)] == [b"abc:0|c\nabc:1|c", b"abc:2|c\nabc:3|c", b"abc:4|c"]

    def test_a_path_names_the_channel(self) -> None:
        assert open_channel("statsd://127.0.0.1/metrics").name == "metrics"
        assert open_channel("statsd://127.0.0.1").name == "statsd-127.0.0.1-8125"


def test_a_gateway_makes_metrics_durable(port: int, tmp_path: Path) -> None:
    gateway = Gateway(
        f"statsd://{LOOPBACK}:{port}/metrics", f"log:{tmp_path}/log#metrics", inbox=f"log:{tmp_path}/inbox"
    )
    running = threading.Thread(target=gateway.run, daemon=True)
    running.start()
    client = statsd.StatsClient(LOOPBACK, port)

    def arrives() -> bool:
        """Send until somebody listens."""
        client.incr("clicks")
        return bool(gateway.progress().received)

    wait_until(arrives, 2 * WAIT_S)
    client.timing("end", 1)
    with connect(f"log:{tmp_path}/log") as stream:
        wait_until(lambda: {record.key for record in stream.read("metrics")} == {b"clicks", b"end"}, 2 * WAIT_S)
    assert gateway.progress().lost is None, "best effort"
    gateway.stop()
    running.join(WAIT_S)


def test_a_gateway_sends_records_as_metrics_and_others_to_the_dead_letters(port: int, tmp_path: Path) -> None:
    with closing(listening(port)) as listener:
        with connect(f"log:{tmp_path}/log") as stream:
            stream.create_topic("metrics", 1)
            for value in (b"clicks:1|c", b"no metric", b'{"name": "load", "kind": "timer", "value": 7}'):
                stream.send("metrics", value).result(WAIT_S)
        Gateway(f"log:{tmp_path}/log#metrics", f"statsd://{LOOPBACK}:{port}").run(end="latest")
        assert receive(listener, 2) == [body("clicks", "counter", 1), body("load", "timer", 7)]
        with connect(f"log:{tmp_path}/log") as stream:
            [letter] = list(stream.read("metrics.dlq"))
            assert letter.value == b"no metric"
