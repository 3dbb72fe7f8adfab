"""The suite for queues in two parts, for systems that hand a delivery out again when its visibility timeout is over.

Cases that wait for that, or for a record that somebody held when the server died, get a brief timeout. All others get
one that no busy machine exceeds, so that what they settle is never late.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.abc import Queue
from penstock.testing import conformance
from penstock.testing.conformance.queue import QueueCases, QueueOutageCases

BRIEF_S: Final = 5
LONG_S: Final = 300
OF_OUTAGES: Final = frozenset(name for name in vars(QueueOutageCases) if name.startswith("test_"))
WAITING: Final = OF_OUTAGES | {
    "test_many_are_settled_at_once",
    "test_what_a_killed_receiver_had_is_handed_out_again_and_what_it_settled_is_not",
    "test_what_is_extended_is_not_handed_out_again",
    "test_what_is_not_settled_in_time_is_handed_out_again_and_the_late_one_is_stale",
    "test_what_is_rejected_is_never_handed_out_again",
}
"""Cases that wait until a delivery expires. In each, a few records are settled soon after they came."""

Opener = Callable[[int, Path], Queue]
"""Opens the queue with a visibility timeout. It is a module's function: child processes import it."""


def waiting_cases(opener: Opener, **settings: Any) -> type[QueueCases]:
    """The cases that wait for the visibility timeout. The settings are those of `conformance.queue`."""
    cases = conformance.queue(functools.partial(opener, BRIEF_S), visibility_s=BRIEF_S, **settings)
    return _without(cases, {name for name in dir(cases) if name.startswith("test_")} - WAITING)


def other_cases(opener: Opener, **settings: Any) -> type[QueueCases]:
    """The cases that do not wait for the visibility timeout."""
    return _without(conformance.queue(functools.partial(opener, LONG_S), **settings), WAITING)


def _without(cases: type[QueueCases], names: frozenset[str] | set[str]) -> type[QueueCases]:
    for name in names:
        assert callable(getattr(cases, name)), f"there is no case {name}"
        setattr(cases, name, None)
    return cases
