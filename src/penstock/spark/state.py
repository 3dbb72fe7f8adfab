"""State by key, in Spark: a function is called with the rows of a key and what it kept of that key before.

It is the counterpart of `ctx.state` in the library's handlers, on Spark's transformWithState: the state lives beside
the tasks (in RocksDB), is saved with each batch in the checkpoint of the query, and is as exact as the batch is.

    def spent(customer, orders, ctx):
        total = ctx.state.get(0.0) + sum(order.amount for order in orders)
        ctx.state.put(total)
        yield {"customer": customer, "total": total}

    totals = stateful(orders, "customer", spent, "customer string, total double", state=float, mode="update")
"""

from __future__ import annotations

import datetime
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import DataType, StructType

from penstock.errors import ConfigError, MissingExtraError
from penstock.model.times import EPOCH, milliseconds
from penstock.spark.durations import Duration, microseconds
from penstock.spark.state_context import Kept, KeptList, KeptMap, KeyContext, Timers
from penstock.spark.state_shapes import Shape, for_arrow, from_arrow, is_nested

Output = Any
"""What a function gives out for each row: a dict, a Row, a tuple or a dataclass that fits the output's columns."""
StatefulFunction = Callable[[Any, Iterator[Row], KeyContext], Iterable[Output] | None]
TimerFunction = Callable[[Any, datetime.datetime, KeyContext], Iterable[Output] | None]

_TIME_MODES: Final = {None: "None", "event": "EventTime", "processing": "ProcessingTime"}
_ENDLESS: Final = re.compile(r"TransformWithState\w* .*, ProcessingTime, ")
_STATE: Final = "state"
"""What the one value without a name is called in Spark's checkpoint."""


@dataclass(frozen=True, slots=True)
class Stateful:
    """A function, with what it keeps and what it gives out."""

    function: StatefulFunction
    output: Shape
    on_timer: TimerFunction | None
    timers: Timers | None
    ttl_ms: int | None
    values: Mapping[str, Shape]
    """By name; the one without a name is `ctx.state`."""
    lists: Mapping[str, Shape] = field(default_factory=dict)
    maps: Mapping[str, tuple[Shape, Shape]] = field(default_factory=dict)


def stateful(
    frame: DataFrame,
    key: str | Sequence[str],
    function: StatefulFunction,
    output: StructType | str | type[Any],
    *,
    state: Any = None,
    values: Mapping[str, Any] | None = None,
    lists: Mapping[str, Any] | None = None,
    maps: Mapping[str, tuple[Any, Any]] | None = None,
    ttl: Duration | None = None,
    timers: Timers | None = None,
    on_timer: TimerFunction | None = None,
    mode: str = "append",
) -> DataFrame:
    """The rows that `function(key, rows, ctx)` gives out, called once per batch for each key that has rows in it.

    `key` is a column, or several: the function then gets a tuple. The rows of a key come in no particular order. What
    is kept is described by a type (a dataclass, a msgspec type, float, ...) or a StructType: `state` for `ctx.state`,
    and by name `values`, `lists` and `maps` (a pair: of the keys, of the values). `output` is the schema of what is
    given out: the same, or text as Spark reads it.

    With timers, `on_timer(key, at, ctx)` is called for each that has come, after the rows of the batch: "event" counts
    by the watermark, which the frame must have (see `late.OnTimeGate`), "processing" by the clock. `ttl` removes what
    has not been put for so long, by the clock; a query with either of the last two never has nothing left to do, so it
    cannot be run once. In mode "update" the results replace earlier ones of their key; in "append" they are final.
    """
    _require_parts()
    columns = [key] if isinstance(key, str) else list(key)
    missing = [column for column in columns if column not in frame.columns]
    if missing or not columns:
        raise ConfigError(f"the key has no column {', '.join(missing)}: there are {', '.join(frame.columns)}")
    if mode not in ("append", "update"):
        raise ConfigError(f"mode={mode!r} is not allowed: use append or update")
    schema = frame.sparkSession._parse_ddl(output) if isinstance(output, str) else output
    doing = _stateful(function, schema, state, values, lists, maps, ttl, timers, on_timer)
    if timers == "event" and "EventTimeWatermark" not in frame._jdf.queryExecution().analyzed().toString():
        raise ConfigError("timers='event' needs a watermark: put the frame behind pipe.on_time or withWatermark first")
    time_mode = _TIME_MODES["processing" if doing.ttl_ms is not None else timers]
    processor = Processor(doing, [frame.schema[column].dataType for column in columns], key, frame.schema)
    return frame.groupBy(*columns).transformWithState(processor, doing.output.schema, mode.capitalize(), time_mode)


def simulate(
    function: StatefulFunction,
    output: StructType | type[Any],
    *,
    state: Any = None,
    values: Mapping[str, Any] | None = None,
    lists: Mapping[str, Any] | None = None,
    maps: Mapping[str, tuple[Any, Any]] | None = None,
    timers: Timers | None = None,
    on_timer: TimerFunction | None = None,
    time: str | None = None,
) -> Simulation:
    """Try a stateful function without Spark running: the options are those of `stateful`.

    `time` names the field with the event time, which timers='event' needs: rows that are not after the watermark do not
    reach the function, as in a query.
    """
    _require_parts()
    if (timers == "event") != (time is not None):
        raise ConfigError("timers='event' and time='the field with the event time' go together")
    return Simulation(_stateful(function, output, state, values, lists, maps, None, timers, on_timer), time)


def require_an_end(frame: DataFrame, what: str) -> None:
    """Refuse a frame that never runs out of work, for a run that is to end when there is none left."""
    if _ENDLESS.search(frame._jdf.queryExecution().analyzed().toString()):
        raise ConfigError(
            f"{what}: it counts processing time (timers='processing', or ttl), so Spark never finds that nothing is"
            " left to do, and a run once would not end. Run it continuously, or use timers='event'"
        )


class Simulation:
    """A stateful function with state in memory, and time in the hands of the test."""

    def __init__(self, doing: Stateful, time: str | None) -> None:
        from pyspark.sql.streaming.tws_tester import TwsTester

        self._tester = TwsTester(
            Processor(doing, None, "key", None),
            timeMode=_TIME_MODES[doing.timers],
            eventTimeExtractor=None if time is None else lambda row: milliseconds(row[time], time),
        )

    def rows(self, key: Any, rows: Iterable[Row | Mapping[str, Any]]) -> list[Row]:
        """What is given out for these rows of a key. The key is what the function gets: of several columns, a tuple."""
        given = [row if isinstance(row, Row) else Row(**row) for row in rows]
        return list(self._tester.test(key, given))

    def watermark(self, at: datetime.datetime) -> list[Row]:
        """What the timers give out that come with this watermark."""
        return list(self._tester.setWatermark(milliseconds(at, "watermark")))

    def clock(self, now: datetime.datetime) -> list[Row]:
        """What the timers give out that come by this time, with timers='processing'."""
        return list(self._tester.setProcessingTime(milliseconds(now, "clock")))


class Processor(StatefulProcessor):
    """What Spark runs in its tasks, and once in the driver, to see what is kept."""

    def __init__(
        self, doing: Stateful, keys: Sequence[DataType] | None, key: str | Sequence[str], rows: StructType | None
    ) -> None:
        self._doing = doing
        self._single = isinstance(key, str)
        self._keys = keys
        self._rows = rows if rows is not None and any(is_nested(each.dataType) for each in rows) else None
        self._has_nested_output = any(is_nested(each.dataType) for each in doing.output.schema)

    def init(self, handle: StatefulProcessorHandle) -> None:
        doing = self._doing
        self._handle = handle
        self._kept = {
            name: Kept(handle.getValueState(name or _STATE, shape.schema, doing.ttl_ms), shape)
            for name, shape in doing.values.items()
        }
        self._lists = {
            name: KeptList(handle.getListState(name, shape.schema, doing.ttl_ms), shape)
            for name, shape in doing.lists.items()
        }
        self._maps = {
            name: KeptMap(handle.getMapState(name, keys.schema, values.schema, doing.ttl_ms), keys, values)
            for name, (keys, values) in doing.maps.items()
        }

    # Spark passes the arguments of these two by name, and the names are its own.
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:
        context = self._context(key, timerValues)
        if self._rows is not None:
            kinds = [each.dataType for each in self._rows]
            row_of = Row(*self._rows.names)
            rows = (row_of(*map(from_arrow, row, kinds)) for row in rows)
        return self._given_out(self._doing.function(context.key, rows, context))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        if self._doing.on_timer is None:
            return iter(())
        context = self._context(key, timerValues)
        at = EPOCH + datetime.timedelta(milliseconds=expiredTimerInfo.getExpiryTimeInMs())
        return self._given_out(self._doing.on_timer(context.key, at, context))

    def _context(self, key: Any, moment: TimerValues) -> KeyContext:
        known = tuple(key) if self._keys is None else tuple(map(from_arrow, key, self._keys))
        named = known[0] if self._single else known
        return KeyContext(named, self._kept, self._lists, self._maps, self._handle, self._doing.timers, moment)

    def _given_out(self, rows: Iterable[Output] | None) -> Iterator[Row]:
        output = self._doing.output
        for row in rows or ():
            encoded = output.encode(row)
            yield for_arrow(encoded, output.schema) if self._has_nested_output else encoded


def _stateful(
    function: StatefulFunction,
    output: Any,
    state: Any,
    values: Mapping[str, Any] | None,
    lists: Mapping[str, Any] | None,
    maps: Mapping[str, tuple[Any, Any]] | None,
    ttl: Duration | None,
    timers: Timers | None,
    on_timer: TimerFunction | None,
) -> Stateful:
    if timers is not None and timers not in get_args(Timers):
        raise ConfigError(f"timers={timers!r} is not allowed: use 'event' or 'processing', or leave it out")
    if (on_timer is None) != (timers is None):
        raise ConfigError(
            "timers='event' or 'processing', and on_timer=, which is called when one has come, go together"
        )
    if ttl is not None and timers == "event":
        raise ConfigError(
            "ttl counts by the clock, timers='event' by the watermark: delete the state in on_timer instead"
        )
    named = [*(values or {}), *(lists or {}), *(maps or {})]
    wrong = sorted({name for name in named if named.count(name) > 1 or name == _STATE or not name.isidentifier()})
    if wrong:
        raise ConfigError(f"state cannot be called {', '.join(map(repr, wrong))}: use a name once, and not {_STATE!r}")
    kept = {name: Shape(each, f"state {name}") for name, each in (values or {}).items()}
    if state is not None:
        kept[""] = Shape(state, "state")
    return Stateful(
        function,
        Shape(output, "output"),
        on_timer,
        timers,
        None if ttl is None else max(1, microseconds(ttl, "ttl") // 1_000),
        kept,
        {name: Shape(each, f"state {name}") for name, each in (lists or {}).items()},
        {name: (Shape(of, f"state {name}"), Shape(to, f"state {name}")) for name, (of, to) in (maps or {}).items()},
    )


def _require_parts() -> None:
    """Spark needs these for state, and without them its workers end without a word."""
    for part in ("pandas", "google.protobuf"):
        try:
            found = importlib.util.find_spec(part)
        except ModuleNotFoundError:  # of google.protobuf, when there is no google
            found = None
        if found is None:
            raise MissingExtraError(f"state in Spark (it needs {part.removeprefix('google.')})", "spark")
