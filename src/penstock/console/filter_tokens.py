"""The words of a filter: names with their paths, numbers, texts, and signs, each with where it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from penstock.errors import FilterError

LONGEST_FILTER: Final = 2_000
KEYWORDS: Final = frozenset(
    {"and", "or", "not", "in", "contains", "startswith", "endswith", "matches", "true", "false", "null"}
)

Step = str | int
"""A name in an object, or a place in an array."""

_SPACE: Final = re.compile(r"\s+")
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?(?![\w.])")
_NAME: Final = re.compile(r"[^\W\d][\w-]*")
_DOTTED: Final = re.compile(r"\.([\w-]+)")
_PLACE: Final = re.compile(r"\[\s*([0-9]{1,9})\s*\]")
_SIGN: Final = re.compile(r"==|!=|<=|>=|<|>|\(|\)|\[|\]|,")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\", "/": "/"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: Literal["field", "word", "number", "text", "sign", "end"]
    text: str
    """As it is written; of a text, what it means."""
    position: int
    path: tuple[Step, ...] = ()
    """Of a field: the way into it."""


def tokens_of(filter: str) -> list[Token]:
    """All tokens, and one that marks the end. FilterError for what is none."""
    if len(filter) > LONGEST_FILTER:
        raise FilterError(f"the filter has {len(filter):,} characters, and may have {LONGEST_FILTER:,}", LONGEST_FILTER)
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
    number = _NUMBER.match(filter, at)
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
        raise FilterError(f"at character {at + 1}: write == to compare", at)
    if filter[at] in "&|!":
        raise FilterError(f"at character {at + 1}: write and, or, not instead of {filter[at]}", at)
    raise FilterError(f"at character {at + 1}: {filter[at]!r} means nothing here; texts stand in quotes", at)


def _path(filter: str, at: int) -> tuple[tuple[Step, ...], int]:
    """The steps behind a name: .name, [0], ["any name"]."""
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
                raise FilterError(f"at character {end + 1}: a bracket [ is not closed", end)
            steps.append(text)
            at = end + 1
        else:
            break
    return tuple(steps), at


def _quoted(filter: str, at: int) -> tuple[str, int]:
    """The text in quotes that begins here, and where it ends."""
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
            # What is no escape stays as it is, so that patterns need no second backslash: "\d+".
            pieces.append(_ESCAPES.get(escape, "\\" + escape))
            at += 1
            continue
        pieces.append(character)
    raise FilterError(f"at character {begun + 1}: the quote {quote} is not closed", begun)
