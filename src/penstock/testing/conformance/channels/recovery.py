"""Cases in which the network breaks, and processes of either side are killed."""

from __future__ import annotations

import itertools
import threading
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.abc import Acknowledging
from penstock.testing.conformance.channels.suite import (
    BRIEF_S,
    COME_S,
    PROBE_S,
    ChannelSuite,
    Listener,
    Message,
    NumberOf,
    Sender,
    port_to_bind,
    proxy_file,
    succeeds,
)
from penstock.testing.conformance.child import Child, Parent
from penstock.testing.conformance.outages import DELAY_S as NETWORK_DELAY_S
from penstock.testing.conformance.outages import HANG_S, RECOVERY_S, answers_or_raises
from penstock.testing.tcp_proxy import TcpProxy


class ChannelNetworkCases(ChannelSuite):
    """The network between the two sides breaks, and is whole again."""

    @contextmanager
    def network(self) -> Iterator[TcpProxy]:
        """The proxy between the sides: `port_to_connect` leads to it while the block runs."""
        if not self.has_network:
            raise unittest.SkipTest("does not apply: no network=True was given, so there is no network to break")
        with TcpProxy(port_to_bind(self.folder)) as proxy:
            proxy_file(self.folder).write_text(str(proxy.port))
            yield proxy

    def test_records_arrive_again_when_connections_were_cut(self) -> None:
        with self.network() as proxy:
            listener, sender = self.connected()
            proxy.cut()
            sending = self.in_background(succeeds, sender.send, [self.made(0)])
            succeeds(self.take_once, listener, 10, BRIEF_S)
            self.result_of(sending, "send ends while the connection is cut", HANG_S)
            proxy.heal()
            self.join(listener, sender, "records arrive again when connections were cut")

    def test_records_arrive_over_a_slow_network(self) -> None:
        with self.network() as proxy:
            listener, sender = self.connected()
            proxy.delay_s = NETWORK_DELAY_S
            numbers = self.passed_numbers(listener, sender, range(10), "a slow network")
            assert sorted(numbers) == list(range(10)), f"records 0 to 9 were sent, and {sorted(numbers)} came"

    def test_no_call_hangs_when_the_other_side_does_not_answer(self) -> None:
        with self.network() as proxy:
            listener, sender = self.connected()
            proxy.freeze()
            sending = self.in_background(succeeds, sender.send, [self.made(0)])
            listening = self.in_background(succeeds, self.take_once, listener, 10, BRIEF_S)
            self.result_of(sending, "a send to a side that accepts everything and answers nothing", HANG_S)
            self.result_of(listening, "a listen to a side that sends nothing", HANG_S)
            proxy.heal()
            self.join(listener, sender, "records arrive again over a connection that was frozen")


class ChannelRecoveryCases(ChannelSuite):
    """Processes of either side are killed, and others take their place."""

    def test_what_another_process_sends_arrives(self) -> None:
        listener = self.open_listener()
        with self.sending_child(send_and_tell, self.mark, self.message):
            records = self.take(listener, 20, "the records of another process")
        numbers = self.numbers_of(records)
        assert len(set(numbers)) == len(numbers), f"records arrived more than once: {numbers}"

    def test_a_listener_hears_the_sender_that_follows_a_killed_one(self) -> None:
        listener = self.open_listener()
        for _ in range(3):
            mark = self.mark = self.fresh_name("case").encode()
            with self.sending_child(send_and_tell, mark, self.message) as child:
                self.take(listener, self.rng.randint(1, 20), "the records of a sender that follows a killed one")
                child.kill()

    def test_a_sender_reaches_the_listener_that_follows_a_killed_one(self) -> None:
        sender = self.open_sender()
        for _ in range(2):
            with self.child(acknowledge_and_tell, self.mark, self.number_in) as child:
                self._send_until_heard(sender, child)
                child.kill()
        self.join(self.open_listener(), sender, "records reach a listener that follows a killed one")

    def test_sending_while_nobody_listens_does_not_hang(self) -> None:
        sender = self.open_sender()
        sending = self.in_background(succeeds, sender.send, [self.made(number) for number in range(5)])
        self.result_of(sending, "sending while nobody listens ends", HANG_S)
        self.join(self.open_listener(), sender, "records arrive once somebody listens")

    def _send_until_heard(self, sender: Sender, child: Child) -> None:
        told = self.in_background(child.receive)
        deadline_s = time.monotonic() + RECOVERY_S
        while not told.done():
            assert time.monotonic() < deadline_s, f"no record reached a listener in {RECOVERY_S:g} s"
            sending = self.put(sender, [0])
            succeeds(self.sent, sending)
            time.sleep(PROBE_S / 10)
        told.result()


def send_and_tell(sender: Sender, parent: Parent, mark: bytes, message: Message) -> None:
    """Send numbered records until killed, slowly enough for any listener; those that fail are sent again."""
    pause = threading.Event()
    for number in itertools.count():
        while not succeeds(sender.send, [message(mark, number)]):
            pause.wait(PROBE_S)  # ends: when somebody listens, or with a kill
        pause.wait(0.002)


def acknowledge_and_tell(listener: Listener, parent: Parent, mark: bytes, number_in: NumberOf) -> None:
    """Say which records came before answering, until killed."""
    while True:  # ends with a kill
        records = answers_or_raises(lambda: listener.listen(10, COME_S)) or ()
        for record in records:
            if number_in(mark, record) is not None:
                parent.send(number_in(mark, record))
        if records and isinstance(listener, Acknowledging):
            listener.acknowledge(records)
