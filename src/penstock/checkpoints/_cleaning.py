"""Removing parts that no head refers to any more: those of older versions, and what killed owners left behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from penstock.checkpoints._heads import epoch_of
from penstock.checkpoints._shelf import Shelf
from penstock.errors import PenstockError

logger = logging.getLogger(__name__)

AT_ONCE = 16
"""How many parts have to be removable before it is done, as each is a request."""


class Cleaner:
    """Knows the parts that were written here, and which of them the last version needs.

    A part may only be removed when a head has been written that does not refer to it: a write that nobody has heard of
    yet, and that refers to it, is refused from then on. What cannot be removed now is tried again later, and is no
    failure of the save that it comes after.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], set[str]] = {}
        self._removable: dict[tuple[str, str], set[str]] = {}
        self._swept: dict[tuple[str, str], int] = {}

    def written(self, group: str, name: str, parts: Collection[str]) -> None:
        """These parts exist; perhaps a head refers to them."""
        if parts:
            with self._lock:
                self._written.setdefault((group, name), set()).update(parts)

    def saved(self, group: str, name: str, epoch: int, needed: Collection[str]) -> None:
        """A head was written with this epoch, by us, and it refers to these parts and to no others."""
        place = group, name
        with self._lock:
            written = self._written.setdefault(place, set())
            removable = self._removable.setdefault(place, set())
            removable |= written - set(needed)
            self._written[place] = written & set(needed)
            is_first = self._swept.get(place) != epoch
        try:
            if is_first:
                # Owners before this one are fenced, so what they wrote and this version does not need, nobody does.
                older = set(self.older(group, name, epoch)) - set(needed)
                self._shelf.remove_parts(group, name, older)
                with self._lock:
                    self._swept[place] = epoch
                    self._written[place] = set(needed)
            if len(removable) >= AT_ONCE:
                self._remove(place)
        except PenstockError as error:
            logger.warning("old versions of %s of group %s stay for now: %s", name, group, error)

    def clean(self, group: str, name: str) -> None:
        """Remove what can be, as this lease is given up."""
        try:
            self._remove((group, name))
        except PenstockError as error:
            logger.warning("old versions of %s of group %s stay for the next owner: %s", name, group, error)
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
        return [part for part in self._shelf.parts(group, name) if epoch_of(part) < epoch]

    def _remove(self, place: tuple[str, str]) -> None:
        with self._lock:
            doomed = list(self._removable.get(place, ()))
        if doomed:
            self._shelf.remove_parts(*place, doomed)
            with self._lock:
                self._removable.get(place, set()).difference_update(doomed)
