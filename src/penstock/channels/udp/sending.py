"""`UdpSender`: the sending end. It numbers packets, keeps the latest ones, and repeats those that receivers ask for.

A thread sends heartbeats and answers requests. An answer goes to the address that a request seems to come from, and a
forged request could turn it against somebody else. So a request must contain a cookie that was sent to that address
before; without it, the answer is the cookie, in a packet smaller than the request. With it, answers are limited by
count and rate.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.channels.datagram_socket import Address, ResolvedAddress, open_sending, unavailable
from penstock.channels.socket_thread import SocketThread
from penstock.channels.udp.packets import (
    ARRAY_OVERHEAD_BYTES,
    CHALLENGE,
    DATA,
    FRAGMENT,
    GONE,
    HEARTBEAT,
    MOST_RECORDS,
    REQUEST,
    ForeignPacketError,
    Packet,
    PacketCodec,
    cookie_of,
    decode_request,
    encode_records,
    largest_size,
)
from penstock.channels.udp.settings import UdpSettings
from penstock.errors import BrokerUnavailableError, RecordTooLargeError
from penstock.model import NewRecord

logger = logging.getLogger(__name__)

_FIRST_HEARTBEAT_S: Final = 0.01
"""After the last packet. Each one after it comes twice as late, until they come every `heartbeat_s`."""
_ANSWER_PACKETS: Final = 256
"""What one request may bring."""
_MOST_REQUESTERS: Final = 1_024
_BURST_S: Final = 0.05
_FULL_S: Final = 5.0
"""How long a full queue of the network card is waited for."""
_LINGER_TIMES: Final = 10
_STOP_S: Final = 5.0


class RateLimit:
    """A token bucket: an amount per second, and a burst. Time is passed in."""

    def __init__(self, per_s: float, burst: float, now_s: float) -> None:
        self._per_s = per_s
        self._burst = max(1.0, burst)
        self._left = self._burst
        self._at_s = now_s

    def take(self, amount: float, now_s: float) -> bool:
        """Use this amount if it is allowed now. Whether it was."""
        if self.wait_s(now_s) or self._left < min(amount, self._burst):
            return False
        self._left -= amount
        return True

    def wait_s(self, now_s: float) -> float:
        """How long until the overdraft is made up for."""
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        return max(0.0, -self._left / self._per_s)

    def overdraw(self, amount: float) -> None:
        """Use this amount, allowed or not."""
        self._left -= amount


class UdpSender:
    """One session: from the first send to `close`. Any thread may send."""

    def __init__(self, target: ResolvedAddress, source: ResolvedAddress | None, settings: UdpSettings) -> None:
        self._target = target
        self._settings = settings
        self._codec = PacketCodec(settings.secrets())
        multicast = target.is_multicast
        self._socket = open_sending(target, settings.interface, settings.ttl if multicast else None, source)
        self.session = secrets.randbits(64)
        self._key = secrets.token_bytes(32)
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._next = self._next_record = 0
        self._history: dict[int, tuple[int, bytes]] = {}
        """By number, in order: the first record of a packet, and the packet."""
        self._history_bytes = 0
        self._sent_s = 0.0
        self._pace = (
            RateLimit(settings.rate_bytes_per_s, settings.rate_bytes_per_s * _BURST_S, self._began_s)
            if settings.rate_bytes_per_s
            else None
        )
        self._repairs = RateLimit(settings.repair_packets_per_s, settings.repair_packets_per_s, self._began_s)
        self._requesters: collections.OrderedDict[Address, RateLimit] = collections.OrderedDict()
        self._closing = threading.Event()
        self._idle = False
        """The thread may wait for longer than until the first heartbeat after a packet: wake it."""
        self.repeated = 0
        """How many packets were sent again."""
        self.refused = 0
        """How many requests were not answered: foreign, too many, or without a cookie."""
        self._beat_s, self._pause_s = self._began_s, _FIRST_HEARTBEAT_S
        """When the next heartbeat is due, and how long after the one before."""
        self._seen_s = self._asked_s = 0.0
        self._ends_s: float | None = None
        self._thread = SocketThread(f"penstock-udp-sender-{target.shown}", self._step, self._failed)
        self._thread.watch(self._socket, self._answer_requests)
        self._thread.start()

    def send(self, records: Sequence[NewRecord]) -> None:
        """Send records in as few packets as possible. RecordTooLargeError before any is sent."""
        groups = list(self._groups(records))
        for group in groups:
            payload = encode_records(group)
            with self._lock:
                if len(payload) <= self._room:
                    self._send_packet(DATA, payload, len(group))
                else:
                    parts = range(0, len(payload), self._room)
                    for start in parts:
                        part = payload[start : start + self._room]
                        self._send_packet(FRAGMENT, part, int(start == parts[-1]), begins=start == 0)
        if self._idle:
            self._thread.wake()

    def close(self) -> None:
        """Answer requests for a while, for receivers that miss packets, then end."""
        self._closing.set()
        self._thread.wake()
        self._thread.join(_LINGER_TIMES * self._settings.linger_s + _STOP_S)

    @property
    def _room(self) -> int:
        return self._settings.datagram_bytes - self._codec.overhead_bytes

    def _groups(self, records: Sequence[NewRecord]) -> Iterator[list[NewRecord]]:
        """The records of each packet, or one record that needs several packets."""
        room = self._room - ARRAY_OVERHEAD_BYTES
        group: list[NewRecord] = []
        used = 0
        for record in records:
            size = largest_size(record)
            if size > room:
                self._check_size(len(encode_records([record])))
            if group and (used + size > room or len(group) == MOST_RECORDS):
                yield group
                group, used = [], 0
            group.append(record)
            used += size
        if group:
            yield group

    def _check_size(self, size: int) -> None:
        """Raise RecordTooLargeError if a record is too large."""
        if size > max(self._room, self._settings.max_record_bytes):
            limit = self._settings.datagram_bytes
            raise RecordTooLargeError(
                f"a record of {size} bytes does not fit into a datagram to {self._target.shown}, which has "
                f"datagram_bytes={limit}, {self._room} for records. Set max_record_bytes to send it in parts, raise "
                "datagram_bytes where the network allows it, or send where it is stored instead"
            )

    def _send_packet(self, kind: int, payload: bytes, count: int, *, begins: bool = False) -> None:
        """Encode, keep and send a packet. The caller holds the lock."""
        now_s = time.monotonic()
        if self._pace is not None and (wait_s := self._pace.wait_s(now_s)):
            self._closing.wait(wait_s)
        packet = self._codec.encode(
            kind,
            self.session,
            self._next,
            self._next_record,
            count=count,
            begins=begins,
            sent_ms=time.time_ns() // 1_000_000,
            age_ms=self._age_ms(now_s),
            payload=payload,
        )
        self._transmit(packet)
        if self._pace is not None:
            self._pace.overdraw(len(packet))
        self._history[self._next] = (self._next_record, packet)
        self._history_bytes += len(packet)
        while self._history_bytes > self._settings.history_bytes:
            self._history_bytes -= len(self._history.pop(next(iter(self._history)))[1])
        self._next += 1
        self._next_record += count
        self._sent_s = now_s

    def _transmit(self, packet: bytes) -> None:
        """Hand a packet to the system, waiting a moment if it has no room."""
        deadline_s = time.monotonic() + _FULL_S
        while True:  # ends: at the latest with the deadline
            try:
                self._socket.sendto(packet, self._target.address)
                return
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    raise RecordTooLargeError(
                        f"the system cannot send a datagram of {len(packet)} bytes to {self._target.shown}: lower "
                        f"datagram_bytes={self._settings.datagram_bytes}"
                    ) from error
                if error.errno != errno.ENOBUFS or time.monotonic() > deadline_s or self._closing.wait(0.001):
                    raise unavailable(error, f"cannot send to {self._target.shown}") from error

    def _age_ms(self, now_s: float) -> int:
        return int((now_s - self._began_s) * 1000)

    def _step(self) -> float | None:
        """Send a heartbeat if it is due. None once the sender is closed and no receiver asks any more."""
        self._idle = False
        now_s = time.monotonic()
        if self._closing.is_set():
            if self._ends_s is None:
                self._ends_s = now_s + _LINGER_TIMES * self._settings.linger_s
                self._asked_s, self._beat_s, self._pause_s = now_s, now_s, _FIRST_HEARTBEAT_S
            if now_s >= min(self._ends_s, self._asked_s + self._settings.linger_s):
                return None
        if now_s >= self._beat_s:
            self._heartbeat(now_s)
            self._pause_s = min(2 * self._pause_s, self._settings.heartbeat_s)
            self._beat_s = now_s + self._pause_s
        self._idle = True  # before the look at what was sent: `send` looks at it afterwards
        if self._sent_s > self._seen_s:
            self._seen_s, self._pause_s = self._sent_s, _FIRST_HEARTBEAT_S
            self._beat_s = self._seen_s + self._pause_s
            self._idle = False
        return max(0.0, self._beat_s - now_s)

    def _failed(self, error: OSError) -> None:
        logger.error("udp %s: receivers can no longer recover packets from this sender: %s", self._target.shown, error)

    def _heartbeat(self, now_s: float) -> None:
        with self._lock, contextlib.suppress(BrokerUnavailableError):  # `send` tells of a network that is down
            if self._next:
                sent_ms, age_ms = time.time_ns() // 1_000_000, self._age_ms(now_s)
                self._transmit(
                    self._codec.encode(
                        HEARTBEAT, self.session, self._next, self._next_record, sent_ms=sent_ms, age_ms=age_ms
                    )
                )

    def _answer_requests(self) -> None:
        for _ in range(100):
            try:
                data, address = self._socket.recvfrom(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:  # an earlier answer reached nobody
                continue
            try:
                packet = self._codec.decode(data)
                if packet.kind != REQUEST or packet.session != self.session:
                    raise ForeignPacketError("it is not a request to this sender")
                self._answer(packet, address)
                self._asked_s = time.monotonic()
            except ForeignPacketError as error:
                self.refused += 1
                logger.debug("udp %s: a packet of %s is ignored: %s", self._target.shown, address, error)
            except OSError as error:
                logger.debug("udp %s: no answer to %s: %s", self._target.shown, address, error)

    def _answer(self, packet: Packet, address: Address) -> None:
        cookie, ranges = decode_request(packet.payload)
        expected = cookie_of(address, self._key)
        now_s = time.monotonic()
        if not secrets.compare_digest(cookie, expected):
            self.refused += 1
            if self._repairs.take(1, now_s):
                self._reply(CHALLENGE, self._next, self._next_record, expected, address)
            return
        requester = self._requester(address, now_s)
        left = _ANSWER_PACKETS
        told = False
        for first, count in ranges:
            for number in range(first, min(first + count, self._next, first + left)):
                if not (requester.take(1, now_s) and self._repairs.take(1, now_s)):
                    self.refused += 1
                    return
                left -= 1
                held = self._history.get(number)
                if held is not None:
                    self._socket.sendto(held[1], address)
                    self.repeated += 1
                elif not told:
                    told = True
                    with self._lock:
                        oldest = next(iter(self._history), self._next)
                        record = self._history[oldest][0] if self._history else self._next_record
                    self._reply(GONE, oldest, record, b"", address)

    def _requester(self, address: Address, now_s: float) -> RateLimit:
        """The rate limit of one receiver. Forged addresses cannot evade it, as they have no cookie."""
        found = self._requesters.get(address)
        if found is None:
            per_s = self._settings.repair_packets_per_s / 2
            found = self._requesters[address] = RateLimit(per_s, max(per_s, _ANSWER_PACKETS), now_s)
            if len(self._requesters) > _MOST_REQUESTERS:
                self._requesters.popitem(last=False)
        return found

    def _reply(self, kind: int, number: int, record: int, payload: bytes, address: Address) -> None:
        self._socket.sendto(self._codec.encode(kind, self.session, number, record, payload=payload), address)
