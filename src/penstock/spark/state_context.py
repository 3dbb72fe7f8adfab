"""What a stateful function may ask for beside its rows: what is kept for the key, the time, and timers."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from penstock.spark.state_shapes import Shape

Timers = Literal["event", "processing"]
_Found = TypeVar("_Found")


class Kept:
    """One value for each key."""

    __slots__ = ("_shape", "_state")

    def __init__(self, state: ValueState, shape: Shape) -> None:
        self._state = state
        self._shape = shape

    def get(self, default: Any = None) -> Any:
        kept = self._state.get()
        return default if kept is None else self._shape.decode(kept)

    def put(self, value: Any) -> None:
        self._state.update(self._shape.encode(value))

    def delete(self) -> None:
        self._state.clear()


class KeptList:
    """A list for each key. It may be longer than memory has room for: it is read piece by piece."""

    __slots__ = ("_shape", "_state")

    def __init__(self, state: ListState, shape: Shape) -> None:
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
        """These, and nothing else."""
        encoded: list[tuple[Any, ...]] = [self._shape.encode(value) for value in values]
        if encoded:
            self._state.put(encoded)
        else:
            self._state.clear()

    def delete(self) -> None:
        self._state.clear()


class KeptMap:
    """A map for each key. Only what is asked for is read."""

    __slots__ = ("_keys", "_state", "_values")

    def __init__(self, state: MapState, keys: Shape, values: Shape) -> None:
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


class KeyContext:
    """One key in the hands of a stateful function. It is of no use once the function has ended.

    What is put here is saved with the batch: all of it together with the results, or, if the batch fails, none of it.
    """

    __slots__ = ("_handle", "_kept", "_lists", "_maps", "_moment", "_timers", "key")

    def __init__(
        self,
        key: Any,
        kept: Mapping[str, Kept],
        lists: Mapping[str, KeptList],
        maps: Mapping[str, KeptMap],
        handle: StatefulProcessorHandle,
        timers: Timers | None,
        moment: TimerValues,
    ) -> None:
        self.key = key
        self._kept = kept
        self._lists = lists
        self._maps = maps
        self._handle = handle
        self._timers = timers
        self._moment = moment

    @property
    def state(self) -> Kept:
        """The value that is kept for the key, of the type that `state=` says."""
        return _named(self._kept, "", "state=")

    def value(self, name: str) -> Kept:
        return _named(self._kept, name, "values=")

    def list(self, name: str) -> KeptList:
        return _named(self._lists, name, "lists=")

    def map(self, name: str) -> KeptMap:
        return _named(self._maps, name, "maps=")

    @property
    def now(self) -> datetime.datetime:
        """When the batch began. A batch that is repeated after a crash has the time it had before."""
        self._need_timers("the time")
        return _time(self._moment.getCurrentProcessingTimeInMs())

    @property
    def watermark(self) -> datetime.datetime:
        """No row from before it comes any more. The beginning of 1970 in the first batch."""
        if self._timers != "event":
            raise HandlerError("there is no watermark here: it needs timers='event', and a frame with a watermark")
        return _time(self._moment.getCurrentWatermarkInMs())

    def timer(self, at: datetime.datetime) -> None:
        """Have the key's `on_timer` called once, when the watermark (or with timers='processing' the clock) has reached
        this time; if it has already, with the next step that it makes. A time that is set twice is one timer."""
        self._handle.registerTimer(max(self._expiry_ms(at), self._reached_ms() + 1))

    def cancel(self, at: datetime.datetime) -> None:
        """No such timer any more. Nothing happens if there is none."""
        self._handle.deleteTimer(self._expiry_ms(at))

    def timers(self) -> Sequence[datetime.datetime]:
        """Those of this key that have not come yet, ascending."""
        self._need_timers("timers")
        return sorted(_time(at_ms) for at_ms in self._handle.listTimers())

    def _reached_ms(self) -> int:
        if self._timers == "event":
            return self._moment.getCurrentWatermarkInMs()
        return self._moment.getCurrentProcessingTimeInMs()

    def _expiry_ms(self, at: datetime.datetime) -> int:
        self._need_timers("timers")
        return milliseconds(at, "timer")

    def _need_timers(self, what: str) -> None:
        if self._timers is None:
            raise HandlerError(f"{what}: there is none of it here: it needs timers='event' or timers='processing'")


def _named(kept: Mapping[str, _Found], name: str, option: str) -> _Found:
    try:
        return kept[name]
    except KeyError:
        raise HandlerError(f"no state {name!r} is kept here: declare it with {option}") from None


def _time(at_ms: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=at_ms)
