"""One client connection: requests in, responses out, in order, within limits.

Requests are parsed in the receive buffer. They are processed one after the other, as the protocol promises; only a
Produce may be processed while earlier ones still wait for the disk, so that a client can have several in flight. If a
client sends faster than it is answered, or does not read its responses, nothing more is read from it: its data wait in
its own socket, without effect on others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import code_of
from penstock.broker.request import SLICE_S, Fields, Request, run_in_slices, run_slice
from penstock.broker.versions import FETCH, FLEXIBLE_HEADERS, PRODUCE, SUPPORTED, refuse
from penstock.broker.wire.primitives import MalformedRequestError, skip_tags
from penstock.broker.wire.schema import API_VERSIONS, decode_request
from penstock.errors import PenstockError
from penstock.log.lookup import Slice

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)

BUFFER_BYTES: Final = 256 * 1024
FIRST_BUFFER_BYTES: Final = 8 * 1024
"""The initial buffer of a connection. All connections share what they need beyond that: `RequestMemory`."""
LARGE_REQUEST_BYTES: Final = 16 * 1024
"""From this size on, a request is decoded, and its response encoded, outside of the event loop."""
LENGTH_BYTES: Final = 4
SENDFILE_FROM_BYTES: Final = 16 * 1024
"""Shorter runs of records are faster to read and write than to sendfile."""
_HEADER: Final = struct.Struct(">hhih")
_SHORTEST_REQUEST: Final = 8
SHUTTING_DOWN: Final = "the broker is shutting down"


class ResponseSlot:
    """The place of one response in a connection: responses leave in the order of the requests."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[bytes | Slice] | None = None


class Connection(asyncio.BufferedProtocol):
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.slots: deque[ResponseSlot] = deque()
        self.host = "?"
        self.last_active_s = 0.0
        self.closed = False
        self.on_lost: Callable[[], None] | None = None
        """Cancels a request that waits for records, if there is one."""
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

    # asyncio callbacks.

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
        self.broker.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.broker.forget(self)
        self.broker.request_memory.give_back(self)
        if self.on_lost is not None:
            self.on_lost()
        self._rest.clear()
        if self._task is not None:
            self._task.cancel()
        # Free the buffer now, whatever still refers to this connection.
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
        # Not from inside of this callback: where a write fails in it, asyncio loses the connection twice.
        self.broker.loop.call_soon(self._send_rest if self._sending else self._resume)

    # Reading requests.

    def _take_requests(self) -> None:
        self._taking = True
        try:
            while self._take_round():
                pass
        finally:
            self._taking = False
        if not self.closed:
            self._make_room()

    def _take_round(self) -> bool:
        """Take requests that may be processed together. True if they are answered, so that others can continue."""
        first = self._start
        until_s = self.broker.clock.monotonic_s() + SLICE_S
        try:
            while not self.closed and self._may_go_on():
                if self.last_active_s > until_s:
                    # Let other connections run before the next request of this client.
                    self.broker.loop.call_soon(self._resume)
                    return False
                available = self._end - self._start
                if available < LENGTH_BYTES:
                    break
                length = int.from_bytes(self._view[self._start : self._start + LENGTH_BYTES], "big", signed=True)
                if not _SHORTEST_REQUEST <= length <= self.broker.limits.max_request_bytes:
                    self.close(f"a request of {length} bytes (socket.request.max.bytes)")
                    break
                if length > self.broker.limits.other_request_bytes and self._is_no_produce(available):
                    self.close(f"a request of {length} bytes other than Produce (other.request.max.bytes)")
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

    def _is_no_produce(self, available: int) -> bool:
        key = self._view[self._start + LENGTH_BYTES : self._start + min(available, LENGTH_BYTES + 2)]
        return len(key) == 2 and int.from_bytes(key, "big") != PRODUCE

    def _may_overtake(self, frame: memoryview) -> bool:
        """Whether a request may start now. A Produce need not wait for the responses of earlier ones."""
        return frame[0] == 0 and frame[1] == PRODUCE

    def _make_room(self) -> None:
        """Move the rest to the front, or into a larger buffer if needed; resume reading if there is room."""
        if self._draining:
            return
        size, left = len(self._buffer), self._end - self._start
        filled = self._end == size
        needs_more = filled and self._start == 0 and self._may_go_on() and not self.slots
        if filled and size < BUFFER_BYTES and self._grow(BUFFER_BYTES, wait=needs_more):
            pass
        elif left == 0:
            self._start = self._end = 0
            if size > BUFFER_BYTES:
                self._shrink()
        elif filled and self._start:
            self._view[:left] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, left
        elif needs_more and size >= BUFFER_BYTES:
            length = int.from_bytes(self._view[:LENGTH_BYTES], "big")
            self._grow(min(2 * size, LENGTH_BYTES + length), wait=True)
        full = self._end == len(self._buffer)
        if full and self._reading:
            self._reading = False
            self._transport.pause_reading()
        elif not full and not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _grow(self, size: int, *, wait: bool) -> bool:
        granted = self.broker.request_memory.take(self, size - len(self._buffer), wait=wait)
        if granted:
            self._replace_buffer(size)
        return granted

    def _shrink(self) -> None:
        """Release the memory of a long request; keep what a busy connection needs, if there is enough."""
        memory = self.broker.request_memory
        memory.give_back(self)
        keeps = memory.take(self, BUFFER_BYTES - FIRST_BUFFER_BYTES, wait=False)
        self._replace_buffer(BUFFER_BYTES if keeps else FIRST_BUFFER_BYTES)

    def give_back_unused(self) -> None:
        if self._start == self._end and not self._taking:
            self._replace_buffer(FIRST_BUFFER_BYTES)
            self.broker.request_memory.give_back(self)

    def memory_free(self) -> None:
        if not self.closed:
            self._make_room()

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
            if position > len(frame):
                raise MalformedRequestError("the client id reaches past its end")
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
                body: Any = bytes(frame[position:])
                large = len(body) >= LARGE_REQUEST_BYTES
                if not large:
                    body = decode_request(api_key, version, body, self.broker.limits.request_entries)
                request = Request(api_key, version, correlation_id, client_id, self.host, body)
                self.broker.produce.finish_round()
                if large:
                    self._wait_for(self.reserve(), request, self.broker.answer_large(request))
                else:
                    self._answer(request)
        except (MalformedRequestError, IndexError, struct.error, ValueError) as error:
            self._close_malformed(api_key, version, error)

    def _close_malformed(self, api_key: int, version: int, error: Exception) -> None:
        self.close(f"a malformed request (API {api_key} version {version}): {error}")

    def _refuse(self, api_key: int, version: int, correlation_id: int) -> None:
        answer = refuse(api_key, version, correlation_id)
        if answer is None:
            self.close(f"it sent API {api_key} version {version}, which this broker does not have")
            return
        # Clients probe for the highest version of ApiVersions: that is not an error.
        if api_key != API_VERSIONS:
            self.broker.client_errors.warn(
                self.host, f"refused API {api_key} version {version}, which this broker does not have"
            )
        self.complete(self.reserve(), [answer])

    # Slow responses.

    def _answer(self, request: Request) -> None:
        slot = self.reserve()
        try:
            result = self.broker.handlers[request.api_key](self.broker, request)
            if isinstance(result, Generator):
                fields = run_slice(result)
                result = run_in_slices(result) if fields is None else fields
        except Exception as error:
            self._fail(slot, request, error)
            return
        if isinstance(result, Awaitable):
            self._wait_for(slot, request, result)
        else:
            self._send_fields(slot, request, result)

    def _wait_for(self, slot: ResponseSlot, request: Request, result: Awaitable[Fields | bytes]) -> None:
        self._busy = True
        self._task = asyncio.ensure_future(result)
        self._task.add_done_callback(lambda task: self._answered(slot, request, task))

    def _answered(self, slot: ResponseSlot, request: Request, task: asyncio.Future[Fields | bytes]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, MalformedRequestError):
            self._close_malformed(request.api_key, request.version, error)
            return
        if error is not None:
            self._fail(slot, request, error)
        else:
            self._send_fields(slot, request, task.result())
        self.go_on()

    def _send_fields(self, slot: ResponseSlot, request: Request, fields: Fields | bytes) -> None:
        try:
            answer = fields if isinstance(fields, bytes) else request.encoded(fields)
        except Exception as error:
            self._fail(slot, request, error)
            return
        self.complete(slot, [answer])

    def _fail(self, slot: ResponseSlot, request: Request, error: BaseException) -> None:
        what = f"API {request.api_key} version {request.version}"
        if isinstance(error, PenstockError):
            self.broker.client_errors.warn(self.host, f"refused {what}: {error}")
        else:
            self.broker.client_errors.failed(self.host, f"{what} failed", error)
        answer = refuse(request.api_key, request.version, request.correlation_id, code_of(error), str(error))
        if answer is None:
            self.close(f"{what} failed, and its response has no error field")
        else:
            self.complete(slot, [answer])

    # Sending.

    def reserve(self) -> ResponseSlot:
        slot = ResponseSlot()
        self.slots.append(slot)
        return slot

    def complete(self, slot: ResponseSlot, pieces: list[bytes | Slice]) -> None:
        slot.pieces = pieces
        self.advance()

    def advance(self) -> None:
        """Send the responses that are ready, and continue with requests that waited for them."""
        if self.slots and self.slots[0].pieces is not None:
            self.flush()
            if self._draining:
                self._close_if_answered()
            elif self._start != self._end and not self._taking:
                self.broker.loop.call_soon(self._resume)

    def go_on(self) -> None:
        """Continue with the next request: the one that blocked it is answered."""
        self._busy = False
        self._resume()

    def _resume(self) -> None:
        if not self.closed and not self._taking:
            self._take_requests()

    def flush(self) -> None:
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
        """Send records with sendfile, as much as the socket accepts now; returns what is left."""
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
                # The socket is full or dead: the slow path waits for the one and notices the other.
                pass
        return piece._replace(position=position, length=length)

    def _send_rest(self) -> None:
        """Continue a response that the socket did not accept at once; `resume_writing` calls this again. A little goes
        through the transport, so that it signals when that is sent; the bulk goes directly."""
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

    @property
    def has_open_requests(self) -> bool:
        """Whether it waits for a response, which includes long polls and rebalances."""
        return bool(self.slots) or self._busy

    def has_been_idle_since(self, latest_s: float) -> bool:
        """Whether the client completed nothing for this long, although the broker did not keep it waiting."""
        waits_for_us = bool(self.slots) and self.slots[0].pieces is None
        return self.last_active_s < latest_s and not waits_for_us

    def drain(self) -> None:
        """Accept no further request, and close once the accepted ones are answered. Long polls end."""
        self._draining = True
        self._transport.pause_reading()
        if self.on_lost is not None:
            self.close(SHUTTING_DOWN, routine=True)
        else:
            self._close_if_answered()

    def _close_if_answered(self) -> None:
        if not (self.slots or self._sending or self.closed):
            self._transport.close()

    def close(self, reason: str, *, routine: bool = False) -> None:
        """Close the connection. Unless it is `routine`, something went wrong: log a warning."""
        if not self.closed:
            self.closed = True
            if routine:
                logger.info("closed the connection of %s: %s", self.host, reason, extra={"host": self.host})
            else:
                self.broker.client_errors.warn(self.host, f"closed the connection: {reason}")
            self._transport.abort()
