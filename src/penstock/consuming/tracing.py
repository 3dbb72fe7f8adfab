"""Handlers that are traced: each call of one stands inside of what a tracer makes of it.

The handler becomes another one, which asks for the context as well; so no runner knows of tracing, and nothing is spent
while there is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from penstock.abc import TracedCall, Tracer
from penstock.consuming.context import Context
from penstock.consuming.handlers import Handler, Wants
from penstock.consuming.lanes import Task
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.processes import Answer, Ask
from penstock.consuming.runners import Outputs, take_records
from penstock.errors import HandlerError
from penstock.model import Guarantee


def traced(handler: Handler, group: str, options: ConsumerOptions, tracer: Tracer | None) -> Handler:
    """The same handler, traced; itself when nobody traces."""
    if tracer is None:
        return handler
    function, to, takes_many = handler.function, handler.to, handler.batch is not None
    has_context = Wants.CONTEXT in handler.wants
    wants = handler.wants if has_context else (*handler.wants, Wants.CONTEXT)
    place = wants.index(Wants.CONTEXT)

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
                traced_call.failed(error, again=will_be_tried_again(error, context.attempt, count, options))
                raise

    async def call_async(*arguments: Any) -> object:
        given, context, count, traced_call = begin(arguments)
        with traced_call:
            try:
                return _outputs(await function(*given), to, context, traced_call)
            except Exception as error:
                traced_call.failed(error, again=will_be_tried_again(error, context.attempt, count, options))
                raise

    chosen: Callable[..., Any] = call_async if handler.is_async else call
    return dataclasses.replace(handler, function=chosen, wants=wants)


def traced_asking(handler: Handler, group: str, options: ConsumerOptions, tracer: Tracer) -> Callable[..., Answer]:
    """For a handler in another process: what asks for its records one by one, each in a call of its own."""

    def around(ask: Ask, task: Task, indexes: range) -> Answer:
        results: list[Any] = []
        for index in indexes:
            record = task.batch[index]
            attempt = task.share.tracker.attempts(record.offset) + 1
            with tracer.handling((record,), group=group, handler=handler.name, attempt=attempt) as call:
                answers, error, trace = ask(task, range(index, index + 1))
                if error is not None:
                    call.failed(error, again=will_be_tried_again(error, attempt, 1, options))
                    return results, error, trace
                outputs: Outputs = []
                if answers[0] is not None:
                    take_records(answers[0], handler.to, outputs)
                results.append([call.gave(output) for output in outputs])
        return results, None, ""

    return around


def will_be_tried_again(error: BaseException, attempt: int, count: int, options: ConsumerOptions) -> bool:
    """Whether a record that failed so often comes again, as far as its policy says. A batch that is given up does:
    each of its records alone. A circuit that opens is not foreseen."""
    if isinstance(error, HandlerError) or options.guarantee is Guarantee.AT_MOST_ONCE:
        return False
    return count > 1 or options.retry.goes_on_after(attempt, error)


def _outputs(result: object, to: Any, context: Context, call: TracedCall) -> Outputs | None:
    """What the handler gave, leading back to its call. What it sent through the context stays there."""
    if context.was_used:
        context.outputs[:] = map(call.gave, context.outputs)
    if result is None:
        return None
    outputs: Outputs = []
    take_records(result, to, outputs)
    return [call.gave(record) for record in outputs]
