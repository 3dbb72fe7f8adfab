"""Patterns for the `matches` of filters, in time that grows with the text and with nothing else.

Python's `re` goes back and tries again, and `(a+)+b` against thirty letters takes it minutes: whoever may write a
pattern could stop the console. Here a pattern becomes a machine that is in all its possible states at once, which walks
once over the text (Thompson's construction, as in RE2). What such a machine cannot do, references to what a group has
matched and looking ahead or behind, is refused when the pattern is made.

Where a pattern has many counts, the machine can be in so many states that even one walk takes long: a pattern that is
too much work for a text is given up there, and says so.

What can be written: characters, `.`, `[a-z]`, `[^a-z]`, `\\d \\w \\s` and `\\D \\W \\S`, `^`, `$`, `(...)`, `(?:...)`,
`|`, `*`, `+`, `?`, `{2}`, `{2,}`, `{2,5}`, and `(?i)` at the very beginning for any case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

LONGEST_PATTERN: Final = 500
LONGEST_TEXT: Final = 65_536
"""A pattern looks at so much of a text. To find something anywhere in a large value there is `contains`."""
_MOST_STATES: Final = 2_000
_MOST_REPEATS: Final = 200
_DEEPEST: Final = 20
_MOST_REMEMBERED: Final = 500_000
"""How many states, of all steps that are remembered. A set of states takes some 50 bytes for each."""
MOST_WORK: Final = 2_000_000
"""How many states may be looked at for one text: half a second's work. A pattern that people would write needs a few
for each character."""

Test = Callable[[str], bool]
_CLASSES: Final[dict[str, Test]] = {
    "d": str.isdecimal,
    "w": lambda c: c.isalnum() or c == "_",
    "s": str.isspace,
    "D": lambda c: not c.isdecimal(),
    "W": lambda c: not (c.isalnum() or c == "_"),
    "S": lambda c: not c.isspace(),
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


class TooMuchWork(ValueError):
    """The pattern would take too long for this text."""


class PatternError(ValueError):
    """What is wrong with a pattern, and at which of its characters."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(slots=True)
class _State:
    """One state: it eats a character that passes `test`, or eats nothing and is in all of `nexts` as well."""

    test: Test | None = None
    nexts: list[int] = field(default_factory=list)
    needs: str = ""
    """^ or $: it is passed at the beginning, or the end, of the text only."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a pattern, not yet a machine: so a piece that is repeated can be made several times."""

    kind: str
    """one, all, any, repeat, begin, end"""
    test: Test | None = None
    parts: tuple[_Part, ...] = ()
    least: int = 0
    most: int | None = 0


class Pattern:
    """A pattern, ready to be looked for. Raises PatternError. One thread at a time uses it."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_PATTERN:
            raise PatternError(f"the pattern has {len(text)} characters, and may have {LONGEST_PATTERN}", 0)
        self._is_any_case = text.startswith("(?i)")
        part = _Parser(text, 4 if self._is_any_case else 0, self._is_any_case).parse()
        self._states: list[_State] = []
        self._accept = self._add(_State())
        self._start = self._build(part, self._accept)
        self._remembered: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._remembered_states = 0
        self._work = 0
        self.has_cut = False
        """Whether it has looked at the beginning of a text only, as that was longer than `LONGEST_TEXT`."""
        self._first = self._closure({self._start}, at_start=True, at_end=False)
        self._anywhere = self._closure({self._start}, at_start=False, at_end=False)

    def is_in(self, text: str) -> bool:
        """Whether the pattern matches somewhere in the text. Raises TooMuchWork."""
        self.has_cut = self.has_cut or len(text) > LONGEST_TEXT
        self._work = 0
        text = text[:LONGEST_TEXT]
        states = self._first
        for character in text.lower() if self._is_any_case else text:
            if self._accept in states:
                return True
            states = self._step(states, character)
        return self._accept in self._closure(states, at_start=not text, at_end=True)

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        known = self._remembered.get((states, character))
        if known is not None:
            return known
        reached = {
            next
            for state in states
            if (test := self._states[state].test) is not None and test(character)
            for next in self._states[state].nexts
        }
        found = self._closure(reached, at_start=False, at_end=False) | self._anywhere
        self._work += len(states) + len(found)
        if self._work > MOST_WORK:
            raise TooMuchWork
        self._remembered_states += len(found)
        if self._remembered_states > _MOST_REMEMBERED:
            self._remembered.clear()
            self._remembered_states = len(found)
        self._remembered[states, character] = found
        return found

    def _closure(self, states: set[int] | frozenset[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """These states, and all that are reached from them without eating anything."""
        found: set[int] = set()
        left = list(states)
        while left:
            number = left.pop()
            if number in found:
                continue
            found.add(number)
            state = self._states[number]
            if state.test is not None or (state.needs == "^" and not at_start) or (state.needs == "$" and not at_end):
                continue
            left += state.nexts
        return frozenset(found)

    def _add(self, state: _State) -> int:
        if len(self._states) >= _MOST_STATES:
            raise PatternError("the pattern repeats too much: write smaller numbers in the braces", 0)
        self._states.append(state)
        return len(self._states) - 1

    def _build(self, part: _Part, next: int) -> int:
        """The first state of a part, behind which the machine goes on at `next`."""
        match part.kind:
            case "one":
                return self._add(_State(part.test, [next]))
            case "begin" | "end":
                return self._add(_State(None, [next], "^" if part.kind == "begin" else "$"))
            case "all":
                for each in reversed(part.parts):
                    next = self._build(each, next)
                return next
            case "any":
                return self._add(_State(None, [self._build(each, next) for each in part.parts]))
            case _:
                return self._build_repeat(part, next)

    def _build_repeat(self, part: _Part, next: int) -> int:
        (inner,) = part.parts
        if part.most is None:
            loop = self._add(_State(None, [next]))
            self._states[loop].nexts.append(self._build(inner, loop))
            next = loop
        else:
            end = next
            for _ in range(part.most - part.least):
                next = self._add(_State(None, [self._build(inner, next), end]))
        for _ in range(part.least):
            next = self._build(inner, next)
        return next


class _Parser:
    """From text to parts, by going down once over it."""

    def __init__(self, text: str, at: int, is_any_case: bool) -> None:
        self._text = text
        self._at = at
        self._is_any_case = is_any_case
        self._depth = 0

    def parse(self) -> _Part:
        part = self._alternatives()
        if self._at < len(self._text):
            raise PatternError("a bracket ) closes nothing: write \\) for the character", self._at)
        return part

    def _alternatives(self) -> _Part:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise PatternError(f"brackets are nested more than {_DEEPEST} deep", self._at)
        choices = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            choices.append(self._sequence())
        self._depth -= 1
        return choices[0] if len(choices) == 1 else _Part("any", parts=tuple(choices))

    def _sequence(self) -> _Part:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._single()))
        return _Part("all", parts=tuple(parts))

    def _single(self) -> _Part:
        character, at = self._take(), self._at - 1
        match character:
            case "(":
                return self._group(at)
            case "[":
                return _Part("one", self._class(at))
            case ".":
                return _Part("one", lambda c: c != "\n")
            case "^":
                return _Part("begin")
            case "$":
                return _Part("end")
            case "\\":
                return _Part("one", self._escaped())
            case "*" | "+" | "?" | "{":
                raise PatternError(f"{character} repeats nothing: write \\{character} for the character", at)
            case _:
                return _Part("one", self._equals(character))

    def _group(self, at: int) -> _Part:
        if self._peek() == "?":
            if not self._text.startswith("?:", self._at):
                raise PatternError("only (?:...) and, at the very beginning, (?i) can be written with (?", at)
            self._at += 2
        part = self._alternatives()
        if self._take() != ")":
            raise PatternError("a bracket ( is not closed", at)
        return part

    def _repeated(self, part: _Part) -> _Part:
        repeated = part
        at = self._at
        match self._peek():
            case "*":
                repeated = _Part("repeat", parts=(part,), least=0, most=None)
            case "+":
                repeated = _Part("repeat", parts=(part,), least=1, most=None)
            case "?":
                repeated = _Part("repeat", parts=(part,), least=0, most=1)
            case "{":
                least, most = self._counts(at)
                repeated = _Part("repeat", parts=(part,), least=least, most=most)
            case _:
                return part
        self._at += 1
        if self._peek() == "?":  # as few as possible: whether it matches is the same
            self._at += 1
        if self._peek() in ("*", "+", "?", "{"):
            raise PatternError("what is repeated already needs brackets to be repeated again", self._at)
        return repeated

    def _counts(self, at: int) -> tuple[int, int | None]:
        end = self._text.find("}", at)
        inside = self._text[at + 1 : end] if end > 0 else ""
        first, comma, second = inside.partition(",")
        if not _is_count(first) or (second and not _is_count(second)):
            raise PatternError("in braces stands how often: {2}, {2,} or {2,5}; write \\{ for the character", at)
        least, most = int(first), int(second) if second else None if comma else int(first)
        if max(least, most or 0) > _MOST_REPEATS or (most is not None and most < least):
            raise PatternError(f"numbers in braces go up to {_MOST_REPEATS}, and the second is not the smaller", at)
        self._at = end
        return least, most

    def _class(self, at: int) -> Test:
        is_negated = self._peek() == "^"
        self._at += is_negated
        tests: list[Test] = []
        while self._peek() != "]" or not tests:
            character = self._take()
            if not character:
                raise PatternError("a bracket [ is not closed", at)
            if character == "\\" and self._peek() in _CLASSES:
                tests.append(_CLASSES[self._take()])
                continue
            low = self._plain_escape() if character == "\\" else character
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._take()
                high = self._plain_escape() if high == "\\" else high
                if high < low:
                    raise PatternError(f"{low}-{high} is no range: {high} comes before {low}", self._at - 1)
            tests.append(self._between(low, high))
        self._at += 1
        return lambda c: any(test(c) for test in tests) != is_negated

    def _escaped(self) -> Test:
        if self._peek() in _CLASSES:
            return _CLASSES[self._take()]
        return self._equals(self._plain_escape())

    def _plain_escape(self) -> str:
        character = self._take()
        if character in _ESCAPES:
            return _ESCAPES[character]
        if not character or character.isalnum():
            raise PatternError(f"\\{character} means nothing here", self._at - 1)
        return character

    def _equals(self, character: str) -> Test:
        return self._between(character, character)

    def _between(self, low: str, high: str) -> Test:
        if not self._is_any_case:
            return low.__eq__ if low == high else lambda c: low <= c <= high
        # The text comes in lower case here.
        lows, highs = low.lower(), high.lower()
        return lambda c: low <= c <= high or lows <= c <= highs or low <= c.upper() <= high

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._peek()
        self._at += 1
        return character


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4
