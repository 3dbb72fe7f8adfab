"""Runners: call the handler for the records of a task and report the outcome."""

from __future__ import annotations

import functools
import itertools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.abc import Stream
from penstock.consuming.context import Context, HandlerCalls, TransactionOfRecord
from penstock.consuming.handlers import Handler, HandlerArgument
from penstock.consuming.loop.assigned_partition import AssignedPartition
from penstock.consuming.options import IdOf
from penstock.consuming.stages import Stages
from penstock.consuming.workers.lanes import Task
from penstock.errors import SerdeError
from penstock.model import NewRecord
from penstock.serde import BytesSerde, PlainSerde, Topic

Outputs = list[NewRecord]
Deliver = Callable[[Sequence[NewRecord]], None]
"""Sends records, and returns when all are stored."""


@dataclass(slots=True)
class Report:
    """The outcome of a task: records before `done` succeeded; with an error, the one at `done` failed."""

    task: Task
    done: int
    error: BaseException | None = None
    trace: str = ""
    calls: int = 0
    """How often the handler was called."""
    outputs: Outputs = field(default_factory=list)
    """Records to send for the task, where the loop sends them."""
    state: dict[bytes, bytes | None] = field(default_factory=dict)
    """Keyed state that the task changed."""
    before: dict[bytes, bytes | None] = field(default_factory=dict)
    """The state before that, to undo the changes."""
    is_saved: bool = False
    """Already saved, in the transaction of the effects."""
    open: list[int] = field(default_factory=list)
    """Records with tasks that have not all ended: they are finished when those are."""
    is_broken: bool = False
    """The error is in Penstock, not in the handler: the consumer cannot continue."""
    is_whole: bool = False
    """The error concerns all records from `done` on, and it is unknown which: a batch handler failed, or the outputs of
    several records could not be sent."""

    @property
    def is_plain(self) -> bool:
        """Whether its records succeeded and had no other effect."""
        return self.error is None and not (self.outputs or self.state or self.open or self.is_saved)


class Runner:
    """Handles the records of a task."""

    def run(self, task: Task) -> Report:
        """Handle the records of a task, and report each. Raises only what ends the thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what it holds: nothing, unless it says otherwise."""


def failed(report: Report, error: BaseException) -> Report:
    report.error = error
    report.trace = "".join(traceback.format_exception(error))
    return report


def decoder_of(handler: Handler) -> Callable[[bytes | None], Any] | None:
    """The function that decodes a value; None when the handler takes raw bytes.

    A record without a value is an error if the handler's type does not allow None.
    """
    topic = handler.topic
    decode = None if isinstance(topic.serde, BytesSerde | PlainSerde) else topic.decode
    if handler.takes_none or HandlerArgument.VALUE not in handler.wants:
        return decode
    return functools.partial(_decode_value, decode, topic.name, handler.name)


def _decode_value(decode: Callable[[bytes | None], Any] | None, topic: str, name: str, data: bytes | None) -> Any:
    if data is None:
        raise SerdeError(
            f"topic {topic!r}: this record has no value (it is a tombstone, which deletes its key), and the parameter "
            f"of {name} does not allow None: declare it as `value: Order | None` to receive tombstones"
        )
    return data if decode is None else decode(data)


def decode_values(decode: Callable[[bytes | None], Any] | None, values: Sequence[bytes | None]) -> list[Any]:
    """Decode values up to the first that fails, which then starts the next batch.

    Raises the error if the very first value fails.
    """
    if decode is None:
        return list(values)
    decoded: list[Any] = []
    for value in values:
        try:
            decoded.append(decode(value))
        except Exception:
            if not decoded:
                raise
            break
    return decoded


class ValueRunner(Runner):
    """For a handler that takes only the value: nothing else is created."""

    def __init__(self, handler: Handler, collector: OutputCollector) -> None:
        self._function = handler.function
        self._decode = decoder_of(handler)
        self._collector = collector

    def run(self, task: Task) -> Report:
        function, decode = self._function, self._decode
        report = Report(task, task.low)
        values = task.batch.values()
        index = task.low
        try:
            for indexes in task.slices():
                if decode is None:
                    for index in indexes:
                        result = function(values[index])
                        if result is not None:
                            self._collector.take(report, result)
                else:
                    for index in indexes:
                        result = function(decode(values[index]))
                        if result is not None:
                            self._collector.take(report, result)
                report.done = indexes.stop
        except Exception as error:
            report.done = index
            report.calls = index - task.low + 1
            return self._collector.deliver(failed(report, error))
        report.calls = report.done - task.low
        return self._collector.deliver(report)


class RecordRunner(Runner):
    """For a handler that takes the record or the context, one record at a time."""

    def __init__(self, handler: Handler, collector: OutputCollector, call_builder: CallBuilder) -> None:
        self._function = handler.function
        self._collector = collector
        self._call_builder = call_builder

    def run(self, task: Task) -> Report:
        report = Report(task, task.low)
        call_for = self._call_builder.calls(task)
        for index in itertools.chain.from_iterable(task.slices()):
            try:
                arguments, context = call_for(index)
                report.calls += 1
                result = self._function(*arguments)
                self._collector.finish(report, task.assigned, context, result)
            except Exception as error:
                return self._collector.deliver(failed(report, error))
            report.done = index + 1
        return self._collector.deliver(report)


class TreeRunner(RecordRunner):
    """For a handler whose records may emit tasks: each record is the root of a tree."""

    def __init__(
        self, handler: Handler, collector: OutputCollector, call_builder: CallBuilder, stages: Stages, timeout_s: float
    ) -> None:
        super().__init__(handler, collector, call_builder)
        self._stages = stages
        self._timeout_s = timeout_s
        self.tree_ended: Callable[[Task, int, BaseException | None], None] = lambda task, index, error: None

    def run(self, task: Task) -> Report:
        report = Report(task, task.low)
        call_for = self._call_builder.calls(task)
        for index in itertools.chain.from_iterable(task.slices()):
            acknowledger = self._stages.acknowledger
            tree, own = acknowledger.add_tree(functools.partial(self.tree_ended, task, index), self._timeout_s)
            try:
                arguments, context = call_for(index)
                assert context is not None
                context.fork = functools.partial(self._stages.emit, tree, context.record)
                report.calls += 1
                result = self._function(*arguments)
                self._collector.finish(report, task.assigned, context, result)
                self._collector.send(report)
            except Exception as error:
                acknowledger.drop(tree)
                report.outputs = []
                return failed(report, error)
            report.open.append(index)
            report.done = index + 1
            acknowledger.done(tree, own)
        return report


class BatchRunner(RecordRunner):
    """For a handler that takes a list of values. They succeed or fail together."""

    def __init__(self, handler: Handler, collector: OutputCollector, call_builder: CallBuilder) -> None:
        super().__init__(handler, collector, call_builder)
        self._decode = decoder_of(handler)
        self._with_context = HandlerArgument.CONTEXT in handler.wants

    def run(self, task: Task) -> Report:
        report = Report(task, task.low)
        try:
            values = decode_values(self._decode, task.batch.values()[task.low : task.high])
        except Exception as error:
            return failed(report, error)
        high = task.low + len(values)
        try:
            context = self._call_builder.context(task, task.low) if self._with_context else None
            report.calls = len(values)
            result = self._function(values) if context is None else self._function(values, context)
            self._collector.finish(report, task.assigned, context, result)
        except Exception as error:
            report.is_whole = len(values) > 1
            return failed(report, error)
        report.done = high
        return self._collector.deliver(report)


Arguments = Sequence[Any]
MakeCall = Callable[[int], tuple[Arguments, Context | None]]
"""Maps the index of a record to the handler's arguments, and the context if it is among them."""


class CallBuilder:
    """Builds the arguments of handler calls."""

    def __init__(
        self, handler: Handler, group: str, with_state: bool, id_of: IdOf | None, provide: Callable[[Topic[Any]], None]
    ) -> None:
        self._wants = handler.wants
        self._decode = decoder_of(handler)
        self._calling = HandlerCalls(group, id_of, provide, handler.name)
        self._with_state = with_state

    def calls(self, task: Task, part: TransactionOfRecord | None = None) -> MakeCall:
        """A function that builds calls for the records of a task. Common parts are looked up once."""
        if self._wants == (HandlerArgument.VALUE, HandlerArgument.CONTEXT) and self._decode is None:
            return self._calls_with_context(task, part)
        return lambda index: self._arguments(task, index, part)

    def _calls_with_context(self, task: Task, part: TransactionOfRecord | None) -> MakeCall:
        """The fast path for handlers that take the value and the context."""
        assigned, batch, calling = task.assigned, task.batch, self._calling
        values = batch.values()
        store = assigned.state if self._with_state else None
        attempts = assigned.tracker.attempts if assigned.tracker.any_failing else None

        def make(index: int) -> tuple[Arguments, Context]:
            attempt = 1 if attempts is None else attempts(batch.pointer(index)) + 1
            context = Context(calling, batch, index, attempt, store, part)
            return (values[index], context), context

        return make

    def _arguments(self, task: Task, index: int, part: TransactionOfRecord | None) -> tuple[Arguments, Context | None]:
        context = self.context(task, index, part) if HandlerArgument.CONTEXT in self._wants else None
        arguments: list[Any] = []
        for wanted in self._wants:
            if wanted is HandlerArgument.VALUE:
                value = task.batch.values()[index]
                arguments.append(value if self._decode is None else self._decode(value))
            elif wanted is HandlerArgument.RECORD:
                arguments.append(task.batch[index] if context is None else context.record)
            else:
                arguments.append(context)
        return arguments, context

    def context(self, task: Task, index: int, part: TransactionOfRecord | None = None) -> Context:
        assigned = task.assigned
        attempt = assigned.tracker.attempts(task.batch.pointer(index)) + 1
        return Context(self._calling, task.batch, index, attempt, assigned.state if self._with_state else None, part)


def take_records(result: object, to: Topic[Any] | None, outputs: Outputs) -> None:
    """Add a handler's result to the outputs: values for its output topic, records, or a list of either."""
    if isinstance(result, NewRecord):
        outputs.append(result)
    elif isinstance(result, list | tuple) and not hasattr(result, "_fields"):
        for each in result:
            take_records(each, to, outputs)
    elif to is not None:
        outputs.append(to.new_record(result))


class OutputCollector:
    """Collects a handler's outputs: records to send and state to keep."""

    def __init__(self, handler: Handler, deliver: Deliver | None) -> None:
        self._handler = handler
        self._deliver = deliver

    def take(self, report: Report, result: object) -> None:
        """Add a handler's result to the report."""
        take_records(result, self._handler.to, report.outputs)

    def finish(self, report: Report, assigned: AssignedPartition, context: Context | None, result: object) -> None:
        """Add the result, the context's outputs, and changed state to the report."""
        if result is not None:
            self.take(report, result)
        if context is None or not context.was_used:
            return
        report.outputs.extend(context.outputs)
        changed = context.changed_state()
        if changed is not None:
            key, encoded = changed
            report.before.setdefault(key, assigned.state.get(key))
            report.state[key] = encoded
            put_state(assigned, key, encoded)

    def send(self, report: Report) -> None:
        """Send the outputs so far, unless the loop sends them in a transaction."""
        if report.outputs and self._deliver is not None:
            self._deliver(report.outputs)
            report.outputs = []

    def deliver(self, report: Report) -> Report:
        """Send the outputs of the finished records. An error fails the whole task."""
        try:
            self.send(report)
        except Exception as error:
            # It is unknown which outputs are stored, so no record of the task counts as done and all are retried.
            undo(report)
            report.is_whole = report.task.high - report.task.low > 1
            failed(report, error)
        return report


def put_state(assigned: AssignedPartition, key: bytes, encoded: bytes | None) -> None:
    if encoded is None:
        assigned.state.pop(key, None)
    else:
        assigned.state[key] = encoded


def undo(report: Report) -> None:
    """Reset a report: no record counts as done, and their state is what it was before."""
    for key, encoded in report.before.items():
        put_state(report.task.assigned, key, encoded)
    report.done = report.task.low
    report.state = {}
    report.before = {}
    report.outputs = []


_TIMEOUT_S: Final = 120.0


def deliver(stream: Stream, records: Sequence[NewRecord]) -> None:
    """Send records and return when all are stored. Raises the first error."""
    by_topic: dict[str, list[NewRecord]] = {}
    for record in records:
        by_topic.setdefault(record.topic, []).append(record)
    receipts = [receipt for topic, each in by_topic.items() for receipt in stream.open_topic(topic).append(each)]
    for receipt in receipts:
        receipt.result(_TIMEOUT_S)
