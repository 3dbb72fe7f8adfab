"""How many bytes records take, for batches with a limit in bytes: from the index of a log's files, or by a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.log.reader import PartitionReader
from penstock.model import Record
from penstock.spark.source.origin import Origin
from penstock.spark.source.task_reading import open_stream

_SAMPLE: Final = 200
_WAIT_S: Final = 1.0
_AROUND_A_RECORD_BYTES: Final = 24
"""Lengths, timestamp and pointer, about."""


class Sizes:
    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._files: dict[int, PartitionReader] = {}

    def sized(self, partition: int, begin: int, end: int, size_bytes: int) -> tuple[int, int]:
        """See `penstock.spark.source.admission.Sized`."""
        folder = self._origin.folder
        if folder is not None and folder.is_here():
            if partition not in self._files:
                self._files[partition] = PartitionReader(Path(folder.path) / f"{self._origin.topic}-{partition}")
            return self._files[partition].offset_after(begin, size_bytes, end)
        sample = open_stream(self._origin).read(partition, begin, min(_SAMPLE, end - begin), _WAIT_S)
        if not sample:
            return end, 0
        mean_bytes = sum(map(_size_bytes, sample)) / len(sample)
        count = min(end - begin, max(1, int(size_bytes / mean_bytes)))
        return max(begin + count, min(sample[0].offset + 1, end)), round(count * mean_bytes)

    def close(self) -> None:
        for reader in self._files.values():
            reader.close()
        self._files.clear()


def _size_bytes(record: Record) -> int:
    headers_bytes = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers_bytes + _AROUND_A_RECORD_BYTES
