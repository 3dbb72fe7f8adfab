"""Decoding stored record batches into Arrow columns.

The input is a memory-mapped segment file, a part of one, or a fetch response. Its batches are checked, decompressed and
decoded at millions of records a second, by numpy or, if installed, by numba. Damage is never served as data, and no
input can make this read outside of its buffer.

`decode` gives one RecordBatch, `decode_in_chunks` many of a bounded size, `schema` their columns.
"""

from __future__ import annotations

from penstock.errors import MissingExtraError

try:
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("numpy", "pyarrow"):
        raise
    raise MissingExtraError("penstock.log.arrow", "arrow") from error

from penstock.log.aborted import AbortedTransaction
from penstock.log.arrow.columns import schema
from penstock.log.arrow.decoding import decode, decode_in_chunks
from penstock.log.arrow.scan import BufferOrigin

__all__ = ["AbortedTransaction", "BufferOrigin", "decode", "decode_in_chunks", "schema"]
