"""The compression codecs of Kafka's record batches, by their number in a batch's attributes.

Reading accepts everything that Kafka's clients write. Snappy has two forms, one raw block (librdkafka) or the framing
of the xerial library (Java, kafka-python, kafkajs); the first bytes tell them apart. Writing produces what the
strictest reader accepts. The Java client refuses an LZ4 frame with dependent blocks, so ours are independent; and it
writes framed snappy, so every client reads that.
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
"""The codecs as Kafka's `compression.type` spells them, indexed by number."""

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

_LZ4_DEFAULT_LEVEL = 9

_GZIP_OWN_LEVEL = -1
_GZIP_FORMAT = 16 + zlib.MAX_WBITS
_GZIP_WINDOW_BYTES = 16 * 1024

_STREAMS: Final[dict[int, Any]] = {LZ4: cramjam.lz4, ZSTD: cramjam.zstd}
"""The codecs that rarely state the decompressed size, which could be wrong anyway."""

_FIRST_GUESS_BYTES = 64 * 1024
_FIRST_GUESS_RATIO = 8
_GROWTH = 4
_SCRATCH_BYTES = 8 * 1024 * 1024


def decompress(codec: int, data: bytes | bytearray | memoryview, limit_bytes: int) -> bytes:
    """Decompress the records section of a batch.

    Never allocates more than `limit_bytes` for the result, however large it would be. Raises CorruptBatchError for a
    batch that needs more, and for one that is truncated, damaged or of an unknown codec.
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


def compress(codec: int, data: bytes | bytearray | memoryview, level: int | None = None) -> bytes:
    """Compress a records section so that every Kafka client can read it. Raises ValueError for an unknown codec.

    `level` is Kafka's `compression.CODEC.level`, by default the codec's own. Snappy has none.
    """
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=None if level == _GZIP_OWN_LEVEL else level))
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        return _compress_lz4(data, level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    raise ValueError(f"no compression codec has the number {codec}; choose from 0 to 4: {', '.join(NAMES)}")


def _decompress_gzip(data: bytes | bytearray | memoryview, limit_bytes: int) -> bytes:
    """Decompress with zlib, which can limit the size. In windows, because it copies what follows each member."""
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
    """A reusable buffer per thread: allocating one costs as much as decompressing into it."""

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
    """The codec's message for a buffer that is too small, which only this text distinguishes from damage."""
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
        # A stream that was flushed or concatenated repeats the header. Its version numbers are ignored: there is only
        # one, and some producers write them in the wrong byte order.
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
    """Decompress a block that follows `before_bytes` of others."""
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


def _compress_lz4(data: bytes | bytearray | memoryview, level: int | None) -> bytes:
    source = memoryview(data)
    parts = [_LZ4_HEADER]
    for at in range(0, len(source), _LZ4_BLOCK_BYTES):
        plain = source[at : at + _LZ4_BLOCK_BYTES]
        if level not in (None, _LZ4_DEFAULT_LEVEL):
            parts.append(_lz4_block(plain, level))
            continue
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (_BLOCK_LENGTH.pack(len(block)), block)
        else:
            parts += (_BLOCK_LENGTH.pack(len(plain) | _LZ4_STORED), bytes(plain))
    parts.append(_LZ4_END)
    return b"".join(parts)


def _lz4_block(plain: memoryview, level: int | None) -> bytes:
    """A block with its length. cramjam uses the level for whole frames only, so one is made and its block taken."""
    frame = bytes(cramjam.lz4.compress(plain, level=level))
    (length,) = _BLOCK_LENGTH.unpack_from(frame, len(_LZ4_HEADER))
    return frame[len(_LZ4_HEADER) :][: _BLOCK_LENGTH.size + (length & ~_LZ4_STORED)]


def _too_large(codec: int, size_bytes: int, limit_bytes: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"the batch's {NAMES[codec]} data expand to {size_bytes} bytes or more; at most {limit_bytes} are allowed"
    )
