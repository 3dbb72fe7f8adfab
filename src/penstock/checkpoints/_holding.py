"""Reading heads, and writing them if they still are as they were seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.checkpoints._heads import FLOOR, NO_HEAD, Head, seal, unseal
from penstock.checkpoints._shelf import Shelf, Stamp
from penstock.checkpoints._versions import PartGone
from penstock.checkpoints.fencing import fenced
from penstock.checkpoints.format import corrupt
from penstock.errors import ConnectionClosedError, StoreUnavailableError
from penstock.model import Lease

ATTEMPTS: Final = 20
"""How often a write that others got ahead of is tried. Only an owner's own threads, and who claims, get ahead of it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A head as it was last seen."""

    head: Head
    stamp: Stamp


class Heads:
    """The heads on a shelf. Those that are written here are remembered, so that the next write needs no reading."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], Seen] = {}
        self._turns: dict[tuple[str, str], threading.Lock] = {}
        self.is_closed = False

    def read(self, group: str, name: str) -> Seen | None:
        found = self._open_shelf().read_head(group, name)
        return None if found is None else Seen(self._head(group, name, found[0]), found[1])

    def all(self, group: str) -> Mapping[str, Head]:
        """All heads of a group, also those that are gone."""
        found = self._open_shelf().heads(group)
        return {name: self._head(group, name, data) for name, (data, _) in found.items()}

    def groups(self) -> Sequence[str]:
        return self._open_shelf().groups()

    def swap(self, group: str, name: str, now: Seen | None, head: Head) -> bool:
        """Write a head if what is there is as it was seen. `head` must come from `Head.changed`."""
        after = self._swap(group, name, now, head)
        return after is not None and after.head.write == head.write

    def write_held(
        self, lease: Lease, follow: Callable[[Head], Head], was_done: Callable[[Head], bool] | None = None
    ) -> Head:
        """Write what follows on a head, as often as it takes, while the lease is held; else FencedError.

        `follow` gives the head itself when there is nothing to write. `was_done` says whether a head that somebody else
        has claimed since shows that an earlier try, whose answer was lost, has counted.
        """
        group, name = lease.group, lease.name
        now = self._remembered(group, name)
        is_remembered = now is not None
        if now is None:
            now = self.read(group, name)
        has_tried = False
        for _ in range(ATTEMPTS):
            if is_remembered and (now is None or not now.head.is_held_by(lease)):
                now, is_remembered = self.read(group, name), False
            if now is None or not now.head.is_held_by(lease):
                self.let_go(group, name)
                if has_tried and now is not None and was_done is not None and was_done(now.head):
                    return now.head
                raise fenced(lease, None if now is None or now.head.gone else now.head.lease(group, name))
            try:
                head = follow(now.head)
            except PartGone as gone:
                before, now = now, self.read(group, name)
                if now is not None and now.head.change == before.head.change:
                    what = f"what {name!r} of group {group!r} holds in {self._shelf.where}"
                    raise corrupt(what, f"its part {gone} is missing") from gone
                is_remembered = False
                continue
            if head is now.head:
                return head
            with self._turn(group, name):
                # Another thread of this owner may have renewed the lease meanwhile: what was prepared fits that, too.
                latest = self._remembered(group, name)
                if latest is not None and latest.head.is_held_by(lease) and latest.head.change == now.head.change:
                    now, head = latest, follow(latest.head)
                now, is_remembered, has_tried = self._swap(group, name, now, head), False, True
            if now is not None and now.head.write == head.write:
                return head
        raise StoreUnavailableError(
            f"{self._shelf.where}: {name!r} of group {group!r} was changed by others {ATTEMPTS} times while it was to "
            "be written"
        )

    def remove(self, group: str, name: str, now: Seen, epoch: int) -> None:
        """Remove a head, if it is as it was seen; or, where it cannot be removed or has a checkpoint, just the lease,
        with this epoch for the next one to go on from."""
        if self._shelf.can_remove_heads and not now.head.change:
            self._shelf.remove_head(group, name, now.stamp)
        else:
            self._swap(group, name, now, now.head.changed(owner="", epoch=epoch, gone=True))
        self.let_go(group, name)

    def floor(self, group: str) -> int:
        """The highest epoch there was when the group was last forgotten; 0 if it never was."""
        found = self.read(group, FLOOR)
        return 0 if found is None else found.head.epoch

    def raise_floor(self, group: str, epoch: int) -> None:
        """Let no lease of the group that is claimed anew have this epoch or a lower one."""
        for _ in range(ATTEMPTS):
            now = self.read(group, FLOOR)
            if now is not None and now.head.epoch >= epoch:
                return
            if self.swap(group, FLOOR, now, NO_HEAD.changed(epoch=epoch, gone=True)):
                self.let_go(group, FLOOR)
                return
        raise StoreUnavailableError(f"{self._shelf.where}: the group {group!r} is forgotten by many at once")

    def let_go(self, group: str, name: str) -> None:
        """Do not remember this one any more."""
        with self._lock:
            self._seen.pop((group, name), None)

    def _remembered(self, group: str, name: str) -> Seen | None:
        with self._lock:
            return self._seen.get((group, name))

    def _turn(self, group: str, name: str) -> threading.Lock:
        """Held while a head is written, so that the threads of an owner do not get in each other's way."""
        with self._lock:
            return self._turns.setdefault((group, name), threading.Lock())

    def _swap(self, group: str, name: str, now: Seen | None, head: Head) -> Seen | None:
        """Try to write a head; gives what is there afterwards, which is this very head if that was done."""
        shelf = self._open_shelf()
        try:
            stamp = shelf.swap_head(group, name, None if now is None else now.stamp, seal(head))
            after = self.read(group, name) if stamp is None else Seen(head, stamp)
        except BaseException:
            self.let_go(group, name)
            raise
        with self._lock:
            if after is None:
                self._seen.pop((group, name), None)
            else:
                self._seen[group, name] = after
        return after

    def _head(self, group: str, name: str, data: bytes) -> Head:
        return unseal(data, Head, f"the head of {name!r} of group {group!r} in {self._shelf.where}")

    def _open_shelf(self) -> Shelf:
        if self.is_closed:
            raise ConnectionClosedError(f"the checkpoints in {self._shelf.where} have been closed")
        return self._shelf
