"""UDP channels by `udp:` URLs: to one address, to a multicast group, over networks that lose, repeat and reorder."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock import App
from penstock.abc import Channel
from penstock.channels import open_channel
from penstock.channels.udp.packets import (
    NO_COOKIE,
    REQUEST,
    decode_request,
)
from penstock.gateway import Gateway
from penstock.model import NewRecord, Record
from penstock.streams import connect
from penstock.testing import UdpProxy, conformance
from penstock.testing.conformance.channels import port_to_bind
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.forking import FORKING
from tests.seeds import seed_of
from tests.systems.udp_sender import (
    GROUP,
    LOOPBACK,
    QUICK,
    SECRET,
    WAIT_S,
    HandMadeSender,
    free_port,
    in_background,
    listening,
    numbered,
    numbers_of,
    receive,
    receive_until,
    send_all,
)

pytestmark = [pytest.mark.system("UDP"), pytest.mark.xdist_group("udp")]


@pytest.fixture(scope="module", autouse=True)
def _met() -> None:
    with closing(open_channel(f"udp://{LOOPBACK}:9")) as channel:
        system_table.met("UDP", "this machine's network, unicast and multicast", channel.features)


def open_unicast(folder: Path) -> Channel:
    return open_channel(f"udp://{LOOPBACK}:{port_to_bind(folder)}?{QUICK}&max_record_bytes=300000&history_bytes=400000")


def open_little_room(folder: Path) -> Channel:
    return open_channel(f"udp://{LOOPBACK}:{port_to_bind(folder)}?buffer=50&reorder_bytes=10000")


def open_multicast(folder: Path) -> Channel:
    os.environ.setdefault("PENSTOCK_TEST_UDP_SECRET", SECRET)
    settings = f"interface={LOOPBACK}&{QUICK}&secret_env=PENSTOCK_TEST_UDP_SECRET"
    return open_channel(f"udp://{GROUP}:{port_to_bind(folder)}?{settings}")


def open_raw(folder: Path) -> Channel:
    return open_channel(f"udp://{LOOPBACK}:{port_to_bind(folder)}?raw=true")


class TestUnicast(conformance.channel(open_unicast, open_unicast, limited=open_little_room, too_large_bytes=400_000)):  # type: ignore[misc]
    """Records up to 300,000 bytes are sent in parts."""


class TestMulticast(conformance.channel(open_multicast, open_multicast, large_bytes=1_000, too_large_bytes=1_400)):  # type: ignore[misc]
    """With signed packets."""


class TestRaw(
    conformance.channel(  # type: ignore[misc]
        open_raw, open_raw, large_bytes=60_000, too_large_bytes=65_508, timestamps=False
    )
):
    """Datagrams as they are: best effort."""

    test_many_records_of_one_call_arrive = None  # the system may drop some of a burst


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def hand_made(port: int) -> Iterator[HandMadeSender]:
    with closing(HandMadeSender(port)) as sender:
        yield sender


class TestLossyNetworks:
    @pytest.mark.parametrize("host", [LOOPBACK, GROUP])
    def test_each_record_arrives_once_and_in_order(self, host: str, port: int) -> None:
        count = 100_000 if host == GROUP else 20_000
        interface = f"?interface={LOOPBACK}" if host == GROUP else ""
        faults = {"loss": 0.01, "duplication": 0.01, "reordering": 0.01}
        with (
            closing(listening(f"udp://{host}:{port}{interface}")) as listener,
            UdpProxy(port, host, seed=seed_of(), **faults) as proxy,
            closing(open_channel(f"udp://{proxy.address}")) as sender,
        ):
            sending = in_background(send_all, sender, count)
            assert receive(listener, count) == list(range(count))
            sending.join(WAIT_S)
            assert min(proxy.lost, proxy.duplicated, proxy.reordered) > 0
            assert min(listener.counts.recovered, listener.counts.duplicates, listener.counts.reordered) > 0
            assert listener.lost == 0

    def test_senders_of_one_group_are_recovered_each_for_itself(self, port: int) -> None:
        count, seed = 3_000, seed_of()
        with ExitStack() as stack:
            listener = stack.enter_context(closing(listening(f"udp://{GROUP}:{port}?interface={LOOPBACK}")))
            sendings = []
            for number in range(4):
                proxy = stack.enter_context(UdpProxy(port, GROUP, seed=seed + number, loss=0.05, reordering=0.05))
                sender = stack.enter_context(closing(open_channel(f"udp://{proxy.address}?{QUICK}")))
                records = [NewRecord("udp", b"%d" % each, b"%d" % number) for each in range(count)]
                parts = [records[start : start + 50] for start in range(0, count, 50)]
                sendings.append(in_background(lambda sender=sender, parts=parts: [*map(sender.send, parts)]))
            arrived: dict[bytes | None, list[int]] = {}
            deadline_s = time.monotonic() + 2 * WAIT_S
            while sum(map(len, arrived.values())) < 4 * count:
                assert time.monotonic() < deadline_s, listener.counts
                for record in listener.listen(1_000, 0.5):
                    arrived.setdefault(record.key, []).append(int(record.value or b""))
            assert arrived == {b"%d" % number: list(range(count)) for number in range(4)}
            assert listener.counts.senders == 4
            assert listener.lost == 0
            for sending in sendings:
                sending.join(WAIT_S)

    def test_every_listener_of_a_group_gets_everything(self, port: int) -> None:
        url = f"udp://{GROUP}:{port}?interface={LOOPBACK}&{QUICK}"
        with (
            closing(listening(url)) as first,
            closing(listening(url)) as second,
            closing(open_channel(url)) as sender,
        ):
            sender.send(numbered(range(100)))
            assert receive(first, 100) == receive(second, 100) == list(range(100))

    def test_a_lost_last_packet_is_noticed_by_a_heartbeat(self, port: int) -> None:
        with (
            closing(listening(f"udp://{LOOPBACK}:{port}")) as listener,
            UdpProxy(port) as proxy,
            closing(open_channel(f"udp://{proxy.address}?{QUICK}")) as sender,
        ):
            sender.send(numbered([0]))
            assert receive(listener, 1) == [0]
            proxy.cut()
            sender.send(numbered([1]))
            wait_until(lambda: proxy.lost)
            proxy.heal()
            assert receive(listener, 1) == [1]

    def test_lost_first_packets_are_recovered(self, port: int) -> None:
        with (
            closing(listening(f"udp://{LOOPBACK}:{port}")) as listener,
            UdpProxy(port) as proxy,
            closing(open_channel(f"udp://{proxy.address}?{QUICK}")) as sender,
        ):
            proxy.cut()
            sender.send(numbered(range(100)))
            wait_until(lambda: proxy.lost >= 10)
            proxy.heal()
            sender.send(numbered(range(100, 110)))
            assert receive(listener, 110) == list(range(110))

    def test_a_sender_that_is_closed_stays_for_the_last_packets(self, port: int) -> None:
        with closing(listening(f"udp://{LOOPBACK}:{port}")) as listener, UdpProxy(port) as proxy:
            sender = open_channel(f"udp://{proxy.address}?linger_s=2")
            proxy.cut()
            sender.send(numbered(range(100)))
            closing_sender = in_background(sender.close)
            proxy.heal()
            assert receive(listener, 100) == list(range(100))
            closing_sender.join(WAIT_S)

    def test_large_records_arrive_in_parts_over_a_lossy_network(self, port: int) -> None:
        chooser = random.Random(seed_of())
        sizes = [chooser.choice([10, 1_000, 5_000, 50_000]) for _ in range(200)]
        with (
            closing(listening(f"udp://{LOOPBACK}:{port}")) as listener,
            UdpProxy(port, seed=chooser.randrange(1 << 32), loss=0.02, duplication=0.02, reordering=0.02) as proxy,
            closing(open_channel(f"udp://{proxy.address}?max_record_bytes=60000")) as sender,
        ):
            values = [b"%d %b" % (number, chooser.randbytes(size)) for number, size in enumerate(sizes)]
            sending = in_background(sender.send, [NewRecord("udp", value, b"k") for value in values])
            arrived: list[bytes | None] = []
            deadline_s = time.monotonic() + 2 * WAIT_S
            while len(arrived) < len(values):
                assert time.monotonic() < deadline_s, listener.counts
                arrived += [record.value for record in listener.listen(100, 0.5)]
            sending.join(WAIT_S)
            assert arrived == values
            assert listener.lost == 0


class TestWhatCannotBeRecovered:
    def test_packets_that_the_sender_no_longer_has_are_counted_and_skipped(self, port: int) -> None:
        with (
            closing(listening(f"udp://{LOOPBACK}:{port}")) as listener,
            UdpProxy(port) as proxy,
            closing(open_channel(f"udp://{proxy.address}?history_bytes=10000&{QUICK}")) as sender,
        ):
            sender.send(numbered([0]))
            assert receive(listener, 1) == [0]
            proxy.cut()
            send_all(sender, 1_000)
            wait_until(lambda: proxy.lost >= 100)
            proxy.heal()
            sender.send(numbered([1_000]))
            arrived = receive_until(listener, 1_000)
            assert arrived == list(range(arrived[0], 1_001)), "the latest ones are recovered, in order"
            assert 1 <= len(arrived) - 1 < 200
            assert listener.lost == 1_001 - len(arrived)

    def test_a_sender_that_does_not_answer_is_not_waited_for_long(self, hand_made: HandMadeSender, port: int) -> None:
        with closing(listening(f"udp://{LOOPBACK}:{port}?recover_s=0.3")) as listener:
            hand_made.send(hand_made.data(0), hand_made.data(1), hand_made.data(4, 9), hand_made.data(6, 20))
            assert receive(listener, 4) == [0, 1, 9, 20]
            assert listener.lost == (9 - 2) + (20 - 10), "records are numbered besides packets"
            hand_made.heartbeat(9, 25)
            wait_until(lambda: listener.lost == 17 + 4)

    def test_a_killed_sender_does_not_stop_the_one_that_follows(self, port: int) -> None:
        with (
            closing(listening(f"udp://{LOOPBACK}:{port}?recover_s=0.5")) as listener,
            UdpProxy(port, seed=seed_of(), loss=0.1) as proxy,
        ):
            url = f"udp://{proxy.address}?{QUICK}"
            killed = FORKING.Process(target=send_for_ever, args=(url,))
            killed.start()
            first = receive(listener, 2_000)
            killed.kill()
            killed.join(WAIT_S)
            with closing(open_channel(url)) as sender:
                sender.send(numbered(range(10_000_000, 10_000_500)))
                rest = receive_until(listener, 10_000_499)
            old = first + [number for number in rest if number < 10_000_000]
            assert old == sorted(set(old)), "nothing of the killed sender came twice, or out of order"
            missing = set(range(old[-1])) - set(old)
            wait_until(lambda: listener.lost >= len(missing))
            assert [number for number in rest if number >= 10_000_000] == list(range(10_000_000, 10_000_500))

    def test_a_listener_that_joins_late_begins_with_what_comes(self, hand_made: HandMadeSender, port: int) -> None:
        with closing(listening(f"udp://{LOOPBACK}:{port}")) as listener:
            hour_ms = 3_600_000  # the session is older than the listener
            hand_made.send(*(hand_made.data(number, age_ms=hour_ms) for number in range(10, 20)))
            assert receive(listener, 10) == list(range(10, 20))
            assert listener.lost == 0


def send_for_ever(url: str) -> None:
    channel = open_channel(url, rate_bytes_per_s=1_000_000)
    number = 0
    while True:  # ends with a kill
        channel.send(numbered(range(number, number + 20)))
        number += 20


class TestReceivers:
    def test_late_and_repeated_packets_are_put_in_order(self, hand_made: HandMadeSender, port: int) -> None:
        packets = [hand_made.data(number) for number in range(50)]
        shuffled = packets * 2
        random.Random(seed_of()).shuffle(shuffled)
        with closing(listening(f"udp://{LOOPBACK}:{port}")) as listener:
            hand_made.send(*shuffled)
            assert receive(listener, 50) == list(range(50))
            wait_until(lambda: listener.counts.duplicates == 50)
            assert listener.counts.packets == 100

    def test_missing_packets_are_asked_for_by_their_numbers(self, hand_made: HandMadeSender, port: int) -> None:
        with closing(listening(f"udp://{LOOPBACK}:{port}")) as listener:
            hand_made.send(*(hand_made.data(number) for number in (0, 3, 5)))
            asked = hand_made.request()
            assert (asked.kind, asked.session) == (REQUEST, 7)
            missing: set[int] = set()
            while missing != {1, 2, 4}:
                cookie, ranges = decode_request(asked.payload)
                assert cookie == NO_COOKIE
                missing.update(number for first, count in ranges for number in range(first, first + count))
                assert missing <= {1, 2, 4}
                if missing != {1, 2, 4}:
                    asked = hand_made.request()
            hand_made.send(*(hand_made.data(number) for number in (4, 2, 1)))
            assert receive(listener, 6) == [0, 1, 2, 3, 4, 5]
            assert listener.counts.requested == listener.counts.recovered == 3

    def test_a_slow_listener_loses_nothing_while_the_sender_remembers(self, port: int) -> None:
        with (
            closing(listening(f"udp://{LOOPBACK}:{port}?buffer=500&reorder_bytes=50000")) as listener,
            closing(open_channel(f"udp://{LOOPBACK}:{port}?{QUICK}")) as sender,
        ):
            send_all(sender, 20_000)
            wait_until(lambda: listener.counts.postponed)
            assert receive(listener, 20_000) == list(range(20_000))
            assert listener.lost == 0

    def test_a_new_session_begins_when_a_sender_is_restarted(self, port: int) -> None:
        with closing(listening(f"udp://{LOOPBACK}:{port}")) as listener:
            for turn in range(3):
                with closing(open_channel(f"udp://{LOOPBACK}:{port}?{QUICK}")) as sender:
                    sender.send(numbered(range(turn * 10, turn * 10 + 10)))
            assert receive(listener, 30) == list(range(30))
            assert listener.counts.senders == 3

    def test_more_senders_than_the_limit_are_ignored(self, port: int) -> None:
        with ExitStack() as stack:
            listener = stack.enter_context(closing(listening(f"udp://{LOOPBACK}:{port}?max_senders=2")))
            for session in range(3):
                sender = stack.enter_context(closing(HandMadeSender(port, session=session)))
                sender.send(sender.data(0, session))
            wait_until(lambda: listener.counts.foreign)
            assert listener.counts.senders == 2

    def test_ipv6_works(self) -> None:
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
                probe.bind(("::1", 0))
                url = f"udp://[::1]:{probe.getsockname()[1]}?{QUICK}"
        except OSError as error:
            pytest.skip(f"this machine has no IPv6: {error}")
        with closing(listening(url)) as listener, closing(open_channel(url)) as sender:
            sender.send(numbered(range(100)))
            assert receive(listener, 100) == list(range(100))


def test_a_gateway_makes_a_group_durable(port: int, tmp_path: Path) -> None:
    group = f"udp://{GROUP}:{port}/prices?interface={LOOPBACK}&{QUICK}"
    gateway = Gateway(group, f"log:{tmp_path}/log#prices", inbox=f"log:{tmp_path}/inbox")
    running = in_background(gateway.run)
    with closing(open_channel(group)) as sender:
        wait_until(lambda: gateway.progress().received is not None, WAIT_S)
        sent = 0

        def arrives() -> bool:
            """Send until somebody listens."""
            nonlocal sent
            sender.send(numbered([sent]))
            sent += 1
            return bool(gateway.progress().received)

        wait_until(arrives, WAIT_S)
        sender.send(numbered(range(sent, sent + 100)))
        with connect(f"log:{tmp_path}/log") as stream:
            wait_until(lambda: numbers_of(list(stream.read("prices")))[-1:] == [sent + 99], WAIT_S)
            numbers = numbers_of(list(stream.read("prices")))
    assert numbers == list(range(numbers[0], sent + 100))
    assert gateway.progress().lost == 0
    gateway.stop()
    running.join(WAIT_S)


def test_results_of_a_handler_go_to_a_group(port: int, tmp_path: Path) -> None:
    group = f"udp://{GROUP}:{port}?interface={LOOPBACK}&{QUICK}"
    with connect(f"log:{tmp_path}/log") as stream:
        for record in numbered(range(50)):
            stream.send("orders", record.value, b"k").result(WAIT_S)
    app = App(f"log:{tmp_path}/log", group="prices")

    @app.handle("orders", to=group)
    def price(value: bytes) -> bytes:
        return value + b" priced"

    with closing(listening(group)) as listener:
        app.run(end="latest")
        found: list[Record] = []
        while len(found) < 50:
            records = listener.listen(100, WAIT_S)
            assert records, f"{len(found)} of 50 results came"
            found += records
    assert numbers_of(found) == list(range(50))
    assert all((record.value or b"").endswith(b" priced") for record in found)
