"""Any buffer, as the producer wants it: with the number of the next record, and groups."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from penstock.abc import Buffer, Features
from penstock.model import NewRecord
from penstock.producing.kept import Held


class NumberedBuffer(Protocol):
    """`abc.Buffer` that says which number the next record gets, and which records were put together."""

    @property
    def features(self) -> Features: ...

    @property
    def end(self) -> int: ...

    def put(self, records: Sequence[NewRecord]) -> int: ...

    def peek(self, after: int, limit: int, limit_bytes: int) -> Sequence[Held]: ...

    def commit(self, through: int) -> None: ...

    def drop(self, count: int, after: int = -1) -> Sequence[Held]: ...

    def __len__(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


class ForeignBuffer:
    """A buffer of somebody else's. What was put together is not known after it was put."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._lock = threading.Lock()
        self.id: str | None = getattr(buffer, "id", None)
        self.folder = getattr(buffer, "folder", None)
        self.end = 0
        while found := buffer.peek(self.end - 1, 1000, 1 << 20):  # ends: nobody puts yet
            self.end = found[-1].sequence + 1

    @property
    def features(self) -> Features:
        return self._buffer.features

    def put(self, records: Sequence[NewRecord]) -> int:
        sequence = self._buffer.put(records)
        with self._lock:
            self.end = max(self.end, sequence + len(records))
        return sequence

    def peek(self, after: int, limit: int, limit_bytes: int) -> Sequence[Held]:
        return [
            Held(each.sequence, each.record, each.sequence) for each in self._buffer.peek(after, limit, limit_bytes)
        ]

    def commit(self, through: int) -> None:
        self._buffer.commit(through)

    def drop(self, count: int, after: int = -1) -> Sequence[Held]:
        return [Held(each.sequence, each.record, each.sequence) for each in self._buffer.drop(count, after)]

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def size_bytes(self) -> int:
        return self._buffer.size_bytes
