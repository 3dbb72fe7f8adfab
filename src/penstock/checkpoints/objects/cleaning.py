"""Remove parts that no head refers to any more: those of older versions, and what killed owners left behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from penstock.checkpoints.objects.heads import ObjectStore, epoch_of
from penstock.errors import PenstockError

logger = logging.getLogger(__name__)

AT_ONCE = 16
"""How many parts must be removable before they are removed, as each costs a request."""


class Cleaner:
    """Knows the parts that were written here, and which of them the last version needs.

    A part may be removed only after a head was written that does not refer to it: from then on, a late write of a head
    that refers to it is refused. A failed removal is repeated later, and does not fail the save it follows.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], set[str]] = {}
        self._removable: dict[tuple[str, str], set[str]] = {}
        self._swept: dict[tuple[str, str], int] = {}

    def written(self, group: str, name: str, parts: Collection[str]) -> None:
        """Note that these parts exist; a head may refer to them."""
        if parts:
            with self._lock:
                self._written.setdefault((group, name), set()).update(parts)

    def saved(self, group: str, name: str, epoch: int, needed: Collection[str]) -> None:
        """Note that we wrote a head with this epoch, which refers to these parts and to no others."""
        place = group, name
        with self._lock:
            written = self._written.setdefault(place, set())
            removable = self._removable.setdefault(place, set())
            removable |= written - set(needed)
            self._written[place] = written & set(needed)
            is_first = self._swept.get(place) != epoch
        try:
            if is_first:
                # Earlier owners are fenced, so parts that they wrote and this version does not need are unused.
                older = set(self.older(group, name, epoch)) - set(needed)
                self._objects.remove_parts(group, name, older)
                with self._lock:
                    self._swept[place] = epoch
                    self._written[place] = set(needed)
            if len(removable) >= AT_ONCE:
                self._remove(place)
        except PenstockError as error:
            logger.warning("old versions of %s of group %s are not removed yet: %s", name, group, error)

    def clean(self, group: str, name: str) -> None:
        """Remove what can be removed when the lease is released."""
        try:
            self._remove((group, name))
        except PenstockError as error:
            logger.warning("old versions of %s of group %s are left to the next owner: %s", name, group, error)
        with self._lock:
            for kept in (self._written, self._removable, self._swept):
                kept.pop((group, name), None)

    def close(self) -> None:
        with self._lock:
            places = list(self._removable)
        for group, name in places:
            self.clean(group, name)

    def older(self, group: str, name: str, epoch: int) -> list[str]:
        """The parts of a head that were written with a lower epoch."""
        return [part for part in self._objects.parts(group, name) if epoch_of(part) < epoch]

    def _remove(self, place: tuple[str, str]) -> None:
        with self._lock:
            doomed = list(self._removable.get(place, ()))
        if doomed:
            self._objects.remove_parts(*place, doomed)
            with self._lock:
                self._removable.get(place, set()).difference_update(doomed)
