"""Waiting for something to become true, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def eventually(what: str, condition: Callable[[], Answer], timeout_s: float = 20.0) -> Answer:
    """Ask until the answer is truthy, and give it; fail, saying what did not happen, when the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s; the last answer was {answer!r}")
        time.sleep(0.02)
