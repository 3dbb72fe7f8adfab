"""Stored records as Arrow: what comes in is a buffer of record batches, what goes out is columns.

The buffer is a segment file that is mapped into memory, a part of one, or the answer to a fetch. Its batches are
checked, decompressed and taken apart by the million a second, by numpy or, where it is installed, by numba. Damage is
never served as data, and no bytes, whatever they claim, make this read outside of its buffer.

`decode` gives one RecordBatch, `decode_in_chunks` many of a bounded size, `schema` what their columns are.
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
from penstock.log.arrow.scan import Origin

__all__ = ["AbortedTransaction", "Origin", "decode", "decode_in_chunks", "schema"]
