"""Control batches: the markers that end a transaction. Written by the broker, hidden from applications."""

from __future__ import annotations

import struct
from typing import Final

from penstock.log.batch import CONTROL, TRANSACTIONAL, NewRecord, build_batch, records_of

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_ABORT: Final = 0
_COMMIT: Final = 1


def build_marker(
    *, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    record = NewRecord(timestamp_ms, _KEY.pack(0, _COMMIT if commit else _ABORT), _VALUE.pack(0, coordinator_epoch))
    return build_batch(
        [record],
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def marker_commits(batch: bytes | bytearray | memoryview) -> bool | None:
    """True for a commit marker, False for an abort marker, None for another kind of control batch."""
    for record in records_of(batch):
        if record.key is not None and len(record.key) >= _KEY.size:
            kind = _KEY.unpack_from(record.key)[1]
            return {_ABORT: False, _COMMIT: True}.get(kind)
    return None


def marker_coordinator_epoch(batch: bytes | bytearray | memoryview) -> int:
    for record in records_of(batch):
        if record.value is not None and len(record.value) >= _VALUE.size:
            return int(_VALUE.unpack_from(record.value)[1])
    return -1
