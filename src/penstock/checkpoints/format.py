"""Checkpoints and lines of history as bytes, for stores that keep bytes.

A version, a checksum over everything that follows, and a msgpack array. What is read is checked before it is believed:
a checkpoint that is damaged is an error, never a guess, because a wrong one loses records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
from crc32c import crc32c

from penstock.checkpoints.runs import decode_runs, encode_runs
from penstock.errors import CorruptCheckpointError
from penstock.model import Checkpoint, CheckpointKey, Claim, Failing, Happening, Pointer, Status

__all__ = [
    "corrupt",
    "decode_checkpoint",
    "decode_happenings",
    "decode_runs",
    "encode_checkpoint",
    "encode_happenings",
    "encode_runs",
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
"""A number as msgpack holds it; what does not fit is bytes, big end first, with a sign."""


class _Failing(msgspec.Struct, array_like=True, gc=False):
    pointer: Number
    attempts: int
    error: str
    first_ms: int
    last_ms: int


class _Claim(msgspec.Struct, array_like=True, gc=False):
    first: Number
    end: Number
    owner: str
    number: int
    attempt: int
    lasts_ms: int


class _Checkpoint(msgspec.Struct, array_like=True, gc=False):
    start: Number
    next: Number
    finished: bytes
    failing: list[_Failing]
    restarts: int
    processed: int
    delivered: int
    saved_ms: int
    claims: list[_Claim]


class _Happening(msgspec.Struct, array_like=True, gc=False):
    first: Number
    end: Number
    status: Status
    attempt: int
    error: str
    begun_ms: int
    ended_ms: int
    owner: str
    handler: str


Body = TypeVar("Body")


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The checkpoint in bytes. Any number of runs, and pointers of any size."""
    start = checkpoint.start
    failing = [
        _Failing(number_of(each.pointer), each.attempts, storable(each.error), each.first_ms, each.last_ms)
        for each in checkpoint.failing
    ]
    return _sealed(
        _Checkpoint(
            number_of(start),
            number_of(checkpoint.next),
            encode_runs(checkpoint.finished, start),
            failing,
            checkpoint.restarts,
            checkpoint.processed,
            checkpoint.delivered,
            checkpoint.saved_ms,
            [
                _Claim(number_of(each.first), number_of(each.end), each.owner, each.number, each.attempt, each.lasts_ms)
                for each in checkpoint.claims
            ],
        )
    )


def decode_checkpoint(data: bytes, key: CheckpointKey) -> Checkpoint:
    """What `encode_checkpoint` was given. CorruptCheckpointError names the key, and says what to do."""
    try:
        body = _opened(data, _CHECKPOINT)
        start = pointer_of(body.start)
        return Checkpoint(
            start,
            pointer_of(body.next),
            decode_runs(body.finished, start),
            tuple(
                Failing(pointer_of(each.pointer), each.attempts, each.error, each.first_ms, each.last_ms)
                for each in body.failing
            ),
            body.restarts,
            body.processed,
            body.delivered,
            body.saved_ms,
            tuple(
                Claim(
                    pointer_of(each.first), pointer_of(each.end), each.owner, each.number, each.attempt, each.lasts_ms
                )
                for each in body.claims
            ),
        )
    except ValueError as error:
        raise corrupt(f"the checkpoint of {key}", str(error)) from error


def encode_happenings(happenings: Sequence[Happening]) -> bytes:
    """Lines of history in bytes, one piece for all of them."""
    return _sealed(
        [
            _Happening(
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


def decode_happenings(data: bytes, key: CheckpointKey) -> list[Happening]:
    """What `encode_happenings` was given."""
    try:
        return [
            Happening(
                pointer_of(each.first),
                pointer_of(each.end),
                each.status,
                each.attempt,
                each.error,
                each.begun_ms,
                each.ended_ms,
                each.owner,
                each.handler,
            )
            for each in _opened(data, _HAPPENINGS)
        ]
    except ValueError as error:
        raise corrupt(f"the history of {key}", str(error)) from error


def corrupt(what: str, reason: str) -> CorruptCheckpointError:
    """The error for something stored that cannot be trusted."""
    return CorruptCheckpointError(
        f"{what} is damaged: {reason}. Nothing is guessed: restore it from a copy, or forget the group in this store "
        "(store.forget(group)) and choose its start."
    )


def storable(text: str) -> str:
    """The text of an error as every store can keep it: what has no form in UTF-8, and NUL, are written as escapes.

    Half a surrogate pair stands in the message of many an OSError, for a file name that is not UTF-8.
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def number_of(pointer: Pointer) -> Number:
    """A pointer as msgpack can hold it."""
    if SMALLEST_NUMBER <= pointer <= LARGEST_NUMBER:
        return pointer
    return pointer.to_bytes(pointer.bit_length() // 8 + 1, "big", signed=True)


def pointer_of(number: Number) -> Pointer:
    """The pointer that `number_of` was given."""
    return number if isinstance(number, int) else int.from_bytes(number, "big", signed=True)


_encode: Final = msgspec.msgpack.Encoder().encode
_CHECKPOINT: Final = msgspec.msgpack.Decoder(_Checkpoint)
_HAPPENINGS: Final = msgspec.msgpack.Decoder(list[_Happening])


def _sealed(value: Any) -> bytes:
    body = _encode(value)
    return HEAD.pack(VERSION, crc32c(body, VERSION)) + body


def _opened(data: bytes, decoder: msgspec.msgpack.Decoder[Body]) -> Body:
    """ValueError says what is wrong."""
    if len(data) < HEAD.size:
        raise ValueError(f"it has {len(data)} bytes only")
    version, checksum = HEAD.unpack_from(data)
    body = memoryview(data)[HEAD.size :]
    if version != VERSION:
        raise ValueError(f"its version is {version}, and this program knows {VERSION} only")
    if crc32c(body, version) != checksum:
        raise ValueError("its checksum is wrong")
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"its contents do not fit: {error}") from error
