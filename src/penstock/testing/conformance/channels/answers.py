"""Cases about channels with answers: senders wait for the one who listens."""

from __future__ import annotations

import contextlib
import time
import unittest
from concurrent.futures import Future

from penstock.abc import Feature
from penstock.errors import BrokerUnavailableError, DeliveryError
from penstock.testing.conformance.channels.recovery import acknowledge_and_tell, send_and_tell
from penstock.testing.conformance.channels.suite import (
    BRIEF_S,
    COME_S,
    PROBE_S,
    ChannelSuite,
    Listener,
    NumberOf,
    Sender,
    succeeds,
)
from penstock.testing.conformance.child import Child, Parent
from penstock.testing.conformance.outages import HANG_S, RECOVERY_S, answers_or_raises
from penstock.testing.conformance.suite import needs


class ChannelAnswerCases(ChannelSuite):
    """Senders wait for the answer of the one who listens."""

    @needs(Feature.ANSWERS)
    def test_send_returns_once_every_record_is_acknowledged(self) -> None:
        listener, sender = self.connected()
        sending = self.put(sender, range(3))
        records = self.take(listener, 3, "records that wait for an answer", answer=False)
        listener.acknowledge(records[:2])
        with contextlib.suppress(TimeoutError):
            sending.result(BRIEF_S)
        assert not sending.done(), "send returned although one of three records was not acknowledged"
        listener.acknowledge(records[2:])
        self.sent(sending, "send returns once every record is acknowledged")

    @needs(Feature.ANSWERS)
    def test_a_refusal_reaches_the_sender_with_its_reason(self) -> None:
        listener, sender = self.connected()
        for again in (True, False):
            sending = self.put(sender, [0])
            listener.refuse(self.take(listener, 1, "a record", answer=False), "the disk is full", again=again)
            with self.expect(DeliveryError, "sending what is refused") as caught:
                self.sent(sending, "send ends when its record is refused")
            assert caught.error.retriable is again, (
                f"a refusal with again={again} is an error with retriable={caught.error.retriable}"
            )
            assert "the disk is full" in str(caught.error), f"the reason of a refusal is not in {str(caught.error)!r}"
        sending = self.put(sender, [1])
        self.take(listener, 1, "a record after a refusal")
        self.sent(sending, "send returns after a refusal of another record")

    @needs(Feature.ANSWERS)
    def test_one_refused_record_of_many_is_an_error(self) -> None:
        listener, sender = self.connected()
        sending = self.put(sender, range(10))
        records = self.take(listener, 10, "ten records of one call", answer=False)
        refused = [record for record in records if self.number_of(record) == 5]
        listener.acknowledge([record for record in reversed(records) if record not in refused])
        listener.refuse(refused, "no", again=False)
        with self.expect(DeliveryError, "sending ten records of which one is refused"):
            self.sent(sending, "send ends when all of its records are answered")

    @needs(Feature.ANSWERS)
    def test_no_answer_in_time_is_an_error_and_a_late_one_is_harmless(self) -> None:
        if self.answer_s is None:
            raise unittest.SkipTest("does not apply: no answer_s= was given, the time that send waits for an answer")
        listener, sender = self.connected()
        began_s = time.monotonic()
        sending = self.put(sender, [0])
        late = self.take(listener, 1, "a record", answer=False)
        with self.expect(BrokerUnavailableError, "sending what nobody acknowledges"):
            self.result_of(sending, "send ends without an answer", HANG_S)
        waited_s = time.monotonic() - began_s
        assert waited_s >= self.answer_s * 0.8, (
            f"send waits {self.answer_s:g} s for an answer, and gave up after {waited_s:.2f} s"
        )
        listener.acknowledge(late)
        sending = self.put(sender, [1])
        again = self.take(listener, 1, "a record after one that was answered too late", answer=False)
        assert not sending.done(), "a late answer was taken for that of the next record"
        while (
            self.number_of(again[-1]) != 1
        ):  # the sender may have sent record 0 again; ends: with the deadline of take
            again += self.take(listener, 1, "record 1", answer=False)
        listener.acknowledge(again)
        self.sent(sending, "send returns after one that was answered too late")

    @needs(Feature.ANSWERS)
    def test_each_of_many_senders_gets_its_own_answer(self) -> None:
        listener, first = self.connected()
        senders = [first, first, self.open_sender(), self.open_sender()]
        self.join(listener, senders[2], "a second sender")
        self.join(listener, senders[3], "a third sender")
        sendings = [self.put(sender, [number]) for number, sender in enumerate(senders * 5)]
        records = self.take(listener, len(sendings), "twenty senders at once", answer=False)
        odd = [record for record in records if (self.number_of(record) or 0) % 2]
        listener.refuse(odd, "odd", again=False)
        listener.acknowledge([record for record in records if record not in odd])
        for number, sending in enumerate(sendings):
            if number % 2:
                with self.expect(DeliveryError, f"sending record {number}, which was refused"):
                    self.sent(sending, f"send of record {number} ends")
            else:
                self.sent(sending, f"send of record {number}, which was acknowledged, returns")

    @needs(Feature.ANSWERS)
    def test_a_listener_that_is_closed_before_it_answers_is_an_error_for_the_sender(self) -> None:
        listener, sender = self.connected()
        sending = self.put(sender, [0])
        self.take(listener, 1, "a record", answer=False)
        listener.close()
        self._fails(sending, "a listener was closed before it acknowledged")

    @needs(Feature.ANSWERS)
    def test_a_listener_that_is_killed_before_it_answers_is_an_error_for_the_sender(self) -> None:
        sender = self.open_sender()
        with self.child(take_and_tell, self.mark, self.number_in) as child:
            sending = self._send_until_told(sender, child)
            child.kill()
        self._fails(sending, "a listener was killed before it acknowledged")

    @needs(Feature.ANSWERS)
    def test_what_a_killed_listener_acknowledged_is_all_that_was_sent(self) -> None:
        sender = self.open_sender()
        succeeded: set[int] = set()
        with self.child(acknowledge_and_tell, self.mark, self.number_in) as child:
            until = self.rng.randint(5, 40)
            for number in range(1000):
                sending = self.put(sender, [number])
                if succeeds(self.sent, sending):
                    succeeded.add(number)
                if len(succeeded) == until:
                    break
            assert succeeded, "no record was acknowledged by a listener in another process"
            sending = self.put(sender, [1000])
            told = set(child.kill())
            if succeeds(self.sent, sending, "send ends when the listener was killed"):
                succeeded.add(1000)
        unknown = succeeded - told
        assert not unknown, f"send returned for {sorted(unknown)}, which the listener did not acknowledge"

    @needs(Feature.ANSWERS)
    def test_the_answer_to_a_killed_sender_is_harmless(self) -> None:
        listener = self.open_listener()
        with self.sending_child(send_and_tell, self.mark, self.message) as child:
            records = self.take(listener, 1, "a record of another process", answer=False)
            child.kill()
        listener.acknowledge(records[:1])
        listener.refuse(records[1:], "no", again=True)
        self.join(listener, self.open_sender(), "another sender is served")

    @needs(Feature.ANSWERS)
    def test_sending_while_nobody_listens_is_an_error(self) -> None:
        sender = self.open_sender()
        self._fails(self.put(sender, [0]), "nobody listens")

    def _fails(self, sending: Future[None], why: str) -> None:
        with self.expect(BrokerUnavailableError, f"sending, when {why}"):
            self.result_of(sending, f"send ends when {why}", HANG_S)

    def _send_until_told(self, sender: Sender, child: Child) -> Future[None]:
        """Send a record until the child has said that it has it, and return the call that waits for the answer."""
        told = self.in_background(child.receive)
        deadline_s = time.monotonic() + RECOVERY_S
        while time.monotonic() < deadline_s:
            sending = self.put(sender, [0])
            while not sending.done():  # ends: send does not block for ever
                if told.done():
                    told.result()
                    return sending
                time.sleep(PROBE_S / 10)
        raise AssertionError(f"a record arrives at a listener in another process: not within {RECOVERY_S:g} s")


def take_and_tell(listener: Listener, parent: Parent, mark: bytes, number_in: NumberOf) -> None:
    """Say which records came, and answer none of them, until killed."""
    while True:  # ends with a kill
        for record in answers_or_raises(lambda: listener.listen(10, COME_S)) or ():
            if number_in(mark, record) is not None:
                parent.send(number_in(mark, record))
