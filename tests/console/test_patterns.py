"""Patterns of filters: they mean what they mean to Python, and no text takes them long."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.console import patterns
from penstock.console.patterns import LONGEST_PATTERN, LONGEST_TEXT, Pattern, PatternError, TooMuchWork
from tests.seeds import seed_of

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "^", "$", "(?:a|b)", "(a)", "(b|)", "x", "[a-c]"])
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,1}", "{1,}"])


@given(
    st.lists(st.tuples(ATOMS, REPEATS), max_size=5),
    st.lists(st.tuples(ATOMS, REPEATS), max_size=3),
    st.text("abx1\n", max_size=12),
)
@settings(max_examples=500, deadline=None)
def test_a_pattern_means_what_it_means_to_python(
    left: list[tuple[str, str]], right: list[tuple[str, str]], text: str
) -> None:
    parts = ["".join(atom + ("" if atom in "^$" else repeat) for atom, repeat in each) for each in (left, right)]
    pattern = "|".join(parts) if right else f"(?:{parts[0]})"
    # To Python, $ is also before a newline at the very end.
    assert Pattern(pattern).is_in(text) == bool(re.search(pattern.replace("$", r"\Z"), text))


@pytest.mark.parametrize(
    ("pattern", "text", "is_in"),
    [
        ("(?i)ÄRGER-\\d", "mein ärger-5", True),
        ("(?i)[a-z]+", "ABC", True),
        ("a]b", "a]b", True),
        ("[]a]", "]", True),
        ("[a-]", "-", True),
        (r"\.\(\)", "x.()", True),
        (r"\t", "\t", True),
        ("a+?b", "aaab", True),
        ("", "", True),
        ("^$", "", True),
        ("^$", "x", False),
        ("a$", "ab", False),
        ("💥", "x💥", True),
    ],
)
def test_single_patterns(pattern: str, text: str, is_in: bool) -> None:
    assert Pattern(pattern).is_in(text) is is_in


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+$b", "a*a*a*a*a*a*a*a*b", "(.*)(.*)(.*)(.*)[^a]$x"])
def test_patterns_that_never_end_elsewhere_end_here(pattern: str) -> None:
    assert not Pattern(pattern).is_in("a" * 20_000)


@pytest.mark.parametrize("pattern", ["a.{150}$", "(a.{100}|b.{90}a){8}c", "(.*a.{60}){15}c"])
def test_a_pattern_that_would_take_long_is_given_up_and_holds_little_memory(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each character leads to other states than the ones before, nothing that was remembered helps."""
    monkeypatch.setattr(patterns, "MOST_WORK", 200_000)
    monkeypatch.setattr(patterns, "_MOST_REMEMBERED", 10_000)
    chance = random.Random(seed_of())
    machine = Pattern(pattern)
    with pytest.raises(TooMuchWork):
        machine.is_in("".join(chance.choice("ab") for _ in range(LONGEST_TEXT)))
    assert sum(map(len, machine._remembered.values())) <= 2 * 10_000
    assert machine.is_in("x") is False, "it can be used on"


def test_it_is_known_that_only_the_beginning_of_a_text_was_looked_at() -> None:
    pattern = Pattern("b")
    assert not pattern.is_in("a" * LONGEST_TEXT)
    assert not pattern.has_cut
    assert not pattern.is_in("a" * LONGEST_TEXT + "b")
    assert pattern.has_cut


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "[", "[a", "a{", "a{x}", "a{3,2}", "a{999}", "*", "+a", "a**", "[b-a]", "\\"),
        *("(?=a)", "(?P<x>a)", r"\1", r"\b"),
        *("(" * 30 + ")" * 30, "(((a{200}){200}){200})", "a" * (LONGEST_PATTERN + 1)),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        Pattern(pattern)


@given(st.text("()[]{}*+?|^$\\.,-ab019:i", max_size=30), st.text("ab0", max_size=10))
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_pattern_or_refused(pattern: str, text: str) -> None:
    made = made_of(pattern)
    if isinstance(made, Pattern):
        assert isinstance(made.is_in(text), bool)
    else:
        assert 0 <= made.position <= len(pattern)


def made_of(pattern: str) -> Pattern | PatternError:
    try:
        return Pattern(pattern)
    except PatternError as error:
        return error


def test_only_the_beginning_of_a_large_text_is_looked_at() -> None:
    assert not Pattern("b").is_in("a" * LONGEST_TEXT + "b")
    assert Pattern("b").is_in("a" * (LONGEST_TEXT - 1) + "b")
