"""The buffer in memory: quick, bounded, and gone with the process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock.abc import Features
from penstock.errors import BufferFullError, ConfigError
from penstock.model import NewRecord
from penstock.producing.kept import Held, Kept, size_of


class MemoryBuffer:
    """`abc.Buffer` in memory, with a limit on its records and one on their bytes."""

    def __init__(self, limit_records: int = 1_000_000, limit_bytes: int = 256 << 20) -> None:
        if limit_records < 1 or limit_bytes < 1:
            raise ConfigError(f"a buffer of {limit_records} records and {limit_bytes} bytes holds nothing")
        self._limit_records = limit_records
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept = Kept()

    @property
    def features(self) -> Features:
        return frozenset()

    @property
    def end(self) -> int:
        """The number that the next record gets."""
        return self._kept.end

    def put(self, records: Sequence[NewRecord]) -> int:
        size = size_of(records[0]) if len(records) == 1 else sum(map(size_of, records))
        kept = self._kept
        with self._lock:
            if len(kept) + len(records) > self._limit_records or kept.size_bytes + size > self._limit_bytes:
                raise BufferFullError(
                    f"the buffer holds {len(kept)} records and {kept.size_bytes} bytes, of at most "
                    f"{self._limit_records} and {self._limit_bytes}: {len(records)} more do not fit"
                )
            sequence = kept.end
            kept.add(sequence, records, size)
        return sequence

    def peek(self, after: int, limit: int, limit_bytes: int) -> Sequence[Held]:
        with self._lock:
            return self._kept.peek(after, limit, limit_bytes)

    def commit(self, through: int) -> None:
        with self._lock:
            self._kept.commit(min(through, self._kept.end - 1))

    def drop(self, count: int, after: int = -1) -> Sequence[Held]:
        with self._lock:
            return self._kept.drop(count, after)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        return self._kept.size_bytes

    def close(self) -> None:
        """Everything that was not committed is gone."""
        with self._lock:
            self._kept = Kept(self._kept.end)
