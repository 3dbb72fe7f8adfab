"""State, history and idempotency keys as segments: new entries are collected, then written, then merged.

A segment is merged with the one before it unless that is at least twice as large. So there are only a few, and an entry
is rewritten only about as often as the total has doubled.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from penstock.checkpoints.format import decode_history, encode_history, id_bytes, number_of, pointer_of
from penstock.checkpoints.objects.manifests import Segment, seal, unseal
from penstock.model import Change, CheckpointKey, Handled, HistoryEntry, Pointer

LINES_BYTES: Final = 4 * 1024 * 1024
"""The largest segment of history: old ones are dropped as a whole."""
ID_BYTES: Final = 16
_TIME: Final = struct.Struct(">q")
ENTRY_BYTES: Final = ID_BYTES + _TIME.size
"""The size of an idempotency key."""
GROWTH: Final = 2

ReadPart = Callable[[str], bytes]
WritePart = Callable[[bytes], str]
State = dict[bytes, bytes | None]


def from_where(segments: Sequence[Segment], size_bytes: int, limit_bytes: int | None = None) -> int:
    """The index of the first segment to merge with new entries of this size."""
    first = len(segments)
    while first > 0 and segments[first - 1].size_bytes < GROWTH * size_bytes:
        if limit_bytes is not None and size_bytes + segments[first - 1].size_bytes > limit_bytes:
            break
        first -= 1
        size_bytes += segments[first].size_bytes
    return first


def size_of_state(entries: Mapping[bytes, bytes | None]) -> int:
    return sum(len(name) + len(value or b"") + 8 for name, value in entries.items())


def read_state(part: str, read: ReadPart, key: CheckpointKey) -> State:
    pairs: list[tuple[bytes, bytes | None]] = unseal(
        read(part), list[tuple[bytes, bytes | None]], f"the state of {key}"
    )
    return dict(pairs)


def grow_state(
    segments: tuple[Segment, ...], new: State, read: ReadPart, write: WritePart, key: CheckpointKey
) -> tuple[Segment, ...]:
    """The segments with the new entries. Deletions are kept until nothing older is left."""
    first = from_where(segments, size_of_state(new))
    merged: State = {}
    for segment in segments[first:]:
        merged |= read_state(segment.part, read, key)
    merged |= new
    if first == 0:
        merged = {name: value for name, value in merged.items() if value is not None}
    if not merged:
        return segments[:first]
    return (*segments[:first], Segment(write(seal(list(merged.items()))), size_of_state(merged)))


def read_lines(segment: Segment, read: ReadPart, key: CheckpointKey) -> list[HistoryEntry]:
    return decode_history(unseal(read(segment.part), bytes, f"the history of {key}"), key)


def grow_lines(
    segments: tuple[Segment, ...],
    new: Sequence[HistoryEntry],
    since_ms: int,
    read: ReadPart,
    write: WritePart,
    key: CheckpointKey,
) -> tuple[Segment, ...]:
    """The segments with the new history entries at the end."""
    first = from_where(segments, len(encode_history(new)), LINES_BYTES)
    lines = [line for segment in segments[first:] for line in read_lines(segment, read, key)]
    lines = [line for line in (*lines, *new) if line.ended_ms >= since_ms]
    if not lines:
        return segments[:first]
    body = encode_history(lines)
    low, high = number_of(min(line.first for line in lines)), number_of(max(line.end for line in lines))
    newest_ms = max(line.ended_ms for line in lines)
    return (*segments[:first], Segment(write(seal(body)), len(body), newest_ms, low, high))


def may_be_about(segment: Segment, pointer: Pointer | None) -> bool:
    return pointer is None or pointer_of(segment.low) <= pointer < pointer_of(segment.high)


class Ids:
    """The idempotency keys of a segment, compactly: sorted digests, and when each was remembered."""

    __slots__ = ("_digests", "_times")

    def __init__(self, digests: bytes, times: bytes) -> None:
        self._digests = digests
        self._times = times

    @classmethod
    def of(cls, entries: Mapping[bytes, int]) -> Ids:
        digests = sorted(entries)
        return cls(b"".join(digests), b"".join(_TIME.pack(entries[digest]) for digest in digests))

    def __len__(self) -> int:
        return len(self._digests) // ID_BYTES

    def time_ms(self, digest: bytes) -> int | None:
        """When the key with this digest was remembered; None if it is not in this segment."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            found = self._digests[middle * ID_BYTES : (middle + 1) * ID_BYTES]
            if found == digest:
                return int(_TIME.unpack_from(self._times, middle * _TIME.size)[0])
            low, high = (middle + 1, high) if found < digest else (low, middle)
        return None

    def items(self) -> Iterator[tuple[bytes, int]]:
        for number, (time_ms,) in enumerate(_TIME.iter_unpack(self._times)):
            yield self._digests[number * ID_BYTES : (number + 1) * ID_BYTES], time_ms

    def packed(self) -> tuple[bytes, bytes]:
        return self._digests, self._times


def digest_of_id(id: str) -> bytes:
    return hashlib.blake2b(id_bytes(id), digest_size=ID_BYTES).digest()


def remembered(handled: Iterable[Handled]) -> dict[bytes, int]:
    return {digest_of_id(each.id): each.at_ms for each in handled}


def read_ids(part: str, read: ReadPart, key: CheckpointKey) -> Ids:
    return Ids(*unseal(read(part), tuple[bytes, bytes], f"the idempotency keys of {key}"))


def grow_handled(
    segments: tuple[Segment, ...],
    new: Mapping[bytes, int],
    since_ms: int,
    read: ReadPart,
    write: WritePart,
    key: CheckpointKey,
) -> tuple[Segment, ...]:
    """The segments with the new idempotency keys."""
    first = from_where(segments, len(new) * ENTRY_BYTES)
    merged: dict[bytes, int] = {}
    for segment in segments[first:]:
        merged.update(read_ids(segment.part, read, key).items())
    merged = {digest: time_ms for digest, time_ms in (merged | dict(new)).items() if time_ms >= since_ms}
    if not merged:
        return segments[:first]
    segment = Segment(write(seal(Ids.of(merged).packed())), len(merged) * ENTRY_BYTES, max(merged.values()))
    return (*segments[:first], segment)


def digest_of_change(change: Change, checkpoint: bytes, epoch: int) -> bytes:
    """A digest that is the same for the same change by the same owner."""
    rest = (
        list(change.state.items()),
        [(id_bytes(each.id), each.at_ms) for each in change.handled],
        change.forget_handled_before_ms,
        change.forget_history_before_ms,
        epoch,
    )
    body = checkpoint + encode_history(change.history) + seal(rest)
    return hashlib.blake2b(body, digest_size=16).digest()
