"""Runs of finished pointers as bytes: small and fast for any number of runs.

Three forms, distinguished by the first byte; no runs are no bytes. Distances (gap, length, gap, length ...) as msgpack,
which stores small numbers in one byte; the same with gaps and lengths separated and compressed, where there are many;
and a compressed bitmap, where finished and unfinished records are so mixed that it is smaller.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable, Sequence
from typing import Final

import cramjam
import msgspec

from penstock.model import Pointer, Runs

PLAIN: Final = b"\x00"
COMPRESSED: Final = b"\x01"
BITMAP: Final = b"\x02"

MANY: Final = 64
"""From this many runs on, compression pays."""
BITMAP_GAIN: Final = 0.9
"""A bitmap takes longer to encode and decode, so it must be smaller by this factor."""
LARGEST_NUMBER: Final = (1 << 64) - 1
"""The largest number that msgpack can store."""

Distances = list[int | bytes]


def encode_runs(runs: Runs, base: Pointer = 0) -> bytes:
    """Encode runs as distances from `base`, which must not be after the first of them."""
    if not runs:
        return b""
    edges = list(itertools.chain.from_iterable(runs))
    distances = list(map(operator.sub, edges, itertools.chain((base,), edges)))
    if max(distances) > LARGEST_NUMBER:
        return _compress(COMPRESSED, _packed_wide(distances))
    if len(runs) < MANY:
        return PLAIN + msgspec.msgpack.encode(distances)
    apart = _compress(COMPRESSED, msgspec.msgpack.encode((distances[::2], distances[1::2])))
    span = edges[-1] - edges[0]
    if span // 8 < len(apart) * BITMAP_GAIN:
        bitmap = BITMAP + msgspec.msgpack.encode(edges[0] - base) + _bitmap(distances, span)
        return min(apart, bitmap, key=len)
    return apart


def decode_runs(data: bytes, base: Pointer = 0) -> Runs:
    """Decode runs. ValueError for invalid bytes."""
    if not data:
        return ()
    form, payload = data[:1], data[1:]
    try:
        if form == PLAIN:
            distances: Sequence[int] = _PLAIN.decode(payload)
        elif form == COMPRESSED:
            distances = _interleaved(*_APART.decode(bytes(cramjam.zstd.decompress(payload))))
        elif form == BITMAP:
            return _runs_in_bitmap(payload, base)
        else:
            raise ValueError(f"unknown form of runs {form!r}")
    except (msgspec.MsgspecError, cramjam.DecompressionError) as error:
        raise ValueError(f"the runs cannot be read: {error}") from error
    if len(distances) % 2:
        raise ValueError("the last run has no end")
    edges = itertools.islice(itertools.accumulate(distances, initial=base), 1, None)
    return tuple(zip(edges, edges, strict=True))


_PLAIN: Final = msgspec.msgpack.Decoder(list[int])
_APART: Final = msgspec.msgpack.Decoder(tuple[Distances, Distances])
_ONES: Final = re.compile(rb"1+")


def _packed_wide(distances: list[int]) -> bytes:
    """Distances some of which are too large for msgpack numbers: those become bytes."""
    mixed: Distances = [each if each <= LARGEST_NUMBER else _bytes_of(each) for each in distances]
    return msgspec.msgpack.encode((mixed[::2], mixed[1::2]))


def _interleaved(gaps: Distances, lengths: Distances) -> list[int]:
    if len(gaps) != len(lengths):
        raise ValueError(f"there are {len(gaps)} gaps and {len(lengths)} lengths")
    return _numbers(itertools.chain.from_iterable(zip(gaps, lengths, strict=True)))


def _numbers(mixed: Iterable[int | bytes]) -> list[int]:
    return [int.from_bytes(each, "big") if isinstance(each, bytes) else each for each in mixed]


def _bytes_of(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def _compress(form: bytes, payload: bytes) -> bytes:
    return form + bytes(cramjam.zstd.compress(payload, 1))


def _bitmap(distances: list[int], span: int) -> bytes:
    """The bits from the first run to the last, with leading zeros to fill the first byte."""
    signs = itertools.cycle(("1", "0"))
    text = "".join(map(operator.mul, signs, distances[1:]))
    assert len(text) == span, "the runs do not add up"
    return bytes(cramjam.zstd.compress(int(text, 2).to_bytes((span + 7) // 8, "big"), 1))


def _runs_in_bitmap(payload: bytes, base: Pointer) -> Runs:
    gap_bytes = _size_of_number(payload)
    gap = msgspec.msgpack.decode(payload[:gap_bytes], type=int)
    bits = bytes(cramjam.zstd.decompress(payload[gap_bytes:]))
    # Leading zeros are not stored, so the text begins with the first finished record.
    text = format(int.from_bytes(bits, "big"), "b").encode()
    first = base + gap
    return tuple((first + match.start(), first + match.end()) for match in _ONES.finditer(text))


def _size_of_number(payload: bytes) -> int:
    """How many bytes the msgpack number at the beginning takes."""
    sizes = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
    return sizes.get(payload[0], 1) if payload else 1
