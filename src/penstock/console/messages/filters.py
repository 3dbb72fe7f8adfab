"""Filters of messages: a small language that can only compare.

    value.amount > 100 and key contains "ann"
    header.trace == "x" or not (partition in [0, 2])
    value.items[0].name startswith "A" and timestamp >= "-15m"
    value matches "order-\\d+"

Fields: `key` and `value`, with paths into JSON (also msgpack, and Avro where a registry is known): `value.a.b[0]`,
`value["any name"]`; `header.NAME`; `timestamp`, compared with a time or an age in quotes, or milliseconds since 1970;
`partition`; `pointer` (or `offset`); `size` in bytes. A field alone holds when it exists and is not null, false, 0 or
empty.

Comparisons: `== != < <= > >= contains startswith endswith matches in`, and `not in`. They are case-sensitive (except
`matches "(?i)..."`). A path that does not exist equals null and nothing else. `and` binds closer than `or`; use
brackets otherwise. Patterns of `matches` have RE2's syntax.

Nothing is ever executed as Python: the text is parsed here, and anything else is refused with its position. Length and
nesting have limits, and patterns take time linear in the text.
"""

from __future__ import annotations

import datetime
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import msgspec
import re2

from penstock.errors import ConfigError, FilterError
from penstock.model import Position, PositionKind, Record

_DEEPEST: Final = 50
_MOST_TERMS: Final = 200
_FIELDS: Final = ("key", "value", "header", "timestamp", "partition", "pointer", "offset", "size")
_WITH_PATHS: Final = ("key", "value", "header")
_NUMERIC: Final = ("timestamp", "partition", "pointer", "size")
_COMPARING: Final = ("==", "!=", "<", "<=", ">", ">=", "contains", "startswith", "endswith", "matches", "in", "not")
_TEXT_SIGNS: Final = ("contains", "startswith", "endswith", "matches")
_ORDERING: Final = ("<", "<=", ">", ">=")


class Filter:
    """A parsed filter. Raises FilterError with what is wrong, and where."""

    def __init__(self, text: str, now: datetime.datetime) -> None:
        self.text = text
        parser = _Parser(tokens_of(text), now)
        self._term = parser.parse()
        self._patterns = tuple(parser.patterns)

    @property
    def note(self) -> str:
        if any(pattern.has_cut for pattern in self._patterns):
            return f"patterns searched only the first {LONGEST_TEXT:,} characters of longer texts"
        return ""

    def holds(self, record: Record, size_bytes: int, decode: Callable[[bytes], Any]) -> bool:
        """Whether it matches this record. `decode` decodes bytes, for paths into them."""
        return self._term.holds(Subject(record, size_bytes, decode))


class _Parser:
    """A recursive-descent parser: or, and, not, comparison."""

    def __init__(self, tokens: list[Token], now: datetime.datetime) -> None:
        self._tokens = tokens
        self._at = 0
        self._now = now
        self._depth = 0
        self._terms = 0
        self.patterns: list[Pattern] = []

    def parse(self) -> Term:
        term = self._either()
        if self._next.kind != "end":
            raise self._mistake("and, or, or the end")
        return term

    def _either(self) -> Term:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise FilterError(f"the filter is nested more than {_DEEPEST} deep", self._next.position)
        terms = [self._both()]
        while self._takes("word", "or"):
            terms.append(self._both())
        self._depth -= 1
        return terms[0] if len(terms) == 1 else Any_(tuple(terms))

    def _both(self) -> Term:
        terms = [self._negated()]
        while self._takes("word", "and"):
            terms.append(self._negated())
        return terms[0] if len(terms) == 1 else All(tuple(terms))

    def _negated(self) -> Term:
        is_negated = False
        while self._takes("word", "not"):
            is_negated = not is_negated
        term = self._single()
        return Not(term) if is_negated else term

    def _single(self) -> Term:
        self._terms += 1
        if self._terms > _MOST_TERMS:
            raise FilterError(f"the filter has more than {_MOST_TERMS} comparisons", self._next.position)
        if self._takes("sign", "("):
            term = self._either()
            if not self._takes("sign", ")"):
                raise self._mistake("a closing bracket )")
            return term
        return self._comparison(self._field())

    def _field(self) -> Field:
        token = self._next
        if token.kind != "field":
            raise self._mistake(f"a field: {', '.join(_FIELDS)}")
        if token.text not in _FIELDS:
            raise _wrong(
                token.position,
                f"unknown field {token.text!r}; fields are {', '.join(_FIELDS)}"
                + (f". Fields of the value are written value.{token.text}" if token.text.isidentifier() else ""),
            )
        if token.path and token.text not in _WITH_PATHS:
            raise _wrong(token.position, f"{token.text} has nothing inside")
        if token.text == "header" and len(token.path) != 1:
            raise _wrong(token.position, 'name the header: header.trace, or header["any name"]')
        self._at += 1
        path = tuple(map(str, token.path)) if token.text == "header" else token.path
        return Field("pointer" if token.text == "offset" else token.text, path)

    def _comparison(self, field: Field) -> Term:
        token = self._next
        if token.text not in _COMPARING or token.kind not in ("sign", "word"):
            if token.kind == "end" or token.text in ("and", "or", ")"):
                return Present(field)
            raise self._mistake(f"a comparison: {' '.join(_COMPARING[:-1])}, and, or")
        self._at += 1
        if token.text == "not":
            if not self._takes("word", "in"):
                raise self._mistake("in, as in: partition not in [0, 2]")
            return Not(Comparison(field, "in", self._list(field)))
        if token.text == "in":
            return Comparison(field, "in", self._list(field))
        if token.text == "matches":
            pattern = self._pattern()
            self.patterns.append(pattern)
            return Matches(field, pattern)
        operand_token = self._next
        operand = self._literal(field)
        if token.text in _ORDERING and (operand is None or isinstance(operand, bool)):
            raise _wrong(operand_token.position, f"{token.text} compares with a number or a text in quotes")
        if token.text in _TEXT_SIGNS and operand is None:
            raise _wrong(operand_token.position, f"{token.text} needs a text in quotes, or a number")
        return Comparison(field, token.text, operand)

    def _pattern(self) -> Pattern:
        token = self._next
        if token.kind != "text":
            raise self._mistake('a pattern in quotes: matches "ann.*"')
        self._at += 1
        try:
            return Pattern(token.text)
        except ValueError as error:
            raise _wrong(token.position, f"{error}") from None

    def _list(self, field: Field) -> tuple[Constant, ...]:
        if not self._takes("sign", "["):
            raise self._mistake("a list in brackets: in [0, 2]")
        found: list[Constant] = []
        while not self._takes("sign", "]"):
            if found and not self._takes("sign", ","):
                raise self._mistake("a comma, or the bracket ] that closes the list")
            found.append(self._literal(field))
        return tuple(found)

    def _literal(self, field: Field) -> Constant:
        token = self._next
        literal: Constant
        if token.kind == "text":
            literal = token.text
        elif token.kind == "number":
            literal = _number(token)
        elif token.kind == "word" and token.text in _CONSTANTS:
            literal = _CONSTANTS[token.text]
        else:
            raise self._mistake("a text in quotes, a number, true, false or null")
        self._at += 1
        if field.name == "timestamp" and isinstance(literal, str):
            return self._time_ms(literal, token)
        if field.name in _NUMERIC and isinstance(literal, str | bool):
            raise _wrong(token.position, f"{field.name} must be compared with a number")
        return literal

    def _time_ms(self, text: str, token: Token) -> int:
        try:
            position = Position.parse(text, self._now)
        except ConfigError:
            position = Position.EARLIEST
        if position.kind is not PositionKind.TIME:
            raise _wrong(token.position, f'{text!r} is not a time: write "2026-11-15T08:00", or an age such as "-15m"')
        return position.time_ms

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _takes(self, kind: str, text: str) -> bool:
        """Consume the next token if it is this one."""
        token = self._next
        if (token.kind, token.text) != (kind, text):
            return False
        self._at += 1
        return True

    def _mistake(self, wanted: str) -> FilterError:
        token = self._next
        found = "the end" if token.kind == "end" else repr(token.text)
        return _wrong(token.position, f"expected {wanted}, not {found}")


def _wrong(position: int, text: str) -> FilterError:
    """The error for the token at this position."""
    return FilterError(f"at character {position + 1}: {text}", position)


_CONSTANTS: Final[dict[str, Constant]] = {"true": True, "false": False, "null": None}


def _number(token: Token) -> int | float:
    if len(token.text) > 40:
        raise _wrong(token.position, "this number is too long")
    return int(token.text) if token.text.lstrip("-").isdecimal() else float(token.text)


LONGEST_FILTER: Final = 2_000
KEYWORDS: Final = frozenset(
    {"and", "or", "not", "in", "contains", "startswith", "endswith", "matches", "true", "false", "null"}
)

Step = str | int
"""A name in an object, or an index in an array."""

_SPACE: Final = re.compile(r"\s+")
_NUMBER_TOKEN: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?(?![\w.])")
_NAME: Final = re.compile(r"[^\W\d][\w-]*")
_DOTTED: Final = re.compile(r"\.([\w-]+)")
_PLACE: Final = re.compile(r"\[\s*([0-9]{1,9})\s*\]")
_SIGN: Final = re.compile(r"==|!=|<=|>=|<|>|\(|\)|\[|\]|,")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\", "/": "/"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: Literal["field", "word", "number", "text", "sign", "end"]
    text: str
    """The token as written; for a text literal, its content."""
    position: int
    path: tuple[Step, ...] = ()


def tokens_of(filter: str) -> list[Token]:
    """All tokens, and one that marks the end. Raises FilterError."""
    if len(filter) > LONGEST_FILTER:
        raise FilterError(f"the filter has {len(filter):,} characters; the limit is {LONGEST_FILTER:,}", LONGEST_FILTER)
    found: list[Token] = []
    at = 0
    while at < len(filter):
        space = _SPACE.match(filter, at)
        if space:
            at = space.end()
            continue
        token, at = _token(filter, at)
        found.append(token)
    return [*found, Token("end", "", len(filter))]


def _token(filter: str, at: int) -> tuple[Token, int]:
    if filter[at] in "\"'":
        text, end = _quoted(filter, at)
        return Token("text", text, at), end
    number = _NUMBER_TOKEN.match(filter, at)
    if number:
        return Token("number", number.group(), at), number.end()
    name = _NAME.match(filter, at)
    if name:
        if name.group() in KEYWORDS:
            return Token("word", name.group(), at), name.end()
        path, end = _path(filter, name.end())
        return Token("field", name.group(), at, path), end
    sign = _SIGN.match(filter, at)
    if sign:
        return Token("sign", sign.group(), at), sign.end()
    if filter[at] == "=":
        raise _wrong(at, "write == to compare")
    if filter[at] in "&|!":
        raise _wrong(at, f"write and, or, not instead of {filter[at]}")
    raise _wrong(at, f"{filter[at]!r} is not allowed here; texts need quotes")


def _path(filter: str, at: int) -> tuple[tuple[Step, ...], int]:
    """The path after a name: .name, [0], ["any name"]."""
    steps: list[Step] = []
    while at < len(filter):
        if dotted := _DOTTED.match(filter, at):
            steps.append(dotted.group(1))
            at = dotted.end()
        elif place := _PLACE.match(filter, at):
            steps.append(int(place.group(1)))
            at = place.end()
        elif filter[at] == "[" and filter[at + 1 : at + 2] in ('"', "'"):
            text, end = _quoted(filter, at + 1)
            if filter[end : end + 1] != "]":
                raise _wrong(end, "a bracket [ is not closed")
            steps.append(text)
            at = end + 1
        else:
            break
    return tuple(steps), at


def _quoted(filter: str, at: int) -> tuple[str, int]:
    """The quoted text that begins here, and where it ends."""
    quote, begun = filter[at], at
    pieces: list[str] = []
    at += 1
    while at < len(filter):
        character = filter[at]
        at += 1
        if character == quote:
            return "".join(pieces), at
        if character == "\\":
            escape = filter[at : at + 1]
            if escape == "u" and re.fullmatch("[0-9a-fA-F]{4}", filter[at + 1 : at + 5]):
                pieces.append(chr(int(filter[at + 1 : at + 5], 16)))
                at += 5
                continue
            # What is not an escape stays as it is, so that patterns need no second backslash: "\d+".
            pieces.append(_ESCAPES.get(escape, "\\" + escape))
            at += 1
            continue
        pieces.append(character)
    raise _wrong(begun, f"the quote {quote} is not closed")


Constant = str | int | float | bool | None

LONGEST_PATTERN: Final = 500
LONGEST_TEXT: Final = 65_536
"""Patterns search this many characters of a text. `contains` searches all of it."""
_LARGEST_PROGRAM: Final = 3_000
"""Instructions of a compiled pattern. RE2's slowest engine needs about a second for `LONGEST_TEXT` with this many."""
_PATTERN_MEMORY_BYTES: Final = 1 << 20
_MISSING: Final = object()
_UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)
_NOT_DECODED: Final = object()
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Subject:
    """A record that filters are evaluated for. It is decoded lazily, and at most once."""

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
    """A field of a record. It may have several values, such as headers of one name: then any of them may match."""

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
    field: Field
    sign: str
    operand: Constant | tuple[Constant, ...]

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
            number = _number_of(found)
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


class Pattern:
    """A regular expression in RE2 syntax, which takes time linear in the text. Raises ValueError for a bad one."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_PATTERN:
            raise ValueError(f"the pattern has {len(text)} characters; the limit is {LONGEST_PATTERN}")
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.max_mem = _PATTERN_MEMORY_BYTES
        try:
            self._compiled = re2.compile(text.encode(errors="surrogatepass"), options)
        except re2.error as error:
            raise ValueError(f"bad pattern: {error.args[0].decode(errors='replace')}") from None
        if self._compiled.programsize > _LARGEST_PROGRAM:
            raise ValueError("the pattern is too large: use smaller repetition counts, or contains")
        self.has_cut = False
        """Whether it has searched only the first `LONGEST_TEXT` characters of some text."""

    def is_in(self, text: str) -> bool:
        self.has_cut = self.has_cut or len(text) > LONGEST_TEXT
        return self._compiled.search(text[:LONGEST_TEXT].encode(errors="replace")) is not None


@dataclass(frozen=True, slots=True)
class Matches:
    field: Field
    pattern: Pattern

    def holds(self, subject: Subject) -> bool:
        texts = [_as_text(each) for each in self.field.found(subject) if each is not _MISSING]
        return any(self.pattern.is_in(text) for text in texts if text is not None)


@dataclass(frozen=True, slots=True)
class Present:
    """A field alone: it exists, and is not null, false, 0 or empty."""

    field: Field

    def holds(self, subject: Subject) -> bool:
        return any(each is not _MISSING and bool(each) for each in self.field.found(subject))


def _whole(data: bytes | None, subject: Subject, name: str) -> Sequence[Any]:
    """A whole key or value: its decoded form, and its text."""
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
        return _number_of(found) == wanted
    return bool(found == wanted)


def _number_of(found: Any) -> int | float | None:
    """The number that a value is or spells."""
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
