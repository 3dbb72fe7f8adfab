"""Typed columns straight from the source: the decoder runs where the records are read."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa

from penstock.spark.source.options import Decoder, SourceOptions


def decoded(rows: Iterator[pa.RecordBatch], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows as the decoder gives them out, or as they are where there is none."""
    if options.decoder is None:
        return rows
    decoder = decoder_of(options.decoder)
    return (batch for batch in map(decoder.decode, rows) if len(batch))


@lru_cache(maxsize=16)
def decoder_of(content: bytes) -> Decoder:
    """One for all tasks of this process: it may keep what it needs open."""
    decoder: Decoder = pickle.loads(content)
    return decoder
