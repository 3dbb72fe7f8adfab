"""The suite for queues."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from penstock.abc import BatchSettling, CountingWaiting, Delivery, Extending, Feature, Features, Outcome, Queue
from penstock.errors import ConfigError, ConnectionClosedError, StaleDeliveryError
from penstock.model import Headers, NewRecord
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.outages import DELAY_S as NETWORK_DELAY_S
from penstock.testing.conformance.outages import (
    HANG_S,
    UNAVAILABLE,
    Outage,
    OutageSuite,
    answers_or_raises,
)
from penstock.testing.conformance.suite import Factory, Suite, collect, lacks, needs

COME_S: Final = 60.0
"""How long a record may take to arrive, besides the visibility timeout."""
BRIEF_S: Final = 0.3
"""How long to wait for a record that should not arrive."""
DELAY_S: Final = 1.0
WRITE_S: Final = 90.0
"""How long sending or settling may take while the server does not answer."""
LARGE_BYTES: Final = 100_000
FIRST_SENT: Final = 1_000
"""The first number of the records that are sent while a server is killed."""
SENT_BEFORE: Final = 20
"""How many of them there are at least before it is killed."""
SEND_PAUSE_S: Final = 0.002
"""Between two of them: so few that receiving them all takes seconds, so many that the kill comes during the next."""


class QueueSuite(Suite[Queue]):
    """The base of all cases for queues. Records carry a mark that distinguishes them from those of other cases."""

    visibility_s: ClassVar[float | None] = None
    ordered: ClassVar[bool] = True

    def setUp(self) -> None:
        super().setUp()
        self.mark = self.fresh_name("case").encode()

    def put(self, queue: Queue, numbers: Sequence[int]) -> None:
        queue.send([NewRecord("queue", self.value(number)) for number in numbers])

    def filled(self, count: int) -> Queue:
        """A queue with this many numbered records of this case."""
        queue = self.open()
        self.put(queue, range(count))
        return queue

    def value(self, number: int, payload: bytes = b"") -> bytes:
        return b"%b %d %b" % (self.mark, number, payload)

    def number_of(self, delivery: Delivery) -> int | None:
        return number_marked(self.mark, delivery)

    def receive(self, queue: Queue, limit: int = 1, wait_s: float | None = None) -> list[Delivery]:
        """Deliveries of this case, as soon as there are any. Those of other cases are settled."""
        deadline_s = time.monotonic() + (COME_S if wait_s is None else wait_s)
        while True:  # ends: at the latest with the deadline
            deliveries = queue.receive(limit, max(0.0, deadline_s - time.monotonic()))
            assert len(deliveries) <= limit, f"at most {limit} deliveries were asked for, and {len(deliveries)} came"
            ours = [delivery for delivery in deliveries if self.number_of(delivery) is not None]
            for delivery in deliveries:
                if delivery not in ours:
                    queue.settle(delivery, Outcome.DONE)
            if ours or time.monotonic() >= deadline_s:
                return ours

    def receive_one(self, queue: Queue, number: int, why: str) -> Delivery:
        deliveries = self.receive(queue)
        assert deliveries, f"{why}: nothing came within {COME_S:g} s"
        found = self.number_of(deliveries[0])
        assert found == number, f"{why}: record {found} came instead of {number}"
        return deliveries[0]

    def receive_all(self, queue: Queue, count: int) -> list[Delivery]:
        """Receive this many, and settle each as done. Returns them in order of arrival."""
        received: list[Delivery] = []
        while len(received) < count:  # ends: nothing for so long is an error
            deliveries = self.receive(queue, 10)
            assert deliveries, f"{len(received)} of {count} records came, {self.numbers_of(received)}, and then none"
            for delivery in deliveries:
                queue.settle(delivery, Outcome.DONE)
            received += deliveries
        return received

    def finish(self, queue: Queue, count: int) -> list[int]:
        return self.numbers_of(self.receive_all(queue, count))

    def numbers_of(self, deliveries: Sequence[Delivery]) -> list[int]:
        return [number for number in map(self.number_of, deliveries) if number is not None]

    def check_empty(self, queue: Queue, why: str, wait_s: float = BRIEF_S) -> None:
        left = self.numbers_of(self.receive(queue, 10, wait_s))
        assert not left, f"{why}, and yet the queue handed out {left}"


class QueueOutageCases(QueueSuite, OutageSuite):
    """The queue's server dies, or its network breaks, and comes back."""

    @needs(Feature.DURABLE)
    def test_no_record_is_lost_when_the_server_is_killed(self) -> None:
        """A sender goes on meanwhile: what its sends have returned for must come, too."""
        outage = self.outage()
        queue = self.open()
        self.put(queue, range(10))
        held = self.receive(queue, 1)
        is_killed = threading.Event()
        said: list[int] = []
        sending = self.in_background(self._send_until, is_killed, queue, said)
        try:
            self.eventually("records are sent", lambda: len(said) >= SENT_BEFORE, COME_S)
            outage.kill()
        finally:
            is_killed.set()
        self.result_of(sending, "sending to a server that was killed", WRITE_S)
        answers_or_raises(lambda: queue.receive(10, 0.1))
        outage.restart()
        for delivery in held:
            with contextlib.suppress(*UNAVAILABLE):  # a delivery of before the restart may be stale
                queue.settle(delivery, Outcome.RELEASE)
        with self.recovering(outage):
            self._finish_through(queue, {*range(10), *said}, COME_S)
            self.eventually("records are sent again", lambda: self._sent(queue, 10))
        self._finish_through(queue, {10})

    def test_no_record_is_lost_when_connections_are_cut(self) -> None:
        outage = self.outage()
        queue = self.open()
        self.put(queue, range(10))
        self.receive(queue, 1)
        outage.proxy.cut()
        answers_or_raises(lambda: queue.receive(10, 0.1))
        outage.proxy.heal()
        with self.recovering(outage):
            self._finish_through(queue, set(range(10)))
            self.eventually("records are sent again", lambda: self._sent(queue, 10))
        self._finish_through(queue, {10})

    def test_a_slow_network_changes_nothing(self) -> None:
        outage = self.outage()
        queue = self.open()
        outage.proxy.delay_s = NETWORK_DELAY_S
        self.put(queue, range(10))
        numbers = self.finish(queue, 10)
        assert sorted(numbers) == list(range(10)), f"records 0 to 9 were sent, and {sorted(numbers)} came"
        self.check_empty(queue, "each record was sent once", NETWORK_DELAY_S + BRIEF_S)

    def test_no_call_hangs_on_a_server_that_does_not_answer(self) -> None:
        outage = self.outage()
        queue = self.open()
        self.put(queue, range(5))
        outage.proxy.freeze()
        receiving = self.in_background(answers_or_raises, lambda: queue.receive(10, 0.5))
        taken = self.result_of(receiving, "a receive from a server that accepts everything and answers nothing", HANG_S)
        outage.proxy.heal()
        for delivery in taken or ():  # the server had pushed them before the network hung
            with contextlib.suppress(*UNAVAILABLE):
                queue.settle(delivery, Outcome.RELEASE)
        self._finish_through(queue, set(range(5)))

    def test_sending_and_settling_end_when_the_server_does_not_answer_and_nothing_acknowledged_is_lost(self) -> None:
        """The connections never work again, as when a firewall has forgotten them; new ones do."""
        outage = self.outage()
        queue = self.open()
        self.put(queue, range(5))
        held = self.receive(queue, 1)
        outage.proxy.freeze()
        sending = self.in_background(answers_or_raises, lambda: self._sent(queue, 5))
        settling = self.in_background(answers_or_raises, lambda: queue.settle(held[0], Outcome.DONE))
        is_sent = self.result_of(sending, "a send to a server that accepts everything and answers nothing", WRITE_S)
        self.result_of(settling, "settling with a server that accepts everything and answers nothing", WRITE_S)
        outage.proxy.strand()
        wanted = set(range(6 if is_sent else 5)) - set(self.numbers_of(held))
        self._finish_through(queue, wanted, HANG_S)
        with self.recovering(outage):
            self.eventually("records are sent again", lambda: self._sent(queue, 10))
        self._finish_through(queue, {10})

    def _send_until(self, stopped: threading.Event, queue: Queue, said: list[int]) -> None:
        """Send records one by one, and note those for which `send` returned."""
        for number in itertools.count(FIRST_SENT):  # ends: when stopped
            if stopped.wait(SEND_PAUSE_S):
                return
            with contextlib.suppress(*UNAVAILABLE):  # such a record may have been stored, or not
                self.put(queue, [number])
                said.append(number)

    def _sent(self, queue: Queue, number: int) -> bool:
        self.put(queue, [number])
        return True

    def _finish_through(self, queue: Queue, wanted: set[int], more_s: float = 0.0) -> None:
        """Receive and settle, whatever fails on the way, until each of these has come."""
        came: set[int] = set()

        def attempt() -> bool:
            for delivery in self.receive(queue, 10, 1.0):
                came.update(self.numbers_of([delivery]))
                queue.settle(delivery, Outcome.DONE)
            return came >= wanted

        try:
            self.eventually("all come", attempt, more_s + self.recovery_s + (self.visibility_s or 0.0))
        except AssertionError as error:
            raise AssertionError(f"of {len(wanted)} records, {sorted(wanted - came)} did not come: {error}") from None


class QueueCases(QueueOutageCases):
    """What every queue promises: each record is delivered until it is settled, and not afterwards."""

    def test_what_is_sent_is_received_once(self) -> None:
        queue = self.filled(25)
        numbers = self.finish(queue, 25)
        assert sorted(numbers) == list(range(25)), f"records 0 to 24 were sent, and {sorted(numbers)} came"
        self.check_empty(queue, "everything was settled as done", (self.visibility_s or 0.0) + BRIEF_S)

    def test_records_come_in_the_order_in_which_they_were_sent(self) -> None:
        if not self.ordered:
            raise unittest.SkipTest("does not apply: the queue does not keep the order")
        queue = self.open()
        for first in range(0, 50, 10):
            self.put(queue, range(first, first + 10))
        numbers = self.finish(queue, 50)
        assert numbers == list(range(50)), f"records 0 to 49 came as {numbers}"

    def test_values_come_back_as_they_were(self) -> None:
        queue = self.open()
        payloads = [b"plain", b"", bytes(range(256)), "ü€😀".encode(), self.rng.randbytes(LARGE_BYTES)]
        values = {number: self.value(number, payload) for number, payload in enumerate(payloads)}
        queue.send([NewRecord("queue", value) for value in values.values()])
        for delivery in self.receive_all(queue, len(values)):
            number = self.number_of(delivery)
            assert number is not None
            same = delivery.record.value == values[number]
            assert same, f"a value of {len(values[number])} bytes, number {number}, came back as another"

    @needs(Feature.KEYS)
    def test_keys_come_back_as_they_were(self) -> None:
        queue = self.open()
        keys = [b"key", b"", None, bytes(range(256))]
        queue.send([NewRecord("queue", self.value(number), key) for number, key in enumerate(keys)])
        found = {self.number_of(delivery): delivery.record.key for delivery in self.receive_all(queue, len(keys))}
        assert found == dict(enumerate(keys)), f"the keys {keys} came back as {found}"

    @needs(Feature.HEADERS)
    def test_headers_come_back_as_they_were(self) -> None:
        queue = self.open()
        headers: Headers = (("one", b"1"), ("bytes", bytes(range(256))), ("empty", b""))
        queue.send([NewRecord("queue", self.value(0), headers=headers)])
        delivery = self.receive_one(queue, 0, "a record with headers")
        queue.settle(delivery, Outcome.DONE)
        found = delivery.record.headers
        assert sorted(found) == sorted(headers), f"the headers {headers} came back as {found}"

    def test_a_receive_that_waits_returns_as_soon_as_there_is_a_record(self) -> None:
        queue = self.open()
        waiting = self.in_background(self.receive, queue, 1, COME_S * 4)
        self.put(queue, [0])
        deliveries = self.result_of(waiting, "a waiting receive ends when a record comes", COME_S)
        assert [self.number_of(delivery) for delivery in deliveries] == [0], f"{deliveries} came instead of record 0"
        queue.settle(deliveries[0], Outcome.DONE)

    def test_a_receive_without_records_ends_once_the_wait_is_over(self) -> None:
        queue = self.open()
        self.check_empty(queue, "nothing was sent")
        began_s = time.monotonic()
        deliveries = queue.receive(1, BRIEF_S)
        waited_s = time.monotonic() - began_s
        assert not deliveries, f"nothing was sent, and yet {deliveries} came"
        assert waited_s >= BRIEF_S / 2, f"a receive that was to wait {BRIEF_S} s gave up after {waited_s:.3f} s"

    def test_what_somebody_has_is_not_handed_to_another(self) -> None:
        queue = self.filled(2)
        first = self.receive(queue, 1)
        second = self.receive(queue, 1)
        numbers = sorted(self.numbers_of([*first, *second]))
        assert numbers == [0, 1], f"two receivers got {numbers}"
        for delivery in [*first, *second]:
            queue.settle(delivery, Outcome.DONE)

    def test_competing_receivers_get_each_record_once(self) -> None:
        queue = self.filled(200)
        receivers = [self.in_background(self._receive_until_empty, queue) for _ in range(4)]
        received = [self.result_of(receiver, "four receivers", COME_S * 2) for receiver in receivers]
        counts = Counter(number for numbers in received for number in numbers)
        missing = set(range(200)) - set(counts)
        repeated = [number for number, count in counts.items() if count > 1]
        assert not missing, f"four receivers did not get {sorted(missing)}"
        assert not repeated, f"several of four receivers got {sorted(repeated)}"

    def _receive_until_empty(self, queue: Queue) -> list[int]:
        numbers: list[int] = []
        while deliveries := self.receive(queue, 5, DELAY_S):  # ends: what is settled does not come again
            for delivery in deliveries:
                queue.settle(delivery, Outcome.DONE)
            numbers += self.numbers_of(deliveries)
        return numbers

    @needs(Feature.REDELIVERY)
    def test_what_is_settled_with_retry_is_handed_out_again(self) -> None:
        queue = self.filled(1)
        last = 1
        for time_number in range(3):
            delivery = self.receive_one(queue, 0, f"settled with RETRY {time_number} times")
            assert delivery.attempt >= last, f"attempt {delivery.attempt} follows attempt {last}"
            assert delivery.attempt == 1 or time_number, f"the first delivery says that it is number {delivery.attempt}"
            last = delivery.attempt
            queue.settle(delivery, Outcome.RETRY)
        queue.settle(self.receive_one(queue, 0, "settled with RETRY 3 times"), Outcome.DONE)
        self.check_empty(queue, "it was settled as done")

    @needs(Feature.REDELIVERY)
    def test_what_is_released_is_handed_out_again_and_is_not_counted(self) -> None:
        queue = self.filled(1)
        for time_number in range(3):
            delivery = self.receive_one(queue, 0, f"settled with RELEASE {time_number} times")
            counted = Feature.DELIVERY_COUNT in queue.features and delivery.attempt != 1
            assert not counted, f"attempt {delivery.attempt} follows {time_number} deliveries that were released"
            queue.settle(delivery, Outcome.RELEASE)
        queue.settle(self.receive_one(queue, 0, "settled with RELEASE 3 times"), Outcome.DONE)
        self.check_empty(queue, "it was settled as done")

    @needs(Feature.REDELIVERY, Feature.DELIVERY_COUNT)
    def test_deliveries_are_counted(self) -> None:
        queue = self.filled(1)
        for expected in range(1, 5):
            delivery = self.receive_one(queue, 0, f"delivery {expected}")
            assert delivery.attempt == expected, f"delivery {expected} says that it is number {delivery.attempt}"
            queue.settle(delivery, Outcome.RETRY if expected < 4 else Outcome.DONE)

    @needs(Feature.REDELIVERY)
    def test_the_offset_tells_records_apart_and_stays_the_same(self) -> None:
        queue = self.filled(10)
        first: dict[int | None, int] = {}
        while len(first) < 10:  # ends: nothing for so long is an error
            deliveries = self.receive(queue, 10)
            assert deliveries, f"{len(first)} of 10 records came, and then none"
            for delivery in deliveries:
                first[self.number_of(delivery)] = delivery.record.offset
                queue.settle(delivery, Outcome.RETRY)
        again = {self.number_of(each): each.record.offset for each in self.receive_all(queue, 10)}
        assert len(set(first.values())) == 10, f"ten records have the offsets {sorted(first.values())}"
        assert again == first, f"the offsets {first} became {again} when the records were delivered again"

    def test_the_queue_has_a_name(self) -> None:
        name = self.open().name
        assert isinstance(name, str), f"the name {name!r} is not a string"
        assert name, "the name is empty"

    def test_what_is_extended_is_not_handed_out_again(self) -> None:
        queue = self.open()
        if not isinstance(queue, Extending):
            raise unittest.SkipTest("does not apply: the queue is not penstock.abc.Extending")
        self.put(queue, [0])
        delivery = self.receive_one(queue, 0, "a record")
        for _ in range(4):
            again = self.receive(queue, 1, queue.visibility_timeout_s / 2)
            assert not again, "a delivery that was extended in time was handed out again"
            late = queue.extend([delivery])
            assert not late, "a delivery was extended in time, and yet counts as late"
        queue.settle(delivery, Outcome.DONE)
        late = queue.extend([delivery])
        assert list(late) == [delivery], f"extending a settled delivery returned {late} as late"

    def test_many_are_settled_at_once(self) -> None:
        queue = self.open()
        if not isinstance(queue, BatchSettling):
            raise unittest.SkipTest("does not apply: the queue is not penstock.abc.BatchSettling")
        self.put(queue, range(5))
        deliveries: list[Delivery] = []
        while len(deliveries) < 5:  # ends: nothing for so long is an error
            more = self.receive(queue, 5)
            assert more, f"{len(deliveries)} of 5 records came, and then none"
            deliveries += more
        queue.settle(deliveries[1], Outcome.DONE)
        late = queue.settle_all(deliveries, Outcome.DONE)
        assert list(late) == [deliveries[1]], f"one of five was settled before, and {late} were late"
        self.check_empty(queue, "all were settled as done", (self.visibility_s or 0.0) + BRIEF_S)

    def test_what_waits_is_counted_and_what_somebody_has_is_not(self) -> None:
        queue = self.open()
        if not isinstance(queue, CountingWaiting):
            raise unittest.SkipTest("does not apply: the queue is not penstock.abc.CountingWaiting")
        before = queue.waiting()
        self.put(queue, range(5))
        self.eventually("five records more wait", lambda: queue.waiting() == before + 5, COME_S)
        self.check_held_is_not_counted(queue)
        self.finish(queue, 4)
        self.eventually("no record waits", lambda: queue.waiting() <= before, COME_S)

    def check_held_is_not_counted(self, queue: Queue) -> None:
        assert isinstance(queue, CountingWaiting)
        waiting = queue.waiting()
        delivery = self.receive_one(queue, 0, "a record") if self.ordered else self.receive(queue, 1)[0]
        self.eventually("a record less waits", lambda: queue.waiting() < waiting, COME_S)
        queue.settle(delivery, Outcome.DONE)

    @needs(Feature.DELAYED_REDELIVERY)
    def test_a_retry_with_a_delay_comes_after_the_delay_and_lets_others_pass(self) -> None:
        queue = self.filled(1)
        delivery = self.receive_one(queue, 0, "a record")
        settled_s = time.monotonic()
        queue.settle(delivery, Outcome.RETRY, delay_s=DELAY_S)
        self.put(queue, [1])
        queue.settle(self.receive_one(queue, 1, "sent while another one is delayed"), Outcome.DONE)
        again = self.receive_one(queue, 0, "after its delay")
        waited_s = time.monotonic() - settled_s
        assert waited_s >= DELAY_S * 0.8, f"a delay of {DELAY_S} s was over after {waited_s:.3f} s"
        queue.settle(again, Outcome.DONE)

    @lacks(Feature.DELAYED_REDELIVERY)
    def test_a_retry_with_a_delay_is_refused(self) -> None:
        queue = self.filled(1)
        delivery = self.receive_one(queue, 0, "a record")
        with self.expect(ConfigError, "a delay, without Feature.DELAYED_REDELIVERY"):
            queue.settle(delivery, Outcome.RETRY, delay_s=DELAY_S)
        queue.settle(delivery, Outcome.DONE)

    def test_what_is_rejected_is_never_handed_out_again(self) -> None:
        queue = self.filled(2)
        for delivery in [*self.receive(queue, 1), *self.receive(queue, 1)]:
            rejected = self.number_of(delivery) == 0
            queue.settle(delivery, Outcome.REJECT if rejected else Outcome.DONE)
        self.check_empty(queue, "it was rejected", (self.visibility_s or 0.0) + BRIEF_S)

    @needs(Feature.REDELIVERY)
    def test_settling_a_delivery_that_was_handed_out_again_is_stale(self) -> None:
        queue = self.filled(1)
        first = self.receive_one(queue, 0, "a record")
        queue.settle(first, Outcome.RETRY)
        second = self.receive_one(queue, 0, "settled with RETRY")
        with self.expect(StaleDeliveryError, "settling a delivery whose record somebody else has"):
            queue.settle(first, Outcome.DONE)
        queue.settle(second, Outcome.DONE)
        self.check_empty(queue, "the one who had it settled it as done")

    @needs(Feature.REDELIVERY)
    def test_what_is_not_settled_in_time_is_handed_out_again_and_the_late_one_is_stale(self) -> None:
        if self.visibility_s is None:
            raise unittest.SkipTest(
                "does not apply: the queue has no visibility time: give conformance.queue(..., visibility_s=...)"
            )
        queue = self.filled(1)
        received_s = time.monotonic()
        first = self.receive_one(queue, 0, "a record")
        second = self.receive_one(queue, 0, "not settled in time")
        waited_s = time.monotonic() - received_s
        assert waited_s >= self.visibility_s * 0.8, (
            f"a delivery is its receiver's for {self.visibility_s} s, but was handed out again after {waited_s:.3f} s"
        )
        with self.expect(StaleDeliveryError, "settling too late"):
            queue.settle(first, Outcome.DONE)
        queue.settle(second, Outcome.DONE)
        self.check_empty(queue, "the second receiver settled it as done")

    def test_a_queue_that_was_closed_is_not_used(self) -> None:
        queue = self.open()
        queue.close()
        with self.expect(ConnectionClosedError, "sending to a queue that was closed"):
            self.put(queue, [0])
        with self.expect(ConnectionClosedError, "receiving from a queue that was closed"):
            queue.receive(1, 0.0)

    @needs(Feature.DURABLE)
    def test_what_was_sent_is_there_when_the_sender_was_killed(self) -> None:
        with self.child(send_and_tell, self.mark) as child:
            said = [child.receive() for _ in range(self.rng.randint(1, 40))]
            said += child.kill()
        queue = self.open()
        numbers = set(self.finish(queue, len(said)))
        while more := self.receive(queue, 10, BRIEF_S):  # what was under way may be there, too
            numbers |= set(self.numbers_of(more))
            for delivery in more:
                queue.settle(delivery, Outcome.DONE)
        lost = set(said) - numbers
        assert not lost, f"send returned for {len(said)} records, and {sorted(lost)} are gone after a kill"

    @needs(Feature.DURABLE, Feature.REDELIVERY)
    def test_what_a_killed_receiver_had_is_handed_out_again_and_what_it_settled_is_not(self) -> None:
        queue = self.filled(20)
        with self.child(receive_and_tell, self.mark) as child:
            said = [child.receive() for _ in range(self.rng.randint(5, 15))]
            said += child.kill()
        settled = {number for step, number in said if step == "settled"}
        numbers = self.finish(queue, 20 - len(settled) - 1)
        numbers += self.numbers_of(self.receive(queue, 10, (self.visibility_s or 0.0) + DELAY_S))
        again = settled & set(numbers)
        assert not again, f"a killed receiver had settled {sorted(settled)}, but {sorted(again)} came again"
        # The very last settle may have counted without the receiver living to tell.
        missing = set(range(20)) - settled - set(numbers)
        assert len(missing) <= 1, f"records {sorted(missing)} were not settled, and did not come again after a kill"


def number_marked(mark: bytes, delivery: Delivery) -> int | None:
    found, number, _ = [*(delivery.record.value or b"").split(b" ", 2), b"", b""][:3]
    return int(number) if found == mark else None


def send_and_tell(queue: Queue, parent: Parent, mark: bytes) -> None:
    """Send until killed, and report each record that the queue has accepted."""
    for number in itertools.count():
        queue.send([NewRecord("queue", b"%b %d " % (mark, number))])
        parent.send(number)


def receive_and_tell(queue: Queue, parent: Parent, mark: bytes) -> None:
    """Receive two at a time, settle one of them, and report it, until killed or nothing arrives."""
    while deliveries := queue.receive(2, COME_S):
        for index, delivery in enumerate(deliveries):
            number = number_marked(mark, delivery)
            if number is None:
                queue.settle(delivery, Outcome.DONE)
                continue
            parent.send(("received", number))
            if index == 0:
                queue.settle(delivery, Outcome.DONE)
                parent.send(("settled", number))
    parent.receive(COME_S)


def queue(
    factory: Factory[Queue],
    features: Features | None = None,
    *,
    visibility_s: float | None = None,
    ordered: bool = True,
    outage: Callable[[], Outage] | None = None,
    longest_backoff_s: float | None = None,
) -> type[QueueCases]:
    """The cases for a queue. `factory` opens it; with a parameter it gets a folder, whose name can name the queue.

    `visibility_s` is the time after which an unsettled delivery is redelivered, where there is one: choose a short one
    that a busy machine can keep, such as 2. `ordered`: a single receiver gets records in the order in which a single
    sender sent them. `outage()` returns the server that the factory's queue connects to, through a `TcpProxy`; without
    it, the cases that kill the server and break the network are skipped. `longest_backoff_s` is the longest pause
    between two attempts to reconnect: the queue must work again within a few of them.
    """
    cases = collect(QueueCases, factory, features)
    cases.visibility_s = visibility_s
    cases.ordered = ordered
    cases.make_outage = staticmethod(outage) if outage is not None else None
    cases.longest_backoff_s = longest_backoff_s
    return cases
