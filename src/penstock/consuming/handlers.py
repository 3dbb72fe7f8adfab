"""Handlers: which arguments a function takes, and whether it can be a handler."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from penstock.consuming.context import Context
from penstock.consuming.options import ConsumerOptions
from penstock.errors import ConfigError, HandlerError
from penstock.model import NewRecord, Record, check_topic_name
from penstock.serde import Topic, topic_of
from penstock.serde.types import is_protobuf
from penstock.streams.topic_patterns import TopicChoice, TopicPattern, check_position_for_several, described, topics_of


class HandlerArgument(enum.Enum):
    """One argument of a handler."""

    VALUE = "the value"
    RECORD = "the record"
    CONTEXT = "the context"


class Middleware(Protocol):
    """Called with the context before each call of a handler; returns a context manager that wraps the call.

    The handler's error is raised at its `yield`: passing it on fails the record, raising another error fails it with
    that one, and suppressing it marks the record as done.
    """

    def __call__(
        self, ctx: Context, /
    ) -> contextlib.AbstractContextManager[Any] | contextlib.AbstractAsyncContextManager[Any]: ...


_BY_NAME: Final = {"ctx": HandlerArgument.CONTEXT, "context": HandlerArgument.CONTEXT, "record": HandlerArgument.RECORD}
_BY_TYPE: Final[dict[Any, HandlerArgument]] = {Context: HandlerArgument.CONTEXT, Record: HandlerArgument.RECORD}
_UNIONS: Final = (typing.Union, types.UnionType)
_BY_CLASS_NAME: Final = {kind.__name__: kind for kind in _BY_TYPE}


@dataclass(frozen=True, slots=True)
class Handler:
    """A function, its arguments, and the type of its values."""

    function: Callable[..., Any]
    name: str
    version: str
    wants: tuple[HandlerArgument, ...]
    is_async: bool
    topic: Topic[Any]
    to: Topic[Any] | None
    """The topic for its results."""
    batch: int | None
    """Call it with lists of at most this many values."""
    middlewares: tuple[Middleware, ...] = ()
    """Wrap each call, the first one outermost."""
    takes_none: bool = True
    """Call it with None for a record without a value; False if its type does not allow None."""
    is_topic_declared: bool = False
    """The topic was given as a Topic and is created if missing. A topic given by name is waited for."""


def handler_of(
    function: Callable[..., Any],
    topic: str | Topic[Any],
    *,
    to: str | Topic[Any] | None = None,
    batch: int | None = None,
    version: str | None = None,
    name: str | None = None,
) -> Handler:
    """Inspect a function and return how to call it. HandlerError says why it cannot be a handler."""
    if not callable(function):
        raise HandlerError(f"{function!r} is not callable: write def handle(value): ...")
    called = str(name or getattr(function, "__qualname__", type(function).__qualname__))
    if isinstance(function, type):
        raise HandlerError(f"{called} is a class: decorate a function or a callable object")
    body = function if inspect.isroutine(function) else type(function).__call__
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise HandlerError(f"{called} is a generator: return a list of records instead of yielding them")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise HandlerError(f"{called}: its signature cannot be inspected ({error}): wrap it in a function") from error
    hints = _hints(body)
    wants = tuple(_wanted(called, parameter, hints) for parameter in _to_fill(called, signature))
    if wants.count(HandlerArgument.VALUE) > 1:
        raise HandlerError(
            f"{called} takes more than one value: a handler takes the value, and a Record or a Context by type"
        )
    if not wants:
        raise HandlerError(
            f"{called} takes no argument: a handler takes the value of the record, as in def {called}(value)"
        )
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise HandlerError(f"{called}: batch={batch!r} must be an integer >= 1")
    if batch is not None and wants not in ((HandlerArgument.VALUE,), (HandlerArgument.VALUE, HandlerArgument.CONTEXT)):
        raise HandlerError(
            f"{called} is called with batch={batch} values at once: it takes a list and, optionally, a Context"
        )
    if version is not None and not isinstance(version, str):
        raise HandlerError(f"{called}: version={version!r} must be a string")
    check_topic_name(str(topic))
    if to is not None and not isinstance(to, Topic):
        check_topic_name(to)
    declared = topic if isinstance(topic, Topic) else _topic_from(called, topic, signature, hints, wants, batch)
    _check_result(called, hints, to)
    return Handler(
        function,
        called,
        version if version is not None else _version_of(body),
        wants,
        inspect.iscoroutinefunction(body),
        declared,
        None if to is None else topic_of(to),
        batch,
        takes_none=_takes_none(signature, hints, wants, batch),
        is_topic_declared=isinstance(topic, Topic),
    )


def chosen_topics(topics: TopicChoice) -> list[str | Topic[Any]] | TopicPattern:
    """The topics or the pattern that a handler is declared for. Raises HandlerError or InvalidTopicError."""
    if callable(topics) and not isinstance(topics, str | Topic):
        raise HandlerError(
            f"the topic is missing: got {getattr(topics, '__qualname__', topics)} instead. Write "
            "@app.handle(TOPIC) above the function"
        )
    return topics_of(topics)


def check_several(
    topics: Sequence[str | Topic[Any]] | TopicPattern, options: ConsumerOptions, *, with_snapshots: bool = False
) -> None:
    """Raise ConfigError for options that have no meaning with more than one topic."""
    if not isinstance(topics, TopicPattern) and len(topics) == 1:
        return
    for name in ("start", "end", "on_expired"):
        check_position_for_several(getattr(options, name), name)
    for name in ("on_assigned", "on_revoked", "on_lost"):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"{name} is called with partitions, whose topic it cannot tell with {described(topics)}: "
                "declare a handler for each topic"
            )
    if with_snapshots:
        raise ConfigError(
            f"snapshot and restore are called with partitions, whose topic they cannot tell with {described(topics)}: "
            "declare a handler for each topic"
        )


def _to_fill(called: str, signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters that need an argument, in order."""
    filled = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise HandlerError(f"{called} requires the keyword argument {parameter.name}: give it a default")
            continue
        if parameter.default is parameter.empty:
            filled.append(parameter)
    if not filled:  # a parameter with a default, or *args, takes the value
        positional = [
            each
            for each in signature.parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)
        ]
        filled = positional[:1]
    return filled


def _wanted(called: str, parameter: inspect.Parameter, hints: dict[str, Any]) -> HandlerArgument:
    hint = hints.get(parameter.name)
    if isinstance(hint, str):
        hint = _BY_CLASS_NAME.get(hint.rpartition(".")[2])
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    if hint is None and parameter.name in _BY_NAME:
        return _BY_NAME[parameter.name]
    return HandlerArgument.VALUE


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters; the annotation's text for a type that cannot be resolved."""
    try:
        return typing.get_type_hints(function)
    except Exception:  # a name that is not defined yet, or only for type checkers: resolve each by itself
        found: dict[str, Any] = {}
        for name, hint in getattr(function, "__annotations__", {}).items():
            alone = types.SimpleNamespace(__annotations__={name: hint})
            try:
                found.update(typing.get_type_hints(alone, getattr(function, "__globals__", {})))
            except Exception:
                found[name] = hint
        return found


def _topic_from(
    called: str,
    name: str,
    signature: inspect.Signature,
    hints: dict[str, Any],
    wants: tuple[HandlerArgument, ...],
    batch: int | None,
) -> Topic[Any]:
    """The Topic for a topic given by name: its type is that of the handler's value."""
    for parameter, wanted in zip(signature.parameters.values(), wants, strict=False):
        if wanted is not HandlerArgument.VALUE:
            continue
        hint = hints.get(parameter.name)
        if batch is not None and typing.get_origin(hint) is list:
            (hint,) = typing.get_args(hint)
        hint = _without_none(hint)
        if hint is None or hint is inspect.Parameter.empty or hint is bytes:
            break
        if isinstance(hint, str):
            raise HandlerError(
                f"{called} takes {parameter.name}: {hint}, and {hint} cannot be resolved from its module: "
                f"define it at the top level, or pass the topic as Topic({name!r}, {hint})"
            )
        return Topic(name, hint)
    return Topic(name)


def _takes_none(
    signature: inspect.Signature, hints: dict[str, Any], wants: tuple[HandlerArgument, ...], batch: int | None
) -> bool:
    """Whether the type of the value, or of the list's values, allows None; without a type it does."""
    for parameter, wanted in zip(signature.parameters.values(), wants, strict=False):
        if wanted is not HandlerArgument.VALUE or parameter.name not in hints:
            continue
        hint = hints[parameter.name]
        if batch is not None and not isinstance(hint, str):
            inside = typing.get_args(hint)
            if len(inside) != 1:
                return True
            [hint] = inside
        if isinstance(hint, str):
            return "None" in hint or "Optional" in hint or hint in ("Any", "object")
        while typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        members = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
        return isinstance(hint, TypeVar) or any(member in (Any, object, None, types.NoneType) for member in members)
    return True


def _without_none(hint: Any) -> Any:
    """Turn `bytes | None` into bytes: None is a record without a value. JSON types stay, as JSON has null."""
    if typing.get_origin(hint) not in _UNIONS:
        return hint
    left = [member for member in typing.get_args(hint) if member is not types.NoneType]
    return left[0] if len(left) == 1 and (left[0] in (bytes, str) or is_protobuf(left[0])) else hint


def _check_result(called: str, hints: dict[str, Any], to: object) -> None:
    """Raise HandlerError for a handler whose declared result has no output topic."""
    if to is not None or "return" not in hints:
        return
    result = hints["return"]
    if isinstance(result, str):
        return  # the type exists only for type checkers
    members = typing.get_args(result) or (result,)
    allowed = (NewRecord, type(None), None, Ellipsis, Any, object, typing.NoReturn)
    if not all(member in allowed for member in members):
        raise HandlerError(
            f"{called} returns {result!r}, which has no output topic: pass to=TOPIC, or return NewRecord"
        )


def _version_of(function: Callable[..., Any]) -> str:
    """A short hash of the code, which changes with it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    digest = hashlib.blake2b(digest_size=6)
    waiting = [code]
    while waiting:
        part = waiting.pop()
        digest.update(part.co_code)
        digest.update(repr(part.co_names).encode())
        for constant in part.co_consts:
            if hasattr(constant, "co_code"):
                waiting.append(constant)
            else:
                digest.update(repr(constant).encode())
    return digest.hexdigest()
