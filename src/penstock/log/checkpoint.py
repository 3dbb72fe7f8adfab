"""The checkpoint of a partition, so that a restart need not read the whole log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from penstock.log.disk import Disk
from penstock.log.statefile import DamagedStateError, read_state, write_state

logger = logging.getLogger(__name__)

FILE_NAME: Final = "checkpoint"


class PartitionCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything before the recovery point is on disk and was verified when it was written."""

    version: int = 1
    log_start_offset: int = 0
    """The first offset that can be read. Moved by retention and DeleteRecords."""
    recovery_offset: int = 0
    recovery_segment: int = 0
    """Base offset of the segment that the recovery point lies in."""
    recovery_position: int = 0
    max_timestamp: int = -1
    """Largest timestamp in that segment before the recovery point."""
    first_timestamp: int = -1
    clean_offset: int = 0
    """The end of the clean part: compaction has processed everything before it."""
    producers: bytes = b""
    """Snapshot of the producer states at the recovery point."""
    aborted_checksum: int = 0
    """A checksum of the aborted transactions before the recovery point, so that a loss in their file is noticed."""


_decoder = msgspec.msgpack.Decoder(PartitionCheckpoint)


def save_checkpoint(folder: Path, checkpoint: PartitionCheckpoint, disk: Disk, *, durable: bool = True) -> None:
    write_state(folder / FILE_NAME, msgspec.msgpack.encode(checkpoint), disk, durable=durable)


def load_checkpoint(folder: Path) -> PartitionCheckpoint | None:
    """The checkpoint, or None if none can be trusted: then the whole log is read."""
    try:
        content = read_state(folder / FILE_NAME)
        return None if content is None else _decoder.decode(content)
    except (DamagedStateError, msgspec.MsgspecError) as error:
        logger.warning("%s: %s; the whole partition is verified instead", folder, error, extra={"folder": str(folder)})
        return None
