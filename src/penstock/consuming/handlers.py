"""Handlers: what a function wants to be called with, and whether it can be."""

from __future__ import annotations

import enum
import hashlib
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.consuming.context import Context
from penstock.errors import HandlerError, InvalidTopicError
from penstock.log.store import check_topic_name
from penstock.model import NewRecord, Record
from penstock.serde import Topic, topic_of


class Wants(enum.Enum):
    """One argument of a handler."""

    VALUE = "the value"
    RECORD = "the record"
    CONTEXT = "the context"


_BY_NAME: Final = {"ctx": Wants.CONTEXT, "context": Wants.CONTEXT, "record": Wants.RECORD}
_BY_TYPE: Final[dict[Any, Wants]] = {Context: Wants.CONTEXT, Record: Wants.RECORD}
_BY_CLASS_NAME: Final = {kind.__name__: kind for kind in _BY_TYPE}


@dataclass(frozen=True, slots=True)
class Handler:
    """A function, what it is called with, and what its values are."""

    function: Callable[..., Any]
    name: str
    version: str
    wants: tuple[Wants, ...]
    is_async: bool
    topic: Topic[Any]
    to: Topic[Any] | None
    """The topic that its results go to, as records."""
    batch: int | None
    """It is called with lists of up to so many values."""

    @property
    def wants_value_alone(self) -> bool:
        return self.wants == (Wants.VALUE,)


def handler_of(
    function: Callable[..., Any],
    topic: str | Topic[Any],
    *,
    to: str | Topic[Any] | None = None,
    batch: int | None = None,
    version: str | None = None,
    name: str | None = None,
) -> Handler:
    """Look at a function and say how to call it; HandlerError says why it cannot be."""
    if not callable(function):
        raise HandlerError(f"{function!r} is no handler: it cannot be called; write def handle(value): ...")
    called = str(name or getattr(function, "__qualname__", type(function).__qualname__))
    if isinstance(function, type):
        raise HandlerError(f"{called} is a class: decorate a function, or an object that can be called")
    body = function if inspect.isroutine(function) else type(function).__call__
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise HandlerError(f"{called} is a generator: return a list of records instead of yielding them")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise HandlerError(f"{called}: its parameters cannot be seen ({error}): wrap it in a function") from error
    hints = _hints(body)
    wants = tuple(_wanted(called, parameter, hints) for parameter in _to_fill(called, signature))
    if wants.count(Wants.VALUE) > 1:
        raise HandlerError(
            f"{called} takes more than one value: a handler takes the value, and a Record or a Context by their types"
        )
    if not wants:
        raise HandlerError(
            f"{called} takes nothing: a handler takes the value of the record, as in def {called}(value)"
        )
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise HandlerError(f"{called}: batch={batch!r} is no number of records: use 1 or more")
    if batch is not None and wants not in ((Wants.VALUE,), (Wants.VALUE, Wants.CONTEXT)):
        raise HandlerError(
            f"{called} is called with batch={batch} values at once: it takes a list, and a Context if any"
        )
    check_topic(topic)
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
    )


def check_topic(topic: object) -> None:
    """HandlerError or InvalidTopicError when this is none that could be handled."""
    if not isinstance(topic, str | Topic) and callable(topic):
        raise HandlerError(
            f"the topic is missing: {getattr(topic, '__qualname__', topic)} stands in its place. Write "
            "@app.handle(TOPIC) above the function"
        )
    if not isinstance(topic, str | Topic):
        raise InvalidTopicError(f"{topic!r} is no topic: give its name, or a Topic")
    check_topic_name(str(topic))


def _to_fill(called: str, signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters that must be given something, in their order."""
    filled = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise HandlerError(f"{called} needs {parameter.name}= by name, which nobody gives: add a default")
            continue
        if parameter.default is parameter.empty:
            filled.append(parameter)
    if not filled:  # one with a default, or *args, takes a value as well
        positional = [
            each
            for each in signature.parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)
        ]
        filled = positional[:1]
    return filled


def _wanted(called: str, parameter: inspect.Parameter, hints: dict[str, Any]) -> Wants:
    hint = hints.get(parameter.name)
    if isinstance(hint, str):
        hint = _BY_CLASS_NAME.get(hint.rpartition(".")[2])
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    if hint is None and parameter.name in _BY_NAME:
        return _BY_NAME[parameter.name]
    return Wants.VALUE


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters; for one that cannot be found from where the function stands, its text."""
    try:
        return typing.get_type_hints(function)
    except Exception:  # a name that is not defined yet, or only for type checkers: look at each by itself
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
    wants: tuple[Wants, ...],
    batch: int | None,
) -> Topic[Any]:
    """A topic that was given by its name alone: what it carries is what the handler takes."""
    for parameter, wanted in zip(signature.parameters.values(), wants, strict=False):
        if wanted is not Wants.VALUE:
            continue
        hint = hints.get(parameter.name)
        if batch is not None and typing.get_origin(hint) is list:
            (hint,) = typing.get_args(hint)
        if hint is None or hint is inspect.Parameter.empty or hint is bytes:
            break
        if isinstance(hint, str):
            raise HandlerError(
                f"{called} takes {parameter.name}: {hint}, and there is no {hint} to be found from where it stands: "
                f"define it at the top of the module, or give the topic as Topic({name!r}, {hint})"
            )
        return Topic(name, hint)
    return Topic(name)


def _check_result(called: str, hints: dict[str, Any], to: object) -> None:
    """A handler that says it gives something needs somewhere for it to go."""
    if to is not None or "return" not in hints:
        return
    result = hints["return"]
    if isinstance(result, str):
        return  # its type is for type checkers only
    members = typing.get_args(result) or (result,)
    allowed = (NewRecord, type(None), None, Ellipsis, Any, object, typing.NoReturn)
    if not all(member in allowed for member in members):
        raise HandlerError(
            f"{called} gives {result!r}, and nobody takes it: say where it goes with to=TOPIC, or give NewRecord"
        )


def _version_of(function: Callable[..., Any]) -> str:
    """A short name for this very code: it changes when the code does."""
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
