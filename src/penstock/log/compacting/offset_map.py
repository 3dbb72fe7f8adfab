"""The last offset of each key, in a fixed amount of memory.

Keys are identified by a digest of 16 bytes, so a long key takes as much memory as a short one. It is a hash table with
open addressing: a digest's first bytes choose a slot; if that is taken, the next free one is used.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

_DIGEST_BYTES: Final = 16
_SLOT_BYTES: Final = _DIGEST_BYTES + 8
_MOST_FULL: Final = 0.75
"""Above this fill level, finding a free slot takes too many steps."""
_EMPTY: Final = bytes(_DIGEST_BYTES)
_SLOT: Final = struct.Struct(f"<{_DIGEST_BYTES}sq")
_OFFSET: Final = struct.Struct("<q")
_PLACE: Final = struct.Struct("<Q")

NOT_FOUND: Final = -1


class OffsetMap:
    """Holds as many keys as fit into `limit_bytes`, and uses no more memory than `expected_keys` need."""

    __slots__ = ("_free", "_slots", "_table", "last_offset")

    def __init__(self, limit_bytes: int, expected_keys: int) -> None:
        wanted = int(expected_keys / _MOST_FULL) + 1
        self._slots = max(2, min(limit_bytes // _SLOT_BYTES, wanted))
        self._free = max(1, int(self._slots * _MOST_FULL))
        self._table = bytearray(self._slots * _SLOT_BYTES)
        self.last_offset = NOT_FOUND
        """Everything up to it is in the map: the owner moves it once all records of a batch are."""

    def put(self, key: bytes, offset: int) -> bool:
        """Store the offset as the key's last. False if the key is new and there is no room for it."""
        digest = _digest(key)
        at, taken = self._find(digest)
        if not taken:
            if not self._free:
                return False
            self._free -= 1
        _SLOT.pack_into(self._table, at, digest, offset)
        return True

    def get(self, key: bytes) -> int:
        at, taken = self._find(_digest(key))
        if not taken:
            return NOT_FOUND
        offset: int = _OFFSET.unpack_from(self._table, at + _DIGEST_BYTES)[0]
        return offset

    def _find(self, digest: bytes) -> tuple[int, bool]:
        """The slot of the digest, or the free one for it, and whether it is used. Ends: some slots are always free."""
        table = self._table
        slot = _PLACE.unpack_from(digest)[0] % self._slots
        while True:
            at = slot * _SLOT_BYTES
            found = table[at : at + _DIGEST_BYTES]
            if found == digest:
                return at, True
            if found == _EMPTY:
                return at, False
            slot += 1
            if slot == self._slots:
                slot = 0


def _digest(key: bytes) -> bytes:
    digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
    return digest if digest != _EMPTY else b"\xff" * _DIGEST_BYTES
