"""Our buffers pass the suite that is public for others."""

from __future__ import annotations

from pathlib import Path

from penstock.abc import Feature
from penstock.producing.buffers import MemoryBuffer
from penstock.producing.spooling import Spool
from penstock.testing.conformance.buffers import LIMITED_RECORDS, buffer


def open_memory() -> MemoryBuffer:
    return MemoryBuffer()


def open_small_memory() -> MemoryBuffer:
    return MemoryBuffer(limit_records=LIMITED_RECORDS)


def open_spool(folder: Path) -> Spool:
    return Spool(folder / "spool", segment_bytes=4096, memory_bytes=2_000)


def open_small_spool(folder: Path) -> Spool:
    return Spool(folder / "spool", limit_records=LIMITED_RECORDS)


TestMemoryBuffer = buffer(open_memory, frozenset(), limited=open_small_memory)
TestSpool = buffer(open_spool, frozenset({Feature.DURABLE}), limited=open_small_spool)
