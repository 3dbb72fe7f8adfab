"""Producing: records from the program that makes them, kept in a buffer until the stream has acknowledged them.

In come values; they are encoded, kept in memory or in a spool that survives the process, and delivered in order, tried
again as long as that can help. Out go receipts, each settled once: the record stands there, or this is why it does not.
"""

from __future__ import annotations

from penstock.producing.backoff import Backoff
from penstock.producing.counts import ProducerStats
from penstock.producing.memory import MemoryBuffer
from penstock.producing.producer import Producer
from penstock.producing.refused import RefusedRecord, read_refused
from penstock.producing.spooled_sender import SpooledSender
from penstock.producing.spooling import Spool

__all__ = [
    "Backoff",
    "MemoryBuffer",
    "Producer",
    "ProducerStats",
    "RefusedRecord",
    "Spool",
    "SpooledSender",
    "read_refused",
]
