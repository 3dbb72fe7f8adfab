"""Runners: from records in hand to what became of them, by calling the handler."""

from __future__ import annotations

import functools
import itertools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.consuming.context import Calling, Context, TransactionOfRecord
from penstock.consuming.handlers import Handler, Wants
from penstock.consuming.lanes import Task
from penstock.consuming.options import IdOf
from penstock.consuming.share import Share
from penstock.consuming.stages import Stages
from penstock.model import NewRecord
from penstock.serde import BytesSerde, PlainSerde, Topic

Outputs = list[NewRecord]
Deliver = Callable[[Sequence[NewRecord]], None]
"""Sends records, and returns when all are stored."""


@dataclass(slots=True)
class Report:
    """What became of a task: its records up to `done` succeeded, and the one there failed if there is an error."""

    task: Task
    done: int
    error: BaseException | None = None
    trace: str = ""
    calls: int = 0
    """How often the handler was called."""
    outputs: Outputs = field(default_factory=list)
    """What the records up to `done` gave, where the loop is to send it."""
    state: dict[bytes, bytes | None] = field(default_factory=dict)
    """Keyed state that they changed."""
    before: dict[bytes, bytes | None] = field(default_factory=dict)
    """What it was before, in case that they are all undone."""
    is_saved: bool = False
    """They are finished and saved already, in the transaction of their effects."""
    open: list[int] = field(default_factory=list)
    """Records that forked into tasks which have not all ended: they are finished when those are."""
    is_broken: bool = False
    """The error is our own, not the handler's: the consumer cannot go on."""
    is_whole: bool = False
    """A batch handler failed: the error is about all records from `done` on, and nobody knows which."""


class Runner(Protocol):
    """Handles the records of a task. Never raises, but for what ends the thread."""

    def run(self, task: Task) -> Report: ...

    def close(self) -> None: ...


def failed(report: Report, error: BaseException) -> Report:
    report.error = error
    report.trace = "".join(traceback.format_exception(error))
    return report


def decoder_of(handler: Handler) -> Callable[[bytes | None], Any] | None:
    """How a value is decoded; None when the handler takes the bytes as they are."""
    topic = handler.topic
    if isinstance(topic.serde, BytesSerde | PlainSerde):
        return None
    return topic.decode


class ValueRunner:
    """For a handler that takes the value and nothing else: nothing is made that it does not need."""

    def __init__(self, handler: Handler, gather: Gather) -> None:
        self._function = handler.function
        self._decode = decoder_of(handler)
        self._gather = gather

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
                            self._gather.take(report, result)
                else:
                    for index in indexes:
                        result = function(decode(values[index]))
                        if result is not None:
                            self._gather.take(report, result)
                report.done = indexes.stop
        except Exception as error:
            report.done = index
            report.calls = index - task.low + 1
            return self._gather.deliver(failed(report, error))
        report.calls = report.done - task.low
        return self._gather.deliver(report)

    def close(self) -> None:
        pass


class FullRunner:
    """For a handler that takes the record or the context, one record after the other."""

    def __init__(self, handler: Handler, gather: Gather, caller: Caller) -> None:
        self._function = handler.function
        self._gather = gather
        self._caller = caller

    def run(self, task: Task) -> Report:
        report = Report(task, task.low)
        call_for = self._caller.calls(task)
        for index in itertools.chain.from_iterable(task.slices()):
            try:
                arguments, context = call_for(index)
                report.calls += 1
                result = self._function(*arguments)
                self._gather.finish(report, task.share, context, result)
            except Exception as error:
                return self._gather.deliver(failed(report, error))
            report.done = index + 1
        return self._gather.deliver(report)

    def close(self) -> None:
        pass


class TreeRunner:
    """For a handler whose records may fork into tasks of the app: each is the root of a tree."""

    def __init__(self, handler: Handler, gather: Gather, caller: Caller, stages: Stages, timeout_s: float) -> None:
        self._function = handler.function
        self._gather = gather
        self._caller = caller
        self._stages = stages
        self._timeout_s = timeout_s
        self.settled: Callable[[Task, int, BaseException | None], None] = lambda task, index, error: None

    def run(self, task: Task) -> Report:
        report = Report(task, task.low)
        call_for = self._caller.calls(task)
        for index in itertools.chain.from_iterable(task.slices()):
            acknowledger = self._stages.acknowledger
            tree, own = acknowledger.plant(functools.partial(self.settled, task, index), self._timeout_s)
            try:
                arguments, context = call_for(index)
                assert context is not None
                context.fork = functools.partial(self._stages.emit, tree, context.record)
                report.calls += 1
                result = self._function(*arguments)
                self._gather.finish(report, task.share, context, result)
                self._gather.send(report)
            except Exception as error:
                acknowledger.drop(tree)
                report.outputs = []
                return failed(report, error)
            report.open.append(index)
            report.done = index + 1
            acknowledger.done(tree, own)
        return report

    def close(self) -> None:
        pass


class BatchRunner:
    """For a handler that takes many values at once. They succeed or fail together."""

    def __init__(self, handler: Handler, gather: Gather, caller: Caller) -> None:
        self._function = handler.function
        self._decode = decoder_of(handler)
        self._with_context = Wants.CONTEXT in handler.wants
        self._gather = gather
        self._caller = caller

    def run(self, task: Task) -> Report:
        report = Report(task, task.low)
        values = list(task.batch.values()[task.low : task.high])
        if self._decode is not None:
            for index, value in enumerate(values):
                try:
                    values[index] = self._decode(value)
                except Exception as error:
                    if index == 0:
                        return failed(report, error)
                    values = values[:index]  # those before it are handled now, and it is the first of the next task
                    break
        high = task.low + len(values)
        try:
            context = self._caller.context(task, task.low) if self._with_context else None
            report.calls = len(values)
            result = self._function(values) if context is None else self._function(values, context)
            self._gather.finish(report, task.share, context, result)
        except Exception as error:
            report.is_whole = len(values) > 1
            return failed(report, error)
        report.done = high
        return self._gather.deliver(report)

    def close(self) -> None:
        pass


Arguments = Sequence[Any]
MakeCall = Callable[[int], tuple[Arguments, Context | None]]
"""From the index of a record to what the handler is called with, and the context among that."""


class Caller:
    """Makes what a handler is called with."""

    def __init__(self, handler: Handler, group: str, with_state: bool, id_of: IdOf | None) -> None:
        self._wants = handler.wants
        self._decode = decoder_of(handler)
        self._calling = Calling(group, id_of)
        self._with_state = with_state

    def calls(self, task: Task, part: TransactionOfRecord | None = None) -> MakeCall:
        """For the records of a task. What they have in common is looked up once."""
        if self._wants == (Wants.VALUE, Wants.CONTEXT) and self._decode is None:
            return self._calls_with_context(task, part)
        return lambda index: self._arguments(task, index, part)

    def _calls_with_context(self, task: Task, part: TransactionOfRecord | None) -> MakeCall:
        """What most handlers want that want more than the value."""
        share, batch, calling = task.share, task.batch, self._calling
        values = batch.values()
        store = share.state if self._with_state else None
        attempts = share.tracker.attempts if share.tracker.any_failing else None

        def make(index: int) -> tuple[Arguments, Context]:
            attempt = 1 if attempts is None else attempts(batch.pointer(index)) + 1
            context = Context(calling, batch, index, attempt, store, part)
            return (values[index], context), context

        return make

    def _arguments(self, task: Task, index: int, part: TransactionOfRecord | None) -> tuple[Arguments, Context | None]:
        context = self.context(task, index, part) if Wants.CONTEXT in self._wants else None
        arguments: list[Any] = []
        for wanted in self._wants:
            if wanted is Wants.VALUE:
                value = task.batch.values()[index]
                arguments.append(value if self._decode is None else self._decode(value))
            elif wanted is Wants.RECORD:
                arguments.append(task.batch[index] if context is None else context.record)
            else:
                arguments.append(context)
        return arguments, context

    def context(self, task: Task, index: int, part: TransactionOfRecord | None = None) -> Context:
        share = task.share
        attempt = share.tracker.attempts(task.batch.pointer(index)) + 1
        return Context(self._calling, task.batch, index, attempt, share.state if self._with_state else None, part)


def take_records(result: object, to: Topic[Any] | None, outputs: Outputs) -> None:
    """What a handler returned, as records: values for the topic that it feeds, or records, or many of either."""
    if isinstance(result, NewRecord):
        outputs.append(result)
    elif isinstance(result, list | tuple) and not hasattr(result, "_fields"):
        for each in result:
            take_records(each, to, outputs)
    elif to is not None:
        outputs.append(to.new_record(result))


class Gather:
    """Takes what handlers give: records to send on, and state to keep."""

    def __init__(self, handler: Handler, deliver: Deliver | None) -> None:
        self._handler = handler
        self._deliver = deliver

    def take(self, report: Report, result: object) -> None:
        """Outputs of a handler: values for the topic it feeds, or records."""
        take_records(result, self._handler.to, report.outputs)

    def finish(self, report: Report, share: Share, context: Context | None, result: object) -> None:
        """The handler returned: its outputs, and the state as it left it."""
        if result is not None:
            self.take(report, result)
        if context is None or not context.was_used:
            return
        report.outputs.extend(context.outputs)
        changed = context.changed_state()
        if changed is not None:
            key, encoded = changed
            report.before.setdefault(key, share.state.get(key))
            report.state[key] = encoded
            put_state(share, key, encoded)

    def send(self, report: Report) -> None:
        """Send the outputs that there are so far, unless the loop does it in a transaction."""
        if report.outputs and self._deliver is not None:
            self._deliver(report.outputs)
            report.outputs = []

    def deliver(self, report: Report) -> Report:
        """Send the outputs of what succeeded. What cannot be sent fails the whole task."""
        try:
            self.send(report)
        except Exception as error:
            # Nobody knows which records' outputs are stored: none of the task counts as done, and all is done again.
            undo(report)
            failed(report, error)
        return report


def put_state(share: Share, key: bytes, encoded: bytes | None) -> None:
    if encoded is None:
        share.state.pop(key, None)
    else:
        share.state[key] = encoded


def undo(report: Report) -> None:
    """None of the task's records counts as done: their state is what it was before."""
    for key, encoded in report.before.items():
        put_state(report.task.share, key, encoded)
    report.done = report.task.low
    report.state = {}
    report.before = {}
    report.outputs = []
