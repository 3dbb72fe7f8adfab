"""Producers: buffer records until the stream has acknowledged them.

Values come in; they are encoded, kept in memory or in a spool that survives the process, and delivered in order, with
retries. Receipts go out; each is settled once, with the record's offset or with the error.
"""

from __future__ import annotations

from penstock.producing.buffers import MemoryBuffer
from penstock.producing.connecting import SpooledSender
from penstock.producing.counts import ProducerStats
from penstock.producing.producer import Producer
from penstock.producing.refused import RefusedRecord, read_refused
from penstock.producing.spooling import Spool

__all__ = ["MemoryBuffer", "Producer", "ProducerStats", "RefusedRecord", "Spool", "SpooledSender", "read_refused"]
