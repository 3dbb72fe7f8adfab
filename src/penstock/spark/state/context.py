"""`KeyContext`: the state, the time and the timers of one key, for stateful functions."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)

from penstock.errors import HandlerError
from penstock.model.times import EPOCH, milliseconds
from penstock.spark.state.buffers import BufferedList, BufferedMap, BufferedTimers, BufferedValue
from penstock.spark.state.shapes import Shape

Timers = Literal["event", "processing"]
_Found = TypeVar("_Found")


class StateValue:
    """One value for each key."""

    __slots__ = ("_shape", "_state")

    def __init__(self, state: ValueState | BufferedValue, shape: Shape) -> None:
        self._state = state
        self._shape = shape

    def get(self, default: Any = None) -> Any:
        kept = self._state.get()
        return default if kept is None else self._shape.decode(kept)

    def put(self, value: Any) -> None:
        self._state.update(self._shape.encode(value))

    def delete(self) -> None:
        self._state.clear()


class StateList:
    """A list for each key. It is read piece by piece, so it may exceed the memory."""

    __slots__ = ("_shape", "_state")

    def __init__(self, state: ListState | BufferedList, shape: Shape) -> None:
        self._state = state
        self._shape = shape

    def __iter__(self) -> Iterator[Any]:
        return (self._shape.decode(kept) for kept in self._state.get())

    def append(self, value: Any) -> None:
        self._state.appendValue(self._shape.encode(value))

    def extend(self, values: Iterable[Any]) -> None:
        encoded: list[tuple[Any, ...]] = [self._shape.encode(value) for value in values]
        if encoded:
            self._state.appendList(encoded)

    def replace(self, values: Iterable[Any]) -> None:
        """Replace the whole list."""
        encoded: list[tuple[Any, ...]] = [self._shape.encode(value) for value in values]
        if encoded:
            self._state.put(encoded)
        else:
            self._state.clear()

    def delete(self) -> None:
        self._state.clear()


class StateMap:
    """A map for each key. Only the requested entries are read."""

    __slots__ = ("_keys", "_state", "_values")

    def __init__(self, state: MapState | BufferedMap, keys: Shape, values: Shape) -> None:
        self._state = state
        self._keys = keys
        self._values = values

    def get(self, key: Any, default: Any = None) -> Any:
        kept = self._state.getValue(self._keys.encode(key))
        return default if kept is None else self._values.decode(kept)

    def put(self, key: Any, value: Any) -> None:
        self._state.updateValue(self._keys.encode(key), self._values.encode(value))

    def __contains__(self, key: Any) -> bool:
        return self._state.containsKey(self._keys.encode(key))

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((self._keys.decode(key), self._values.decode(value)) for key, value in self._state.iterator())

    def delete(self, key: Any) -> None:
        self._state.removeKey(self._keys.encode(key))

    def clear(self) -> None:
        self._state.clear()


@dataclass(frozen=True, slots=True)
class KeyStates:
    """The states of the current key by name, and its timers."""

    values: Mapping[str, StateValue]
    lists: Mapping[str, StateList]
    maps: Mapping[str, StateMap]
    timers: StatefulProcessorHandle | BufferedTimers


class KeyContext:
    """The context of one key, valid while the stateful function runs.

    State is saved with the batch: together with the results, or not at all if the batch fails.
    """

    __slots__ = ("_moment", "_states", "_timers", "key")

    def __init__(self, key: Any, states: KeyStates, timers: Timers | None, moment: TimerValues) -> None:
        self.key = key
        self._states = states
        self._timers = timers
        self._moment = moment

    @property
    def state(self) -> StateValue:
        """The state of the key, of the type given by `state=`."""
        return _named(self._states.values, "", "state=")

    def value(self, name: str) -> StateValue:
        return _named(self._states.values, name, "values=")

    def list(self, name: str) -> StateList:
        return _named(self._states.lists, name, "lists=")

    def map(self, name: str) -> StateMap:
        return _named(self._states.maps, name, "maps=")

    @property
    def now(self) -> datetime.datetime:
        """The start of the batch. A batch that is repeated after a crash has the same time."""
        self._need_timers("the time")
        return _time(self._moment.getCurrentProcessingTimeInMs())

    @property
    def watermark(self) -> datetime.datetime:
        """The watermark: no earlier rows will arrive. The start of 1970 in the first batch."""
        if self._timers != "event":
            raise HandlerError("there is no watermark: it needs timers='event', and a frame with a watermark")
        return _time(self._moment.getCurrentWatermarkInMs())

    def timer(self, at: datetime.datetime) -> None:
        """Call the key's `on_timer` once when the watermark (or, with timers='processing', the clock) reaches this
        time; if it already has, at its next advance. Setting the same time twice is one timer."""
        self._states.timers.registerTimer(max(self._expiry_ms(at), self._reached_ms() + 1))

    def cancel(self, at: datetime.datetime) -> None:
        """Delete a timer, if it exists."""
        self._states.timers.deleteTimer(self._expiry_ms(at))

    def timers(self) -> Sequence[datetime.datetime]:
        """The pending timers of this key, ascending."""
        self._need_timers("timers")
        return sorted(_time(at_ms) for at_ms in self._states.timers.listTimers())

    def _reached_ms(self) -> int:
        if self._timers == "event":
            return self._moment.getCurrentWatermarkInMs()
        return self._moment.getCurrentProcessingTimeInMs()

    def _expiry_ms(self, at: datetime.datetime) -> int:
        self._need_timers("timers")
        return milliseconds(at, "timer")

    def _need_timers(self, what: str) -> None:
        if self._timers is None:
            raise HandlerError(f"{what}: not available without timers='event' or timers='processing'")


def _named(kept: Mapping[str, _Found], name: str, option: str) -> _Found:
    try:
        return kept[name]
    except KeyError:
        raise HandlerError(f"there is no state {name!r}: declare it with {option}") from None


def _time(at_ms: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=at_ms)
