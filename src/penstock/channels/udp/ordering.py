"""`SenderOrder`: what a receiver knows about one session of a sender.

It puts packets in order and tells which ones to ask for. No I/O, and time is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.channels.udp.packets import FRAGMENT, MOST_RANGES, Packet

WINDOW_PACKETS: Final = 8_192
"""How far ahead of the next packet to deliver a packet may be kept."""
ASKED_AT_ONCE: Final = 256
"""How many packets are asked for and have not come, at most: so that the answers fit into the socket's buffer."""
_ROUND_TRIP_S: Final = 0.02
"""Assumed until the first answer."""
_LONGEST_PAUSE_S: Final = 0.5
LARGEST_RECORD_BYTES: Final = 16 << 20
"""A record in fragments that is larger is lost."""


class Payload(NamedTuple):
    """Encoded records that can be delivered, in order."""

    data: bytes
    records: int
    sent_ms: int


@dataclass(slots=True)
class UdpCounts:
    """Counters of a receiver since it began to listen. One thread writes; readers may be slightly behind."""

    packets: int = 0
    """Packets with records that arrived, with duplicates and repeated ones."""
    duplicates: int = 0
    """Packets that had arrived before."""
    reordered: int = 0
    """Packets that arrived after a later one, and were not asked for."""
    requested: int = 0
    """Packets that senders were asked to send again; each is counted once."""
    recovered: int = 0
    """Packets that arrived after they were asked for."""
    postponed: int = 0
    """Packets that arrived while there was no room for them. They are asked for again later."""
    lost: int = 0
    """Records that could not be recovered."""
    foreign: int = 0
    """Datagrams that were ignored: not of this protocol, damaged, or without the right signature."""
    senders: int = 0
    """Sessions of senders that were heard."""


@dataclass(slots=True)
class HeldBytes:
    """The limit of bytes that all sessions of a receiver may hold."""

    limit: int
    used: int = 0

    @property
    def left(self) -> int:
        return self.limit - self.used


@dataclass(slots=True)
class _Ask:
    first_s: float
    last_s: float
    times: int = 1


class SenderOrder:
    """Orders the packets of one session. `offer`, `announce` and `gone` take packets; `take` returns what can be
    delivered."""

    def __init__(
        self,
        first: Packet,
        *,
        from_start: bool,
        reorder_s: float,
        recover_s: float,
        held_bytes: HeldBytes,
        counts: UdpCounts,
    ) -> None:
        """With `from_start`, the session is younger than this receiver, so all of its packets should arrive."""
        self.counts = counts
        self.cookie: bytes | None = None
        self._reorder_s = reorder_s
        self._recover_s = recover_s
        self._held_bytes = held_bytes
        self._next = 0 if from_start else first.number
        self._next_record = 0 if from_start else first.record
        self._end, self._end_record = self._next, self._next_record
        """The packet after the last one that is known to exist, and its first record."""
        self._held: dict[int, Packet] = {}
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._partly_seen = None if from_start or first.kind != FRAGMENT or first.begins else first.record
        """The record whose first fragments were sent before this receiver listened."""
        self._gone, self._gone_record = 0, 0
        """The sender has no packets before this one."""
        self._overdue = 0
        """Missing packets before this one have had time to arrive late: they are asked for."""
        self._watched_s: float | None = None
        self._watched_end = 0
        """Packets before this one were missing at `_watched_s`, and may still be under way."""
        self._largest_bytes = 1
        self._asked: dict[int, _Ask] = {}
        self._round_trip_s = _ROUND_TRIP_S

    @property
    def next(self) -> int:
        """The number of the packet to deliver next."""
        return self._next

    @property
    def is_behind(self) -> bool:
        """Whether packets are known to exist that were not delivered."""
        return self._next < self._end

    def offer(self, packet: Packet, now_s: float) -> None:
        """Take a packet with records."""
        number = packet.number
        counts = self.counts
        counts.packets += 1
        if number < self._next or number in self._held:
            counts.duplicates += 1
            return
        size = len(packet.payload)
        if number >= self._next + WINDOW_PACKETS or (number != self._next and size > self._held_bytes.left):
            counts.postponed += 1
        else:
            ask = self._asked.pop(number, None)
            if ask is not None:
                counts.recovered += 1
                if ask.times == 1:
                    self._round_trip_s += (now_s - ask.first_s - self._round_trip_s) / 8
            elif number + 1 < self._end:
                counts.reordered += 1
            self._held[number] = packet
            self._held_bytes.used += size
            self._largest_bytes = max(self._largest_bytes, size)
        self._extend(number + 1, packet.record + packet.records, now_s)

    def announce(self, number: int, record: int, now_s: float) -> None:
        """Take a heartbeat, which names the sender's next packet and record."""
        self._extend(number, record, now_s)

    def gone(self, number: int, record: int, now_s: float) -> None:
        """Take the sender's message that it no longer has packets before `number`, whose first record is `record`."""
        if number > self._gone:
            self._gone, self._gone_record = number, record
            self._extend(number, record, now_s)

    def take(self, room: int, now_s: float) -> list[Payload]:
        """Take the payloads that are next in order, until they have `room` records."""
        taken: list[Payload] = []
        while room > 0:
            packet = self._held.pop(self._next, None)
            if packet is None:
                if self._next >= self._gone:
                    break
                self._skip()
                continue
            self._held_bytes.used -= len(packet.payload)
            self._next += 1
            payload = self._delivered(packet)
            if payload is not None:
                room -= payload.records
                taken.append(payload)
        if self._next >= self._watched_end:
            self._watched_s = None
        if self._watched_s is None:
            self._watch(now_s)
        return taken

    def postpone(self) -> None:
        """Treat nothing as overdue: there is no room for packets that would be requested."""
        self._asked.clear()

    def give_up(self, now_s: float) -> bool:
        """Skip the next packets if they were requested in vain. Whether they were: there may be something to take
        then."""
        ask = self._asked.get(self._next)
        if ask is None or now_s < ask.first_s + self._recover_s:
            return False
        self._skip()
        return True

    def request(self, now_s: float) -> Sequence[tuple[int, int]]:
        """The ranges of packets to request now: the first number, and how many."""
        due_s = self.due_s(now_s)
        if due_s is None or now_s < due_s:
            return ()
        if self._watched_s is not None and now_s >= self._watched_s + self._reorder_s:
            self._overdue = self._watched_end
            self._watched_s = None
            self._watch(now_s)
        ranges: list[tuple[int, int]] = []
        room = min(ASKED_AT_ONCE, self._held_bytes.left // self._largest_bytes)
        for number in range(self._next, min(self._overdue, self._next + WINDOW_PACKETS)):
            if number in self._held:
                continue
            if room <= 0 and number != self._next:
                break
            room -= 1
            ask = self._asked.get(number)
            if ask is None:
                self._asked[number] = _Ask(now_s, now_s)
                self.counts.requested += 1
            elif now_s >= ask.last_s + self._pause_s(ask.times):
                ask.last_s = now_s
                ask.times += 1
            else:
                continue
            if ranges and sum(ranges[-1]) == number:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
            elif len(ranges) == MOST_RANGES:
                break
            else:
                ranges.append((number, 1))
        return ranges

    def ask_again(self) -> None:
        """Request at once, with the cookie: the last request was answered by a challenge."""
        for ask in self._asked.values():
            ask.last_s -= _LONGEST_PAUSE_S

    def due_s(self, now_s: float) -> float | None:
        """When to call `request` or `give_up` next; None if nothing is missing."""
        if self._next >= self._end or self._next in self._held:
            return None
        due_s = float("inf") if self._watched_s is None else self._watched_s + self._reorder_s
        if self._next < self._overdue:
            ask = self._asked.get(self._next)
            if ask is None:
                return now_s
            due_s = min(due_s, ask.last_s + self._pause_s(ask.times), ask.first_s + self._recover_s)
        return due_s

    def forget(self) -> None:
        """Drop everything: the session is forgotten."""
        self._held_bytes.used -= sum(len(packet.payload) for packet in self._held.values())
        self._held.clear()
        self._drop_parts()

    def _pause_s(self, times: int) -> float:
        return min(self._round_trip_s * (2 << min(times, 10)), _LONGEST_PAUSE_S)

    def _extend(self, number: int, record: int, now_s: float) -> None:
        if number > self._end:
            self._end, self._end_record = number, record
        if self._watched_s is None:
            self._watch(now_s)

    def _watch(self, now_s: float) -> None:
        """Start the time after which packets that are missing now become overdue."""
        if self._end > max(self._overdue, self._next) and self._next not in self._held:
            self._watched_s, self._watched_end = now_s, self._end

    def _skip(self) -> None:
        """Skip the next packets, up to the first one that is held, that the sender still has, or that is unknown."""
        number, record = self._end, self._end_record
        if self._next < self._gone < number:
            number, record = self._gone, self._gone_record
        first = min((each for each in self._held if each < number), default=None)
        if first is not None:
            number, record = first, self._held[first].record
        self._lose(record)
        self._asked = {each: ask for each, ask in self._asked.items() if each >= number}
        self._next = number

    def _lose(self, record: int) -> None:
        """Count all records before this one that were not delivered as lost."""
        if record > self._next_record:
            self.counts.lost += record - self._next_record
            self._next_record = record
        self._drop_parts()

    def _drop_parts(self) -> None:
        if self._parts:
            self._parts.clear()
            self._held_bytes.used -= self._parts_bytes
            self._parts_bytes = 0

    def _delivered(self, packet: Packet) -> Payload | None:
        """The payload that is complete with the next packet in order; None for a fragment that is not the last."""
        if packet.kind != FRAGMENT:
            self._lose(packet.record)
            self._next_record = packet.record + packet.records
            return Payload(packet.payload, packet.records, packet.sent_ms)
        if packet.begins:
            self._lose(packet.record)
        elif not self._parts:  # the beginning is lost, or was too large, or was sent before this receiver listened
            self._forget_record(packet)
            return None
        self._parts.append(packet.payload)
        self._parts_bytes += len(packet.payload)
        self._held_bytes.used += len(packet.payload)
        if self._parts_bytes > LARGEST_RECORD_BYTES:
            self._drop_parts()
            self._forget_record(packet)
            return None
        if not packet.records:
            return None
        data = b"".join(self._parts)
        self._drop_parts()
        self._next_record = packet.record + 1
        return Payload(data, 1, packet.sent_ms)

    def _forget_record(self, packet: Packet) -> None:
        if packet.records:
            if packet.record == self._partly_seen:
                self._next_record = packet.record + 1
            else:
                self._lose(packet.record + 1)
