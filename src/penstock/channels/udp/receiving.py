"""`UdpReceiver`: the listening end. A thread reads packets, puts them in order and asks senders for what is missing."""

from __future__ import annotations

import collections
import functools
import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock.channels.datagram_socket import Address, ResolvedAddress, open_asking, open_listening
from penstock.channels.rare_warnings import RareWarnings
from penstock.channels.receive_buffer import Arrived, ReceiveBuffer
from penstock.channels.socket_channel import SocketReceiver
from penstock.channels.udp.ordering import HeldBytes, Payload, SenderOrder, UdpCounts
from penstock.channels.udp.packets import (
    CHALLENGE,
    COOKIE_BYTES,
    DATA,
    FRAGMENT,
    GONE,
    HEARTBEAT,
    NO_COOKIE,
    REQUEST,
    ForeignPacketError,
    Packet,
    PacketCodec,
    decode_records,
    encode_request,
)
from penstock.channels.udp.settings import UdpSettings

logger = logging.getLogger(__name__)

_DATAGRAMS_AT_ONCE: Final = 128
_RECORDS_AT_ONCE: Final = 1_000
_PACKETS_AT_ONCE: Final = 256
_SHORTEST_WAIT_S: Final = 0.001
_LONGEST_WAIT_S: Final = 1.0
_ROOM_WAIT_S: Final = 0.01
"""How soon to look again whether a full buffer has room, if nobody tells."""
_SILENT_S: Final = 60.0
"""A sender that was silent for longer gives up its place to a new one when there are too many."""


class _Sender:
    """A session of a sender, and the address from which its packets come."""

    __slots__ = ("address", "heard_s", "order")

    def __init__(self, address: Address, order: SenderOrder, heard_s: float) -> None:
        self.address = address
        self.order = order
        self.heard_s = heard_s


class UdpReceiver(SocketReceiver):
    """Receives the records of all senders into a buffer, each sender's in order."""

    def __init__(self, address: ResolvedAddress, settings: UdpSettings, buffer: ReceiveBuffer) -> None:
        super().__init__(address.shown, buffer)
        self.counts = UdpCounts()
        self._address = address
        self._settings = settings
        self._codec = PacketCodec(settings.secrets())
        self._senders: dict[int, _Sender] = {}
        """By session."""
        self._behind: dict[int, _Sender] = {}
        """The senders with packets that are missing or wait for room."""
        self._ready: collections.deque[list[Arrived]] = collections.deque()
        """Records of packets in order, which wait for room in the buffer."""
        self._at_once = min(_RECORDS_AT_ONCE, settings.buffer // 4)
        self._held_bytes = HeldBytes(settings.reorder_bytes)
        self._since_s = 0.0
        self._asking: socket.socket | None = None
        self._warnings = RareWarnings(logger, f"udp {address.shown}")
        self._lost_logged = 0

    def open_sockets(self) -> Mapping[socket.socket, Callable[[], None]]:
        self._settings.check_listening(self._address)
        listener = open_listening(self._address, self._settings.interface, self._settings.socket_buffer_bytes)
        self._asking = listener
        if self._address.is_multicast:  # answers come to an address of this machine
            try:
                self._asking = open_asking(self._address, self._settings.socket_buffer_bytes)
            except BaseException:
                listener.close()
                raise
        self._since_s = self._since_s or time.monotonic()
        return {each: functools.partial(self._read, each) for each in {listener, self._asking}}

    def step(self) -> float:
        if not self._behind and not self._ready:
            self.waits_for_room = False
            return _LONGEST_WAIT_S
        self._deliver()
        self._ask()
        self.waits_for_room = bool(self._ready)
        if self._ready:
            return _ROOM_WAIT_S
        now_s = time.monotonic()
        due_s = min(
            (due for each in self._behind.values() if (due := each.order.due_s(now_s)) is not None),
            default=now_s + _LONGEST_WAIT_S,
        )
        return min(max(_SHORTEST_WAIT_S, due_s - now_s), _LONGEST_WAIT_S)

    def _read(self, source: socket.socket) -> None:
        now_s = time.monotonic()
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                data, address = source.recvfrom(65536)
            except BlockingIOError:
                return
            except ConnectionError:  # a request of ours reached nobody
                continue
            try:
                self._take_in(self._codec.decode(data), address, now_s)
            except ForeignPacketError as error:
                self.counts.foreign += 1
                self._warnings.warn("foreign", "a datagram of %s is ignored, as %s", address[0], error)

    def _take_in(self, packet: Packet, address: Address, now_s: float) -> None:
        sender = self._senders.get(packet.session)
        if sender is None:
            if packet.kind == REQUEST:
                return  # another receiver asks a sender that has the address of this channel
            sender = self._new_sender(packet, address, now_s)
        elif sender.address != address:
            raise ForeignPacketError(f"it has the session of the sender at {sender.address[0]}:{sender.address[1]}")
        sender.heard_s = now_s
        order = sender.order
        if packet.kind in (DATA, FRAGMENT):
            order.offer(packet, now_s)
        elif packet.kind == HEARTBEAT:
            order.announce(packet.number, packet.record, now_s)
        elif packet.kind == GONE:
            order.gone(packet.number, packet.record, now_s)
        elif packet.kind == CHALLENGE and len(packet.payload) == COOKIE_BYTES:
            order.cookie = packet.payload
            order.ask_again()
        else:
            raise ForeignPacketError(f"its kind {packet.kind} is not for receivers")
        if order.is_behind:
            self._behind[packet.session] = sender

    def _new_sender(self, packet: Packet, address: Address, now_s: float) -> _Sender:
        if packet.kind not in (DATA, FRAGMENT, HEARTBEAT):
            raise ForeignPacketError("it belongs to a session that is not known")
        if len(self._senders) >= self._settings.max_senders:
            oldest = min(self._senders, key=lambda each: self._senders[each].heard_s)
            if now_s - self._senders[oldest].heard_s < _SILENT_S:
                raise ForeignPacketError(f"there are {len(self._senders)} senders already: raise max_senders")
            self._senders.pop(oldest).order.forget()
            self._behind.pop(oldest, None)
        order = SenderOrder(
            packet,
            from_start=now_s - packet.age_ms / 1000 > self._since_s,
            reorder_s=self._settings.reorder_s,
            recover_s=self._settings.recover_s,
            held_bytes=self._held_bytes,
            counts=self.counts,
        )
        self.counts.senders += 1
        self._senders[packet.session] = found = _Sender(address, order, now_s)
        return found

    def _deliver(self) -> None:
        """Move records that are in order to the buffer, until it is full."""
        now_s = time.monotonic()
        for session, sender in list(self._behind.items()):
            while len(self._ready) < _PACKETS_AT_ONCE or self._flush():
                payloads = sender.order.take(_RECORDS_AT_ONCE, now_s)
                if not payloads:
                    break
                self._ready.extend(filter(None, map(self._decoded, payloads)))
            if not sender.order.is_behind:
                del self._behind[session]
        self._flush()

    def _decoded(self, payload: Payload) -> list[Arrived]:
        data, count, sent_ms = payload
        try:
            return [
                (value, key, headers, sent_ms if stamp_ms is None else stamp_ms)
                for value, key, stamp_ms, headers in decode_records(data)
            ]
        except ForeignPacketError as error:  # somebody has made a packet with a correct checksum
            self.counts.lost += count
            self._warnings.warn("records", "%d records are lost, as %s", count, error)
            return []

    def _flush(self) -> bool:
        """Move payloads that are ready to the buffer. Whether there was room for all."""
        ready = self._ready
        while ready:
            together = list(ready[0])
            packets = 1
            while packets < len(ready) and len(together) + len(ready[packets]) <= self._at_once:
                together += ready[packets]
                packets += 1
            if not self.buffer.put_request(together, _nothing):
                return False
            for _ in range(packets):
                ready.popleft()
        return True

    def _ask(self) -> None:
        """Request missing packets again, and give up packets that were first requested too long ago."""
        assert self._asking is not None
        now_s = time.monotonic()
        if self._ready:
            for sender in self._behind.values():
                sender.order.postpone()
            return
        for session, sender in list(self._behind.items()):
            order = sender.order
            if order.give_up(now_s):
                self._deliver()
            ranges = order.request(now_s)
            if ranges:
                payload = encode_request(order.cookie or NO_COOKIE, ranges)
                packet = self._codec.encode(REQUEST, session, ranges[0][0], 0, payload=payload)
                try:
                    self._asking.sendto(packet, sender.address)
                except OSError as error:
                    self._warnings.warn("request", "cannot ask %s for missing packets: %s", sender.address[0], error)
        lost = self.counts.lost - self._lost_logged
        if lost and self._warnings.warn("lost", "%d records are lost: their packets could not be recovered", lost):
            self._lost_logged = self.counts.lost


def _nothing(_: object) -> None:
    """Nothing to do: nobody waits for an answer."""
