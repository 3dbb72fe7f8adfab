"""What a store of objects must be able to do, so that checkpoints can be kept in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

Stamp = str
"""Identifies what was last written to a head; another write gives another stamp."""


class Shelf(Protocol):
    """Keeps heads, by group and name, and parts, each belonging to a head.

    What was written is seen by every read that begins afterwards. Raises StoreUnavailableError when it cannot be
    reached, and ConfigError for what trying again does not cure. May be used from any thread.
    """

    where: str
    """The place, for messages."""
    inline_bytes: int
    """A version up to this size stands in its head, which is read and written often."""
    new_bytes: int
    """How much new state, and so on, a version holds before a segment is made of it."""
    can_remove_heads: bool

    def read_head(self, group: str, name: str) -> tuple[bytes, Stamp] | None: ...

    def heads(self, group: str) -> Mapping[str, tuple[bytes, Stamp]]:
        """All heads of a group, by their names. Each is whole; they need not be of the same moment."""

    def swap_head(self, group: str, name: str, stamp: Stamp | None, data: bytes) -> Stamp | None:
        """Write a head if its stamp is this one; None: if there is none. Gives the new stamp, or None when it was
        different. When a try whose answer was lost is repeated, it may say None although it was this very write."""

    def remove_head(self, group: str, name: str, stamp: Stamp) -> None:
        """Remove a head if its stamp is this one."""

    def groups(self) -> Sequence[str]:
        """The groups that have heads; perhaps some that had."""

    def put_part(self, group: str, name: str, part: str, data: bytes) -> None: ...

    def get_part(self, group: str, name: str, part: str) -> bytes | None:
        """None when it was removed."""

    def parts(self, group: str, name: str) -> Sequence[str]:
        """The names of all parts of a head, also of those that were not written to the end."""

    def remove_parts(self, group: str, name: str, parts: Collection[str]) -> None:
        """Those that are not there do not matter."""

    def close(self) -> None: ...
