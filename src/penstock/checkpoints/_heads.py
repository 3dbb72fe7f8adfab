"""What stores of objects keep: heads, which change by compare and set, and versions, which never change.

A **head** is small. There is one for each lease: it says who holds it, and which version of the checkpoint counts. A
**version** is everything a change saved: the checkpoint, the newest state, lines and idempotency keys, and the
**segments** that hold the older ones. A small version stands in the head itself, a larger one, and each segment, in a
**part**: an object that is written once, before the head that refers to it, and removed some time after no head does.

So the one moment in which a save counts is the one in which the head changes; killed before or after it, the writer
leaves the old checkpoint or the new one.
"""

from __future__ import annotations

import secrets
from typing import Any, Final, TypeVar

import cramjam
import msgspec
from crc32c import crc32c

from penstock.checkpoints.format import Number, corrupt
from penstock.model import Lease

FORM: Final = b"\x01"
CHECKSUM_BYTES: Final = 4


class Segment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part with entries of one kind, and what can be known of them without reading it."""

    part: str
    size_bytes: int
    newest_ms: int = 0
    """Of lines: when the last of them ended; of idempotency keys: when the newest was remembered."""
    low: Number = 0
    """Of lines: the lowest pointer they are about."""
    high: Number = 0
    """Of lines: the place behind the highest one."""


class Version(msgspec.Struct, array_like=True, frozen=True):
    """All there is to know about a partition. Segments are in the order in which they were written."""

    checkpoint: bytes = b""
    state: tuple[Segment, ...] = ()
    new_state: dict[bytes, bytes | None] = {}
    lines: tuple[Segment, ...] = ()
    new_lines: tuple[bytes, ...] = ()
    handled: tuple[Segment, ...] = ()
    new_handled: dict[bytes, int] = {}
    lines_since_ms: int = -(1 << 63)
    """Lines that ended before this are forgotten, also where they have not been removed yet."""
    handled_since_ms: int = -(1 << 63)

    @property
    def parts(self) -> set[str]:
        return {segment.part for kind in (self.state, self.lines, self.handled) for segment in kind}


class Head(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Who holds a lease, and which version counts."""

    owner: str
    epoch: int
    beat: int
    write: bytes
    """Different for each write, so that one whose answer was lost can be recognised."""
    change: bytes = b""
    """The digest of the change that made the version: saving it again adds nothing. Empty: there is no version."""
    inline: bytes = b""
    """The version, if it is small."""
    part: str = ""
    """The part that holds it, if it is not."""
    gone: bool = False
    """Forgotten: it is here to keep the epoch only, so that no old owner ever fits again."""

    def is_held_by(self, lease: Lease) -> bool:
        return not self.gone and self.owner == lease.owner != "" and self.epoch == lease.epoch

    def lease(self, group: str, name: str) -> Lease:
        return Lease(group, name, self.owner, self.epoch, self.beat)

    def changed(self, **changes: Any) -> Head:
        """This head as it is to be written next."""
        return msgspec.structs.replace(self, write=secrets.token_bytes(8), **changes)


NO_HEAD: Final = Head("", 0, 0, b"")
"""What stands before the first claim."""
PARTITION: Final = "partition:"
"""What the names of the leases of checkpoints begin with."""

FLOOR: Final = "~forgotten"
"""The name of a head in each group that was ever forgotten. It is gone, and keeps the highest epoch there was."""

T = TypeVar("T")


def seal(value: Any) -> bytes:
    """A form, a checksum, and msgpack, compressed."""
    body = bytes(cramjam.zstd.compress(msgspec.msgpack.encode(value), 1))
    return FORM + crc32c(body).to_bytes(CHECKSUM_BYTES, "big") + body


def unseal(data: bytes, kind: type[T], what: str) -> T:
    """What `seal` was given. CorruptCheckpointError says that `what` is damaged."""
    form, checksum, body = data[:1], data[1 : 1 + CHECKSUM_BYTES], data[1 + CHECKSUM_BYTES :]
    if form != FORM:
        raise corrupt(what, f"its form is {form!r}, and this program knows {FORM!r} only")
    if crc32c(body).to_bytes(CHECKSUM_BYTES, "big") != checksum:
        raise corrupt(what, "its checksum is wrong")
    try:
        return msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(body)), type=kind)
    except (msgspec.MsgspecError, cramjam.DecompressionError) as error:
        raise corrupt(what, f"its contents do not fit: {error}") from error


def part_name(epoch: int) -> str:
    """A name that no other part has. Names sort by the epoch of their writer."""
    return f"{epoch:016x}-{secrets.token_hex(8)}"


def epoch_of(part: str) -> int:
    return int(part.partition("-")[0], 16)
