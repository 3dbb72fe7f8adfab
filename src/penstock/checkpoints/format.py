"""Checkpoints and history entries as bytes, for stores of bytes.

A version, a checksum over everything that follows, and a msgpack array. Everything is verified when read: a damaged
checkpoint is an error, never a guess, because a wrong one loses records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
from crc32c import crc32c

from penstock.checkpoints.runs import decode_runs, encode_runs
from penstock.errors import CorruptCheckpointError
from penstock.model import Checkpoint, CheckpointKey, Claim, Failing, HistoryEntry, Pointer, Status

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


def encode_history(happenings: Sequence[HistoryEntry]) -> bytes:
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
            for each in happenings
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
