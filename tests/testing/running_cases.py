"""Running single cases of a conformance suite, to see what they make of a backend."""

from __future__ import annotations

import unittest
from typing import Any, Final

from penstock.testing.conformance.suite import Suite

HONEST: Final = ("penstock.errors.", "TimeoutError")
"""Errors that a case need not expect: the backend raises them, or does not come to an end."""


def complaint_of(cases: type[Suite[Any]], name: str) -> str | None:
    """What the case says about the backend; None when it is content. A case that was skipped is an error here."""
    result = unittest.TestResult()
    cases(name).run(result)
    assert result.testsRun == 1
    assert not result.skipped, f"{name} was skipped: {result.skipped}"
    for _, text in result.errors:
        last = text.strip().splitlines()[-1]
        assert last.startswith(HONEST), f"{name} did not judge the backend, it failed itself:\n{text}"
    problems = [*result.failures, *result.errors]
    return "\n".join(text for _, text in problems) if problems else None


def reason_for_skipping(cases: type[Suite[Any]], name: str) -> str | None:
    result = unittest.TestResult()
    cases(name).run(result)
    return result.skipped[0][1] if result.skipped else None
