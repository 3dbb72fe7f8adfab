"""The suite for dead letters.

    from penstock.testing import conformance
    TestMyLetters = conformance.dead_letters(open_my_letters)

The factory opens the same letters with each call, as a second process would.
"""

from __future__ import annotations

from penstock.abc import DeadLetters, Features
from penstock.testing.conformance.letter_browsing import BrowsingCases
from penstock.testing.conformance.letter_states import StateCases
from penstock.testing.conformance.letter_survival import SurvivalCases
from penstock.testing.conformance.suite import Factory, collect


class DeadLetterCases(BrowsingCases, StateCases, SurvivalCases):
    """What `penstock.abc.DeadLetters` promises."""


def dead_letters(factory: Factory[DeadLetters], features: Features | None = None) -> type[DeadLetterCases]:
    """A class of test cases for the dead letters that the factory opens."""
    return collect(DeadLetterCases, factory, features)
