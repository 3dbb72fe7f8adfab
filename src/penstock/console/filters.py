"""Filters of messages: a small language of its own, which can compare and nothing else.

    value.amount > 100 and key contains "ann"
    header.trace == "x" or not (partition in [0, 2])
    value.items[0].name startswith "A" and timestamp >= "-15m"
    value matches "order-\\d+"

Fields: `key` and `value`, with paths into JSON (also msgpack, and Avro where a registry is known): `value.a.b[0]`,
`value["any name"]`; `header.NAME`; `timestamp`, compared with a time or an age in quotes, or milliseconds since 1970;
`partition`; `pointer` (or `offset`); `size` in bytes. A field alone holds when it is there and not null, false, 0 or
empty.

Comparisons: `== != < <= > >= contains startswith endswith matches in`, and `not in`. They mind the case of letters
(`matches "(?i)..."` does not). A path that leads nowhere equals null and nothing else. `and` binds closer than `or`;
brackets say otherwise.

Nothing is ever handed to Python to be run: the text is taken apart here, and what is not named above is refused with
the place of the mistake. Length and nesting have limits, and patterns take time in proportion to the text
(`penstock.console.patterns`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final

from penstock.console.filter_terms import All, Any_, Comparison, Field, Literal, Matches, Not, Present, Subject, Term
from penstock.console.filter_tokens import Token, tokens_of
from penstock.console.patterns import LONGEST_TEXT, Pattern, PatternError
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
    """A filter, understood. FilterError says what could not be, and where."""

    def __init__(self, text: str, now: datetime.datetime) -> None:
        self.text = text
        parser = _Parser(tokens_of(text), now)
        self._term = parser.parse()
        self._patterns = tuple(parser.patterns)

    @property
    def note(self) -> str:
        """What is to be known about what it has found; empty: nothing."""
        if any(pattern.has_cut for pattern in self._patterns):
            return f"patterns have looked at the first {LONGEST_TEXT:,} characters of longer texts only"
        return ""

    def holds(self, record: Record, size_bytes: int, decode: Callable[[bytes], Any]) -> bool:
        """Whether it holds for this record. `decode` makes values of bytes, for paths into them."""
        return self._term.holds(Subject(record, size_bytes, decode))


class _Parser:
    """Goes down over the tokens once: or, and, not, comparison."""

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
            raise FilterError(
                f"at character {token.position + 1}: there is no field {token.text!r}; there are {', '.join(_FIELDS)}"
                + (f". Fields of the value are written value.{token.text}" if token.text.isidentifier() else ""),
                token.position,
            )
        if token.path and token.text not in _WITH_PATHS:
            raise FilterError(f"at character {token.position + 1}: {token.text} has nothing inside", token.position)
        if token.text == "header" and len(token.path) != 1:
            raise FilterError(
                f'at character {token.position + 1}: write which header: header.trace, or header["any name"]',
                token.position,
            )
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
            position = self._next.position
            pattern = self._pattern()
            self.patterns.append(pattern)
            return Matches(field, pattern, position)
        operand_token = self._next
        operand = self._literal(field)
        if token.text in _ORDERING and (operand is None or isinstance(operand, bool)):
            raise FilterError(
                f"at character {operand_token.position + 1}: {token.text} compares with a number or a text in quotes",
                operand_token.position,
            )
        if token.text in _TEXT_SIGNS and operand is None:
            raise FilterError(
                f"at character {operand_token.position + 1}: {token.text} wants a text in quotes, or a number",
                operand_token.position,
            )
        return Comparison(field, token.text, operand)

    def _pattern(self) -> Pattern:
        token = self._next
        if token.kind != "text":
            raise self._mistake('a pattern in quotes: matches "ann.*"')
        self._at += 1
        try:
            return Pattern(token.text)
        except PatternError as error:
            raise FilterError(
                f"at character {token.position + 1}: in the pattern, at its character {error.position + 1}: {error}",
                token.position,
            ) from None

    def _list(self, field: Field) -> tuple[Literal, ...]:
        if not self._takes("sign", "["):
            raise self._mistake("a list in brackets: in [0, 2]")
        found: list[Literal] = []
        while not self._takes("sign", "]"):
            if found and not self._takes("sign", ","):
                raise self._mistake("a comma, or the bracket ] that closes the list")
            found.append(self._literal(field))
        return tuple(found)

    def _literal(self, field: Field) -> Literal:
        token = self._next
        literal: Literal
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
            raise FilterError(
                f"at character {token.position + 1}: {field.name} is a number, and is compared with one", token.position
            )
        return literal

    def _time_ms(self, text: str, token: Token) -> int:
        try:
            position = Position.parse(text, self._now)
        except ConfigError:
            position = Position.EARLIEST
        if position.kind is not PositionKind.TIME:
            raise FilterError(
                f'at character {token.position + 1}: {text!r} is no time: write "2026-11-15T08:00", or an age such as '
                '"-15m"',
                token.position,
            )
        return position.time_ms

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _takes(self, kind: str, text: str) -> bool:
        """Step over the next token if it is this one."""
        token = self._next
        if (token.kind, token.text) != (kind, text):
            return False
        self._at += 1
        return True

    def _mistake(self, wanted: str) -> FilterError:
        token = self._next
        found = "the end" if token.kind == "end" else repr(token.text)
        return FilterError(f"at character {token.position + 1}: here should be {wanted}, not {found}", token.position)


_CONSTANTS: Final[dict[str, Literal]] = {"true": True, "false": False, "null": None}


def _number(token: Token) -> int | float:
    if len(token.text) > 40:
        raise FilterError(f"at character {token.position + 1}: this number is too long", token.position)
    return int(token.text) if token.text.lstrip("-").isdecimal() else float(token.text)
