"""Apply a change to a version, and write parts for what has become too large."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.checkpoints.format import decode_history, encode_history
from penstock.checkpoints.objects.heads import Head, ObjectStore, PartGone, Version, part_name, seal, unseal
from penstock.checkpoints.objects.segments import (
    ENTRY_BYTES,
    Ids,
    ReadPart,
    grow_handled,
    grow_lines,
    grow_state,
    may_be_about,
    read_ids,
    read_lines,
    read_state,
    remembered,
    size_of_state,
)
from penstock.model import Change, CheckpointKey, HistoryEntry, Pointer


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one head, and which of them were written here."""

    objects: ObjectStore
    key: CheckpointKey
    epoch: int = 0
    written: list[str] = field(default_factory=list)

    def read(self, part: str) -> bytes:
        data = self.objects.get_part(self.key.group, self.key.lease_name, part)
        if data is None:
            raise PartGone(part)
        return data

    def write(self, data: bytes) -> str:
        part = part_name(self.epoch)
        self.written.append(part)
        self.objects.put_part(self.key.group, self.key.lease_name, part, data)
        return part


def version_of(head: Head, parts: Parts) -> Version:
    """The version that a head refers to; an empty one when nothing was saved yet."""
    if not head.change:
        return Version()
    data = head.inline or parts.read(head.part)
    return unseal(data, Version, f"the checkpoint of {parts.key} in {parts.objects.where}")


def next_version(version: Version, change: Change, checkpoint: bytes, parts: Parts) -> Version:
    """The version after a change. What no longer fits into it is written to parts."""
    limit_bytes, key = parts.objects.new_bytes, parts.key
    state, new_state = version.state, version.new_state | dict(change.state)
    if size_of_state(new_state) > limit_bytes:
        state, new_state = grow_state(state, new_state, parts.read, parts.write, key), {}

    lines_since_ms = _later(version.lines_since_ms, change.forget_happenings_before_ms)
    lines = tuple(each for each in version.lines if each.newest_ms >= lines_since_ms)
    new_lines = version.new_lines
    if change.happenings:
        new_lines = (*new_lines, encode_history(change.happenings))
    if sum(map(len, new_lines)) > limit_bytes:
        fresh = [line for data in new_lines for line in decode_history(data, key)]
        lines, new_lines = grow_lines(lines, fresh, lines_since_ms, parts.read, parts.write, key), ()

    handled_since_ms = _later(version.handled_since_ms, change.forget_handled_before_ms)
    handled = tuple(each for each in version.handled if each.newest_ms >= handled_since_ms)
    new_handled = version.new_handled | remembered(change.handled)
    if change.forget_handled_before_ms is not None:
        new_handled = {digest: time_ms for digest, time_ms in new_handled.items() if time_ms >= handled_since_ms}
    if len(new_handled) * ENTRY_BYTES > limit_bytes:
        handled, new_handled = grow_handled(handled, new_handled, handled_since_ms, parts.read, parts.write, key), {}
    return Version(
        checkpoint, state, new_state, lines, new_lines, handled, new_handled, lines_since_ms, handled_since_ms
    )


def _later(since_ms: int, before_ms: int | None) -> int:
    return since_ms if before_ms is None else max(since_ms, before_ms)


def with_version(head: Head, version: Version, change: bytes, parts: Parts) -> Head:
    """The head for a version: with the version inside if it is small, otherwise with a part that is written here."""
    data = seal(version)
    if len(data) <= parts.objects.inline_bytes:
        return msgspec.structs.replace(head, change=change, inline=data, part="")
    return msgspec.structs.replace(head, change=change, inline=b"", part=parts.write(data))


class HandledLookup:
    """A lookup of idempotency keys in the versions of several partitions."""

    def __init__(self, wanted: Collection[bytes], known: Mapping[str, Ids]) -> None:
        self._wanted = wanted
        self._known = known
        self.used: dict[str, Ids] = {}
        """The segments that were read, for reuse by the next lookup."""
        self._newest_ms: dict[bytes, int] = {}
        self._since_ms = Version().handled_since_ms

    def ask(self, version: Version, parts: Parts) -> None:
        for segment in version.handled:
            if segment.part not in self.used:
                known = self._known.get(segment.part)
                self.used[segment.part] = read_ids(segment.part, parts.read, parts.key) if known is None else known
        sources: list[Callable[[bytes], int | None]] = [
            *(self.used[segment.part].time_ms for segment in version.handled),
            version.new_handled.get,
        ]
        for digest in self._wanted:
            for time_ms in (source(digest) for source in sources):
                if time_ms is not None:
                    self._newest_ms[digest] = max(time_ms, self._newest_ms.get(digest, time_ms))
        self._since_ms = max(version.handled_since_ms, self._since_ms)

    def answer(self) -> list[bytes]:
        """The keys that are remembered by any partition and not expired."""
        return [digest for digest, time_ms in self._newest_ms.items() if time_ms >= self._since_ms]


def state_in(version: Version, read: ReadPart, key: CheckpointKey) -> dict[bytes, bytes]:
    merged: dict[bytes, bytes | None] = {}
    for segment in version.state:
        merged |= read_state(segment.part, read, key)
    merged |= version.new_state
    return {name: value for name, value in merged.items() if value is not None}


def lines_backwards(
    version: Version, pointer: Pointer | None, read: ReadPart, key: CheckpointKey
) -> Iterator[HistoryEntry]:
    """The history entries of the record at a pointer, or all, newest first. Segments without any are not read."""
    for line in _all_lines_backwards(version, pointer, read, key):
        if line.ended_ms >= version.lines_since_ms and (pointer is None or line.first <= pointer < line.end):
            yield line


def _all_lines_backwards(
    version: Version, pointer: Pointer | None, read: ReadPart, key: CheckpointKey
) -> Iterator[HistoryEntry]:
    for data in reversed(version.new_lines):
        yield from reversed(decode_history(data, key))
    for segment in reversed(version.lines):
        if may_be_about(segment, pointer):
            yield from reversed(read_lines(segment, read, key))
