"""State of one key whose changes are held back until `commit`, so that a call that fails has no effect.

Each class stands before a state of Spark, or before another buffer, and has those of its methods that `KeyContext`
uses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from penstock.spark.state.shapes import Shape

_Answer = TypeVar("_Answer")
_DELETED: Final = object()


class StateErrors:
    """Notes an error of Spark's state, which is not the fault of a row."""

    def __init__(self) -> None:
        self.first: Exception | None = None

    def noted(self, call: Callable[..., _Answer], *given: Any) -> _Answer:
        try:
            return call(*given)
        except Exception as error:
            self.first = self.first or error
            raise

    def rows(self, rows: Iterable[_Answer]) -> Iterator[_Answer]:
        iterator = iter(rows)
        while True:
            try:
                row = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                self.first = self.first or error
                raise
            yield row


class BufferedValue:
    """Stands before a `ValueState`."""

    __slots__ = ("_errors", "_is_changed", "_state", "_value")

    def __init__(self, state: Any, errors: StateErrors) -> None:
        self._state = state
        self._errors = errors
        self.discard()

    def get(self) -> Any:
        return self._value if self._is_changed else self._errors.noted(self._state.get)

    def update(self, value: Any) -> None:
        self._is_changed, self._value = True, value

    def clear(self) -> None:
        self._is_changed, self._value = True, None

    def commit(self) -> None:
        if self._is_changed and self._value is None:
            self._state.clear()
        elif self._is_changed:
            self._state.update(self._value)
        self.discard()

    def discard(self) -> None:
        self._is_changed, self._value = False, None


class BufferedList:
    """Stands before a `ListState`."""

    __slots__ = ("_added", "_errors", "_is_replaced", "_state")

    def __init__(self, state: Any, errors: StateErrors) -> None:
        self._state = state
        self._errors = errors
        self.discard()

    def get(self) -> Iterator[Any]:
        added = list(self._added)
        if not self._is_replaced:
            yield from self._errors.rows(self._errors.noted(self._state.get))
        yield from added

    def appendValue(self, value: Any) -> None:
        self._added.append(value)

    def appendList(self, values: list[Any]) -> None:
        self._added += values

    def put(self, values: list[Any]) -> None:
        self._is_replaced, self._added = True, list(values)

    def clear(self) -> None:
        self._is_replaced, self._added = True, []

    def commit(self) -> None:
        if self._is_replaced and self._added:
            self._state.put(self._added)
        elif self._is_replaced:
            self._state.clear()
        elif self._added:
            self._state.appendList(self._added)
        self.discard()

    def discard(self) -> None:
        self._is_replaced, self._added = False, []


class BufferedMap:
    """Stands before a `MapState`."""

    __slots__ = ("_entries", "_errors", "_is_cleared", "_keys", "_state")

    def __init__(self, state: Any, errors: StateErrors, keys: Shape) -> None:
        self._state = state
        self._errors = errors
        self._keys = keys
        self._is_cleared = False
        self._entries: dict[Hashable, tuple[Any, Any]] = {}

    def getValue(self, key: Any) -> Any:
        known = self._entries.get(self._keys.hashed(key))
        if known is not None:
            return None if known[1] is _DELETED else known[1]
        return None if self._is_cleared else self._errors.noted(self._state.getValue, key)

    def containsKey(self, key: Any) -> bool:
        known = self._entries.get(self._keys.hashed(key))
        if known is not None:
            return known[1] is not _DELETED
        return not self._is_cleared and self._errors.noted(self._state.containsKey, key)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        entries = dict(self._entries)
        if not self._is_cleared:
            for key, value in self._errors.rows(self._errors.noted(self._state.iterator)):
                if self._keys.hashed(key) not in entries:
                    yield key, value
        yield from ((key, value) for key, value in entries.values() if value is not _DELETED)

    def updateValue(self, key: Any, value: Any) -> None:
        self._entries[self._keys.hashed(key)] = key, value

    def removeKey(self, key: Any) -> None:
        self._entries[self._keys.hashed(key)] = key, _DELETED

    def clear(self) -> None:
        self._is_cleared, self._entries = True, {}

    def commit(self) -> None:
        if self._is_cleared:
            self._state.clear()
        for key, value in self._entries.values():
            if value is not _DELETED:
                self._state.updateValue(key, value)
            elif not self._is_cleared:
                self._state.removeKey(key)
        self.discard()

    def discard(self) -> None:
        self._is_cleared, self._entries = False, {}


class BufferedTimers:
    """Stands before the timers of a `StatefulProcessorHandle`."""

    __slots__ = ("_errors", "_handle", "_is_set")

    def __init__(self, handle: Any, errors: StateErrors) -> None:
        self._handle = handle
        self._errors = errors
        self._is_set: dict[int, bool] = {}

    def registerTimer(self, at_ms: int) -> None:
        self._is_set[at_ms] = True

    def deleteTimer(self, at_ms: int) -> None:
        self._is_set[at_ms] = False

    def listTimers(self) -> Iterator[int]:
        is_set = dict(self._is_set)
        yield from (at for at in self._errors.rows(self._errors.noted(self._handle.listTimers)) if at not in is_set)
        yield from (at for at, is_there in is_set.items() if is_there)

    def commit(self) -> None:
        for at_ms, is_there in self._is_set.items():
            (self._handle.registerTimer if is_there else self._handle.deleteTimer)(at_ms)
        self.discard()

    def discard(self) -> None:
        self._is_set = {}


class KeyBuffer:
    """All state of the current key, and its timers."""

    def __init__(
        self,
        values: Mapping[str, Any],
        lists: Mapping[str, Any],
        maps: Mapping[str, Any],
        keys: Mapping[str, Shape],
        timers: Any,
        errors: StateErrors | None = None,
    ) -> None:
        """The states of Spark by name, or those of another buffer; `keys` has the shape of the keys of each map."""
        self.errors = errors or StateErrors()
        self._below = values, lists, maps, keys, timers
        self.values = {name: BufferedValue(state, self.errors) for name, state in values.items()}
        self.lists = {name: BufferedList(state, self.errors) for name, state in lists.items()}
        self.maps = {name: BufferedMap(state, self.errors, keys[name]) for name, state in maps.items()}
        self.timers = BufferedTimers(timers, self.errors)

    def nested(self) -> KeyBuffer:
        """A buffer that commits to this one."""
        return KeyBuffer(self.values, self.lists, self.maps, self._below[3], self.timers, self.errors)

    def beside(self) -> KeyBuffer:
        """Another buffer before the same states."""
        return KeyBuffer(*self._below, self.errors)

    def commit(self) -> None:
        for each in self._parts():
            each.commit()

    def discard(self) -> None:
        for each in self._parts():
            each.discard()

    def _parts(self) -> Iterator[BufferedValue | BufferedList | BufferedMap | BufferedTimers]:
        yield from self.values.values()
        yield from self.lists.values()
        yield from self.maps.values()
        yield self.timers
