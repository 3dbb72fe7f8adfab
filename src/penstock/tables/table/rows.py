"""The rows of a table in memory, and what rows anywhere can do."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.errors import ConfigError, SerdeError
from penstock.model import Batch, Pointer
from penstock.tables.changes import ChangeDecoder, Extract, Outcome

MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class TableChange:
    """What one record has changed."""

    key: Any
    before: Any
    """The row until now; None if there was none."""
    after: Any
    """The row from now on; None if it was deleted."""
    partition: int
    pointer: Pointer
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class Identity:
    """The topic that rows come from. One that was deleted and created again has another id."""

    topic: str
    topic_id: str | None


class Readable(Protocol):
    """Rows to look up, from any thread."""

    def __getitem__(self, key: Any) -> Any:
        """Raises KeyError if there is no such row, and SerdeError if it cannot be decoded."""

    def __len__(self) -> int: ...

    def items(self) -> Iterator[tuple[Any, Any]]: ...

    def by(self, index: str, value: Any) -> dict[Any, Any]: ...


class Rows(Readable, Protocol):
    """Rows that one thread keeps up to date."""

    identity: Identity | None
    """Where the saved rows come from; None if nothing is saved."""
    fresh_ms: int
    """When the saved rows were known to be complete, in milliseconds since 1970."""

    def pointers(self) -> dict[int, Pointer]:
        """Where to continue in each partition: saved atomically with the rows."""

    def apply(self, batches: Sequence[Batch], now_ms: int, *, wanted: bool) -> list[TableChange]:
        """Apply the records and save where they end, at once. Returns what has changed, if that is `wanted`."""

    def touch(self, now_ms: int) -> None:
        """Save that the rows are complete now."""

    def restart(self, identity: Identity) -> None:
        """Delete all rows and pointers."""

    def close(self) -> None: ...


class Indexes:
    """The secondary indexes of a table."""

    def __init__(self, extracts: Mapping[str, Extract]) -> None:
        self.extracts = dict(extracts)

    def require(self, name: str) -> None:
        if name not in self.extracts:
            known = f"it has {', '.join(self.extracts)}" if self.extracts else "it has none"
            raise ConfigError(f"the table has no index {name!r}: {known}; pass indexes=[{name!r}]")

    def values(self, row: Any) -> dict[str, Any]:
        """The value of each index for a row. One that cannot be hashed is indexed by its text."""
        found = {name: extract(row) for name, extract in self.extracts.items()}
        for name, value in found.items():
            try:
                hash(value)
            except TypeError:
                found[name] = repr(value)
        return found


class MemoryRows(dict[Any, Any]):
    """Decoded rows in a dict, so that a lookup is that of a dict."""

    def __init__(self, decoder: ChangeDecoder, indexes: Indexes) -> None:
        super().__init__()
        self.identity: Identity | None = None
        self.fresh_ms = 0
        self._decoder = decoder
        self._indexes = indexes
        self._pointers: dict[int, Pointer] = {}
        self._keys_by: dict[str, dict[Any, dict[Any, None]]] = {name: {} for name in indexes.extracts}
        self._undecodable: dict[Any, SerdeError] = {}
        self._first: int | None = None
        """The partition of all rows, until there are rows of another one."""
        self._partition_of: dict[Any, int] | None = None
        self._lock = threading.Lock()
        """Held while rows change, and while more than one is read."""

    def __missing__(self, key: Any) -> Any:
        canonical = self._decoder.loaded_key(self._decoder.stored_key(key))
        if canonical in self._undecodable:
            raise self._undecodable[canonical]
        row = super().get(canonical, MISSING)
        if row is MISSING:
            raise KeyError(key)
        return row

    def items(self) -> Iterator[tuple[Any, Any]]:  # type: ignore[override]  # not a view: the rows change
        with self._lock:
            found = list(super().items())
            undecodable = next(iter(self._undecodable.values()), None)
        if undecodable is not None:
            raise undecodable
        return iter(found)

    def by(self, index: str, value: Any) -> dict[Any, Any]:
        self._indexes.require(index)
        with self._lock:
            return {key: dict.__getitem__(self, key) for key in self._keys_by[index].get(value, ())}

    def pointers(self) -> dict[int, Pointer]:
        return dict(self._pointers)

    def apply(self, batches: Sequence[Batch], now_ms: int, *, wanted: bool) -> list[TableChange]:
        changes: list[TableChange] = []
        with self._lock:
            for batch in batches:
                self._apply(batch, changes if wanted else None)
                self._pointers[batch.partition] = batch.next
        return changes

    def apply_until(self, batch: Batch, end: Pointer) -> None:
        """Apply the records before `end`."""
        with self._lock:
            self._apply(batch, None, end)

    def load(self, rows: Iterable[tuple[Any, int, bytes]]) -> None:
        """Keys, with the partition and the value of each. Nobody else has these rows yet."""
        for key, partition, data in rows:
            self._set(key, data, partition)

    def touch(self, now_ms: int) -> None:
        self.fresh_ms = now_ms

    def restart(self, identity: Identity) -> None:
        with self._lock:
            self.identity = identity
            for known in (self, self._pointers, self._undecodable, *self._keys_by.values()):
                known.clear()
            self._partition_of = self._first = None

    def close(self) -> None:
        """Nothing is held."""

    def _apply(self, batch: Batch, changes: list[TableChange] | None, end: Pointer | None = None) -> None:
        partition, outcome_of, key_of = batch.partition, self._decoder.outcome, self._decoder.key
        pointers = batch.pointers()
        times = batch.timestamps() if changes is not None else ()
        for at, (raw_key, value) in enumerate(zip(batch.keys(), batch.values(), strict=True)):
            if end is not None and pointers[at] >= end:
                return
            outcome, data = outcome_of(raw_key, value)
            if outcome is Outcome.NOTHING:
                continue
            keys: Iterable[Hashable]
            keys = self._keys_of(partition) if outcome is Outcome.TRUNCATE else [key_of(raw_key)]  # type: ignore[arg-type]  # only a truncate lacks a key
            for key in keys:
                before = super().get(key)
                if data is None:
                    self._delete(key)
                else:
                    self._set(key, data, partition)
                if changes is not None:
                    after = super().get(key)
                    if before is not None or after is not None:
                        changes.append(TableChange(key, before, after, partition, pointers[at], times[at]))

    def _keys_of(self, partition: int) -> list[Any]:
        if self._partition_of is None:
            return [*self, *self._undecodable] if partition == self._first else []
        return [key for key, where in self._partition_of.items() if where == partition]

    def _set(self, key: Any, data: bytes, partition: int) -> None:
        if partition != self._first:
            if self._first is None:
                self._first = partition
            elif self._partition_of is None:
                self._partition_of = dict.fromkeys([*self, *self._undecodable], self._first)
        try:
            row = self._decoder.row(data)
        except SerdeError as error:
            self._delete(key)
            self._undecodable[key] = error
        else:
            if self._keys_by:
                self._unindex(key)
                for name, value in self._indexes.values(row).items():
                    self._keys_by[name].setdefault(value, {})[key] = None
            if self._undecodable:
                self._undecodable.pop(key, None)
            self[key] = row
        if self._partition_of is not None:
            self._partition_of[key] = partition

    def _delete(self, key: Any) -> None:
        if self._keys_by:
            self._unindex(key)
        self.pop(key, None)
        self._undecodable.pop(key, None)
        if self._partition_of is not None:
            self._partition_of.pop(key, None)

    def _unindex(self, key: Any) -> None:
        row = super().get(key, MISSING)
        if row is MISSING:
            return
        for name, value in self._indexes.values(row).items():
            keys = self._keys_by[name].get(value, {})
            keys.pop(key, None)
            if not keys:
                self._keys_by[name].pop(value, None)
