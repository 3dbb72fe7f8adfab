"""Tracing of handler calls.

The handler is replaced by one that also takes the context, so runners know nothing about tracing, and it costs nothing
while it is off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from penstock.abc import TracedCall, Tracer
from penstock.consuming.context import Context
from penstock.consuming.handlers import Handler, HandlerArgument
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.workers.lanes import Task
from penstock.consuming.workers.processes import CallResults, ProcessCall
from penstock.consuming.workers.runners import Outputs, take_records
from penstock.errors import HandlerError
from penstock.model import Guarantee


def traced(handler: Handler, group: str, options: ConsumerOptions, tracer: Tracer | None) -> Handler:
    """The handler with each call traced; unchanged without a tracer."""
    if tracer is None:
        return handler
    function, to, takes_many = handler.function, handler.to, handler.batch is not None
    has_context = HandlerArgument.CONTEXT in handler.wants
    wants = handler.wants if has_context else (*handler.wants, HandlerArgument.CONTEXT)
    place = wants.index(HandlerArgument.CONTEXT)

    def begin(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], Context, int, TracedCall]:
        context: Context = arguments[place]
        count = len(arguments[0]) if takes_many else 1
        call = tracer.handling(context.records(count), group=group, handler=handler.name, attempt=context.attempt)
        return arguments if has_context else arguments[:place], context, count, call

    def call(*arguments: Any) -> object:
        given, context, count, traced_call = begin(arguments)
        with traced_call:
            try:
                return _outputs(function(*given), to, context, traced_call)
            except Exception as error:
                traced_call.failed(error, again=will_retry(error, context.attempt, count, options))
                raise

    async def call_async(*arguments: Any) -> object:
        given, context, count, traced_call = begin(arguments)
        with traced_call:
            try:
                return _outputs(await function(*given), to, context, traced_call)
            except Exception as error:
                traced_call.failed(error, again=will_retry(error, context.attempt, count, options))
                raise

    chosen: Callable[..., Any] = call_async if handler.is_async else call
    return dataclasses.replace(handler, function=chosen, wants=wants)


def tracing_wrapper(
    handler: Handler, group: str, options: ConsumerOptions, tracer: Tracer
) -> Callable[..., CallResults]:
    """Wrap calls of a handler in another process: one record at a time, each in its own span."""

    def around(call_process: ProcessCall, task: Task, indexes: range) -> CallResults:
        results: list[Any] = []
        for index in indexes:
            record = task.batch[index]
            attempt = task.assigned.tracker.attempts(task.batch.pointer(index)) + 1
            with tracer.handling((record,), group=group, handler=handler.name, attempt=attempt) as call:
                answers, error, trace = call_process(task, range(index, index + 1))
                if error is not None:
                    call.failed(error, again=will_retry(error, attempt, 1, options))
                    return results, error, trace
                outputs: Outputs = []
                if answers[0] is not None:
                    take_records(answers[0], handler.to, outputs)
                results.append([call.gave(output) for output in outputs])
        return results, None, ""

    return around


def will_retry(error: BaseException, attempt: int, count: int, options: ConsumerOptions) -> bool:
    """Whether the policy retries a record after this attempt. A failed batch is always retried record by record.
    An opening circuit breaker is not anticipated."""
    if isinstance(error, HandlerError) or options.guarantee is Guarantee.AT_MOST_ONCE:
        return False
    return count > 1 or options.retry.goes_on_after(attempt, error)


def _outputs(result: object, to: Any, context: Context, call: TracedCall) -> Outputs | None:
    """The handler's outputs, linked to the traced call. Records sent through the context stay there."""
    if context.was_used:
        context.outputs[:] = map(call.gave, context.outputs)
    if result is None:
        return None
    outputs: Outputs = []
    take_records(result, to, outputs)
    return [call.gave(record) for record in outputs]
