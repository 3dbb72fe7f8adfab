"""What a filter is made of once it has been understood: comparisons, and what joins them. Each says if it holds."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from penstock.console.filter_tokens import Step
from penstock.console.patterns import Pattern, TooMuchWork
from penstock.errors import FilterError
from penstock.model import Record

Literal = str | int | float | bool | None

_MISSING: Final = object()
"""What a path leads to that leads nowhere."""
_UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)
_NOT_DECODED: Final = object()
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Subject:
    """A record that filters are held against. It is decoded at most once, and only if somebody asks."""

    __slots__ = ("_decode", "_key", "_value", "record", "size_bytes")

    def __init__(self, record: Record, size_bytes: int, decode: Callable[[bytes], Any]) -> None:
        self.record = record
        self.size_bytes = size_bytes
        self._decode = decode
        self._key: Any = _NOT_DECODED
        self._value: Any = _NOT_DECODED

    @property
    def key(self) -> Any:
        if self._key is _NOT_DECODED:
            self._key = self._decoded(self.record.key)
        return self._key

    @property
    def value(self) -> Any:
        if self._value is _NOT_DECODED:
            self._value = self._decoded(self.record.value)
        return self._value

    def _decoded(self, data: bytes | None) -> Any:
        if data is None:
            return None
        try:
            return self._decode(data)
        except _UNDECODABLE:
            return _MISSING


class Term(Protocol):
    def holds(self, subject: Subject) -> bool: ...


@dataclass(frozen=True, slots=True)
class All:
    terms: tuple[Term, ...]

    def holds(self, subject: Subject) -> bool:
        return all(term.holds(subject) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Any_:
    terms: tuple[Term, ...]

    def holds(self, subject: Subject) -> bool:
        return any(term.holds(subject) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Not:
    term: Term

    def holds(self, subject: Subject) -> bool:
        return not self.term.holds(subject)


@dataclass(frozen=True, slots=True)
class Field:
    """What of a record is meant. It may be several things, such as headers of one name: then any of them may fit."""

    name: str
    path: tuple[Step, ...] = ()

    def found(self, subject: Subject) -> Sequence[Any]:
        record = subject.record
        match self.name:
            case "partition":
                return (record.partition,)
            case "pointer":
                return (record.offset,)
            case "size":
                return (subject.size_bytes,)
            case "timestamp":
                return (record.timestamp_ms,)
            case "header":
                wanted = self.path[0]
                contents = [content for name, content in record.headers if name == wanted]
                return [None if content is None else _text(content) for content in contents]
            case "key":
                return (self._inside(subject.key),) if self.path else _whole(record.key, subject, "key")
            case _:
                return (self._inside(subject.value),) if self.path else _whole(record.value, subject, "value")

    def _inside(self, value: Any) -> Any:
        for step in self.path:
            if isinstance(value, dict):
                value = value.get(str(step), _MISSING)
            elif isinstance(value, list) and (place := _place(step)) is not None and place < len(value):
                value = value[place]
            else:
                return _MISSING
        return value


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field, held against something that was written."""

    field: Field
    sign: str
    operand: Literal | tuple[Literal, ...]

    def holds(self, subject: Subject) -> bool:
        found = [each for each in self.field.found(subject) if each is not _MISSING]
        if self.sign == "==":
            return _equals_any(found, self.operand)
        if self.sign == "!=":
            return not _equals_any(found, self.operand)
        if self.sign == "in":
            assert isinstance(self.operand, tuple)
            return any(_equals_any(found, each) for each in self.operand)
        return any(self._fits(each) for each in found)

    def _fits(self, found: Any) -> bool:
        wanted = self.operand
        if self.sign in _ORDER:
            if isinstance(wanted, str):
                return isinstance(found, str) and _ORDER[self.sign](found, wanted)
            number = _number(found)
            return number is not None and _ORDER[self.sign](number, wanted)
        if self.sign == "contains" and isinstance(found, list):
            return any(_is_equal(each, wanted) for each in found)
        if self.sign == "contains" and isinstance(found, dict):
            return str(wanted) in found
        text, part = _as_text(found), _as_text(wanted)
        if text is None or part is None:
            return False
        if self.sign == "contains":
            return part in text
        return text.startswith(part) if self.sign == "startswith" else text.endswith(part)


@dataclass(frozen=True, slots=True)
class Matches:
    field: Field
    pattern: Pattern
    position: int = 0
    """Where the pattern stands in the filter."""

    def holds(self, subject: Subject) -> bool:
        texts = [_as_text(each) for each in self.field.found(subject) if each is not _MISSING]
        try:
            return any(self.pattern.is_in(text) for text in texts if text is not None)
        except TooMuchWork:
            record = subject.record
            raise FilterError(
                f"this pattern takes too long: it was given up at {record.topic}-{record.partition}, {record.offset}. "
                "Write smaller numbers in its braces, or look for a part of it with contains",
                self.position,
            ) from None


@dataclass(frozen=True, slots=True)
class Present:
    """A field alone: it is there, and not null, false, 0 or empty."""

    field: Field

    def holds(self, subject: Subject) -> bool:
        return any(each is not _MISSING and bool(each) for each in self.field.found(subject))


def _whole(data: bytes | None, subject: Subject, name: str) -> Sequence[Any]:
    """A whole key or value: what it is when it is decoded, and the text that stands there."""
    if data is None:
        return (None,)
    decoded = subject.key if name == "key" else subject.value
    text = _text(data)
    return (text,) if decoded is _MISSING or decoded is None or isinstance(decoded, dict) else (decoded, text)


def _equals_any(found: Sequence[Any], wanted: Any) -> bool:
    if wanted is None:
        return not found or any(each is None for each in found)
    return any(_is_equal(each, wanted) for each in found)


def _is_equal(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    if isinstance(wanted, int | float):
        return _number(found) == wanted
    return bool(found == wanted)


def _number(found: Any) -> int | float | None:
    """The number that something is or says."""
    if isinstance(found, bool):
        return None
    if isinstance(found, int | float):
        return found
    if isinstance(found, str) and len(found) <= 40:
        try:
            return int(found) if found.strip("-").isdecimal() else float(found)
        except ValueError:
            return None
    return None


def _as_text(found: Any) -> str | None:
    if isinstance(found, str):
        return found
    if isinstance(found, bool):
        return "true" if found else "false"
    return str(found) if isinstance(found, int | float) else None


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _place(step: Step) -> int | None:
    if isinstance(step, int):
        return step
    return int(step) if step.isascii() and step.isdecimal() and len(step) <= 9 else None
