"""One client's connection: frames in, answers out, in order, within limits.

Requests are parsed where they lie in the receive buffer. They are taken one after the other, as the protocol
promises; only a Produce may be taken while earlier ones still wait for the disk, so that a client can keep several in
flight. When a client sends faster than it is answered, or does not read its answers, nothing more is read from it: it
waits in its own socket, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import code_of
from penstock.broker.request import Fields, Request
from penstock.broker.versions import FETCH, FLEXIBLE_HEADERS, PRODUCE, SUPPORTED, refuse
from penstock.broker.wire.primitives import MalformedRequestError, skip_tags
from penstock.broker.wire.schema import decode_request, encode_response
from penstock.errors import PenstockError
from penstock.log.lookup import Slice

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)

BUFFER_BYTES: Final = 256 * 1024
FIRST_BUFFER_BYTES: Final = 8 * 1024
"""What a connection starts with. It gets the full size once it sends enough to need it."""
LENGTH_BYTES: Final = 4
SENDFILE_FROM_BYTES: Final = 16 * 1024
"""Shorter runs of records are quicker to read and write than to hand to sendfile."""
_HEADER: Final = struct.Struct(">hhih")
_SHORTEST_REQUEST: Final = 8
SHUTTING_DOWN: Final = "the broker is shutting down"


class Slot:
    """The place of one answer among those of a connection: they leave in the order in which the requests came."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[bytes | Slice] | None = None


class Connection(asyncio.BufferedProtocol):
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.slots: deque[Slot] = deque()
        self.host = "?"
        self.last_active_s = 0.0
        self.closed = False
        self.on_lost: Callable[[], None] | None = None
        """Lets go of a request that waits for records, if one does."""
        self._transport: asyncio.Transport
        self._socket_fd = -1
        self._buffer = bytearray(FIRST_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._busy = False
        self._taking = False
        self._unread = False
        self._reading = True
        self._sending = False
        self._draining = False
        self._task: asyncio.Future[Any] | None = None
        self._rest: list[bytes | Slice] = []

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else "?"
        plain_socket = transport.get_extra_info("socket")
        plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket_fd = plain_socket.fileno()
        transport.set_write_buffer_limits(high=self.broker.limits.unsent_bytes)
        self.last_active_s = self.broker.clock.monotonic_s()
        if not self.broker.admit(self):
            self.close("too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.broker.forget(self)
        if self.on_lost is not None:
            self.on_lost()
        self._rest.clear()
        if self._task is not None:
            self._task.cancel()
        # Whatever still refers to this connection, its buffer goes now, not when the garbage collector next looks.
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._take_requests()

    def pause_writing(self) -> None:
        self._unread = True

    def resume_writing(self) -> None:
        self._unread = False
        self.last_active_s = self.broker.clock.monotonic_s()
        if self._sending:
            self._send_rest()
        else:
            self._resume()

    # Taking requests.

    def _take_requests(self) -> None:
        """Handle every whole request in the buffer, as far as may be, and make room for more."""
        self._taking = True
        try:
            while self._take_round():
                pass
        finally:
            self._taking = False
        if not self.closed:
            self._make_room()

    def _take_round(self) -> bool:
        """Take what may be taken together. True if that is answered by now, so that what waited for it has its turn."""
        first = self._start
        try:
            while not self.closed and self._may_go_on():
                available = self._end - self._start
                if available < LENGTH_BYTES:
                    break
                length = int.from_bytes(self._view[self._start : self._start + LENGTH_BYTES], "big", signed=True)
                if not _SHORTEST_REQUEST <= length <= self.broker.limits.max_request_bytes:
                    self.close(f"a request of {length} bytes (socket.request.max.bytes)")
                    break
                if available < LENGTH_BYTES + length:
                    break
                begin = self._start + LENGTH_BYTES
                frame = self._view[begin : begin + length]
                if self.slots and not self._may_overtake(frame):
                    break
                self._start = begin + length
                self._handle(frame)
        finally:
            self.broker.produce.finish_round()
        return first < self._start < self._end and not self.slots

    def _may_go_on(self) -> bool:
        held = self._busy or self._unread or self._draining
        return not held and len(self.slots) < self.broker.limits.queued_requests

    def _may_overtake(self, frame: memoryview) -> bool:
        """A Produce need not wait for the answers of those before it: only they can be open when one arrives."""
        return frame[0] == 0 and frame[1] == PRODUCE

    def _make_room(self) -> None:
        """Move what is left to the front, or into a larger buffer if one request needs it; read on if there is room."""
        if self._draining:
            return
        left = self._end - self._start
        if self._end == len(self._buffer) < BUFFER_BYTES:
            self._replace_buffer(BUFFER_BYTES)
        elif left == 0:
            self._start = self._end = 0
            if len(self._buffer) > BUFFER_BYTES:
                self._replace_buffer(BUFFER_BYTES)
        elif self._end == len(self._buffer):
            if self._start:
                self._view[:left] = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, left
            elif self._may_go_on() and not self.slots:
                self._replace_buffer(min(2 * len(self._buffer), self.broker.limits.max_request_bytes + LENGTH_BYTES))
        full = self._end == len(self._buffer)
        if full and self._reading:
            self._reading = False
            self._transport.pause_reading()
        elif not full and not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _replace_buffer(self, size: int) -> None:
        left = self._view[self._start : self._end]
        replacement = bytearray(size)
        replacement[: len(left)] = left
        self._start, self._end = 0, len(left)
        self._buffer = replacement
        self._view = memoryview(replacement)

    def _handle(self, frame: memoryview) -> None:
        self.last_active_s = self.broker.clock.monotonic_s()
        api_key, version, correlation_id, client_id_bytes = _HEADER.unpack_from(frame) if len(frame) > 9 else (-1,) * 4
        position = 10 + max(client_id_bytes, 0)
        try:
            supported = SUPPORTED.get(api_key)
            if supported is None or not supported[0] <= version <= supported[1]:
                self._refuse(api_key, version, correlation_id)
                return
            if version >= FLEXIBLE_HEADERS[api_key]:
                position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
            self.broker.stats.requests[api_key] += 1
            if api_key == PRODUCE:
                self.broker.produce.handle(self, frame, position, version, correlation_id)
            elif api_key == FETCH:
                self.broker.produce.finish_round()
                self._busy = self.broker.fetch.handle(self, frame, position, version, correlation_id)
            else:
                client_id = None if client_id_bytes < 0 else str(frame[10 : 10 + client_id_bytes], "utf-8")
                body = decode_request(api_key, version, bytes(frame[position:]))
                self._answer(Request(api_key, version, correlation_id, client_id, self.host, body))
        except (MalformedRequestError, IndexError, struct.error, ValueError) as error:
            self.close(f"a malformed request (API {api_key} version {version}): {error}")

    def _refuse(self, api_key: int, version: int, correlation_id: int) -> None:
        answer = refuse(api_key, version, correlation_id)
        if answer is None:
            self.close(f"API {api_key} version {version}, which the protocol does not have")
            return
        self.complete(self.reserve(), [answer])

    # Answers that take the slow way.

    def _answer(self, request: Request) -> None:
        """Have the handler of a request answer it, at once or when it is done waiting."""
        slot = self.reserve()
        self.broker.produce.finish_round()
        try:
            result = self.broker.handlers[request.api_key](self.broker, request)
        except Exception as error:
            self._fail(slot, request, error)
            return
        if isinstance(result, Awaitable):
            self._busy = True
            self._task = asyncio.ensure_future(result)
            self._task.add_done_callback(lambda task: self._answered(slot, request, task))
        else:
            self._send_fields(slot, request, result)

    def _answered(self, slot: Slot, request: Request, task: asyncio.Future[Fields]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._fail(slot, request, error)
        else:
            self._send_fields(slot, request, task.result())
        self.go_on()

    def _send_fields(self, slot: Slot, request: Request, fields: Fields) -> None:
        try:
            answer = encode_response(request.api_key, request.version, request.correlation_id, fields)
        except Exception as error:
            self._fail(slot, request, error)
            return
        self.complete(slot, [answer])

    def _fail(self, slot: Slot, request: Request, error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            logger.error(
                "API %d version %d failed", request.api_key, request.version, exc_info=error, extra={"host": self.host}
            )
        answer = refuse(request.api_key, request.version, request.correlation_id, code_of(error), str(error))
        if answer is None:
            self.close("an answer could not be written")
        else:
            self.complete(slot, [answer])

    # Sending.

    def reserve(self) -> Slot:
        slot = Slot()
        self.slots.append(slot)
        return slot

    def complete(self, slot: Slot, pieces: list[bytes | Slice]) -> None:
        """The answer for a slot is there; it leaves as soon as those before it have left."""
        slot.pieces = pieces
        self.advance()

    def advance(self) -> None:
        """Send the answers that are there, if it is their turn, and take what waited for them."""
        if self.slots and self.slots[0].pieces is not None:
            self.flush()
            if self._draining:
                self._close_if_answered()
            elif self._start != self._end and not self._taking:
                self.broker.loop.call_soon(self._resume)

    def go_on(self) -> None:
        """The request that held up the others is answered: take the next."""
        self._busy = False
        self._resume()

    def _resume(self) -> None:
        if not self.closed and not self._taking:
            self._take_requests()

    def flush(self) -> None:
        """Send the answers whose turn it is."""
        if self._sending or self.closed:
            return
        out: list[bytes] = []
        while self.slots and (pieces := self.slots[0].pieces) is not None:
            self.slots.popleft()
            for number, piece in enumerate(pieces):
                if isinstance(piece, bytes):
                    out.append(piece)
                    continue
                self._write(out)
                out = []
                rest = self._send_directly(piece)
                if rest.length:
                    self._sending = True
                    self._rest = [rest, *pieces[number + 1 :]]
                    self._send_rest()
                    return
        self._write(out)

    def _write(self, out: list[bytes]) -> None:
        if out:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _send_directly(self, piece: Slice) -> Slice:
        """Hand the records to the socket without touching them, as much as it takes now; gives what is left."""
        position, length = piece.position, piece.length
        if self._transport.get_write_buffer_size() == 0 and not self._transport.is_closing():
            try:
                while length:
                    sent = os.sendfile(self._socket_fd, piece.file.fd, position, length)
                    if sent == 0:
                        break
                    position += sent
                    length -= sent
            except OSError:
                # A full socket, or a dead one: the slow way waits for the one and notices the other.
                pass
        return piece._replace(position=position, length=length)

    def _send_rest(self) -> None:
        """Go on with an answer that the socket would not take at once; `resume_writing` calls again when it takes more.

        A little goes through the transport, only so that it tells us when that is gone; the bulk again goes directly.
        """
        self._transport.set_write_buffer_limits(high=0)
        while self._rest:
            if self._transport.is_closing():
                return
            piece = self._rest.pop(0)
            if isinstance(piece, bytes):
                self._transport.write(piece)
                continue
            piece = self._send_directly(piece)
            if not piece.length:
                continue
            some = os.pread(piece.file.fd, min(piece.length, SENDFILE_FROM_BYTES), piece.position)
            if not some:
                self.close("a segment ended before its records")
                return
            self._rest.insert(0, piece._replace(position=piece.position + len(some), length=piece.length - len(some)))
            self._transport.write(some)
            if self._transport.get_write_buffer_size():
                return
        self._sending = False
        self._transport.set_write_buffer_limits(high=self.broker.limits.unsent_bytes)
        self.flush()
        if self._draining:
            self._close_if_answered()
        elif not self._busy:
            self.go_on()

    def has_been_idle_since(self, latest_s: float) -> bool:
        """Whether the client has got nothing done for so long, and it is not we who keep it waiting."""
        waits_for_us = bool(self.slots) and self.slots[0].pieces is None
        return self.last_active_s < latest_s and not waits_for_us

    def drain(self) -> None:
        """Take no further request, and close once those that were taken are answered. Who waits for records may go."""
        self._draining = True
        self._transport.pause_reading()
        if self.on_lost is not None:
            self.close(SHUTTING_DOWN)
        else:
            self._close_if_answered()

    def _close_if_answered(self) -> None:
        if not (self.slots or self._sending or self.closed):
            self._transport.close()

    def close(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            logger.info("closed the connection of %s: %s", self.host, reason, extra={"host": self.host})
            self._transport.abort()
