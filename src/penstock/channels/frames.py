"""Records as bytes on the wire of a channel, and gaps in what a sender sent.

A frame is `MAGIC`, then a MessagePack array: sender, number, value, key, headers, timestamp_ms. A sender has a random
name and numbers its frames from 0, so that a listener sees what is missing. Programs in any language can write it.
"""

from __future__ import annotations

import collections
import os
import time
from typing import Final

import msgspec

from penstock.errors import StreamError
from penstock.model import Headers, NewRecord

MAGIC: Final = b"\xc1PS\x01"
"""0xc1 begins no MessagePack value, no UTF-8 text and no JSON. The last byte is the version."""
_MOST_SENDERS: Final = 10_000


class Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One record under way."""

    sender: bytes
    number: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Frame)


def new_sender() -> bytes:
    """A name for a sender that no other has."""
    return os.urandom(8)


def encode(record: NewRecord, sender: bytes, number: int) -> bytes:
    """The frame of a record. A record without a time gets that of now."""
    stamp_ms = time.time_ns() // 1_000_000 if record.timestamp_ms is None else record.timestamp_ms
    frame = Frame(sender, number, record.value, record.key, record.headers, stamp_ms)
    return MAGIC + _encoder.encode(frame)


def is_frame(data: bytes) -> bool:
    return data[:4] == MAGIC


def decode(data: bytes) -> Frame:
    """StreamError for what is not a frame."""
    if not is_frame(data):
        raise StreamError(f"a message that begins with {data[:8]!r} is not a frame of Penstock")
    try:
        return _decoder.decode(memoryview(data)[4:])
    except msgspec.DecodeError as error:
        raise StreamError(f"a frame of {len(data)} bytes is damaged: {error}") from error


class SequenceGaps:
    """How many frames of each sender are missing. One thread uses it."""

    def __init__(self) -> None:
        self._next: collections.OrderedDict[bytes, int] = collections.OrderedDict()

    def seen(self, sender: bytes, number: int) -> int:
        """How many frames between the last one of this sender and this one did not arrive.

        Nothing is known about what was sent before the first frame that arrived. A number that goes back is a frame
        that arrived late or twice, and counts nothing.
        """
        expected = self._next.get(sender)
        if expected is None:
            if len(self._next) >= _MOST_SENDERS:
                self._next.popitem(last=False)
        elif number < expected:
            return 0
        self._next[sender] = number + 1
        self._next.move_to_end(sender)
        return 0 if expected is None else number - expected
