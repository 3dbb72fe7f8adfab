"""The entries of the Kafka store as records of its topic: each has a key, and a value in pieces that fit a record."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import msgspec
from crc32c import crc32c

from penstock.checkpoints.format import corrupt, id_bytes
from penstock.model import CheckpointKey, Handled, Lease

Entry = tuple[str | int | bytes, ...]
"""The kind of an entry, the group, and what identifies it among others of its kind."""

PIECE_BYTES: Final = 900_000
"""Kafka's brokers accept records of up to a million bytes by default."""
TOKEN_BYTES: Final = 16
_PIECE: Final = struct.Struct(">II")
"""How many pieces there are, and the CRC-32C of this one."""

LEASE: Final = "lease"
CHECKPOINT: Final = "checkpoint"
STATE: Final = "state"
HANDLED: Final = "handled"
_encode: Final = msgspec.msgpack.Encoder().encode
_LEASE: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes | None, int, int, int])
_HANDLED: Final = msgspec.msgpack.Decoder(list[tuple[bytes, int]])


def lease_entry(group: str, name: str) -> Entry:
    return (LEASE, group, name)


def checkpoint_entry(key: CheckpointKey) -> Entry:
    return (CHECKPOINT, key.group, key.topic, key.partition)


def state_entry(key: CheckpointKey, name: bytes) -> Entry:
    return (STATE, key.group, key.topic, key.partition, name)


def handled_entry(key: CheckpointKey, token: bytes) -> Entry:
    """The idempotency keys of one save."""
    return (HANDLED, key.group, key.topic, key.partition, token)


def lease_name_of(entry: Entry) -> str:
    """The name of the lease under which an entry is written."""
    if entry[0] == LEASE:
        return str(entry[2])
    return key_of(entry).lease_name


def key_of(entry: Entry) -> CheckpointKey:
    """The partition that an entry, other than a lease, is about."""
    _, group, topic, partition, *_ = entry
    assert isinstance(partition, int)
    return CheckpointKey(str(group), str(topic), partition)


def transactional_id(group: str, name: str) -> str:
    """The transactional id of a lease: the producer that was started last under it may write."""
    return f"penstock/{_quoted(group)}/{_quoted(name)}"


def partition_of(group: str, name: str, partitions: int) -> int:
    """The partition that holds a lease and everything under it."""
    return int(crc32c(transactional_id(group, name).encode()) % partitions)


def encode_key(entry: Entry, piece: int) -> bytes:
    return _encode([id_bytes(part) if isinstance(part, str) else part for part in (*entry, piece)])


def decode_key(data: bytes) -> tuple[Entry, int]:
    """The entry, and the number of this piece of it. ValueError for a foreign key."""
    try:
        kind, group, *rest, piece = msgspec.msgpack.decode(data, type=list[Any])
        entry: Entry
        match _text(kind), rest:
            case "lease", [bytes(name)]:
                entry = (LEASE, _text(group), _text(name))
            case "checkpoint", [bytes(topic), int(partition)]:
                entry = (CHECKPOINT, _text(group), _text(topic), partition)
            case ("state" | "handled") as known, [bytes(topic), int(partition), bytes(name)]:
                entry = (known, _text(group), _text(topic), partition, name)
            case _:
                raise ValueError(f"unknown kind of entry {kind!r}")
    except (msgspec.MsgspecError, AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error
    return entry, int(piece)


def pieces_of(value: bytes) -> Iterator[bytes]:
    count = max(1, -(-len(value) // PIECE_BYTES))
    for first in range(0, count * PIECE_BYTES, PIECE_BYTES):
        piece = value[first : first + PIECE_BYTES]
        yield _PIECE.pack(count, crc32c(piece)) + piece


def opened_piece(data: bytes) -> tuple[int, bytes]:
    """How many pieces there are, and this one's content. ValueError when it is damaged."""
    if len(data) < _PIECE.size:
        raise ValueError(f"it has only {len(data)} bytes")
    count, checksum = _PIECE.unpack_from(data)
    content = data[_PIECE.size :]
    if crc32c(content) != checksum:
        raise ValueError("its checksum is wrong")
    return count, content


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as it is stored. A deleted one is kept for its epoch, which must not be reused."""

    lease: Lease | None
    epoch: int
    """The highest epoch so far."""
    floor: int
    """The epoch when the group was last deleted: earlier history does not count."""
    token: bytes
    """Identifies the write."""


NO_LEASE: Final = StoredLease(None, 0, 0, b"")


def encode_lease(lease: Lease, floor: int, token: bytes) -> bytes:
    return _encode((token, id_bytes(lease.owner), lease.epoch, lease.beat, floor))


def encode_deleted_lease(epoch: int, token: bytes) -> bytes:
    """The remains of a lease whose group was deleted."""
    return _encode((token, None, epoch, 0, epoch))


def decode_lease(group: str, name: str, data: bytes) -> StoredLease:
    try:
        token, owner, epoch, beat, floor = _LEASE.decode(data)
    except msgspec.MsgspecError as error:
        raise corrupt(f"the lease {name!r} of group {group!r}", str(error)) from error
    lease = None if owner is None else Lease(group, name, _text(owner), epoch, beat)
    return StoredLease(lease, epoch, floor, token)


def encode_handled(handled: Sequence[Handled]) -> bytes:
    return _encode([(id_bytes(each.id), each.at_ms) for each in handled])


def decode_handled(data: bytes) -> list[Handled]:
    return [Handled(_text(id), at_ms) for id, at_ms in _HANDLED.decode(data)]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _quoted(text: str) -> str:
    return quote(text, safe=":", errors="surrogatepass")
