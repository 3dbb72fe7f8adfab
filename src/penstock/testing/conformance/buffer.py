"""The suite for buffers.

    from penstock.testing import conformance
    TestMyBuffer = conformance.buffer(open_my_buffer, limited=open_a_small_one)

The factory opens the same buffer with each call, as the next process would; one that is durable takes the folder it is
kept in. `limited` opens one that holds at most 10 records.
"""

from __future__ import annotations

from penstock.abc import Buffer, Features
from penstock.testing.conformance.buffer_survival import SurvivalCases
from penstock.testing.conformance.buffer_use import UseCases
from penstock.testing.conformance.suite import Factory, collect


class BufferCases(UseCases, SurvivalCases):
    """What `penstock.abc.Buffer` promises."""


def buffer(
    factory: Factory[Buffer], features: Features | None = None, *, limited: Factory[Buffer] | None = None
) -> type[BufferCases]:
    """A class of test cases for the buffer that the factory opens."""
    cases = collect(BufferCases, factory, features)
    if limited is not None:
        cases.limited = staticmethod(limited)
    return cases
