"""nng channels by `nng+tcp:` and `nng+ipc:` URLs, with peers that are killed, cut off, or plain sockets."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pynng
import pytest

from penstock.abc import Channel
from penstock.channels import frames, open_channel
from penstock.channels.nng.one_way import CountingNngChannel
from penstock.channels.nng.request import NngRequestChannel
from penstock.errors import BrokerUnavailableError, ConfigError, MissingExtraError, UrlError
from penstock.model import NewRecord, Record
from penstock.testing import conformance
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.secured_kafka import make_certificates
from tests.systems.killed_gateway import COUNT, send_through_a_killed_gateway

pytestmark = [pytest.mark.system("nng"), pytest.mark.xdist_group("nng")]

QUICK = "send_timeout_s=2&linger_s=0.1&wait_for_listener_s=0.2"
ANSWER_S = 3.0
WAIT_S = 30.0
TOO_LARGE = 17 << 20


@pytest.fixture(scope="module", autouse=True)
def _met() -> None:
    version = pynng.ffi.string(pynng.lib.nng_version()).decode()
    system_table.met("nng", f"nng {version}", CountingNngChannel.FEATURES | NngRequestChannel.FEATURES)


def bound(folder: Path, settings: str) -> Channel:
    return open_channel(f"nng+tcp://127.0.0.1:{conformance.port_to_bind(folder)}/ticks?{QUICK}&{settings}")


def connected(folder: Path, settings: str) -> Channel:
    return open_channel(f"nng+tcp://127.0.0.1:{conformance.port_to_connect(folder)}/ticks?{QUICK}&{settings}")


def publisher(folder: Path) -> Channel:
    return bound(folder, "pattern=pubsub")


def subscriber(folder: Path) -> Channel:
    return connected(folder, "pattern=pubsub")


def puller(folder: Path) -> Channel:
    return bound(folder, "pattern=pipeline")


def pusher(folder: Path) -> Channel:
    return connected(folder, "pattern=pipeline")


def answering(folder: Path) -> Channel:
    return bound(folder, f"pattern=request&answer_timeout_s={ANSWER_S}")


def asking(folder: Path) -> Channel:
    return connected(folder, f"pattern=request&answer_timeout_s={ANSWER_S}")


def ipc_subscriber(folder: Path) -> Channel:
    return open_channel(f"nng+ipc://{folder}/ticks?{QUICK}&bind=true&topic=other,tick")


def small_ipc_subscriber(folder: Path) -> Channel:
    return open_channel(f"nng+ipc://{folder}/ticks?{QUICK}&bind=true&topic=tick&buffer=2")


def ipc_publisher(folder: Path) -> Channel:
    return open_channel(f"nng+ipc://{folder}/ticks?{QUICK}&bind=false&topic=ticks.x&buffer=100")


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


Plain = Callable[..., Any]


@pytest.fixture
def plain() -> Iterator[Plain]:
    """Makes plain sockets of nng, closed at the end of a test."""
    with ExitStack() as closing:

        def make(kind: type[Any], **options: Any) -> Any:
            timeout_ms = int(WAIT_S * 1000)
            return closing.enter_context(
                kind(recv_timeout=timeout_ms, send_timeout=timeout_ms, block_on_dial=False, **options)
            )

        yield make


def take(channel: Channel, count: int) -> list[Record]:
    records: list[Record] = []
    wait_until(lambda: len(records.__iadd__(channel.listen(count - len(records), 1.0))) == count, WAIT_S)
    return records


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_messages_of_other_programs_are_read(tmp_path: Path, plain: Plain) -> None:
    listener = open_channel(f"nng+ipc://{tmp_path}/ticks?pattern=pipeline&{QUICK}")
    listener.listen(1, 0.0)
    push = plain(pynng.Push0, dial=f"ipc://{tmp_path}/ticks")
    for message in (b"one", b"", bytes(range(256))):
        push.send(message)
    records = take(listener, 3)
    assert values(records) == [b"one", b"", bytes(range(256))]
    assert (records[0].topic, records[0].key, records[0].headers, records[0].timestamp_ms) == ("ticks", None, (), None)
    listener.close()


def test_other_programs_read_plain_messages_and_topics(tmp_path: Path, plain: Plain) -> None:
    sub = plain(pynng.Sub0, listen=f"ipc://{tmp_path}/weather", topics=["eu"])
    sender = open_channel(f"nng+ipc://{tmp_path}/weather?bind=false&format=plain&topic=eu.de:")
    sender.send([NewRecord("weather", b"21"), NewRecord("weather", None)])
    assert [sub.recv() for _ in range(2)] == [b"eu.de:21", b"eu.de:"]
    sender.close()


def test_other_programs_can_read_our_frames(tmp_path: Path, plain: Plain) -> None:
    sub = plain(pynng.Sub0, listen=f"ipc://{tmp_path}/ticks", topics=["t"])
    sender = open_channel(f"nng+ipc://{tmp_path}/ticks?bind=false&topic=t")
    sender.send([NewRecord("ticks", b"1", b"k", (("h", b"2"),), 3), NewRecord("ticks", None)])
    frame = frames.decode(sub.recv().removeprefix(b"t"))
    assert frame is not None
    assert frame.records[0] == frames.Entry(b"1", b"k", (("h", b"2"),), 3)
    assert frame.records[1].value is None
    sender.close()


def test_a_subscriber_gets_only_its_topics(tmp_path: Path, plain: Plain) -> None:
    pub = plain(pynng.Pub0, listen=f"ipc://{tmp_path}/weather")
    listener = open_channel(f"nng+ipc://{tmp_path}/weather?topic=eu,us.ny&format=plain")
    listener.listen(1, 0.0)
    wait_until(lambda: pub.pipes, WAIT_S)
    for topic in (b"asia", b"us.la", b"us.ny", b"eu.de"):
        pub.send(topic)
    assert values(take(listener, 2)) == [b"us.ny", b"eu.de"]
    listener.close()


def test_a_damaged_frame_is_dropped_and_the_next_one_arrives(
    tmp_path: Path, plain: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    listener = open_channel(f"nng+ipc://{tmp_path}/ticks?pattern=pipeline")
    listener.listen(1, 0.0)
    push = plain(pynng.Push0, dial=f"ipc://{tmp_path}/ticks")
    with caplog.at_level(logging.WARNING):
        push.send(frames.MAGIC + b"\x93\xff")
        push.send(b"whole")
        assert values(take(listener, 1)) == [b"whole"]
    assert "is damaged" in caplog.text
    listener.close()


def test_a_plain_req_socket_is_told_what_is_stored(tmp_path: Path, plain: Plain) -> None:
    listener = open_channel(f"nng+ipc://{tmp_path}/ticks?pattern=request&format=plain")
    assert isinstance(listener, NngRequestChannel)
    listener.listen(1, 0.0)
    req = plain(pynng.Req0, dial=f"ipc://{tmp_path}/ticks")
    for message in (b"1", b""):
        req.send(message)
        records = take(listener, 1)
        assert values(records) == [message]
        listener.acknowledge(records)
        assert req.recv() == b"OK"
    for again, answer in ((True, b"AGAIN the disk is full"), (False, b"REFUSED the disk is full")):
        req.send(b"2")
        listener.refuse(take(listener, 1), "the disk is full", again=again)
        assert req.recv() == answer
    with pytest.raises(ConfigError, match="format=plain is for listening"):
        listener.send([NewRecord("ticks", b"1")])
    listener.close()


def test_a_listener_that_speaks_another_language_is_not_taken_for_an_answer(
    tmp_path: Path, plain: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    rep = plain(pynng.Rep0, listen=f"ipc://{tmp_path}/x")
    sender = open_channel(f"nng+ipc://{tmp_path}/x?pattern=request&answer_timeout_s=0.5")
    replying = threading.Thread(target=lambda: (rep.recv(), rep.send(b"hello")))
    replying.start()
    with caplog.at_level(logging.WARNING), pytest.raises(BrokerUnavailableError, match=r"did not answer within 0.5 s"):
        sender.send([NewRecord("x", b"1")])
    replying.join(WAIT_S)
    assert "answered b'hello', which is not an answer of a Penstock channel" in caplog.text
    sender.close()


def test_a_full_buffer_holds_senders_back_and_nothing_is_lost(tmp_path: Path) -> None:
    listener = open_channel(f"nng+ipc://{tmp_path}/ticks?pattern=request&buffer=3")
    assert isinstance(listener, NngRequestChannel)
    listener.listen(1, 0.0)
    sender = open_channel(f"nng+ipc://{tmp_path}/ticks?pattern=request")
    threads = [
        threading.Thread(
            target=sender.send, args=([NewRecord("ticks", b"%d %d" % (number, each)) for each in range(2)],)
        )
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    records: list[Record] = []
    while len(records) < 40:
        taken = listener.listen(1, WAIT_S)
        assert taken, f"{len(records)} of 40 records came, and then none"
        listener.acknowledge(taken)
        records += taken
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert len(set(values(records))) == 40
    sender.close()
    listener.close()


def test_a_gateway_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    source = f"nng+tcp://127.0.0.1:{conformance.port_to_bind(tmp_path)}/ticks?pattern=request"
    sender = open_channel(source, answer_timeout_s=10.0)
    delivered = send_through_a_killed_gateway(source, sender, tmp_path)
    sender.close()
    assert sorted(set(delivered)) == list(range(COUNT))


class TestTls:
    @pytest.fixture
    def certificates(self, tmp_path: Path) -> Path:
        make_certificates(tmp_path, tmp_path / "ca.pem", tmp_path / "both.pem")
        return tmp_path

    def test_what_is_sent_is_encrypted_and_the_server_is_checked(self, certificates: Path) -> None:
        folder = certificates
        own = f"cert_file={folder}/server.crt&key_file={folder}/server.key"
        listener = bound(folder, f"pattern=pipeline&tls=true&{own}")
        listener.listen(1, 0.0)
        sender = connected(folder, f"pattern=pipeline&tls=true&ca_file={folder}/ca.pem")
        sender.send([NewRecord("ticks", b"secret")])
        assert values(take(listener, 1)) == [b"secret"]
        stranger = connected(folder, f"pattern=pipeline&tls=true&ca_file={folder}/server.crt")
        for other in (pusher(folder), stranger):
            with pytest.raises(BrokerUnavailableError, match="nobody listens"):
                other.send([NewRecord("ticks", b"false")])
            other.close()
        sender.close()
        listener.close()

    def test_a_listener_with_an_authority_asks_for_certificates(self, certificates: Path) -> None:
        folder = certificates
        own = f"cert_file={folder}/server.crt&key_file={folder}/server.key"
        listener = bound(folder, f"pattern=pipeline&tls=true&{own}&ca_file={folder}/ca.pem")
        listener.listen(1, 0.0)
        known = connected(folder, f"pattern=pipeline&tls=true&ca_file={folder}/ca.pem&{own}")
        known.send([NewRecord("ticks", b"secret")])
        assert values(take(listener, 1)) == [b"secret"]
        unknown = connected(folder, f"pattern=pipeline&tls=true&ca_file={folder}/ca.pem")
        with suppress(BrokerUnavailableError):  # TLS 1.3: the sender may be done before the listener refuses it
            unknown.send([NewRecord("ticks", b"false")])
        assert listener.listen(1, 0.5) == []
        for channel in (unknown, known, listener):
            channel.close()

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ("tls=true&bind=true", "tls needs cert_file and key_file on the side that binds"),
            ("tls=true&bind=false", "tls needs ca_file on the side that connects"),
            ("tls=true&bind=false&ca_file=/missing", "/missing cannot be read"),
            ("tls=true&bind=false&ca_file=/etc/hostname", "the certificates cannot be used"),
        ],
    )
    def test_certificates_that_cannot_work_are_refused(self, tmp_path: Path, settings: str, message: str) -> None:
        channel = bound(tmp_path, settings)
        with pytest.raises(ConfigError, match=message):
            channel.listen(1, 0.0)
        channel.close()


def test_an_address_that_is_taken_is_an_error_that_may_pass(tmp_path: Path) -> None:
    first, second = puller(tmp_path), puller(tmp_path)
    first.listen(1, 0.0)
    with pytest.raises(
        BrokerUnavailableError, match=r"nng\+tcp://127.0.0.1:\d+/ticks cannot be bound: another process"
    ):
        second.listen(1, 0.0)
    first.close()
    wait_until(lambda: _listens(second), WAIT_S)
    second.close()


def _listens(channel: Channel) -> bool:
    try:
        channel.listen(1, 0.0)
    except BrokerUnavailableError:
        return False
    return True


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("nng+tcp://127.0.0.1/x", UrlError, "is not HOST:PORT"),
        ("nng+tcp://me:secret@a:1", UrlError, "has a user or password"),
        ("nng+ipc:", UrlError, r"is not nng\+ipc:/PATH"),
        ("nng+tcp://a:1?patern=pubsub", ConfigError, "has no setting 'patern'"),
        ("nng+tcp://a:1?buffer=10000", ConfigError, "buffer=10000 must be an integer from 1 to 8192"),
        ("nng+tcp://a:1?buffer=10&pattern=pipeline", ConfigError, "pipeline has no buffer of its own"),
        ("nng+tcp://a:1?max_message_bytes=0", ConfigError, "max_message_bytes=0"),
        ("nng+tcp://a:1?send_timeout_s=0", ConfigError, "send_timeout_s=0.* must be positive"),
        ("nng+tcp://a:1?linger_s=-1", ConfigError, "linger_s=-1.* must not be negative"),
        ("nng+tcp://a:1?pattern=pipeline&topic=x", ConfigError, "only pattern=pubsub has topics"),
        (f"nng+tcp://a:1?topic={'x' * 256}", ConfigError, "at most 255 bytes"),
        ("nng+tcp://a:1?ca_file=x", ConfigError, "need tls=true"),
        ("nng+tcp://a:1?tls=true&cert_file=x", ConfigError, "belong together"),
        ("nng+ipc:/x?tls=true", ConfigError, r"tls is for nng\+tcp"),
    ],
)
def test_what_cannot_work_is_refused_at_once(url: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        open_channel(url)
    assert "secret" not in str(raised.value)


def test_addresses_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    for url in ("nng+tcp://203.0.113.7:5555?bind=true", f"nng+ipc://{tmp_path}/missing/x?bind=true"):
        channel = open_channel(url)
        with pytest.raises(ConfigError, match="cannot be opened"):
            channel.listen(1, 0.0)
        channel.close()


def test_a_sender_has_one_topic(tmp_path: Path) -> None:
    channel = open_channel(f"nng+ipc://{tmp_path}/x?topic=a,b")
    with pytest.raises(ConfigError, match="records are sent with one topic"):
        channel.send([NewRecord("x", b"1")])
    with pytest.raises(ConfigError, match="limit=0"):
        channel.listen(0, 0.0)
    channel.close()


def test_the_extra_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynng", None)
    for pattern in ("pubsub", "request"):
        with pytest.raises(MissingExtraError, match=r"penstock\[nng\]"):
            open_channel(f"nng+tcp://127.0.0.1:1?pattern={pattern}")
