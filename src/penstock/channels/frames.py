"""Records as bytes on the wire of a channel, and gaps in what a sender sent.

A frame is `MAGIC`, then a MessagePack array: the sender's name, the number of the first record, and the records, each
an array of value, key, headers and timestamp_ms. A sender has a random name and numbers its records from 0, so that a
listener sees how many are missing. Programs in any language can write it.
"""

from __future__ import annotations

import collections
import itertools
import os
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.errors import RecordTooLargeError, StreamError
from penstock.model import Headers, NewRecord, Record

USUAL_BYTES: Final = 64 << 10
"""One frame holds about this many bytes of records, if a call of `send` has enough."""
MAGIC: Final = b"\xc1PS\x01"
"""0xc1 begins no MessagePack value and is never part of UTF-8 text. The last byte is the version."""
_OVERHEAD_BYTES: Final = 64
"""What a frame takes at most beyond its records."""
_MOST_SENDERS: Final = 10_000


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One record of a frame."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """Records under way."""

    sender: bytes
    number: int
    """Of its first record."""
    records: tuple[Entry, ...]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Frame)


class FrameWriter:
    """Numbers the records of one sender, and makes frames of them. The caller holds a lock."""

    def __init__(self) -> None:
        self.sender = os.urandom(8)
        self.number = 0

    def frames(
        self, records: Sequence[NewRecord], most_bytes: int, usual_bytes: int = USUAL_BYTES
    ) -> list[tuple[int, bytes]]:
        """Frames of these records with their numbers, of about `usual_bytes`, or more where one record is larger.

        RecordTooLargeError if a frame of one record has more than `most_bytes`; then nothing is counted. A record
        without a time gets that of now.
        """
        now_ms = time.time_ns() // 1_000_000
        number = self.number
        frames: list[tuple[int, bytes]] = []
        entries: list[Entry] = []
        size_bytes = 0
        for record in records:
            entry_bytes = _size_bytes(record)
            if entries and size_bytes + entry_bytes > usual_bytes:
                frames.append((number, self._frame(number, entries, most_bytes)))
                number += len(entries)
                entries, size_bytes = [], 0
            stamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
            entries.append(Entry(record.value, record.key, record.headers, stamp_ms))
            size_bytes += entry_bytes
        if entries:
            frames.append((number, self._frame(number, entries, most_bytes)))
        self.number += len(records)
        return frames

    def _frame(self, number: int, entries: list[Entry], most_bytes: int) -> bytes:
        frame = MAGIC + _encoder.encode((self.sender, number, entries))
        if len(frame) > most_bytes:
            raise RecordTooLargeError(
                f"a record of {len(frame)} bytes is larger than the {most_bytes} bytes that the channel carries: send "
                "less in one record, or raise max_message_bytes on both sides"
            )
        return frame


def _size_bytes(record: NewRecord) -> int:
    size_bytes = _OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        size_bytes += len(name) + len(value or b"") + 8
    return size_bytes


def decode(data: bytes) -> Frame | None:
    """The frame in a message; None if it is not one of ours. StreamError for a damaged frame."""
    if not data.startswith(MAGIC):
        return None
    try:
        return _decoder.decode(memoryview(data)[len(MAGIC) :])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StreamError(f"a frame of {len(data)} bytes is damaged: {error}") from error


class SequenceGaps:
    """How many records of each sender are missing. One thread uses it."""

    def __init__(self) -> None:
        self._next: collections.OrderedDict[bytes, int] = collections.OrderedDict()

    def seen(self, frame: Frame) -> int:
        """How many records between this sender's last frame and this one did not arrive.

        Nothing is known about records before the first frame that arrived. A lower number than before is a frame that
        arrived late or twice; it does not count.
        """
        expected = self._next.get(frame.sender)
        if expected is None:
            if len(self._next) >= _MOST_SENDERS:
                self._next.popitem(last=False)
        elif frame.number < expected:
            return 0
        self._next[frame.sender] = frame.number + len(frame.records)
        self._next.move_to_end(frame.sender)
        return 0 if expected is None else frame.number - expected


class FrameReader:
    """Makes records of one channel's messages, numbers them, and counts lost ones. For one thread."""

    def __init__(self, topic: str, *, is_plain: bool) -> None:
        """`topic` is the name of the channel. With `is_plain`, no message is read as a frame."""
        self._topic = topic
        self._is_plain = is_plain
        self._offsets = itertools.count()
        self._gaps = SequenceGaps()
        self.lost = 0

    def read(self, message: bytes, key: bytes | None = None, headers: Headers = ()) -> list[Record]:
        """The records of a frame; or one record with this key and these headers, if the message is not a frame.

        StreamError for a damaged frame. The numbers of the next frame show how many records it had.
        """
        frame = None if self._is_plain else decode(message)
        topic, offsets = self._topic, self._offsets
        if frame is None:
            return [Record(topic, 0, next(offsets), key, message, headers)]
        self.lost += self._gaps.seen(frame)
        return [
            Record(topic, 0, next(offsets), each.key, each.value, each.headers, each.timestamp_ms)
            for each in frame.records
        ]
