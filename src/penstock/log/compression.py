"""The compression codecs of Kafka's record batches, by the number that stands in a batch's attributes.

What is read: everything that Kafka's own clients write. Snappy comes in two shapes, one raw block (librdkafka) or the
framing of the xerial library (Java, kafka-python, kafkajs); both are told apart by their first bytes.
What is written: what the pickiest reader takes. The Java client refuses an LZ4 frame whose blocks depend on each other,
so ours are independent; and it writes snappy framed, so every client reads that.
"""

from __future__ import annotations

import functools
import struct
import threading
import zlib
from typing import Any, Final

import cramjam

from penstock.errors import CorruptBatchError

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""The codecs as Kafka's `compression.type` spells them, indexed by their number."""

_INT = struct.Struct(">i")
_BLOCK_LENGTH = struct.Struct("<I")

# The marker, then the version of the format and the oldest version that can read it.
_XERIAL_MARKER = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MARKER + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024

# Magic, flags (version 1, independent blocks), block size (64 KB), and the checksum of these two bytes.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_END = _BLOCK_LENGTH.pack(0)

_GZIP_FORMAT = 16 + zlib.MAX_WBITS
_GZIP_WINDOW_BYTES = 16 * 1024

_STREAMS: Final[dict[int, Any]] = {LZ4: cramjam.lz4, ZSTD: cramjam.zstd}
"""The codecs that rarely say how large their data expand to; what they say could be a lie anyway."""

_FIRST_GUESS_BYTES = 64 * 1024
_FIRST_GUESS_RATIO = 8
_GROWTH = 4
_SCRATCH_BYTES = 8 * 1024 * 1024


def decompress(codec: int, data: bytes | bytearray | memoryview, limit_bytes: int) -> bytes:
    """Give back the records section of a batch as it was before compression.

    Never more than `limit_bytes` are allocated for the result, however much the data would expand to: a batch that
    needs more is refused, as one that is truncated, damaged or of an unknown codec is, with CorruptBatchError.
    """
    if codec == NONE:
        if len(data) > limit_bytes:
            raise _too_large(codec, len(data), limit_bytes)
        return bytes(data)
    if codec == GZIP:
        return _decompress_gzip(data, limit_bytes)
    if codec == SNAPPY:
        return _decompress_snappy(data, limit_bytes)
    if codec in _STREAMS:
        return _decompress_stream(codec, data, limit_bytes)
    raise CorruptBatchError(f"the batch names compression codec {codec}; Kafka knows 0 to 4: {', '.join(NAMES)}")


def compress(codec: int, data: bytes | bytearray | memoryview) -> bytes:
    """Compress a records section so that every Kafka client can read it. An unknown codec is a ValueError."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        return _compress_lz4(data)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise ValueError(f"no compression codec has the number {codec}; choose from 0 to 4: {', '.join(NAMES)}")


def _decompress_gzip(data: bytes | bytearray | memoryview, limit_bytes: int) -> bytes:
    """By zlib, which can be held to a size. In windows, as it copies what stands behind the end of each member."""
    source = memoryview(data)
    parts: list[bytes] = []
    size_bytes = at = 0
    member = zlib.decompressobj(_GZIP_FORMAT)
    while at < len(source):
        window = source[at : at + _GZIP_WINDOW_BYTES]
        try:
            part = member.decompress(window, limit_bytes - size_bytes + 1)
        except zlib.error as error:
            raise CorruptBatchError(f"the batch's gzip data are damaged: {error}") from error
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise _too_large(GZIP, size_bytes, limit_bytes)
        parts.append(part)
        at += len(window) - len(member.unused_data)
        if member.eof:
            if at == len(source):
                return b"".join(parts)
            member = zlib.decompressobj(_GZIP_FORMAT)
    raise CorruptBatchError("the batch's gzip data are damaged: they end too early")


def _decompress_stream(codec: int, data: bytes | bytearray | memoryview, limit_bytes: int) -> bytes:
    """Decompress into a buffer that grows, up to the limit, until the data fit."""
    size_bytes = min(limit_bytes, max(_FIRST_GUESS_BYTES, _FIRST_GUESS_RATIO * len(data)))
    while True:
        buffer = _scratch.take(size_bytes)
        try:
            with memoryview(buffer) as whole, whole[:limit_bytes] as out:
                length = _STREAMS[codec].decompress_into(data, out)
                return bytes(out[:length])
        except cramjam.DecompressionError as error:
            if str(error) != _says_too_small(codec):
                raise CorruptBatchError(f"the batch's {NAMES[codec]} data are damaged: {error}") from error
            if len(buffer) >= limit_bytes:
                raise _too_large(codec, limit_bytes + 1, limit_bytes) from error
        finally:
            _scratch.give_back(buffer)
        size_bytes = min(limit_bytes, len(buffer) * _GROWTH)


class _Scratch(threading.local):
    """A buffer for each thread that is used again and again: a new one costs as much as decompressing into it."""

    _kept = bytearray()

    def take(self, size_bytes: int) -> bytearray:
        kept, self._kept = self._kept, bytearray()
        return kept if len(kept) >= size_bytes else bytearray(size_bytes)

    def give_back(self, buffer: bytearray) -> None:
        if len(buffer) <= _SCRATCH_BYTES:
            self._kept = buffer


_scratch = _Scratch()


@functools.cache
def _says_too_small(codec: int) -> str:
    """What the codec says if the buffer is too small, which only this text tells from damage."""
    compressed = _STREAMS[codec].compress(bytes(2))
    try:
        _STREAMS[codec].decompress_into(compressed, bytearray(1))
    except cramjam.DecompressionError as error:
        return str(error)
    raise AssertionError(f"{NAMES[codec]} put two bytes into a buffer of one")


def _decompress_snappy(data: bytes | bytearray | memoryview, limit_bytes: int) -> bytes:
    source = memoryview(data)
    if source[: len(_XERIAL_MARKER)] != _XERIAL_MARKER:
        return _decompress_snappy_block(source, 0, limit_bytes)
    blocks: list[bytes] = []
    size_bytes = 0
    at = 0
    while at < len(source):
        # A stream that was flushed or joined from several carries the header again in between. The version numbers
        # in it are not looked at: there is only one, and some producers write them in the wrong byte order.
        if source[at : at + len(_XERIAL_MARKER)] == _XERIAL_MARKER:
            at += len(_XERIAL_HEADER)
            if at > len(source):
                raise CorruptBatchError("the batch's snappy data end inside their header")
            continue
        if at + _INT.size > len(source):
            raise CorruptBatchError("the batch's snappy data end inside the length of a block")
        (length,) = _INT.unpack_from(source, at)
        at += _INT.size
        if not 0 < length <= len(source) - at:
            raise CorruptBatchError(
                f"the batch's snappy data hold a block of {length} bytes, with {len(source) - at} left"
            )
        block = _decompress_snappy_block(source[at : at + length], size_bytes, limit_bytes)
        size_bytes += len(block)
        blocks.append(block)
        at += length
    return b"".join(blocks)


def _decompress_snappy_block(block: memoryview, before_bytes: int, limit_bytes: int) -> bytes:
    """Decompress a block that comes after `before_bytes` of others."""
    try:
        size_bytes = before_bytes + cramjam.snappy.decompress_raw_len(block)
        if size_bytes > limit_bytes:
            raise _too_large(SNAPPY, size_bytes, limit_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"the batch's snappy data are damaged: {error}") from error


def _compress_snappy(data: bytes | bytearray | memoryview) -> bytes:
    source = memoryview(data)
    parts = [_XERIAL_HEADER]
    for at in range(0, len(source), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(source[at : at + _XERIAL_BLOCK_BYTES]))
        parts += (_INT.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: bytes | bytearray | memoryview) -> bytes:
    source = memoryview(data)
    parts = [_LZ4_HEADER]
    for at in range(0, len(source), _LZ4_BLOCK_BYTES):
        plain = source[at : at + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (_BLOCK_LENGTH.pack(len(block)), block)
        else:
            parts += (_BLOCK_LENGTH.pack(len(plain) | _LZ4_STORED), bytes(plain))
    parts.append(_LZ4_END)
    return b"".join(parts)


def _too_large(codec: int, size_bytes: int, limit_bytes: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"the batch's {NAMES[codec]} data expand to {size_bytes} bytes or more; at most {limit_bytes} are allowed"
    )
