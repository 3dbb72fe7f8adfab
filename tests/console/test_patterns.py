"""Patterns of filters: they mean what they mean to Python, and take time linear in the text."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.console.messages.filters import LONGEST_PATTERN, LONGEST_TEXT, Pattern
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
        ("a{", "a{", True),
        (r"\bann\b", "to ann.", True),
        ("a.", "a\ud800", True),
    ],
)
def test_single_patterns(pattern: str, text: str, is_in: bool) -> None:
    assert Pattern(pattern).is_in(text) is is_in


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+$b", "a*a*a*a*a*a*a*a*b", "(.*)(.*)(.*)(.*)[^a]$x"])
def test_patterns_that_never_end_elsewhere_end_here(pattern: str) -> None:
    assert not Pattern(pattern).is_in("a" * 20_000)


@pytest.mark.parametrize("pattern", ["a.{150}$", "(.*a.{30}){12}c", r"\w{0,300}z"])
def test_patterns_with_large_counts_search_random_text_to_its_end(pattern: str) -> None:
    """Each character leads to other states than the ones before, so RE2's cache of states overflows its memory."""
    chance = random.Random(seed_of())
    assert not Pattern(pattern).is_in("".join(chance.choice("ab") for _ in range(LONGEST_TEXT - 1)) + "\n")


def test_it_is_known_that_only_the_beginning_of_a_text_was_looked_at() -> None:
    pattern = Pattern("b")
    assert not pattern.is_in("a" * LONGEST_TEXT)
    assert not pattern.has_cut
    assert not pattern.is_in("a" * LONGEST_TEXT + "b")
    assert pattern.has_cut


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "[", "[a", "a{3,2}", "a{1001}", "*", "+a", "a**", "[b-a]", "\\"),
        *("(?=a)", "(?<=a)", r"\1", r"\pX"),
        *("(((a{200}){200}){200})", "(a.{100}|b.{90}a){8}c", r"\pL{300}", "a" * (LONGEST_PATTERN + 1)),
    ],
)
def test_a_bad_or_too_large_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Pattern(pattern)


@given(st.text("()[]{}*+?|^$\\.,-ab019:i", max_size=30), st.text("ab0", max_size=10))
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_pattern_or_refused(pattern: str, text: str) -> None:
    try:
        found = Pattern(pattern).is_in(text)
    except ValueError:
        return
    assert isinstance(found, bool)


def test_only_the_beginning_of_a_large_text_is_looked_at() -> None:
    assert not Pattern("b").is_in("a" * LONGEST_TEXT + "b")
    assert Pattern("b").is_in("a" * (LONGEST_TEXT - 1) + "b")
