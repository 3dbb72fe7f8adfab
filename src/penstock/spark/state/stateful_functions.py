"""`stateful`: a function that is called with the rows of a key and the state that it kept before.

It is the counterpart of `ctx.state` in handlers, on Spark's transformWithState: the state is local to the tasks (in
RocksDB), is saved with each batch in the checkpoint of the query, and is consistent with the batch.

    def spent(customer, orders, ctx):
        total = ctx.state.get(0.0) + sum(order.amount for order in orders)
        ctx.state.put(total)
        yield {"customer": customer, "total": total}

    totals = stateful(orders, "customer", spent, "customer string, total double", state=float, mode="update")
"""

from __future__ import annotations

import datetime
import functools
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import DataType, StructType

from penstock.errors import ConfigError, MissingExtraError
from penstock.model.times import EPOCH, milliseconds
from penstock.spark.durations import Duration, microseconds
from penstock.spark.errors import reports
from penstock.spark.errors.guarded_plans import with_origins
from penstock.spark.errors.reports import Reporter, is_guarded
from penstock.spark.run.plans import note_state
from penstock.spark.state.buffers import KeyBuffer
from penstock.spark.state.context import KeyContext, KeyStates, StateList, StateMap, StateValue, Timers
from penstock.spark.state.guarded_calls import KeyGuard
from penstock.spark.state.shapes import Shape, for_arrow, from_arrow, is_nested
from penstock.spark.values.columns import require_columns

Output = Any
"""An output row: a dict, a Row, a tuple or a dataclass that fits the output columns."""
StatefulFunction = Callable[[Any, Iterator[Row], KeyContext], Iterable[Output] | None]
TimerFunction = Callable[[Any, datetime.datetime, KeyContext], Iterable[Output] | None]

_TIME_MODES: Final = {None: "None", "event": "EventTime", "processing": "ProcessingTime"}
_ENDLESS: Final = re.compile(r"TransformWithState\w* .*, ProcessingTime, ")
_NEVER_LATE_MS: Final = 2**63 - 1
_STATE: Final = "state"
"""The name of `ctx.state` in Spark's checkpoint."""


@dataclass(frozen=True, slots=True)
class Stateful:
    """A function with the types of its state and output."""

    function: StatefulFunction
    output: Shape
    on_timer: TimerFunction | None
    timers: Timers | None
    ttl_ms: int | None
    values: Mapping[str, Shape]
    """By name; the empty name is `ctx.state`."""
    lists: Mapping[str, Shape] = field(default_factory=dict)
    maps: Mapping[str, tuple[Shape, Shape]] = field(default_factory=dict)

    def kept(self) -> dict[str, list[str]]:
        """A description of the function and its state, which a checkpoint must match."""
        kept = [f"{name or _STATE} {shape.schema.simpleString()}" for name, shape in self.values.items()]
        kept += [f"{name} list of {shape.schema.simpleString()}" for name, shape in self.lists.items()]
        kept += [
            f"{name} map of {keys.schema.simpleString()} to {values.schema.simpleString()}"
            for name, (keys, values) in self.maps.items()
        ]
        return {"function": [_name_of(self.function, "__qualname__")], "state": sorted(kept)}


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
    """The rows that `function(key, rows, ctx)` yields; it is called once per batch for each key with rows.

    `key` is one column or several; for several, the function gets a tuple. The rows of a key are in no particular
    order. State is described by a type (a dataclass, a msgspec type, float, ...) or a StructType: `state` for
    `ctx.state`, and `values`, `lists` and `maps` (a pair of types, for keys and values) by name. `output` is the type
    of the output rows, or a schema in Spark's text form.

    With `timers`, `on_timer(key, at, ctx)` is called for each due timer after the rows of the batch: "event" timers
    follow the watermark, which the frame must have (see `Pipeline.on_time`), "processing" timers the clock. `ttl`
    deletes state that was not put for so long, by the clock. A query with "processing" timers or `ttl` never runs out
    of work, so it cannot be run once. In mode "update", results replace earlier ones of their key; in "append", they
    are final.
    """
    _require_parts()
    columns = [key] if isinstance(key, str) else list(key)
    require_columns(frame.columns, columns, " for the key", at_least_one=True)
    if mode not in ("append", "update"):
        raise ConfigError(f"mode={mode!r} is not allowed: use append or update")
    schema = frame.sparkSession._parse_ddl(output) if isinstance(output, str) else output
    doing = _stateful(function, schema, state, values, lists, maps, ttl, timers, on_timer)
    if timers == "event" and "EventTimeWatermark" not in frame._jdf.queryExecution().analyzed().toString():
        raise ConfigError("timers='event' needs a watermark: apply pipe.on_time or withWatermark to the frame first")
    time_mode = _TIME_MODES["processing" if doing.ttl_ms is not None else timers]
    channel = reports.accumulator(frame.sparkSession.sparkContext)
    known = with_origins(frame)
    has_origin = known is not None
    keys = [frame.schema[column].dataType for column in columns]
    processor = Processor(doing, keys, key, frame.schema, channel, has_origin=has_origin)
    result = (
        (frame if known is None else known)
        .groupBy(*columns)
        .transformWithState(processor, doing.output.schema, mode.capitalize(), time_mode)
    )
    note_state(result, doing.kept())
    return result


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
    """Test a stateful function without a Spark session, with the options of `stateful`.

    `time` names the field with the event time, which timers='event' needs: as in a query, rows that are not after the
    watermark do not reach the function, and rows without a time do.
    """
    _require_parts()
    if (timers == "event") != (time is not None):
        raise ConfigError("timers='event' and time='FIELD' must be used together")
    return Simulation(_stateful(function, output, state, values, lists, maps, None, timers, on_timer), time)


def require_an_end(frame: DataFrame, what: str) -> None:
    """Raise ConfigError if a query of this frame never ends with trigger availableNow."""
    if _ENDLESS.search(frame._jdf.queryExecution().analyzed().toString()):
        raise ConfigError(
            f"{what}: it uses processing time (timers='processing' or ttl), so it never runs out of work, and a run"
            " once would not end. Run it continuously, or use timers='event'"
        )


class Simulation:
    """A stateful function with state in memory, and time controlled by the test."""

    def __init__(self, doing: Stateful, time: str | None) -> None:
        self._tester = TwsTester(
            Processor(doing, None, "key", None),
            timeMode=_TIME_MODES[doing.timers],
            eventTimeExtractor=None if time is None else lambda row: _event_time_ms(row, time),
        )

    def rows(self, key: Any, rows: Iterable[Row | Mapping[str, Any]]) -> list[Row]:
        """The output for these rows of a key. For a key of several columns, pass a tuple."""
        given = [row if isinstance(row, Row) else Row(**row) for row in rows]
        return list(self._tester.test(key, given))

    def watermark(self, at: datetime.datetime) -> list[Row]:
        """Set the watermark, and return the output of the timers that are due."""
        return list(self._tester.setWatermark(milliseconds(at, "watermark")))

    def clock(self, now: datetime.datetime) -> list[Row]:
        """Set the clock, and return the output of the timers that are due, with timers='processing'."""
        return list(self._tester.setProcessingTime(milliseconds(now, "clock")))


class Processor(StatefulProcessor):
    """The processor that Spark runs in its tasks, and once in the driver to learn the schema of the state."""

    def __init__(
        self,
        doing: Stateful,
        keys: Sequence[DataType] | None,
        key: str | Sequence[str],
        rows: StructType | None,
        channel: Accumulator[Any] | None = None,
        *,
        has_origin: bool = False,
    ) -> None:
        """With `has_origin`, Spark's rows have one more column than `rows`: `CARRIED`."""
        self._doing = doing
        self._single = isinstance(key, str)
        self._keys = keys
        self._channel = channel
        self._has_origin = has_origin
        has_nested = rows is not None and any(is_nested(each.dataType) for each in rows)
        self._rows = rows if has_nested or has_origin else None
        self._has_nested_rows = has_nested
        self._has_nested_output = any(is_nested(each.dataType) for each in doing.output.schema)

    def init(self, handle: StatefulProcessorHandle) -> None:
        doing = self._doing
        values = {
            name: handle.getValueState(name or _STATE, shape.schema, doing.ttl_ms)
            for name, shape in doing.values.items()
        }
        lists = {name: handle.getListState(name, shape.schema, doing.ttl_ms) for name, shape in doing.lists.items()}
        maps = {
            name: handle.getMapState(name, keys.schema, of.schema, doing.ttl_ms)
            for name, (keys, of) in doing.maps.items()
        }
        self._states = self._states_of(values, lists, maps, handle)
        self._guard = None
        if is_guarded():
            buffer = KeyBuffer(values, lists, maps, {name: keys for name, (keys, _) in doing.maps.items()}, handle)
            self._guard = KeyGuard(
                self._reporter(doing.function),
                self._reporter(doing.on_timer or doing.function),
                buffer,
                lambda each: self._states_of(each.values, each.lists, each.maps, each.timers),
            )

    def _reporter(self, function: Callable[..., Any]) -> Reporter:
        return Reporter.of_task(f"function {_name_of(function, '__name__')}", self._channel)

    # Spark passes the arguments of these two methods by name.
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:
        def call(given: Iterator[Any], states: KeyStates) -> Iterator[Row]:
            context = self._context(key, states, timerValues)
            return self._given_out(self._doing.function(context.key, self._visible(given), context))

        return call(rows, self._states) if self._guard is None else iter(self._guard.rows(rows, call, self._described))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        on_timer = self._doing.on_timer
        if on_timer is None:
            return iter(())
        at = EPOCH + datetime.timedelta(milliseconds=expiredTimerInfo.getExpiryTimeInMs())

        def call(_: Iterator[Any], states: KeyStates) -> Iterator[Row]:
            context = self._context(key, states, timerValues)
            return self._given_out(on_timer(context.key, at, context))

        if self._guard is None:
            return call(iter(()), self._states)
        described = json.dumps({"key": self._named(key), "timer": at.isoformat()}, default=str)
        return iter(self._guard.timer(call, described))

    def _states_of(
        self, values: Mapping[str, Any], lists: Mapping[str, Any], maps: Mapping[str, Any], timers: Any
    ) -> KeyStates:
        doing = self._doing
        return KeyStates(
            {name: StateValue(state, doing.values[name]) for name, state in values.items()},
            {name: StateList(state, doing.lists[name]) for name, state in lists.items()},
            {name: StateMap(state, *doing.maps[name]) for name, state in maps.items()},
            timers,
        )

    def _context(self, key: Any, states: KeyStates, moment: TimerValues) -> KeyContext:
        return KeyContext(self._named(key), states, self._doing.timers, moment)

    def _named(self, key: Any) -> Any:
        known = tuple(key) if self._keys is None else tuple(map(from_arrow, key, self._keys))
        return known[0] if self._single else known

    def _visible(self, rows: Iterator[Any]) -> Iterator[Any]:
        """The rows as the function gets them."""
        if self._rows is None:
            return rows
        names = self._rows.names
        row_of = Row(*names)
        if not self._has_nested_rows:
            return (row_of(*row[: len(names)]) for row in rows)
        kinds = [each.dataType for each in self._rows]
        return (row_of(*map(from_arrow, row, kinds)) for row in rows)

    def _described(self, row: Any) -> tuple[str | None, str]:
        (shown,) = self._visible(iter((row,)))
        return row[-1] if self._has_origin else None, json.dumps(shown.asDict(True), default=str)

    def _given_out(self, rows: Iterable[Output] | None) -> Iterator[Row]:
        output = self._doing.output
        for row in rows or ():
            encoded = output.encode(row)
            yield for_arrow(encoded, output.schema) if self._has_nested_output else encoded


def _event_time_ms(row: Row, time: str) -> int:
    at = row[time]
    return _NEVER_LATE_MS if at is None else milliseconds(at, time)


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
        raise ConfigError(f"timers={timers!r} is not allowed: use 'event' or 'processing', or omit it")
    if (on_timer is None) != (timers is None):
        raise ConfigError(
            "timers='event' or 'processing' and on_timer=, which is called when a timer is due, must be used together"
        )
    if ttl is not None and timers == "event":
        raise ConfigError(
            "ttl follows the clock, and timers='event' the watermark: delete the state in on_timer instead"
        )
    named = [*(values or {}), *(lists or {}), *(maps or {})]
    wrong = sorted({name for name in named if named.count(name) > 1 or name == _STATE or not name.isidentifier()})
    if wrong:
        raise ConfigError(
            f"state name {', '.join(map(repr, wrong))} is not allowed: names must be unique identifiers, not {_STATE!r}"
        )
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


def _name_of(function: Callable[..., Any], attribute: str) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, attribute, type(function).__name__))


def _require_parts() -> None:
    """Raise MissingExtraError if a package is missing that Spark's workers need for state: they would exit silently."""
    for part in ("pandas", "google.protobuf"):
        try:
            found = importlib.util.find_spec(part)
        except ModuleNotFoundError:  # for google.protobuf, if there is no package google
            found = None
        if found is None:
            raise MissingExtraError(f"state in Spark (it needs {part.removeprefix('google.')})", "spark")
