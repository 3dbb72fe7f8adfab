"""What a receiver makes of the packets of a sender, whatever a network does to them: without a network."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.channels.udp.ordering import ASKED_AT_ONCE, WINDOW_PACKETS, HeldBytes, SenderOrder, UdpCounts
from penstock.channels.udp.packets import DATA, FRAGMENT, Packet

REORDER_S = 0.005
RECOVER_S = 1.0


def packet(number: int, record: int, records: int = 1, kind: int = DATA, begins: bool = False) -> Packet:
    return Packet(kind, begins, records, 1, number, record, 0, 0, b"%d" % record)


@dataclass
class Receiver:
    """A receiver that begins with the first packet of a session, at time 0."""

    held_bytes: int = 1 << 20
    from_start: bool = True
    counts: UdpCounts = field(default_factory=UdpCounts)
    now_s: float = 0.0
    delivered: list[int] = field(default_factory=list)

    def begin(self, first: Packet) -> Receiver:
        self.order = SenderOrder(
            first,
            from_start=self.from_start,
            reorder_s=REORDER_S,
            recover_s=RECOVER_S,
            held_bytes=HeldBytes(self.held_bytes),
            counts=self.counts,
        )
        self.offer(first)
        return self

    def offer(self, each: Packet) -> None:
        self.order.offer(each, self.now_s)
        self.take()

    def take(self) -> None:
        for payload in self.order.take(1_000_000, self.now_s):
            self.delivered += range(int(payload.data), int(payload.data) + payload.records)

    def asked(self) -> list[int]:
        """The packets that it asks for now."""
        ranges = self.order.request(self.now_s)
        return [number for first, count in ranges for number in range(first, first + count)]

    def wait(self) -> None:
        """Until it has something to do."""
        due_s = self.order.due_s(self.now_s)
        assert due_s is not None, "something is missing, and nothing is due"
        assert due_s < self.now_s + 10.0, "the receiver waits for ever"
        self.now_s = max(self.now_s, due_s)
        if self.order.give_up(self.now_s):
            self.take()


@st.composite
def sessions(draw: st.DrawFn) -> list[Packet]:
    """The packets of a session, each with a few records, or a part of one."""
    packets: list[Packet] = []
    record = 0
    for records in draw(st.lists(st.integers(-4, 5).filter(bool), min_size=1, max_size=30)):
        if records > 0:
            packets.append(packet(len(packets), record, records))
            record += records
        else:
            for part in range(-records):
                payload = b"%d" % record if part == 0 else b""
                last = int(part == -records - 1)
                packets.append(Packet(FRAGMENT, part == 0, last, 1, len(packets), record, 0, 0, payload))
            record += 1
    return packets


@given(sessions(), st.data())
def test_everything_is_delivered_once_and_in_order_if_the_sender_answers(
    packets: list[Packet], data: st.DataObject
) -> None:
    arrivals = data.draw(st.lists(st.sampled_from(packets), max_size=60))
    receiver = Receiver().begin(arrivals[0] if arrivals else packets[-1])
    for each in arrivals:
        receiver.offer(each)
    total = packets[-1].record + packets[-1].records
    receiver.order.announce(len(packets), total, receiver.now_s)
    turns = 0
    while receiver.order.is_behind:
        receiver.wait()
        for number in receiver.asked():
            if data.draw(st.booleans()):
                receiver.offer(packets[number])
        turns += 1
        if turns > 30:  # the network has become good
            for each in packets:
                receiver.offer(each)
    assert len(receiver.delivered) + receiver.counts.lost == total
    assert receiver.delivered == sorted(set(receiver.delivered))
    assert receiver.counts.lost == 0 or receiver.now_s >= RECOVER_S, "nothing is given up early"


@given(sessions(), st.data())
def test_what_is_not_delivered_is_counted_as_lost_if_the_sender_is_dead(
    packets: list[Packet], data: st.DataObject
) -> None:
    arrived = data.draw(st.lists(st.sampled_from(packets), min_size=1, unique_by=lambda each: each.number))
    receiver = Receiver().begin(arrived[0])
    for each in arrived:
        receiver.offer(each)
    total = packets[-1].record + packets[-1].records
    receiver.order.announce(len(packets), total, receiver.now_s)
    while receiver.order.is_behind:
        receiver.wait()
        receiver.asked()
    assert receiver.now_s < 3 * RECOVER_S, "gaps are waited for together, not one after the other"
    assert receiver.delivered == sorted(set(receiver.delivered))
    assert len(receiver.delivered) + receiver.counts.lost == total
    whole = [each for each in arrived if each.kind == DATA]
    assert len(receiver.delivered) >= sum(each.records for each in whole), "what arrived is delivered"


@given(sessions(), st.data())
def test_what_the_sender_no_longer_has_is_lost_at_once_and_what_arrived_is_not(
    packets: list[Packet], data: st.DataObject
) -> None:
    arrived = data.draw(st.lists(st.sampled_from(packets), min_size=1, unique_by=lambda each: each.number))
    gone = data.draw(st.sampled_from(packets))
    receiver = Receiver().begin(arrived[0])
    for each in arrived:
        receiver.offer(each)
    receiver.order.announce(len(packets), packets[-1].record + packets[-1].records, 0.0)
    receiver.order.gone(gone.number, gone.record, 0.0)
    receiver.take()
    assert receiver.order.next >= gone.number
    for each in packets[gone.number :]:
        receiver.offer(each)
    assert receiver.now_s == 0.0
    assert not receiver.order.is_behind
    assert len(receiver.delivered) + receiver.counts.lost == packets[-1].record + packets[-1].records


def test_a_packet_that_is_only_late_is_not_asked_for() -> None:
    receiver = Receiver().begin(packet(0, 0))
    receiver.offer(packet(2, 2))
    assert receiver.asked() == []
    receiver.now_s = REORDER_S * 0.9
    receiver.offer(packet(1, 1))
    assert receiver.delivered == [0, 1, 2]
    assert receiver.order.due_s(receiver.now_s) is None
    assert receiver.counts.reordered == 1


def test_new_gaps_get_their_time_while_older_ones_are_asked_for() -> None:
    receiver = Receiver().begin(packet(0, 0))
    receiver.offer(packet(2, 2))
    receiver.now_s = REORDER_S
    receiver.offer(packet(4, 4))
    assert receiver.asked() == [1], "packet 3 may be under way"
    receiver.now_s = 2 * REORDER_S
    assert receiver.asked() == [3]


def test_requests_are_repeated_with_longer_and_longer_pauses() -> None:
    receiver = Receiver().begin(packet(0, 0))
    receiver.offer(packet(2, 2))
    times_s: list[float] = []
    while receiver.counts.lost == 0:
        receiver.wait()
        if receiver.asked():
            times_s.append(receiver.now_s)
    pauses_s = [later - sooner for sooner, later in itertools.pairwise(times_s)]
    assert 3 <= len(times_s) <= 10
    assert pauses_s == sorted(pauses_s)
    assert receiver.delivered == [0, 2]


def test_no_more_is_asked_for_than_can_be_held() -> None:
    receiver = Receiver(held_bytes=10).begin(packet(0, 0))
    receiver.order.announce(1_000, 1_000, 0.0)
    receiver.now_s = REORDER_S
    assert receiver.asked() == list(range(1, 11)), "packets of one byte"
    large = Receiver().begin(packet(0, 0))
    large.order.announce(10**15, 10**15, 0.0)
    large.now_s = REORDER_S
    assert len(large.asked()) == ASKED_AT_ONCE


def test_packets_far_ahead_and_those_without_room_are_postponed() -> None:
    receiver = Receiver(held_bytes=100).begin(packet(0, 0))
    receiver.offer(packet(WINDOW_PACKETS + 1, 5))
    assert receiver.counts.postponed == 1
    for number in range(2, 200):
        receiver.offer(packet(number, number))
    assert receiver.counts.postponed > 50
    receiver.offer(packet(1, 1))
    assert receiver.delivered == list(range(len(receiver.delivered)))
    assert receiver.order.is_behind, "the others are asked for again"


def test_a_receiver_that_joins_within_a_large_record_does_not_miss_it() -> None:
    receiver = Receiver(from_start=False).begin(packet(7, 3, 0, FRAGMENT))
    receiver.offer(packet(8, 3, 1, FRAGMENT))
    receiver.offer(packet(9, 4))
    assert receiver.delivered == [4]
    assert receiver.counts.lost == 0


def test_a_large_record_without_one_of_its_parts_is_one_lost_record() -> None:
    parts: Sequence[Packet] = [
        packet(0, 0),
        packet(1, 1, 0, FRAGMENT, begins=True),
        packet(3, 1, 1, FRAGMENT),
        packet(4, 2),
    ]
    receiver = Receiver().begin(parts[0])
    for each in parts[1:]:
        receiver.offer(each)
    while receiver.order.is_behind:
        receiver.wait()
        receiver.asked()
    assert receiver.delivered == [0, 2]
    assert receiver.counts.lost == 1
