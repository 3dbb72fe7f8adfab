"""ZeroMQ channels by `zmq+tcp:` and `zmq+ipc:` URLs, with peers that are killed, cut off, or plain sockets."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.auth

import penstock as ps
from penstock.abc import Channel
from penstock.channels import frames, open_channel
from penstock.channels.zmq.one_way import CountingZmqChannel
from penstock.channels.zmq.request import ZmqRequestChannel
from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError, MissingExtraError, UrlError
from penstock.model import NewRecord, Record
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.systems.two_sides import (
    ANSWER_S,
    REQUEST,
    TOO_LARGE,
    WAIT_S,
    bound,
    check_that_a_full_buffer_holds_senders_back,
    check_that_a_killed_gateway_loses_nothing,
    check_that_an_address_is_taken_only_for_now,
    check_that_plain_requests_are_answered,
    connected,
    ipc,
    take,
    values,
)

pytestmark = [pytest.mark.system("ZeroMQ"), pytest.mark.xdist_group("zeromq")]

QUICK = "heartbeat_s=1&send_timeout_s=2&linger_s=1&wait_for_listener_s=0.2"


@pytest.fixture(scope="module", autouse=True)
def _met() -> None:
    features = CountingZmqChannel.FEATURES | ZmqRequestChannel.FEATURES
    system_table.met("ZeroMQ", f"libzmq {zmq.zmq_version()}", features)


publisher = partial(bound, "zmq", f"{QUICK}&pattern=pubsub")
subscriber = partial(connected, "zmq", f"{QUICK}&pattern=pubsub")
puller = partial(bound, "zmq", f"{QUICK}&pattern=pipeline")
pusher = partial(connected, "zmq", f"{QUICK}&pattern=pipeline")
answering = partial(bound, "zmq", f"{QUICK}&{REQUEST}")
asking = partial(connected, "zmq", f"{QUICK}&{REQUEST}")
ipc_subscriber = partial(ipc, "zmq", f"{QUICK}&bind=true&topic=other,tick")
small_ipc_subscriber = partial(ipc, "zmq", f"{QUICK}&bind=true&topic=tick&buffer=2&socket_buffer_bytes=4096")
ipc_publisher = partial(ipc, "zmq", f"{QUICK}&bind=false&topic=ticks.x&buffer=10&socket_buffer_bytes=4096")


class TestPubSub(conformance.channel(subscriber, publisher, network=True, too_large_bytes=TOO_LARGE)):  # type: ignore[misc]
    test_the_records_of_several_senders_arrive = None
    """Only one publisher can bind the address. In the next class, they connect."""


class TestSubscriberBinds(
    conformance.channel(ipc_subscriber, ipc_publisher, limited=small_ipc_subscriber)  # type: ignore[misc]
):
    pass


class TestPipeline(conformance.channel(puller, pusher, network=True)):  # type: ignore[misc]
    pass


class TestRequest(conformance.channel(answering, asking, network=True, answer_s=ANSWER_S)):  # type: ignore[misc]
    pass


class Plain:
    """Plain sockets of ZeroMQ, closed at the end of a test."""

    def __init__(self) -> None:
        self._context = zmq.Context()

    def socket(self, kind: int, address: str, *, bind: bool = False, subscribe: str | None = None) -> Any:
        made = self._context.socket(kind)
        made.linger = 0
        made.rcvtimeo = made.sndtimeo = int(WAIT_S * 1000)
        if subscribe is not None:
            made.subscribe(subscribe)
        (made.bind if bind else made.connect)(address)
        return made

    def close(self) -> None:
        self._context.destroy(0)


@pytest.fixture
def plain() -> Iterator[Plain]:
    made = Plain()
    yield made
    made.close()


def test_messages_of_other_programs_are_read(tmp_path: Path, plain: Plain) -> None:
    listener = open_channel(f"zmq+ipc://{tmp_path}/ticks?pattern=pipeline&{QUICK}")
    listener.listen(1, 0.0)
    push = plain.socket(zmq.PUSH, f"ipc://{tmp_path}/ticks")
    push.send(b"alone")
    push.send_multipart([b"key", b"value"])
    push.send_multipart([b"key", b"1", b"2", b""])
    alone, pair, many = take(listener, 3)
    assert (alone.key, alone.value, alone.headers, alone.timestamp_ms) == (None, b"alone", (), None)
    assert (pair.key, pair.value, pair.headers) == (b"key", b"value", ())
    assert (many.key, many.value, many.headers) == (b"key", b"", (("part", b"1"), ("part", b"2")))
    assert (pair.topic, pair.partition) == ("ticks", 0)
    listener.close()


def test_other_programs_read_plain_messages(tmp_path: Path, plain: Plain) -> None:
    sub = plain.socket(zmq.SUB, f"ipc://{tmp_path}/weather", bind=True, subscribe="eu")
    sender = open_channel(f"zmq+ipc://{tmp_path}/weather?bind=false&format=plain&topic=eu.de")
    records = [(b"21", None), (b"3", b"eu.no"), (b"9", b"us"), (None, None)]
    sending = threading.Thread(
        target=sender.send,
        args=([NewRecord("weather", value, key) for value, key in records],),
    )
    sending.start()
    assert [sub.recv_multipart() for _ in range(3)] == [[b"eu.de", b"21"], [b"eu.no", b"3"], [b"eu.de", b""]]
    sending.join(WAIT_S)
    sender.close()


def test_other_programs_can_read_our_frames(tmp_path: Path, plain: Plain) -> None:
    sub = plain.socket(zmq.SUB, f"ipc://{tmp_path}/ticks", bind=True, subscribe="")
    sender = open_channel(f"zmq+ipc://{tmp_path}/ticks?bind=false&topic=t")
    records = [NewRecord("ticks", b"1", b"k", (("h", b"2"),), 3), NewRecord("ticks", None)]
    sending = threading.Thread(target=sender.send, args=(records,))
    sending.start()
    topic, message = sub.recv_multipart()
    sending.join(WAIT_S)
    frame = frames.decode(message)
    assert frame is not None
    assert (topic, frame.number) == (b"t", 0)
    assert frame.records[0] == frames.Entry(b"1", b"k", (("h", b"2"),), 3)
    assert frame.records[1].value is None
    sender.close()


def test_a_subscriber_gets_only_its_topics(tmp_path: Path, plain: Plain) -> None:
    pub = plain.socket(zmq.XPUB, f"ipc://{tmp_path}/weather", bind=True)
    listener = open_channel(f"zmq+ipc://{tmp_path}/weather?topic=eu,us.ny&format=plain")
    listener.listen(1, 0.0)
    assert sorted(pub.recv() for _ in range(2)) == [b"\x01eu", b"\x01us.ny"]
    for topic in (b"asia", b"us.la", b"us.ny", b"eu.de"):
        pub.send_multipart([topic, b"1"])
    assert [record.key for record in take(listener, 2)] == [b"us.ny", b"eu.de"]
    listener.close()


def test_a_damaged_frame_is_dropped_and_the_next_one_arrives(
    tmp_path: Path, plain: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    listener = open_channel(f"zmq+ipc://{tmp_path}/ticks?pattern=pipeline")
    listener.listen(1, 0.0)
    push = plain.socket(zmq.PUSH, f"ipc://{tmp_path}/ticks")
    with caplog.at_level(logging.WARNING):
        push.send(frames.MAGIC + b"\x93\xff")
        push.send(frames.MAGIC + b"\x93\xc4\x01a\x00\x91\x94\xc4\x01v\xc0\x91\x92\xa1\xff\xc0\xc0")
        push.send(b"whole")
        assert values(take(listener, 1)) == [b"whole"]
    assert caplog.text.count("is damaged") == 2
    listener.close()


def test_what_is_lost_while_the_network_is_cut_is_counted(tmp_path: Path) -> None:
    sender = publisher(tmp_path)
    with TcpProxy(conformance.port_to_bind(tmp_path)) as proxy:
        listener = open_channel(f"zmq+tcp://{proxy.address}/ticks?{QUICK}")
        assert isinstance(listener, CountingZmqChannel)
        listener.listen(1, 0.0)
        sender.send([NewRecord("ticks", b"joined")])
        wait_until(lambda: _sent_and_heard(sender, listener), WAIT_S)
        while listener.listen(100, 0.2):
            pass
        assert listener.lost == 0
        proxy.cut()
        before = sender._writer.number  # type: ignore[attr-defined]
        for _ in range(25):
            sender.send([NewRecord("ticks", b"unheard")] * 2)
        proxy.heal()
        heard: list[Record] = []

        def is_back() -> bool:
            sender.send([NewRecord("ticks", b"back")])
            heard.extend(listener.listen(100, 0.1))
            return bool(heard)

        wait_until(is_back, WAIT_S)
        sender.send([NewRecord("ticks", b"last")])
        while b"last" not in values(heard):
            heard.extend(listener.listen(100, WAIT_S))
        sent = sender._writer.number - before  # type: ignore[attr-defined]
        assert listener.lost == sent - len(heard)
        listener.close()
    sender.close()


def _sent_and_heard(sender: Channel, listener: Channel) -> bool:
    sender.send([NewRecord("ticks", b"joined")])
    return bool(listener.listen(100, 0.1))


def test_a_plain_req_socket_is_told_what_is_stored(tmp_path: Path, plain: Plain) -> None:
    req = plain.socket(zmq.REQ, f"ipc://{tmp_path}/ticks")
    check_that_plain_requests_are_answered("zmq", tmp_path, req.send, req.recv)


def test_plain_requests_are_not_sent(tmp_path: Path) -> None:
    channel = ipc("zmq", "pattern=request&format=plain", tmp_path)
    with pytest.raises(ConfigError, match="format=plain is for listening"):
        channel.send([NewRecord("ticks", b"1")])
    channel.close()


def test_a_damaged_request_is_refused(tmp_path: Path, plain: Plain) -> None:
    listener = open_channel(f"zmq+ipc://{tmp_path}/ticks?pattern=request")
    listener.listen(1, 0.0)
    req = plain.socket(zmq.REQ, f"ipc://{tmp_path}/ticks")
    req.send(frames.MAGIC + b"\x93\xff")
    assert req.recv().startswith(b"REFUSED a frame of 6 bytes is damaged")
    listener.close()


def test_a_full_buffer_holds_senders_back_and_nothing_is_lost(tmp_path: Path) -> None:
    check_that_a_full_buffer_holds_senders_back("zmq", tmp_path)


def test_a_gateway_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    check_that_a_killed_gateway_loses_nothing("zmq", tmp_path)


def test_results_of_a_handler_go_to_a_channel(tmp_path: Path) -> None:
    listener = open_channel(f"zmq+ipc://{tmp_path}/totals?pattern=pipeline")
    listener.listen(1, 0.0)
    with ps.connect(f"sqlite:{tmp_path}/a.db") as stream:
        stream.create_topic("orders", 1)
        for number in range(10):
            stream.send("orders", str(number), "k")
    app = ps.App(f"sqlite:{tmp_path}/a.db", group="totals")

    @app.handle("orders", to=f"zmq+ipc://{tmp_path}/totals?pattern=pipeline")
    def double(value: bytes) -> bytes:
        return b"%d" % (2 * int(value))

    app.run(end="latest")
    assert values(take(listener, 10)) == [b"%d" % (2 * number) for number in range(10)]
    listener.close()


class TestCurve:
    @pytest.fixture
    def keys(self, tmp_path: Path) -> Path:
        for name in ("server", "client", "stranger"):
            zmq.auth.create_certificates(tmp_path, name)
        (tmp_path / "clients").mkdir()
        (tmp_path / "client.key").rename(tmp_path / "clients" / "client.key")
        return tmp_path

    def listener(self, keys: Path) -> Channel:
        return bound(
            "zmq",
            f"send_timeout_s=2&pattern=pipeline&curve_key_file={keys}/server.key_secret&curve_clients_folder={keys}/clients",
            keys,
        )

    def sender(self, keys: Path, name: str) -> Channel:
        return connected(
            "zmq",
            f"send_timeout_s=2&pattern=pipeline&curve_key_file={keys}/{name}.key_secret&curve_server_file={keys}/server.key",
            keys,
        )

    def test_who_has_the_keys_is_heard_and_others_are_not(self, keys: Path) -> None:
        listener = self.listener(keys)
        listener.listen(1, 0.0)
        friend = self.sender(keys, "client")
        friend.send([NewRecord("ticks", b"secret")])
        assert values(take(listener, 1)) == [b"secret"]
        for other in (self.sender(keys, "stranger"), pusher(keys)):
            with pytest.raises(BrokerUnavailableError, match="nobody listens"):
                other.send([NewRecord("ticks", b"false")])
            other.close()
        assert listener.listen(1, 0.2) == []
        friend.close()
        listener.close()

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ("curve_key_file={keys}/clients/client.key&bind=true", r"has no secret key: give the .key_secret file"),
            ("curve_key_file={keys}/missing&bind=true", "cannot be loaded"),
            ("curve_key_file={keys}/server.key_secret&bind=false", "needs curve_server_file on the side that connects"),
            (
                "curve_key_file={keys}/server.key_secret&curve_server_file={keys}/server.key&bind=true",
                "is for the side that connects",
            ),
            (
                "curve_key_file={keys}/server.key_secret&curve_clients_folder={keys}/nowhere&bind=true",
                "is not a folder",
            ),
            (
                "curve_key_file={keys}/server.key_secret&curve_clients_folder={keys}&bind=false",
                "is for the side that binds",
            ),
        ],
    )
    def test_keys_that_cannot_work_are_refused(self, keys: Path, settings: str, message: str) -> None:
        channel = bound("zmq", settings.format(keys=keys), keys)
        with pytest.raises(ConfigError, match=message):
            channel.listen(1, 0.0)
        channel.close()


def test_an_address_that_is_taken_is_an_error_that_may_pass(tmp_path: Path) -> None:
    check_that_an_address_is_taken_only_for_now("zmq", tmp_path)


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("zmq+tcp://127.0.0.1/x", UrlError, "is not HOST:PORT"),
        ("zmq+tcp:5555", UrlError, r"is not zmq\+tcp://HOST:PORT"),
        ("zmq+tcp://a:1,b:2", UrlError, r"is not zmq\+tcp://HOST:PORT"),
        ("zmq+tcp://me:secret@a:1", UrlError, "has a user or password"),
        ("zmq+ipc://host/x", UrlError, "is not HOST:PORT"),
        ("zmq+ipc:", UrlError, r"is not zmq\+ipc:/PATH"),
        ("zmq+tcp://a:1?patern=pubsub", ConfigError, "has no setting 'patern'"),
        ("zmq+tcp://a:1?pattern=survey", ConfigError, "must be one of pubsub, pipeline, request"),
        ("zmq+tcp://a:1?buffer=0", ConfigError, "buffer=0 must be an integer >= 1"),
        ("zmq+tcp://a:1?socket_buffer_bytes=0", ConfigError, "socket_buffer_bytes=0"),
        ("zmq+tcp://a:1?heartbeat_s=0", ConfigError, "heartbeat_s=0.* must be positive"),
        ("zmq+tcp://a:1?linger_s=-1", ConfigError, "linger_s=-1.* must not be negative"),
        ("zmq+tcp://a:1?pattern=pipeline&topic=x", ConfigError, "only pattern=pubsub has topics"),
        ("zmq+tcp://a:1?curve_server_file=x", ConfigError, "need curve_key_file"),
    ],
)
def test_what_cannot_work_is_refused_at_once(url: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        open_channel(url)
    assert "secret" not in str(raised.value)


def test_addresses_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    for url in ("zmq+tcp://203.0.113.7:5555?bind=true&insecure=true", f"zmq+ipc://{tmp_path}/missing/x?bind=true"):
        channel = open_channel(url)
        with pytest.raises((ConfigError, BrokerUnavailableError), match="cannot be bound"):
            channel.listen(1, 0.0)
        channel.close()


def test_other_machines_are_let_in_only_when_that_is_asked_for() -> None:
    channel = open_channel("zmq+tcp://0.0.0.0:5555?bind=true")
    with pytest.raises(ConfigError, match=r"lets every machine .*insecure=true"):
        channel.listen(1, 0.0)
    with pytest.raises(ConfigError, match=r"lets every machine .*insecure=true"):
        channel.send([NewRecord("x", b"1")])
    channel.close()


def test_a_sender_has_one_topic(tmp_path: Path) -> None:
    channel = open_channel(f"zmq+ipc://{tmp_path}/x?topic=a,b")
    with pytest.raises(ConfigError, match="records are sent with one topic"):
        channel.send([NewRecord("x", b"1")])
    with pytest.raises(ConfigError, match="limit=0"):
        channel.listen(0, 0.0)
    channel.close()


def test_a_listener_that_speaks_another_language_is_not_taken_for_an_answer(
    tmp_path: Path, plain: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    rep = plain.socket(zmq.REP, f"ipc://{tmp_path}/x", bind=True)
    sender = open_channel(f"zmq+ipc://{tmp_path}/x?pattern=request&answer_timeout_s=0.5")
    answering = threading.Thread(target=lambda: (rep.recv(), rep.send(b"hello")))
    answering.start()
    with caplog.at_level(logging.WARNING), pytest.raises(BrokerUnavailableError, match=r"did not answer within 0.5 s"):
        sender.send([NewRecord("x", b"1")])
    answering.join(WAIT_S)
    assert "answered b'hello', which is not an answer of a Penstock channel" in caplog.text
    sender.close()


def test_refused_records_of_several_requests_are_one_error(tmp_path: Path) -> None:
    listener, sender = answering(tmp_path), asking(tmp_path)
    assert isinstance(listener, ZmqRequestChannel)
    listener.listen(1, 0.0)
    errors: list[BaseException] = []

    def send() -> None:
        try:
            sender.send([NewRecord("ticks", bytes([number]) * 50_000) for number in range(5)])
        except DeliveryError as error:
            errors.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    records = take(listener, 5)
    listener.refuse(records[1:2], "later", again=True)
    listener.refuse(records[3:4], "never", again=False)
    listener.acknowledge([records[0], records[2], records[4]])
    sending.join(WAIT_S)
    [error] = errors
    assert isinstance(error, DeliveryError)
    assert "never" in str(error)
    assert not error.retriable
    sender.close()
    listener.close()


def test_the_extra_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(MissingExtraError, match=r"penstock\[zmq\]"):
        open_channel("zmq+tcp://127.0.0.1:1")
