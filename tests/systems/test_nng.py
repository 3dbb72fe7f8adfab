"""nng channels by `nng+tcp:` and `nng+ipc:` URLs, with peers that are killed, cut off, or plain sockets."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pynng
import pytest

from penstock.channels import frames, open_channel
from penstock.channels.nng.one_way import CountingNngChannel
from penstock.channels.nng.request import NngRequestChannel
from penstock.errors import BrokerUnavailableError, ConfigError, MissingExtraError, UrlError
from penstock.model import NewRecord
from penstock.testing import conformance
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.secured_kafka import make_certificates
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

pytestmark = [pytest.mark.system("nng"), pytest.mark.xdist_group("nng")]

QUICK = "send_timeout_s=2&linger_s=0.1&wait_for_listener_s=0.2"


@pytest.fixture(scope="module", autouse=True)
def _met() -> None:
    version = pynng.ffi.string(pynng.lib.nng_version()).decode()
    system_table.met("nng", f"nng {version}", CountingNngChannel.FEATURES | NngRequestChannel.FEATURES)


publisher = partial(bound, "nng", f"{QUICK}&pattern=pubsub")
subscriber = partial(connected, "nng", f"{QUICK}&pattern=pubsub")
puller = partial(bound, "nng", f"{QUICK}&pattern=pipeline")
pusher = partial(connected, "nng", f"{QUICK}&pattern=pipeline")
answering = partial(bound, "nng", f"{QUICK}&{REQUEST}")
asking = partial(connected, "nng", f"{QUICK}&{REQUEST}")
ipc_subscriber = partial(ipc, "nng", f"{QUICK}&bind=true&topic=other,tick")
small_ipc_subscriber = partial(ipc, "nng", f"{QUICK}&bind=true&topic=tick&buffer=2")
ipc_publisher = partial(ipc, "nng", f"{QUICK}&bind=false&topic=ticks.x&buffer=100")


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
    req = plain(pynng.Req0, dial=f"ipc://{tmp_path}/ticks")
    check_that_plain_requests_are_answered("nng", tmp_path, req.send, req.recv)


def test_plain_requests_are_not_sent(tmp_path: Path) -> None:
    channel = ipc("nng", "pattern=request&format=plain", tmp_path)
    with pytest.raises(ConfigError, match="format=plain is for listening"):
        channel.send([NewRecord("ticks", b"1")])
    channel.close()


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
    check_that_a_full_buffer_holds_senders_back("nng", tmp_path)


def test_a_gateway_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    check_that_a_killed_gateway_loses_nothing("nng", tmp_path)


class TestTls:
    @pytest.fixture
    def certificates(self, tmp_path: Path) -> Path:
        make_certificates(tmp_path, tmp_path / "ca.pem", tmp_path / "both.pem")
        return tmp_path

    def test_what_is_sent_is_encrypted_and_the_server_is_checked(self, certificates: Path) -> None:
        folder = certificates
        own = f"cert_file={folder}/server.crt&key_file={folder}/server.key"
        listener = bound("nng", f"send_timeout_s=2&pattern=pipeline&tls=true&{own}", folder)
        listener.listen(1, 0.0)
        sender = connected("nng", f"send_timeout_s=2&pattern=pipeline&tls=true&ca_file={folder}/ca.pem", folder)
        sender.send([NewRecord("ticks", b"secret")])
        assert values(take(listener, 1)) == [b"secret"]
        stranger = connected("nng", f"send_timeout_s=2&pattern=pipeline&tls=true&ca_file={folder}/server.crt", folder)
        for other in (pusher(folder), stranger):
            with pytest.raises(BrokerUnavailableError, match="nobody listens"):
                other.send([NewRecord("ticks", b"false")])
            other.close()
        sender.close()
        listener.close()

    def test_a_listener_with_an_authority_asks_for_certificates(self, certificates: Path) -> None:
        folder = certificates
        own = f"cert_file={folder}/server.crt&key_file={folder}/server.key"
        listener = bound("nng", f"send_timeout_s=2&pattern=pipeline&tls=true&{own}&ca_file={folder}/ca.pem", folder)
        listener.listen(1, 0.0)
        known = connected("nng", f"send_timeout_s=2&pattern=pipeline&tls=true&ca_file={folder}/ca.pem&{own}", folder)
        known.send([NewRecord("ticks", b"secret")])
        assert values(take(listener, 1)) == [b"secret"]
        unknown = connected("nng", f"send_timeout_s=2&pattern=pipeline&tls=true&ca_file={folder}/ca.pem", folder)
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
        channel = bound("nng", settings, tmp_path)
        with pytest.raises(ConfigError, match=message):
            channel.listen(1, 0.0)
        channel.close()


def test_an_address_that_is_taken_is_an_error_that_may_pass(tmp_path: Path) -> None:
    check_that_an_address_is_taken_only_for_now("nng", tmp_path)


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
    for url in ("nng+tcp://203.0.113.7:5555?bind=true&insecure=true", f"nng+ipc://{tmp_path}/missing/x?bind=true"):
        channel = open_channel(url)
        with pytest.raises(ConfigError, match="cannot be opened"):
            channel.listen(1, 0.0)
        channel.close()


def test_other_machines_are_let_in_only_when_that_is_asked_for() -> None:
    channel = open_channel("nng+tcp://0.0.0.0:5555?bind=true")
    with pytest.raises(ConfigError, match=r"lets every machine .*insecure=true"):
        channel.listen(1, 0.0)
    with pytest.raises(ConfigError, match=r"lets every machine .*insecure=true"):
        channel.send([NewRecord("x", b"1")])
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
