"""What a sender and a listener with answers say to each other, as bytes: frames of records, and one answer to each.

A request is a frame; the number of its first record identifies it. The answer is `ANSWER`, then a MessagePack array:
that number, whether every record is stored, and if not, the reason and whether sending again may help.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import msgspec

from penstock.channels.answers import Refusal
from penstock.errors import BrokerUnavailableError, PenstockError, StreamError

ANSWER: Final = b"\xc1PA\x01"
PLAIN_STORED: Final = b"OK"
"""The answer to a request that is not a frame of ours."""
PLAIN_REFUSED: Final = {True: b"AGAIN ", False: b"REFUSED "}
"""How the answer begins to a request that is not a frame, before the reason."""


class Answer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    number: int
    stored: bool
    reason: str = ""
    again: bool = False


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Answer)


def encode_answer(number: int | None, refusal: Refusal | None) -> bytes:
    """The answer to the request with this number; None: to one that is not a frame."""
    if number is None:
        return PLAIN_STORED if refusal is None else PLAIN_REFUSED[refusal.again] + refusal.reason.encode()
    if refusal is None:
        return ANSWER + _encoder.encode(Answer(number, True))
    return ANSWER + _encoder.encode(Answer(number, False, refusal.reason, refusal.again))


def decode_answer(data: bytes) -> Answer:
    """StreamError for what is not an answer."""
    if not data.startswith(ANSWER):
        raise StreamError(f"the peer answered {data[:40]!r}, which is not an answer of a Penstock channel")
    try:
        return _decoder.decode(memoryview(data)[len(ANSWER) :])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StreamError(f"an answer of {len(data)} bytes is damaged: {error}") from error


class Waiting:
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
                self._refusal = refusal
            if not self._left:
                self._done.set()

    def fail(self, error: PenstockError) -> None:
        """End the wait."""
        with self._lock:
            self._error = self._error or error
            self._done.set()

    def wait(self, until_s: float, timeout_s: float, shown: str) -> None:
        """Return when every request is answered, or raise what `abc.Channel.send` promises."""
        if not self._done.wait(max(0.0, until_s - time.monotonic())):
            raise BrokerUnavailableError(
                f"{shown} did not answer within {timeout_s:g} s: nobody listens there, or the listener is slow. "
                "Whether it has the records is unknown"
            )
        if self._error is not None:
            raise self._error
        if self._refusal is not None:
            raise self._refusal.error(shown)
