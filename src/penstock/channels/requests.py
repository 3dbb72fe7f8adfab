"""Senders and listeners with answers, without a transport: requests and answers as bytes, and who waits for them.

A request is a frame (`frames`); the number of its first record identifies it. The answer is `ANSWER`, then a
MessagePack array: that number, whether every record is stored, and if not, the reason and whether sending again may
help. A request of another program is one record, and is answered in plain text: `OK`, `AGAIN reason` or
`REFUSED reason`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.channels.answers import OpenRequests, Refusal
from penstock.channels.frames import FrameWriter, decode
from penstock.channels.receive_buffer import Arrived, ReceiveBuffer
from penstock.errors import BrokerUnavailableError, ConnectionClosedError, PenstockError, StreamError
from penstock.model import Headers, NewRecord, Record

ANSWER: Final = b"\xc1PA\x01"
PLAIN_STORED: Final = b"OK"
PLAIN_REFUSED: Final = {True: b"AGAIN ", False: b"REFUSED "}
"""How the answer to a plain request begins, before the reason, by whether sending again may help."""


class Answer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    number: int
    stored: bool
    reason: str = ""
    again: bool = False


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Answer)


def encode_answer(number: int | None, refusal: Refusal | None) -> bytes:
    """The answer to the request with this number; None for a request that is not a frame."""
    if number is None:
        return PLAIN_STORED if refusal is None else PLAIN_REFUSED[refusal.again] + refusal.reason.encode()
    if refusal is None:
        return ANSWER + _encoder.encode(Answer(number, True))
    return ANSWER + _encoder.encode(Answer(number, False, refusal.reason, refusal.again))


def decode_answer(data: bytes) -> Answer:
    """The answer in a message. StreamError if it is not one."""
    if not data.startswith(ANSWER):
        raise StreamError(f"the peer answered {data[:40]!r}, which is not an answer of a Penstock channel")
    try:
        return _decoder.decode(memoryview(data)[len(ANSWER) :])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StreamError(f"an answer of {len(data)} bytes is damaged: {error}") from error


class RequestInbox:
    """Requests that arrived, until each is answered. One thread receives; any thread answers."""

    def __init__(self, name: str, capacity: int, *, is_plain: bool) -> None:
        """`name` is that of the channel, `capacity` how many records wait for `take`. `frames` explains `is_plain`."""
        self._is_plain = is_plain
        self._buffer = ReceiveBuffer(name, capacity)
        self._requests = OpenRequests()
        self.take = self._buffer.take
        self.settle = self._requests.settle
        self.report = self._buffer.report
        self.close = self._buffer.close

    def put(
        self,
        message: bytes,
        answer: Callable[[bytes], None],
        *,
        key: bytes | None = None,
        headers: Headers = (),
        wait_s: float = 0.0,
    ) -> bool:
        """Add a request, which `answer` answers later. False if there was no room within `wait_s`: the caller keeps
        it. Key and headers are for a message that is not a frame."""
        try:
            frame = None if self._is_plain else decode(message)
        except StreamError as error:
            answer(encode_answer(None, Refusal(str(error), again=False)))
            return True
        number = None if frame is None else frame.number
        arrived: list[Arrived] = [(message, key, headers, None)]
        if frame is not None:
            arrived = [(each.value, each.key, each.headers, each.timestamp_ms) for each in frame.records]
        if not arrived:
            answer(encode_answer(number, None))
            return True

        def reply(refusal: Refusal | None) -> None:
            answer(encode_answer(number, refusal))

        def before(records: Sequence[Record]) -> None:
            self._requests.add(records, reply)

        return self._buffer.put_request(arrived, before, wait_s)


class RequestOutbox:
    """Requests that were sent and wait for their answers. Thread-safe."""

    def __init__(self, shown: str, max_message_bytes: int, answer_timeout_s: float) -> None:
        """`shown` is the address, for messages."""
        self._shown = shown
        self._max_message_bytes = max_message_bytes
        self._answer_timeout_s = answer_timeout_s
        self._writer = FrameWriter()
        self._lock = threading.Lock()
        self._waiting: dict[int, _Call] = {}
        """By the number of the request."""
        self._sent: set[int] = set()
        """The numbers of requests that the transport has taken."""
        self._closed = False

    def send(self, records: Sequence[NewRecord], transmit: Callable[[int, bytes, float], None]) -> None:
        """`abc.Channel.send`: make requests, have each transmitted, and wait for the answers.

        `transmit` gets the number of a request, the request, and until when to try. It may return before it has taken
        effect, or raise what `send` may raise.
        """
        until_s = time.monotonic() + self._answer_timeout_s
        with self._lock:
            if self._closed:
                raise ConnectionClosedError(f"the channel {self._shown} is closed")
            frames = self._writer.frames(records, self._max_message_bytes)
            call = _Call(len(frames))
            self._waiting.update((number, call) for number, _ in frames)
        try:
            for number, frame in frames:
                transmit(number, frame, until_s)
            call.wait(until_s, self._answer_timeout_s, self._shown)
        finally:
            with self._lock:
                for number, _ in frames:
                    self._waiting.pop(number, None)
                    self._sent.discard(number)

    def is_wanted(self, number: int) -> bool:
        """Whether somebody still waits for the answer to this request. If so, it counts as transmitted from now on."""
        with self._lock:
            if number in self._waiting:
                self._sent.add(number)
            return number in self._waiting

    def answered(self, data: bytes) -> None:
        """Take an answer. One that comes too late is ignored. StreamError for a message that is not an answer."""
        answer = decode_answer(data)
        with self._lock:
            call = self._waiting.pop(answer.number, None)
            self._sent.discard(answer.number)
        if call is not None:
            call.answered(answer)

    def lose_connection(self) -> None:
        """Fail the requests that the only peer got: it is gone, and will not answer."""
        self._fail(
            BrokerUnavailableError(
                f"the connection to {self._shown} was lost before an answer came: whether the listener has the records "
                "is unknown"
            ),
            only_sent=True,
        )

    def close(self) -> None:
        self._closed = True
        self._fail(
            ConnectionClosedError(f"the channel {self._shown} was closed before an answer came"), only_sent=False
        )

    def _fail(self, error: PenstockError, *, only_sent: bool) -> None:
        with self._lock:
            calls = {id(call): call for number, call in self._waiting.items() if number in self._sent or not only_sent}
        for call in calls.values():
            call.fail(error)


class _Call:
    """A call of `send` that waits for the answers to its requests."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._refusal: Refusal | None = None
        self._error: PenstockError | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()

    def answered(self, answer: Answer) -> None:
        refusal = None if answer.stored else Refusal(answer.reason, answer.again)
        with self._lock:
            self._left -= 1
            if refusal is not None and (self._refusal is None or self._refusal.again):
                self._refusal = refusal  # one that is final outweighs one that is not
            if not self._left:
                self._done.set()

    def fail(self, error: PenstockError) -> None:
        with self._lock:
            self._error = self._error or error
            self._done.set()

    def wait(self, until_s: float, timeout_s: float, shown: str) -> None:
        if not self._done.wait(max(0.0, until_s - time.monotonic())):
            raise BrokerUnavailableError(
                f"{shown} did not answer within {timeout_s:g} s: nobody listens there, or the listener is slow. "
                "Whether it has the records is unknown"
            )
        if self._error is not None:
            raise self._error
        if self._refusal is not None:
            raise self._refusal.error(shown)
