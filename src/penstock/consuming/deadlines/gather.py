"""The declaration of a gathering: which topics, whose answers are expected, and how a verdict is made of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from penstock.abc import CheckpointStore, DeadLetters
from penstock.consuming.deadlines.call import Result
from penstock.consuming.options import PositionChoice, position
from penstock.errors import ConfigError, GroupError, HandlerError
from penstock.model import Position, check_topic_name
from penstock.serde import Topic
from penstock.serde.topic import topic_of

Judge = Callable[[Any, Result], Any]
"""Makes the verdict: called with the request and the answers that are there."""
AnswerTo = Callable[[Any], Any]
"""Says which request an answer is for: its id, or, with one topic for all answers, its id and the answer's name."""


class GatherOptions(TypedDict, total=False):
    """The keyword options of `App.gather`, besides those in its signature."""

    expected: Sequence[str] | None
    late: str | Topic[Any] | None
    keep_s: float
    most: int
    start: PositionChoice
    end: PositionChoice | None
    group: str
    checkpoints: str | CheckpointStore | None
    member: str | None
    session_timeout_s: float


@dataclass(frozen=True, slots=True)
class Gather:
    """A gathering as `App.gather` was given it, checked."""

    judge: Judge
    name: str
    group: str
    requests: Topic[Any]
    answers: Mapping[str | None, Topic[Any]]
    """By the name of the answers; None: one topic for answers of all names."""
    verdicts: Topic[Any]
    late: Topic[Any] | None
    expected: tuple[str, ...]
    within_s: float
    request_id: Callable[[Any], Any]
    answer_to: AnswerTo
    keep_s: float
    most: int
    start: Position
    end: Position | None
    dead_letters: str | DeadLetters | None
    checkpoints: str | CheckpointStore | None
    member: str | None
    session_timeout_s: float
    version: str = ""


def gather_of(
    judge: Judge,
    requests: str | Topic[Any],
    answers: str | Topic[Any] | Mapping[str, str | Topic[Any]],
    *,
    to: str | Topic[Any],
    within_ms: float,
    request_id: Callable[[Any], Any],
    answer_to: AnswerTo,
    group: str,
    dead_letters: str | DeadLetters | None = None,
    expected: Sequence[str] | None = None,
    late: str | Topic[Any] | None = None,
    keep_s: float = 30.0,
    most: int = 100_000,
    start: PositionChoice = "earliest",
    end: PositionChoice | None = None,
    checkpoints: str | CheckpointStore | None = None,
    member: str | None = None,
    session_timeout_s: float = 10.0,
) -> Gather:
    """Check a declaration. HandlerError and ConfigError say what is wrong with it."""
    name = str(getattr(judge, "__qualname__", type(judge).__qualname__))
    _check_judge(name, judge)
    for option, function in (("request_id", request_id), ("answer_to", answer_to)):
        if not callable(function):
            raise ConfigError(f"{name}: {option}={function!r} must be a function")
    for option, number in (("within_ms", within_ms), ("keep_s", keep_s), ("session_timeout_s", session_timeout_s)):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ConfigError(f"{name}: {option}={number!r} must be a positive number")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ConfigError(f"{name}: most={most!r} must be an integer >= 1")
    if not group or not isinstance(group, str):
        raise GroupError(f"{name}: group={group!r} must be a non-empty string")
    by_name = _answer_topics(name, answers)
    names = _expected(name, expected, by_name)
    given = [requests, *by_name.values(), to, *([late] if late is not None else [])]
    for topic in given:
        if not isinstance(topic, str | Topic):
            raise ConfigError(f"{name}: {topic!r} is not a topic: pass a name or a Topic")
        check_topic_name(str(topic))
    twice = [str(topic) for topic in given if [str(each) for each in given].count(str(topic)) > 1]
    if twice:
        raise ConfigError(
            f"{name}: topic {twice[0]!r} is given twice: requests, answers, verdicts and late answers need their own"
        )
    return Gather(
        judge,
        name,
        group,
        topic_of(requests),
        {each: topic_of(topic) for each, topic in by_name.items()},
        topic_of(to),
        None if late is None else topic_of(late),
        names,
        within_ms / 1000,
        request_id,
        answer_to,
        keep_s,
        most,
        position(start, "start"),
        None if end is None else position(end, "end"),
        dead_letters,
        checkpoints,
        member,
        session_timeout_s,
    )


def _check_judge(name: str, judge: object) -> None:
    if not callable(judge) or isinstance(judge, type):
        raise HandlerError(f"{name} is not a function: write @app.gather(...) above def judge(request, result)")
    if inspect.iscoroutinefunction(judge):
        raise HandlerError(f"{name} is async def: what it would wait for takes time from the deadline. Make it def")
    try:
        inspect.signature(judge).bind(None, None)
    except TypeError as error:
        raise HandlerError(f"{name} must take the request and the result: {error}") from error


def _answer_topics(name: str, answers: object) -> dict[str | None, Any]:
    if not isinstance(answers, Mapping):
        return {None: answers}
    if not answers or not all(isinstance(each, str) and each for each in answers):
        raise ConfigError(f"{name}: answers={answers!r}: pass topics by the names of their answers")
    return dict(answers)


def _expected(name: str, expected: Sequence[str] | None, by_name: Mapping[str | None, object]) -> tuple[str, ...]:
    if None not in by_name:
        if expected is not None:
            raise ConfigError(f"{name}: the names in `answers` are those that are expected: omit expected")
        return tuple(str(each) for each in by_name)
    if isinstance(expected, str) or not expected or not all(isinstance(each, str) and each for each in expected):
        raise ConfigError(f"{name}: expected={expected!r} must be the names of the answers, such as ('amount', 'geo')")
    if len(set(expected)) < len(expected) or any("," in each for each in expected):
        raise ConfigError(f"{name}: expected={expected!r} must be different names, without commas")
    return tuple(expected)
