"""Middlewares: context managers around each call of a handler, such as timing, logging, or a database session.

    @contextmanager
    def timed(ctx: Context) -> Iterator[None]:
        began_s = time.monotonic()
        yield                                  # the handler is called here
        took.observe(time.monotonic() - began_s)

As with tracing, the handler is replaced by one that also takes the context, so runners know nothing about it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from penstock.consuming.context import Context, HandlerCalls
from penstock.consuming.handlers import Handler, HandlerArgument, Middleware
from penstock.consuming.workers.lanes import Task
from penstock.consuming.workers.processes import CallResults, CallWrapper, ProcessCall
from penstock.errors import HandlerError


def check_middlewares(name: str, middlewares: Sequence[Middleware], *, is_async: bool) -> None:
    """Raise HandlerError for a middleware that cannot wrap this handler."""
    for middleware in middlewares:
        if not callable(middleware):
            raise HandlerError(f"{name}: the middleware {middleware!r} is not callable: pass a function of the context")
        body = inspect.unwrap(middleware)
        if body is middleware and (inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)):
            raise HandlerError(
                f"{name}: the middleware {_named(middleware)} is a generator: decorate it with "
                "contextlib.contextmanager, or asynccontextmanager"
            )
        if inspect.iscoroutinefunction(body):
            raise HandlerError(
                f"{name}: the middleware {_named(middleware)} is a coroutine function: it must return a context manager"
            )
        if not is_async and inspect.isasyncgenfunction(body):
            raise HandlerError(
                f"{name} is a plain def and the middleware {_named(middleware)} is async: use "
                "contextlib.contextmanager, which works with both"
            )


def with_middlewares(handler: Handler) -> Handler:
    """The handler wrapped in its middlewares; unchanged when it has none."""
    if not handler.middlewares:
        return handler
    function, middlewares, name = handler.function, handler.middlewares, handler.name
    has_context = HandlerArgument.CONTEXT in handler.wants
    wants = handler.wants if has_context else (*handler.wants, HandlerArgument.CONTEXT)
    place = wants.index(HandlerArgument.CONTEXT)

    def call(*arguments: Any) -> object:
        with _entered(middlewares, arguments[place], name):
            return function(*(arguments if has_context else arguments[:place]))
        return None  # a middleware suppressed the error

    async def call_async(*arguments: Any) -> object:
        async with contextlib.AsyncExitStack() as stack:
            for middleware in middlewares:
                around = middleware(arguments[place])
                if isinstance(around, contextlib.AbstractAsyncContextManager):
                    await stack.enter_async_context(around)
                else:
                    stack.enter_context(_checked(around, middleware, name))
            return await function(*(arguments if has_context else arguments[:place]))
        return None

    chosen: Callable[..., Any] = call_async if handler.is_async else call
    return dataclasses.replace(handler, function=chosen, wants=wants)


def middleware_wrapper(handler: Handler, group: str) -> CallWrapper:
    """Wrap calls of a handler in another process, one record at a time. The middlewares run in this process.

    Records that a middleware sends with the context cannot be committed with the record: HandlerError.
    """
    calling = HandlerCalls(group, None, lambda topic: None, handler.name)

    def around(call_process: ProcessCall, task: Task, indexes: range) -> CallResults:
        results: list[Any] = []
        for index in indexes:
            attempt = task.assigned.tracker.attempts(task.batch.pointer(index)) + 1
            told = ""
            try:
                result = None
                context = Context(calling, task.batch, index, attempt)
                with _entered(handler.middlewares, context, handler.name):
                    answers, error, told = call_process(task, range(index, index + 1))
                    if error is not None:
                        raise error
                    result = answers[0]
                if context.outputs:
                    raise HandlerError(
                        f"{handler.name}: a middleware sent a record with ctx.send, which cannot be delivered "
                        "from a handler in processes: send it with a Producer, or omit processes=True"
                    )
            except Exception as error:
                return results, error, told or "".join(traceback.format_exception(error))
            results.append(result)
        return results, None, ""

    return around


def _entered(middlewares: Sequence[Middleware], context: Context, name: str) -> contextlib.ExitStack:
    """Enter all middlewares, the first outermost. The caller's `with` block is inside them."""
    with contextlib.ExitStack() as stack:
        for middleware in middlewares:
            stack.enter_context(_checked(middleware(context), middleware, name))
        return stack.pop_all()


def _checked(around: object, middleware: Middleware, name: str) -> contextlib.AbstractContextManager[Any]:
    if isinstance(around, contextlib.AbstractContextManager):
        return around
    raise HandlerError(f"{name}: the middleware {_named(middleware)} returned {around!r}, not a context manager")


def _named(middleware: Middleware) -> str:
    return str(getattr(middleware, "__qualname__", middleware))
