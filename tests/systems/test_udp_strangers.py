"""UDP channels and strangers: foreign packets, forged requests, datagrams of other programs, wrong settings."""

from __future__ import annotations

import functools
import random
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from penstock.abc import Feature
from penstock.channels import open_channel
from penstock.channels.udp import UdpChannel
from penstock.channels.udp.channel import RawUdpChannel
from penstock.channels.udp.packets import (
    CHALLENGE,
    DATA,
    HEARTBEAT,
    NO_COOKIE,
    REQUEST,
    Packet,
    PacketCodec,
    encode_records,
    encode_request,
)
from penstock.errors import BrokerUnavailableError, ConfigError, RecordTooLargeError, UrlError
from penstock.model import NewRecord, Record
from tests.consuming.eventually import wait_until
from tests.sampling import times
from tests.seeds import seed_of
from tests.systems.udp_sender import (
    GROUP,
    LOOPBACK,
    QUICK,
    SECRET,
    WAIT_S,
    HandMadeSender,
    free_port,
    listening,
    numbered,
    numbers_of,
    receive,
)

pytestmark = [pytest.mark.system("UDP"), pytest.mark.xdist_group("udp")]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def hand_made(port: int) -> Iterator[HandMadeSender]:
    with closing(HandMadeSender(port)) as sender:
        yield sender


def _is_more(listener: UdpChannel, before: int) -> bool:
    return listener.counts.foreign > before


class TestForeignPackets:
    def test_they_are_counted_and_ignored(self, hand_made: HandMadeSender, port: int) -> None:
        with closing(listening(f"udp://{LOOPBACK}:{port}")) as listener, closing(HandMadeSender(port)) as other:
            good = hand_made.data(0)
            hand_made.send(good)
            assert receive(listener, 1) == [0]
            signed = PacketCodec([SECRET.encode()]).encode(
                DATA, 8, 0, 0, count=1, payload=encode_records(numbered([5]))
            )
            foreign = [
                b"",
                b"GET / HTTP/1.1",
                good[:30],
                good[:4] + b"\x09" + good[5:],
                good[:-1] + bytes([good[-1] ^ 1]),
                signed,
                hand_made.codec.encode(15, 7, 1, 1),
                hand_made.codec.encode(CHALLENGE, 99, 1, 1, payload=bytes(16)),
            ]
            for packet in foreign:
                before = listener.counts.foreign
                hand_made.send(packet)
                wait_until(functools.partial(_is_more, listener, before))
            other.send(other.data(1))  # the session of another sender
            wait_until(lambda: listener.counts.foreign == len(foreign) + 1)
            hand_made.send(hand_made.data(1))
            assert receive(listener, 1) == [1]
            assert listener.lost == 0

    def test_records_that_cannot_be_decoded_are_lost(self, hand_made: HandMadeSender, port: int) -> None:
        with closing(listening(f"udp://{LOOPBACK}:{port}")) as listener:
            hand_made.send(hand_made.codec.encode(DATA, 7, 0, 0, count=3, payload=b"\x91\x01"))
            hand_made.send(hand_made.data(1, 3))
            assert receive(listener, 1) == [3]
            assert listener.lost == 3

    def test_random_changes_of_packets_never_stop_a_listener(self, hand_made: HandMadeSender, port: int) -> None:
        chooser = random.Random(seed_of())
        with closing(listening(f"udp://{LOOPBACK}:{port}")) as listener:
            for number in range(times(2_000, soak=100_000)):
                packet = bytearray(hand_made.data(number % 7, age_ms=chooser.randrange(1 << 32)))
                for _ in range(chooser.randrange(1, 4)):
                    packet[chooser.randrange(len(packet))] = chooser.randrange(256)
                hand_made.send(bytes(packet[: chooser.randrange(len(packet) + 1)]))
            with closing(HandMadeSender(port, session=12345)) as sender:
                sender.send(sender.data(0, 4_711))
                wait_until(lambda: 4_711 in numbers_of(listener.listen(1_000, 0.1)))

    def test_only_packets_with_the_same_secret_are_taken(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        url = f"udp://{LOOPBACK}:{port}?{QUICK}"
        monkeypatch.setenv("OLD_AND_NEW", f"the-secret-before-that {SECRET}")
        monkeypatch.setenv("NEW", SECRET)
        monkeypatch.setenv("WRONG", "not-the-same-secret")
        with closing(listening(url, secret_env="OLD_AND_NEW")) as listener:
            for secret in (None, "WRONG"):
                before = listener.counts.foreign
                with closing(open_channel(url, secret_env=secret)) as stranger:
                    stranger.send(numbered([1]))
                    wait_until(functools.partial(_is_more, listener, before))
            for number, secret in enumerate(("OLD_AND_NEW", "NEW")):
                with closing(open_channel(url, secret_env=secret)) as friend:
                    friend.send(numbered([number]))
                    assert receive(listener, 1) == [number]


class TestRequests:
    """What strangers can make a sender send."""

    @contextmanager
    def asked(self, port: int, settings: str = "") -> Iterator[tuple[socket.socket, PacketCodec, Packet]]:
        """A socket that has received the first packet of a sender, which has sent 1,000."""
        with socket.socket(type=socket.SOCK_DGRAM) as receiver:
            receiver.bind((LOOPBACK, port))
            receiver.settimeout(WAIT_S)
            with closing(open_channel(f"udp://{LOOPBACK}:{port}?heartbeat_s=1000&{QUICK}{settings}")) as sender:
                for number in range(1_000):
                    sender.send(numbered([number]))
                data, self.address = receiver.recvfrom(65536)
                codec = PacketCodec()
                yield receiver, codec, codec.decode(data)

    def answers(self, receiver: socket.socket, codec: PacketCodec) -> list[Packet]:
        """What arrives until nothing does for a while, without heartbeats."""
        receiver.settimeout(WAIT_S)
        found: list[Packet] = []
        while True:  # ends: with a while without packets
            try:
                packet = codec.decode(receiver.recv(65536))
            except TimeoutError:
                return found
            if packet.kind != HEARTBEAT:
                found.append(packet)
                receiver.settimeout(1.5)

    def test_without_a_cookie_the_answer_is_smaller_than_the_request(self, port: int) -> None:
        with self.asked(port) as (_, codec, packet), socket.socket(type=socket.SOCK_DGRAM) as stranger:
            request = codec.encode(REQUEST, packet.session, 0, 0, payload=encode_request(NO_COOKIE, [(0, 1_000)]))
            stranger.sendto(request, self.address)
            [challenge] = self.answers(stranger, codec)
            assert challenge.kind == CHALLENGE
            assert codec.overhead_bytes + len(challenge.payload) < len(request)

    def test_the_cookie_of_another_address_is_worth_nothing(self, port: int) -> None:
        with (
            self.asked(port) as (_, codec, packet),
            socket.socket(type=socket.SOCK_DGRAM) as owner,
            socket.socket(type=socket.SOCK_DGRAM) as thief,
        ):
            ask = encode_request(NO_COOKIE, [(0, 1_000)])
            owner.sendto(codec.encode(REQUEST, packet.session, 0, 0, payload=ask), self.address)
            [challenge] = self.answers(owner, codec)
            ask = encode_request(challenge.payload, [(0, 1_000)])
            thief.sendto(codec.encode(REQUEST, packet.session, 0, 0, payload=ask), self.address)
            assert [each.kind for each in self.answers(thief, codec)] == [CHALLENGE]
            owner.sendto(codec.encode(REQUEST, packet.session, 0, 0, payload=ask), self.address)
            found = self.answers(owner, codec)
            assert [each.number for each in found if each.kind == DATA] == list(range(256)), "a bounded answer"

    def test_answers_are_limited_in_rate(self, port: int) -> None:
        settings = "&repair_packets_per_s=20"
        with self.asked(port, settings) as (_, codec, packet), socket.socket(type=socket.SOCK_DGRAM) as receiver:
            ask = encode_request(NO_COOKIE, [(0, 1)])
            receiver.sendto(codec.encode(REQUEST, packet.session, 0, 0, payload=ask), self.address)
            [challenge] = self.answers(receiver, codec)
            request = codec.encode(
                REQUEST, packet.session, 0, 0, payload=encode_request(challenge.payload, [(0, 1_000)])
            )
            began_s = time.monotonic()
            for _ in range(20):
                receiver.sendto(request, self.address)
            found = self.answers(receiver, codec)
            assert len(found) <= 20 + 20 * (time.monotonic() - began_s), "20 at once, and 20 a second"

    def test_garbage_and_huge_ranges_are_survived(self, port: int) -> None:
        chooser = random.Random(seed_of())
        with self.asked(port) as (_, codec, packet), socket.socket(type=socket.SOCK_DGRAM) as receiver:
            huge = [(0, 0xFFFFFFFF), ((1 << 64) - 1, 0xFFFFFFFF), (1 << 63, 1)]
            for payload in (b"", b"x" * 17, encode_request(NO_COOKIE, huge), chooser.randbytes(5_000)):
                receiver.sendto(codec.encode(REQUEST, packet.session, 0, 0, payload=payload), self.address)
            receiver.sendto(chooser.randbytes(1_000), self.address)
            [challenge] = self.answers(receiver, codec)
            ask = encode_request(challenge.payload, huge)
            receiver.sendto(codec.encode(REQUEST, packet.session, 0, 0, payload=ask), self.address)
            assert len(self.answers(receiver, codec)) == 256


class TestRawDatagrams:
    def test_datagrams_of_other_programs_are_records_and_back(self, port: int) -> None:
        channel = open_channel(f"udp://{LOOPBACK}:{port}?raw=true")
        with closing(channel), socket.socket(type=socket.SOCK_DGRAM) as program:
            program.bind((LOOPBACK, 0))
            channel.listen(1, 0.0)
            program.sendto(b"\x00anything", (LOOPBACK, port))
            [record] = channel.listen(10, WAIT_S)
            assert (record.value, record.key, record.headers) == (b"\x00anything", None, ())
            program.settimeout(WAIT_S)
            with closing(open_channel(f"udp://{LOOPBACK}:{program.getsockname()[1]}?raw=true")) as sender:
                sender.send([NewRecord("udp", b"out", b"key")])
                assert program.recv(100) == b"out"

    def test_it_says_that_it_is_best_effort_and_counts_what_it_drops(self, port: int) -> None:
        channel = open_channel(f"udp://{LOOPBACK}:{port}?raw=true&buffer=10&socket_buffer_bytes=4096")
        assert isinstance(channel, RawUdpChannel)
        assert not {Feature.ANSWERS, Feature.LOSS_COUNT} & channel.features
        with closing(channel), socket.socket(type=socket.SOCK_DGRAM) as program:
            channel.listen(1, 0.0)
            for _ in range(500):
                program.sendto(b"x" * 500, (LOOPBACK, port))
            arrived: list[Record] = []
            deadline_s = time.monotonic() + WAIT_S
            while len(arrived) + channel.dropped < 500 and time.monotonic() < deadline_s:
                arrived += channel.listen(100, 0.1)
            assert len(arrived) + channel.dropped == 500
            assert channel.dropped


class TestSettings:
    @pytest.mark.parametrize(
        ("url", "error", "message"),
        [
            ("udp://127.0.0.1", UrlError, "is not HOST:PORT"),
            ("udp:5000", UrlError, "is not udp://HOST:PORT"),
            ("udp://a:1,b:2", UrlError, "is not udp://HOST:PORT"),
            ("udp://127.0.0.1:5000?mtu=1400", ConfigError, "has no setting 'mtu'; udp: has buffer, "),
            ("udp://127.0.0.1:5000?ttl=300", ConfigError, "ttl=300 must be an integer from 0 to 255"),
            (
                "udp://127.0.0.1:5000?datagram_bytes=70000",
                ConfigError,
                "datagram_bytes=70000 must be an integer",
            ),
            ("udp://127.0.0.1:5000?max_record_bytes=99999999", ConfigError, "max_record_bytes=99999999 must be"),
            ("udp://127.0.0.1:5000?recover_s=0", ConfigError, "recover_s=0.0 must be positive"),
            ("udp://127.0.0.1:5000?linger_s=-1", ConfigError, "linger_s=-1.0 must not be negative"),
            (
                "udp://127.0.0.1:5000?secret_env=HOME",
                ConfigError,
                r"\$HOME must hold a secret of at least 16",
            ),
            ("udp://127.0.0.1:5000?secret_env=NOT_SET", ConfigError, r"\$NOT_SET must hold a secret"),
            ("udp://127.0.0.1:5000?secret_file=/none", ConfigError, "secret_file=/none cannot be read"),
            ("udp://127.0.0.1:5000?secret_file=a&secret_env=b", ConfigError, "exclude each other"),
            ("udp://127.0.0.1:5000?raw=true&max_record_bytes=5000", ConfigError, "cannot be used with raw=true"),
            ("udp://127.0.0.1:5000?raw=true&secret_env=HOME", ConfigError, "cannot be used with raw=true"),
            ("udp://127.0.0.1:5000?interface=lo", ConfigError, "is not a multicast group"),
            ("udp://127.0.0.1:5000?source=:x", ConfigError, "source=':x' must be HOST:PORT"),
        ],
    )
    def test_what_cannot_work_is_refused_at_once(
        self, url: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", "/short")
        with pytest.raises(error, match=message):
            open_channel(url)

    def test_an_address_that_another_listens_at_is_named(self, port: int) -> None:
        with (
            closing(listening(f"udp://{LOOPBACK}:{port}")),
            closing(open_channel(f"udp://{LOOPBACK}:{port}")) as second,
            pytest.raises(BrokerUnavailableError, match=f"cannot listen at {LOOPBACK}:{port}: .*another program"),
        ):
            second.listen(1, 0.0)

    @pytest.mark.parametrize(
        ("where", "remedy"),
        [
            ("0.0.0.0:{}", "Listen on 127.0.0.1, or set secret_env or secret_file, or add insecure=true"),
            ("[::]:{}", "set secret_env or secret_file, or add insecure=true"),
            ("0.0.0.0:{}?raw=true", "Listen on 127.0.0.1, or add insecure=true"),
            (f"{GROUP}:{{}}", "set interface=127.0.0.1, set secret_env or secret_file, or add insecure=true"),
            (f"{GROUP}:{{}}?interface=192.0.2.1", "set interface=127.0.0.1"),
        ],
    )
    def test_listening_where_strangers_can_send_needs_a_secret_or_consent(
        self, port: int, where: str, remedy: str
    ) -> None:
        with (
            closing(open_channel(f"udp://{where.format(port)}")) as channel,
            pytest.raises(ConfigError, match=rf"lets every machine .* send records here, without a login.*{remedy}"),
        ):
            channel.listen(1, 0.0)

    @pytest.mark.parametrize(
        "where",
        [
            "0.0.0.0:{}?insecure=true",
            "0.0.0.0:{}?raw=true&insecure=true",
            "0.0.0.0:{}?secret_env=UDP_SECRET",
            f"{GROUP}:{{}}?interface=lo",
            f"{GROUP}:{{}}?interface={LOOPBACK}",
            "localhost:{}",
        ],
    )
    def test_listening_is_allowed_on_loopback_with_a_secret_or_with_consent(
        self, port: int, where: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UDP_SECRET", "a secret of more than 16 characters".replace(" ", "-"))
        with closing(open_channel(f"udp://{where.format(port)}")) as channel:
            assert channel.listen(1, 0.0) == []

    def test_an_address_of_another_machine_cannot_be_listened_at(self, port: int) -> None:
        with (
            closing(open_channel(f"udp://192.0.2.1:{port}?insecure=true")) as channel,
            pytest.raises(BrokerUnavailableError, match="this machine does not have the address") as caught,
        ):
            channel.listen(1, 0.0)
        assert not caught.value.retriable

    def test_unknown_hosts_and_interfaces_are_named(self, port: int) -> None:
        with closing(open_channel(f"udp://no-such-host.invalid:{port}")) as channel:
            for call in (lambda: channel.listen(1, 0.0), lambda: channel.send(numbered([0]))):
                with pytest.raises(BrokerUnavailableError, match=r"no-such-host\.invalid:.* cannot be resolved"):
                    call()
        with closing(open_channel(f"udp://{GROUP}:{port}?interface=none0")) as channel:
            for call in (lambda: channel.listen(1, 0.0), lambda: channel.send(numbered([0]))):
                with pytest.raises(ConfigError, match=r"interface='none0' is not .* interfaces: .*lo"):
                    call()

    def test_sending_to_all_addresses_is_refused(self, port: int) -> None:
        with (
            closing(open_channel(f"udp://0.0.0.0:{port}")) as channel,
            pytest.raises(ConfigError, match="name the one to send to"),
        ):
            channel.send(numbered([0]))

    def test_a_path_names_the_channel(self) -> None:
        assert open_channel("udp://239.1.2.3:5000/prices").name == "prices"
        assert open_channel("udp://239.1.2.3:5000").name == "udp-239.1.2.3-5000"
        assert open_channel("udp://[ff15::1]:5000").name == "udp--ff15--1--5000"
        with pytest.raises(UrlError, match="which cannot be the name of a channel"):
            open_channel("udp://239.1.2.3:5000/..")

    def test_a_record_that_does_not_fit_is_refused_with_the_remedy(self, port: int) -> None:
        with (
            closing(listening(f"udp://{LOOPBACK}:{port}")) as listener,
            closing(open_channel(f"udp://{LOOPBACK}:{port}?{QUICK}")) as sender,
        ):
            with pytest.raises(RecordTooLargeError, match=r"a record of 150\d bytes .* Set max_record_bytes"):
                sender.send([*numbered(range(5)), NewRecord("udp", b"x" * 1_500)])
            sender.send(numbered([9]))
            assert receive(listener, 1) == [9], "nothing of the refused call was sent"

    def test_a_sender_keeps_to_its_rate(self, port: int) -> None:
        with closing(open_channel(f"udp://{LOOPBACK}:{port}?rate_bytes_per_s=100000&linger_s=0")) as sender:
            began_s = time.monotonic()
            sender.send(numbered(range(500)))
            assert time.monotonic() - began_s > 0.4, "50,000 bytes at 100,000 a second"

    def test_a_sender_sends_from_the_address_it_was_given(self, port: int) -> None:
        source = free_port()
        with socket.socket(type=socket.SOCK_DGRAM) as receiver:
            receiver.bind((LOOPBACK, port))
            receiver.settimeout(WAIT_S)
            with closing(open_channel(f"udp://{LOOPBACK}:{port}?source={LOOPBACK}:{source}&linger_s=0")) as sender:
                sender.send(numbered([0]))
                assert receiver.recvfrom(65536)[1] == (LOOPBACK, source)
