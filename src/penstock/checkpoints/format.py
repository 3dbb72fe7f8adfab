"""Checkpoints and history entries as bytes, for stores of bytes.

A version, a checksum over everything that follows, and a msgpack array. Everything is verified when read: a damaged
checkpoint is an error, never a guess, because a wrong one loses records.
"""

from __future__ import annotations

import itertools
import operator
import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import cramjam
import msgspec
from crc32c import crc32c

from penstock.errors import CorruptCheckpointError
from penstock.model import Checkpoint, CheckpointKey, Claim, Failing, HistoryEntry, Pointer, Runs, Status

# Runs of finished pointers have three forms, distinguished by the first byte; no runs are no bytes. Distances (gap,
# length, gap, length ...) as msgpack, which stores small numbers in one byte; the same with gaps and lengths separated
# and compressed, where there are many; and a compressed bitmap, where finished and unfinished records are so mixed that
# it is smaller.
PLAIN: Final = b"\x00"
COMPRESSED: Final = b"\x01"
BITMAP: Final = b"\x02"

MANY: Final = 64
"""From this many runs on, compression pays."""
BITMAP_GAIN: Final = 0.9
"""A bitmap takes longer to encode and decode, so it must be smaller by this factor."""

Distances = list[int | bytes]


def encode_runs(runs: Runs, base: Pointer = 0) -> bytes:
    """Encode runs as distances from `base`, which must not be after the first of them."""
    if not runs:
        return b""
    edges = list(itertools.chain.from_iterable(runs))
    distances = list(map(operator.sub, edges, itertools.chain((base,), edges)))
    if max(distances) > LARGEST_NUMBER:
        return _compress(COMPRESSED, _packed_wide(distances))
    if len(runs) < MANY:
        return PLAIN + msgspec.msgpack.encode(distances)
    apart = _compress(COMPRESSED, msgspec.msgpack.encode((distances[::2], distances[1::2])))
    span = edges[-1] - edges[0]
    if span // 8 < len(apart) * BITMAP_GAIN:
        bitmap = BITMAP + msgspec.msgpack.encode(edges[0] - base) + _bitmap(distances, span)
        return min(apart, bitmap, key=len)
    return apart


def decode_runs(data: bytes, base: Pointer = 0) -> Runs:
    """Decode runs. ValueError for invalid bytes."""
    if not data:
        return ()
    form, payload = data[:1], data[1:]
    try:
        if form == PLAIN:
            distances: Sequence[int] = _PLAIN.decode(payload)
        elif form == COMPRESSED:
            distances = _interleaved(*_APART.decode(bytes(cramjam.zstd.decompress(payload))))
        elif form == BITMAP:
            return _runs_in_bitmap(payload, base)
        else:
            raise ValueError(f"unknown form of runs {form!r}")
    except (msgspec.MsgspecError, cramjam.DecompressionError) as error:
        raise ValueError(f"the runs cannot be read: {error}") from error
    if len(distances) % 2:
        raise ValueError("the last run has no end")
    edges = itertools.islice(itertools.accumulate(distances, initial=base), 1, None)
    return tuple(zip(edges, edges, strict=True))


_PLAIN: Final = msgspec.msgpack.Decoder(list[int])
_APART: Final = msgspec.msgpack.Decoder(tuple[Distances, Distances])
_ONES: Final = re.compile(rb"1+")


def _packed_wide(distances: list[int]) -> bytes:
    """Distances some of which are too large for msgpack numbers: those become bytes."""
    mixed: Distances = [each if each <= LARGEST_NUMBER else _bytes_of(each) for each in distances]
    return msgspec.msgpack.encode((mixed[::2], mixed[1::2]))


def _interleaved(gaps: Distances, lengths: Distances) -> list[int]:
    if len(gaps) != len(lengths):
        raise ValueError(f"there are {len(gaps)} gaps and {len(lengths)} lengths")
    return _numbers(itertools.chain.from_iterable(zip(gaps, lengths, strict=True)))


def _numbers(mixed: Iterable[int | bytes]) -> list[int]:
    return [int.from_bytes(each, "big") if isinstance(each, bytes) else each for each in mixed]


def _bytes_of(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def _compress(form: bytes, payload: bytes) -> bytes:
    return form + bytes(cramjam.zstd.compress(payload, 1))


def _bitmap(distances: list[int], span: int) -> bytes:
    """The bits from the first run to the last, with leading zeros to fill the first byte."""
    signs = itertools.cycle(("1", "0"))
    text = "".join(map(operator.mul, signs, distances[1:]))
    assert len(text) == span, "the runs do not add up"
    return bytes(cramjam.zstd.compress(int(text, 2).to_bytes((span + 7) // 8, "big"), 1))


def _runs_in_bitmap(payload: bytes, base: Pointer) -> Runs:
    gap_bytes = _size_of_number(payload)
    gap = msgspec.msgpack.decode(payload[:gap_bytes], type=int)
    bits = bytes(cramjam.zstd.decompress(payload[gap_bytes:]))
    # Leading zeros are not stored, so the text begins with the first finished record.
    text = format(int.from_bytes(bits, "big"), "b").encode()
    first = base + gap
    return tuple((first + match.start(), first + match.end()) for match in _ONES.finditer(text))


def _size_of_number(payload: bytes) -> int:
    """How many bytes the msgpack number at the beginning takes."""
    sizes = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
    return sizes.get(payload[0], 1) if payload else 1


__all__ = [
    "corrupt",
    "decode_checkpoint",
    "decode_history",
    "decode_runs",
    "encode_checkpoint",
    "encode_history",
    "encode_runs",
    "id_bytes",
    "number_of",
    "pointer_of",
    "storable",
]

VERSION: Final = 1
HEAD: Final = struct.Struct(">BI")
"""Version, and CRC-32C of the version and the body."""

SMALLEST_NUMBER: Final = -(1 << 63)
LARGEST_NUMBER: Final = (1 << 64) - 1

Number = int | bytes
"""A number as msgpack stores it; a number too large for it as signed big-endian bytes."""


_Failing = tuple[Number, int, str, int, int]
"""Pointer, attempts, error, first_ms, last_ms."""
_Claim = tuple[Number, Number, str, int, int, int]
"""First, end, owner, number, attempt, lasts_ms."""
_Checkpoint = tuple[Number, Number, bytes, list[_Failing], int, int, int, int, list[_Claim]]
"""Start, next, finished runs, failing, restarts, processed, delivered, saved_ms, claims."""
_History = list[tuple[Number, Number, Status, int, str, int, int, str, str]]
"""First, end, status, attempt, error, begun_ms, ended_ms, owner, handler of each entry."""

Body = TypeVar("Body")


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint with any number of runs, and pointers of any size."""
    start = checkpoint.start
    return _sealed(
        (
            number_of(start),
            number_of(checkpoint.next),
            encode_runs(checkpoint.finished, start),
            [
                (number_of(each.pointer), each.attempts, storable(each.error), each.first_ms, each.last_ms)
                for each in checkpoint.failing
            ],
            checkpoint.restarts,
            checkpoint.processed,
            checkpoint.delivered,
            checkpoint.saved_ms,
            [
                (number_of(each.first), number_of(each.end), each.owner, each.number, each.attempt, each.lasts_ms)
                for each in checkpoint.claims
            ],
        )
    )


def decode_checkpoint(data: bytes, key: CheckpointKey) -> Checkpoint:
    """Decode a checkpoint. CorruptCheckpointError names the key and says what to do."""
    try:
        first, after, finished, failing, restarts, processed, delivered, saved_ms, claims = _opened(data, _CHECKPOINT)
        start = pointer_of(first)
        return Checkpoint(
            start,
            pointer_of(after),
            decode_runs(finished, start),
            tuple(Failing(pointer_of(each[0]), *each[1:]) for each in failing),
            restarts,
            processed,
            delivered,
            saved_ms,
            tuple(Claim(pointer_of(each[0]), pointer_of(each[1]), *each[2:]) for each in claims),
        )
    except ValueError as error:
        raise corrupt(f"the checkpoint of {key}", str(error)) from error


def encode_history(history: Sequence[HistoryEntry]) -> bytes:
    """Encode history entries, all in one piece."""
    return _sealed(
        [
            (
                number_of(each.first),
                number_of(each.end),
                each.status,
                each.attempt,
                storable(each.error),
                each.begun_ms,
                each.ended_ms,
                each.owner,
                each.handler,
            )
            for each in history
        ]
    )


def decode_history(data: bytes, key: CheckpointKey) -> list[HistoryEntry]:
    try:
        entries = _opened(data, _HISTORY)
        return [HistoryEntry(pointer_of(each[0]), pointer_of(each[1]), *each[2:]) for each in entries]
    except ValueError as error:
        raise corrupt(f"the history of {key}", str(error)) from error


def corrupt(what: str, reason: str) -> CorruptCheckpointError:
    """The error for stored data that cannot be trusted."""
    return CorruptCheckpointError(
        f"{what} is damaged: {reason}. Restore it from a backup, or delete the group in this store "
        "(store.forget(group)) and choose its start."
    )


def storable(text: str) -> str:
    """An error text that every store can keep: NUL and what UTF-8 cannot encode are written as escapes.

    Messages of OSError contain lone surrogates for file names that are not UTF-8.
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def id_bytes(id: str) -> bytes:
    """An idempotency key, or another name, as bytes, whatever its characters."""
    return id.encode("utf-8", "surrogatepass")


def number_of(pointer: Pointer) -> Number:
    """A pointer as msgpack can store it."""
    if SMALLEST_NUMBER <= pointer <= LARGEST_NUMBER:
        return pointer
    return pointer.to_bytes(pointer.bit_length() // 8 + 1, "big", signed=True)


def pointer_of(number: Number) -> Pointer:
    """The pointer that `number_of` encoded."""
    return number if isinstance(number, int) else int.from_bytes(number, "big", signed=True)


_encode: Final = msgspec.msgpack.Encoder().encode
_CHECKPOINT: Final[msgspec.msgpack.Decoder[_Checkpoint]] = msgspec.msgpack.Decoder(_Checkpoint)
_HISTORY: Final[msgspec.msgpack.Decoder[_History]] = msgspec.msgpack.Decoder(_History)


def _sealed(value: Any) -> bytes:
    body = _encode(value)
    return HEAD.pack(VERSION, crc32c(body, VERSION)) + body


def _opened(data: bytes, decoder: msgspec.msgpack.Decoder[Body]) -> Body:
    """Verify and decode. ValueError says what is wrong."""
    if len(data) < HEAD.size:
        raise ValueError(f"it has only {len(data)} bytes")
    version, checksum = HEAD.unpack_from(data)
    body = memoryview(data)[HEAD.size :]
    if version != VERSION:
        raise ValueError(f"its version is {version}; this program supports only {VERSION}")
    if crc32c(body, version) != checksum:
        raise ValueError("its checksum is wrong")
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"its content is invalid: {error}") from error
